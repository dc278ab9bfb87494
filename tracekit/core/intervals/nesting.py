"""Find the innermost interval at a point in time, and the parent of each interval.

A track is *nested* if any two of its intervals are disjoint or one contains the other. Push/pop ranges of one thread
and domain are always nested. *Nesting order* sorts intervals by start, intervals with equal starts by descending end,
and intervals with equal bounds by row. An interval without an end never ends. An interval that ends where it starts, or
before, is empty and encloses no point in time.

The *innermost* interval at a point in time is the last one, in nesting order, of the intervals that enclose the point.
The *parent* of an interval is the last earlier one, in nesting order, that contains the whole interval. On a nested
track, the intervals that enclose a point are exactly the innermost interval and its ancestors. If intervals *cross*,
which means that they overlap and neither contains the other, further intervals may enclose the point. Crossing
intervals do not change the parents of other intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.core.intervals.axis import Axis, map_in_threads, replace_with_null_unless, search_sorted
from tracekit.core.series import create_nullable_series
from tracekit.native.nesting import compute_parents
from tracekit.system import memory
from tracekit.system.sorting import (
    create_series,
    iterate_row_blocks,
    map_blocks,
    sort_rows,
    take,
)
from tracekit.system.threads import unlocked_property

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    RowNumbers = NDArray[np.uint32]
_STEPS = 16


class MaximumTree(NamedTuple):
    """A column of integers, and the maxima of its blocks of 2, 4, 8, … consecutive values.

    Attributes:
        levels: One column per block size. The first level contains the integers, and each further level contains the
            maxima of pairs of values of the previous level, so it is half as long.
    """

    levels: list[Numbers]

    @classmethod
    def from_values(cls, values: Numbers) -> MaximumTree:
        """Return the tree of maxima of an array of integers."""
        levels = [values]
        while len(levels[-1]) > 1:
            below = levels[-1]
            pairs = below[: len(below) // 2 * 2].reshape(-1, 2).max(axis=1)
            levels.append(np.append(pairs, below[-1]) if len(below) % 2 else pairs)
        return cls(levels)

    def find_last_at_least(self, minimum: Numbers, *, before: Numbers) -> Numbers:
        """Find the last row before a given row whose value is at least a given minimum.

        Args:
            minimum: The minimum value, one per search.
            before: The row before which each search ends. It may equal the number of rows.

        Returns:
            One row number per search. It is -1 if all earlier values are less than the minimum.
        """
        end = before.copy()
        node, level = np.full(len(end), -1), np.full(len(end), -1)
        for height, maxima in enumerate(self.levels):
            left = np.flatnonzero((level < 0) & (end % 2 == 1))
            hit = left[maxima[end[left] - 1] >= minimum[left]]
            node[hit], level[hit] = end[hit] - 1, height
            end //= 2
        for height in range(len(self.levels) - 2, -1, -1):
            inside = np.flatnonzero(level > height)
            right = np.minimum(2 * node[inside] + 1, len(self.levels[height]) - 1)
            node[inside] = np.where(self.levels[height][right] >= minimum[inside], right, 2 * node[inside])
        return node


@dataclass(frozen=True)
class NestingIndex:
    """Intervals in nesting order, with which the innermost interval at a point in time is found.

    Attributes:
        intervals: The intervals: the columns ``by``, ``start_ns``, ``end_ns``, and any further columns.
        axis: The axis with the tracks of the intervals.
        row: Row number in ``intervals`` of each interval that is not empty, in nesting order.
        start: Start of each of these intervals, as a position on the axis.
        end: End of each of these intervals.
        parent: Index of the parent of each of these intervals in these arrays, or -1 for an outermost one.
        depth: Number of ancestors of each of these intervals, including the interval itself.
        has_crossings: Whether two intervals of any track cross, which means that they overlap and neither contains the
            other.
    """

    intervals: pl.DataFrame
    axis: Axis
    row: RowNumbers
    start: Numbers
    end: Numbers
    parent: Numbers
    depth: NDArray[np.int32]
    has_crossings: bool

    @classmethod
    def from_intervals(cls, intervals: pl.DataFrame, by: Sequence[str]) -> NestingIndex:
        """Return an index of intervals in nesting order.

        Args:
            intervals: The columns ``by``, ``start_ns``, ``end_ns``.
            by: Columns that identify the track of an interval, such as its thread or its GPU.
        """
        axis = Axis.from_intervals(intervals, by=by)
        row, start, end = _sort_nonempty_positions(intervals, axis)
        parent = memory.allocate_zeros(len(row), np.int64)
        depth = memory.allocate_zeros(len(row), np.int32)
        has_crossings = len(compute_parents(start, end, parent, depth)) > 0
        memory.release_pages()
        return cls(intervals, axis, row, start, end, parent, depth, has_crossings)

    def find_innermost(self, points: pl.DataFrame, time_column: str) -> pl.Series:
        """Return the innermost interval that encloses each point.

        Args:
            points: The columns ``by`` and ``time_column``.
            time_column: Name of the column with the times in ns.

        Returns:
            One row number of ``intervals`` per point. It is null if no interval encloses the point.
        """

        def find_rows(batch: pl.DataFrame) -> pl.Series:
            at = self.axis.compute_point_positions(batch, time_column).fill_null(-1).to_numpy()
            return self._get_rows(self._find_innermost_positions(at))

        return map_in_threads(find_rows, points)

    def count_enclosing(self, points: pl.DataFrame, time_column: str) -> pl.Series:
        """Return the number of intervals that enclose each point.

        Args:
            points: The columns ``by`` and ``time_column``.
            time_column: Name of the column with the times in ns.
        """
        at = self.axis.compute_point_positions(points, time_column)
        started = search_sorted(create_series(self.start), at, "right")
        ended = search_sorted(self._sorted_ends, at, "right")
        return replace_with_null_unless(at.is_not_null(), started - ended).fill_null(0)

    def find_next_enclosing(self, points: pl.DataFrame, time_column: str, inner_rows: pl.Series) -> pl.Series:
        """Return, for each point, the next enclosing interval outside of a given one.

        Args:
            points: The columns ``by`` and ``time_column``.
            time_column: Name of the column with the times in ns.
            inner_rows: For each point, the row number in ``intervals`` of an interval that encloses it.

        Returns:
            One row number of ``intervals`` per point. It is null if no interval outside the given one encloses the
            point.
        """
        index = np.zeros(self.intervals.height, np.int64)
        index[self.row] = np.arange(len(self.row))
        later = self.axis.compute_point_positions(points, time_column).to_numpy() + 1
        return self._get_rows(self._end_tree.find_last_at_least(later, before=index[inner_rows.to_numpy()]))

    def find_nth_enclosing(self, points: pl.DataFrame, time_column: str, number: int) -> pl.Series:
        """Return the interval with a given number among those that enclose each point, in nesting order.

        Args:
            points: The columns ``by`` and ``time_column``. At least ``number`` intervals must enclose each point.
            time_column: Name of the column with the times in ns.
            number: Number of the interval, 1 for the outermost one.

        Returns:
            One row number of ``intervals`` per point.
        """
        at = self.axis.compute_point_positions(points, time_column)
        track_starts = (self.axis.find_track_numbers(at) * self.axis.width).to_numpy()
        reversed_ends = MaximumTree.from_values(self.end[::-1])
        index = np.searchsorted(self.start, track_starts) - 1
        for _ in range(number):
            reversed_row = reversed_ends.find_last_at_least(at.to_numpy() + 1, before=len(self.row) - 1 - index)
            index = len(self.row) - 1 - reversed_row
        return self._get_rows(index)

    def find_parents(self) -> pl.Series:
        """Return the parent of each interval.

        Returns:
            One row number of ``intervals`` per interval, null for an outermost one. The parent of an empty interval is
            the innermost interval at its start.
        """
        parents = memory.allocate_zeros(self.intervals.height, np.int64)
        for block in iterate_row_blocks(len(parents)):
            parents[block] = -1
        for block in iterate_row_blocks(len(self.row)):
            parents[self.row[block]] = self._get_rows(self.parent[block]).fill_null(-1).to_numpy()
        empty, outer = self._empty_intervals
        parents[empty] = outer
        return create_nullable_series(parents)

    def find_depths(self) -> pl.Series:
        """Return the number of ancestors of each interval, including the interval itself (Int32)."""
        depths = memory.allocate_zeros(self.intervals.height, np.int32)
        for block in iterate_row_blocks(len(depths)):
            depths[block] = 1
        for block in iterate_row_blocks(len(self.row)):
            depths[self.row[block]] = self.depth[block]
        empty, outer = self._empty_intervals
        depths[empty] += np.where(outer < 0, 0, depths[outer])
        return create_series(depths)

    @unlocked_property
    def _empty_intervals(self) -> tuple[Numbers, Numbers]:
        """The row numbers of empty intervals, and of the innermost intervals at their starts, or -1."""
        empty = (self.intervals["end_ns"] <= self.intervals["start_ns"]).arg_true()
        starts = self.intervals[empty]
        return empty.to_numpy(), self.find_innermost(starts, "start_ns").fill_null(-1).to_numpy()

    @unlocked_property
    def _sorted_ends(self) -> pl.Series:
        return create_series(sort_rows(self.end).keys[0])

    @unlocked_property
    def _end_tree(self) -> MaximumTree:
        return MaximumTree.from_values(self.end)

    def _find_innermost_positions(self, at: Numbers) -> Numbers:
        """Return the index of the innermost interval at each position on the axis, or -1.

        It is the interval that started last, or one of its ancestors. The nearest ancestors are tried first, because
        one of them is usually the innermost interval.
        """
        index = np.searchsorted(self.start, at, side="right") - 1
        pending = np.arange(len(at))
        for _ in range(_STEPS):
            pending = pending[index[pending] >= 0]
            pending = pending[self.end[index[pending]] <= at[pending]]
            if not len(pending):
                return index
            index[pending] = self.parent[index[pending]]
        index[pending] = self._end_tree.find_last_at_least(at[pending] + 1, before=index[pending] + 1)
        return index

    def _get_rows(self, indices: Numbers) -> pl.Series:
        """Return the row number of each of the given intervals, or null for -1."""
        is_known = indices >= 0
        rows = np.full(len(indices), -1, np.int64)
        rows[is_known] = self.row[indices[is_known]]
        return create_nullable_series(rows)


def _sort_nonempty_positions(intervals: pl.DataFrame, axis: Axis) -> tuple[RowNumbers, Numbers, Numbers]:
    """Return the row number, start and end of each interval that is not empty, in nesting order."""
    row = memory.allocate_zeros(intervals.height, np.uint32)
    start, negated_end = (memory.allocate_zeros(intervals.height, np.int64) for _ in range(2))
    count = 0
    memory.drop_mapped_pages()
    for block in iterate_row_blocks(intervals.height):
        positions = axis.compute_nonempty_positions(intervals[block])
        here = slice(count, count := count + positions.height)
        np.add(positions["row"].to_numpy(), block.start, out=row[here], casting="unsafe")
        start[here] = positions["start"].to_numpy()
        np.negative(positions["end"].to_numpy(), out=negated_end[here])
    row = row[:count]
    order, (start, negated_end) = sort_rows(start[:count], negated_end[:count])
    if order is not None:
        row = take(row, order)
    return row, start, map_blocks(lambda block: -negated_end[block], count, np.int64)
