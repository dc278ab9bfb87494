"""Reduce the parts of steps, and the communication in them, to a limited number of bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.errors import MissingTableError
from tracekit.registry.analyses import FIGURE, REPORT, get_analysis

if TYPE_CHECKING:
    from tracekit.core.figures import FigureInputs

_OF_BAR = {
    "first": pl.col("iteration").min(),
    "last": pl.col("iteration").max(),
    "min_ns": pl.col("duration_ns").min(),
    "max_ns": pl.col("duration_ns").max(),
    "longest": pl.col("iteration").get(pl.col("duration_ns").arg_max()),
    "longest_name": pl.col("name").get(pl.col("duration_ns").arg_max()),
    "outliers": pl.col("is_outlier").cast(pl.Int64).sum(),
}


def step_parts(inputs: FigureInputs, *, bins: int) -> pl.DataFrame:
    """Return the steady steps with their parts, as ``reduce_step_parts`` does, at most ``bins`` of them."""
    steps = reduce_step_parts(inputs.view.report("step_parts").frame(), bins)
    if steps.is_empty():
        raise MissingTableError("the capture has no GPU work in steps")
    return steps


def communication_overlap(inputs: FigureInputs, *, bins: int) -> pl.DataFrame:
    """Return the steady steps with communication, as ``reduce_communication`` does, at most ``bins`` of them."""
    steps = reduce_communication(inputs.view.report("step_parts").frame(), bins)
    if steps.is_empty():
        raise MissingTableError("the capture has no communication in steps")
    return steps


def reduce_step_parts(report: pl.DataFrame, bins: int) -> pl.DataFrame:
    """Return the steady steps with their parts, at most ``bins`` of them.

    If there are more steps, each row stands for consecutive steps, and is the one with the median duration, so that its
    parts add up. Further columns have the shortest and the longest duration of these steps, and name the longest one.

    Args:
        report: Rows of the report ``step_parts``. If they have a column ``rank``, it identifies the process.
        bins: Maximum number of rows.
    """
    return _select_medians(_select_steady_steps(report), bins, "step_parts")


def reduce_communication(report: pl.DataFrame, bins: int) -> pl.DataFrame:
    """Return the steady steps with communication and how much of it is hidden, reduced as ``reduce_step_parts`` does.

    Args:
        report: Rows of the report ``step_parts``, as for ``reduce_step_parts``.
        bins: Maximum number of rows.
    """
    hidden = pl.col("hidden_communication_ns")
    total = pl.col("communication_ns") + pl.col("communication_wait_ns") + hidden
    steps = _select_steady_steps(report).filter(total > 0).with_columns(overlap=100 * hidden / total)
    return _select_medians(steps, bins, "communication_overlap")


def _select_steady_steps(report: pl.DataFrame) -> pl.DataFrame:
    rows = report.rename({c.name: c.row_name for c in get_analysis("step_parts", REPORT).columns})
    if "rank" in rows.columns:
        rows = rows.with_columns(process_id="rank")
    rows = rows.filter(pl.col("is_warm_up") == 0)
    ordered = pl.col("duration_ns").sort()
    return rows.with_columns(median_ns=ordered.get((pl.len() - 1) // 2).over("process_id"))


def _select_medians(steps: pl.DataFrame, bins: int, figure: str) -> pl.DataFrame:
    """Return the step with the median duration of each group of consecutive steps of a process."""
    counts = steps["process_id"].value_counts()["count"]
    size = -(-int(max(counts, default=1)) // max(1, bins // max(1, len(counts))))
    by = ["process_id", "group"]
    rows = steps.with_columns(group=pl.int_range(pl.len()).over("process_id") // size)
    ranges = rows.group_by(by).agg(**_OF_BAR)
    order = pl.col("duration_ns").rank("ordinal").over(by)
    medians = rows.filter(order == (pl.len().over(by) + 1) // 2)
    joined = medians.join(ranges, on=by, how="left", nulls_equal=True)
    columns = [column.name for column in get_analysis(figure, FIGURE).columns]
    return joined.sort("process_id", "first", nulls_last=True).select(columns)
