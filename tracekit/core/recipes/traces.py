"""Compute recipes that list events of each rank: durations and overlaps of kernels, and projected NVTX ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.intervals import CoveredTime
from tracekit.core.recipes.projection import nest_projections, project_ranges_and_nodes
from tracekit.core.recipes.recipe import ANALYSIS, UNNAMED_INDEX, RecipeTables, move_rank_to_end, recipe
from tracekit.core.recipes.sources import is_nccl_kernel_expr, read_kernels
from tracekit.core.relations import fill_process_ids
from tracekit.core.reports.summary import DURATION

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request

_TRACE, _RANK_TRACE, _GROUPED_TRACE, _SUMS = "trace", "rank_trace", "grouped_trace", "sums"
_DEVICE = ["process_id", "device_id"]
_SIDES = {"Communication Overlap": True, "Compute Overlap": False}


def _concat_ranks(tables: RecipeTables) -> RecipeTables:
    return {name: move_rank_to_end(rows, UNNAMED_INDEX) for name, rows in tables.items()}


@recipe(combine=_concat_ranks)
def cuda_gpu_kern_hist(request: Request) -> RecipeTables:
    """Durations of kernels, for histograms by name."""
    name = pl.col("name").cast(pl.String).alias("Name")
    rows = read_kernels(request, "start_ns", "end_ns").select(DURATION.alias("Duration"), name)
    return {ANALYSIS: rows.collect().with_row_index(UNNAMED_INDEX)}


@recipe(combine=_concat_ranks)
def nvtx_gpu_proj_trace(request: Request) -> RecipeTables:
    """NVTX ranges with the extent of the GPU activities that they launched, by thread and in order of start.

    The ranges of a rank are numbered from 0.
    """
    tree = nest_projections(project_ranges_and_nodes(request.frames))
    rows = tree.select(
        pl.col("name").cast(pl.String).alias("Text"),
        pl.col("gpu_start_ns").alias("Start"),
        pl.col("gpu_end_ns").alias("End"),
        pl.col("process_id").cast(pl.UInt64).alias("PID"),
        pl.col("thread_id").cast(pl.UInt64).alias("TID"),
        pl.col("level").alias("Stack Level"),
        pl.col("children").cast(pl.Int64).alias("Children Count"),
        pl.col("range_id").alias("Range ID"),
        pl.col("parent_id").alias("Parent ID"),
        pl.col("stack").alias("Range Stack"),
    )
    return {_TRACE: rows.with_row_index(UNNAMED_INDEX)}


def _sum_overlaps(rows: pl.DataFrame) -> pl.DataFrame:
    """Sum the counts, durations and overlaps of kernels with equal names."""
    return rows.group_by("Name").agg(pl.exclude("Name").sum()).sort("Name")


def _combine_overlaps(tables: RecipeTables) -> RecipeTables:
    grouped = tables[_SUMS].with_columns(_percentage_exprs()).select("Count", *_SIDES, "Name")
    return {_RANK_TRACE: move_rank_to_end(tables[_RANK_TRACE], "Name"), _GROUPED_TRACE: grouped}


def _percentage_exprs() -> list[pl.Expr]:
    """Return expressions that convert each overlap to a percentage of ``duration_ns``, with one decimal."""
    duration = pl.col("duration_ns")
    return [pl.when(duration > 0).then(pl.col(s) * 100.0 / duration).otherwise(0.0).round(1).alias(s) for s in _SIDES]


@recipe(combine=_combine_overlaps, reductions={_SUMS: _sum_overlaps})
def nccl_gpu_overlap_trace(request: Request) -> RecipeTables:
    """Percentage of the time of each kernel in which it overlaps with NCCL kernels and other kernels of its device."""
    kernels = read_kernels(request, "start_ns", "end_ns", *_DEVICE)
    rows = fill_process_ids(kernels.with_columns(DURATION, is_nccl=is_nccl_kernel_expr()).collect())
    groups = [_add_overlap_columns(g) for g in rows.partition_by(_DEVICE, maintain_order=True)] or [
        _add_overlap_columns(rows)
    ]
    order = [*_DEVICE, "is_nccl", "start_ns"]
    named = pl.concat(groups).with_columns(pl.col("name").cast(pl.String).alias("Name"))
    named = named.drop_nulls("Name").sort(order, descending=[c == "is_nccl" for c in order], maintain_order=True)
    trace = named.with_columns(_percentage_exprs()).select(
        pl.col("start_ns").alias("Start"),
        pl.col("end_ns").alias("End"),
        pl.col("process_id").cast(pl.UInt64).alias("PID"),
        pl.col("device_id").cast(pl.UInt32).alias("DeviceID"),
        *_SIDES,
        "Name",
    )
    one = pl.lit(1, pl.Int64).alias("Count")
    return {_RANK_TRACE: trace, _SUMS: _sum_overlaps(named.select("Name", one, "duration_ns", *_SIDES))}


def _add_overlap_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Add columns for the time in ns in which each kernel overlaps with NCCL kernels and with other kernels.

    The overlap of a kernel with kernels of its own kind is the time in which at least two of them run.

    Args:
        rows: The kernels of one device.
    """
    times = [rows[c].to_numpy() for c in ("start_ns", "end_ns")]
    overlaps = {}
    for title, nccl in _SIDES.items():
        side = rows.filter(pl.col("is_nccl") == nccl)
        alone, together = (pl.Series(CoveredTime(side, depth).compute_covered_time_between(*times)) for depth in (1, 2))
        overlaps[title] = pl.when(pl.col("is_nccl") == nccl).then(together).otherwise(alone)
    return rows.with_columns(**overlaps)
