"""Compute the statistics of recipes from counts of values, which are exact for any number of ranks.

A rank contributes a row per distinct value and its number of occurrences. Counts of ranks are added, and quartiles and
deviations are computed from the sums, whereas nsys approximates them from the quartiles and deviations of the ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

VALUE, COUNT = "value", "count"
STATISTICS = ("Count", "Mean", "Std", "Min", "Q1", "Median", "Q3", "Max", "Sum")
_QUARTERS = {"Q1": 1, "Median": 2, "Q3": 3}
_ROUNDED = ("Mean", "Std", *_QUARTERS)


def count_values(rows: pl.LazyFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return how often each value occurs in each group.

    Args:
        rows: The columns ``keys`` and ``value``. Rows that have a null in one of them are ignored.
        keys: Columns that identify a group.

    Returns:
        ``keys``, ``value`` and ``count``, sorted. Categorical keys are converted to strings.
    """
    names = list(keys)
    counted = rows.drop_nulls([*names, VALUE]).group_by(*names, VALUE).agg(pl.len().cast(pl.Int64).alias(COUNT))
    strings = pl.col(pl.Categorical).cast(pl.String)
    return counted.collect().with_columns(strings).sort(*names, VALUE)


def add_counts(counts: pl.DataFrame) -> pl.DataFrame:
    """Add the counts of equal values of equal groups."""
    keys = [c for c in counts.columns if c != COUNT]
    return counts.group_by(keys).agg(pl.col(COUNT).sum()).sort(keys)


def describe(counts: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the statistics of each group, sorted by the keys.

    Args:
        counts: The columns ``keys``, ``value`` and ``count``. Values may be repeated.
        keys: Columns that identify a group.

    Returns:
        The columns ``keys`` and ``STATISTICS``. Quartiles are interpolated linearly. ``Std`` is the sample standard
        deviation, which is null for a single value. Mean, deviation and quartiles have one decimal.
    """
    by, x, n = list(keys), pl.col(VALUE), pl.col(COUNT).sum()
    ordered = counts.sort(*by, VALUE).with_columns(last=pl.col(COUNT).cum_sum().over(by))
    mean = (x * pl.col(COUNT)).sum() / n
    squares = ((x.cast(pl.Float64) - mean) ** 2 * pl.col(COUNT)).sum()
    grouped = ordered.group_by(by, maintain_order=True).agg(
        n.alias("Count"),
        mean.alias("Mean"),
        pl.when(n > 1).then((squares / (n - 1)).sqrt()).alias("Std"),
        x.min().alias("Min"),
        *(_quartile(quarter).alias(name) for name, quarter in _QUARTERS.items()),
        x.max().alias("Max"),
        (x * pl.col(COUNT)).sum().alias("Sum"),
    )
    return grouped.with_columns(pl.col(_ROUNDED).round(1), pl.col("Sum").cast(counts.schema[VALUE], strict=False))


def quartiles(values: pl.Expr) -> list[pl.Expr]:
    """Return expressions for the quartiles of a column, with linear interpolation: ``Q1``, ``Median`` and ``Q3``."""
    return [values.quantile(quarter / 4, interpolation="linear").alias(name) for name, quarter in _QUARTERS.items()]


def _quartile(quarter: int) -> pl.Expr:
    """Return the first, second or third quartile of sorted values, with linear interpolation."""
    position = quarter * (pl.col(COUNT).sum() - 1)
    low, high = (_value_at((position + rounding) // 4).cast(pl.Float64) for rounding in (0, 3))
    return low + (high - low) * (position % 4) / 4


def _value_at(position: pl.Expr) -> pl.Expr:
    """Return the value at a position of the sorted values, of which each row holds ``count``."""
    return pl.col(VALUE).filter(pl.col("last") > position).first()
