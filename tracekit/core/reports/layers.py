"""Compute the report on the GPU time of replayed CUDA graphs by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import schemas
from tracekit.core.correlate import Correlation
from tracekit.core.graph_replays import GRAPH_NODE, graph_expr
from tracekit.core.layers.alignment import MIN_CONFIDENCE
from tracekit.core.layers.nodes import LAUNCH_PATTERN
from tracekit.core.relations import CALL, OPERATIONS
from tracekit.core.reports.numbers import percent_of_sum_expr, quotient_expr
from tracekit.core.series import map_categories_expr, match_categories_expr
from tracekit.core.trees import remove_arguments_expr

if TYPE_CHECKING:
    from tracekit.core.reports.report import Frames, Request

_OUTSIDE = "outside of all ranges"
_UNKNOWN = "not known: take the layers from a second capture, with --layers FILE"
_NOT_ALIGNED = "not known: the second capture does not show it"
_WHOLE = "recorded as a whole: record nodes with nsys profile --cuda-graph-trace=node"
_ADDED = (*schemas.LAYER_COLUMNS, "api_call_id")
_GROUP = ("process_id", "graph", "path", "note")


def layer_gpu_sum(request: Request) -> pl.DataFrame:
    """GPU time of replayed CUDA graphs by layer: the ranges in which the graph was captured.

    The duration of each activity counts once, in the row of its graph and of all of its ranges.
    """
    unknown = _NOT_ALIGNED if request.has_second_capture else _UNKNOWN
    rows = pl.concat([_read_replayed_activities(request.frames, table, unknown) for table in OPERATIONS])
    wholes = request.frames("graph_launches").select(
        "process_id",
        *CALL[1:],
        graph="graph_id",
        path=pl.lit(None, pl.String),
        confidence=pl.lit(None, pl.Float64),
        note=pl.lit(_WHOLE),
        time_ns=pl.col("end_ns") - pl.col("start_ns"),
    )
    grouped = pl.concat([rows, wholes.collect()]).group_by(_GROUP, maintain_order=True)
    summed = grouped.agg(
        pl.struct(CALL).n_unique().cast(pl.Int64).alias("replays"),
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("time_ns").sum().alias("total"),
        pl.col("confidence").mean(),
    )
    summed = summed.with_columns(
        percent_of_sum_expr(pl.col("total")).alias("share"),
        quotient_expr(pl.col("total"), pl.col("replays")).alias("mean"),
    )
    return summed.sort("total", descending=True, maintain_order=True)


def _read_replayed_activities(frames: Frames, table: str, unknown: str) -> pl.DataFrame:
    """Return the activities of a table that graphs ran. ``unknown`` is the note of those without known layers.

    The columns are ``CALL``, ``graph`` (null if it is not known), ``path``, ``confidence``, ``note`` and ``time_ns``.
    """
    activities = frames(table)
    times = ("start_ns", "end_ns")
    rows = activities.select(*CALL, *times, node=GRAPH_NODE, graph=graph_expr(activities)).collect()
    if _ADDED[0] in activities.collect_schema().names():
        rows = rows.hstack(activities.select(_ADDED).collect())
    else:
        rows = rows.hstack(Correlation(frames).compute_columns(table, _ADDED))
    is_launch = match_categories_expr(pl.col("name"), lambda names: names.str.contains(LAUNCH_PATTERN))
    launches = frames("api_calls").filter(is_launch).select("api_call_id").collect().to_series()
    path = map_categories_expr(pl.col("capture_path"), remove_arguments_expr).cast(pl.String)
    confidence = pl.col("capture_confidence")
    note = pl.when(path.is_not_null()).then(None).when(confidence >= MIN_CONFIDENCE).then(pl.lit(_OUTSIDE))
    is_launched = pl.col("api_call_id").is_in(launches.implode()).fill_null(value=False)
    return rows.filter(pl.col("node").is_not_null() | is_launched).select(
        *CALL,
        "graph",
        path=path,
        confidence=confidence,
        note=note.otherwise(pl.lit(unknown)),
        time_ns=pl.col("end_ns") - pl.col("start_ns"),
    )
