"""The tables of metrics of a DLProf database: each distinct count, greatest, least, sum and average once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.rollup.statistics import STATISTICS

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEY = list(STATISTICS)


def rounded(values: pl.Series) -> pl.Series:
    """Round to six decimals as DLProf does: n numbers in, n numbers out."""
    distinct = values.unique().to_frame("value")
    known = distinct.with_columns(rounded=pl.Series([round(v, 6) for v in distinct["value"]], dtype=pl.Float64))
    return values.to_frame("value").join(known, on="value", how="left", maintain_order="left")["rounded"]


def average(total: str = "sum", count: str = "count") -> pl.Expr:
    """Expression for the average of a metric; 0 where there are no values."""
    return pl.when(pl.col(count) > 0).then(pl.col(total) / pl.col(count)).otherwise(0.0)


@dataclass(frozen=True)
class Metrics:
    """The distinct metrics, in the order of their first use.

    Attributes:
        frame: ``count``, ``max``, ``min``, ``sum``, ``avg``; the number of each is its row and 1.
    """

    frame: pl.DataFrame

    @classmethod
    def of(cls, uses: Sequence[tuple[pl.DataFrame, Sequence[str]]]) -> Metrics:
        """Number metrics.

        Args:
            uses: Frames in the order written, each with the metrics of its rows in order.
        """
        found = [_stacked(frame, metrics) for frame, metrics in uses]
        distinct = pl.concat(found).unique(_KEY, keep="first", maintain_order=True)
        return cls(distinct.with_columns(avg=rounded(distinct.select(average()).to_series())))

    def ids(self, frame: pl.DataFrame, metric: str) -> pl.Series:
        """Give the number of a metric of each row: n rows in, n numbers out."""
        asked = frame.select(pl.col(f"{metric}_{s}").alias(s) for s in _KEY)
        numbered = self.frame.select(*_KEY, id=pl.int_range(1, pl.len() + 1))
        return asked.join(numbered, on=_KEY, how="left", maintain_order="left")["id"]


def _stacked(frame: pl.DataFrame, metrics: Sequence[str]) -> pl.DataFrame:
    """Put the metrics of each row below one another."""
    row = pl.int_range(pl.len())
    slots = [
        frame.select(*(pl.col(f"{m}_{s}").cast(pl.Int64).alias(s) for s in _KEY), at=row * len(metrics) + slot)
        for slot, m in enumerate(metrics)
    ]
    return pl.concat(slots).sort("at").drop("at")
