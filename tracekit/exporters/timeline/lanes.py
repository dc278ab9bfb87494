"""Assign the overlapping slices of a track to lanes, so that no viewer drops a slice.

Slices on the same lane never overlap. An *overlap group* is a maximal sequence of slices, ordered by start, in which
each slice after the first starts while an earlier slice is open. A slice that overlaps no other slice is on lane 0. An
overlap group in which at most L slices are open at once uses the lanes 0 to L-1. A track therefore has as few lanes as
possible.

Inside an overlap group, the i-th slice to start gets lane i if i < L. Otherwise, it gets the lane of the (i-L)-th slice
to end. That slice has ended, because at most L-1 other slices are open when the i-th slice starts. Pointer jumping
resolves these references to lanes in log n passes over whole columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.system import memory
from tracekit.system.sorting import create_series, iterate_row_blocks, map_blocks, sort_rows

if TYPE_CHECKING:
    import polars as pl

    from tracekit.system.sorting import Array

_INT32_ROWS = 1 << 31


def may_overlap(starts: Array, ends: Array) -> bool:
    """Return whether a slice of a track starts before the end of the slice in the previous row.

    Slices without duration are treated as if they took 1 ns.
    """

    def has_overlaps(block: slice) -> bool:
        before, after = slice(max(block.start - 1, 0), block.stop - 1), slice(max(block.start, 1), block.stop)
        return bool((np.maximum(ends[before], starts[before] + 1) > starts[after]).any())

    return any(has_overlaps(block) for block in iterate_row_blocks(len(starts)))


def are_nested_or_disjoint(starts: Array, ends: Array) -> bool:
    """Return whether a track needs only one lane, because any two of its slices are disjoint or nested.

    Of slices that end at the same time, the one that began last is assumed to end first. Slices without duration are
    treated as if they took 1 ns.

    Slices are disjoint or nested if, for each slice, equally many slices are open before its start and after its end.
    """
    rows = len(starts)
    shorter = map_blocks(lambda block: -np.maximum(ends[block], starts[block] + 1), rows, np.int64)
    _, (starts, shorter) = sort_rows(starts, shorter)
    depths = Depths.from_slices(starts, map_blocks(lambda block: -shorter[block], rows, np.int64))
    return not any(depths.compute_mismatch_mask(block).any() for block in iterate_row_blocks(rows))


class Depths(NamedTuple):
    """Numbers of slices that are open when the slices of a track start and end.

    Attributes:
        starts: Start of each slice in ns, ascending.
        ends: Ends of the slices in ns, ascending.
        opened: Number of slices that are open before each slice starts.
        closing: Row numbers of the slices in the order of their ends. Of slices that end at the same time, the one that
            began last ends first.
    """

    starts: Array
    ends: Array
    opened: Array
    closing: Array

    @classmethod
    def from_slices(cls, starts: Array, ends: Array) -> Depths:
        """Return the depths of the given slices. They must be ordered by start and then by descending end."""
        rows = len(starts)
        backwards = map_blocks(lambda block: ends[rows - block.stop : rows - block.start][::-1], rows, np.int64)
        order, (ordered,) = sort_rows(backwards)  # The sort keeps the order of equal ends.
        kind = np.int32 if rows < _INT32_ROWS else np.int64

        def count_open_slices(block: slice) -> Array:
            return _compute_row_numbers(block) - np.searchsorted(ordered, starts[block], side="right")

        def compute_closing_rows(block: slice) -> Array:
            return rows - 1 - (_compute_row_numbers(block) if order is None else order[block].astype(np.int64))

        return cls(
            starts, ordered, map_blocks(count_open_slices, rows, kind), map_blocks(compute_closing_rows, rows, kind)
        )

    def compute_mismatch_mask(self, block: slice) -> Array:
        """Return a mask of the slices for which unequal numbers of slices are open before the start and after the end.

        Args:
            block: A block of slices in the order of their ends.
        """
        closed_at = np.searchsorted(self.starts, self.ends[block], side="left") - _compute_row_numbers(block) - 1
        mismatch: Array = self.opened[self.closing[block]] != closed_at
        return mismatch


def _compute_row_numbers(block: slice) -> Array:
    """Return the row numbers of a block of rows."""
    return np.arange(block.start, block.stop)


def assign_lanes(start_ns: pl.Series, end_ns: pl.Series, *, nests: bool = False) -> pl.Series:
    """Return a lane number for each slice of a track, so that slices on the same lane do not overlap.

    Slices do not overlap if one ends when the other starts. Slices without duration are treated as if they took 1 ns.

    Args:
        start_ns: Start of each slice in ns, in any order.
        end_ns: End of each slice in ns.
        nests: Whether slices on the same lane may be nested. If so, only overlap groups with slices that overlap
            without being nested use several lanes.

    Returns:
        The lane number of each slice, counted from 0, as UInt32.
    """
    starts, ends, rows = start_ns.to_numpy(), end_ns.to_numpy(), len(start_ns)
    lanes = memory.allocate_zeros(rows, np.uint32)
    shorter = map_blocks(lambda block: -np.maximum(ends[block], starts[block] + 1), rows, np.int64)
    order, (starts, shorter) = sort_rows(starts, shorter)
    ends = map_blocks(lambda block: -shorter[block], rows, np.int64)
    group_numbers = _compute_overlap_group_numbers(starts, ends)
    shared = np.flatnonzero((np.bincount(group_numbers) > 1)[group_numbers])
    if nests and len(shared):
        depths = Depths.from_slices(starts[shared], ends[shared])
        crossing = np.zeros(group_numbers[-1] + 1, np.bool_)
        for block in iterate_row_blocks(len(shared)):
            crossing[group_numbers[shared[depths.closing[block][depths.compute_mismatch_mask(block)]]]] = True
        shared = shared[crossing[group_numbers[shared]]]
    if len(shared):
        lane = _assign_disjoint_lanes(Depths.from_slices(starts[shared], ends[shared]), group_numbers[shared])
        lanes[shared if order is None else order[shared]] = lane
    return create_series(lanes)


def _compute_overlap_group_numbers(starts: Array, ends: Array) -> Array:
    """Return the number of the overlap group of each slice. The slices must be ordered by start."""
    begins = np.ones(len(starts), np.bool_)
    begins[1:] = starts[1:] >= np.maximum.accumulate(ends)[:-1]
    return np.cumsum(begins, dtype=np.int32 if len(starts) < _INT32_ROWS else np.int64) - 1


def _assign_disjoint_lanes(depths: Depths, group_numbers: Array) -> Array:
    """Return a lane number for each slice. Slices on the same lane never overlap.

    Args:
        depths: The depths of the slices.
        group_numbers: The number of the overlap group of each slice, ascending.
    """
    kind = depths.opened.dtype
    first = np.flatnonzero(np.diff(group_numbers, prepend=-1))
    sizes = np.diff(first, append=len(group_numbers))
    lanes_needed = np.repeat((np.maximum.reduceat(depths.opened, first) + 1).astype(kind), sizes)
    row = np.arange(len(group_numbers), dtype=kind)
    nth = row - np.repeat(first.astype(kind), sizes)
    parents = np.where(nth < lanes_needed, row, depths.closing[row - lanes_needed])
    del row, lanes_needed
    lanes: Array = nth[_resolve_pointers(parents)]
    return lanes


def _resolve_pointers(parents: Array) -> Array:
    """Return the end of the chain of references from each row, given the row to which each row refers.

    This takes log n passes over all rows.
    """
    while not np.array_equal(further := parents[parents], parents):
        parents = further
    return parents
