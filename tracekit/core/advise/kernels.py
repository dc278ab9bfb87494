"""Report kernels with implausible times."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals
from tracekit.core.categories import COMMUNICATION, category_expr
from tracekit.core.relations import STREAM
from tracekit.text import format_duration, shorten_middle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracekit.core.rollup import Rollup

DURATION = pl.col("end_ns") - pl.col("start_ns")
_TIMES_ON_GPU = {"gpu_start_ns": "start_ns", "gpu_end_ns": "end_ns"}
MIN_IMBALANCE_PERCENT, MIN_VARIATION, MIN_ITERATIONS = 10, 0.25, 4
_COLLECTIVE = category_expr(pl.col("name").cast(pl.Categorical)) == COMMUNICATION
_STREAM = ("process_id", *STREAM)
READ = (*_STREAM, "start_ns", "end_ns", "graph_node_id")
MAX_OVERLAP_NS, MAX_ROUNDING_NS = 100_000, 1_000
"""Overlaps up to these durations are normal: of an activity with one that starts and ends later, because programmatic
dependent launches start the next kernel early, and with one that ends earlier, because some times are rounded to µs."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause of slow steps, or a problem that a rule of ``advise`` measures.

    Each attribute becomes a column of the result of ``advise``, where ``figures`` is serialized as a JSON object.
    """

    rule: str
    problem: str
    evidence: str
    advice: str
    time_ns: int
    share: float
    after: float | None
    count: int
    start_ns: int
    end_ns: int
    figures: Mapping[str, float]


@dataclass(frozen=True)
class IterationActivity:
    """The kernels of the aggregated iterations of a roll-up.

    Attributes:
        rollup: The roll-up that provides the kernels and the iterations.
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

    @functools.cached_property
    def kernels(self) -> pl.DataFrame:
        """The kernels that the aggregated iterations launched, in order of start.

        The columns are ``device_id``, ``start_ns``, ``end_ns`` and ``name``.
        """
        measures = self.rollup.measures
        is_kernel = (measures.select_calls("kind").to_series() == "kernel").arg_true()
        columns = ("device_id", *_TIMES_ON_GPU, "name", "instance", "process_id", "start_ns")
        rows = measures.select_calls(*columns, rows=is_kernel)
        rows = rows.filter(self.rollup.find_call_iterations(rows).is_not_null())
        rows = rows.drop("instance", "process_id", "start_ns").rename(_TIMES_ON_GPU)
        return rows.drop_nulls("start_ns").filter(DURATION > 0).sort("start_ns", "end_ns")

    def compute_percentage(self, time_ns: int) -> float:
        """Return a duration as a percentage of the total duration of the aggregated iterations."""
        return 100 * time_ns / self.duration_ns


def sum_durations(rows: pl.DataFrame) -> int:
    """Return the sum of the durations of the intervals, in ns."""
    return int(rows.select(DURATION.sum()).item())


def imbalance(activity: IterationActivity) -> Iterator[Finding]:
    """Report an imbalance if one device computes for much longer than another.

    Kernels that communicate do not count as computation, because they wait for other devices.
    """
    kernels = activity.kernels.filter(~_COLLECTIVE)
    busy = kernels.group_by("device_id").agg(time=DURATION.sum()).sort("time", "device_id")
    if busy.height < 2:  # noqa: PLR2004 - a single device cannot be imbalanced
        return
    (least, low), (most, high) = busy.row(0), busy.row(-1)
    time = high - low
    if activity.compute_percentage(time) < MIN_IMBALANCE_PERCENT:
        return
    listed = ", ".join(f"GPU {d} {format_duration(t)}" for d, t in busy.sort("device_id").iter_rows())
    high_percent, low_percent = (
        activity.compute_percentage(high),
        activity.compute_percentage(low),
    )
    problem = f"GPU {most} computes for {high_percent:.0f} % of the time, GPU {least} for {low_percent:.0f} %"
    advice = (
        "Give every rank the same amount of work: equal batches, sequences of similar length, layers divided evenly."
    )
    busiest = kernels.filter(pl.col("device_id") == most)
    start, end = busiest.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    figures = {f"gpu_{d}_ns": t for d, t in busy.sort("device_id").iter_rows()} | {"length_ns": activity.duration_ns}
    yield Finding(
        "imbalance",
        problem,
        listed,
        advice,
        time,
        activity.compute_percentage(time),
        None,
        busy.height,
        start,
        end,
        figures,
    )


