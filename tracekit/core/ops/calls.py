"""Calls of CUDA, each with what it did on the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.correlate import CALL, first_rows

if TYPE_CHECKING:
    from tracekit.core.correlate import Frames

KINDS = pl.Enum(["kernel", "memset", "memcpy", "sync", "graph", "call"])
ON_GPU = ("kernel", "memset", "memcpy", "graph")
TABLES = {"kernel": "kernels", "memset": "memsets", "memcpy": "memcpys", "sync": "syncs", "graph": "graph_launches"}


def calls(frames: Frames) -> pl.DataFrame:
    """Pair every API call with each activity it caused.

    A call that only waited has kind ``sync``, one that did nothing on a GPU kind ``call``; one that launched a graph
    of kernels is there once a kernel.

    Returns:
        ``call`` (row of ``api_calls``), ``kind``, ``activity`` (row of the kind's table; null of a call), ``call_id``,
        ``start_ns``, ``end_ns``, ``process_id``, ``thread_id``, ``name`` (of a kernel its short name, of others that of
        the API function; Categorical), ``gpu_start_ns``, ``gpu_end_ns``, ``device_id`` (null where nothing ran). In
        order of the calls and, of one call, of kinds and rows.
    """
    columns = ["start_ns", "end_ns", *CALL, "thread_id", "name", pl.col("api_call_id").alias("call_id")]
    made = frames("api_calls").select(columns).collect().with_columns(call=pl.int_range(pl.len()))
    keys = made.select(CALL)
    caused = pl.concat([_activities(frames, kind, keys) for kind in TABLES])
    works = caused.filter(pl.col("kind") != "sync").select("call").unique()
    waits = caused.filter(pl.col("kind") == "sync").unique("call", keep="first", maintain_order=True)
    caused = pl.concat([caused.filter(pl.col("kind") != "sync"), waits.join(works, on="call", how="anti")])
    paired = made.join(caused, on="call", how="left", maintain_order="left_right")
    return paired.select(
        "call",
        pl.col("kind").fill_null("call"),
        *["activity", "call_id", "start_ns", "end_ns"],
        *["process_id", "thread_id"],
        pl.coalesce("kernel_name", "name", pl.lit("", pl.Categorical)).alias("name"),
        *["gpu_start_ns", "gpu_end_ns", "device_id"],
    )


def _activities(frames: Frames, kind: str, keys: pl.DataFrame) -> pl.DataFrame:
    """Activities of a kind that a call caused: ``call``, ``kind``, ``activity``, times, device, name of a kernel."""
    name = pl.col("short_name") if kind == "kernel" else pl.lit(None, pl.Categorical)
    ran = kind != "sync"
    found = (
        frames(TABLES[kind])
        .select(
            *CALL,
            pl.lit(kind, KINDS).alias("kind"),
            pl.int_range(pl.len()).alias("activity"),
            (pl.col("start_ns") if ran else pl.lit(None, pl.Int64)).alias("gpu_start_ns"),
            (pl.col("end_ns") if ran else pl.lit(None, pl.Int64)).alias("gpu_end_ns"),
            "device_id",
            name.alias("kernel_name"),
        )
        .collect()
    )
    return found.drop(CALL).with_columns(call=first_rows(keys, found.select(CALL))).drop_nulls("call")
