"""Place intervals on a common axis, so that a single sort or binary search covers all tracks.

A *track* contains the intervals of one thread or GPU, for example. The tracks lie one after another on the axis.

A *position* on the axis is an integer below 2**62 that represents a track and a time. Positions on one track compare
like their times, and intervals of different tracks never overlap. If tracks and times fit into 62 bits, a position is
the number of the track times a common width, plus the time since the earliest time. Otherwise, times are replaced by
their ranks among all times, so that any Int64 times on any number of tracks are supported. The difference of two
positions is therefore not always a duration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import numpy as np
import polars as pl

from tracekit.core.series import compute_frame_in_blocks
from tracekit.system import memory
from tracekit.system.threads import map_in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

Rows = TypeVar("Rows", pl.DataFrame, pl.Series)

LIMIT = 1 << 62
"""Upper limit of the positions on an axis. All positions are smaller than this number."""

_TIMES = ("start_ns", "end_ns")
_ROWS_PER_THREAD = 1 << 18
_INTEGERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)


class Axis(NamedTuple):
    """The tracks of intervals, such as threads or GPUs, placed one after another on a common axis.

    Attributes:
        tracks: Maps the keys of each track to the number of the track. Numbers are in the order of the keys.
        first: Earliest time in ns.
        last: Latest time in ns.
        width: Number of positions per track. Intervals without an end extend to the last position of their track.
        ranked_times: All distinct times in ascending order if positions contain ranks instead of times, otherwise None.
    """

    tracks: _IntegerTracks | _ListedTracks
    first: int
    last: int
    width: int
    ranked_times: pl.Series | None = None

    @classmethod
    def from_intervals(cls, *frames: pl.DataFrame, by: Sequence[str]) -> Axis:
        """Return an axis with the tracks of one or more frames of intervals.

        Args:
            frames: Frames with the columns ``by``, ``start_ns``, ``end_ns``.
            by: Columns that identify the track of an interval, such as its thread or its GPU.
        """
        times = [f[c] for f in frames for c in _TIMES]
        first, last = _find_extent(times)
        width = last - first + 2
        integers = _IntegerTracks.from_intervals(frames, by)
        if integers and integers.count * width < LIMIT:
            return cls(integers, first, last, width)
        listed = _ListedTracks.from_intervals(frames, by)
        if max(listed.count, 1) * width < LIMIT:
            return cls(listed, first, last, width)
        ranked = pl.concat(times).drop_nulls().unique().sort()
        return cls(listed, first, last, len(ranked) + 1, ranked)

    def compute_positions(self, intervals: pl.DataFrame) -> pl.DataFrame:
        """Return the positions of the starts and ends of intervals on the axis.

        Returns:
            One row per interval, in the same order: ``row`` (UInt32, row number in ``intervals``), ``track`` (number of
            the track), ``start``, ``end`` (positions). Intervals with a null track or time are omitted.
        """

        def compute_positions_of_block(block: slice) -> pl.DataFrame:
            positions = self._compute_positions(intervals[block], None)
            return positions.with_columns(pl.col("row") + block.start) if block.start else positions

        return compute_frame_in_blocks(compute_positions_of_block, intervals.height)

    def compute_nonempty_positions(self, intervals: pl.DataFrame) -> pl.DataFrame:
        """Return the positions of the intervals that are not empty, in the order of ``intervals``.

        Intervals without an end extend to the last position of their track.

        Returns:
            The columns of ``compute_positions``. Intervals that end at or before their start are omitted.
        """
        return self._compute_positions(intervals, self.width - 1).filter(pl.col("start") < pl.col("end"))

    def compute_point_positions(self, points: pl.DataFrame, time_column: str) -> pl.Series:
        """Return the position on the axis of each point in time.

        Args:
            points: The columns ``by`` and ``time_column``.
            time_column: Name of the column with the times in ns.

        Returns:
            One position per point. It is null for a point before all intervals or on an unknown track. All points after
            the last end have the same position.
        """
        times = points[time_column].clip(upper_bound=self.last)
        times = replace_with_null_unless(times >= self.first, times)
        if self.ranked_times is None:
            offset = times - self.first
        else:
            offset = replace_with_null_unless(times.is_not_null(), search_sorted(self.ranked_times, times, "right") - 1)
        return self.tracks.add_track_number(points)["track"] * self.width + offset

    def find_track_numbers(self, positions: pl.Series) -> pl.Series:
        """Return the number of the track to which each position belongs."""
        return positions // self.width

    def convert_to_intervals(self, positions: pl.DataFrame) -> pl.DataFrame:
        """Convert the positions of intervals back to tracks and times, in the same order.

        Args:
            positions: The columns ``start`` and ``end``, from intervals that all have an end.

        Returns:
            One row per interval: the columns that identify its track, ``start_ns``, ``end_ns``.
        """
        times = positions.select(start_ns=pl.col("start") % self.width, end_ns=pl.col("end") % self.width)
        if self.ranked_times is None:
            times = times.select(pl.col(_TIMES) + self.first)
        else:
            times = times.select(pl.lit(self.ranked_times).gather(pl.col(c)).alias(c) for c in _TIMES)
        return pl.DataFrame([*self.tracks.look_up_keys(self.find_track_numbers(positions["start"])), *times])

    def _compute_positions(self, intervals: pl.DataFrame, open_end: int | None) -> pl.DataFrame:
        """Return the positions of the start and end of each interval on the axis.

        Intervals without an end get the end ``open_end``, relative to the start of their track. If ``open_end``
        is None, these intervals are omitted.
        """
        first = self.first
        if self.ranked_times is not None:
            ranks = [search_sorted(self.ranked_times, intervals[c], "left").alias(c) for c in _TIMES]
            ranks = [
                replace_with_null_unless(intervals[c].is_not_null(), r) for c, r in zip(_TIMES, ranks, strict=True)
            ]
            intervals, first = intervals.with_columns(ranks), 0
        origin = pl.col("track") * self.width
        return (
            self.tracks.add_track_number(intervals)
            .select(
                "track",
                row=pl.int_range(pl.len(), dtype=pl.UInt32),
                start=origin + (pl.col("start_ns") - first),
                end=origin + pl.coalesce(pl.col("end_ns") - first, pl.lit(open_end, pl.Int64)),
            )
            .drop_nulls()
        )


@dataclass(frozen=True, slots=True)
class _IntegerTracks:
    """Tracks with integer keys, whose numbers are computed from the keys.

    Every combination of keys between their smallest and largest values has a number, even if the track has no
    intervals.

    Attributes:
        lows: Smallest value of each key.
        sizes: Number of integers from the smallest to the largest value of each key.
        schema: Type of each key.
    """

    lows: dict[str, int]
    sizes: dict[str, int]
    schema: dict[str, pl.DataType]

    @classmethod
    def from_intervals(cls, frames: Sequence[pl.DataFrame], by: Sequence[str]) -> _IntegerTracks | None:
        """Return the tracks of intervals, or None if a key is not an integer that fits into Int64."""
        lows, sizes = {}, {}
        for key in by:
            if any(f.schema[key] not in _INTEGERS for f in frames):
                return None
            lows[key], high = _find_extent([f[key] for f in frames])
            sizes[key] = high - lows[key] + 1
        return cls(lows, sizes, {key: frames[0].schema[key] for key in by})

    @property
    def count(self) -> int:
        """Number of tracks, including tracks without intervals."""
        product = 1
        for size in self.sizes.values():
            product *= size
        return product

    def add_track_number(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add the column ``track``: the number of the track of each row, or null if a key is outside of the bounds."""
        number = pl.lit(0, pl.Int64)
        for key, low in self.lows.items():
            high = low + self.sizes[key] - 1
            inside = pl.when(pl.col(key).is_between(low, high)).then(pl.col(key).cast(pl.Int64) - low)
            number = number * self.sizes[key] + inside
        return rows.with_columns(track=number)

    def look_up_keys(self, tracks: pl.Series) -> list[pl.Series]:
        """Return the values of the key columns of the tracks with the given numbers."""
        columns = []
        for key in reversed(self.lows):
            columns.append((tracks % self.sizes[key] + self.lows[key]).cast(self.schema[key]).alias(key))
            tracks = tracks // self.sizes[key]
        return columns[::-1]


