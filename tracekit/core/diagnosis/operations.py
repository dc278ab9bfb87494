"""Infer from recorded times what held back the GPU operations of steps: launches, streams, and other operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.diagnosis.kinds import CALL_NUMBERS
from tracekit.core.relations import STREAM
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
NEAR_NS = 30_000
"""Time after the end of an operation within which a call or another operation may have waited for it."""
USUAL_DELAY_NS = 7_000
"""Time from a launch to the start of the operation on a free stream, if it cannot be told from a capture."""
_USUAL_GAP_NS = 1_000
_QUEUED_GAP_NS, _LAUNCH_NS, _FAR_NS, _FREE_GAP_NS = 4_000, 60_000, 1_000_000, 6_000
_LATE_NS, _NEXT_NS = 20_000, 1_000
_MAX_CANDIDATES = 64


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
    rows = events.read(table).select("correlation_id", "event_sync_id", *STREAM).drop_nulls("correlation_id").collect()
    is_call = items.call >= 0
    of_items = pl.DataFrame(
        {
            "item": create_series(np.flatnonzero(is_call)),
            "correlation_id": events.calls["correlation_id"].gather(create_series(items.call[is_call])),
        }
    )
    joined = of_items.join(rows, on="correlation_id", maintain_order="left_right")
    lanes = events.lanes.filter(pl.col("stream_id").is_not_null())
    joined = joined.join(lanes, on=STREAM, how="left", maintain_order="left", nulls_equal=True)
    return joined.select("item", "event_sync_id", pl.col("lane").cast(pl.Int64))


class Operations(NamedTuple):
    """What the GPU does, as columns with one element per operation, in order of launch.

    Attributes:
        start: Recorded start.
        end: Recorded end.
        row: Row number in ``Events.operations``.
        item: Row number of the item that launches the operation.
        lane: Number of the stream.
        cls: Number of the class.
        duration: Recorded duration.
        delay: Time from the start of the item to the earliest start.
        gap: Time after the end of the operation before it on its stream.
        dependency: Row number of the operation on another stream on which it depends, or -1.
        dependency_gap: Time after the end of that operation.
    """

    start: Int64s
    end: Int64s
    row: Int64s
    item: Int64s
    lane: Int32s
    cls: npt.NDArray[np.int8]
    duration: Int64s
    delay: Int64s
    gap: Int64s
    dependency: Int32s
    dependency_gap: Int64s


def infer_bounds_of_operations(items: Items, rows: Int64s, item: Int64s, events: Events) -> Operations:
    """Infer from recorded times what held back each operation: its launch, its stream, or another stream.

    Args:
        items: The items.
        rows: Row numbers of the operations in ``Events.operations``, in order of launch.
        item: Row numbers of the items that launch them.
        events: The events of the process.
    """
    table = events.operations.select(pl.col("start_ns", "end_ns", "lane", "cls").gather(create_series(rows)))
    start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    lane = table["lane"].to_numpy().astype(np.int32)
    delay = start - items.start[item]
    last = table.select(pl.col("end_ns").cum_max().shift(1).over("lane")).to_series()
    has_last = last.is_not_null().to_numpy()
    gap = start - last.fill_null(0).to_numpy()
    usual_delay, usual_gap = _find_usual_delay_and_gap(delay, gap, has_last)
    short_gap = np.minimum(gap, usual_gap)
    held = _find_recorded_dependencies(items, lane, end, start, events)
    is_queued = has_last & (gap <= _QUEUED_GAP_NS)
    is_launched = delay <= _LAUNCH_NS
    since_held = start - end[np.maximum(held, 0)]
    is_held = (held >= 0) & ~is_queued & (since_held < NEAR_NS)
    is_late = has_last & (gap <= _LAUNCH_NS) & (delay > gap + _LATE_NS)
    is_settled = is_queued | is_launched | is_held
    farthest = np.where(_find_busy_starts(start, end), np.maximum(delay // 2, NEAR_NS), _FAR_NS)
    limit = np.where(is_late, _FREE_GAP_NS, np.clip(delay // 2, NEAR_NS, farthest))
    other = _find_operations_that_ended_before(start, end, lane, ~is_settled, limit)
    dependency = np.where(is_held, held, other)
    waits_for_other = ~is_queued & (dependency >= 0)
    since_other = start - end[np.maximum(dependency, 0)]
    is_bound_elsewhere = is_queued | waits_for_other | (is_late & ~is_launched)
    is_bound_by_stream = is_queued | (is_late & ~is_launched & ~waits_for_other)
    dependency = np.where(waits_for_other, dependency, held).astype(np.int32)
    dependency_gap = np.where(waits_for_other, since_other, np.minimum(since_held, usual_gap))
    return Operations(
        start=start,
        end=end,
        row=rows,
        item=item,
        lane=lane,
        cls=table["cls"].to_numpy(),
        duration=end - start,
        delay=np.where(is_bound_elsewhere, np.minimum(delay, usual_delay), delay),
        gap=np.select([~has_last, is_bound_by_stream], [0, gap], short_gap),
        dependency=dependency,
        dependency_gap=np.where(dependency >= 0, dependency_gap, 0),
    )


def _find_usual_delay_and_gap(delay: Int64s, gap: Int64s, has_last: Mask) -> tuple[int, int]:
    """Return the usual time from a launch to its operation on a free stream, and between queued operations."""
    free = np.sort(delay[has_last & (gap > _FREE_GAP_NS) & (delay > 0) & (delay < _LAUNCH_NS)])
    packed = np.sort(gap[has_last & (gap >= 0) & (gap < _QUEUED_GAP_NS)])
    usual_delay = int(free[len(free) // 4]) if len(free) else USUAL_DELAY_NS
    return usual_delay, int(packed[len(packed) // 2]) if len(packed) else _USUAL_GAP_NS


def _find_recorded_dependencies(items: Items, lane: Int32s, end: Int64s, start: Int64s, events: Events) -> Int64s:
    """Return the operation on which a recorded wait for an event makes each operation depend, or -1.

    The first operation that is launched on a stream after ``cudaStreamWaitEvent`` depends on the last one that was
    launched on the stream of the event before ``cudaEventRecord``.
    """
    size = len(lane)
    result = np.full(size, -1, np.int64)
    if not size or not (items.kind == CALL_NUMBERS["wait_event"]).any():
        return result
    keys = ["event_sync_id", "lane"]
    records = join_synchronizations(items, events, "cuda_events").drop_nulls(keys)
    records = records.unique("event_sync_id", keep="last", maintain_order=True)
    waits = join_synchronizations(items, events, "syncs").drop_nulls(keys)
    pairs = waits.join(records, on="event_sync_id", suffix="_of_record", maintain_order="left")
    item, of_lane, record, of_record = (
        pairs[name].to_numpy() for name in ("item", "lane", "item_of_record", "lane_of_record")
    )
    by_lane = np.argsort(lane, kind="stable")
    order = lane[by_lane].astype(np.int64) * (size + 1) + by_lane
    after = np.searchsorted(order, of_lane * (size + 1) + items.first[item])
    before = np.searchsorted(order, of_record * (size + 1) + items.first[record]) - 1
    target, source = np.append(by_lane, -1)[after], np.append(by_lane, -1)[before]
    fits = (source >= 0) & (source < target) & (lane[source] == of_record) & (lane[target] == of_lane)
    fits &= end[source] <= start[target] + _NEXT_NS
    result[target[fits]] = source[fits]
    return result


def _find_busy_starts(start: Int64s, end: Int64s) -> Mask:
    """Return which operations start while the GPU works, or just after."""
    order = np.argsort(start, kind="stable")
    latest = np.maximum.accumulate(end[order])
    result = np.zeros(len(start), np.bool_)
    result[order[1:]] = latest[:-1] >= start[order[1:]] - NEAR_NS
    return result


def _find_operations_that_ended_before(
    start: Int64s, end: Int64s, lane: Int32s, needed: Mask, limit_ns: Int64s
) -> Int64s:
    """Return the last operation of another stream that ended within a limit before each needed one started, or -1."""
    result = np.full(len(start), -1, np.int64)
    rows = np.flatnonzero(needed)
    if not len(rows):
        return result
    by_end = np.argsort(end, kind="stable")
    ends = end[by_end]
    position = np.searchsorted(ends, start[rows], side="right") - 1
    for _ in range(_MAX_CANDIDATES):
        candidate = by_end[np.maximum(position, 0)]
        near = (position >= 0) & (start[rows] - end[candidate] < limit_ns[rows])
        hit = near & (lane[candidate] != lane[rows]) & (candidate < rows)
        result[rows[hit]] = candidate[hit]
        rows, position = rows[near & ~hit], position[near & ~hit] - 1
    return result


def find_lane_starts(ops: Operations, events: Events) -> Int64s:
    """Return when each stream becomes free for its first operation, if an earlier operation of the process held it."""
    never = np.iinfo(np.int64).min
    result, first = np.full(events.lanes.height, never), np.full(events.lanes.height, never)
    first[ops.lane[::-1]] = ops.start[::-1]
    is_other = np.ones(events.operations.height, np.bool_)
    is_other[ops.row] = False
    start, end, lane = (events.operations[c].to_numpy()[is_other] for c in ("start_ns", "end_ns", "lane"))
    next_start = first[lane]
    holds = (start < next_start) & (end <= next_start) & (end >= next_start - _LAUNCH_NS)
    result[lane[holds]] = next_start[holds]
    return result
