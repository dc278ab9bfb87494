"""Compute unions, gaps and intersections of intervals on any number of tracks at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.intervals.axis import Axis

if TYPE_CHECKING:
    from collections.abc import Sequence


def merge_intervals(intervals: pl.DataFrame, *, by: Sequence[str]) -> pl.DataFrame:
    """Merge intervals that overlap or touch and have equal values in the columns ``by``.

    Args:
        intervals: The columns ``by``, ``start_ns``, ``end_ns``. Intervals that are empty or have no end are ignored.
        by: Columns that identify the track of an interval, such as its thread or its GPU.

    Returns:
        One row per merged interval, sorted by track and start, with the columns ``by``, ``start_ns`` and ``end_ns``.
    """
    axis = Axis.from_intervals(intervals, by=by)
    ordered = (
        axis.compute_positions(intervals).filter(pl.col("start") < pl.col("end")).select("start", "end").sort("start")
    )
    running_end = ordered["end"].cum_max()
    is_first = (ordered["start"] > running_end.shift(1)).fill_null(value=True)
    first = is_first.arg_true().cast(pl.Int64)
    last = (first - 1).shift(-1, fill_value=ordered.height - 1)
    merged = pl.DataFrame({"start": ordered["start"].gather(first), "end": running_end.gather(last)})
    return axis.convert_to_intervals(merged)


def compute_union_durations(intervals: pl.DataFrame, *, by: Sequence[str]) -> pl.DataFrame:
    """Return the duration of the union of intervals with equal values in ``by``: ``by`` and ``duration_ns``."""
    duration = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("duration_ns")
    merged = merge_intervals(intervals, by=by)
    return merged.group_by(list(by), maintain_order=True).agg(duration) if by else merged.select(duration)


def find_gaps(intervals: pl.DataFrame, *, by: Sequence[str]) -> pl.DataFrame:
    """Return the gaps between intervals that have equal values in the columns ``by``.

    Args:
        intervals: The columns ``by``, ``start_ns``, ``end_ns``.
        by: Columns that identify the track of an interval, such as its thread or its GPU.

    Returns:
        One row per gap, sorted by track and start, with the columns ``by``, ``start_ns`` and ``end_ns``.
    """
    keys = list(by)
    next_start = pl.col("start_ns").shift(-1)
    return (
        merge_intervals(intervals, by=by)
        .select(*keys, start_ns=pl.col("end_ns"), end_ns=next_start.over(keys) if keys else next_start)
        .drop_nulls("end_ns")
    )


def intersect_unions(left: pl.DataFrame, right: pl.DataFrame, *, by: Sequence[str]) -> pl.DataFrame:
    """Return the intersection of the unions of two frames: the times in which intervals of both frames are open.

    Args:
        left: The columns ``by``, ``start_ns``, ``end_ns``.
        right: The same columns.
        by: Columns that identify the track of an interval, such as its thread or its GPU.

    Returns:
        Disjoint intervals, sorted by track and start, with the columns ``by``, ``start_ns`` and ``end_ns``.
    """
    sides = pl.concat([merge_intervals(f, by=by) for f in (left, right)])
    edges = [sides.select(*by, t=c, step=pl.lit(step)) for c, step in (("start_ns", 1), ("end_ns", -1))]
    return (
        pl.concat(edges)
        .sort(*by, "t", "step")
        .with_columns(_open=pl.col("step").cum_sum(), _next=pl.col("t").shift(-1))
        .filter((pl.col("_open") == 2) & (pl.col("t") < pl.col("_next")))  # noqa: PLR2004 - both sides
        .select(*by, start_ns="t", end_ns="_next")
    )


def latest_end_before_expr(by: str | Sequence[str]) -> pl.Expr:
    """Return an expression for the latest end of the earlier rows with equal values in the columns ``by``.

    The expression is null for the first of these rows.

    Args:
        by: Columns that identify the track of an interval, such as its thread or its GPU. The rows of each track must
            be in order of ``start_ns``.
    """
    return pl.col("end_ns").cum_max().shift(1).over(by)
