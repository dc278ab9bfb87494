"""Format the values of columns as JSON text."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable

_ESCAPES = {chr(code): f"\\u{code:04x}" for code in (*range(0x20), 0x7F, 0x2028, 0x2029)}
_ESCAPES |= {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HEX = pl.Series([f"{n:02X}" for n in range(256)])


def quote_strings(text: pl.Expr) -> pl.Expr:
    """Format strings as JSON strings. Null remains null."""
    escaped = text.cast(pl.String).str.replace_many(list(_ESCAPES), list(_ESCAPES.values()))
    return pl.concat_str(pl.lit('"'), escaped, pl.lit('"'))


def format_thousandths(number: pl.Expr, suffix: str = "") -> tuple[pl.Expr, pl.Expr]:
    """Divide integers by 1000 exactly, and return the integer part and the decimals: 1234567 becomes 1234 and ``.567``.

    Args:
        number: Non-negative integers, such as times in ns that are written in µs.
        suffix: String that is appended to the decimals. This is faster than a separate concatenation.
    """
    return number // 1000, pl.lit(_decimal_strings(suffix)).gather(number % 1000)


@functools.cache
def _decimal_strings(suffix: str) -> pl.Series:
    """Return the strings ``.000`` to ``.999``, each followed by ``suffix``."""
    return pl.Series([f".{n:03}{suffix}" for n in range(1000)])


def format_colors(argb: pl.Expr) -> pl.Expr:
    """Format ARGB colors as ``"#RRGGBB"`` without alpha."""
    pairs = [pl.lit(_HEX).gather(argb // weight % 256) for weight in (1 << 16, 1 << 8, 1)]
    return pl.concat_str(pl.lit('"#'), *pairs, pl.lit('"'))


def concat_text(parts: Iterable[str | pl.Expr]) -> pl.Expr:
    """Concatenate literal strings and columns for each row. The result is null where any column is null."""
    merged: list[str | pl.Expr] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return pl.concat_str([pl.lit(p) if isinstance(p, str) else p for p in merged])
