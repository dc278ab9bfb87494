"""Provide the data that the rules of ``advise`` examine: GPU activities and ops of the aggregated iterations."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals
from tracekit.core.intervals.axis import replace_with_null_unless
from tracekit.core.ops.calls import ON_GPU
from tracekit.core.rollup import breakdown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.core.rollup import Rollup

DURATION = pl.col("end_ns") - pl.col("start_ns")
MAX_NAME_LENGTH = 80
_TIMES_OF_CALL = {"start_ns": "api_start_ns", "end_ns": "api_end_ns"}
_TIMES_ON_GPU = {"gpu_start_ns": "start_ns", "gpu_end_ns": "end_ns"}
"""The smallest numbers that are rounded to 1 and to 1000, given three significant digits."""
_BORDERS = (("start_ns", -1), ("end_ns", 0))


@dataclass(frozen=True, slots=True)
class Finding:
    """A performance problem that a rule of ``advise`` reports.

    Each attribute becomes a column of the result of ``advise``, where ``figures`` is serialized as a JSON object.
    """

    rule: str
    problem: str
    evidence: str
    advice: str
    time_ns: int
    share: float
    count: int
    start_ns: int
    end_ns: int
    figures: Mapping[str, float]


@dataclass(frozen=True)
class IterationActivity:
    """The GPU activities and ops of the aggregated iterations of a roll-up.

    Attributes:
        rollup: The roll-up that provides the ops, the GPU activities and the iterations.
    """

    rollup: Rollup

    @functools.cached_property
    def windows(self) -> pl.DataFrame:
        """The windows of the aggregated iterations: ``start_ns`` and ``end_ns``.

        Overlapping windows are merged. In DLProf's mode, no window starts before the first op of the capture.
        """
        first = self.rollup.select_instances("start_ns")["start_ns"].min()
        start = pl.max_horizontal("start_ns", pl.lit(first if isinstance(first, int) else 0))
        return self.rollup.iterations.merged_times.with_columns(start_ns=start).filter(DURATION > 0)

    @functools.cached_property
    def duration_ns(self) -> int:
        """Total duration of the time windows of the aggregated iterations, in ns."""
        return sum_durations(self.windows)

    @property
    def iteration_count(self) -> int:
        """Number of aggregated iterations."""
        return self.rollup.iterations.aggregated.height

    @functools.cached_property
    def gpu_activities(self) -> pl.DataFrame:
        """The GPU activities that the aggregated iterations launched, in order of start.

        The columns are:

        - ``device_id``, ``start_ns``, ``end_ns``, ``kind``, ``name``, ``uses_tc``, ``tc_unknown``
        - ``activity``: row number in the table of this kind of activity
        - ``op``, ``instance``, ``call``: row numbers in the ops, the op instances and ``api_calls``
        - ``api_start_ns``, ``api_end_ns``: start and end of the API call
        - ``graph``: whether the activity belongs to a CUDA graph
        """
        measures = self.rollup.measures
        on_gpu = measures.select_calls("kind").to_series().is_in(ON_GPU).arg_true()
        columns = ("device_id", *_TIMES_ON_GPU, "kind", "name", "uses_tc", "tc_unknown", "activity", "op", "instance")
        rows = measures.select_calls(*columns, "call", "process_id", *_TIMES_OF_CALL, rows=on_gpu)
        rows = rows.filter(self.rollup.find_call_iterations(rows).is_not_null()).drop("process_id")
        rows = rows.rename(_TIMES_OF_CALL | _TIMES_ON_GPU)
        gpu_rows = rows.drop_nulls("start_ns").filter(DURATION > 0).sort("start_ns", "end_ns")
        is_kernel = gpu_rows["kind"] == "kernel"
        nodes = measures.ops.frames("kernels").select("graph_node_id").collect().to_series()
        kernel_row = replace_with_null_unless(is_kernel, gpu_rows["activity"])
        return gpu_rows.with_columns(graph=nodes.gather(kernel_row).is_not_null() | (gpu_rows["kind"] == "graph"))

    @functools.cached_property
    def kernels(self) -> pl.DataFrame:
        """The rows of ``gpu_activities`` that are kernels."""
        return self.gpu_activities.filter(pl.col("kind") == "kernel")

    @functools.cached_property
    def has_cuda_graphs(self) -> bool:
        """Whether the program launches CUDA graphs."""
        return bool(self.gpu_activities["graph"].any())

    @functools.cached_property
    def launches(self) -> pl.DataFrame:
        """The first GPU activity of each API call on each device, with the columns of ``gpu_activities``.

        Later activities of the same call are omitted, because a single call launches all activities of a CUDA graph.
        """
        return self.gpu_activities.unique(["call", "device_id"], keep="first", maintain_order=True)

    @functools.cached_property
    def api_calls(self) -> pl.LazyFrame:
        """All API calls of the capture: ``process_id``, ``start_ns``, ``end_ns``, ``name`` (String)."""
        columns = ("process_id", "start_ns", "end_ns", pl.col("name").cast(pl.String))
        return self.rollup.measures.ops.frames("api_calls").select(columns)

    @functools.cached_property
    def busy_times_by_device(self) -> pl.DataFrame:
        """The disjoint intervals within the windows in which each device is busy: ``device_id`` and times.

        Activities of other iterations, and activities outside of all iterations, also keep a device busy.
        """
        busy = intervals.merge_intervals(self.rollup.measures.gpu_activities, by=["device_id"])
        return self.clip_to_windows(busy.select("device_id", "start_ns", "end_ns")).sort("device_id", "start_ns")

    @functools.cached_property
    def times_with_any_device_busy(self) -> pl.DataFrame:
        """The disjoint intervals in which at least one device is busy: ``start_ns``, ``end_ns``."""
        return intervals.merge_intervals(self.busy_times_by_device, by=[])

    @functools.cached_property
    def times_with_all_devices_idle(self) -> pl.DataFrame:
        """The intervals within the aggregated iterations in which all devices are idle: ``start_ns``, ``end_ns``."""
        return self.find_uncovered_times(self.times_with_any_device_busy)

    @functools.cached_property
    def time_by_part(self) -> pl.DataFrame:
        """The time of the aggregated iterations on each used device, divided into parts such as memory operations.

        The columns are ``device_id`` and, in ns, one column for each part in ``breakdown.PARTS``.
        """
        rollup, aggregated = self.rollup, self.rollup.iterations.aggregated
        if self.duration_ns == sum_durations(aggregated.select(start_ns="window_start_ns", end_ns="window_end_ns")):
            parts = rollup.breakdown.join(aggregated.select("iteration"), on="iteration", how="semi")
            return parts.group_by("device_id").agg(pl.col(breakdown.PARTS).sum()).sort("device_id")
        number = pl.int_range(pl.len(), dtype=pl.Int64)
        windows = self.windows.select(window_start_ns="start_ns", window_end_ns="end_ns", iteration=number)
        iterations = rollup.iterations._replace(frame=windows)
        parts = breakdown.divide_iteration_times(rollup.measures, iterations, rollup.used_devices)
        return parts.group_by("device_id").agg(pl.col(breakdown.PARTS).sum()).sort("device_id")

    def find_uncovered_times(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the parts of the time windows that no interval in ``rows`` covers: ``start_ns``, ``end_ns``."""
        bounds = self.windows.select(pl.col("start_ns").min(), pl.col("end_ns").max())
        # With intervals of 1 ns before and after all windows, the times before and after all rows are gaps.
        borders = [bounds.select(start_ns=pl.col(c) + d, end_ns=pl.col(c) + d + 1) for c, d in _BORDERS]
        gaps = intervals.find_gaps(pl.concat([rows.select("start_ns", "end_ns"), *borders]), by=[])
        return intervals.intersect_unions(gaps, self.windows, by=[])

    def clip_to_windows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the parts of intervals that lie within the time windows of the aggregated iterations.

        An interval that overlaps several windows becomes one row per window.
        """
        first = self.windows["end_ns"].search_sorted(rows["start_ns"], side="right").cast(pl.Int64)
        stop = self.windows["start_ns"].search_sorted(rows["end_ns"], side="left").cast(pl.Int64)
        overlapping = rows.with_columns(_first=first, _stop=stop).filter(pl.col("_first") < pl.col("_stop"))
        overlapping = overlapping.with_columns(_window=pl.int_ranges("_first", "_stop")).explode("_window")
        bounds = self.windows.select(pl.all().gather(overlapping["_window"]))
        clipped = overlapping.with_columns(
            pl.max_horizontal("start_ns", bounds["start_ns"]).alias("start_ns"),
            pl.min_horizontal("end_ns", bounds["end_ns"]).alias("end_ns"),
        )
        return clipped.select(rows.columns).filter(DURATION > 0)

    def compute_percentage(self, time_ns: int) -> float:
        """Return a duration as a percentage of the total duration of the aggregated iterations."""
        return 100 * time_ns / self.duration_ns

    def format_op_name(self, op_row: int) -> str:
        """Return the name of an op, shortened to at most 80 characters."""
        return shorten_name(str(self.rollup.ops["op_name"][op_row]))

    def describe_largest_ops(self, rows: pl.DataFrame, weight: pl.Expr, count: int = 3) -> str:
        """Describe the ops with the largest total weight, for example ``conv1/conv2d (61 %), fc/linear (20 %)``."""
        totals = (
            rows.with_columns(weight=weight)
            .group_by("op")
            .agg(pl.col("weight").sum())
            .sort("weight", "op", descending=[True, False])
        )
        total = totals["weight"].sum() or 1
        largest = totals.head(count).iter_rows()
        return ", ".join(f"{self.format_op_name(op)} ({100 * w / total:.0f} %)" for op, w in largest)


def shorten_name(name: str) -> str:
    """Shorten a name to at most 80 characters by replacing its beginning with an ellipsis."""
    return name if len(name) <= MAX_NAME_LENGTH else "…" + name[1 - MAX_NAME_LENGTH :]


def sum_durations(rows: pl.DataFrame) -> int:
    """Return the sum of the durations of the intervals, in ns."""
    return int(rows.select(DURATION.sum()).item())


def find_longest_interval(rows: pl.DataFrame) -> tuple[int, int]:
    """Return the start and end of the longest interval, or of the first one if several are equally long."""
    row = rows.select(DURATION.arg_max()).item()
    return int(rows["start_ns"][row]), int(rows["end_ns"][row])
