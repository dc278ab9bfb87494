"""Compute rules of tracekit that list the idle time of GPUs, as the ledger of ``why`` divides it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.reports.numbers import quotient_expr
from tracekit.core.reports.summary import DURATION, sort_longest_first

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request

_PROCESS = ["device_id", "process_id"]
_GAP = [*_PROCESS, "gap_start_ns"]


def gpu_idle_causes(request: Request) -> pl.DataFrame:
    """Idle time of the GPU in the steady steps: what the CPU did, with the parts of the ledger of tracekit why.

    ``Max`` is the longest time of a part in one gap, and ``Start`` is the start of this gap.
    """
    idle_times = _list_idle_times(request)
    by = [*_PROCESS, "cause"]
    in_gap = idle_times.group_by(*_GAP, "cause").agg(DURATION.sum())
    in_gap = in_gap.sort("duration_ns", "gap_start_ns", descending=[True, False])
    causes = in_gap.group_by(by).agg(
        total_ns=pl.col("duration_ns").sum(),
        gaps=pl.len(),
        longest_ns=pl.col("duration_ns").first(),
        start_ns=pl.col("gap_start_ns").first(),
    )
    share = quotient_expr(pl.col("total_ns") * 100.0, pl.col("total_ns").sum().over(_PROCESS).cast(pl.Float64))
    causes = _add_name_with_most_time(causes.with_columns(share=share), idle_times, by)
    return causes.sort(*_PROCESS, "total_ns", "cause", descending=[False, False, True, False])


def gpu_idle_gaps(request: Request) -> pl.DataFrame:
    """Longest times in the steady steps in which the GPU is idle, with the launching thread and the main cause."""
    idle_times = _list_idle_times(request)
    by = [*_GAP, "cause"]
    causes = idle_times.group_by(by).agg(pl.col("thread_id").first(), cause_ns=DURATION.sum())
    causes = causes.with_columns(pl.col("cause_ns").sum().over(_GAP).alias("duration_ns"))
    main = causes.sort("cause_ns", "cause", descending=[True, False]).unique(_GAP, keep="first")
    main = _add_name_with_most_time(main, idle_times, by).rename({"gap_start_ns": "start_ns"})
    return sort_longest_first(main, *_PROCESS)


def _list_idle_times(request: Request) -> pl.DataFrame:
    from tracekit.core.diagnosis.idle import list_idle_times

    return list_idle_times(request.get_rollup().steady)


def _add_name_with_most_time(rows: pl.DataFrame, idle_times: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Add the name with the longest total time in each group, and this time as ``name_ns``."""
    names = idle_times.drop_nulls("name").group_by(*by, "name").agg(name_ns=DURATION.sum())
    names = names.sort("name_ns", "name", descending=[True, False]).unique(by, keep="first", maintain_order=True)
    return rows.join(names, on=by, how="left", nulls_equal=True)
