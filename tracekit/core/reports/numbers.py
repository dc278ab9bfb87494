"""Round and divide doubles exactly like SQLite and C, so that printed numbers have the digits of nsys.

polars differs in two ways:

- Its method ``round`` multiplies and divides by a power of ten, instead of using the exact binary value of a double.
- Instead of dividing by a literal, it multiplies by the reciprocal. For a third of all numbers, the result is wrong by
  one unit in the last place.
"""

from __future__ import annotations

import polars as pl

_SPLITTER = 134217729.0  # 2**27 + 1, which splits a double into two halves whose products are exact
_OLD_SQLITE_FUDGE = 3e-16
_HALF = 0.5


def round_to_tenths_expr(values: pl.Expr, *, legacy_rounding: bool = False) -> pl.Expr:
    """Return an expression that rounds doubles to an integer number of tenths. 1.25 becomes 13.

    Ties are rounded away from zero.

    Args:
        values: Doubles with absolute values less than 2**53 / 10.
        legacy_rounding: Whether to round like SQLite before 3.43, which first adds 3e-16 times the value. Values
            just below a tie are therefore rounded away from zero.
    """
    return _scale_and_round_expr(
        values + values * _OLD_SQLITE_FUDGE if legacy_rounding else values, 10, ties_to_even=False
    )


def round_to_thousandths_expr(values: pl.Expr) -> pl.Expr:
    """Return an expression that rounds doubles to an integer number of thousandths. 1.5 becomes 1500.

    Ties are rounded to even, like ``%.3f`` of C.
    """
    return _scale_and_round_expr(values, 1000, ties_to_even=True)


def quotient_expr(dividend: pl.Expr, divisor: float | pl.Expr) -> pl.Expr:
    """Return an expression for the correctly rounded quotient of doubles."""
    # polars multiplies by the reciprocal if the divisor is a literal, but divides if it is an expression.
    return dividend / (dividend * 0.0 + divisor)


def percent_of_sum_expr(part: pl.Expr) -> pl.Expr:
    """Return an expression for each integer as a percentage of the sum of all integers.

    The percentage is null if the sum is 0.
    """
    total = part.sum()
    return pl.when(total != 0).then(quotient_expr(part * 100.0, total.cast(pl.Float64)))


def _scale_and_round_expr(values: pl.Expr, scale: int, *, ties_to_even: bool) -> pl.Expr:
    def round_series(column: pl.Series) -> pl.Series:  # as a polars expression, it would have hundreds of nodes
        return _scale_and_round(column, scale, ties_to_even=ties_to_even)

    return values.map_batches(round_series, return_dtype=pl.Int64)


def _scale_and_round(values: pl.Series, scale: int, *, ties_to_even: bool) -> pl.Series:
    size = values.abs()
    integers = size.floor()
    product, error = _compute_products_and_errors(size - integers, float(scale))
    digits = product.floor()
    rest = product - digits
    tie = (rest == _HALF) & (error == 0)
    tie_goes_up = tie & (digits % 2 == 1) if ties_to_even else tie
    up = (rest > _HALF) | ((rest == _HALF) & (error > 0)) | tie_goes_up
    scaled = integers.cast(pl.Int64) * scale + digits.cast(pl.Int64) + up.cast(pl.Int64)
    return scaled * (1 - 2 * (values < 0).cast(pl.Int64))


def _compute_products_and_errors(values: pl.Series, factor: float) -> tuple[pl.Series, pl.Series]:
    """Return the rounded products of values and a factor, and their rounding errors, with Dekker's algorithm."""
    product = values * factor
    x_high = values * _SPLITTER - (values * _SPLITTER - values)
    factor_high = factor * _SPLITTER - (factor * _SPLITTER - factor)
    x_low, factor_low = values - x_high, factor - factor_high
    error = ((x_high * factor_high - product) + x_high * factor_low + x_low * factor_high) + x_low * factor_low
    return product, error
