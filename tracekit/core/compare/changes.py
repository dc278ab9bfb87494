"""Join the totals of both sides of a comparison by name, and compute their changes."""

from __future__ import annotations

import polars as pl

TOTALS = {"name": pl.String, "count": pl.Int64, "time_ns": pl.Int64}
"""Columns of the totals of one side of a comparison."""
STATUSES = ("new", "gone", "faster", "slower", "equal")


def join_totals(a: pl.DataFrame, b: pl.DataFrame) -> pl.DataFrame:
    """Join the totals of both sides of a comparison by name, and compute the change of each name.

    Args:
        a: Totals of the first side: ``name``, and any columns of numbers such as ``count`` and ``time_ns``. No name
            occurs twice.
        b: Totals of the second side, with the same columns.

    Returns:
        One row per name of either side: ``name``, each column of numbers of both sides (``count_a``, ``time_a_ns`` …,
        0 if the side does not have the name), ``is_in_a``, ``is_in_b``, ``change_ns`` (the time of ``b`` minus that of
        ``a``), ``change_percent`` (relative to ``a``; null if that is 0) and ``share_percent`` (share of the absolute
        change in the sum of all absolute changes; null if nothing changed).
    """
    sides = [
        rows.select("name", pl.lit(value=True).alias(f"is_in_{side}"), *_side_column_exprs(rows, side))
        for rows, side in ((a, "a"), (b, "b"))
    ]
    names = [f"is_in_{side}" for side in "ab"]
    numbers = [_insert_side_into_column_name(column, side) for column in a.columns if column != "name" for side in "ab"]
    joined = sides[0].join(
        sides[1], on="name", how="full", coalesce=True, nulls_equal=True, maintain_order="left_right"
    )
    rows = joined.select(
        "name", *(pl.col(n).fill_null(value=False) for n in names), *(pl.col(n).fill_null(0) for n in numbers)
    )
    return add_change_columns(rows, pl.col("time_b_ns") - pl.col("time_a_ns"), pl.col("time_a_ns"))


def add_change_columns(rows: pl.DataFrame, change: pl.Expr, before: pl.Expr) -> pl.DataFrame:
    """Add the change of each row: in ns, in per cent of the previous time, and as a share of all absolute changes.

    The columns are ``change_ns``, ``change_percent`` and ``share_percent``.

    Args:
        rows: The rows to extend.
        change: Expression for the change in ns.
        before: Expression for the time in ns before the change.
    """
    size = pl.col("change_ns").abs()
    return rows.with_columns(change_ns=change).with_columns(
        change_percent=change_percent_expr(pl.col("change_ns"), before),
        share_percent=size * 100.0 / size.sum().replace(0, None),
    )


def change_percent_expr(change: pl.Expr, before: pl.Expr) -> pl.Expr:
    """Return an expression for a change in per cent of the previous value. It is null where this value is 0."""
    return change * 100.0 / before.replace(0, None)


def change_status_expr(change: pl.Expr) -> pl.Expr:
    """Return an expression for the status of joined rows, one of ``STATUSES``.

    Args:
        change: Expression for the change of the time, which is positive if a row is slower.
    """
    return (
        pl.when(~pl.col("is_in_a"))
        .then(pl.lit("new"))
        .when(~pl.col("is_in_b"))
        .then(pl.lit("gone"))
        .when(change > 0)
        .then(pl.lit("slower"))
        .when(change < 0)
        .then(pl.lit("faster"))
        .otherwise(pl.lit("equal"))
        .cast(pl.Enum(STATUSES))
    )


def _side_column_exprs(rows: pl.DataFrame, side: str) -> list[pl.Expr]:
    return [pl.col(c).alias(_insert_side_into_column_name(c, side)) for c in rows.columns if c != "name"]


def _insert_side_into_column_name(column: str, side: str) -> str:
    """Insert the side ``a`` or ``b`` into the name of a column: ``time_ns`` becomes ``time_a_ns``."""
    base, underscore, unit = column.rpartition("_")
    return f"{base}_{side}_{unit}" if underscore and unit == "ns" else f"{column}_{side}"
