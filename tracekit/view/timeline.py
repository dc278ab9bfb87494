"""Answer requests for a window of the timeline: the tracks of one or more captures, and what to draw on them.

All times of an answer are on one clock, which is that of the capture of the page: the times in its tables are the times
on the axis. The times of other ranks are converted to it. Times are sent as integers relative to the start of the
window, because a script would round the integers of the tables.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from tracekit import schemas
from tracekit.errors import TracekitError
from tracekit.text import shorten_end
from tracekit.trace import get_trace_view
from tracekit.view import ranks as sets_of_ranks
from tracekit.view import tracks as events
from tracekit.view import windows
from tracekit.view.captures import Cache
from tracekit.view.state import CaptureAggregation
from tracekit.view.windows import TimeWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.system.sorting import Array
    from tracekit.view.captures import ViewedCapture, ViewedCaptures
    from tracekit.view.state import PageState
    from tracekit.view.tracks import EventTrack, TracksOfPart

TABLES = (*schemas.list_tables("operation"), "api_calls", "nvtx_ranges", "osrt_calls")
"""Tables of which at least one must have rows."""
MAX_CACHED_BYTES = 256 * 1024 * 1024
"""Maximum size of the cached tracks in bytes. The tracks that are being used are cached even if they are larger."""
MAX_CACHED_PARTS = 512
WIDTHS = range(50, 10_001)
"""Widths of pictures in pixels that a request may have."""
MAX_NAME = 300
"""Maximum number of characters of a name in an answer."""


class RankClock(NamedTuple):
    """The conversion of the times of a capture to the common clock of its job.

    Attributes:
        offset: Number of ns to add to every time.
        drift: Number of ns to add to every time per ns of that time.
    """

    offset: int = 0
    drift: float = 0.0

    def to_common(self, times: Array) -> Array:
        """Return times of the capture on the common clock."""
        return times + self._round(times * self.drift) + self.offset

    def from_common(self, times: Array) -> Array:
        """Return times on the common clock on the clock of the capture."""
        own = times - self.offset
        return own - self._round(own * (self.drift / (1 + self.drift)))

    def _round(self, values: Array) -> Array:
        rounded: Array = np.rint(values).astype(np.int64) if self.drift else np.int64(0)  # type: ignore[assignment]
        return rounded


class ShownCapture(NamedTuple):
    """A capture on the timeline.

    Attributes:
        capture: The capture.
        rank: Its rank, or None if it is not a rank of a job.
        clock: Conversion of its times to the common clock, or None if its times are those of the axis.
        axis: Conversion of the times of the axis to the common clock.
        is_aligned: Whether its clock is aligned. Otherwise, its times are shown as they are.
    """

    capture: ViewedCapture
    rank: int | None = None
    clock: RankClock | None = None
    axis: RankClock = RankClock()
    is_aligned: bool = True

    def to_axis(self, times: Array) -> Array:
        """Return times of the capture on the clock of the axis."""
        return times if self.clock is None else self.axis.from_common(self.clock.to_common(times))

    def place(self, start: int, end: int) -> TimeWindow:
        """Return a time of the capture on the clock of the axis."""
        return TimeWindow(*self.to_axis(np.array([start, end], np.int64)).tolist())

    def from_axis(self, window: TimeWindow) -> TimeWindow:
        """Return a window of the axis on the clock of the capture."""
        if self.clock is None:
            return window
        return TimeWindow(*self.clock.from_common(self.axis.to_common(np.array(window, np.int64))).tolist())


class Timelines:
    """The tracks of the captures of a server, with a cache."""

    def __init__(self, captures: ViewedCaptures) -> None:
        self.captures = captures
        self._tracks: Cache[tuple[Any, ...], TracksOfPart] = Cache(
            MAX_CACHED_PARTS, lambda tracks: tracks.byte_count, MAX_CACHED_BYTES
        )

    def get_tracks(self, member: ShownCapture, state: PageState, part: str) -> TracksOfPart:
        """Return the tracks of a part of a capture. Steps and causes depend on the aggregation of the state."""
        capture, at = member.capture, get_aggregation(state, member.capture)
        if part == events.STEPS:
            steps = lambda: events.read_steps(capture.get_aggregated_trace(at))  # noqa: E731
            return self._tracks.get((capture.key, part, at), steps)
        if part == events.CAUSES:
            causes = lambda: self._read_causes(member, state, at)  # noqa: E731
            return self._tracks.get((capture.key, part, at, state.at.ranks), causes)
        span = find_span(self.captures, capture)
        return self._tracks.get((capture.key, part), lambda: events.read_tracks(capture.trace, part, span))

    def _read_causes(self, member: ShownCapture, state: PageState, at: CaptureAggregation) -> TracksOfPart:
        """Return the tracks of causes. The causes of a rank are those that the answer about the job finds there."""
        if member.rank is None or len(state.at.ranks) == 1:
            causes = member.capture.find_causes(at).causes
        else:
            answer = sets_of_ranks.find_causes_of_job(self.captures, CaptureAggregation(ranks=state.at.ranks))
            places = [answer.rank if cause.place.rank is None else cause.place.rank for cause in answer.causes]
            causes = tuple(c for c, rank in zip(answer.causes, places, strict=True) if rank == member.rank)
        return events.read_causes(member.capture.get_aggregated_trace(at), causes)

    def list_members(self, state: PageState) -> list[ShownCapture]:
        """Return the captures that the state selects: the ranks of the job, or the capture of the page."""
        shown = self.captures[state.at]
        by_rank = sets_of_ranks.list_captures_by_rank(self.captures)
        if not by_rank:
            return [ShownCapture(shown)]
        chosen = state.at.ranks
        clocks = self._read_clocks()
        axis_rank = next((rank for rank, capture in by_rank.items() if capture.index == shown.index), None)
        axis = clocks.get(axis_rank)
        if axis is None:
            return [ShownCapture(shown, axis_rank)]
        members = []
        for rank, capture in by_rank.items():
            if chosen and rank not in chosen:
                continue
            clock = clocks[rank]
            layered = capture.select_layers(state.at.layers)
            members.append(ShownCapture(layered, rank, None if rank == axis_rank else clock, axis, clock is not None))
        if not members:
            known = ", ".join(map(str, by_rank))
            text = ", ".join(map(str, chosen))
            raise TracekitError(f"the URL selects ranks {text}, but the job has ranks {known}", hint="choose others")
        return members

    def _read_clocks(self) -> dict[int | None, RankClock | None]:
        """Return the conversion of the times of each rank to the common clock, or None if it cannot be aligned."""
        clocks = sets_of_ranks.analyze_communication(self.captures, CaptureAggregation()).clocks
        return {
            row["rank"]: None if row["offset_ns"] is None else RankClock(row["offset_ns"], row["drift_ppm"] / 1e6)
            for row in clocks.iter_rows(named=True)
        }


def get_aggregation(state: PageState, capture: ViewedCapture) -> CaptureAggregation:
    """Return the aggregation of a capture on all its GPUs: that of the state, or the default one for other captures."""
    if capture.index == state.at.capture:
        return replace(state.at, devices=(), ranks=())
    return CaptureAggregation(capture.index, layers=capture.layers)


def get_timelines(captures: ViewedCaptures) -> Timelines:
    """Return the timelines of the captures of a server, with their cache."""
    timelines: Timelines = captures.get_cached_result(("timelines",), lambda: Timelines(captures))
    return timelines


def find_span(captures: ViewedCaptures, capture: ViewedCapture) -> TimeWindow:
    """Return the time of the events of a capture.

    Raises:
        TracekitError: The capture has no events.
    """

    def compute() -> TimeWindow:
        span = capture.trace.span()
        if span is None:
            absence = get_trace_view(capture.trace).explain_missing_tables(TABLES)
            raise TracekitError(f"the timeline has no events: {absence.reason}", hint=absence.hint)
        return TimeWindow(span[0], span[1] + 1)

    window: TimeWindow = captures.get_cached_result(("span", capture.key), compute)
    return window


def find_common_span(captures: ViewedCaptures, members: Sequence[ShownCapture]) -> TimeWindow:
    """Return the time of the events of several captures on the clock of the axis.

    Raises:
        TracekitError: No capture has events.
    """
    spans, errors = [], []
    for member in members:
        try:
            spans.append(member.place(*find_span(captures, member.capture)))
        except TracekitError as e:
            errors.append(e)
    if not spans:
        raise errors[0]
    return TimeWindow(min(span.start for span in spans), max(span.end for span in spans))


def list_parts(captures: ViewedCaptures, members: Sequence[ShownCapture]) -> list[str]:
    """Return the parts for which at least one capture has rows."""
    present: set[str] = set()
    for member in members:
        capture = member.capture
        present.update(
            captures.get_cached_result(("parts", capture.key), lambda: events.list_parts(capture.trace))  # noqa: B023
        )
    return [part for part in events.PARTS if part in present]


def build_answer(captures: ViewedCaptures, state: PageState) -> dict[str, Any]:
    """Return what to draw in a window, as JSON.

    The parameters of the URL are ``start`` and ``end`` (the window in ns), ``width`` (the width of the picture in
    pixels), ``parts`` (names of parts, separated by commas), ``ranks`` and ``devices``.

    Raises:
        TracekitError: A parameter has an invalid value.
    """
    timelines = get_timelines(captures)
    members = timelines.list_members(state)
    window = windows.parse_window(state.get("start"), state.get("end"), find_common_span(captures, members))
    width = parse_width(state.get("width"))
    devices = state.at.devices
    shown, notes = [], []
    for part in parse_parts(state.get("parts")):
        for member in members:
            own = timelines.get_tracks(member, state, part)
            if own.missing:
                notes.append(f"{own.missing:,} more tracks of {part} are not drawn. Choose ranks or devices.")
            shown += [(member, t) for t in own.tracks if not devices or t.device is None or t.device in devices]
    notes += [f"The clock of rank {m.rank} cannot be aligned." for m in members if not m.is_aligned]
    return _Answer(window, width, shown).build() | {"notes": notes}


class _Answer:
    """The answer to a request.

    Args:
        window: The window.
        width: Width of the picture in pixels.
        shown: The tracks, each with its capture.
    """

    def __init__(self, window: TimeWindow, width: int, shown: Sequence[tuple[ShownCapture, EventTrack]]) -> None:
        self.window, self._shown = window, shown
        self.own = [member.from_axis(window) for member, _ in shown]
        sizes = [
            lane.stop - lane.start
            for (_, track), own in zip(shown, self.own, strict=True)
            for lane in windows.iterate_lanes_in_window(track.lanes, own)
        ]
        self.pixel_ns = windows.choose_pixel_duration(sizes, window, width)

    def build(self) -> dict[str, Any]:
        """Return the answer as JSON."""
        marks = self._merge_all()
        names = [
            events.read_names(member.capture.trace, track, part.indices) if isinstance(part, windows.Marks) else None
            for (member, track), part in zip(self._shown, marks, strict=True)
        ]
        texts, codes = _encode_names([frame["name"] for frame in names if frame is not None])
        described, codes_of_kinds = [], set()
        for (member, track), part, frame in zip(self._shown, marks, names, strict=True):
            if isinstance(part, windows.Marks) and frame is not None:
                drawn = self._describe_marks(member, track, part) | {
                    "name": codes.pop(0),
                    "ids": _encode_ids(frame["id"]),
                }
            elif isinstance(part, windows.Samples):
                drawn = self._describe_samples(member, part)
            codes_of_kinds.update(drawn.get("kind", ()))
            described.append(_describe_track(member, track) | drawn)
        return {
            "start": str(self.window.start),
            "end": str(self.window.end),
            "pixel": self.pixel_ns,
            "names": texts,
            "kinds": {str(code): list(events.get_kind(code)) for code in sorted(codes_of_kinds)},
            "tracks": described,
        }

    def _merge_all(self) -> list[windows.Marks | windows.Samples]:
        """Return what to draw on each track. Pixels become wider until it is at most ``MAX_MARKS``, if possible."""
        while True:
            marks = [self._merge(track, own) for (_, track), own in zip(self._shown, self.own, strict=True)]
            count = sum(len(each.counts) for each in marks)
            if count <= windows.MAX_MARKS or self.pixel_ns >= self.window.duration:
                return marks
            self.pixel_ns = min(-(-self.pixel_ns * count // windows.MAX_MARKS), self.window.duration)

    def _merge(self, track: EventTrack, own: TimeWindow) -> windows.Marks | windows.Samples:
        if track.values is not None:
            return windows.merge_samples(track.lanes.starts, track.values, own, self.pixel_ns)
        return windows.merge_events(track.lanes, own, self.pixel_ns)

    def _describe_marks(self, member: ShownCapture, track: EventTrack, marks: windows.Marks) -> dict[str, Any]:
        starts, ends = (self._make_relative(member.to_axis(times)) for times in (marks.starts, marks.ends))
        return {
            "lane": marks.lanes.tolist(),
            "start": starts.tolist(),
            "end": ends.tolist(),
            "count": marks.counts.tolist(),
            "busy": marks.busy.tolist(),
            "kind": track.lanes.codes[marks.indices].tolist(),
            **self._list_keys(member, track, marks),
        }

    def _list_keys(self, member: ShownCapture, track: EventTrack, marks: windows.Marks) -> dict[str, list[str]]:
        """Return what identifies the events to which annotations refer."""
        if track.labels is None or "table" not in track.labels.columns:
            return {}
        rows = track.labels.select("table", "id")[track.lanes.rows[marks.indices]].iter_rows()
        return {"event": [f"{table}:{id_}@{member.capture.index}" for table, id_ in rows]}

    def _describe_samples(self, member: ShownCapture, samples: windows.Samples) -> dict[str, Any]:
        return {
            "time": self._make_relative(member.to_axis(samples.times)).tolist(),
            "low": samples.lows.tolist(),
            "high": samples.highs.tolist(),
            "count": samples.counts.tolist(),
        }

    def _make_relative(self, times: Array) -> Array:
        """Return times relative to the start of the window. Times that are far outside it are moved closer."""
        relative: Array = np.clip(times - self.window.start, -windows.MAX_SPAN, 2 * windows.MAX_SPAN)
        return relative


def format_track_label(member: ShownCapture, track: EventTrack) -> str:
    """Return the name of a track with its rank and its group, which are empty for the only rank and for annotations."""
    return " · ".join(filter(None, ("" if member.rank is None else f"Rank {member.rank}", track.group, track.name)))


def _describe_track(member: ShownCapture, track: EventTrack) -> dict[str, Any]:
    prefix = "" if member.rank is None else f"Rank {member.rank}"
    annotation = track.labels is not None
    values = {
        "id": f"{member.capture.index}.{track.part}.{track.number}",
        "part": track.part,
        "capture": member.capture.index,
        "group": "" if annotation else " · ".join(filter(None, (prefix, track.group))),
        "label": " · ".join(filter(None, (prefix if annotation else "", track.name))),
        "lanes": len(track.lanes.offsets) - 1,
        "events": len(track.lanes.starts),
    }
    if track.values is not None and len(track.values):
        values |= {"range": [float(track.values.min()), float(track.values.max())]}
    return values


def _encode_names(columns: Sequence[pl.Series]) -> tuple[list[str], list[list[int]]]:
    """Return the distinct names of several columns, and the index of the name of each row of each column."""
    if not columns:
        return [], []
    rows = pl.concat(columns).fill_null("").to_frame("name")
    names = rows.unique(maintain_order=True).with_row_index("index")
    indices = rows.join(names, on="name", how="left", maintain_order="left")["index"]
    texts = [shorten_end(name, MAX_NAME) for name in names["name"].to_list()]
    stops = np.cumsum([len(column) for column in columns])
    return texts, [indices[stop - len(c) : stop].to_list() for c, stop in zip(columns, stops.tolist(), strict=True)]


def _encode_ids(ids: pl.Series) -> list[int | str | None]:
    """Return ids as integers, or as strings if a script would round them."""
    largest = ids.abs().max()
    values: list[int | str | None] = (
        ids.cast(pl.String) if isinstance(largest, int) and largest > windows.MAX_SPAN else ids
    ).to_list()
    return values


def parse_width(text: str) -> int:
    """Parse the URL parameter ``width``.

    Raises:
        TracekitError: It is not an integer, or it is too small or too large.
    """
    width = windows.parse_time(text or "1000")
    if width not in WIDTHS:
        raise TracekitError(
            f"the width in the URL is {width}, but it must be between {WIDTHS[0]} and {WIDTHS[-1]:,} pixels"
        )
    return width


def parse_parts(text: str) -> list[str]:
    """Parse the URL parameter ``parts``, whose default is the part of the GPU.

    Raises:
        TracekitError: A part does not exist.
    """
    chosen = text.split(",") if text else [events.GPU]
    for part in chosen:
        if part not in events.PARTS:
            raise TracekitError(
                f"the timeline has no part {part[:100]!r}", hint=f"choose parts from {', '.join(events.PARTS)}"
            )
    return list(dict.fromkeys(chosen))
