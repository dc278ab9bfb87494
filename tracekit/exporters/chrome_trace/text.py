"""JSON text, made of whole columns."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable

_ESCAPES = {chr(code): f"\\u{code:04x}" for code in (*range(0x20), 0x7F, 0x2028, 0x2029)}
_ESCAPES |= {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HEX = pl.Series([f"{n:02X}" for n in range(256)])


def quote(text: pl.Expr) -> pl.Expr:
    """Write strings as JSON strings; null stays null."""
    escaped = text.cast(pl.String).str.replace_many(list(_ESCAPES), list(_ESCAPES.values()))
    return pl.concat_str(pl.lit('"'), escaped, pl.lit('"'))


def thousandths(number: pl.Expr, after: str = "") -> tuple[pl.Expr, pl.Expr]:
    """Write integers as thousandths, exactly: 1234567 becomes ``1234`` and ``.567``.

    Args:
        number: Integers from 0; as ns they are written in µs.
        after: Text behind the second part; there it costs nothing.
    """
    return number // 1000, pl.lit(_decimals(after)).gather(number % 1000)


@functools.cache
def _decimals(after: str) -> pl.Series:
    return pl.Series([f".{n:03}{after}" for n in range(1000)])


def color(argb: pl.Expr) -> pl.Expr:
    """Write ARGB colours as ``"#RRGGBB"``."""
    pairs = [pl.lit(_HEX).gather(argb // weight % 256) for weight in (1 << 16, 1 << 8, 1)]
    return pl.concat_str(pl.lit('"#'), *pairs, pl.lit('"'))


def join(pieces: Iterable[str | pl.Expr]) -> pl.Expr:
    """Put literal text and columns together, row by row; null if any of them is."""
    merged: list[str | pl.Expr] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    return pl.concat_str([pl.lit(p) if isinstance(p, str) else p for p in merged])
