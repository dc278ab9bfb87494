"""Declare the recipe that breaks down the time of each GPU by kind of activity. nsys does not have this recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.intervals import compute_union_durations, intersect_unions
from tracekit.core.recipes.recipe import RANK, RecipeTables, recipe
from tracekit.core.recipes.sources import is_nccl_kernel_expr
from tracekit.core.relations import ACTIVITIES

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request

PARTS = ("compute_ns", "hidden_ns", "exposed_ns", "memory_ns", "idle_ns")
"""The parts into which the time of a GPU is divided."""
_TABLE = "gpu_time"
_DEVICE = "device_id"
_TIMES = ("start_ns", "end_ns")


def _combine_ranks(tables: RecipeTables) -> RecipeTables:
    rows = tables[_TABLE]
    return {_TABLE: rows.select(RANK, pl.exclude(RANK)).sort(RANK, _DEVICE)}


@recipe(combine=_combine_ranks)
def gpu_time_sum(request: Request) -> RecipeTables:
    """Time in which each GPU computes, communicates with NCCL, copies memory or is idle.

    The time of a GPU extends from the start of its first activity to the end of its last one.
    """
    activities = [
        request.frames(table).select(
            _DEVICE,
            *_TIMES,
            is_kernel=pl.lit(table not in ("memcpys", "memsets")),
            is_nccl=is_nccl_kernel_expr() if table == "kernels" else pl.lit(False),  # noqa: FBT003 - a value
        )
        for table in ACTIVITIES
    ]
    rows = pl.concat(activities).drop_nulls(_TIMES).collect()
    return {_TABLE: _compute_gpu_time_parts(rows)}


def _compute_gpu_time_parts(rows: pl.DataFrame) -> pl.DataFrame:
    """Return how long each GPU computes, communicates, copies memory and is idle, with one row per GPU.

    Args:
        rows: One row per activity: ``device_id``, ``start_ns``, ``end_ns``, ``is_kernel`` and ``is_nccl``.
    """
    kernels, nccl = rows.filter("is_kernel"), rows.filter("is_nccl")
    hidden = intersect_unions(nccl, kernels.filter(~pl.col("is_nccl")), by=[_DEVICE])
    unions = {"busy": rows, "kernel": kernels, "nccl": nccl, "hidden_ns": hidden}
    duration = pl.col("end_ns") - pl.col("start_ns")
    times = rows.group_by(_DEVICE).agg(
        kernel_count=pl.col("is_kernel").sum().cast(pl.Int64),
        kernel_time_ns=duration.filter("is_kernel").sum(),
        total_ns=pl.col("end_ns").max() - pl.col("start_ns").min(),
    )
    for name, intervals in unions.items():
        union = compute_union_durations(intervals.select(_DEVICE, *_TIMES), by=[_DEVICE]).rename({"duration_ns": name})
        times = times.join(union, on=_DEVICE, how="left")
    times = times.with_columns(pl.col(*unions).fill_null(0).cast(pl.Int64))
    busy, kernel, communication = (pl.col(name) for name in ("busy", "kernel", "nccl"))
    return times.select(
        pl.col(_DEVICE).cast(pl.Int64),
        "kernel_count",
        "kernel_time_ns",
        "total_ns",
        (kernel * 100.0 / pl.col("total_ns").replace(0, None)).round(2).alias("utilization_percent"),
        (kernel - communication).alias("compute_ns"),
        "hidden_ns",
        (communication - pl.col("hidden_ns")).alias("exposed_ns"),
        (busy - kernel).alias("memory_ns"),
        (pl.col("total_ns") - busy).alias("idle_ns"),
    ).sort(_DEVICE)
