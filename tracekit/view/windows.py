"""Choose the time window whose events the timeline shows. A limited window opens quickly even for large captures."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit import schemas
from tracekit.errors import TracekitError
from tracekit.trace import get_trace_view

if TYPE_CHECKING:
    from tracekit.trace import Trace

MAX_EVENTS = 250_000
"""Approximate maximum number of events on the timeline."""
TABLES = (*schemas.list_tables("operation"), "api_calls", "nvtx_ranges", "osrt_calls")
MIN_WINDOW = 1_000_000
"""Minimum duration of the time window around a selected event, in ns."""


class TimeWindow(NamedTuple):
    """A time window in ns since the trace origin.

    Attributes:
        span: First and last time of the events of the capture.
        converted: Start and end of the time whose events are converted for Perfetto and shown on the timeline.
        shown: Start and end of the time to which the timeline zooms.
    """

    span: tuple[int, int]
    converted: tuple[int, int]
    shown: tuple[int, int]

    @property
    def contains_all_events(self) -> bool:
        """Whether the window contains all events of the timeline."""
        return self.converted == self.span

    def compute_preceding_window(self) -> tuple[int, int] | None:
        """Return the preceding window, at most as long as this one, or None if this window starts with the capture."""
        start, end = self.converted
        return (max(self.span[0], start - (end - start)), start) if start > self.span[0] else None

    def compute_following_window(self) -> tuple[int, int] | None:
        """Return the following window, at most as long as this one, or None if this window ends with the capture."""
        start, end = self.converted
        return (end, min(self.span[1], end + (end - start))) if end < self.span[1] else None


def choose_window(trace: Trace, start: str, end: str) -> TimeWindow:
    """Return the time window to which the timeline zooms, and the larger one whose events the timeline contains.

    If the capture has few events, the timeline contains all of them. Otherwise, it contains about ``MAX_EVENTS`` events
    around the requested time. If the requested time has more events, both windows end early.

    Args:
        trace: The capture.
        start: Start of the time to show in ns, or "" for the start of the capture.
        end: End of the time to show in ns, or "" for the end of the capture.

    Raises:
        TracekitError: A time is not a valid integer, the requested time lies outside the capture, or the capture has no
            events.
    """
    span = trace.span()
    if span is None:
        absence = get_trace_view(trace).explain_missing_tables(TABLES)
        raise TracekitError(f"the timeline has no events: {absence.reason}", hint=absence.hint)
    low = span[0] if start == "" else parse_time(start)
    high = span[1] if end == "" else max(parse_time(end), low)
    if low > span[1] or high < span[0]:
        raise TracekitError(
            f"the timeline has no events between {low:,} and {high:,} ns",
            hint=f"its events are between {span[0]:,} and {span[1]:,} ns",
        )
    margin = max((high - low) // 2, MIN_WINDOW // 2) if start or end else 0
    shown = (max(span[0], low - margin), min(span[1], high + margin))
    starts = _read_event_starts(trace)
    if starts.size <= MAX_EVENTS:
        return TimeWindow(span, span, shown)
    converted = _compute_window_around(starts, shown, span)
    return TimeWindow(span, converted, (max(shown[0], converted[0]), min(shown[1], converted[1])))


def _compute_window_around(starts: np.ndarray, requested: tuple[int, int], span: tuple[int, int]) -> tuple[int, int]:
    """Return the start and end in ns of a time window with about ``MAX_EVENTS`` events around a requested window.

    If the requested window contains more events, the result begins at the same time and ends earlier. It is at least
    1 ns long, unless the capture is shorter.

    Args:
        starts: Start times of all events in ns, ascending.
        requested: Start and end of the requested window in ns.
        span: First and last time of the events of the capture in ns.
    """
    first, last = (int(i) for i in np.searchsorted(starts, requested))
    spare = MAX_EVENTS - (last - first)
    if spare <= 0:
        end = max(int(starts[min(first + MAX_EVENTS, starts.size - 1)]), requested[0] + 1)
        return requested[0], min(end, span[1])
    low, high = max(first - spare // 2, 0), min(last + spare // 2, starts.size - 1)
    begin = span[0] if low == 0 else min(int(starts[low]), requested[0])
    return begin, span[1] if high == starts.size - 1 else max(int(starts[high]), requested[1])


def limit_end(trace: Trace, start: int, end: int) -> int:
    """Return the end of a time window in ns, or an earlier end if more than ``MAX_EVENTS`` events start in the window.

    Args:
        trace: The capture.
        start: Start of the window in ns.
        end: End of the window in ns.
    """
    starts = _read_event_starts(trace)
    first, last = (int(i) for i in np.searchsorted(starts, (start, end)))
    return end if last - first <= MAX_EVENTS else max(int(starts[first + MAX_EVENTS]), start + 1)


def _read_event_starts(trace: Trace) -> np.ndarray:
    """Return the start times of all events of the timeline in ascending order."""
    present = [name for name in TABLES if name in trace.tables]
    frames = [trace.frame(name).select("start_ns") for name in present]
    return pl.concat(frames).sort("start_ns").collect()["start_ns"].to_numpy()


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