@dataclass(frozen=True, slots=True)
class _ListedTracks:
    """Tracks whose numbers are looked up in a list of their keys.

    Attributes:
        numbers: One row per track in the order of the keys: the keys and ``track`` (number of the track).
    """

    numbers: pl.DataFrame

    @classmethod
    def from_intervals(cls, frames: Sequence[pl.DataFrame], by: Sequence[str]) -> _ListedTracks:
        """Return the tracks of intervals, numbered in the order of their keys."""
        keys = pl.concat([f.select(by) for f in frames]).unique().drop_nulls()
        return cls(keys.sort(by).with_columns(track=pl.int_range(pl.len())) if by else pl.DataFrame({"track": [0]}))

    @property
    def count(self) -> int:
        """Number of tracks."""
        return self.numbers.height

    def add_track_number(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add the column ``track``: the number of the track of each row, or null if the track is not listed."""
        keys = self.numbers.columns[:-1]
        if not keys:
            return rows.with_columns(track=pl.lit(0, pl.Int64))
        return rows.join(self.numbers, on=keys, how="left", maintain_order="left")

    def look_up_keys(self, tracks: pl.Series) -> list[pl.Series]:
        """Return the values of the key columns of the tracks with the given numbers."""
        return [key.gather(tracks) for key in self.numbers.drop("track")]


def _find_extent(columns: Sequence[pl.Series]) -> tuple[int, int]:
    """Return the smallest and the largest integer in several columns, or zeros if all values are null."""
    bounds = []
    for column in columns:
        bounds += [bound for bound in (column.min(), column.max()) if isinstance(bound, int)]
        memory.drop_mapped_pages()
    return min(bounds, default=0), max(bounds, default=0)


def search_sorted(ordered: pl.Series, values: pl.Series, side: Literal["left", "right"]) -> pl.Series:
    """Return the index at which each value belongs in a sorted column, like ``Series.search_sorted``.

    The index of a null is 0.
    """
    return map_in_threads(lambda batch: ordered.search_sorted(batch, side).cast(pl.Int64), values)


def map_in_threads(function: Callable[[Rows], pl.Series], rows: Rows) -> pl.Series:
    """Apply a function to the rows of a frame or column, in several threads if there are many rows.

    The function is applied to batches of rows. It must return one value per row, which must not depend on other rows.
    """
    if len(rows) <= _ROWS_PER_THREAD:
        return function(rows)
    batches = [rows.slice(start, _ROWS_PER_THREAD) for start in range(0, len(rows), _ROWS_PER_THREAD)]
    results = []
    for result in map_in_order(function, batches):
        results.append(result)
        memory.drop_mapped_pages()
    return pl.concat(results)


def replace_with_null_unless(condition: pl.Series, values: pl.Series) -> pl.Series:
    """Replace values with null where a condition is false or null."""
    return values.zip_with(condition.fill_null(False), pl.repeat(None, len(values), dtype=values.dtype, eager=True))  # noqa: FBT003


def merge_intervals(intervals: pl.DataFrame, *, by: Sequence[str]) -> pl.DataFrame:
    """Merge intervals that overlap or touch and have equal values in the columns ``by``.

    Args:
        intervals: The columns ``by``, ``start_ns``, ``end_ns``. Intervals that are empty or have no end are ignored.
        by: Columns that identify the track of an interval, such as its thread or its GPU.

    Returns:
        One row per merged interval, sorted by track and start, with the columns ``by``, ``start_ns`` and ``end_ns``.
    """
    axis = Axis.from_intervals(intervals, by=by)
    ordered = (
        axis.compute_positions(intervals).filter(pl.col("start") < pl.col("end")).select("start", "end").sort("start")
    )
    running_end = ordered["end"].cum_max()
    is_first = (ordered["start"] > running_end.shift(1)).fill_null(value=True)
    first = is_first.arg_true().cast(pl.Int64)
    last = (first - 1).shift(-1, fill_value=ordered.height - 1)
    merged = pl.DataFrame({"start": ordered["start"].gather(first), "end": running_end.gather(last)})
    return axis.convert_to_intervals(merged)


def compute_union_durations(intervals: pl.DataFrame, *, by: Sequence[str]) -> pl.DataFrame:
    """Return the duration of the union of intervals with equal values in ``by``: ``by`` and ``duration_ns``."""
    duration = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("duration_ns")
    merged = merge_intervals(intervals, by=by)
    return merged.group_by(list(by), maintain_order=True).agg(duration) if by else merged.select(duration)


def find_gaps(intervals: pl.DataFrame, *, by: Sequence[str]) -> pl.DataFrame:
    """Return the gaps between intervals that have equal values in the columns ``by``.

    Args:
        intervals: The columns ``by``, ``start_ns``, ``end_ns``.
        by: Columns that identify the track of an interval, such as its thread or its GPU.

    Returns:
        One row per gap, sorted by track and start, with the columns ``by``, ``start_ns`` and ``end_ns``.
    """
    keys = list(by)
    next_start = pl.col("start_ns").shift(-1)
    return (
        merge_intervals(intervals, by=by)
        .select(*keys, start_ns=pl.col("end_ns"), end_ns=next_start.over(keys) if keys else next_start)
        .drop_nulls("end_ns")
    )


def intersect_unions(left: pl.DataFrame, right: pl.DataFrame, *, by: Sequence[str]) -> pl.DataFrame:
    """Return the intersection of the unions of two frames: the times in which intervals of both frames are open.

    Args:
        left: The columns ``by``, ``start_ns``, ``end_ns``.
        right: The same columns.
        by: Columns that identify the track of an interval, such as its thread or its GPU.

    Returns:
        Disjoint intervals, sorted by track and start, with the columns ``by``, ``start_ns`` and ``end_ns``.
    """
    sides = pl.concat([merge_intervals(f, by=by) for f in (left, right)])
    edges = [sides.select(*by, t=c, step=pl.lit(step)) for c, step in (("start_ns", 1), ("end_ns", -1))]
    return (
        pl.concat(edges)
        .sort(*by, "t", "step")
        .with_columns(_open=pl.col("step").cum_sum(), _next=pl.col("t").shift(-1))
        .filter((pl.col("_open") == 2) & (pl.col("t") < pl.col("_next")))  # noqa: PLR2004 - both sides
        .select(*by, start_ns="t", end_ns="_next")
    )


def latest_end_before_expr(by: str | Sequence[str]) -> pl.Expr:
    """Return an expression for the latest end of the earlier rows with equal values in the columns ``by``.

    The expression is null for the first of these rows.

    Args:
        by: Columns that identify the track of an interval, such as its thread or its GPU. The rows of each track must
            be in order of ``start_ns``.
    """
    return pl.col("end_ns").cum_max().shift(1).over(by)


class CoveredTime:
    """The time in which at least a given number of intervals overlap.

    Args:
        intervals: The columns ``start_ns`` and ``end_ns``. Intervals without an end are ignored.
        depth: Minimum number of overlapping intervals.
    """

    def __init__(self, intervals: pl.DataFrame, depth: int = 1) -> None:
        closed = intervals.select("start_ns", "end_ns").drop_nulls().filter(pl.col("end_ns") > pl.col("start_ns"))
        edges = np.concatenate([closed["start_ns"].to_numpy(), closed["end_ns"].to_numpy()])
        order = np.argsort(edges, kind="stable")  # fast, because starts are sorted and ends nearly are
        steps = np.repeat(np.array([1, -1]), closed.height)
        self._times = edges[order]
        self._is_covered = np.cumsum(steps[order]) >= depth
        elapsed = np.diff(self._times, append=self._times[-1:])
        self._until = np.concatenate([[0], np.cumsum(elapsed * self._is_covered)])

    def compute_covered_time_before(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the total covered time in ns before each of the given times, which are in ns."""
        if not len(self._times):
            return np.zeros(len(times), np.int64)
        row = np.searchsorted(self._times, times, side="right") - 1
        known = np.maximum(row, 0)
        running = (times - self._times[known]) * self._is_covered[known]
        return np.where(row < 0, 0, self._until[known] + running)

    def compute_covered_time_between(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the covered time in ns between each start and the corresponding end."""
        return self.compute_covered_time_before(ends) - self.compute_covered_time_before(starts)
