"""Compute the data frames that the figures of a trace show."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.errors import MissingTableError
from tracekit.plan.base import to_frame
from tracekit.plan.plan import Correlate
from tracekit.plan.tables import get_rollup, get_tables
from tracekit.registry.absence import State, create_recording_hint
from tracekit.registry.notices import GPU_ACTIVITIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from tracekit.core.figures.stacks import CallTree
    from tracekit.core.rollup import Rollup
    from tracekit.exporters.stacks.options import Options
    from tracekit.plan.view import TraceView

_OPS = ("nvtx_ranges", "kernels", "graph_launches")


@dataclass(frozen=True, slots=True)
class FigureRows:
    """The data that the figures of a trace show, as one data frame per figure.

    If the capture lacks the data of a figure, the method of this figure raises ``MissingTableError``. The error states
    why the data is missing, and its hint what to record.

    Attributes:
        view: The view through which the tables and reports of the trace are read.
    """

    view: TraceView

    def gpu_utilization(self) -> pl.DataFrame:
        """Return how long each GPU ran kernels in the aggregated iterations, in ns and in percent of their duration.

        Returns:
            One row per GPU, in ascending order of ``device_id``. The columns are ``device_id``, ``name`` (null if
            unknown), ``busy_ns`` (time during which the GPU ran kernels), ``total_ns`` (total duration of the
            iterations) and ``percent``.
        """
        from tracekit.core.figures import overview

        self._require_gpu_activities()
        return overview.compute_device_utilization(self.rollup())

    def time_breakdown(self) -> pl.DataFrame:
        """Return the time of the aggregated iterations by part, such as Tensor Core kernels or I/O.

        Returns:
            One row per part. The columns are ``part``, ``time_ns`` and ``percent`` (share of the total duration of
            these iterations).
        """
        from tracekit.core.figures import overview

        return overview.compute_time_breakdown(self.get_nonempty_rollup())

    def kernel_time(self) -> pl.DataFrame:
        """Return the total duration and the number of GPU activities of each kind in the aggregated iterations.

        Returns:
            One row per kind, with the columns ``kind``, ``time_ns`` and ``count``.
        """
        from tracekit.core.figures import overview

        self._require_gpu_activities()
        return overview.sum_activity_times_by_kind(self.rollup())

    def recorded_messages(self) -> pl.DataFrame:
        """Return the warnings and errors of the profiler, and the findings that it recorded. There may be no rows."""
        from tracekit.core.figures import messages

        return self.view.compute(messages.collect_recorded_messages, "recorded_messages")

    def iterations(self) -> pl.DataFrame:
        """Return the rows of the table ``iterations`` of the roll-up."""
        from tracekit.core.rollup import tables

        return tables.build_iterations(self.get_nonempty_rollup())

    def ops(self) -> pl.DataFrame:
        """Return the rows of the table ``ops`` of the roll-up, sorted by descending GPU time.

        If no op ran on a GPU, the rows are sorted by descending CPU time.
        """
        from tracekit.core.rollup import tables

        ops = tables.build_ops(self.rollup())
        if ops.is_empty():
            raise self.create_missing_data_error("ops", _OPS)
        metric = "gpu_time_ns" if ops["gpu_time_ns"].sum() else "cpu_time_ns"
        return ops.sort(metric, "op_id", descending=[True, False])

    def kernels(self) -> pl.DataFrame:
        """Return one row per kernel name, sorted by descending total time.

        If the capture has no kernels, the kernels that Nsight Compute profiled are returned.

        Returns:
            The columns ``name``, ``time_ns``, ``count`` and ``percent`` (share of the total kernel time).
        """
        from tracekit.core.figures import totals

        rows = totals.summarize_kernels(self.view.frame)
        if rows.is_empty():
            raise self.create_missing_data_error("kernels", ("kernels",))
        return _add_percent_column(rows)

    def api_calls(self) -> pl.DataFrame:
        """Return one row per CUDA API function, sorted by descending total time.

        Returns:
            The columns ``name``, ``time_ns``, ``count`` and ``percent`` (share of the total time of API calls).
        """
        report = self.view.report("cuda_api_sum").frame()
        if report.is_empty():
            raise self.create_missing_data_error("API calls", ("api_calls",))
        return _add_percent_column(report.select(name="Name", time_ns="Total Time (ns)", count="Num Calls"))

    def copies(self) -> pl.DataFrame:
        """Return one row per kind of memory copy and one for memory sets, sorted by descending total time.

        Returns:
            The columns ``name``, ``time_ns``, ``count`` and ``bytes``.
        """
        from tracekit.core.figures import totals

        rows = totals.summarize_memory_operations(self.view.frame)
        if rows.is_empty():
            raise self.create_missing_data_error("memory copies or memory sets", ("memcpys", "memsets"))
        return rows

    def idle_causes(self) -> pl.DataFrame:
        """Return the idle time of each GPU by cause, as the rule ``gpu_idle_causes`` computes it."""
        rows = self.view.analyze("gpu_idle_causes").frame()
        if rows.is_empty():
            raise self.create_missing_data_error("GPU activities with idle time between them", GPU_ACTIVITIES)
        return rows

    def group_tree(self, metric: str, direction: str | None, limit: int) -> pl.DataFrame:
        """Return the groups and ops with the largest values of a metric, as a tree.

        ``core.figures.trees.build_group_tree`` computes the tree.

        Args:
            metric: Column of ``group_nodes`` with the values, such as ``gpu_time_ns``.
            direction: ``fprop`` or ``bprop``. If None, groups and ops of both directions are returned.
            limit: Maximum number of nodes of the tree.
        """
        from tracekit.core.figures import trees
        from tracekit.plots.icicles import METRIC_NAMES

        nodes = trees.build_group_tree(self.rollup(), metric, direction, limit)
        if nodes.is_empty():
            raise self.create_missing_data_error(f"ops with {METRIC_NAMES[metric]}", _OPS)
        return nodes

    def op_groups(self) -> pl.DataFrame:
        """Return the group of each op, with one row per op, as ``core.rollup.tables.build_op_groups`` computes it."""
        from tracekit.core.rollup import tables

        return tables.build_op_groups(self.rollup())

    def busy_times(self, bins: int, device: int | None, limit: int) -> pl.DataFrame:
        """Return the busy time of each GPU in consecutive time bins of equal duration.

        Args:
            bins: Number of bins. Fewer bins are used if the result would have more than ``limit`` rows.
            device: Id of the GPU. If None, the result has the bins of all GPUs.
            limit: Maximum number of rows, with one row per GPU and bin.
        """
        from tracekit.core.figures import timeline

        activities = timeline.read_gpu_activities(self.view.frame, device)
        devices = max(activities["device_id"].n_unique(), 1)
        rows = timeline.compute_busy_times(activities, max(1, min(bins, limit // devices)))
        if rows.is_empty():
            noun = "GPU activities" if device is None else f"activities on GPU {device}"
            raise self.create_missing_data_error(noun, GPU_ACTIVITIES)
        return rows

    def memory_changes(self, limit: int) -> pl.DataFrame:
        """Return the memory in use over time, as ``core.figures.timeline.read_memory_changes`` computes it.

        Args:
            limit: Approximate number of rows to return.
        """
        from tracekit.core.figures import timeline

        plan = self.view.plan
        frames = functools.partial(to_frame, get_tables(plan.remove_time_window()))
        rows = timeline.read_memory_changes(frames, limit, plan.window)
        if rows.is_empty():
            raise self.create_missing_data_error("allocations", ("memory_events",))
        return rows

    def metric_names(self) -> list[str]:
        """Return the names of the recorded GPU metrics."""
        from tracekit.core.figures import timeline

        names = timeline.list_metric_names(self.view.frame)
        if not names:
            raise self.create_missing_data_error("GPU metrics", ("gpu_metrics",))
        return names

    def roofline(self) -> pl.DataFrame:
        """Return the rows of the report ``ncu_roofline``."""
        if not self.view.count("ncu_launches"):
            raise self.create_missing_data_error("Nsight Compute results", ("ncu_launches",))
        return self.view.report("ncu_roofline").frame()

    def metric_and_range_tree(self, limit: int) -> tuple[str, pl.DataFrame]:
        """Return the NVTX range paths with the largest GPU time or duration as a tree, and the name of this metric.

        Args:
            limit: Maximum number of nodes of the tree.

        Returns:
            The metric, and the tree that ``core.figures.trees.build_tree_of_largest_ranges`` computes. The metric is
            ``gpu_time_ns``, or ``duration_ns`` if no GPU activity was launched inside any range.
        """
        from tracekit.core.figures import trees

        correlated = get_tables(self.view.plan.add_steps(Correlate()))
        metric, nodes = trees.build_tree_of_largest_ranges(to_frame(correlated, "nvtx_ranges"), limit)
        if nodes.is_empty():
            raise self.create_missing_data_error("push/pop ranges", ("nvtx_ranges",))
        return metric, nodes

    def list_events_with_stacks(self) -> list[str]:
        """Return the names of the events that have call stacks in this trace, such as ``cpu_samples``."""
        from tracekit.exporters.stacks.options import EVENTS
        from tracekit.exporters.stacks.profile import has_stacks

        return [name for name in EVENTS if has_stacks(self.view, name)]

    def call_tree(self, options: Options) -> CallTree:
        """Return the call tree of the events that ``options`` selects, with the weight of each node."""
        import numpy as np
        import polars as pl

        from tracekit.core.figures.stacks import CallTree
        from tracekit.exporters.stacks.profile import read_profile

        if options.events is None and not self.list_events_with_stacks():
            raise self.create_missing_data_error("call stacks", ("stacks",))
        profile = read_profile(self.view, options)
        own = np.zeros(len(profile.parents), np.int64)
        own[profile.weights["node"].to_numpy()] = profile.weights["weight"].to_numpy()
        functions = pl.DataFrame({"name": profile.functions, "module": profile.modules})
        return CallTree(profile.parents, profile.depths, profile.labels, own, functions)

    def rollup(self) -> Rollup:
        """Return the roll-up of the trace. If the trace is not rolled up, use the default parameters of a roll-up.

        The warm-up is not aggregated unless the user includes it. If the capture contains the roll-up of DLProf, the
        roll-up is that of DLProf.
        """
        rollup = get_rollup(self.view.plan)
        is_recorded = self.view.plan.rollup is None and self.view.count("ops") > 0
        return rollup.for_dlprof if is_recorded else rollup.steady

    def get_nonempty_rollup(self) -> Rollup:
        """Return the roll-up of the trace.

        Raises:
            MissingTableError: The roll-up has neither ops nor GPU activities.
        """
        from tracekit.core.figures import overview

        rollup = self.rollup()
        if not overview.has_ops_or_gpu_activities(rollup):
            raise self.create_missing_data_error("ops or GPU activities", (*_OPS, "memcpys", "memsets"))
        return rollup

    def create_missing_data_error(self, plural_noun: str, tables: Sequence[str]) -> MissingTableError:
        """Return the error to raise for a capture that lacks the data of a figure.

        Args:
            plural_noun: The missing data in the plural, such as ``kernels``.
            tables: Names of the tables from which the data is computed. They determine the reason and the hint.
        """
        absence = self.view.explain_missing_tables(tables)
        is_of_another_format = absence.state is State.NOT_APPLICABLE
        hint = create_recording_hint(tables, self.view.plan.source.format) if is_of_another_format else absence.hint
        message = f"the capture has no {plural_noun}: {absence.reason}"
        return MissingTableError(message, path=self.view.path, hint=hint)

    def _require_gpu_activities(self) -> None:
        """Check that the capture has GPU activities.

        Raises:
            MissingTableError: The capture has no GPU activities.
        """
        if not any(map(self.view.count, GPU_ACTIVITIES)):
            raise self.create_missing_data_error("GPU activities", GPU_ACTIVITIES)


def _add_percent_column(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with an additional column ``percent``, the share of each row in the sum of ``time_ns``."""
    import polars as pl

    total = rows["time_ns"].sum() or 1
    return rows.with_columns(percent=pl.col("time_ns") * 100.0 / total)
