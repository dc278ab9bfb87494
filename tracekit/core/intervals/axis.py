"""All tracks laid end to end on one axis, so that one sort or binary search serves every track.

A *position* on the axis is an integer below 2**62 that stands for a track and a time: positions of one track compare
like their times, and intervals of different tracks never meet. If tracks and times fit into 62 bits, a position is the
number of the track times a common width plus the time since the earliest one. Otherwise ranks replace the times, so
that any Int64 times on any number of tracks are supported. Differences of positions are therefore not durations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import polars as pl

from tracekit.threads import map_in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Rows = TypeVar("Rows", pl.DataFrame, pl.Series)

LIMIT = 1 << 62
"""Positions are smaller than this number."""

_TIMES = ("start_ns", "end_ns")
_ROWS_PER_THREAD = 1 << 18
_INTEGERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)


@dataclass(frozen=True, slots=True)
class Axis:
    """The tracks of some intervals, laid end to end.

    Attributes:
        tracks: Numbers of the tracks, in the order of their keys.
        first: Earliest time.
        last: Latest time.
        width: Positions per track; the last of them is where intervals without an end are closed.
        ranked_times: All times in order, if positions hold ranks instead of times.
    """

    tracks: _IntegerTracks | _ListedTracks
    first: int
    last: int
    width: int
    ranked_times: pl.Series | None = None

    @classmethod
    def from_intervals(cls, *frames: pl.DataFrame, by: Sequence[str]) -> Axis:
        """Lay out the tracks of one or more frames of intervals.

        Args:
            frames: The columns ``by``, ``start_ns``, ``end_ns``.
            by: Columns that identify the track.
        """
        times = [f[c] for f in frames for c in _TIMES]
        bounds = [b for t in times for b in (t.min(), t.max()) if isinstance(b, int)] or [0]
        first, last = min(bounds), max(bounds)
        width = last - first + 2
        integers = _IntegerTracks.from_intervals(frames, by)
        if integers and integers.count * width < LIMIT:
            return cls(integers, first, last, width)
        listed = _ListedTracks.from_intervals(frames, by)
        if max(listed.count, 1) * width < LIMIT:
            return cls(listed, first, last, width)
        ranked = pl.concat(times).drop_nulls().unique().sort()
        return cls(listed, first, last, len(ranked) + 1, ranked)

    def positions(self, intervals: pl.DataFrame) -> pl.DataFrame:
        """Return the positions of intervals: n rows in, at most n rows out in their order.

        Returns:
            ``row`` (UInt32, in ``intervals``), ``track`` (its number), ``start``, ``end`` (positions). Rows with a null
            track or time are left out.
        """
        return self._positions(intervals, pl.col("end_ns"))

    def nonempty_positions(self, intervals: pl.DataFrame) -> pl.DataFrame:
        """Return the positions of intervals that contain an instant: n rows in, at most n rows out in their order.

        An interval without an end never ends.

        Returns:
            As ``positions``, without intervals that end where or before they start.
        """
        return self._positions(intervals, pl.col("end_ns").fill_null(self.width - 1)).filter(
            pl.col("start") < pl.col("end")
        )

    def instants(self, points: pl.DataFrame, time: str) -> pl.Series:
        """Return the positions of instants: n rows in, n integers out.

        Args:
            points: The columns ``by`` and ``time``.
            time: Name of a column of times (ns).

        Returns:
            Positions, null for an instant before all intervals or on a track that cannot have any. Instants after all
            ends share the position of the last one.
        """
        times = points[time].clip(upper_bound=self.last)
        times = where(times >= self.first, times)
        if self.ranked_times is None:
            offset = times - self.first
        else:
            offset = where(times.is_not_null(), search(self.ranked_times, times, "right") - 1)
        return self.tracks.with_number(points)["track"] * self.width + offset

    def track_numbers(self, positions: pl.Series) -> pl.Series:
        """Return the number of the track on which each position lies."""
        return positions // self.width

    def intervals(self, positions: pl.DataFrame) -> pl.DataFrame:
        """Convert positions of intervals that end back: n rows (``start``, ``end``) in, n rows out in their order.

        Returns:
            The key columns, ``start_ns``, ``end_ns``.
        """
        times = positions.select(start_ns=pl.col("start") % self.width, end_ns=pl.col("end") % self.width)
        if self.ranked_times is None:
            times = times.select(pl.col(_TIMES) + self.first)
        else:
            times = times.select(pl.lit(self.ranked_times).gather(pl.col(c)).alias(c) for c in _TIMES)
        return pl.DataFrame([*self.tracks.keys(self.track_numbers(positions["start"])), *times])

    def _positions(self, intervals: pl.DataFrame, end: pl.Expr) -> pl.DataFrame:
        """Return the positions of intervals; ``end`` selects their end, relative to the start of their track."""
        if self.ranked_times is None:
            offsets = intervals.with_columns(pl.col(_TIMES) - self.first)
        else:
            ranks = [search(self.ranked_times, intervals[c], "left").alias(c) for c in _TIMES]
            ranks = [where(intervals[c].is_not_null(), r) for c, r in zip(_TIMES, ranks, strict=True)]
            offsets = intervals.with_columns(ranks)
        origin = pl.col("track") * self.width
        return (
            self.tracks.with_number(offsets)
            .select(
                "track",
                row=pl.int_range(pl.len(), dtype=pl.UInt32),
                start=origin + pl.col("start_ns"),
                end=origin + end,
            )
            .drop_nulls()
        )


@dataclass(frozen=True, slots=True)
class _IntegerTracks:
    """Tracks numbered by arithmetic on integer keys: every combination within their bounds has a number.

    Attributes:
        lows: Least value of each key.
        sizes: Number of values from the least to the greatest one of each key.
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
            bounds = [b for f in frames for b in (f[key].min(), f[key].max()) if isinstance(b, int)] or [0]
            lows[key], sizes[key] = min(bounds), max(bounds) - min(bounds) + 1
        return cls(lows, sizes, {key: frames[0].schema[key] for key in by})

    @property
    def count(self) -> int:
        """Number of tracks, with and without intervals."""
        product = 1
        for size in self.sizes.values():
            product *= size
        return product

    def with_number(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add ``track``: the number of the track of each row, null outside the bounds of a key."""
        number = pl.lit(0, pl.Int64)
        for key, low in self.lows.items():
            high = low + self.sizes[key] - 1
            inside = pl.when(pl.col(key).is_between(low, high)).then(pl.col(key).cast(pl.Int64) - low)
            number = number * self.sizes[key] + inside
        return rows.with_columns(track=number)

    def keys(self, tracks: pl.Series) -> list[pl.Series]:
        """Return the columns of the keys of tracks: n numbers in, n values per column out."""
        columns = []
        for key in reversed(self.lows):
            columns.append((tracks % self.sizes[key] + self.lows[key]).cast(self.schema[key]).alias(key))
            tracks = tracks // self.sizes[key]
        return columns[::-1]


@dataclass(frozen=True, slots=True)
class _ListedTracks:
    """Tracks numbered by a list of their keys.

    Attributes:
        numbers: One row per track, in the order of the keys: the keys and ``track``.
    """

    numbers: pl.DataFrame

    @classmethod
    def from_intervals(cls, frames: Sequence[pl.DataFrame], by: Sequence[str]) -> _ListedTracks:
        """Return the tracks of intervals."""
        keys = pl.concat([f.select(by) for f in frames]).unique().drop_nulls()
        return cls(keys.sort(by).with_columns(track=pl.int_range(pl.len())) if by else pl.DataFrame({"track": [0]}))

    @property
    def count(self) -> int:
        """Number of tracks."""
        return self.numbers.height

    def with_number(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add ``track``: the number of the track of each row, null if it is not listed."""
        keys = self.numbers.columns[:-1]
        if not keys:
            return rows.with_columns(track=pl.lit(0, pl.Int64))
        return rows.join(self.numbers, on=keys, how="left", maintain_order="left")

    def keys(self, tracks: pl.Series) -> list[pl.Series]:
        """Return the columns of the keys of tracks: n numbers in, n values per column out."""
        return [key.gather(tracks) for key in self.numbers.drop("track")]


def search(ordered: pl.Series, values: pl.Series, side: Literal["left", "right"]) -> pl.Series:
    """Find where values belong in an ordered column, as ``search_sorted`` does: n values in, n rows out; null is 0."""
    return in_threads(lambda batch: ordered.search_sorted(batch, side).cast(pl.Int64), values)


def in_threads(work: Callable[[Rows], pl.Series], rows: Rows) -> pl.Series:
    """Apply a function to batches of rows in several threads if there are many rows: n rows in, n values out."""
    if len(rows) <= _ROWS_PER_THREAD:
        return work(rows)
    batches = [rows.slice(start, _ROWS_PER_THREAD) for start in range(0, len(rows), _ROWS_PER_THREAD)]
    return pl.concat(map_in_order(work, batches))


def where(condition: pl.Series, values: pl.Series) -> pl.Series:
    """Return the values where a condition holds, null elsewhere, also where the condition is null."""
    return values.zip_with(condition.fill_null(False), pl.repeat(None, len(values), dtype=values.dtype, eager=True))  # noqa: FBT003
