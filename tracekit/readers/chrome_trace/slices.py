"""Match the events that begin and end a slice, and build the ranges of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.readers.chrome_trace.events import (
    ASYNC_BEGIN,
    ASYNC_END,
    BEGIN,
    COMPLETE,
    END,
    OLD_BEGIN,
    OLD_END,
    get_phase_code,
)
from tracekit.readers.common.slices import NONE, match_slices, merge_json_objects_expr

if TYPE_CHECKING:
    from collections.abc import Sequence

PUSH_POP, START_END = "push_pop", "start_end"
COLUMNS = ("row", "start_ns", "end_ns", "kind", "process_id", "thread_id", "end_thread_id", "category", "name", "args")


class MatchedRanges(NamedTuple):
    """The ranges of a trace.

    Attributes:
        frame: The ranges in the order of their beginnings in the file, with ``COLUMNS``.
        unmatched: Number of events that end a slice of which no beginning was recorded.
    """

    frame: pl.DataFrame
    unmatched: int


def build_ranges(events: pl.DataFrame) -> MatchedRanges:
    """Return the ranges of the events of all phases of slices.

    Args:
        events: The events in the order of the file, with the columns ``row``, ``phase``, ``start_ns``, ``duration_ns``,
            ``process_id``, ``thread_id``, ``category``, ``name``, ``id``, ``local_id``, ``scope`` and ``args``.
    """
    complete = events.filter(pl.col("phase") == get_phase_code(COMPLETE))
    frames = [
        complete.select(
            *_take(complete.columns, COLUMNS),
            end_ns=pl.col("start_ns") + pl.col("duration_ns"),
            kind=pl.lit(PUSH_POP),
            end_thread_id=pl.lit(None, pl.Int64),
        ).select(COLUMNS)
    ]
    unmatched = 0
    # The ids of asynchronous events belong to no process, unless the events state that they are local.
    is_local = pl.col("local_id").cast(pl.String).str.contains('"local"', literal=True)
    identity = [
        *(pl.col(name).cast(pl.String) for name in ("category", "scope", "local_id", "id")),
        pl.when(is_local).then("process_id"),
    ]
    ways: tuple[tuple[tuple[str, str], list[str | pl.Expr], list[str], str], ...] = (
        ((BEGIN, END), ["process_id", "thread_id"], ["name", "category"], PUSH_POP),
        ((ASYNC_BEGIN, ASYNC_END), [*identity], ["name"], START_END),
        ((OLD_BEGIN, OLD_END), [*identity, "name"], [], START_END),
    )
    for phases, track, labels, kind in ways:
        selected = events.filter(pl.col("phase").is_in([get_phase_code(phase) for phase in phases])).drop("duration_ns")
        if selected.height:
            frame, count = _match(selected, track, labels, get_phase_code(phases[1]))
            frames.append(frame.with_columns(kind=pl.lit(kind)).select(COLUMNS))
            unmatched += count
    return MatchedRanges(pl.concat(frames).sort("row"), unmatched)


def _match(
    events: pl.DataFrame, track: Sequence[str | pl.Expr], labels: Sequence[str], end: int
) -> tuple[pl.DataFrame, int]:
    """Return the slices that pairs of events begin and end, and the number of ends without a beginning."""
    keys = [pl.col(key) if isinstance(key, str) else key for key in track]
    named = [key.alias(f"key {nth}") for nth, key in enumerate(keys)]
    names = [f"key {nth}" for nth in range(len(keys))]
    numbered = events.select("start_ns", "row", *named)
    tracks = numbered.select(names).unique().with_row_index("track")
    numbered = numbered.join(tracks, on=names, how="left", nulls_equal=True, maintain_order="left").drop(names)
    order = numbered.with_row_index("index").sort("track", "start_ns", "row")["index"]
    codes = (events[label].cast(pl.Categorical).to_physical().cast(pl.Int64).fill_null(NONE) for label in labels)
    is_end = (events["phase"] == end).gather(order)
    matched = match_slices(
        numbered["track"].gather(order).cast(pl.Int64).to_numpy(),
        is_end.to_numpy(),
        *(column.gather(order).to_numpy() for column in codes),
    )
    ends = pl.Series(matched.ends).replace(NONE, None).filter(~is_end)
    begins, ends = order.filter(~is_end), order.gather(ends)
    last = events.select(end_ns="start_ns", end_thread="thread_id", end_args="args").select(pl.all().gather(ends))
    joined = events.select(pl.all().gather(begins)).hstack(last)
    is_other = pl.col("end_thread").ne_missing(pl.col("thread_id")) & pl.col("end_thread").is_not_null()
    return joined.with_columns(
        end_thread_id=pl.when(is_other).then("end_thread"), args=merge_json_objects_expr("args", "end_args")
    ), int(matched.is_unmatched.sum())


def _take(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    return [name for name in names if name in columns]
