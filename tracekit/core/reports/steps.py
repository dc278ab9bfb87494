"""Declare the report ``steps``, which states what delimits the steps of a program and how much work lies in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.core.reports.report import Request, report
from tracekit.core.reports.table import integer_column, nanoseconds_column, percent_column, text_column
from tracekit.core.steps import MIN_COVERAGE, PERCENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.core.rollup import Rollup


@report(
    text_column("Range", "key_op"),
    integer_column("Steps", "steps"),
    integer_column("Aggregated", "aggregated"),
    text_column("First", "first"),
    text_column("Last", "last"),
    integer_column("Warm-Up Steps", "warm_up"),
    nanoseconds_column("Warm-Up Time", "warm_up_ns"),
    integer_column("Kernels", "kernels"),
    integer_column("Kernels In Steps", "kernels_in_steps"),
    percent_column("Kernels In Steps", "kernel_percent"),
    nanoseconds_column("GPU Time", "gpu_time_ns"),
    nanoseconds_column("GPU Time In Steps", "gpu_time_in_steps_ns"),
    percent_column("GPU Time In Steps", "gpu_time_percent"),
    text_column("Summary", "summary"),
)
def steps(request: Request) -> pl.LazyFrame:
    """Range that delimits the steps of the program, number of steps, and share of the GPU work in them."""
    from tracekit.core.rollup import Rollup

    return build_rows(Rollup.from_frames(request.frames)).lazy()


def misses_work(row: Mapping[str, Any]) -> bool:
    """Return whether less than 90 % of the kernels or of the GPU time lie in steps, given the row of the report."""
    shares = (row["Kernels In Steps (%)"], row["GPU Time In Steps (%)"])
    return any(share is not None and share < PERCENT * MIN_COVERAGE for share in shares)


def build_rows(rollup: Rollup) -> pl.DataFrame:
    """Return the row of the report ``steps`` for a roll-up."""
    summary = rollup.steady.step_summary
    values = {
        name: getattr(summary, name)
        for name in (
            *("key_op", "steps", "aggregated", "first", "last", "warm_up", "warm_up_ns"),
            *("kernels", "kernels_in_steps", "gpu_time_ns", "gpu_time_in_steps_ns"),
        )
    }
    shares = {"kernel_percent": summary.kernel_share, "gpu_time_percent": summary.gpu_time_share}
    percentages = {name: None if share is None else PERCENT * share for name, share in shares.items()}
    texts = dict.fromkeys(("key_op", "first", "last", "summary"), pl.String)
    row = {**values, **percentages, "summary": summary.describe()}
    types = {n: texts.get(n, pl.Float64 if n in percentages else pl.Int64) for n in row}
    return pl.DataFrame([row], schema=types)
