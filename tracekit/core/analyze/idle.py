"""Declare rules of tracekit that explain why GPUs are idle."""

from __future__ import annotations

import polars as pl

from tracekit.core import idle
from tracekit.core.analyze.rule import Request, rule, sort_longest_first
from tracekit.core.reports.numbers import quotient_expr
from tracekit.core.reports.summary import DURATION
from tracekit.core.reports.table import integer_column, nanoseconds_column, percent_column, text_column

_DEVICE = integer_column("Device ID", "device_id")
_INTERVAL = ["device_id", "interval_start_ns"]


@rule(
    _DEVICE,
    text_column("Cause", "cause"),
    percent_column("Idle", "share"),
    nanoseconds_column("Total Time", "total_ns"),
    integer_column("Gaps", "gaps"),
    nanoseconds_column("Max", "longest_ns"),
    nanoseconds_column("Start", "start_ns"),
    text_column("Mostly In", "name"),
    nanoseconds_column("Time In It", "name_ns"),
)
def gpu_idle_causes(request: Request) -> pl.DataFrame:
    """Idle time of each GPU by cause: what the CPU did while the GPU was idle.

    The times that are attributed to the causes add up to the idle time of the GPU. ``Max`` is the longest time that is
    attributed to a cause in one gap, and ``Start`` is the start of this gap.
    """
    idle_times = _read_idle_times_by_cause(request)
    by = ["device_id", "cause"]
    in_gap = idle_times.group_by(*_INTERVAL, "cause").agg(DURATION.sum())
    in_gap = in_gap.sort("duration_ns", "interval_start_ns", descending=[True, False])
    causes = in_gap.group_by(by).agg(
        total_ns=pl.col("duration_ns").sum(),
        gaps=pl.len(),
        longest_ns=pl.col("duration_ns").first(),
        start_ns=pl.col("interval_start_ns").first(),
    )
    share = quotient_expr(pl.col("total_ns") * 100.0, pl.col("total_ns").sum().over("device_id").cast(pl.Float64))
    causes = causes.with_columns(share=share).join(_find_names_with_most_time(idle_times, by), on=by, how="left")
    causes = causes.sort("device_id", "total_ns", "cause", descending=[False, True, False])
    return causes.with_columns(pl.col("cause").cast(pl.String))


@rule(
    integer_column("Row#", "row"),
    nanoseconds_column("Duration", "duration_ns"),
    nanoseconds_column("Start", "start_ns"),
    _DEVICE,
    integer_column("PID", "process_id"),
    integer_column("TID", "thread_id"),
    text_column("Cause", "cause"),
    nanoseconds_column("Cause Time", "cause_ns"),
    text_column("Mostly In", "name"),
    nanoseconds_column("Time In It", "name_ns"),
)
def gpu_idle_gaps(request: Request) -> pl.DataFrame:
    """Longest gaps between the activities of a GPU, with the launching thread, and the main cause and its time."""
    idle_times = _read_idle_times_by_cause(request)
    by = [*_INTERVAL, "cause"]
    causes = idle_times.group_by(by).agg(pl.col("process_id", "thread_id").first(), cause_ns=DURATION.sum())
    whole = pl.col("cause_ns").sum().over(_INTERVAL).alias("duration_ns")
    causes = causes.with_columns(whole).join(_find_names_with_most_time(idle_times, by), on=by, how="left")
    main = causes.sort("cause_ns", "cause", descending=[True, False]).unique(_INTERVAL, keep="first")
    main = main.rename({"interval_start_ns": "start_ns"}).with_columns(pl.col("cause").cast(pl.String))
    return sort_longest_first(main, "device_id")


def _read_idle_times_by_cause(request: Request) -> pl.DataFrame:
    """Return the idle intervals of all devices, each with its cause and the start of the gap that contains it."""
    gaps = idle.find_idle_times(request.frames)
    starts = gaps.select("device_id", "start_ns", interval_start_ns="start_ns").sort("start_ns")
    idle_times = idle.divide_idle_times_by_cause(request.frames, gaps).sort("start_ns")
    return idle_times.join_asof(starts, on="start_ns", by="device_id", strategy="backward", check_sortedness=False)


def _find_names_with_most_time(idle_times: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Return the event name with the longest total time in each group, and this time in ``name_ns``."""
    names = idle_times.drop_nulls("name").group_by(*by, "name").agg(name_ns=DURATION.sum())
    names = names.with_columns(pl.col("name").cast(pl.String))
    return names.sort("name_ns", "name", descending=[True, False]).unique(by, keep="first", maintain_order=True)
