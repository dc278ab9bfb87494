"""Compute the report on the queues of the Windows display driver model (WDDM).

The report was compared with nsys on a public report of Windows and on synthetic exports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.intervals import compute_union_durations
from tracekit.core.reports.names import format_hexadecimal_expr
from tracekit.core.reports.numbers import quotient_expr, round_to_tenths_expr
from tracekit.core.reports.summary import DURATION, statistics_exprs

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request

_OTHER_ENGINE = 0
_QUEUES = (
    # type of the queue, its name, and the columns that are equal in the start and the stop of a packet
    (0, "queue", "submit_sequence", "submit_sequence"),
    (1, "dma", "submission_id", "completion_id"),
)
_QUEUE = ("process_id", "queue_type", "gpu", "context_id", "engine_type_id")


def wddm_queue_sum(request: Request) -> pl.LazyFrame:
    """Packets in each queue of the Windows display driver, and the share of time in which the queue was not empty."""
    packets = pl.concat([_find_packet_intervals(request, *queue) for queue in _QUEUES]).collect()
    spans = packets.group_by("process_id").agg(span=pl.col("end_ns").max() - pl.col("start_ns").min())
    groups = (
        packets.with_columns(DURATION)
        .group_by(_QUEUE)
        .agg(*statistics_exprs("duration_ns"), pl.len().alias("count"), pl.col("engine_type", "queue_name").first())
    )
    busy = compute_union_durations(packets, by=_QUEUE)
    groups = groups.join(busy, on=_QUEUE, how="left", nulls_equal=True)
    groups = groups.join(spans, on="process_id", how="left", nulls_equal=True)
    span = pl.when(pl.col("span") > 0).then(pl.col("span").cast(pl.Float64))
    groups = groups.with_columns(share=quotient_expr(pl.col("duration_ns").fill_null(0) * 100.0, span))
    contexts = request.frames("wddm_contexts").select("context_id", "node", pl.col("name").alias("engine_name"))
    rows = groups.lazy().join(contexts, on="context_id", how="left", maintain_order="left_right")
    engine = pl.col("engine_type").cast(pl.String)
    is_other = pl.col("engine_type_id") == _OTHER_ENGINE
    rows = rows.with_columns(
        name=pl.when(is_other).then(pl.coalesce("engine_name", engine)).otherwise(engine),
        node=pl.col("node").fill_null(0),
        context_text=format_hexadecimal_expr(pl.col("context_id")),
    )
    order = [round_to_tenths_expr(pl.col("share")), *map(pl.col, _QUEUE)]
    return rows.sort(order, descending=[True] + [False] * len(_QUEUE), nulls_last=True, maintain_order=True)


def _find_packet_intervals(
    request: Request, queue_number: int, queue_name: str, start_key: str, stop_key: str
) -> pl.LazyFrame:
    """Return the intervals from the start of each packet to each later stop of the packet, for one type of queue.

    Starts without a process are omitted, as in nsys.

    Args:
        request: The input of the report.
        queue_number: Number of the queue type.
        queue_name: Name of the queue type, such as ``dma``.
        start_key: Column that identifies a packet in the event of its start.
        stop_key: Column that identifies a packet in the event of its stop.
    """
    packets = request.frames("wddm_packets")
    kind = pl.col("kind").cast(pl.String)
    columns = ("process_id", "gpu", "context_id", "engine_type_id", "engine_type", "start_ns")
    starts = packets.filter(kind == f"{queue_name}_start", pl.col("process_id").is_not_null())
    stops = packets.filter(kind == f"{queue_name}_stop").select("context_id", key=stop_key, end_ns="start_ns")
    pairs = starts.select(*columns, key=start_key).join(stops, on=["context_id", "key"], how="inner")
    queue = (pl.lit(queue_number).alias("queue_type"), pl.lit(queue_name).alias("queue_name"))
    return pairs.filter(pl.col("end_ns") >= pl.col("start_ns")).with_columns(queue)
