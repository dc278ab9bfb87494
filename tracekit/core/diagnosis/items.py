"""Divide what the CPU does in steps into items: API calls, and the pauses between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.diagnosis.kinds import CALL_NUMBERS
from tracekit.system.sorting import create_series, sort_and_deduplicate

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracekit.core.diagnosis.events import Events

    Int64s = npt.NDArray[np.int64]
    Int32s = npt.NDArray[np.int32]
    Mask = npt.NDArray[np.bool_]

LONG_NS = 200_000
"""Duration of a pause between API calls from which on it is work of the program, and not part of launching."""

PAUSE = -1
NO_WAIT, WAIT_OPERATION, WAIT_LANE, WAIT_ALL = 0, 1, 2, 3
_PARALLEL_SHARE = 0.25


class Items(NamedTuple):
    """What the CPU does, as columns with one element per item, in order of start. The items of lane 0 leave no gaps.

    Attributes:
        start: Recorded start.
        end: Recorded end.
        call: Row number of the call in ``Events.calls``, or -1 for a pause.
        kind: Number of the kind of the call, or -1 for a pause.
        label: Number of the label (see ``Labels``) at the start.
        lane: Number of the sequence to which the item belongs.
        after: Row number of the item after whose end the item starts, or -1.
        duration: Time without waiting.
        wait: For what the item waits at its end: ``NO_WAIT``, ``WAIT_OPERATION``, ``WAIT_LANE`` or ``WAIT_ALL``.
        target: Row number of the operation, or number of the lane, for which it waits, or -1.
        residue: Time from the end of what it waits for to the end of the item.
        first: Row number of the first operation that the item launches.
        launches: Number of operations that the item launches.
    """

    start: Int64s
    end: Int64s
    call: Int32s
    kind: npt.NDArray[np.int8]
    label: Int32s
    lane: Int32s
    after: Int32s
    duration: Int64s
    wait: npt.NDArray[np.uint8]
    target: Int32s
    residue: Int64s
    first: Int32s
    launches: Int32s


def find_threads_in_turn(events: Events, calls: pl.DataFrame) -> set[int | None]:
    """Return the main thread and the launching threads whose calls rarely run at the same time as those of others."""
    launching = events.calls["thread_id"].gather(events.operations["call"].drop_nulls()).unique().to_list()
    chosen: set[int | None] = {events.main_thread}
    counts = calls.filter(is_of_threads_expr(set(launching))).group_by("thread_id").agg(pl.len())
    for thread in counts.sort("len", "thread_id", descending=[True, False])["thread_id"]:
        if thread in chosen:
            continue
        rows = calls.filter(is_of_threads_expr(chosen))
        own = calls.filter(is_of_threads_expr({thread}))
        if rows.height:
            ends = np.maximum.accumulate(rows["end_ns"].to_numpy())
            before = np.searchsorted(rows["start_ns"].to_numpy(), own["start_ns"].to_numpy(), side="right") - 1
            overlaps = (before >= 0) & (ends[np.maximum(before, 0)] > own["start_ns"].to_numpy())
            if overlaps.mean() > _PARALLEL_SHARE:
                continue
        chosen.add(thread)
    return chosen


def delay_waits(calls: pl.DataFrame, events: Events) -> pl.DataFrame:
    """Return the calls, sorted by start, with later starts of waits during which other threads launch operations.

    If the main thread launches nothing, it often waits for the GPU while another thread still launches. What counts is
    the wait after the last of these calls.
    """
    launching = set(events.calls["thread_id"].gather(events.operations["call"].drop_nulls()))
    if events.main_thread in launching:
        return calls
    others = calls.filter(is_of_threads_expr(launching))
    is_wait = is_of_threads_expr({events.main_thread}) & (pl.col("kind") == CALL_NUMBERS["synchronize"])
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    latest = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(others["end_ns"].to_numpy())])
    before = latest[np.searchsorted(others["start_ns"].to_numpy(), end, side="left")]
    delayed = create_series(np.clip(before, start, end))
    calls = calls.with_columns(start_ns=pl.when(is_wait).then(delayed).otherwise("start_ns"))
    return calls.sort("start_ns", -pl.col("end_ns"), maintain_order=True)


def is_of_threads_expr(threads: set[int | None]) -> pl.Expr:
    """Return an expression that tells which rows belong to one of the threads."""
    ids = pl.Series(list(threads), dtype=pl.Int64)
    return pl.col("thread_id").is_in(ids.implode(), nulls_equal=True)


def divide_main_sequence(calls: pl.DataFrame, events: Events, first: int, last: int) -> tuple[Items, Int64s]:
    """Return the items of lane 0, and the item of each row of ``Events.calls``, or -1.

    A call that runs within another one is part of it.
    """
    starts, ends = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    before = np.concatenate([[first], np.maximum(np.maximum.accumulate(ends), first)])[:-1]
    is_outer = (ends > before) | ((starts >= before) & (ends >= before))
    number = np.cumsum(is_outer) - 1
    outer_kind = _find_kinds_of_outer_calls(calls["kind"].to_numpy(), ends - starts, is_outer, number)
    end = np.minimum(np.maximum(ends, before), last)[is_outer]
    begin = np.minimum(np.maximum(starts, before)[is_outer], end)
    gap_start = np.concatenate([[first], end])
    gap_end = np.concatenate([begin, [last]])
    cuts = np.concatenate([events.labels.times, np.array([s.start_ns for s in events.steps], np.int64)])
    cuts = sort_and_deduplicate(cuts)
    after = np.searchsorted(begin, cuts, side="right")
    in_gap = (cuts > gap_start[after]) & (cuts < gap_end[after])
    has_gap = gap_end > gap_start
    if not len(begin):
        has_gap[:] = True  # a step without duration and calls is one pause, too
    pauses = np.concatenate([gap_start[has_gap], cuts[in_gap]])
    all_starts = np.concatenate([begin, pauses])
    rows = np.concatenate([np.arange(len(begin)), np.full(len(pauses), PAUSE)])
    order = np.lexsort((rows == PAUSE, all_starts))
    start, row = all_starts[order], rows[order]
    stop = np.concatenate([start[1:], [max(last, int(start[-1]))]])
    positions, is_call = calls["position"].to_numpy().astype(np.int64), row != PAUSE
    item_of_outer = np.empty(len(begin), np.int64)
    item_of_outer[row[is_call]] = np.flatnonzero(is_call)
    item_of_call = np.full(events.calls.height, -1, np.int64)
    item_of_call[positions] = item_of_outer[number]
    size = len(start)
    zeros = np.zeros(size, np.int32)
    items = Items(
        start=start,
        end=stop,
        call=np.append(positions[is_outer], PAUSE)[row].astype(np.int32),
        kind=np.append(outer_kind, PAUSE)[row].astype(np.int8),
        label=events.labels.find(start),
        lane=zeros,
        after=np.full(size, -1, np.int32),
        duration=stop - start,
        wait=np.zeros(size, np.uint8),
        target=np.full(size, -1, np.int32),
        residue=np.zeros(size, np.int64),
        first=zeros,
        launches=zeros,
    )
    return items, item_of_call


def _find_kinds_of_outer_calls(
    kind: npt.NDArray[np.int8], duration: Int64s, is_outer: Mask, number: Int64s
) -> npt.NDArray[np.int8]:
    """Return the kind of each call that is not within another one.

    A call that loads code for more than half of its time loads code.
    """
    outer = kind[is_outer].copy()
    loads = ~is_outer & (kind == CALL_NUMBERS["load"])
    loading = np.bincount(number[loads], weights=duration[loads], minlength=len(outer))
    outer[2 * loading > duration[is_outer]] = CALL_NUMBERS["load"]
    return outer


def add_other_items(
    items: Items, item_of_call: Int64s, rows: Int64s, events: Events
) -> tuple[Items, tuple[Int64s, Int64s]]:
    """Add items that launch the operations of other threads, and those without a recorded call.

    Each of these items starts at the end of an item of lane 0: at the end of the one that runs at the time, or of the
    one before, whichever is nearer. If the items of lane 0 become shorter, these items start earlier, too.

    Args:
        items: The items of lane 0.
        item_of_call: The item of each row of ``Events.calls``, or -1.
        rows: Row numbers of the operations in ``Events.operations``.
        events: The events of the process.

    Returns:
        The items, and the row numbers in ``Events.operations`` and the items of the operations in order of launch.
    """
    call = events.operations["call"].cast(pl.Int64).fill_null(-1).to_numpy()[rows]
    item = np.append(item_of_call, -1)[call]
    others = np.flatnonzero(item < 0)
    others = others[np.lexsort((call[others], events.launch_ns[rows[others]]))]
    size, added = len(items.start), len(others)
    item[others] = size + np.arange(added)
    after, times = _find_nearest_ends(items, events.launch_ns[rows[others]])
    values: dict[str, Any] = {
        **dict.fromkeys(Items._fields, 0),
        "start": times,
        "end": times,
        "after": after,
        "call": call[others],
        "kind": CALL_NUMBERS["launch"],
        "lane": 1,
        "target": -1,
    }
    by_time = np.argsort(np.append(items.start, times), kind="stable")
    position = np.empty(size + added, np.int64)
    position[by_time] = np.arange(size + added)
    columns: zip[tuple[str, npt.NDArray[Any]]] = zip(Items._fields, items, strict=True)
    extended = (np.append(c, np.broadcast_to(values[name], added).astype(c.dtype)) for name, c in columns)
    items = Items._make(column[by_time] for column in extended)
    items = items._replace(after=np.where(items.after >= 0, position[items.after], -1).astype(np.int32))
    item = position[item]
    by_launch = np.lexsort((events.operations["start_ns"].to_numpy()[rows], item))
    count = np.bincount(item, minlength=size + added).astype(np.int32)
    first = (np.cumsum(count) - count).astype(np.int32)
    return items._replace(first=first, launches=count), (rows[by_launch], item[by_launch])


def _find_nearest_ends(items: Items, times: Int64s) -> tuple[Int64s, Int64s]:
    """Return the item of lane 0 whose end is nearest to each time, or -1 before all items, and this end."""
    row = np.searchsorted(items.start, times, side="right") - 1
    current = np.maximum(row, 0)
    before_end = np.where(row > 0, items.end[np.maximum(current - 1, 0)], items.start[0])
    is_nearer = (items.end[current] - times <= times - before_end) & (row >= 0)
    after = np.where(row < 0, -1, np.where(is_nearer, current, current - 1))
    return after, np.where(is_nearer, items.end[current], np.where(row < 0, times, before_end))


def join_synchronizations(items: Items, events: Events, table: str) -> pl.DataFrame:
    """Join the rows of a table of synchronizations or CUDA events with the items whose calls recorded them.

    Returns:
        One row per row of the table with a call in the model, in order of items: ``item``, ``event_sync_id``, and
        ``lane``, which is null if the stream has no operations.
    """
    stream = ("device_id", "context_id", "stream_id")
    rows = events.read(table).select("correlation_id", "event_sync_id", *stream).drop_nulls("correlation_id").collect()
    is_call = items.call >= 0
    of_items = pl.DataFrame(
        {
            "item": create_series(np.flatnonzero(is_call)),
            "correlation_id": events.calls["correlation_id"].gather(create_series(items.call[is_call])),
        }
    )
    joined = of_items.join(rows, on="correlation_id", maintain_order="left_right")
    joined = joined.join(events.lanes, on=stream, how="left", maintain_order="left", nulls_equal=True)
    return joined.select("item", "event_sync_id", pl.col("lane").cast(pl.Int64))
