"""Compute the reports on the steps of a program: what delimits them and how much work they contain, and advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.findings import collect_recorded_messages
from tracekit.core.reports.numbers import quotient_expr
from tracekit.core.reports.report import has_rows
from tracekit.core.steps import PERCENT, StepSummary, list_notes_by_rank, read_summaries, summarize_recorded_steps
from tracekit.registry.analyses import REPORT, get_analysis

if TYPE_CHECKING:
    from tracekit.core.diagnosis.step_parts import StepTimes
    from tracekit.core.reports.report import Request


def advise(request: Request) -> pl.DataFrame:
    """Causes of slow steps, as tracekit why finds them, and further problems, with evidence and advice."""
    from tracekit.core.advise import advise as find_advice

    return find_advice(request.get_rollup())


def recorded_findings(request: Request) -> pl.DataFrame:
    """Warnings, errors and findings that the profiler recorded, and the rows that they are about."""
    return collect_recorded_messages(request.frames)


def steps(request: Request) -> pl.DataFrame:
    """Range that delimits the steps of the program, number of steps, and share of the GPU work in them.

    The iterations that the capture contains are used unless the user has chosen others.
    """
    if not request.has_chosen_steps and has_rows(request.frames, "iterations"):
        return _build_row(summarize_recorded_steps(request.frames))
    return _build_row(request.get_rollup().steady.step_summary)


def step_parts(request: Request) -> pl.DataFrame:
    """Steps with their parts, as the ledger of tracekit why divides them, and the steps that are outliers.

    The columns from Compute to Idle: Unknown add up to the duration of the step.
    """
    rows = _measure_step_times(request).steps
    mostly = pl.col("mostly").replace_strict(_get_titles_of_parts(), default=None, return_dtype=pl.String)
    change = quotient_expr(float(PERCENT) * pl.col("change_ns"), pl.col("median_ns").cast(pl.Float64))
    change = pl.when(pl.col("median_ns") != 0).then(change)
    return rows.with_columns(mostly=mostly, change_percent=change)


def step_ledger(request: Request) -> pl.DataFrame:
    """Parts of each step by the range of the program, as the ledger of tracekit why divides it.

    The times of a step add up to its duration.
    """
    parts = _measure_step_times(request).parts
    of_step = ["process_id", "iteration"]
    return parts.with_columns(share=PERCENT * pl.col("ns") / pl.col("ns").sum().over(of_step))


def communication_overlap(request: Request) -> pl.DataFrame:
    """Steps with communication, how much of it runs beside computation, and how much the steps wait for it."""
    rows = _measure_step_times(request).steps
    exposed, hidden = pl.col("exposed_ns"), pl.col("hidden_communication_ns")
    rows = rows.with_columns(exposed_ns=pl.col("communication_ns") + pl.col("communication_wait_ns"))
    rows = rows.with_columns(all_ns=exposed + hidden).filter(pl.col("all_ns") > 0)
    shares = {"overlap": (hidden, "all_ns"), "exposed_share": (exposed, "duration_ns")}
    percentages = [
        quotient_expr(PERCENT * part, pl.col(whole).cast(pl.Float64)).alias(name)
        for name, (part, whole) in shares.items()
    ]
    wait = pl.when("has_known_waits").then("communication_wait_ns")
    return rows.with_columns(*percentages, communication_wait_ns=wait)


def _measure_step_times(request: Request) -> StepTimes:
    from tracekit.core.diagnosis.step_parts import measure_step_times

    return measure_step_times(request.get_rollup().steady, request.rank_plans)


def _get_titles_of_parts() -> dict[str, str]:
    """Return the names of the columns of ``step_parts``, without their unit, by the field that they print."""
    columns = get_analysis("step_parts", REPORT).columns
    return {column.row_name: column.name.removesuffix(" (ns)") for column in columns}


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
