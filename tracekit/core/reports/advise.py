"""The report of what could be faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.core.reports.report import Request, report
from tracekit.core.reports.table import ReportTable, integer, nanoseconds, share, text

if TYPE_CHECKING:
    import polars as pl

    from tracekit.core.rollup import Rollup


@report(
    text("Rule", "rule"),
    text("Problem", "problem"),
    text("Evidence", "evidence"),
    text("Advice", "advice"),
    nanoseconds("Time", "time_ns"),
    share("Time", "share"),
    integer("Count", "count"),
    nanoseconds("Start", "start_ns"),
    nanoseconds("End", "end_ns"),
    text("Figures", "figures"),
)
def advise(request: Request) -> pl.LazyFrame:
    """What could be faster: each finding with its evidence and what to try."""
    from tracekit.core.rollup import Rollup

    return _findings(Rollup.of(request.frames)).lazy()


def rolled_up(rollup: Rollup) -> ReportTable:
    """Make the report over the iterations of a roll-up."""
    return ReportTable(advise.name, advise.columns, _findings(rollup))


def _findings(rollup: Rollup) -> pl.DataFrame:
    from tracekit.core.advise import advise

    return advise(rollup)
