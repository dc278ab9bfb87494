"""Count, greatest, least, sum and average of metrics by group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

STATISTICS = ("count", "max", "min", "sum")


def by(frame: pl.DataFrame, keys: Sequence[str], metrics: Sequence[str]) -> pl.DataFrame:
    """Summarise metrics: n rows in, one row a group out.

    Returns:
        ``keys`` and for each metric ``{metric}_count``, ``_max``, ``_min``, ``_sum``.
    """
    return frame.group_by(keys, maintain_order=True).agg(of(metrics))


def of(metrics: Sequence[str]) -> list[pl.Expr]:
    """Expressions that summarise metrics within a group; nulls do not count."""
    made = []
    for metric in metrics:
        value = pl.col(metric)
        found = value.count().cast(pl.Int64), value.max(), value.min(), value.sum()
        made += [e.alias(f"{metric}_{s}") for s, e in zip(STATISTICS, found, strict=True)]
    return made


def blank(metrics: Sequence[str]) -> list[pl.Expr]:
    """Expressions that put 0 where a group had no values."""
    return [pl.col(f"{m}_{s}").fill_null(0) for m in metrics for s in STATISTICS]
