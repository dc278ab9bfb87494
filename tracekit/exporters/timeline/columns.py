"""Determine the columns, arguments and times of events, as declared by their ``EventKind``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.kinds import INTEGER, Arg, Value

if TYPE_CHECKING:
    from collections.abc import Collection

    from tracekit.exporters.timeline.kinds import EventKind


class Clock(NamedTuple):
    """The conversion of times in the capture to times in the file.

    Attributes:
        shift_ns: Number of ns to add to every time, so that no time is negative.
        end_ns: End of the capture in ns, used as the end of events that were never closed, or 0 if there are none.
        drift: Number of ns to add to every time per ns of that time, so that several traces share one clock.
    """

    shift_ns: int = 0
    end_ns: int = 0
    drift: float = 0.0

    def converted_time_expr(self, time: pl.Expr) -> pl.Expr:
        """Return an expression that converts times in the capture to times in the file, both in ns."""
        drifted = time + (time * self.drift).round().cast(pl.Int64) if self.drift else time
        return drifted + self.shift_ns if self.shift_ns else drifted


def choose_event_columns(kind: EventKind, names: Collection[str]) -> list[str]:
    """Return the columns needed to draw events of a kind, or an empty list if the table lacks a required column.

    Args:
        kind: The kind of the events.
        names: Names of the columns of the table.
    """
    required = [
        *list_position_columns(kind),
        *list_column_names(*value_exprs(get_key_arg(kind)), kind.name, kind.where),
    ]
    if not set(required) <= set(names):
        return []
    args = select_available_args(kind.row_args + kind.repeated_args, names)
    links = [c for c in (*kind.links, *(["api_call_id"] if kind.launched else [])) if c in names]
    return list(dict.fromkeys([*required, *list_column_names(*value_exprs(*args)), *links]))


def get_key_arg(kind: EventKind) -> Arg:
    """Return the first argument of the events of a kind. The argument is never null."""
    return Arg(kind.key, kind.key_values or (Value(INTEGER, pl.col(kind.key)),))


def value_exprs(*args: Arg) -> list[pl.Expr]:
    """Return the expressions of all alternative values of the given arguments."""
    return [value.expression for arg in args for value in arg.values]


def list_position_columns(kind: EventKind) -> list[str]:
    """Return the columns that determine the position of an event: the keys of its track, and its start and end."""
    times = list_column_names(kind.start, kind.end) if kind.phase == kinds.SLICE else list_column_names(kind.start)
    return list(dict.fromkeys([*kind.placement.keys, *times]))


def select_available_args(args: tuple[Arg, ...], names: Collection[str]) -> list[Arg]:
    """Return the arguments whose columns are all contained in ``names``."""
    return [arg for arg in args if set(list_column_names(*value_exprs(arg))) <= set(names)]


def list_anomaly_args(kind: EventKind) -> list[Arg]:
    """Return the additional arguments of slices that were never closed or that end before they start."""
    if kind.phase != kinds.SLICE:
        return []
    duration = kind.end - kind.start
    return [
        Arg("open", (Value(kinds.TRUE, pl.when(kind.end.is_null()).then(pl.lit(value=True))),)),
        Arg("negative_duration_ns", (Value(INTEGER, pl.when(duration < 0).then(duration)),)),
    ]


def list_column_names(*expressions: pl.Expr | None) -> list[str]:
    """Return the names of the columns that the given expressions use."""
    return [name for e in expressions if e is not None for name in e.meta.root_names()]


def start_expr(kind: EventKind, clock: Clock) -> pl.Expr:
    """Return an expression for the start of events in ns, as written to the file."""
    return clock.converted_time_expr(kind.start)


def duration_expr(kind: EventKind, clock: Clock) -> pl.Expr:
    """Return an expression for the duration of slices in ns, as written to the file.

    A slice that was never closed ends with the capture. A slice that ends before it starts has the duration 0.
    """
    end = kind.end.fill_null(clock.end_ns)
    duration = (
        clock.converted_time_expr(end) - clock.converted_time_expr(kind.start) if clock.drift else end - kind.start
    )
    return duration.clip(lower_bound=0)
