"""Declare the report ``steps``, which states what delimits the steps of a program and how much work lies in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.reports.report import Frames, Request, report
from tracekit.core.reports.table import integer_column, nanoseconds_column, percent_column, text_column
from tracekit.core.steps import PERCENT, StepSummary, list_notes_by_rank, read_summaries, summarize_recorded_steps

if TYPE_CHECKING:
    from tracekit.core.rollup import Rollup


@report(
    text_column("Range", "key_op"),
    integer_column("Steps", "steps"),
    integer_column("Aggregated", "aggregated"),
    text_column("First", "first"),
    text_column("Last", "last"),
    integer_column("Warm-Up Steps", "warm_up"),
    nanoseconds_column("Warm-Up Time", "warm_up_ns"),
    integer_column("Included Warm-Up Steps", "included_warm_up"),
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


def list_notes(rows: pl.DataFrame) -> list[str]:
    """Return the sentences about steps that rows of the report describe, one for all ranks whose steps agree.

    A sentence begins with "Warning" if steps miss much of the work.

    Args:
        rows: The report of one capture or, with a column ``rank``, of several ranks.
    """
    attributes = StepSummary.get_schema()
    names = {column.title: column.source for column in steps.columns if column.source in attributes}
    return list_notes_by_rank(read_summaries(rows.rename(names)))


def build_rows(rollup: Rollup) -> pl.DataFrame:
    """Return the row of the report ``steps`` for a roll-up."""
    return _build_row(rollup.steady.step_summary)


def build_recorded_rows(frames: Frames) -> pl.DataFrame:
    """Return the row of the report ``steps`` for a capture that contains the iterations of DLProf."""
    return _build_row(summarize_recorded_steps(frames))


def _build_row(summary: StepSummary) -> pl.DataFrame:
    shares = {"kernel_percent": summary.kernel_share, "gpu_time_percent": summary.gpu_time_share}
    percentages = {name: None if share is None else PERCENT * share for name, share in shares.items()}
    return summary.to_frame().with_columns(
        *(pl.lit(value, pl.Float64).alias(name) for name, value in percentages.items()),
        summary=pl.lit(summary.note),
    )
