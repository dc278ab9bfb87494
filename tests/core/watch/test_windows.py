"""Which captures of different ranks belong together."""

from __future__ import annotations

import pytest
from tests.core.watch.test_summary import summary_of
from tracekit.core.watch import CapturePlace, MatchRule, WatchWindow, choose_window, merge_summaries
from tracekit.core.watch.windows import is_match

S = 1_000_000_000
AUTO = MatchRule()


def steps(first: int, last: int) -> CapturePlace:
    return CapturePlace(first, last)


def at(start: int, end: int) -> CapturePlace:
    return CapturePlace(start_utc_ns=start * S, end_utc_ns=end * S)


def both(first: int, last: int, start: int, end: int) -> CapturePlace:
    return CapturePlace(first, last, start * S, end * S)


@pytest.mark.parametrize(
    ("a", "b", "rule", "expected"),
    [
        (steps(0, 9), steps(0, 9), AUTO, True),
        (steps(0, 9), steps(5, 14), AUTO, True),
        (steps(0, 9), steps(6, 15), AUTO, False),
        (steps(0, 9), steps(4, 5), AUTO, True),
        (at(0, 5), at(3, 8), AUTO, True),
        (at(0, 5), at(15, 20), AUTO, True),
        (at(0, 5), at(16, 20), AUTO, False),
        (at(0, 5), at(16, 20), MatchRule("auto", 20 * S), True),
        (both(0, 9, 0, 5), both(0, 9, 100, 105), AUTO, False),
        (both(0, 9, 0, 5), both(0, 9, 100, 105), MatchRule("steps"), True),
        (both(0, 9, 0, 5), both(50, 59, 0, 5), AUTO, False),
        (both(0, 9, 0, 5), both(50, 59, 0, 5), MatchRule("time"), True),
        (both(0, 9, 0, 5), both(50, 59, 100, 105), MatchRule("order"), True),
        (steps(0, 9), at(0, 5), AUTO, True),
        (CapturePlace(), CapturePlace(), AUTO, True),
    ],
)
def test_captures_match(a: CapturePlace, b: CapturePlace, rule: MatchRule, expected: bool) -> None:
    assert is_match(a, b, rule) == expected
    assert is_match(b, a, rule) == expected


def test_a_rank_has_one_capture_per_window() -> None:
    windows = [WatchWindow(1, steps(0, 9), {0, 1}), WatchWindow(2, steps(0, 9), {0})]
    assert choose_window(steps(0, 9), [2], windows) == 1
    assert choose_window(steps(0, 9), [1], windows) == 2
    assert choose_window(steps(0, 9), [0], windows) is None
    assert choose_window(steps(0, 9), [2, 0], windows) is None
    assert choose_window(steps(20, 29), [2], windows) is None


def test_the_nearest_window_is_chosen() -> None:
    windows = [WatchWindow(1, at(0, 4), {0}), WatchWindow(2, at(8, 12), {0})]
    assert choose_window(at(1, 5), [1], windows) == 1
    assert choose_window(at(7, 11), [1], windows) == 2


def test_the_place_of_a_summary() -> None:
    summary = summary_of(window=3, ranks=2)
    place = CapturePlace.from_summary(summary)
    assert place[:2] == (24, 31)
    assert place.start_utc_ns == summary.ranks["start_utc_ns"].min()
    assert place.end_utc_ns == summary.ranks["end_utc_ns"].max()
    assert CapturePlace.from_summary(merge_summaries([])) == CapturePlace()
