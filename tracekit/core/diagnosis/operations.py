"""Infer from recorded times what held back the GPU operations of steps: launches, streams, and other operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.diagnosis.items import join_synchronizations
from tracekit.core.diagnosis.kinds import CALL_NUMBERS
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracekit.core.diagnosis.events import Events
    from tracekit.core.diagnosis.items import Items

    Int64s = npt.NDArray[np.int64]
    Int32s = npt.NDArray[np.int32]
    Mask = npt.NDArray[np.bool_]

NEAR_NS = 30_000
"""Time after the end of an operation within which a call or another operation may have waited for it."""

USUAL_DELAY_NS = 7_000
"""Time from a launch to the start of the operation on a free stream, if it cannot be told from a capture."""

_USUAL_GAP_NS = 1_000
_QUEUED_GAP_NS, _LAUNCH_NS, _FAR_NS, _FREE_GAP_NS = 4_000, 60_000, 1_000_000, 6_000
_LATE_NS, _NEXT_NS = 20_000, 1_000
_MAX_CANDIDATES = 64


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
