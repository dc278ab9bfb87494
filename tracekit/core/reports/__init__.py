"""Compute reports from declared tables: the reports of ``nsys stats``, with byte-for-byte equal CSV, and other reports.

To add a report, declare it in ``schemas/analyses/reports.toml``, and write the function that computes its rows in the
module of its subject, such as ``gpu`` or ``nvtx``. These modules help:

- ``report`` defines the input of the function.
- ``sources`` reads the kernels, memory operations, API calls and NVTX ranges on which several reports are based.
- ``summary`` computes statistics.
- ``numbers`` rounds numbers.
- ``table`` prints the rows.

Unlike in nsys, no report fails if an export lacks the tables of enum labels or thread names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit.core.reports.report import Frames, Request, has_legacy_rounding, has_rows
from tracekit.core.reports.table import ReportTable
from tracekit.core.select import row_condition_expr
from tracekit.registry.analyses import REPORT, RULE

if TYPE_CHECKING:
    import polars as pl

    from tracekit.core.reports.report import Prefetch, TimeBounds
    from tracekit.registry.analyses import Analysis

__all__ = ["Frames", "ReportTable", "Request", "compute"]

ALL_ROWS = -1


def compute(analysis: Analysis, request: Request, prefetch: Prefetch | None = None) -> ReportTable:
    """Compute a report, or apply a rule.

    Args:
        analysis: The declaration of the report or rule.
        request: The tables and the values of all options.
        prefetch: Function that is called before the computation, with the computation as its argument. It may read
            all required data in one pass over the file.

    Returns:
        The result. It has no rows if the capture has no data for the report, or if the rule finds nothing.
    """
    window = _get_window(request)
    if analysis.kind == REPORT and analysis.input == "tables":
        request = replace(request, legacy_rounding=has_legacy_rounding(request.frames))
    if prefetch is not None and (analysis.input == "tables" or window != (None, None)):
        prefetch(lambda frames: compute_rows(analysis, request.with_frames(frames)))
    rows = compute_rows(analysis, request)
    return ReportTable(analysis.name, analysis.columns, rows, analysis.origin, request.legacy_rounding)


def compute_rows(analysis: Analysis, request: Request) -> pl.DataFrame:
    """Compute the rows of a report or rule before they are printed. The rows of a rule are numbered."""
    window = _get_window(request)
    if window != (None, None):
        request = request.with_frames(_restrict_frames_to_window(request.frames, window))
    if _lacks_required_tables(analysis, request):
        request = replace(request, frames=_clear_frames(request.frames))
    rows: pl.DataFrame = analysis.load_compute_function()(request).lazy().collect()
    if analysis.kind != RULE:
        return rows
    limit = request.options.get("rows", ALL_ROWS)
    return (rows if limit == ALL_ROWS else rows.head(request.get_integer("rows"))).with_row_index("row", offset=1)


def _get_window(request: Request) -> TimeBounds:
    """Return the time in ns to which the options ``start`` and ``end`` of a rule restrict events."""
    low, high = (None if request.options.get(o) is None else request.get_integer(o) for o in ("start", "end"))
    return low, high


def _lacks_required_tables(analysis: Analysis, request: Request) -> bool:
    """Return whether the capture has kernels, but no rows of a table that the report requires."""
    tables = analysis.list_required_tables(request.options)
    frames = request.get_frames_without()
    return any(not has_rows(frames, table) for table in tables) and has_rows(frames, "kernels")


def _clear_frames(frames: Frames) -> Frames:
    return lambda name: frames(name).clear()


def _restrict_frames_to_window(frames: Frames, window: TimeBounds) -> Frames:
    """Return a version of ``frames`` whose tables contain only the rows that overlap a time window."""

    def read_table_in_window(name: str) -> pl.LazyFrame:
        rows = frames(name)
        condition = row_condition_expr(rows.collect_schema().names(), [("time", window)])
        return rows if condition is None else rows.filter(condition)

    return read_table_in_window
