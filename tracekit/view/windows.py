"""Choose the window of time that the timeline shows, and merge the events that are too short to be drawn in it.

The events of a track are on lanes. Events on the same lane do not overlap, so both their starts and their ends ascend,
and the events of any window are found by binary search. In the window, an event that is at least one pixel wide is
drawn. Shorter events that start in the same pixel are merged into a block.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.errors import TracekitError
from tracekit.native.lanes import LaneSweep

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.system.sorting import Array

MAX_LANES = 32
"""Maximum number of lanes of a track. Further overlapping events share the last lane, on which they are merged."""
MAX_MARKS = 40_000
"""Maximum number of events and blocks in an answer, unless there are more lanes."""
_MAX_MARKS_BEFORE_MERGING = 4 * MAX_MARKS
MAX_EXPORTED = 1_000_000
"""Maximum number of events in a file for Perfetto, which is written and read at once."""
MAX_SPAN = 1 << 52
"""Maximum duration of a window in ns. A script represents such numbers exactly, and sums of two of them, too."""
MIN_WINDOW = 1_000
"""Minimum duration of a window in ns."""
BATCH = 1 << 20
"""Number of events that are merged at once. Blocks do not extend across batches."""


class TimeWindow(NamedTuple):
    """A half-open time window in ns since the trace origin."""

    start: int
    end: int

    @property
    def duration(self) -> int:
        """Duration of the window in ns."""
        return self.end - self.start


class Lanes(NamedTuple):
    """The events of a track, ordered by lane and then by start.

    Attributes:
        offsets: Index of the first event of each lane, and then the number of events.
        starts: Start of each event in ns.
        ends: End of each event in ns, which is not before its start.
        rows: Row number of each event.
        codes: Code of the kind of each event.
    """

    offsets: Array
    starts: Array
    ends: Array
    rows: Array
    codes: Array

    @property
    def byte_count(self) -> int:
        """Size in bytes."""
        return sum(array.nbytes for array in self)


class Marks(NamedTuple):
    """Events and blocks of events to draw, ordered by lane and then by start. No two of them overlap on a lane.

    Attributes:
        lanes: Lane of each mark.
        starts: First start in ns.
        ends: Last end in ns.
        indices: Index of the event or, for a block, of its longest event, in the ``Lanes``.
        counts: Number of events: 1 for an event.
        busy: Sum of the durations of the events in ns.
    """

    lanes: Array
    starts: Array
    ends: Array
    indices: Array
    counts: Array
    busy: Array


class Samples(NamedTuple):
    """The samples of a counter, each pixel with its smallest and its largest value.

    Attributes:
        times: Time of the first sample in ns.
        lows: Smallest value.
        highs: Largest value.
        counts: Number of samples.
    """

    times: Array
    lows: Array
    highs: Array
    counts: Array


def arrange_lanes(starts: Array, ends: Array, rows: Array, codes: Array, *, nests: bool) -> Lanes:
    """Return the events of a track, in any order, on lanes on which they do not overlap.

    Nested events are on the lane of their depth. Events that overlap without being nested are on as few lanes as
    possible. Events without duration are treated as if they took 1 ns.

    Args:
        starts: Start of each event in ns.
        ends: End of each event in ns. Events that end before they start end at their start.
        rows: Row number of each event.
        codes: Code of the kind of each event.
        nests: Whether the events of the track may be nested.
    """
    ends = np.maximum(starts, ends)
    order = np.lexsort((-ends, starts)) if np.any(starts[1:] <= starts[:-1]) else None
    if order is not None:
        starts, ends, rows, codes = starts[order], ends[order], rows[order], codes[order]
    sweep, slices = LaneSweep(1, nests=False), (starts, ends, np.zeros(len(starts), np.uint32))
    lanes = sweep.find_overlaps(*slices)
    if not lanes.any():
        return Lanes(np.array([0, len(starts)]), starts, ends, rows, codes)
    sweep.finish_overlaps()
    if not nests or sweep.has_crossings:
        lanes = sweep.assign_lanes(*slices)
    order = np.argsort(np.minimum(lanes, MAX_LANES - 1), kind="stable")
    sizes = np.bincount(np.minimum(lanes, MAX_LANES - 1))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Lanes(offsets, starts[order], ends[order], rows[order], codes[order])


def iterate_lanes_in_window(lanes: Lanes, window: TimeWindow) -> Iterator[slice]:
    """Yield the indices of the events of each lane that are in a window, at least with a part of their duration."""
    for lane, (first, stop) in enumerate(itertools.pairwise(lanes.offsets.tolist())):
        starts, ends = lanes.starts[first:stop], lanes.ends[first:stop]
        if lane == MAX_LANES - 1:
            ends = np.maximum.accumulate(ends)
        low = int(np.searchsorted(ends, window.start, "right"))
        while low and starts[low - 1] >= window.start:  # an event without duration
            low -= 1
        yield slice(first + low, first + max(low, int(np.searchsorted(starts, window.end, "left"))))


def merge_events(lanes: Lanes, window: TimeWindow, pixel_ns: int) -> Marks:
    """Return what to draw in a window.

    Args:
        lanes: The events of a track.
        window: The window. Events that are in it with a part of their duration are drawn or counted in a block.
        pixel_ns: Duration of a pixel in ns.
    """
    merged = [
        _merge_batch(lanes, lane, slice(first, min(first + BATCH, indices.stop)), window.start, pixel_ns)
        for lane, indices in enumerate(iterate_lanes_in_window(lanes, window))
        for first in range(indices.start, indices.stop, BATCH)
    ]
    if not merged:
        return Marks(*(np.zeros(0, np.int64) for _ in Marks._fields))
    return Marks(*(np.concatenate(columns) for columns in zip(*merged, strict=True)))


def _merge_batch(lanes: Lanes, lane: int, indices: slice, origin: int, pixel_ns: int) -> Marks:
    starts, ends = lanes.starts[indices], lanes.ends[indices]
    durations = ends - starts
    pixels = (np.maximum(starts, origin) - origin) // pixel_ns
    is_short = durations < pixel_ns
    begins = np.ones(len(starts), np.bool_)
    begins[1:] = ~(is_short[1:] & is_short[:-1]) | (pixels[1:] != pixels[:-1])
    if lane == MAX_LANES - 1:
        begins[1:] &= starts[1:] >= np.maximum.accumulate(ends)[:-1]
    first = np.flatnonzero(begins)
    counts = np.diff(first, append=len(starts))
    longest = np.flatnonzero(durations == np.repeat(np.maximum.reduceat(durations, first), counts))
    longest = longest[np.searchsorted(longest, first)]
    return Marks(
        np.full(len(first), lane),
        starts[first],
        np.maximum.reduceat(ends, first),
        longest + indices.start,
        counts,
        np.add.reduceat(durations, first),
    )


def merge_samples(times: Array, values: Array, window: TimeWindow, pixel_ns: int) -> Samples:
    """Return the smallest and the largest value of the samples in each pixel of a window.

    The first result is the last sample before the window, whose value holds until the next sample.

    Args:
        times: Time of each sample in ns, ascending.
        values: Value of each sample.
        window: The window.
        pixel_ns: Duration of a pixel in ns.
    """
    low = max(int(np.searchsorted(times, window.start, "left")) - 1, 0)
    indices = slice(low, int(np.searchsorted(times, window.end, "left")))
    times, values = times[indices], values[indices]
    if not len(times):
        return Samples(times, values, values, times)
    pixels = (times - window.start) // pixel_ns
    first = np.flatnonzero(np.diff(pixels, prepend=pixels[0] - 1))
    lows, highs = np.minimum.reduceat(values, first), np.maximum.reduceat(values, first)
    return Samples(times[first], lows, highs, np.diff(first, append=len(times)))


def choose_pixel_duration(sizes: Sequence[int], window: TimeWindow, width: int) -> int:
    """Return the duration of a pixel in ns with which lanes have few marks, whatever the durations of their events.

    Args:
        sizes: Number of the events in the window of each lane.
        window: The window.
        width: Width of the picture in pixels. If lanes have too many events, pixels are wider.
    """
    events, pixels = np.array(sizes, np.int64), width
    while pixels > 1 and np.minimum(events, 2 * pixels + 2).sum() > _MAX_MARKS_BEFORE_MERGING:
        pixels = (pixels + 1) // 2
    return max(1, -(-window.duration // pixels))


def parse_window(start: str, end: str, span: TimeWindow) -> TimeWindow:
    """Parse the URL parameters of a window.

    Args:
        start: Start in ns, or "" for the start of the capture.
        end: End in ns, or "" for the end of the capture.
        span: Time of the events of the capture.

    Raises:
        TracekitError: A time is not a valid integer, the window lies outside the capture, or it is too long.
    """
    low = span.start if start == "" else parse_time(start)
    high = span.end if end == "" else parse_time(end)
    if low >= span.end or max(high, low) < span.start:
        raise TracekitError(
            f"the timeline has no events between {low:,} and {high:,} ns",
            hint=f"its events are between {span.start:,} and {span.end - 1:,} ns",
        )
    if high - low < MIN_WINDOW:
        low = (low + max(high, low) - MIN_WINDOW) // 2
        high = low + MIN_WINDOW
    if high - low > MAX_SPAN:
        raise TracekitError(
            f"the window of the timeline has {high - low:,} ns, but it may have at most {MAX_SPAN:,} ns",
            hint="add start= and end= to the URL",
        )
    return TimeWindow(low, high)


def center_window(start: int, end: int) -> TimeWindow:
    """Return a window in which an event is in the center and has a readable width."""
    margin = max(4 * (end - start), 10_000)
    return TimeWindow(start - margin, end + margin)


def parse_time(text: str) -> int:
    """Parse a URL parameter that contains a time in ns.

    Raises:
        TracekitError: The text is not an integer, or has too many characters.
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(text) > len(str(2**62)):
        raise TracekitError(
            f"the time in the URL is {text[:100]!r}, but it must be an integer number of ns with at most "
            f"{len(str(2**62))} characters"
        )
    return int(text)
