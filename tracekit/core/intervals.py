"""Algebra of half-open intervals ``[start_ns, end_ns)`` on polars frames: frames in, frames out, no trace knowledge.

An interval lies on one *track*, named by the columns ``by``. A track is *nested* if of any two of its intervals one
contains the other or they do not meet; push/pop ranges of one thread and domain are nested by nature. Intervals are in
*order of nesting* by start, the longer one first if starts are equal, and by row if both bounds are. An interval
without end never ends; one that ends where it starts, or before, contains no instant.

The *innermost* interval at an instant is the last one, in order of nesting, of those that enclose it. The *parent* of
an interval is the last one before it of those that contain it as a whole. On nested tracks the ancestors of the
innermost interval are all that enclose the instant; where intervals *cross*, some that enclose it may not be among
them, and no interval loses an ancestor for what others do.

The functions are eager: every one of them needs its whole columns, sorted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import polars as pl

from tracekit.core.reach import Reach
from tracekit.threads import map_in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Rows = TypeVar("Rows", pl.DataFrame, pl.Series)

_LATEST = (1 << 63) - 1
_LIMIT = 1 << 62
_STEPS = 8
_MANY = 1 << 18


@dataclass(frozen=True, slots=True)
class Axis:
    """All tracks laid end to end, so that (track, time) is one sortable number.

    Where 62 bits do not hold that, times are replaced by their ranks.

    Attributes:
        by: Columns that name the track; where one is null there is no track.
        tracks: One row a track: ``by`` and its number ``track``.
        first: Earliest time of any interval.
        never: A time after all of them, at which intervals without end are closed.
        width: Numbers set aside for a track.
        times: All times, sorted, if ranks are used.
    """

    by: list[str]
    tracks: pl.DataFrame
    first: int
    never: int
    width: int
    times: pl.Series | None = None

    @classmethod
    def of(cls, ranges: pl.DataFrame, by: Sequence[str]) -> Axis:
        """Lay out the tracks of some intervals: ``by``, ``start_ns``, ``end_ns``."""
        keys = list(by)
        tracks = ranges.select(keys).unique(maintain_order=True).drop_nulls().with_columns(track=pl.int_range(pl.len()))
        starts, ends = ranges["start_ns"], ranges["end_ns"].drop_nulls()
        bounds = [b for b in (starts.min(), starts.max(), ends.max()) if isinstance(b, int)] or [0]
        first, never = min(bounds), min(max(bounds) + 1, _LATEST)
        width = never - first + 1
        if width * (tracks.height + 1) < _LIMIT:
            return cls(keys, tracks, first, never, width)
        times = pl.concat([starts, ends, pl.Series([never], dtype=pl.Int64)]).unique().sort()
        return cls(keys, tracks, first, never, len(times) + 1, times)

    def spans(self, ranges: pl.DataFrame) -> pl.DataFrame:
        """Place intervals: n rows in, at most n rows out, without empty ones and those on no track.

        Returns:
            ``row`` (in ``ranges``), ``track``, ``start``, ``end`` (on the axis).
        """
        closed = ranges.select(
            *self.by, "start_ns", pl.col("end_ns").fill_null(self.never), row=pl.int_range(pl.len())
        ).filter(pl.col("start_ns") < pl.col("end_ns"))
        placed = closed.join(self.tracks, on=self.by)
        start, end = (self._number(placed["track"], placed[c]) for c in ("start_ns", "end_ns"))
        return placed.select("row", "track", start=start, end=end)

    def instants(self, points: pl.DataFrame, at: str) -> pl.Series:
        """Place instants: n rows in, n numbers out, null off every track and before all intervals."""
        track = points.select(self.by).join(self.tracks, on=self.by, how="left", maintain_order="left")["track"]
        late = points[at].clip(upper_bound=self.never - 1)
        time = _where(late >= self.first, late)
        return self._number(track, time)

    def _number(self, track: pl.Series, time: pl.Series) -> pl.Series:
        moment = time - self.first if self.times is None else self.times.search_sorted(time, "right").cast(pl.Int64)
        return track * self.width + (moment if self.times is None else _where(time.is_not_null(), moment))


@dataclass(frozen=True, slots=True)
class Nest:
    """Intervals sorted outer before inner, with what answers "who is innermost at t" by binary search.

    Attributes:
        ranges: The intervals: the columns ``by``, ``start_ns``, ``end_ns``, and any others.
        axis: Where the tracks lie.
        frame: One row an interval that contains an instant: ``row`` (in ``ranges``), ``track``, ``start``, ``end`` (on
            the axis), ``depth`` (how many of its track are open when it starts), ``parent`` (row of this frame).
        ends: The ends, sorted.
        ladder: Depth and row of the intervals as one number, sorted.
        crossing: Tracks that are not nested.
        reach: The ends in the order of ``frame``, to be asked where tracks are not nested.
    """

    ranges: pl.DataFrame
    axis: Axis
    frame: pl.DataFrame
    ends: pl.Series
    ladder: pl.Series
    crossing: pl.DataFrame
    reach: Reach

    @classmethod
    def of(cls, ranges: pl.DataFrame, by: Sequence[str]) -> Nest:
        """Nest intervals: the columns ``by``, ``start_ns``, ``end_ns``."""
        axis = Axis.of(ranges, by)
        spans = axis.spans(ranges).sort("start", "end", "row", descending=[False, True, False])
        ends = spans["end"].sort()
        row = pl.int_range(spans.height, eager=True)
        depth = row - search(ends, spans["start"], "right")
        ladder = (depth * spans.height + row).sort()
        frame = spans.with_columns(depth=depth, parent=_climb(ladder, depth - 1, row))
        crossing = _crossing(frame, axis)
        return cls(
            ranges, axis, frame, ends, ladder, crossing, Reach.of(frame["end"] if crossing.height else ends.clear())
        )

    def innermost(self, points: pl.DataFrame, at: str) -> pl.Series:
        """Find the innermost interval that encloses each point.

        Args:
            points: The columns ``by`` and the time ``at`` (ns).
            at: Name of the time column of ``points``.

        Returns:
            n points in, n rows of ``ranges`` out, null where nothing encloses the point.
        """
        if not self.frame.height:
            return pl.repeat(None, points.height, dtype=pl.Int64, eager=True)
        found = _in_slices(lambda some: self._found(self.axis.instants(some, at)), points)
        if not self.crossing.height:
            return found
        asked = points.select(*self.axis.by, at).with_row_index("point").join(self.crossing, on=self.axis.by)
        asked = asked.with_columns(now=self.axis.instants(asked, at)).drop_nulls("now")
        started = search(self.frame["start"], asked["now"], "right")
        return found.scatter(asked["point"], self.frame["row"].gather(self.reach.last(started, asked["now"] + 1)))

    def enclosing(self, points: pl.DataFrame, at: str) -> pl.Series:
        """Count the intervals that enclose each point: n points in, n numbers out.

        Args:
            points: The columns ``by`` and the time ``at`` (ns).
            at: Name of the time column of ``points``.
        """
        now = self.axis.instants(points, at)
        started, ended = search(self.frame["start"], now, "right"), search(self.ends, now, "right")
        return _where(now.is_not_null(), started - ended).fill_null(0)

    def outwards(self, points: pl.DataFrame, at: str, rows: pl.Series) -> pl.Series:
        """Find the next interval outwards that encloses each point.

        Args:
            points: The columns ``by`` and the time ``at`` (ns).
            at: Name of the time column of ``points``.
            rows: An interval (row of ``ranges``) that encloses each point.

        Returns:
            n points in, n rows of ``ranges`` out, null where no further one encloses the point.
        """
        place = pl.repeat(None, self.ranges.height, dtype=pl.Int64, eager=True)
        place = place.scatter(self.frame["row"], pl.int_range(self.frame.height, eager=True))
        reach = self.reach if self.crossing.height else Reach.of(self.frame["end"])
        return self.frame["row"].gather(reach.last(place.gather(rows), self.axis.instants(points, at) + 1))

    def _found(self, now: pl.Series) -> pl.Series:
        """Find the innermost interval at places of the axis, as on nested tracks: n places in, n rows of ranges out."""
        started = search(self.frame["start"], now, "right")
        return self.frame["row"].gather(self._enclosing(now, _where(started > 0, started - 1)))

    def _enclosing(self, now: pl.Series, row: pl.Series) -> pl.Series:
        """Climb from the interval that started last to the one that is still open; both are rows of ``frame``.

        Most are there at once or a few steps up; those that are not are found by their depth.
        """
        ends, parents = self.frame["end"], self.frame["parent"]
        left = pl.DataFrame({"at": now, "row": row}).with_row_index("point").filter(ends.gather(row) <= now)
        row = row.clone()
        for _ in range(_STEPS):
            left = left.with_columns(row=parents.gather(left["row"]))
            row = row.scatter(left["point"], left["row"])
            left = left.filter((ends.gather(left["row"]) <= left["at"]).fill_null(False))  # noqa: FBT003
        started = search(self.frame["start"], left["at"], "right")
        depth = started - search(self.ends, left["at"], "right") - 1
        return row.scatter(left["point"], _climb(self.ladder, depth, started))

    def parents(self) -> pl.Series:
        """Find the interval one level up from each.

        Returns:
            One row of ``ranges`` an interval, null for an outermost one. The parent of an interval that contains no
            instant is the innermost one at its start.
        """
        up = pl.repeat(None, self.ranges.height, dtype=pl.Int64, eager=True)
        row = self.frame["row"]
        up = up.scatter(row, row.gather(self.frame["parent"]))
        if self.crossing.height:
            tracks = self.crossing.join(self.axis.tracks, on=self.axis.by)["track"]
            places = self.frame["track"].is_in(tracks.implode()).arg_true().cast(pl.Int64)
            outer = self.reach.last(places, self.frame["end"].gather(places))
            up = up.scatter(row.gather(places), row.gather(outer))
        empty = self.ranges.with_columns(row=pl.int_range(pl.len())).filter(pl.col("end_ns") <= pl.col("start_ns"))
        return up.scatter(empty["row"], self.innermost(empty, "start_ns")) if empty.height else up


def search(ordered: pl.Series, wanted: pl.Series, side: Literal["left", "right"]) -> pl.Series:
    """Find where values belong in an ordered column: n values in, n rows out; null comes first."""
    return _in_slices(lambda some: ordered.search_sorted(some, side).cast(pl.Int64), wanted)


def _in_slices(work: Callable[[Rows], pl.Series], rows: Rows) -> pl.Series:
    """Work on slices of rows in several threads, if there are many: n rows in, n values out."""
    if len(rows) <= _MANY:
        return work(rows)
    return pl.concat(map_in_order(work, [rows.slice(at, _MANY) for at in range(0, len(rows), _MANY)]))


def depths(parents: pl.Series) -> pl.Series:
    """Count the levels of a forest, given the row of each parent: 1 for a root; n rows in, n numbers out.

    By doubling: each round looks twice as far up.
    """
    up, depth = parents, parents.is_not_null().cast(pl.Int32)
    while up.null_count() < len(up):
        depth = depth + depth.gather(up).fill_null(0)
        up = up.gather(up)
    return depth + 1


def merge(intervals: pl.DataFrame, *, by: Sequence[str]) -> pl.DataFrame:
    """Join intervals of a track that meet or touch: n rows in, one row a gapless stretch out, sorted.

    Args:
        intervals: The columns ``by``, ``start_ns``, ``end_ns``; empty ones are left out.
        by: Columns that name the track.
    """
    keys = list(by)
    solid = intervals.filter(pl.col("start_ns") < pl.col("end_ns")).sort(*keys, "start_ns")
    reach = pl.col("end_ns").cum_max().shift(1)
    opens = (pl.col("start_ns") > (reach.over(keys) if keys else reach)).fill_null(True)  # noqa: FBT003
    stretch = solid.with_columns(_stretch=opens.cum_sum())
    return (
        stretch.group_by(*keys, "_stretch", maintain_order=True)
        .agg(pl.col("start_ns").first(), pl.col("end_ns").max())
        .select(*keys, "start_ns", "end_ns")
    )


def union_length(intervals: pl.DataFrame, *, by: Sequence[str]) -> pl.DataFrame:
    """Measure for how long at least one interval is open: n rows in, one row a track out (``length_ns``)."""
    length = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("length_ns")
    merged = merge(intervals, by=by)
    return merged.group_by(list(by), maintain_order=True).agg(length) if by else merged.select(length)


def gaps(intervals: pl.DataFrame, *, by: Sequence[str]) -> pl.DataFrame:
    """Find the stretches of a track between its intervals: n rows in, one row a gap out, sorted."""
    keys = list(by)
    merged = merge(intervals, by=by)
    following = pl.col("start_ns").shift(-1)
    return merged.select(
        *keys, start_ns=pl.col("end_ns"), end_ns=following.over(keys) if keys else following
    ).drop_nulls("end_ns")


def overlap(left: pl.DataFrame, right: pl.DataFrame, *, by: Sequence[str]) -> pl.DataFrame:
    """Find when an interval of both frames is open: the intersection of two unions, sorted.

    Args:
        left: The columns ``by``, ``start_ns``, ``end_ns``.
        right: The same.
        by: Columns that name the track.

    Returns:
        Stretches: ``by``, ``start_ns``, ``end_ns``.
    """
    keys = list(by)
    sides = pl.concat([merge(f, by=by) for f in (left, right)])
    edges = pl.concat(
        [
            sides.select(*keys, t="start_ns", step=pl.lit(1)),
            sides.select(*keys, t="end_ns", step=pl.lit(-1)),
        ]
    ).sort(*keys, "t", "step")
    open_now = pl.col("step").cum_sum()
    following = pl.col("t").shift(-1)
    return (
        edges.with_columns(
            _open=open_now.over(keys) if keys else open_now, _next=following.over(keys) if keys else following
        )
        .filter((pl.col("_open") == 2) & (pl.col("t") < pl.col("_next")))  # noqa: PLR2004 - both sides
        .select(*keys, start_ns="t", end_ns="_next")
    )


def _climb(ladder: pl.Series, depth: pl.Series, before: pl.Series) -> pl.Series:
    """Find the last row before a row that has a depth; null where the depth is null or negative, or has no such row."""
    rung = search(ladder, depth * len(ladder) + before, "left") - 1
    return ladder.gather(_where((depth >= 0) & (rung >= 0), rung)) % max(len(ladder), 1)


def _crossing(frame: pl.DataFrame, axis: Axis) -> pl.DataFrame:
    """Tracks on which some interval is not inside the one found one level up."""
    outer = frame.select(pl.col("track", "end", "depth").gather(pl.col("parent")))
    inside = (
        (outer["track"] == frame["track"]) & (outer["end"] >= frame["end"]) & (outer["depth"] == frame["depth"] - 1)
    )
    broken = (frame["depth"] > 0) & ~inside.fill_null(False)  # noqa: FBT003
    return axis.tracks.join(frame.filter(broken).select("track").unique(), on="track", how="semi")


def _where(condition: pl.Series, values: pl.Series) -> pl.Series:
    """Keep values where a condition holds; null elsewhere, also where the condition is null."""
    return values.zip_with(condition.fill_null(False), pl.repeat(None, len(values), dtype=values.dtype, eager=True))  # noqa: FBT003
