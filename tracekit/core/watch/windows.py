"""Decide which captures of different ranks belong together: they recorded the same steps at the same time.

A *window* contains at most one capture per rank. A capture belongs to the window whose first capture it matches:

- If the program numbered the steps in both captures, at least half of the steps of the shorter one are in both.
- If both captures record the time in UTC, the intervals of their steps overlap, or are at most a tolerance apart.

Numbers that begin anew in each capture are therefore distinguished by the time, and captures without numbers are
matched by time alone. If neither is known, or if the user wants it so, the n-th captures of all ranks belong together.
Of several windows, the one that began at the nearest time is chosen, and otherwise the earliest one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from tracekit.core.watch.summary import CaptureSummary

AUTO, BY_STEP, BY_TIME, BY_ORDER = "auto", "steps", "time", "order"
RULES = (AUTO, BY_STEP, BY_TIME, BY_ORDER)
DEFAULT_TOLERANCE_NS = 10_000_000_000
_SHARED = 2


class CapturePlace(NamedTuple):
    """Which steps a capture contains, and when they ran.

    Attributes:
        first_step: Number of the first step. None if the program did not number the steps.
        last_step: Number of the last step.
        start_utc_ns: Start of the first step in UTC. None if it is unknown.
        end_utc_ns: End of the last step.
    """

    first_step: int | None = None
    last_step: int | None = None
    start_utc_ns: int | None = None
    end_utc_ns: int | None = None

    @classmethod
    def from_summary(cls, summary: CaptureSummary) -> CapturePlace:
        """Return the place of the captures of a summary."""
        ranks = summary.ranks
        lowest, highest = ranks.min(), ranks.max()
        sources = {"first_step": lowest, "last_step": highest, "start_utc_ns": lowest, "end_utc_ns": highest}
        return cls(**{name: frame[name].item() for name, frame in sources.items()}) if ranks.height else cls()


class WatchWindow(NamedTuple):
    """A window with the ranks that it contains.

    Attributes:
        number: Number of the window, from 1 in order of their first captures.
        place: The place of its first capture.
        ranks: The ranks whose captures it contains.
    """

    number: int
    place: CapturePlace
    ranks: Collection[int]


class MatchRule(NamedTuple):
    """How captures are matched.

    Attributes:
        by: ``auto``, or only ``steps``, ``time`` or ``order``.
        tolerance_ns: Largest time between captures of one window that do not overlap.
    """

    by: str = AUTO
    tolerance_ns: int = DEFAULT_TOLERANCE_NS


def choose_window(
    place: CapturePlace,
    ranks: Collection[int],
    windows: Iterable[WatchWindow],
    rule: MatchRule = MatchRule(),  # noqa: B008
) -> int | None:
    """Return the number of the window to which a capture belongs, or None if it begins a new window.

    Args:
        place: The place of the capture.
        ranks: The ranks of the capture.
        windows: The windows so far.
        rule: How captures are matched.
    """
    free = [w for w in windows if not any(rank in w.ranks for rank in ranks)]
    candidates = [(_measure_distance(place, w.place), w.number) for w in free if is_match(place, w.place, rule)]
    return min(candidates)[1] if candidates else None


def is_match(place: CapturePlace, other: CapturePlace, rule: MatchRule) -> bool:
    """Return whether two captures of different ranks belong together."""
    if rule.by == BY_ORDER:
        return True
    steps = None if rule.by == BY_TIME else _share_steps(place, other)
    time = None if rule.by == BY_STEP else _share_time(place, other, rule.tolerance_ns)
    return steps is not False and time is not False


def _share_steps(place: CapturePlace, other: CapturePlace) -> bool | None:
    """Return whether two captures have half of their steps in common, or None if the steps are not numbered."""
    if place.first_step is None or other.first_step is None or place.last_step is None or other.last_step is None:
        return None
    common = min(place.last_step, other.last_step) - max(place.first_step, other.first_step) + 1
    shorter = min(place.last_step - place.first_step, other.last_step - other.first_step) + 1
    return _SHARED * common >= shorter


def _share_time(place: CapturePlace, other: CapturePlace, tolerance_ns: int) -> bool | None:
    """Return whether two captures are at the same time, or None if the time is unknown."""
    if place.start_utc_ns is None or other.start_utc_ns is None or place.end_utc_ns is None or other.end_utc_ns is None:
        return None
    return max(place.start_utc_ns, other.start_utc_ns) - min(place.end_utc_ns, other.end_utc_ns) <= tolerance_ns


def _measure_distance(place: CapturePlace, other: CapturePlace) -> int:
    """Return the time between the starts of two captures, or 0 if it is unknown."""
    return (
        0 if place.start_utc_ns is None or other.start_utc_ns is None else abs(place.start_utc_ns - other.start_utc_ns)
    )
