"""Compute recipes that sum durations or sizes by name, for each rank and over all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.recipes.projection import project_ranges_and_nodes
from tracekit.core.recipes.recipe import RecipeTables, move_rank_to_end, recipe
from tracekit.core.recipes.sources import NCCL_DOMAIN, read_kernels, read_memory_operations, read_ranges
from tracekit.core.recipes.statistics import compute_statistics_from_counts, count_values, sum_counts
from tracekit.core.reports.nvtx import project_ranges
from tracekit.core.reports.sources import read_osrt_calls
from tracekit.core.reports.summary import DURATION

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request

_VALUES, _CPU_TIMES = "values", "cpu_times"
_ALL, _RANK, _BY_DEVICE = "all_stats", "rank_stats", "rank_stats_by_device"
NAME, _TEXT, DEVICE_ID = "Name", "Text", "Device ID"
_KEYS = (NAME, _TEXT, DEVICE_ID)
_CPU_SUM = "Sum of NVTX Ranges on CPU"
REDUCTIONS = {_VALUES: sum_counts}
_VALUE = DURATION.alias("value")
DEVICE = pl.col("device_id").cast(pl.UInt32).alias(DEVICE_ID)


def combine_sums(tables: RecipeTables) -> RecipeTables:
    """Compute the statistics over all ranks, and return them with the statistics of each rank.

    In all tables, the rank and the keys are the last columns.
    """
    values = tables.pop(_VALUES)
    key = values.columns[0]
    all_ranks = compute_statistics_from_counts(values, [key])
    if (cpu_times := tables.pop(_CPU_TIMES, None)) is not None:
        all_ranks = all_ranks.join(cpu_times, on=key, how="left", maintain_order="left")
    outputs = {_ALL: all_ranks, **tables}
    return {name: move_rank_to_end(rows, *(c for c in _KEYS if c in rows.columns)) for name, rows in outputs.items()}


def _compute_rank_statistics(rows: pl.LazyFrame, key: str) -> RecipeTables:
    """Return the statistics of one rank by key, and the counts of values.

    The statistics over all ranks are computed from the counts.
    """
    values = count_values(rows, [key])
    return {_RANK: compute_statistics_from_counts(values, [key]), _VALUES: values}


def compute_statistics_by_device(rows: pl.LazyFrame) -> RecipeTables:
    """Return the statistics of one rank by name, the statistics by name and device, and the counts of values.

    The statistics over all ranks are computed from the counts.
    """
    values = count_values(rows, [NAME, DEVICE_ID])
    by_device = compute_statistics_from_counts(values, [NAME, DEVICE_ID])
    if by_device[DEVICE_ID].n_unique() == 1:
        return {_RANK: by_device.drop(DEVICE_ID), _BY_DEVICE: by_device, _VALUES: values.drop(DEVICE_ID)}
    totals = sum_counts(values.drop(DEVICE_ID))
    return {_RANK: compute_statistics_from_counts(totals, [NAME]), _BY_DEVICE: by_device, _VALUES: totals}


@recipe(combine=combine_sums, reductions=REDUCTIONS)
def cuda_api_sum(request: Request) -> RecipeTables:
    """CUDA API calls by function."""
    return _compute_rank_statistics(request.frames("api_calls").select(_VALUE, Name="name"), NAME)


@recipe(combine=combine_sums, reductions=REDUCTIONS)
def osrt_sum(request: Request) -> RecipeTables:
    """Operating system runtime calls by function."""
    return _compute_rank_statistics(read_osrt_calls(request.frames).select(_VALUE, Name="name"), NAME)


@recipe(combine=combine_sums, reductions=REDUCTIONS)
def mpi_sum(request: Request) -> RecipeTables:
    """MPI calls by function."""
    return _compute_rank_statistics(request.frames("mpi_calls").select(_VALUE, Text="name"), _TEXT)


@recipe(combine=combine_sums, reductions=REDUCTIONS)
def cuda_gpu_kern_sum(request: Request) -> RecipeTables:
    """Kernels by name."""
    rows = read_kernels(request, "start_ns", "end_ns", "device_id")
    return compute_statistics_by_device(rows.select(_VALUE, DEVICE, Name="name"))


@recipe(combine=combine_sums, reductions=REDUCTIONS)
def cuda_gpu_mem_time_sum(request: Request) -> RecipeTables:
    """Time of memory copies and sets by kind."""
    rows = read_memory_operations(request.frames, "start_ns", "end_ns", "device_id")
    return compute_statistics_by_device(rows.select(_VALUE, DEVICE, Name="name"))


@recipe(combine=combine_sums, reductions=REDUCTIONS)
def cuda_gpu_mem_size_sum(request: Request) -> RecipeTables:
    """Size of memory copies and sets by kind."""
    rows = read_memory_operations(request.frames, "bytes", "device_id")
    size = pl.col("bytes").cast(pl.UInt64).alias("value")
    return compute_statistics_by_device(rows.select(size, DEVICE, Name="name"))


@recipe(combine=combine_sums, reductions=REDUCTIONS)
def nvtx_sum(request: Request) -> RecipeTables:
    """NVTX ranges by name, without their domain."""
    return _compute_range_statistics(read_ranges(request.frames))


@recipe(combine=combine_sums, reductions=REDUCTIONS)
def nccl_sum(request: Request) -> RecipeTables:
    """NVTX ranges of NCCL by name."""
    return _compute_range_statistics(read_ranges(request.frames, NCCL_DOMAIN))


def _compute_range_statistics(rows: pl.LazyFrame) -> RecipeTables:
    return _compute_rank_statistics(rows.select(_VALUE.cast(pl.Float64), Text="name"), _TEXT)


def _sum_cpu_times(times: pl.DataFrame) -> pl.DataFrame:
    """Sum the CPU times of NVTX ranges by name."""
    return times.group_by(_TEXT).agg(pl.col(_CPU_SUM).sum()).sort(_TEXT)


@recipe(combine=combine_sums, reductions={**REDUCTIONS, _CPU_TIMES: _sum_cpu_times})
def nvtx_gpu_proj_sum(request: Request) -> RecipeTables:
    """NVTX ranges that launched GPU activities, by name, with the extent of the activities."""
    rows = project_ranges_and_nodes(request.frames).rename({"name": _TEXT}).drop_nulls(_TEXT)
    tables = _compute_rank_statistics(
        rows.lazy().select(_TEXT, value=pl.col("gpu_end_ns") - pl.col("gpu_start_ns")), _TEXT
    )
    text, duration = pl.col(_TEXT).cast(pl.String), DURATION.cast(pl.Float64)
    cpu_times = _sum_cpu_times(rows.unique("row").select(text, duration.alias(_CPU_SUM)))
    tables[_RANK] = tables[_RANK].join(cpu_times, on=_TEXT, how="left", maintain_order="left")
    return {**tables, _CPU_TIMES: cpu_times}


@recipe(combine=combine_sums, reductions=REDUCTIONS)
def nccl_gpu_proj_sum(request: Request) -> RecipeTables:
    """NVTX ranges of NCCL that launched GPU activities, by name, with the extent of the activities."""
    rows = project_ranges(request.frames).filter(pl.col("domain") == NCCL_DOMAIN)
    return _compute_rank_statistics(rows.lazy().select(Text="name", value="gpu_ns"), _TEXT)
