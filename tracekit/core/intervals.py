"""Algebra of half-open intervals ``[start_ns, end_ns)`` on polars frames: frames in, frames out, no trace knowledge.

An interval lies on one *track*, named by the columns ``by``. A track is *nested* if of any two of its intervals one
contains the other or they do not meet; push/pop ranges of one thread and domain are nested by nature. Of intervals with
equal bounds the one with the larger id is the inner one. An interval without end never ends; one that ends where it
starts, or before, contains no instant.

The functions are eager: every one of them needs its whole columns, sorted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.containment import latest_enclosing

if TYPE_CHECKING:
    from collections.abc import Sequence

_LIMIT = 1 << 62


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
        first, never = min(bounds), max(bounds) + 1
        width = never - first + 1
        if width * (tracks.height + 1) < _LIMIT:
            return cls(keys, tracks, first, never, width)
        times = pl.concat([starts, ends, pl.Series([never], dtype=pl.Int64)]).unique().sort()
        return cls(keys, tracks, first, never, len(times) + 1, times)

    def spans(self, ranges: pl.DataFrame) -> pl.DataFrame:
        """Place intervals: n rows in, at most n out: ``track``, ``range_id``, ``start``, ``end``; empty ones are left out."""
        closed = ranges.with_columns(pl.col("end_ns").fill_null(self.never)).filter(pl.col("start_ns") < pl.col("end_ns"))
        placed = closed.join(self.tracks, on=self.by)
        start, end = (self._number(placed["track"], placed[c]) for c in ("start_ns", "end_ns"))
        return placed.select("track", "range_id", start=start, end=end)

    def instants(self, points: pl.DataFrame, at: str) -> pl.Series:
        """Place instants: n rows in, n numbers out, null off every track and before all intervals."""
        track = points.select(self.by).join(self.tracks, on=self.by, how="left", maintain_order="left")["track"]
        time = points[at].clip(upper_bound=self.never - 1)
        known = (time >= self.first).replace_strict({True: 0}, default=None, return_dtype=pl.Int64)
        return self._number(track, time) + known

    def _number(self, track: pl.Series, time: pl.Series) -> pl.Series:
        moment = time - self.first if self.times is None else self.times.search_sorted(time, "right").cast(pl.Int64)
        return track * self.width + moment


@dataclass(frozen=True, slots=True)
class Nest:
    """Intervals sorted outer before inner, with what answers "who is innermost at t" by binary search.

    Attributes:
        axis: Where the tracks lie.
        frame: One row an interval that contains an instant: ``track``, ``range_id``, ``start``, ``end`` (on the axis),
            ``depth`` (how many of its track are open when it starts), ``parent`` (row of this frame).
        ends: The ends, sorted.
        ladder: Depth and row of the intervals as one number, sorted.
        crossing: Tracks that are not nested.
    """

    axis: Axis
    frame: pl.DataFrame
    ends: pl.Series
    ladder: pl.Series
    crossing: pl.DataFrame

    @classmethod
    def of(cls, ranges: pl.DataFrame, by: Sequence[str]) -> Nest:
        """Nest intervals: ``by``, ``start_ns``, ``end_ns``, ``range_id``."""
        axis = Axis.of(ranges, by)
        spans = axis.spans(ranges).sort("start", "end", "range_id", descending=[False, True, False])
        ends = spans["end"].sort()
        row = pl.int_range(spans.height, eager=True)
        depth = row - ends.search_sorted(spans["start"], "right").cast(pl.Int64)
        ladder = (depth * spans.height + row).sort()
        frame = spans.with_columns(depth=depth, parent=_climb(ladder, depth - 1, row))
        return cls(axis, frame, ends, ladder, _crossing(frame, axis))

    def at(self, points: pl.DataFrame, at: str) -> pl.Series:
        """Ids of the innermost intervals at some instants: n in, n out, null where there is none.

        Only valid on tracks that are nested.
        """
        now = self.axis.instants(points, at)
        started = self.frame["start"].search_sorted(now, "right").cast(pl.Int64)
        depth = started - self.ends.search_sorted(now, "right").cast(pl.Int64) - 1
        return self.frame["range_id"].gather(_climb(self.ladder, depth + now * 0, started))

    def parent_ids(self) -> pl.DataFrame:
        """Ids of the intervals and of their parents; one that does not contain its child is no parent."""
        outer = self.frame.select(pl.col("range_id", "end").gather(pl.col("parent")))
        contains = outer["end"] >= self.frame["end"]
        return self.frame.select("range_id", parent_id=outer["range_id"].zip_with(contains, _nulls(contains)))


def innermost(points: pl.DataFrame, ranges: pl.DataFrame, *, at: str, by: Sequence[str]) -> pl.DataFrame:
    """Add to each point the id of the innermost interval that encloses it.

    Where the intervals of a track cross, the innermost one is the one that started last.

    Args:
        points: The columns ``by`` and the time ``at`` (ns).
        ranges: The columns ``by``, ``start_ns``, ``end_ns``, ``range_id``.
        at: Name of the time column of ``points``.
        by: Columns that name the track.

    Returns:
        ``points``, n rows in, n rows out in their order, with ``range_id`` added, null where nothing encloses it.
    """
    nest = Nest.of(ranges, by)
    found = points.with_columns(range_id=nest.at(points, at))
    if not nest.crossing.height:
        return found
    keys = list(by)
    numbered = found.with_row_index("_row")
    tangled = numbered.join(nest.crossing, on=keys, how="semi").drop("range_id")
    knots = ranges.join(nest.crossing, on=keys, how="semi")
    redone = latest_enclosing(tangled.lazy(), knots.lazy(), at=at, by=keys).select(numbered.columns).collect()
    kept = numbered.join(nest.crossing, on=keys, how="anti")
    return pl.concat([kept, redone]).sort("_row").drop("_row")


def parents(ranges: pl.DataFrame, *, by: Sequence[str], within: Sequence[str] = ()) -> pl.DataFrame:
    """Find the interval one level up and the depth of each interval.

    Args:
        ranges: The columns ``by``, ``within``, ``start_ns``, ``end_ns``, ``range_id``.
        by: Columns that name the track.
        within: Where the intervals of a track cross, they are nested anew on tracks named by these columns too; of
            intervals that cross even so, only one that contains the other is its parent.

    Returns:
        n rows in, n rows out: ``range_id``, ``parent_id`` (null for an outermost one), ``depth`` (1 for an outermost one).
    """
    nest = Nest.of(ranges, by)
    solid = nest.parent_ids()
    if nest.crossing.height:
        knots = ranges.join(nest.crossing, on=list(by), how="semi")
        inner = Nest.of(knots, [*by, *within])
        solid = pl.concat([solid.join(knots, on="range_id", how="anti"), inner.parent_ids()])
    return _with_depths(_with_empty(solid, ranges, by))


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
    """Find the stretches between the intervals of a track in which none is open: n rows in, one row a gap out, sorted."""
    keys = list(by)
    merged = merge(intervals, by=by)
    following = pl.col("start_ns").shift(-1)
    return (
        merged.select(*keys, start_ns=pl.col("end_ns"), end_ns=following.over(keys) if keys else following)
        .drop_nulls("end_ns")
    )


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
    edges = pl.concat([
        sides.select(*keys, t="start_ns", step=pl.lit(1)),
        sides.select(*keys, t="end_ns", step=pl.lit(-1)),
    ]).sort(*keys, "t", "step")
    open_now = pl.col("step").cum_sum()
    following = pl.col("t").shift(-1)
    return (
        edges.with_columns(_open=open_now.over(keys) if keys else open_now, _next=following.over(keys) if keys else following)
        .filter((pl.col("_open") == 2) & (pl.col("t") < pl.col("_next")))  # noqa: PLR2004 - both sides
        .select(*keys, start_ns="t", end_ns="_next")
    )


def _climb(ladder: pl.Series, depth: pl.Series, before: pl.Series) -> pl.Series:
    """Find the last row before a row that has a depth; null where the depth is null or negative."""
    rung = ladder.search_sorted(depth * len(ladder) + before, "left").cast(pl.Int64) - 1
    known = (depth >= 0) & (rung >= 0)
    return ladder.gather(rung.zip_with(known.fill_null(False), _nulls(rung))) % max(len(ladder), 1)  # noqa: FBT003


def _crossing(frame: pl.DataFrame, axis: Axis) -> pl.DataFrame:
    """Tracks on which some interval is not inside the one found one level up."""
    outer = frame.select(pl.col("track", "end", "depth").gather(pl.col("parent")))
    inside = (outer["track"] == frame["track"]) & (outer["end"] >= frame["end"]) & (outer["depth"] == frame["depth"] - 1)
    broken = (frame["depth"] > 0) & ~inside.fill_null(False)  # noqa: FBT003
    return axis.tracks.join(frame.filter(broken).select("track").unique(), on="track", how="semi")


def _nulls(like: pl.Series) -> pl.Series:
    return pl.repeat(None, len(like), dtype=pl.Int64, eager=True)


def _with_empty(solid: pl.DataFrame, ranges: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Add the intervals that contain no instant: the innermost one at their start is their parent."""
    empty = ranges.filter(pl.col("end_ns") <= pl.col("start_ns"))
    if not empty.height:
        return solid
    found = innermost(empty.rename({"range_id": "_id"}), ranges, at="start_ns", by=by)
    return pl.concat([solid, found.select(range_id="_id", parent_id="range_id")])


def _with_depths(tree: pl.DataFrame) -> pl.DataFrame:
    """Number the levels of a tree of ids by doubling: each round looks twice as far up."""
    rows = tree.select("range_id", up=pl.int_range(pl.len()))
    up = tree.join(rows, left_on="parent_id", right_on="range_id", how="left", maintain_order="left")["up"]
    depth = up.is_not_null().cast(pl.Int32)
    while up.null_count() < len(up):
        depth = depth + depth.gather(up).fill_null(0)
        up = up.gather(up)
    return tree.with_columns(depth=depth + 1)
