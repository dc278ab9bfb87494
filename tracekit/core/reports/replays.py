"""Compute the report on the layers of replayed CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.correlate import Correlation
from tracekit.core.graph_replays import CALL_COLUMNS, list_activities
from tracekit.core.reports.numbers import quotient_expr
from tracekit.core.reports.report import STRING_COLUMNS
from tracekit.core.steps import PERCENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.reports.report import Frames, Request

_REPLAY = ["process_id", "correlation_id"]
_GRAPH = ["process_id", "graph", "kernels", "names"]
_LAYER_COLUMNS = ("capture_path", "capture_confidence")


class _ColumnReader:
    """Reads columns of activities that a layered trace has, and computes those that only correlation adds."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._correlation = Correlation(self._scan_categorical)

    def _scan_categorical(self, table: str) -> pl.LazyFrame:
        """Return a table as correlation needs it: reports read the names of ranges as String."""
        frame = self._frames(table)
        return frame.with_columns(pl.col("name").cast(pl.Categorical)) if table in STRING_COLUMNS else frame

    def read(self, table: str, names: Sequence[str]) -> pl.DataFrame:
        """Return columns of a table."""
        frame = self._frames(table)
        known = [name for name in names if name in frame.collect_schema().names()]
        missing = [name for name in names if name not in known]
        return pl.concat(
            [frame.select(known).collect(), self._correlation.compute_columns(table, missing).select(missing)],
            how="horizontal",
        )


def graph_alignment(request: Request) -> pl.DataFrame:
    """Layers of replayed CUDA graphs: how many activities of each graph have one, and with which confidence.

    Replays with the same graph and the same kernels form one row.
    """
    columns = (*CALL_COLUMNS, *_LAYER_COLUMNS, "end_ns")
    rows = list_activities(request.frames, _ColumnReader(request.frames).read, columns).filter("is_replayed")
    is_matched, duration = pl.col("capture_path").is_not_null(), pl.col("end_ns") - pl.col("start_ns")
    replays = rows.group_by(_REPLAY, maintain_order=True).agg(
        pl.col("graph").first(),
        kernels=pl.len().cast(pl.Int64),
        names=pl.col("name").hash().sum(),
        matched=is_matched.sum().cast(pl.Int64),
        time_ns=duration.sum(),
        matched_ns=duration.filter(is_matched).sum(),
        compared=pl.col("capture_confidence").count().cast(pl.Int64),
        confidence=pl.col("capture_confidence").sum(),
        layers=pl.col("capture_path").n_unique() - pl.col("capture_path").is_null().any(),
    )
    sums = ["matched", "time_ns", "matched_ns", "compared", "confidence"]
    graphs = replays.group_by(_GRAPH, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("replays"), pl.col(sums).sum(), pl.col("layers").max().cast(pl.Int64)
    )
    share = quotient_expr(float(PERCENT) * pl.col("matched_ns"), pl.col("time_ns").cast(pl.Float64))
    return graphs.sort("time_ns", descending=True, maintain_order=True).with_columns(
        abstained=pl.col("kernels") * pl.col("replays") - pl.col("matched"),
        matched_share=pl.when(pl.col("time_ns") != 0).then(share),
        confidence=pl.when(pl.col("compared") > 0).then(pl.col("confidence") / pl.col("compared")),
    )
