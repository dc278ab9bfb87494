"""Compute recipes that show the pace of ranks: the n-th occurrence of a kernel or an NVTX range in each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.recipes.recipe import RANK, RecipeTables, move_rank_to_end, recipe
from tracekit.core.recipes.sources import read_kernels, read_ranges
from tracekit.core.recipes.statistics import (
    VALUE,
    compute_statistics_from_counts,
    count_values,
    quartile_exprs,
    sum_counts,
)
from tracekit.core.relations import THREAD
from tracekit.core.reports.nvtx import project_ranges

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

    from tracekit.core.reports.report import Request

_OCCURRENCES, _VALUES, _RANKS = "occurrences", "values", "ranks"
_STATS, _DELTA_STATS = "stats", "pace_delta_stats"
_NTH = "nth"
_PACES = ("start", "end", "duration", "duration_accum", "delta", "delta_accum")
_TEXT, _SHORT_NAME = "Text", "Shortname"
_REDUCTIONS = {_VALUES: sum_counts}


def _read_occurrences(
    request: Request, rows: pl.LazyFrame, name_title: str, time_dtype: PolarsDataType
) -> RecipeTables:
    """Return the occurrences of a kernel or NVTX range in one rank, in row order, and the count of each duration.

    Args:
        request: The input of the recipe. Its option ``name`` selects the kernel or range.
        rows: The columns ``name``, ``start_ns`` and ``end_ns``.
        name_title: Title of the column with the names.
        time_dtype: Data type of durations and ends. As in nsys, it is Float64 for NVTX ranges, which may be open.
    """
    selected = rows.filter(pl.col("name").cast(pl.String) == request.get_text("name")).with_columns(
        pl.col("name").cast(pl.String).alias(name_title), pl.col("end_ns").cast(time_dtype)
    )
    ordered = selected.collect()
    start, end, offset = pl.col("start_ns"), pl.col("end_ns"), request.clock.offset_ns
    duration, delta = end - start, start - end.shift(1, fill_value=0)
    paces = {
        "start": start + offset,
        "end": end + offset,
        "duration": duration,
        "duration_accum": duration.cum_sum(),
        "delta": delta,
        "delta_accum": delta.cum_sum(),
    }
    values = count_values(ordered.lazy().select(name_title, duration.alias(VALUE)), [name_title])
    occurrences = ordered.select(pl.int_range(pl.len()).alias(_NTH), **paces)
    return {_OCCURRENCES: occurrences, _VALUES: values, _RANKS: pl.DataFrame({RANK: [0]})}


def _combine_ranks(tables: RecipeTables) -> RecipeTables:
    """Return the tables of the recipe over all ranks: statistics, and one table per column in ``_PACES``.

    Each of the latter tables, such as ``pace_duration``, has one row per occurrence and one column per rank.
    """
    occurrences, values = tables[_OCCURRENCES], tables[_VALUES]
    ranks = tables[_RANKS][RANK].to_list()
    key = values.columns[0]
    stats = move_rank_to_end(compute_statistics_from_counts(values, [key]), key)
    return {
        _STATS: stats,
        **{f"pace_{p}": _pivot_by_rank(occurrences, p, ranks) for p in _PACES},
        _DELTA_STATS: _compute_time_delta_statistics(occurrences),
    }


def _pivot_by_rank(occurrences: pl.DataFrame, value_column: str, ranks: list[int]) -> pl.DataFrame:
    """Pivot one column into a table with one row per occurrence and one column per rank.

    A value is null if the rank does not have the occurrence.

    Args:
        occurrences: The occurrences of a kernel or NVTX range in all ranks.
        value_column: Name of the column with the values, such as ``duration``.
        ranks: The ranks, in the order of the columns.
    """
    wide = occurrences.sort(_NTH, RANK).pivot(RANK, index=_NTH, values=value_column)
    columns = [str(rank) for rank in ranks]
    missing = [pl.lit(None, occurrences.schema[value_column]).alias(c) for c in columns if c not in wide.columns]
    return wide.with_columns(missing).select(columns)


def _compute_time_delta_statistics(occurrences: pl.DataFrame) -> pl.DataFrame:
    """Return the statistics over all ranks of the time since the previous occurrence, with one row per occurrence."""
    x = pl.col("delta").cast(pl.Float64)
    grouped = (
        occurrences.sort(_NTH, RANK)
        .group_by(_NTH, maintain_order=True)
        .agg(
            x.count().cast(pl.Float64).alias("Count"),
            x.mean().alias("Mean"),
            x.std().alias("Std"),
            x.min().alias("Min"),
            *quartile_exprs(x),
            x.max().alias("Max"),
            x.sum().alias("Sum"),
        )
    )
    return grouped.drop(_NTH)


def _sort_by_start(rows: pl.LazyFrame) -> pl.LazyFrame:
    return rows.sort("start_ns", maintain_order=True)


@recipe(combine=_combine_ranks, reductions=_REDUCTIONS, aligned=True)
def cuda_gpu_kern_pace(request: Request) -> RecipeTables:
    """Start and end times of the executions of a kernel with a given name, in each rank."""
    kernels = _sort_by_start(read_kernels(request, "start_ns", "end_ns"))
    return _read_occurrences(request, kernels, _SHORT_NAME, pl.Int64)


@recipe(combine=_combine_ranks, reductions=_REDUCTIONS, aligned=True)
def nvtx_pace(request: Request) -> RecipeTables:
    """Start and end times of the NVTX ranges with a given name, in each rank."""
    return _read_occurrences(request, _sort_by_start(read_ranges(request.frames)), _TEXT, pl.Float64)


@recipe(combine=_combine_ranks, reductions=_REDUCTIONS, aligned=True)
def nvtx_gpu_proj_pace(request: Request) -> RecipeTables:
    """Start and end times of the GPU activities that NVTX ranges with a given name launched, in each rank.

    As in nsys, the occurrences are sorted by thread first, and by start within a thread.
    """
    start = pl.col("gpu_start_ns")
    projections = project_ranges(request.frames).lazy().sort(*THREAD, start, maintain_order=True)
    extents = projections.select("name", start_ns=start, end_ns=start + pl.col("gpu_ns"))
    return _read_occurrences(request, extents, _TEXT, pl.Int64)
