"""The statistics that summaries share: share, total, count, average, median, extremes, deviation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.reports import table
from tracekit.core.reports.names import text_order
from tracekit.core.reports.numbers import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

DURATION = (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")


def statistics(value: str, prefix: str = "") -> list[pl.Expr]:
    """Aggregate a column of integers: total, mean, median, minimum, maximum and sample deviation of what is not null.

    Args:
        value: The column.
        prefix: Put before ``total``, ``mean``, ``median``, ``min``, ``max`` and ``deviation``.
    """
    x = pl.col(value)
    total = pl.when(x.count() > 0).then(x.sum())
    parts = {
        "total": total,
        "mean": total.cast(pl.Float64) / x.count(),
        "median": x.median(),
        "min": x.min(),
        "max": x.max(),
        "deviation": x.std(ddof=1).fill_null(0.0),
    }
    return [e.alias(prefix + name) for name, e in parts.items()]


def summarize(rows: pl.LazyFrame, keys: Sequence[str], value: str = "duration_ns") -> pl.LazyFrame:
    """Aggregate a column by group: n rows in, one row a group out, in no order; with ``count`` and ``share``."""
    grouped = rows.group_by(*keys).agg(*statistics(value), pl.len().alias("count"))
    return grouped.with_columns(percent(pl.col("total")).alias("share"))


def largest_first(grouped: pl.LazyFrame, *ties: str) -> pl.LazyFrame:
    """Sort groups by total, nulls last; equal totals by further columns ascending, nulls first."""
    descending = [True] + [False] * len(ties)
    schema = grouped.collect_schema()
    keys = [text_order(pl.col(t)) if schema[t] in (pl.String, pl.Categorical) else pl.col(t) for t in ties]
    return grouped.sort("total", *keys, descending=descending, nulls_last=descending)


def summary_columns(count: str) -> tuple[table.Column, ...]:
    """Declare the columns of a summary of times, with the title that its counts have."""
    return (
        table.share("Time", "share"),
        table.nanoseconds("Total Time", "total"),
        table.integer(count, "count"),
        *spread_columns(),
    )


def spread_columns(prefix: str = "", title: str = "") -> tuple[table.Column, ...]:
    """Declare the columns of average, median, extremes and deviation of times."""
    return (
        table.mean_nanoseconds(f"{title}Avg", f"{prefix}mean"),
        table.mean_nanoseconds(f"{title}Med", f"{prefix}median"),
        table.nanoseconds(f"{title}Min", f"{prefix}min"),
        table.nanoseconds(f"{title}Max", f"{prefix}max"),
        table.mean_nanoseconds(f"{title}StdDev", f"{prefix}deviation"),
    )
