"""Declare the report ``advise``, which lists what makes the steps of a program slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.core.reports.report import Request, report
from tracekit.core.reports.table import (
    integer_column,
    json_column,
    nanoseconds_column,
    percent_column,
    text_column,
)

if TYPE_CHECKING:
    import polars as pl

    from tracekit.core.rollup import Rollup


@report(
    text_column("Rule", "rule"),
    text_column("Problem", "problem"),
    text_column("Evidence", "evidence"),
    text_column("Advice", "advice"),
    nanoseconds_column("Time", "time_ns"),
    percent_column("Time", "share"),
    percent_column("After", "after"),
    integer_column("Count", "count"),
    nanoseconds_column("Start", "start_ns"),
    nanoseconds_column("End", "end_ns"),
    json_column("Figures", "figures"),
)
def advise(request: Request) -> pl.LazyFrame:
    """Causes of slow steps, as tracekit why finds them, and further problems, with evidence and advice."""
    from tracekit.core.rollup import Rollup

    return build_rows(Rollup.from_frames(request.frames)).lazy()


def build_rows(rollup: Rollup) -> pl.DataFrame:
    """Return the rows of the report ``advise`` over the aggregated iterations of a roll-up."""
    from tracekit.core.advise import advise

    return advise(rollup)
