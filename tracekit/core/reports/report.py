"""The input of an analysis: the tables of a trace and the values of options, and constants that analyses share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import polars as pl

from tracekit.core.relations import THREAD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.core.diagnosis import RankPlan
    from tracekit.core.rollup import Rollup
    from tracekit.registry.analyses import Value

Frames = Callable[[str], pl.LazyFrame]
Computation = Callable[[Frames], object]
TimeBounds = tuple[int | None, int | None]
Without = Callable[..., Frames]
Prefetch = Callable[[Computation], None]

TIMES = ("start_ns", "end_ns")
CALL_COLUMNS = (*THREAD, "correlation_id", *TIMES)
RANGE_COLUMNS = ("range_id", *TIMES, "kind", *THREAD, "end_thread_id", "domain", "name")
STRING_COLUMNS: Mapping[str, Sequence[str]] = {"nvtx_ranges": ("name",)}
"""Columns that reports read as String, not Categorical, keyed by table: often nearly every range has its own name."""
_EXACT_ROUNDING_SINCE = (2024, 5)


@dataclass(frozen=True, slots=True)
class Clock:
    """The position of a capture on the common time axis of all ranks, which begins with the first capture.

    Attributes:
        offset_ns: Start of the capture on the common time axis, in ns.
        duration_ns: Duration of the capture, in ns.
        end_ns: End of the last capture on the common time axis, in ns.
    """

    offset_ns: int = 0
    duration_ns: int = 0
    end_ns: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """The input from which the result of an analysis is computed.

    Attributes:
        frames: Function that returns the declared table with a given name.
        options: The values of all options of the analysis, by name.
        legacy_rounding: Whether averages are rounded as in nsys before 2024.5.
        window: The time window ``[a, b)`` in ns to which the tables of ``frames`` are limited. Either bound may be
            None.
        without: Function that returns a function like ``frames`` for the tables without some conditions on rows, such
            as ``time``, or with all recorded rows. If None, ``frames`` is used.
        create_rollup: Function that returns the roll-up of the trace. If None, the roll-up is computed from ``frames``
            with the default iterations.
        has_chosen_steps: Whether ``create_rollup`` returns a roll-up whose steps the user has chosen.
        clock: The position of the capture on the common time axis of all ranks.
        rank_plans: What is known about the other ranks of a set, by the id of each process, or None for a capture of
            its own.
        has_second_capture: Whether the layers of CUDA graphs come from a second capture.
    """

    frames: Frames
    options: Mapping[str, Value] = field(default_factory=dict)
    legacy_rounding: bool = False
    window: TimeBounds = (None, None)
    without: Without | None = None
    create_rollup: Callable[[], Rollup] | None = None
    has_chosen_steps: bool = False
    clock: Clock = Clock()
    rank_plans: Mapping[int | None, RankPlan] | None = None
    has_second_capture: bool = False

    def with_frames(self, frames: Frames) -> Request:
        """Return a copy of this request that reads all tables with one function."""
        return replace(self, frames=frames, without=None, create_rollup=None)

    def get_frames_without(self, *conditions: str) -> Frames:
        """Return a function that returns the tables without some conditions on rows, or with all recorded rows."""
        return self.frames if self.without is None else self.without(*conditions)

    def has_flag(self, option: str) -> bool:
        """Return whether an option without a value is set."""
        return bool(self.options.get(option))

    def get_integer(self, option: str) -> int:
        """Return the value of an option whose values are integers."""
        return cast("int", self.options[option])

    def get_text(self, option: str) -> str:
        """Return the value of an option whose values are strings."""
        return cast("str", self.options[option])

    def get_rollup(self) -> Rollup:
        """Return the roll-up of the trace."""
        from tracekit.core.rollup import Rollup

        return Rollup.from_frames(self.frames) if self.create_rollup is None else self.create_rollup()


def has_rows(frames: Frames, table: str) -> bool:
    """Return whether the declared table with a given name has rows."""
    return not frames(table).select(pl.first()).head(1).collect().is_empty()


def has_legacy_rounding(frames: Frames) -> bool:
    """Return whether averages must be rounded like SQLite before 3.43.

    This is the case if nsys before 2024.5, or an unknown version, wrote the capture.
    """
    versions = frames("capture_info").filter(name="tool_version").select("value").collect()["value"]
    numbers = versions.str.extract_groups(r"^(\d+)\.(\d+)").struct.unnest().cast(pl.Int64).drop_nulls()
    return not any(v >= _EXACT_ROUNDING_SINCE for v in numbers.iter_rows())
