"""Nesting of intervals: the innermost interval at an instant, and the parent of each interval.

A track is *nested* if of any two of its intervals one contains the other or they are disjoint; push/pop ranges of one
thread and domain are nested by nature. Intervals are in *nesting order* by start, the longer one first if starts are
equal, and by row if both bounds are. An interval without an end never ends; one that ends where or before it starts
contains no instant.

The *innermost* interval at an instant is the last one, in nesting order, of those that enclose it. The *parent* of an
interval is the last one before it of those that contain all of it. On nested tracks, the innermost interval and its
ancestors are all intervals that enclose the instant. Where intervals *cross* (overlap partly), some that enclose the
instant may not be among them, and no interval loses an ancestor because others cross.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.intervals.axis import Axis, in_threads, search, where
from tracekit.core.intervals.maximum_tree import MaximumTree

if TYPE_CHECKING:
    from collections.abc import Sequence

_STEPS = 8


@dataclass(frozen=True, slots=True)
class Nest:
    """Intervals in nesting order, indexed for binary searches of the innermost one at an instant.

    Attributes:
        intervals: The intervals: the columns ``by``, ``start_ns``, ``end_ns``, and any others.
        axis: The axis of their tracks.
        frame: One row per interval that contains an instant, in nesting order: ``row`` (in ``intervals``), ``track``,
            ``start``, ``end`` (positions on the axis), ``depth`` (number of intervals of the track that are open when
            it starts), ``parent`` (row of this frame).
        ends: The ends, sorted.
        rows_by_depth: Depth and row of the intervals as one integer, ``depth * height + row``, sorted.
        crossing_tracks: Numbers of the tracks that are not nested.
        end_tree: The ends in the order of ``frame``; empty if all tracks are nested.
    """

    intervals: pl.DataFrame
    axis: Axis
    frame: pl.DataFrame
    ends: pl.Series
    rows_by_depth: pl.Series
    crossing_tracks: pl.Series
    end_tree: MaximumTree

    @classmethod
    def from_intervals(cls, intervals: pl.DataFrame, by: Sequence[str]) -> Nest:
        """Nest intervals.

        Args:
            intervals: The columns ``by``, ``start_ns``, ``end_ns``.
            by: Columns that identify the track.
        """
        axis = Axis.from_intervals(intervals, by=by)
        positions = axis.nonempty_positions(intervals).with_columns(pl.col("row").cast(pl.Int64))
        ordered = positions.sort("start", "end", "row", descending=[False, True, False])
        ends = ordered["end"].sort()
        row = pl.int_range(ordered.height, eager=True)
        depth = row - search(ends, ordered["start"], "right")
        rows_by_depth = (depth * ordered.height + row).sort()
        frame = ordered.with_columns(depth=depth, parent=_last_at_depth(rows_by_depth, depth - 1, row))
        crossing = _crossing_tracks(frame)
        end_tree = MaximumTree.from_values(frame["end"] if len(crossing) else ends.clear())
        return cls(intervals, axis, frame, ends, rows_by_depth, crossing, end_tree)

    @property
    def has_crossings(self) -> bool:
        """Whether any track is not nested."""
        return len(self.crossing_tracks) > 0

    def innermost(self, points: pl.DataFrame, time: str) -> pl.Series:
        """Return the innermost interval that encloses each point.

        Args:
            points: The columns ``by`` and ``time``.
            time: Name of a column of times (ns).

        Returns:
            n points in, n rows of ``intervals`` out, null where no interval encloses the point.
        """
        if not self.frame.height:
            return pl.repeat(None, points.height, dtype=pl.Int64, eager=True)
        innermost = in_threads(lambda batch: self._innermost_if_nested(self.axis.instants(batch, time)), points)
        if not self.has_crossings:
            return innermost
        at = self.axis.instants(points, time).alias("at").to_frame().with_row_index("point")
        at = at.filter(self.axis.track_numbers(at["at"]).is_in(self.crossing_tracks.implode()))
        started = search(self.frame["start"], at["at"], "right")
        last_open = self.end_tree.last_at_least(at["at"] + 1, before=started)
        return innermost.scatter(at["point"], self.frame["row"].gather(last_open))

    def enclosing_counts(self, points: pl.DataFrame, time: str) -> pl.Series:
        """Count the intervals that enclose each point: n points in, n integers out.

        Args:
            points: The columns ``by`` and ``time``.
            time: Name of a column of times (ns).
        """
        at = self.axis.instants(points, time)
        started, ended = search(self.frame["start"], at, "right"), search(self.ends, at, "right")
        return where(at.is_not_null(), started - ended).fill_null(0)

    def next_enclosing(self, points: pl.DataFrame, time: str, rows: pl.Series) -> pl.Series:
        """Return the next interval outwards that encloses each point.

        Args:
            points: The columns ``by`` and ``time``.
            time: Name of a column of times (ns).
            rows: An interval (row of ``intervals``) that encloses each point.

        Returns:
            n points in, n rows of ``intervals`` out, null where no further interval encloses the point.
        """
        frame_row = pl.repeat(None, self.intervals.height, dtype=pl.Int64, eager=True)
        frame_row = frame_row.scatter(self.frame["row"], pl.int_range(self.frame.height, eager=True))
        end_tree = self.end_tree if self.has_crossings else MaximumTree.from_values(self.frame["end"])
        later = self.axis.instants(points, time) + 1
        return self.frame["row"].gather(end_tree.last_at_least(later, before=frame_row.gather(rows)))

    def parents(self) -> pl.Series:
        """Return the parent of each interval.

        Returns:
            One row of ``intervals`` per interval, null for an outermost one. The parent of an interval that contains no
            instant is the innermost one at its start.
        """
        parents = pl.repeat(None, self.intervals.height, dtype=pl.Int64, eager=True)
        row = self.frame["row"]
        parents = parents.scatter(row, row.gather(self.frame["parent"]))
        if self.has_crossings:
            crossing = self.frame["track"].is_in(self.crossing_tracks.implode()).arg_true().cast(pl.Int64)
            outer = self.end_tree.last_at_least(self.frame["end"].gather(crossing), before=crossing)
            parents = parents.scatter(row.gather(crossing), row.gather(outer))
        empty = self.intervals.with_columns(row=pl.int_range(pl.len())).filter(pl.col("end_ns") <= pl.col("start_ns"))
        return parents.scatter(empty["row"], self.innermost(empty, "start_ns")) if empty.height else parents

    def _innermost_if_nested(self, at: pl.Series) -> pl.Series:
        """Return the innermost interval at positions, assuming nested tracks: n positions in, n rows of intervals out.

        The interval that started last is climbed from, as most points are inside it or a few levels up; what is left
        after some steps is found by depth.
        """
        started = search(self.frame["start"], at, "right")
        row = where(started > 0, started - 1)
        ends, parents = self.frame["end"], self.frame["parent"]
        left = pl.DataFrame({"at": at, "row": row}).with_row_index("point").filter(ends.gather(row) <= at)
        row = row.clone()
        for _ in range(_STEPS):
            left = left.with_columns(row=parents.gather(left["row"]))
            row = row.scatter(left["point"], left["row"])
            left = left.filter((ends.gather(left["row"]) <= left["at"]).fill_null(False))  # noqa: FBT003
        started = search(self.frame["start"], left["at"], "right")
        depth = started - search(self.ends, left["at"], "right") - 1
        row = row.scatter(left["point"], _last_at_depth(self.rows_by_depth, depth, started))
        return self.frame["row"].gather(row)


def _last_at_depth(rows_by_depth: pl.Series, depth: pl.Series, before: pl.Series) -> pl.Series:
    """Return the last row at a depth before a row; null where the depth is null or negative, or has no such row."""
    index = search(rows_by_depth, depth * len(rows_by_depth) + before, "left") - 1
    return rows_by_depth.gather(where((depth >= 0) & (index >= 0), index)) % max(len(rows_by_depth), 1)


def _crossing_tracks(frame: pl.DataFrame) -> pl.Series:
    """Return the numbers of the tracks on which an interval is not inside the last one before it one level up."""
    outer = frame.select(pl.col("track", "end", "depth").gather(pl.col("parent")))
    inside = (
        (outer["track"] == frame["track"]) & (outer["end"] >= frame["end"]) & (outer["depth"] == frame["depth"] - 1)
    )
    broken = (frame["depth"] > 0) & ~inside.fill_null(False)  # noqa: FBT003
    return frame["track"].filter(broken).unique()
