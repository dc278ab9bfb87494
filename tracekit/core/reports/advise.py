"""The report of what could be faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.core import advise as findings
from tracekit.core.reports.report import Request, report
from tracekit.core.reports.table import ReportTable, integer, nanoseconds, share, text
from tracekit.core.rollup import Rollup

if TYPE_CHECKING:
    import polars as pl


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
)
def advise(request: Request) -> pl.LazyFrame:
    """What could be faster: each finding with its evidence and what to try."""
    return findings.advise(Rollup.of(request.frames)).lazy()


def rolled_up(rollup: Rollup) -> ReportTable:
    """Make the report over the iterations of a roll-up."""
    return ReportTable(advise.name, advise.columns, findings.advise(rollup))
