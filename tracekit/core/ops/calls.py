"""Pair API calls with the GPU activities that they launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.correlate import CALL, find_first_rows

if TYPE_CHECKING:
    from tracekit.core.correlate import Frames

KINDS = pl.Enum(["kernel", "memset", "memcpy", "sync", "graph", "call"])
ON_GPU = ("kernel", "memset", "memcpy", "graph")
TABLES = {"kernel": "kernels", "memset": "memsets", "memcpy": "memcpys", "sync": "syncs", "graph": "graph_launches"}


def launching_calls(frames: Frames) -> pl.DataFrame:
    """Pair every API call with each activity that it launched.

    A synchronization is paired with a call only if the call launched no activity. The kind of the row is then ``sync``.
    A call without an activity or a synchronization has the kind ``call``. A call that launched a CUDA graph has one row
    per recorded activity of the graph.

    Returns:
        One row per pair, in the order of calls and, within a call, of kinds and row numbers: ``call`` (row number in
        ``api_calls``), ``kind``, ``activity`` (row number in the table of this kind), ``call_id``, ``start_ns``,
        ``end_ns``, ``process_id``, ``thread_id``, ``name`` (Categorical: the short name of a kernel, otherwise the name
        of the API function), ``gpu_start_ns``, ``gpu_end_ns``, ``device_id``. ``activity`` and ``device_id`` are null
        for the kind ``call``.
    """
    columns = ["start_ns", "end_ns", *CALL, "thread_id", "name", pl.col("api_call_id").alias("call_id")]
    api_calls = frames("api_calls").select(columns).collect().with_columns(call=pl.int_range(pl.len()))
    keys = api_calls.select(CALL)
    launched = pl.concat([_activities_of_calls(frames, kind, keys) for kind in TABLES])
    non_sync = launched.filter(pl.col("kind") != "sync")
    waits = launched.filter(pl.col("kind") == "sync").unique("call", keep="first", maintain_order=True)
    launched = pl.concat([non_sync, waits.join(non_sync.select("call").unique(), on="call", how="anti")])
    paired = api_calls.join(launched, on="call", how="left", maintain_order="left_right")
    return paired.select(
        "call",
        pl.col("kind").fill_null("call"),
        *["activity", "call_id", "start_ns", "end_ns"],
        *["process_id", "thread_id"],
        pl.coalesce("kernel_name", "name", pl.lit("", pl.Categorical)).alias("name"),
        *["gpu_start_ns", "gpu_end_ns", "device_id"],
    )


def _activities_of_calls(frames: Frames, kind: str, keys: pl.DataFrame) -> pl.DataFrame:
    """Return the activities of one kind that API calls launched, with their times, devices and kernel names."""
    name = pl.col("short_name") if kind == "kernel" else pl.lit(None, pl.Categorical)
    on_gpu = kind in ON_GPU
    activities = (
        frames(TABLES[kind])
        .select(
            *CALL,
            pl.lit(kind, KINDS).alias("kind"),
            pl.int_range(pl.len()).alias("activity"),
            (pl.col("start_ns") if on_gpu else pl.lit(None, pl.Int64)).alias("gpu_start_ns"),
            (pl.col("end_ns") if on_gpu else pl.lit(None, pl.Int64)).alias("gpu_end_ns"),
            "device_id",
            name.alias("kernel_name"),
        )
        .collect()
    )
    return activities.drop(CALL).with_columns(call=find_first_rows(keys, activities.select(CALL))).drop_nulls("call")
