"""Build the table ``metric`` of a DLProf database. A metric is a tuple of count, maximum, minimum, sum and average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.rollup.groups import STATISTICS

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEY = list(STATISTICS)


def round_to_six_decimals(values: pl.Series) -> pl.Series:
    """Round each number to six decimals as DLProf does.

    Python's ``round`` rounds the exact value of a double, as DLProf does. ``round`` of polars can return other digits.
    """
    distinct = values.unique().to_frame("value")
    results = distinct.with_columns(rounded=pl.Series([round(v, 6) for v in distinct["value"]], dtype=pl.Float64))
    return values.to_frame("value").join(results, on="value", how="left", maintain_order="left")["rounded"]


def average_expr(total: str = "sum", count: str = "count") -> pl.Expr:
    """Return an expression for the average of a metric, which is 0 if the metric has no values.

    Args:
        total: Name of the column with the sum.
        count: Name of the column with the number of values.
    """
    return pl.when(pl.col(count) > 0).then(pl.col(total) / pl.col(count)).otherwise(0.0)


@dataclass(frozen=True)
class MetricTable:
    """The distinct metrics of a DLProf database, in the order of their first use.

    Attributes:
        frame: One row per distinct metric: ``count``, ``max``, ``min``, ``sum``, ``avg``. The id of a metric is its row
            number plus 1.
    """

    frame: pl.DataFrame

    @classmethod
    def build(cls, frames_with_metrics: Sequence[tuple[pl.DataFrame, Sequence[str]]]) -> MetricTable:
        """Collect the distinct metrics of several frames in the order of their first use.

        Args:
            frames_with_metrics: Frames, each with the names of its metrics, in the order in which DLProf writes them.
        """
        stacked = [_convert_metrics_to_rows(frame, metrics) for frame, metrics in frames_with_metrics]
        distinct = pl.concat(stacked).unique(_KEY, keep="first", maintain_order=True)
        return cls(distinct.with_columns(avg=round_to_six_decimals(distinct.select(average_expr()).to_series())))

    def look_up_metric_ids(self, frame: pl.DataFrame, metric: str) -> pl.Series:
        """Return one metric id per row of a frame.

        Args:
            frame: The columns ``{metric}_count``, ``{metric}_max``, ``{metric}_min`` and ``{metric}_sum``.
            metric: Name of the metric, such as ``cpu``.

        Returns:
            The id, in the table ``metric``, of the values in each row.
        """
        values = frame.select(pl.col(f"{metric}_{s}").alias(s) for s in _KEY)
        entries = self.frame.select(*_KEY, id=pl.int_range(1, pl.len() + 1))
        return values.join(entries, on=_KEY, how="left", maintain_order="left")["id"]


def _convert_metrics_to_rows(frame: pl.DataFrame, metrics: Sequence[str]) -> pl.DataFrame:
    """Convert each row of a frame to one row per metric. The metrics of an original row are adjacent."""
    row = pl.int_range(pl.len())
    slots = [
        frame.select(*(pl.col(f"{m}_{s}").cast(pl.Int64).alias(s) for s in _KEY), position=row * len(metrics) + slot)
        for slot, m in enumerate(metrics)
    ]
    return pl.concat(slots).sort("position").drop("position")
