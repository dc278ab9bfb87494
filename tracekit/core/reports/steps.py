"""Compute the reports on the steps of a program: what delimits them and how much work they contain, and advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.reports.report import has_rows
from tracekit.core.steps import PERCENT, StepSummary, list_notes_by_rank, read_summaries, summarize_recorded_steps
from tracekit.registry.analyses import REPORT, get_analysis

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request


def advise(request: Request) -> pl.DataFrame:
    """Causes of slow steps, as tracekit why finds them, and further problems, with evidence and advice."""
    from tracekit.core.advise import advise as find_advice

    return find_advice(request.get_rollup())


def steps(request: Request) -> pl.DataFrame:
    """Range that delimits the steps of the program, number of steps, and share of the GPU work in them.

    The iterations that the capture contains are used unless the user has chosen others.
    """
    if not request.has_chosen_steps and has_rows(request.frames, "iterations"):
        return _build_row(summarize_recorded_steps(request.frames))
    return _build_row(request.get_rollup().steady.step_summary)


def list_notes(rows: pl.DataFrame) -> list[str]:
    """Return the sentences about steps that rows of the report describe, one for all ranks whose steps agree.

    A sentence begins with "Warning" if steps miss much of the work.

    Args:
        rows: The report of one capture or, with a column ``rank``, of several ranks.
    """
    attributes = StepSummary.get_schema()
    columns = get_analysis("steps", REPORT).columns
    names = {column.name: column.row_name for column in columns if column.row_name in attributes}
    return list_notes_by_rank(read_summaries(rows.rename(names)))


def _build_row(summary: StepSummary) -> pl.DataFrame:
    shares = {"kernel_percent": summary.kernel_share, "gpu_time_percent": summary.gpu_time_share}
    percentages = {name: None if share is None else PERCENT * share for name, share in shares.items()}
    return summary.to_frame().with_columns(
        *(pl.lit(value, pl.Float64).alias(name) for name, value in percentages.items()),
        summary=pl.lit(summary.note),
    )
