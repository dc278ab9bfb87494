"""Concatenate literal strings and the values of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable


def concat_expr(parts: Iterable[str | pl.Expr]) -> pl.Expr:
    """Return an expression that concatenates literal strings and the values of expressions. Nulls result in null."""
    merged: list[str | pl.Expr] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return pl.concat_str([pl.lit(p) if isinstance(p, str) else p for p in merged])
