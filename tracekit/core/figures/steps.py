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
    """Return the steady steps with their parts, as the report of this name computes them, at most ``bins`` of them.

    If there are more steps, each row stands for consecutive steps, and is the one with the median duration, so that its
    parts add up. Further columns have the shortest and the longest duration of these steps, and name the longest one.
    """
    steps = _read_steady_steps(inputs)
    if steps.is_empty():
        raise MissingTableError("the capture has no GPU work in steps")
    return _select_medians(steps, bins, "step_parts")


def communication_overlap(inputs: FigureInputs, *, bins: int) -> pl.DataFrame:
    """Return the steady steps with communication and how much of it is hidden, reduced like those of ``step_parts``."""
    hidden = pl.col("hidden_communication_ns")
    total = pl.col("communication_ns") + pl.col("communication_wait_ns") + hidden
    steps = _read_steady_steps(inputs).filter(total > 0).with_columns(overlap=100 * hidden / total)
    if steps.is_empty():
        raise MissingTableError("the capture has no communication in steps")
    return _select_medians(steps, bins, "communication_overlap")


def _read_steady_steps(inputs: FigureInputs) -> pl.DataFrame:
    report = get_analysis("step_parts", REPORT)
    rows = inputs.view.report(report.name).frame().rename({c.name: c.row_name for c in report.columns})
    rows = rows.filter(pl.col("is_warm_up") == 0)
    ordered = pl.col("duration_ns").sort()
    return rows.with_columns(median_ns=ordered.get((pl.len() - 1) // 2).over("process_id"))


def _select_medians(steps: pl.DataFrame, bins: int, figure: str) -> pl.DataFrame:
    """Return the step with the median duration of each group of consecutive steps of a process."""
    size = -(-steps.height // max(1, bins // steps["process_id"].n_unique()))
    by = ["process_id", "group"]
    rows = steps.with_columns(group=pl.int_range(pl.len()).over("process_id") // size)
    ranges = rows.group_by(by).agg(**_OF_BAR)
    order = pl.col("duration_ns").rank("ordinal").over(by)
    medians = rows.filter(order == (pl.len().over(by) + 1) // 2)
    joined = medians.join(ranges, on=by, how="left", nulls_equal=True)
    columns = [column.name for column in get_analysis(figure, FIGURE).columns]
    return joined.sort("process_id", "first", nulls_last=True).select(columns)
