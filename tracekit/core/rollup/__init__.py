"""Roll up a capture: aggregate its activities by op, op type, group and iteration.

``measures`` computes everything that does not depend on iterations, so that changing the key op or the aggregated
iterations is cheap. ``groups`` aggregates over the tree of op names, ``breakdown`` divides the time of iterations into
parts, ``statistics`` summarizes metrics, and ``tables`` returns the declared tables.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from tracekit.core import steps
from tracekit.core.ops import Ops
from tracekit.core.ops.attach import ON_GPU
from tracekit.core.rollup import groups
from tracekit.core.rollup.measures import CALL_COLUMNS, METRICS, Measures, divide_iteration_times
from tracekit.core.series import decode_categories_expr, string_ranks_expr

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from tracekit.core.correlate import Frames
    from tracekit.core.iterations import Iterations
    from tracekit.core.rollup.groups import Style

__all__ = ["METRICS", "Rollup"]

KERNEL_METRICS = ("kernel_gpu", "kernel_api")
Span = tuple[int | None, int | None]


@dataclass(frozen=True)
class Rollup:
    """The ops, op types, groups and kernels of a capture over the aggregated iterations.

    Frames with one row per op, group or iteration are computed on first access and cached. Frames with one row per call
    or instance are computed on each access.

    Attributes:
        measures: The times and properties of the ops of the capture.
        key_op: Id or name of the op that delimits iterations, or None for the default of the dialect.
        span: First and last iteration to aggregate, both included, or None for all iterations.
        include_warm_up: Whether the warm-up is aggregated if ``span`` is None. If None, tables and reports aggregate
            it, and advice and pages do not.
        has_windows: Whether iterations have the time of their work on the CPU and the GPU, and the activities that they
            launched. If false, as in DLProf, they have the time between their bounds, and the activities of the op
            instances that end in them.
    """

    measures: Measures
    key_op: str | None = None
    span: Span | None = None
    include_warm_up: bool | None = None
    has_windows: bool = True

    @classmethod
    def from_frames(
        cls,
        frames: Frames,
        *,
        key_op: str | None = None,
        span: Span | None = None,
        include_warm_up: bool | None = None,
        dialect: str | None = None,
        tensor_cores: Literal["extended", "dlprof"] = "extended",
    ) -> Rollup:
        """Return the roll-up of a capture by op, op type, group and iteration.

        Args:
            frames: Function that returns the declared table with a given name.
            key_op: Id or name of the op that delimits iterations, or None for the default of the dialect.
            span: First and last iteration to aggregate, both included, or None for all iterations.
            include_warm_up: Whether the warm-up is aggregated if ``span`` is None. If None, tables and reports
                aggregate it, and advice and pages do not.
            dialect: Name of the dialect of the ranges, or None for the first dialect that matches them.
            tensor_cores: Rules that determine which kernels use Tensor Cores. With ``dlprof``, all statistics are
                computed as in DLProf.
        """
        return cls(Measures(Ops(frames, dialect), tensor_cores), key_op, span, include_warm_up)

    def with_iterations(
        self, *, key_op: str | None = None, span: Span | None = None, include_warm_up: bool | None = None
    ) -> Rollup:
        """Return the roll-up of the same ops over different iterations, without reading or measuring the ops again."""
        return replace(self, key_op=key_op, span=span, include_warm_up=include_warm_up)

    @functools.cached_property
    def results(self) -> dict[Hashable, Any]:
        """Cache of results that are expensive to compute from this roll-up, such as the answer of ``why``."""
        return {}

    @functools.cached_property
    def working_data(self) -> dict[Hashable, Any]:
        """Cache of large data from which results are computed, such as models of steps."""
        return {}

    def free_working_data(self) -> None:
        """Empty the cache of large data of this roll-up and of those that other iterations are aggregated in."""
        for rollup in (self, self.complete, self.steady, self.for_advice):
            rollup.working_data.clear()

    @functools.cached_property
    def complete(self) -> Rollup:
        """The roll-up in which the warm-up is aggregated, unless iterations were chosen."""
        return replace(self, include_warm_up=True) if self.include_warm_up is False else self

    @functools.cached_property
    def for_dlprof(self) -> Rollup:
        """The roll-up in which iterations have the times and activities that DLProf gives them."""
        return replace(self, has_windows=False)

    @functools.cached_property
    def for_advice(self) -> Rollup:
        """The roll-up that ``why`` and advice examine: with windows, and without the warm-up unless it was chosen."""
        return self.steady if self.has_windows else replace(self.steady, has_windows=True)

    @functools.cached_property
    def steady(self) -> Rollup:
        """The roll-up in which the warm-up is not aggregated, unless the user decided otherwise."""
        return replace(self, include_warm_up=False) if self.include_warm_up is None else self

    @functools.cached_property
    def iterations(self) -> Iterations:
        """The iterations of the capture."""
        ops = self.measures.ops
        its = self.measures.find_iterations(self.key_op, self.span)
        if not self._uses_windows:
            return its
        its = steps.mark_warm_up(steps.add_windows(its, ops), ops.frames)
        if self.span is not None or self.include_warm_up is not False:
            return its
        return its._replace(frame=its.frame.with_columns(pl.col("aggregated") & ~pl.col("is_warm_up")))

    @property
    def _uses_windows(self) -> bool:
        return self.has_windows and self.measures.mode == "extended"

    @functools.cached_property
    def step_summary(self) -> steps.StepSummary:
        """What delimits the iterations, how many there are, and how much of the GPU work lies in them."""
        iterations, measures, frames = self.iterations, self.measures, self.measures.ops.frames
        totals = {kind: steps.sum_activities(frames, kind) for kind in ON_GPU}
        on_gpu = measures.select_calls("kind").to_series().is_in(ON_GPU).arg_true()
        calls = measures.select_calls("kind", "process_id", "start_ns", "gpu_start_ns", "gpu_end_ns", rows=on_gpu)
        inside = calls.filter(iterations.find_call_iterations(calls).is_not_null())
        is_kernel = pl.col("kind").is_in(["kernel", "graph"])
        time = (pl.col("gpu_end_ns") - pl.col("gpu_start_ns")).sum()
        kernels, gpu_time = inside.select(is_kernel.sum(), time.alias("time")).row(0)
        if iterations.is_whole_capture:
            kernels, gpu_time = totals["kernel"][0] + totals["graph"][0], sum(t for _, t in totals.values())
        names = iterations.aggregated.select(pl.col("name").fill_null(pl.format("step {}", "iteration"))).to_series()
        is_left_out = pl.col("is_warm_up") & ~pl.col("aggregated") & (self.span is None)
        left_out = iterations.frame.filter(is_left_out)
        return steps.StepSummary(
            key_op=iterations.label if iterations.has_key_op else None,
            steps=iterations.frame.height,
            aggregated=iterations.aggregated.height,
            first=str(names[0]),
            last=str(names[-1]),
            warm_up=left_out.height,
            included_warm_up=iterations.aggregated.filter("is_warm_up").height,
            warm_up_ns=int(left_out.select((pl.col("window_end_ns") - pl.col("window_start_ns")).sum()).item()),
            kernels=totals["kernel"][0] + totals["graph"][0],
            kernels_in_steps=int(kernels),
            gpu_time_ns=sum(t for _, t in totals.values()),
            gpu_time_in_steps_ns=int(gpu_time),
        )

    @functools.cached_property
    def devices(self) -> pl.DataFrame:
        """The GPUs of the capture, in order of ``device_id``, with the columns of the table ``devices``.

        If this table is empty, the only column is ``device_id``, with the ids of at most 64 GPUs: those with activities
        in ascending order, and then GPU 0 if it has none.
        """
        devices = self.measures.ops.frames("devices").unique("device_id", keep="first", maintain_order=True)
        listed = devices.sort("device_id").collect()
        used = pl.concat([self.measures.gpu_activities["device_id"].drop_nulls().unique().sort(), _DEVICE_0]).head(64)
        return listed if listed.height else used.unique(maintain_order=True).to_frame("device_id")

    @functools.cached_property
    def used_devices(self) -> pl.Series:
        """Ids of the GPUs over which times are averaged, in the order of ``devices``.

        These are the GPUs with activities. If no GPU has activities, or in DLProf's mode, these are all GPUs, because
        DLProf averaged over all GPUs.
        """
        active = self.measures.gpu_activities["device_id"].drop_nulls().unique().sort()
        all_devices = self.devices["device_id"]
        used = all_devices.filter(all_devices.is_in(active.implode()))
        return used if len(used) and self.measures.mode == "extended" else all_devices

    @functools.cached_property
    def iteration(self) -> pl.Series:
        """Number of the aggregated iteration of each op instance, or null outside of the aggregated iterations."""
        return self.iterations.select_aggregated(self.iterations.find_instance_iterations(self.measures.ops.instances))

    @property
    def calls(self) -> pl.DataFrame:
        """The API calls of all ops, in order of op, name and start.

        The columns are those of ``Measures.calls``, and ``iteration``.
        """
        return self.select_calls(*CALL_COLUMNS)

    @property
    def kernels(self) -> pl.DataFrame:
        """The kernels of the op instances in aggregated iterations, in the order of ``calls``.

        ``kernel_gpu`` is the duration of the kernel in ns, and ``kernel_api`` the duration of its API call.
        """
        return self.select_kernels(*CALL_COLUMNS)

    @property
    def memory(self) -> pl.DataFrame:
        """The memory copies and sets of the op instances in aggregated iterations, with the columns of ``kernels``."""
        rows = self._find_row_numbers_of_kinds("memset", "memcpy")
        return _add_durations(self._gather_calls(rows, CALL_COLUMNS))

    def select_instances(self, *columns: str) -> pl.DataFrame:
        """Return columns of the op instances in aggregated iterations.

        Args:
            columns: Names of columns of ``Measures.instances``.

        Returns:
            These columns, ``instance`` (row number in ``Measures.instances``) and ``iteration``.
        """
        rows = self.measures.instances.select(columns)
        return rows.with_columns(instance=pl.int_range(pl.len()), iteration=self.iteration).drop_nulls("iteration")

    def select_calls(self, *columns: str) -> pl.DataFrame:
        """Return columns of the API calls of all ops, in order of op, name and start.

        Args:
            columns: Names of columns of ``Measures.calls``.

        Returns:
            These columns, and ``iteration``, for the same rows as ``calls``.
        """
        return self._gather_calls(self._row_numbers_of_calls, columns)

    def select_kernels(self, *columns: str) -> pl.DataFrame:
        """Return columns of the kernels of the op instances in aggregated iterations.

        Args:
            columns: Names of columns of ``Measures.calls``.

        Returns:
            These columns, ``iteration``, ``kernel_gpu`` and ``kernel_api``, for the same rows as ``kernels``.
        """
        rows = self._gather_calls(self._find_row_numbers_of_kinds("kernel"), dict.fromkeys((*columns, *_TIMES)))
        added = [c for c in _TIMES if c not in columns]
        return _add_durations(rows).drop(added)

    def _gather_calls(self, rows: pl.Series, columns: Iterable[str]) -> pl.DataFrame:
        """Return the given rows and columns of ``Measures.calls``, and ``iteration``."""
        calls = self.measures.select_calls(*dict.fromkeys((*columns, *_PLACE)), rows=rows)
        return calls.with_columns(iteration=self.find_call_iterations(calls)).select(*columns, "iteration")

    def find_call_iterations(self, calls: pl.DataFrame) -> pl.Series:
        """Return the number of the aggregated iteration that made each API call, or null outside of these iterations.

        Args:
            calls: Rows of ``Measures.calls`` with the columns ``instance``, ``process_id`` and ``start_ns``. In
                DLProf's mode, the iteration is that of the op instance.
        """
        if not self._uses_windows:
            return self.iteration.gather(calls["instance"])
        return self.iterations.select_aggregated(self.iterations.find_call_iterations(calls))

    def _find_row_numbers_of_kinds(self, *kinds: str) -> pl.Series:
        """Return the row numbers in ``Measures.calls`` of the activities of the given kinds in aggregated iterations.

        The order is that of ``calls``.
        """
        calls = self.select_calls("kind").with_columns(row=self._row_numbers_of_calls)
        return calls.filter(pl.col("kind").is_in(kinds) & pl.col("iteration").is_not_null())["row"]

    @functools.cached_property
    def _row_numbers_of_calls(self) -> pl.Series:
        """The row number in ``Measures.calls`` of each row of ``calls``.

        Only these numbers are cached, because a sorted copy of all columns would need about 120 bytes per call.
        """
        calls = self.measures.select_calls("name", "op", "start_ns", "index", "call_id", "activity")
        names = calls.select("name").unique().with_columns(rank=pl.col("name").cast(pl.String).rank("dense"))
        rank = calls.select("name").join(names, on="name", how="left", maintain_order="left", nulls_equal=True)["rank"]
        op_and_name = pl.col("op") * (names.height + 1) + rank.cast(pl.Int64).fill_null(0)
        ordered = calls.drop("name").with_row_index("row")
        return ordered.sort(op_and_name, "start_ns", "index", -pl.col("call_id"), "activity")["row"]

    @functools.cached_property
    def ops(self) -> pl.DataFrame:
        """The ops in order of name and id, with statistics of the aggregated iterations.

        The columns are those of ``Ops.ops`` and ``Measures.op_properties``, the statistics of ``METRICS``,
        ``kernel_gpu`` and ``kernel_api``, and the following ones:

        - ``count``: Number of instances.
        - ``kernel_count``: Number of kernels.
        - ``eligible``: Whether the op is eligible for Tensor Cores.
        - ``uses_tc``: Whether the op used Tensor Cores.
        - ``tc_unknown``: Whether a kernel may have used Tensor Cores, but no kernel certainly used them.
        - ``bad_type``: Whether the op has instances and is eligible, but is not in half precision. Except in DLProf's
          mode, ``bad_type`` is false if the op used Tensor Cores.
        """
        rows = self.measures.ops.ops.hstack(self.measures.op_properties).with_columns(op=pl.int_range(pl.len()))
        times = self.select_instances("op", *METRICS)
        instances = times.group_by("op").agg(pl.len().alias("count"), *groups.metric_summary_exprs(METRICS))
        kernels = (
            self.select_kernels("op", "uses_tc", "tc_unknown")
            .group_by("op")
            .agg(
                pl.len().alias("kernel_count"),
                pl.col("uses_tc", "tc_unknown").any(),
                *groups.metric_summary_exprs(KERNEL_METRICS),
            )
        )
        ops = rows.join(instances, on="op", how="left", maintain_order="left")
        ops = ops.join(kernels, on="op", how="left", maintain_order="left")
        return ops.with_columns(
            pl.col("count", "kernel_count").fill_null(0).cast(pl.Int64),
            pl.col("uses_tc").fill_null(value=False),
            (pl.col("tc_unknown") & ~pl.col("uses_tc")).fill_null(value=False),
            *groups.fill_missing_with_zero_exprs([*METRICS, *KERNEL_METRICS]),
            eligible=pl.col("support") == 0,
        ).with_columns(
            bad_type=pl.col("eligible") & (pl.col("count") > 0) & ~pl.col("half") & ~self._is_exempt_from_bad_type_expr
        )

    @property
    def _is_exempt_from_bad_type_expr(self) -> pl.Expr:
        """Expression for whether an op is exempt from ``bad_type`` because it used Tensor Cores.

        No op is exempt in DLProf's mode: DLProf also flags the data types of ops that used Tensor Cores.
        """
        return pl.col("uses_tc") if self.measures.mode == "extended" else pl.lit(value=False)

    @functools.cached_property
    def op_types(self) -> pl.DataFrame:
        """One row per op type, in order of name: ``op_type``, ``op_count``, ``count``, statistics of ``METRICS``."""
        counts = self.ops.group_by("op_type").agg(op_count=pl.len().cast(pl.Int64), count=pl.col("count").sum())
        instances = self.select_instances("op_type", *METRICS)
        metrics = groups.summarize_metrics(instances, ["op_type"], METRICS)
        types = counts.join(metrics, on="op_type", how="left")
        types = types.with_columns(pl.col("op_type").cast(pl.String), *groups.fill_missing_with_zero_exprs(METRICS))
        return types.sort("op_type")

    @functools.cached_property
    def groups(self) -> pl.DataFrame:
        """The groups of ops with their statistics, the root first, with the columns of ``groups.aggregate_groups``.

        A group contains the ops below one scope, such as a module of a network, in one direction. In DLProf's mode, the
        groups are instead formed from op names, whose parts are separated by "/", and have no direction.
        """
        return self._form_groups(self.measures.mode)

    @functools.cached_property
    def dlprof_groups(self) -> pl.DataFrame:
        """The groups of ops as DLProf forms them, from the parts of op names that are separated by "/".

        The columns are those of ``groups``. ``direction`` is null.
        """
        return self.groups if self.measures.mode == "dlprof" else self._form_groups("dlprof")

    def _form_groups(self, style: Style) -> pl.DataFrame:
        """Return the groups of ops, formed by the rules of DLProf if ``style`` is ``dlprof``, otherwise by scope."""
        devices, ops = self.devices["device_id"], self.ops.select("count", "eligible", "uses_tc")
        return groups.aggregate_groups(self.measures, self.iterations, devices, ops, style)

    @functools.cached_property
    def kernel_summaries(self) -> pl.DataFrame:
        """One row per op and short kernel name, sorted by both.

        The columns are ``op``, ``name``, ``uses_tc`` and statistics of the durations of the kernels and their calls.
        """
        kernels = self.select_kernels("op", "name", "uses_tc")
        summaries = kernels.group_by("op", "name", maintain_order=True).agg(
            pl.col("uses_tc").any(), *groups.metric_summary_exprs(KERNEL_METRICS)
        )
        ordered = summaries.sort("op", string_ranks_expr(pl.col("name")))
        return ordered.with_columns(decode_categories_expr(pl.col("name")))

    @functools.cached_property
    def kernels_by_iteration(self) -> pl.DataFrame:
        """Counts and times of the kernels in each aggregated iteration.

        The columns are ``iteration``, ``kernel_count``, ``tc_count``, ``gpu_time`` and ``tc_time``.
        """
        aggregated = self.iterations.aggregated.select("iteration")
        kernels = self.select_kernels("uses_tc").group_by("iteration").agg(_KERNEL_COUNTS)
        counts = aggregated.join(kernels, on="iteration", how="left")
        return counts.sort("iteration").with_columns(pl.exclude("iteration").fill_null(0))

    @functools.cached_property
    def kernels_by_op_and_iteration(self) -> pl.DataFrame:
        """Counts and times of the kernels of each op in each aggregated iteration.

        The columns are ``op`` and the columns of ``kernels_by_iteration``. Iterations without kernels of an op have no
        row.
        """
        kernels = self.select_kernels("op", "uses_tc")
        return kernels.group_by("op", "iteration").agg(_KERNEL_COUNTS).sort("op", "iteration")

    @functools.cached_property
    def breakdown(self) -> pl.DataFrame:
        """The time of each iteration on each used device, divided into parts.

        The columns are those of ``breakdown.divide_iteration_times``.
        """
        return divide_iteration_times(self.measures, self.iterations, self.used_devices)


_TIMES = ("start_ns", "end_ns", "gpu_start_ns", "gpu_end_ns")
_PLACE = ("instance", "process_id", "start_ns")
_DEVICE_0 = pl.Series("device_id", [0], dtype=pl.Int32)
_GPU_TIME = pl.col("kernel_gpu")
_KERNEL_COUNTS = [
    pl.len().cast(pl.Int64).alias("kernel_count"),
    pl.col("uses_tc").sum().cast(pl.Int64).alias("tc_count"),
    _GPU_TIME.sum().alias("gpu_time"),
    _GPU_TIME.filter("uses_tc").sum().alias("tc_time"),
]


def _add_durations(calls: pl.DataFrame) -> pl.DataFrame:
    """Add the duration of each activity (``kernel_gpu``) and of its API call (``kernel_api``)."""
    return calls.with_columns(
        kernel_gpu=pl.col("gpu_end_ns") - pl.col("gpu_start_ns"), kernel_api=pl.col("end_ns") - pl.col("start_ns")
    )
