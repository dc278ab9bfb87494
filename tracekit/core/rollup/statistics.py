"""Compute the count, maximum, minimum and sum of metrics by group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

STATISTICS = ("count", "max", "min", "sum")


def summarize_metrics(frame: pl.DataFrame, keys: Sequence[str], metrics: Sequence[str]) -> pl.DataFrame:
    """Return the count, maximum, minimum and sum of metrics by group.

    Returns:
        The columns ``keys`` and, for each metric, ``{metric}_count``, ``_max``, ``_min`` and ``_sum``.
    """
    return frame.group_by(keys, maintain_order=True).agg(metric_summary_exprs(metrics))


def metric_summary_exprs(metrics: Sequence[str]) -> list[pl.Expr]:
    """Return expressions for the count, maximum, minimum and sum of metrics in a group. Nulls are ignored."""
    expressions = []
    for metric in metrics:
        value = pl.col(metric)
        statistics = value.count().cast(pl.Int64), value.max(), value.min(), value.sum()
        expressions += [e.alias(f"{metric}_{s}") for s, e in zip(STATISTICS, statistics, strict=True)]
    return expressions


def fill_missing_with_zero_exprs(metrics: Sequence[str]) -> list[pl.Expr]:
    """Return expressions that replace nulls in the statistics of metrics with 0."""
    return [pl.col(f"{m}_{s}").fill_null(0) for m in metrics for s in STATISTICS]
