"""The windows of time that the timeline converts."""

from __future__ import annotations

import pytest
import tracekit as tk
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.view.support import table
from tracekit.errors import TracekitError
from tracekit.view import windows


def trace_of(starts: list[int]) -> tk.Trace:
    rows = [{"kernel_id": i, "start_ns": s, "end_ns": s + 10} for i, s in enumerate(starts)]
    return tk.Trace.from_tables({"kernels": table("kernels", rows)})


def test_a_small_capture_is_converted_completely() -> None:
    trace = trace_of([0, 5_000_000, 90_000_000])
    window = windows.choose_window(trace, "", "")
    assert window == ((0, 90_000_010), (0, 90_000_010), (0, 90_000_010))
    assert window.contains_all_events
    assert (window.compute_preceding_window(), window.compute_following_window()) == (None, None)
    window = windows.choose_window(trace, "5000000", "5000010")
    assert window.contains_all_events
    assert window.shown == (4_500_000, 5_500_010)
    assert windows.choose_window(trace, "5000000", "").shown[1] == 90_000_010
    assert windows.choose_window(trace, "5000000", "4").shown == (4_500_000, 5_500_000)


@settings(max_examples=examples(160))
@given(
    st.lists(st.integers(0, 1000).map(lambda n: n * 100_000), min_size=1, max_size=30),
    st.integers(0, 100_000_000),
    st.integers(0, 50_000_000),
    st.integers(1, 40),
)
@example(starts=[0, 0], start=0, length=0, limit=1)
def test_windows_contain_what_is_shown(starts: list[int], start: int, length: int, limit: int) -> None:
    trace = trace_of(starts)
    before, windows.MAX_EVENTS = windows.MAX_EVENTS, limit
    try:
        window = windows.choose_window(trace, str(start), str(start + length))
    except TracekitError:
        assert start > max(starts) + 10 or start + length < min(starts)
        return
    finally:
        windows.MAX_EVENTS = before
    span, (low, high), shown = window
    assert span == (min(starts), max(starts) + 10)
    assert span[0] <= low <= high <= span[1]
    assert span[0] <= shown[0] <= shown[1] <= span[1]
    inside = sum(low <= s < high for s in starts)
    if len(starts) <= limit:
        assert window.contains_all_events
    elif sum(shown[0] <= s < shown[1] for s in starts) < limit:
        assert low <= shown[0]
        assert shown[1] <= high
    same = max(starts.count(s) for s in starts)
    assert inside <= max(limit, min(len(starts), limit)) + 2 * same
    for part in (window.compute_preceding_window(), window.compute_following_window()):
        assert part is None or (span[0] <= part[0] < part[1] <= span[1])
    assert (window.compute_preceding_window() is None) == (low <= span[0])
    assert (window.compute_following_window() is None) == (high >= span[1])


@pytest.mark.parametrize(("start", "end"), [("x", ""), ("", "1.5"), ("²", ""), ("", "9" * 20), ("--1", ""), (" 1", "")])
def test_times_that_are_not_numbers(start: str, end: str) -> None:
    with pytest.raises(TracekitError, match="must be an integer number of ns"):
        windows.choose_window(trace_of([0]), start, end)


def test_times_outside_the_capture() -> None:
    with pytest.raises(TracekitError, match="no events between"):
        windows.choose_window(trace_of([0]), "500", "600")
    with pytest.raises(TracekitError, match=r"the timeline has no events: no kernels, memcpys, .* were recorded"):
        windows.choose_window(tk.Trace.from_tables({}), "", "")


def test_the_timeline_zooms_to_what_it_converts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "MAX_EVENTS", 100)
    trace = trace_of([n * 1_000_000 for n in range(500)])
    for start, end in (("", ""), ("100000000", "400000000")):
        window = windows.choose_window(trace, start, end)
        assert not window.contains_all_events
        assert window.converted[0] <= window.shown[0] < window.shown[1] <= window.converted[1]
