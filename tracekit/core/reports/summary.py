"""Compute the statistics of summary reports, such as share, total, average, median and standard deviation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.reports.numbers import percent_of_sum_expr
from tracekit.core.series import string_ranks_expr

if TYPE_CHECKING:
    from collections.abc import Sequence

DURATION = (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")


def statistics_exprs(value_column: str, prefix: str = "") -> list[pl.Expr]:
    """Return expressions for the statistics of a column of integers. Nulls are ignored.

    The statistics are total, mean, median, minimum, maximum and sample standard deviation.

    Args:
        value_column: Name of the column.
        prefix: Prefix of the names ``total``, ``mean``, ``median``, ``min``, ``max`` and ``deviation``.
    """
    x = pl.col(value_column)
    total = pl.when(x.count() > 0).then(x.sum())
    aggregates = {
        "total": total,
        "mean": total.cast(pl.Float64) / x.count(),
        "median": x.median(),
        "min": x.min(),
        "max": x.max(),
        "deviation": x.std(ddof=1).fill_null(0.0),
    }
    return [e.alias(prefix + name) for name, e in aggregates.items()]


def weighted_statistics_exprs(value_column: str, weight_column: str) -> list[pl.Expr]:
    """Return expressions for the statistics of a column of integers in which each row counts several times.

    The statistics are those of ``statistics_exprs``.

    Args:
        value_column: Name of a column of integers without nulls, in ascending order within each group.
        weight_column: Name of the column that contains how many times each row counts.
    """
    x, n = pl.col(value_column), pl.col(weight_column)
    count, total, passed = n.sum(), (x * n).sum(), n.cum_sum()
    mean = total.cast(pl.Float64) / count
    middle = [x.filter(passed >= (count + extra) // 2).first() for extra in (1, 2)]
    squares = ((x - mean).pow(2) * n).sum()
    aggregates = {
        "total": total,
        "mean": mean,
        "median": (middle[0] + middle[1]) / 2,
        "min": x.first(),
        "max": x.last(),
        "deviation": pl.when(count > 1).then((squares / (count - 1)).sqrt()).otherwise(0.0),
    }
    return [e.alias(name) for name, e in aggregates.items()]


def summarize_groups(rows: pl.LazyFrame, keys: Sequence[str], value_column: str = "duration_ns") -> pl.LazyFrame:
    """Compute the statistics of a column for each group.

    Args:
        rows: The rows to group.
        keys: Columns that identify a group.
        value_column: Name of the column whose statistics are computed.

    Returns:
        One row per group, in no particular order: ``keys``, the statistics of ``statistics_exprs``, ``count`` (number
        of rows) and ``share`` (percentage of the total of all groups).
    """
    grouped = rows.group_by(*keys).agg(*statistics_exprs(value_column), pl.len().alias("count"))
    return grouped.with_columns(percent_of_sum_expr(pl.col("total")).alias("share"))


def sort_largest_total_first(groups: pl.LazyFrame, *tie_columns: str) -> pl.LazyFrame:
    """Sort groups by descending total, with nulls last.

    Groups with equal totals are sorted by the columns ``tie_columns`` in ascending order, with nulls first.
    """
    descending = [True] + [False] * len(tie_columns)
    schema = groups.collect_schema()
    keys = [string_ranks_expr(pl.col(t)) if schema[t] == pl.Categorical else pl.col(t) for t in tie_columns]
    return groups.sort("total", *keys, descending=descending, nulls_last=descending)


def sort_longest_first(rows: pl.DataFrame, *tie_columns: str) -> pl.DataFrame:
    """Sort rows by descending ``duration_ns``, then by start, then by the columns ``tie_columns``."""
    keys: Sequence[str] = ("duration_ns", "start_ns", *tie_columns)
    return rows.sort(keys, descending=[True] + [False] * (len(keys) - 1), maintain_order=True)
