"""Format the values of columns as JSON text."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import polars as pl

from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.text import concat_expr

if TYPE_CHECKING:
    from tracekit.exporters.timeline.kinds import Arg, Value

_ESCAPES = {chr(code): f"\\u{code:04x}" for code in (*range(0x20), 0x7F, 0x2028, 0x2029)}
_ESCAPES |= {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def json_string_expr(text: pl.Expr) -> pl.Expr:
    """Return an expression that formats strings as JSON strings. Null remains null.

    Each distinct string of a Categorical column is formatted once, and rows with equal strings share its memory.
    """
    return text.map_batches(_format_json_strings, return_dtype=pl.String)


def _format_json_strings(values: pl.Series) -> pl.Series:
    """Return strings as JSON strings. Null remains null."""
    if values.dtype == pl.Categorical:
        distinct = values.unique().drop_nulls()
        if 2 * len(distinct) <= len(values):
            numbers = pl.int_range(len(distinct), dtype=pl.UInt32, eager=True)
            codes = values.to_physical()
            rows = codes.replace_strict(distinct.to_physical(), numbers, default=None, return_dtype=pl.UInt32)
            return _format_json_strings(distinct.cast(pl.String)).gather(rows).alias(values.name)
    escaped = pl.col(values.name).cast(pl.String).str.replace_many(list(_ESCAPES), list(_ESCAPES.values()))
    return values.to_frame().select(pl.concat_str(pl.lit('"'), escaped, pl.lit('"')).alias(values.name)).to_series()


def thousandths_exprs(number: pl.Expr, suffix: str = "") -> tuple[pl.Expr, pl.Expr]:
    """Return two expressions for numbers divided by 1000: the integer part, and a string of the decimals (``.567``).

    Args:
        number: Non-negative integers, such as times in ns that are written in µs.
        suffix: String that is appended to the decimals. This is faster than a separate concatenation.
    """
    return number // 1000, pl.lit(_list_decimals_with_suffix(suffix)).gather(number % 1000)


def _signed_thousandths_expr(number: pl.Expr) -> pl.Expr:
    """Return an expression that formats integers of any sign, divided by 1000: ``-5`` becomes ``-0.005``."""
    sign = pl.when(number < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    return concat_expr([sign, *thousandths_exprs(number.abs())])


@functools.cache
def _list_decimals_with_suffix(suffix: str) -> pl.Series:
    """Return the strings ``.000`` to ``.999``, each followed by ``suffix``."""
    return pl.Series([f".{n:03}{suffix}" for n in range(1000)])


def arg_expr(arg: Arg) -> pl.Expr:
    """Return an expression that formats an argument as a JSON string, number or ``true``. Null remains null."""
    values = [_json_value_expr(value) for value in arg.values]
    return values[0] if len(values) == 1 else pl.coalesce(value.cast(pl.String) for value in values)


def _json_value_expr(value: Value) -> pl.Expr:
    """Return an expression that formats one of the alternative values of an argument as JSON. Null remains null.

    A flag is formatted as ``true``, or is null if it is not set.
    """
    if value.form == kinds.STRING:
        return json_string_expr(value.expression)
    if value.form == kinds.THOUSANDTHS:
        return _signed_thousandths_expr(value.expression)
    if value.form == kinds.TRUE:
        return pl.when(value.expression).then(pl.lit("true"))
    return value.expression


def concatenate_utf8_bytes(strings: pl.Series) -> memoryview:
    """Return the UTF-8 bytes of all strings of a series, one after the other."""
    array = strings.to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, data = array.buffers()
    if not len(array):
        return memoryview(b"")
    ends = memoryview(offsets).cast("B").cast("q")
    return memoryview(data)[ends[array.offset] : ends[array.offset + len(array)]]