def variation(activity: IterationActivity) -> Iterator[Finding]:
    """Report iterations that take much longer than the median iteration."""
    rows = activity.rollup.iterations.aggregated.with_columns(
        name=pl.col("name").fill_null(pl.format("iteration {}", "iteration")),
        length=pl.col("window_end_ns") - pl.col("window_start_ns"),
    )
    mean, deviation = rows.select(mean=pl.col("length").mean(), deviation=pl.col("length").std(ddof=0)).row(0)
    if rows.height < MIN_ITERATIONS or not mean or deviation / mean <= MIN_VARIATION:
        return
    typical = rows.select(pl.col("length").median()).item()
    slow = rows.filter(pl.col("length") > (1 + MIN_VARIATION) * typical).sort("length", descending=True)
    if not slow.height:
        return
    time = int((slow["length"] - typical).sum())
    names, first = [shorten_middle(name) for name in slow["name"].head(5)], slow.row(0, named=True)
    problem = "Some iterations take much longer than the others"
    longest = format_duration(first["length"])
    evidence = (
        f"the median duration of {rows.height} iterations is {format_duration(typical)}, but {names[0]} took {longest}"
    )
    more = f"; slow iterations: {', '.join(names)}" if len(names) > 1 else ""
    advice = (
        "Exclude warm-up iterations (--iterations A:B); look for data loading, logging and checkpoints in the slow "
        "iterations."
    )
    where = first["window_start_ns"], first["window_end_ns"]
    figures = {"iterations": rows.height, "slow_iterations": slow.height, "median_ns": int(typical)}
    figures |= {"slowest_ns": first["length"], "length_ns": activity.duration_ns}
    yield Finding(
        "variation",
        problem,
        evidence + more,
        advice,
        time,
        activity.compute_percentage(time),
        None,
        slow.height,
        *where,
        figures,
    )


def find_overrunning_activities(activities: pl.DataFrame) -> pl.DataFrame:
    """Return the activities that run over the start of the next activity of their stream by more than is possible.

    An activity overruns if it ends after the next activity has ended, or more than 100 µs after the next activity has
    started. Activities of CUDA graphs are ignored, because a graph runs activities of one stream in parallel. So are
    activities of unknown streams.

    Args:
        activities: The columns ``READ``.

    Returns:
        One row per overrunning activity: ``row`` (row number in ``activities``), ``start_ns``, ``end_ns``, and
        ``next_row`` and ``next_ns`` (row number and start of the next activity), in order of ``row``.
    """
    launched = activities.with_row_index("row").filter(pl.col("graph_node_id").fill_null(0) == 0)
    ordered = launched.sort(*_STREAM, "start_ns", "end_ns", nulls_last=True, maintain_order=True)
    is_same_stream = pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift(-1)) for name in _STREAM)
    is_same_stream &= pl.col("stream_id").is_not_null()
    next_start, next_end = pl.col("start_ns").shift(-1), pl.col("end_ns").shift(-1)
    overlap = pl.col("end_ns") - next_start
    overruns = (overlap > MAX_OVERLAP_NS) | ((overlap > MAX_ROUNDING_NS) & (pl.col("end_ns") > next_end))
    rows = ordered.select(
        "row",
        "start_ns",
        "end_ns",
        next_row=pl.col("row").shift(-1),
        next_ns=next_start,
        overruns=is_same_stream & overruns,
    )
    return rows.filter("overruns").drop("overruns").sort("row")


def overrunning_kernels(activity: IterationActivity) -> Iterator[Finding]:
    """Report kernels and copies that run over the start of the next one of their stream, so their times must be wrong.

    The whole capture is examined, because a wrong end also makes the window of an iteration wrong.
    """
    table = _read_activities_of_streams(activity)
    rows = find_overrunning_activities(table)
    if not rows.height:
        return
    overlaps = rows.select(start_ns="next_ns", end_ns="end_ns")
    overrun = rows["end_ns"] - rows["next_ns"]
    worst = int(overrun.arg_max() or 0)
    names = table["name"]
    time = sum_durations(intervals.merge_intervals(overlaps, by=[]))
    involved = pl.concat([rows["row"], rows["next_row"]])
    one, many = ("kernel", "kernels") if table["is_kernel"].gather(involved).all() else ("activity", "activities")
    subject = f"1 {one} runs" if rows.height == 1 else f"{rows.height} {many} run"
    evidence = (
        f"{subject} over the start of the next {one} of the same stream, by up to {format_duration(overrun[worst])} "
        f"({shorten_middle(names[int(rows['row'][worst])])})"
    )
    advice = (
        f"Do not trust the GPU times of this capture: {many} of one stream run one after the other, so the recorded "
        "ends are wrong. Record again with a newer version of the driver and profiler."
    )
    figures = {"kernels": rows.height, "overrun_ns": int(overrun.sum()), "length_ns": activity.duration_ns}
    where = int(rows["start_ns"][worst]), int(rows["end_ns"][worst])
    problem = f"{many.capitalize()} overlap the next {one} of their stream"
    yield Finding(
        "overrunning_kernels",
        problem,
        evidence,
        advice,
        time,
        min(activity.compute_percentage(time), 100.0),
        None,
        rows.height,
        *where,
        figures,
    )


def _read_activities_of_streams(activity: IterationActivity) -> pl.DataFrame:
    """Return the kernels, memory copies and memory sets that ran on a stream, in this order.

    The columns are ``overruns.READ``, ``name`` and ``is_kernel``. Migrations of unified memory run on no stream.
    """
    frames = activity.rollup.measures.ops.frames
    kernel_name = pl.coalesce("short_name", "name").cast(pl.String).fill_null("kernel")
    copy_name = pl.format("memory copy {}", pl.col("copy_kind").cast(pl.String)).fill_null("memory copy")
    migrates = pl.col("migration_cause").is_not_null()
    tables = [
        frames("kernels").select(*READ, name=kernel_name, is_kernel=pl.lit(value=True)),
        frames("memcpys").filter(~migrates).select(*READ, name=copy_name, is_kernel=pl.lit(value=False)),
        frames("memsets").select(*READ, name=pl.lit("memory set"), is_kernel=pl.lit(value=False)),
    ]
    return pl.concat(tables).collect()
