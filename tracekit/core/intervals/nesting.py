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

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.intervals.axis import Axis, map_in_threads, replace_with_null_unless, search_sorted
from tracekit.core.series import create_nullable_series
from tracekit.system import memory
from tracekit.system.sorting import (
    create_series,
    group_row_numbers,
    iterate_row_blocks,
    map_blocks,
    sort_in_place,
    sort_rows,
    take,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    from collections.abc import Sequence

    import numpy.typing as npt
_STEPS = 8
_MAX_GROUPED_DEPTH = (1 << 16) - 1


class MaximumTree(NamedTuple):
    """A column of integers, and the maxima of its blocks of 2, 4, 8, … consecutive values.

    Attributes:
        levels: One column per block size. The first level contains the integers, and each further level contains the
            maxima of pairs of values of the previous level, so it is half as long.
    """

    levels: list[Numbers]

    @classmethod
    def from_values(cls, values: pl.Series) -> MaximumTree:
        """Return the tree of maxima of a column of integers without nulls."""
        levels = [values.to_numpy()]
        while len(levels[-1]) > 1:
            below = levels[-1]
            pairs = below[: len(below) // 2 * 2].reshape(-1, 2).max(axis=1)
            levels.append(np.append(pairs, below[-1]) if len(below) % 2 else pairs)
        return cls(levels)

    def find_last_at_least(self, minimum: pl.Series, *, before: pl.Series) -> pl.Series:
        """Find the last row before a given row whose value is at least a given minimum.

        Args:
            minimum: The minimum value, one per search.
            before: The row before which each search ends. It may equal the number of rows, but must not be null.

        Returns:
            One row number per search. It is null if all earlier values are less than the minimum.
        """
        end, least = before.to_numpy().astype(np.int64), minimum.to_numpy()
        node, level = np.full(len(end), -1), np.full(len(end), -1)
        for height, maxima in enumerate(self.levels):
            left = np.flatnonzero((level < 0) & (end % 2 == 1))
            hit = left[maxima[end[left] - 1] >= least[left]]
            node[hit], level[hit] = end[hit] - 1, height
            end //= 2
        for height in range(len(self.levels) - 2, -1, -1):
            inside = np.flatnonzero(level > height)
            right = np.minimum(2 * node[inside] + 1, len(self.levels[height]) - 1)
            node[inside] = np.where(self.levels[height][right] >= least[inside], right, 2 * node[inside])
        return pl.Series(node).replace(-1, None)


class NestingIndex(NamedTuple):
    """Intervals in nesting order, with indexes for finding the innermost interval at a point in time.

    Attributes:
        intervals: The intervals: the columns ``by``, ``start_ns``, ``end_ns``, and any further columns.
        axis: The axis with the tracks of the intervals.
        frame: One row per interval that is not empty, in nesting order: ``row`` (row number in ``intervals``),
            ``track``, ``start``, ``end`` (positions on the axis), ``depth`` (number of other intervals of the track
            that are open when it starts), ``parent`` (row number in this frame).
        ends: The ends of the intervals, in ascending order.
        rows_by_depth: One integer per interval, ``depth * height + row``, in ascending order. ``height`` is the number
            of rows of ``frame``.
        crossing_tracks: Numbers of the tracks that are not nested.
        end_tree: The ends in the order of ``frame``. It is empty if all tracks are nested.
    """

    intervals: pl.DataFrame
    axis: Axis
    frame: pl.DataFrame
    ends: pl.Series
    rows_by_depth: pl.Series
    crossing_tracks: pl.Series
    end_tree: MaximumTree

    @classmethod
    def from_intervals(cls, intervals: pl.DataFrame, by: Sequence[str]) -> NestingIndex:
        """Return an index of intervals in nesting order.

        Args:
            intervals: The columns ``by``, ``start_ns``, ``end_ns``.
            by: Columns that identify the track of an interval, such as its thread or its GPU.
        """
        axis = Axis.from_intervals(intervals, by=by)
        frame, ends, rows_by_depth = _compute_nesting_order(intervals, axis)
        crossing = _find_non_nested_tracks(frame)
        end_tree = MaximumTree.from_values(frame["end"] if len(crossing) else ends.clear())
        return cls(intervals, axis, frame, ends, rows_by_depth, crossing, end_tree)

    @property
    def has_crossings(self) -> bool:
        """Whether two intervals of any track cross, which means that they overlap and neither contains the other."""
        return len(self.crossing_tracks) > 0

    def find_innermost(self, points: pl.DataFrame, time_column: str) -> pl.Series:
        """Return the innermost interval that encloses each point.

        Args:
            points: The columns ``by`` and ``time_column``.
            time_column: Name of the column with the times in ns.

        Returns:
            One row number of ``intervals`` per point. It is null if no interval encloses the point.
        """
        if not self.frame.height or not points.height:
            return pl.repeat(None, points.height, dtype=pl.Int64, eager=True)
        innermost = map_in_threads(
            lambda batch: self._find_innermost_assuming_nesting(self.axis.compute_point_positions(batch, time_column)),
            points,
        )
        if not self.has_crossings:
            return innermost
        at = self.axis.compute_point_positions(points, time_column).alias("at").to_frame().with_row_index("point")
        at = at.filter(self.axis.find_track_numbers(at["at"]).is_in(self.crossing_tracks.implode()))
        started = search_sorted(self.frame["start"], at["at"], "right")
        last_open = self.end_tree.find_last_at_least(at["at"] + 1, before=started)
        return innermost.scatter(at["point"], self.frame["row"].gather(last_open))

    def count_enclosing(self, points: pl.DataFrame, time_column: str) -> pl.Series:
        """Return the number of intervals that enclose each point.

        Args:
            points: The columns ``by`` and ``time_column``.
            time_column: Name of the column with the times in ns.
        """
        at = self.axis.compute_point_positions(points, time_column)
        started, ended = search_sorted(self.frame["start"], at, "right"), search_sorted(self.ends, at, "right")
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
        frame_row = pl.repeat(None, self.intervals.height, dtype=pl.Int64, eager=True)
        frame_row = frame_row.scatter(self.frame["row"], pl.int_range(self.frame.height, eager=True))
        end_tree = self.end_tree if self.has_crossings else MaximumTree.from_values(self.frame["end"])
        later = self.axis.compute_point_positions(points, time_column) + 1
        return self.frame["row"].gather(end_tree.find_last_at_least(later, before=frame_row.gather(inner_rows)))

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
        reversed_ends = MaximumTree.from_values(self.frame["end"].reverse())
        track_starts = self.axis.find_track_numbers(at) * self.axis.width
        reversed_row = self.frame.height - search_sorted(self.frame["start"], track_starts, "left")
        for _ in range(number):
            reversed_row = reversed_ends.find_last_at_least(at + 1, before=reversed_row)
        return self.frame["row"].gather(self.frame.height - 1 - reversed_row)

    def find_parents(self) -> pl.Series:
        """Return the parent of each interval.

        Returns:
            One row number of ``intervals`` per interval, null for an outermost one. The parent of an empty interval is
            the innermost interval at its start.
        """
        row, parent = self.frame["row"], self.frame["parent"]
        numbers = memory.allocate_zeros(self.intervals.height, np.int64)
        for block in iterate_row_blocks(self.intervals.height):
            numbers[block] = -1
        for block in iterate_row_blocks(self.frame.height):
            numbers[row[block].to_numpy()] = row.gather(parent[block]).fill_null(-1).to_numpy()
        parents = create_nullable_series(numbers)
        if self.has_crossings:
            crossing = self.frame["track"].is_in(self.crossing_tracks.implode()).arg_true().cast(pl.Int64)
            outer = self.end_tree.find_last_at_least(self.frame["end"].gather(crossing), before=crossing)
            parents = parents.scatter(row.gather(crossing), row.gather(outer))
        empty = self.intervals.with_columns(row=pl.int_range(pl.len())).filter(pl.col("end_ns") <= pl.col("start_ns"))
        return parents.scatter(empty["row"], self.find_innermost(empty, "start_ns")) if empty.height else parents

    def _find_innermost_assuming_nesting(self, positions: pl.Series) -> pl.Series:
        """Return the innermost interval at each position, assuming that all tracks are nested.

        For each position, the interval that started last and its nearest ancestors are tried first, because one of them
        usually encloses it. For the remaining positions, the innermost interval is found by its depth.
        """
        started = search_sorted(self.frame["start"], positions, "right")
        row = replace_with_null_unless(started > 0, started - 1)
        ends, parents = self.frame["end"], self.frame["parent"]
        left = pl.DataFrame({"at": positions, "row": row}).with_row_index("point").filter(ends.gather(row) <= positions)
        row = row.clone()
        for _ in range(_STEPS):
            if not left.height:
                return self.frame["row"].gather(row)
            left = left.with_columns(row=parents.gather(left["row"]))
            row = row.scatter(left["point"], left["row"])
            left = left.filter((ends.gather(left["row"]) <= left["at"]).fill_null(False))  # noqa: FBT003
        started = search_sorted(self.frame["start"], left["at"], "right")
        depth = started - search_sorted(self.ends, left["at"], "right") - 1
        row = row.scatter(left["point"], _find_last_at_depth(self.rows_by_depth, depth, started))
        return self.frame["row"].gather(row)


def _compute_nesting_order(intervals: pl.DataFrame, axis: Axis) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
    """Return the attributes ``frame``, ``ends`` and ``rows_by_depth`` of ``NestingIndex``."""
    row, start, end = _select_nonempty_positions(intervals, axis)
    count = len(row)
    order, (start, end) = sort_rows(start, end)
    if order is not None:
        row = take(row, order)
    end = map_blocks(lambda block: -end[block], count, np.int64)
    ends = map_blocks(lambda block: end[block], count, np.int64)
    sort_in_place(ends)
    memory.release_pages()
    depth = map_blocks(
        lambda block: _compute_row_numbers(block) - np.searchsorted(ends, start[block], side="right"), count, np.int64
    )
    rows_by_depth = _compute_rows_by_depth(depth)
    memory.release_pages()
    by_depth = create_series(rows_by_depth)
    columns = {
        "row": create_series(row),
        "track": create_series(map_blocks(lambda block: start[block] // axis.width, count, np.int64)),
        "start": create_series(start),
        "end": create_series(end),
        "depth": create_series(depth),
        "parent": create_nullable_series(_find_parents(rows_by_depth)),
    }
    return pl.DataFrame(columns), create_series(ends), by_depth


def _select_nonempty_positions(
    intervals: pl.DataFrame, axis: Axis
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the row numbers, start positions and negated end positions of the intervals that are not empty."""
    columns = tuple(memory.allocate_zeros(intervals.height, np.int64) for _ in range(3))
    count = 0
    memory.drop_mapped_pages()
    for block in iterate_row_blocks(intervals.height):
        positions = axis.compute_nonempty_positions(intervals[block])
        values = positions.select(pl.col("row").cast(pl.Int64) + block.start, "start", -pl.col("end"))
        for column, here in zip(columns, values.iter_columns(), strict=True):
            column[count : count + positions.height] = here.to_numpy()
        count += positions.height
    row, start, end = (column[:count] for column in columns)
    return row, start, end


def _compute_rows_by_depth(depth: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return ``depth * count + row`` of each interval in ascending order, given the depths in nesting order.

    Intervals are grouped by depth, which is faster than sorting but needs memory for each depth.
    """
    count = len(depth)
    deepest = max((int(depth[block].max()) for block in iterate_row_blocks(count)), default=0)
    if deepest > _MAX_GROUPED_DEPTH:
        rows_by_depth = map_blocks(lambda block: depth[block] * count + _compute_row_numbers(block), count, np.int64)
        sort_in_place(rows_by_depth)
        return rows_by_depth
    rows, _ = group_row_numbers(lambda block: depth[block].astype(np.uint16), count, deepest + 1)
    return map_blocks(lambda block: depth[rows[block]] * count + rows[block], count, np.int64)


def _find_parents(rows_by_depth: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return, for each interval, the last earlier interval whose depth is smaller by one, or -1 at depth 0.

    The intervals are searched in the order of ``rows_by_depth``, because ascending values are found fastest.
    """
    count = len(rows_by_depth)
    parents = memory.allocate_zeros(count, np.int64)
    for block in iterate_row_blocks(count):
        depth, rows = np.divmod(rows_by_depth[block], count)
        outer = rows_by_depth[np.searchsorted(rows_by_depth, rows_by_depth[block] - count) - 1] % count
        parents[rows] = np.where(depth > 0, outer, -1)
    return parents


def _compute_row_numbers(block: slice) -> npt.NDArray[np.int64]:
    """Return the numbers of the rows in a block."""
    return np.arange(block.start, block.stop)


def _find_last_at_depth(rows_by_depth: pl.Series, depth: pl.Series, before: pl.Series) -> pl.Series:
    """Return the last row before a given row that has a given depth.

    The result is null if the depth is null or negative. For any other depth, an earlier row with it must exist.
    """
    index = search_sorted(rows_by_depth, depth * len(rows_by_depth) + before, "left") - 1
    return rows_by_depth.gather(replace_with_null_unless((depth >= 0) & (index >= 0), index)) % max(
        len(rows_by_depth), 1
    )


def _find_non_nested_tracks(frame: pl.DataFrame) -> pl.Series:
    """Return the numbers of the tracks on which some intervals overlap and neither contains the other.

    On a nested track, each interval with a depth above 0 is contained in the last earlier interval whose depth is
    smaller by one.
    """

    def compute_not_contained_mask(rows: pl.DataFrame) -> pl.Series:
        outer = frame.select(pl.col("track", "end", "depth").gather(rows["parent"]))
        inside = (
            (outer["track"] == rows["track"]) & (outer["end"] >= rows["end"]) & (outer["depth"] == rows["depth"] - 1)
        )
        return (rows["depth"] > 0) & ~inside.fill_null(False)  # noqa: FBT003

    return frame["track"].filter(map_in_threads(compute_not_contained_mask, frame)).unique()
