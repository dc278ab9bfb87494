"""Compute heat maps of ranks: the percentage of each bin in which kernels or communication run.

The time from the start of the first capture to the end of the last one is divided into equal bins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.intervals import CoveredTime, intersect_unions
from tracekit.core.recipes.recipe import ANALYSIS, UNNAMED_INDEX, RecipeTables, move_rank_to_end, recipe
from tracekit.core.recipes.sources import is_nccl_kernel_expr
from tracekit.core.relations import fill_process_ids

if TYPE_CHECKING:
    from tracekit.core.reports.report import Clock, Request

_PID, _DEVICE = "PID", "Device ID"
_TIMES = ("start_ns", "end_ns")
_TITLES = {"process_id": _PID, "device_id": _DEVICE}

BusyIntervals = dict[str, pl.DataFrame]
"""The intervals in which each column of a heat map counts as busy, keyed by the title of the column."""
GroupSplitter = Callable[[pl.DataFrame], BusyIntervals]


def concatenate_heat_maps(tables: RecipeTables) -> RecipeTables:
    """Concatenate the heat maps of all ranks."""
    return {ANALYSIS: move_rank_to_end(tables[ANALYSIS], UNNAMED_INDEX)}


def _build_heat_map(request: Request, rows: pl.DataFrame, keys: list[str], split_group: GroupSplitter) -> RecipeTables:
    """Return the heat map of one rank: the percentages of busy time, with one row per group and bin.

    Args:
        request: The input of the recipe.
        rows: The columns ``keys``, ``start_ns``, ``end_ns`` and the columns that ``split_group`` needs.
        keys: Columns that identify a group: a process, or a process and a device.
        split_group: Function that takes the rows of a group, and returns the intervals in which each column of the map
            counts as busy.
    """
    bins = Bins.from_request(request)
    groups = rows.sort(keys, maintain_order=True).partition_by(keys, maintain_order=True)
    maps = [_build_heat_map_of_group(bins, group, keys, split_group) for group in groups]
    empty = _build_heat_map_of_group(bins, rows.clear(), keys, split_group).clear()
    return {ANALYSIS: pl.concat([empty, *maps]).with_row_index(UNNAMED_INDEX)}


def _build_heat_map_of_group(
    bins: Bins, group: pl.DataFrame, keys: list[str], split_group: GroupSplitter
) -> pl.DataFrame:
    """Return the heat map of one process or device: the percentages of busy time, with one row per bin."""
    shares = {title: bins.compute_busy_percentages(intervals) for title, intervals in split_group(group).items()}
    keyed = [pl.lit(group[key].first(), pl.Int64).alias(_TITLES[key]) for key in keys]
    return pl.DataFrame({"Duration": bins.starts, **shares}).with_columns(keyed)


class Bins:
    """Bins of equal duration on the common time axis of all ranks.

    Attributes:
        starts: Start of each bin on the common time axis, in ns.
    """

    def __init__(self, count: int, clock: Clock) -> None:
        self._size = max(-(-clock.end_ns // count), 1)
        self._offset_ns = clock.offset_ns
        self.starts = np.arange(count, dtype=np.int64) * self._size
        self._edges = np.arange(count + 1, dtype=np.int64) * self._size - clock.offset_ns
        recorded = np.diff(np.clip(self._edges, 0, clock.duration_ns))
        if clock.offset_ns == 0 and 0 < clock.duration_ns < self._size:
            recorded[0] = self._size  # as in nsys, although the bin is recorded in part
        self._recorded = recorded

    @classmethod
    def from_request(cls, request: Request) -> Bins:
        """Return the bins for one rank. The option ``bins`` of the recipe determines their number."""
        return cls(request.get_integer("bins"), request.clock)

    def compute_busy_percentages(self, intervals: pl.DataFrame) -> pl.Series:
        """Return the percentage of each bin in which at least one interval runs, with one decimal.

        Only the part of a bin between the start and the end of the capture counts. The percentage is null if the
        capture covers no part of the bin. As in nsys, there is one exception: if the first bin contains the whole
        capture, and the common time axis begins with this capture, the whole first bin counts.
        """
        covered = np.diff(CoveredTime(intervals).compute_covered_time_before(self._edges))
        shares = pl.Series(covered * 100.0 / np.maximum(self._recorded, 1)).round(1)
        return shares.set(pl.Series(self._recorded == 0), None)

    def bin_index_expr(self, times: pl.Expr) -> pl.Expr:
        """Return an expression for the index of the bin that contains each time.

        The times are in ns from the start of the capture.
        """
        return (times + self._offset_ns) // self._size


@recipe(combine=concatenate_heat_maps, aligned=True)
def cuda_gpu_time_util_map(request: Request) -> RecipeTables:
    """Percentage of each bin of time in which kernels run, by device."""
    keys = ["process_id", "device_id"]
    rows = fill_process_ids(request.frames("kernels").select(*keys, *_TIMES).collect())
    return _build_heat_map(request, rows, keys, lambda group: {"Kernel": group})


@recipe(combine=concatenate_heat_maps, aligned=True)
def nccl_gpu_time_util_map(request: Request) -> RecipeTables:
    """Percentage of each bin of time in which NCCL kernels and other kernels run, by device, in ranks with NCCL."""
    keys = ["process_id", "device_id"]
    rows = fill_process_ids(request.frames("kernels").select(*keys, *_TIMES, is_nccl=is_nccl_kernel_expr()).collect())
    rows = rows if rows["is_nccl"].any() else rows.clear()

    def split_by_nccl(group: pl.DataFrame) -> BusyIntervals:
        nccl, compute = group.filter("is_nccl"), group.filter(~pl.col("is_nccl"))
        return {"All": group, "NCCL": nccl, "Compute": compute, "Overlap": intersect_unions(nccl, compute, by=())}

    return _build_heat_map(request, rows, keys, split_by_nccl)


@recipe(combine=concatenate_heat_maps, aligned=True)
def mpi_gpu_time_util_map(request: Request) -> RecipeTables:
    """Percentage of each bin of time in which kernels and MPI calls run, by process, in ranks with MPI calls."""
    return _build_heat_map_of_calls(request, "mpi_calls", "MPI")


@recipe(combine=concatenate_heat_maps, aligned=True)
def ucx_gpu_time_util_map(request: Request) -> RecipeTables:
    """Percentage of each bin of time in which kernels and UCX calls run, by process, in ranks with UCX calls."""
    return _build_heat_map_of_calls(request, "ucx_calls", "UCX")


def _build_heat_map_of_calls(request: Request, table: str, title: str) -> RecipeTables:
    """Return the heat map of kernels and of the calls in a table. The heat map is empty if the table is empty."""
    columns = ("process_id", *_TIMES)
    sides = {
        t: request.frames(name).select(*columns, side=pl.lit(t)) for t, name in (("Kernel", "kernels"), (title, table))
    }
    rows = pl.concat(sides.values()).collect()
    rows = rows if (rows["side"] == title).any() else rows.clear()

    def split_kernels_and_calls(group: pl.DataFrame) -> BusyIntervals:
        kernels, calls = (group.filter(side=side) for side in sides)
        return {"Kernel": kernels, title: calls, "Overlap": intersect_unions(kernels, calls, by=())}

    return _build_heat_map(request, rows, ["process_id"], split_kernels_and_calls)
