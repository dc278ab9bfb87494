"""The windows of the timeline: every event is drawn or counted once, and nothing overlaps on a lane."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tracekit.errors import TracekitError
from tracekit.view import windows
from tracekit.view.windows import Lanes, TimeWindow

SLICES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), min_size=1, max_size=60)


def arrange(slices: list[tuple[int, int]], *, nests: bool = False) -> Lanes:
    starts = np.array([start for start, _ in slices], np.int64)
    ends = np.array([start + length for start, length in slices], np.int64)
    rows, codes = np.arange(len(slices), dtype=np.uint32), np.zeros(len(slices), np.uint8)
    return windows.arrange_lanes(starts, ends, rows, codes, nests=nests)


def list_slices(lanes: Lanes) -> list[tuple[int, int, int, int]]:
    """Return the lane, start, end and row of each event."""
    lane = np.repeat(np.arange(len(lanes.offsets) - 1), np.diff(lanes.offsets))
    columns = (lane, lanes.starts, lanes.ends, lanes.rows)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def is_inside(start: int, end: int, window: TimeWindow) -> bool:
    return start < window.end and max(end, start + 1) > window.start


@pytest.mark.parametrize("nests", [False, True])
@settings(max_examples=examples(120))
@given(slices=SLICES)
@example(slices=[(0, 10), (0, 10), (5, 0), (5, 0), (5, 10)])
def test_nothing_overlaps_on_a_lane(slices: list[tuple[int, int]], nests: bool) -> None:
    lanes = arrange(slices, nests=nests)
    placed = list_slices(lanes)
    assert sorted((row, start, end) for _, start, end, row in placed) == [
        (row, start, start + length) for row, (start, length) in enumerate(slices)
    ]
    for (lane, start, end, _), (other, after, _, _) in itertools.pairwise(placed):
        if lane == other and lane < windows.MAX_LANES - 1:
            assert max(end, start + 1) <= after


def test_nested_events_are_on_the_lane_of_their_depth() -> None:
    slices = [(0, 100), (10, 30), (15, 5), (30, 5), (50, 50), (60, 5), (200, 5)]
    by_row = {row: lane for lane, _, _, row in list_slices(arrange(slices, nests=True))}
    assert [by_row[row] for row in range(len(slices))] == [0, 1, 2, 2, 1, 2, 0]
    flat = {row: lane for lane, _, _, row in list_slices(arrange([(0, 10), (5, 10), (9, 10), (12, 1)]))}
    assert [flat[row] for row in range(4)] == [0, 1, 2, 0]


@settings(max_examples=examples(200))
@given(
    slices=SLICES,
    start=st.integers(-20, 320),
    length=st.integers(1, 400),
    pixel=st.integers(1, 60),
    small=st.booleans(),
)
@example(slices=[(5, 0), (5, 3), (9, 0)], start=5, length=4, pixel=60, small=False)
def test_every_event_of_a_window_is_drawn_or_counted_once(
    slices: list[tuple[int, int]], start: int, length: int, pixel: int, small: bool
) -> None:
    window, limits = TimeWindow(start, start + length), (windows.MAX_LANES, windows.BATCH)
    try:
        windows.MAX_LANES, windows.BATCH = (3, 4) if small else limits
        lanes = arrange(slices)
        marks = windows.merge_events(lanes, window, pixel)
        inside = [each for each in list_slices(lanes) if is_inside(each[1], each[2], window)]
        extra = sum(i.stop - i.start for i in windows.iterate_lanes_in_window(lanes, window)) - len(inside)
    finally:
        windows.MAX_LANES, windows.BATCH = limits
    assert extra == 0 or small  # events on the last lane may be counted although they end before the window
    if extra == 0:
        assert marks.counts.sum() == len(inside)
        assert marks.busy.sum() == sum(end - begin for _, begin, end, _ in inside)
    drawn = list(zip(*(column.tolist() for column in marks), strict=True))
    for lane, begin, end, index, count, busy in drawn:
        longest = (int(lanes.starts[index]), int(lanes.ends[index]))
        if count == 1:
            assert longest == (begin, end)
        if extra == 0:
            own, inside = inside[:count], inside[count:]
            assert {e[0] for e in own} == {lane}
            assert (own[0][1], max(e[2] for e in own)) == (begin, end)
            assert sum(e[2] - e[1] for e in own) == busy
            assert longest[1] - longest[0] == max(e[2] - e[1] for e in own)
            assert (
                count == 1
                or lane == 2
                or (max(begin, start) - start) // pixel == (max(own[-1][1], start) - start) // pixel
            )
    for one, other in itertools.pairwise(drawn):
        assert one[0] != other[0] or one[2] <= other[1] or (small and one[0] == 2)


@settings(max_examples=examples(100))
@given(
    samples=st.lists(st.tuples(st.integers(0, 200), st.integers(-9, 9)), min_size=1, max_size=60),
    start=st.integers(-20, 220),
    length=st.integers(1, 300),
    pixel=st.integers(1, 60),
)
def test_each_pixel_has_the_smallest_and_the_largest_sample(
    samples: list[tuple[int, int]], start: int, length: int, pixel: int
) -> None:
    samples.sort(key=lambda sample: sample[0])
    times, values = (np.array(column) for column in zip(*samples, strict=True))
    merged = windows.merge_samples(times, values, TimeWindow(start, start + length), pixel)
    first = max(sum(time < start for time, _ in samples) - 1, 0)
    wanted: dict[int, list[int]] = {}
    for time, value in samples[first:]:
        if time < start + length:
            wanted.setdefault((time - start) // pixel, []).append(value)
    assert merged.lows.tolist() == [min(group) for group in wanted.values()]
    assert merged.highs.tolist() == [max(group) for group in wanted.values()]
    assert merged.counts.tolist() == [len(group) for group in wanted.values()]


def test_the_size_of_an_answer_is_bounded() -> None:
    window = TimeWindow(0, 10**9)
    assert windows.choose_pixel_duration([100] * 10, window, 1000) == 10**6
    assert windows.choose_pixel_duration([10**6] * 10, window, 1000) == 10**6
    coarse = windows.choose_pixel_duration([10**6] * 1000, window, 1000)
    assert 1000 * (2 * (10**9 // coarse) + 2) <= 4 * windows.MAX_MARKS
    assert windows.choose_pixel_duration([10] * 10**6, window, 1000) == 10**9
    starts = np.arange(200_000, dtype=np.int64) * 5_000
    lanes = Lanes(np.array([0, len(starts)]), starts, starts + 4_000, starts.astype(np.uint32), starts.astype(np.uint8))
    marks = windows.merge_events(lanes, window, windows.choose_pixel_duration([200_000], window, 1000))
    assert len(marks.starts) == 1000
    assert marks.counts.sum() == 200_000


def test_windows_of_urls() -> None:
    span = TimeWindow(1_000, 5_000_000)
    assert windows.parse_window("", "", span) == span
    assert windows.parse_window("-500", "2000000", span) == (-500, 2_000_000)
    assert windows.parse_window("3000", "3000", span) == (2_500, 3_500)
    assert windows.parse_window("3000", "2000", span) == (2_500, 3_500)
    assert windows.center_window(100_000, 100_100) == (90_000, 110_100)
    assert windows.center_window(0, 1_000_000) == (-4_000_000, 5_000_000)


@pytest.mark.parametrize(("start", "end"), [("x", ""), ("", "1.5"), ("²", ""), ("", "9" * 20), ("--1", ""), (" 1", "")])
def test_times_that_are_not_numbers(start: str, end: str) -> None:
    with pytest.raises(TracekitError, match="must be an integer number of ns"):
        windows.parse_window(start, end, TimeWindow(0, 10))


def test_windows_outside_the_capture() -> None:
    for start, end in (("500", "600"), ("-600", "-500")):
        with pytest.raises(TracekitError, match="no events between"):
            windows.parse_window(start, end, TimeWindow(0, 10))
    with pytest.raises(TracekitError, match="at most"):
        windows.parse_window(str(-(2**61)), str(2**61), TimeWindow(0, 10))
