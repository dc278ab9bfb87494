"""Infer from recorded times for what API calls wait: synchronizations, blocking copies, launches into a full queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.diagnosis.items import NO_WAIT, WAIT_ALL, WAIT_LANE, WAIT_OPERATION, join_synchronizations
from tracekit.core.diagnosis.kinds import CALL_NUMBERS
from tracekit.core.diagnosis.operations import NEAR_NS, USUAL_DELAY_NS
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracekit.core.diagnosis.events import Events
    from tracekit.core.diagnosis.items import Items
    from tracekit.core.diagnosis.operations import Operations

    Int64s = npt.NDArray[np.int64]

_SYNC_NS, _COPY_CALL_NS, _SLOW_CALL_NS, _WAITED_NS = 1_500, 3_000, 100_000, 10_000
_FULL_QUEUE, _SOME_QUEUE = 500, 64
_NEVER = np.iinfo(np.int64).min


def set_waits(items: Items, ops: Operations, events: Events) -> None:
    """Infer for what calls wait, and set ``wait``, ``target``, ``residue`` and ``duration`` of their items in place."""
    if not len(ops.start):
        return
    by_end = np.argsort(ops.end, kind="stable")
    ends = ops.end[by_end]
    done = np.searchsorted(ends, items.end, side="right") - 1
    ended = by_end[np.maximum(done, 0)]
    ended = np.where((done >= 0) & (ended < items.first), ended, -1)
    since = items.end - ops.end[np.maximum(ended, 0)]
    _set_synchronization_waits(items, ops, events, ended, since)
    _set_copy_waits(items, ops, events)
    is_launch = np.isin(items.kind, [CALL_NUMBERS[k] for k in ("launch", "copy", "memset", "graph_launch", "other")])
    typical = _find_typical_launch(items)
    outstanding = items.first - np.searchsorted(ends, items.start, side="right")
    is_slow = (items.duration > _SLOW_CALL_NS) & (outstanding > _SOME_QUEUE)
    is_slow |= (items.duration > 2 * typical) & (outstanding > _FULL_QUEUE)
    is_full = is_launch & (items.wait == NO_WAIT) & is_slow & (ended >= 0) & (items.lane == 0)
    is_full &= (since < _SLOW_CALL_NS) & (since <= items.duration)
    items.wait[is_full], items.target[is_full], items.residue[is_full] = WAIT_OPERATION, ended[is_full], since[is_full]
    items.duration[is_full] = np.minimum(items.duration[is_full], typical)


def _find_typical_launch(items: Items) -> int:
    durations = items.duration[items.kind == CALL_NUMBERS["launch"]]
    return int(np.median(durations)) if len(durations) else USUAL_DELAY_NS


def _set_synchronization_waits(items: Items, ops: Operations, events: Events, ended: Int64s, since: Int64s) -> None:
    """Set the waits of calls that synchronize with a device, a stream or an event.

    Args:
        items: The items.
        ops: The operations.
        events: The events of the process.
        ended: The operation that ended last before the end of each item, or -1.
        since: Time from the end of this operation to the end of the item.
    """
    rows = np.flatnonzero((items.kind == CALL_NUMBERS["synchronize"]) & (items.lane == 0))
    if not len(rows):
        return
    names = events.calls["name"].gather(create_series(items.call[rows])).cast(pl.String).str.to_lowercase()
    of_event = names.str.contains("eventsynchronize").to_numpy()
    of_stream = names.str.contains("streamsynchronize|queuesynchronize").to_numpy()
    known = join_synchronizations(items, events, "syncs").drop_nulls("lane")
    lane_of_item = np.full(len(items.start), -1, np.int64)
    lane_of_item[known["item"].to_numpy()] = known["lane"].to_numpy()
    lanes = np.where(of_stream, lane_of_item[rows], -1)
    for lane in [-1, *np.flatnonzero(np.bincount(ops.lane)).tolist()]:
        of_lane = rows[~of_event & (lanes == lane)]
        if not len(of_lane):
            continue
        own = np.arange(len(ops.lane)) if lane < 0 else np.flatnonzero(ops.lane == lane)
        latest = np.maximum.accumulate(ops.end[own])
        before = np.searchsorted(own, items.first[of_lane] + items.launches[of_lane], side="left") - 1
        last = np.where(before >= 0, latest[before], _NEVER)
        base = np.minimum(items.duration[of_lane], _SYNC_NS)
        waited = (last > items.start[of_lane] + base) & (last <= items.end[of_lane])
        can_wait = (before >= 0) & (last <= items.end[of_lane])
        items.wait[of_lane] = np.where(can_wait, WAIT_ALL if lane < 0 else WAIT_LANE, NO_WAIT)
        items.target[of_lane] = lane
        items.residue[of_lane] = np.where(waited, items.end[of_lane] - last, 0)
        items.duration[of_lane] = np.where(waited, base, items.duration[of_lane])
    others = rows[(of_event | (items.wait[rows] == NO_WAIT)) & (items.duration[rows] > _WAITED_NS)]
    others = others[(ended[others] >= 0) & (since[others] < NEAR_NS)]
    items.wait[others], items.target[others], items.residue[others] = WAIT_OPERATION, ended[others], since[others]
    items.duration[others] = np.minimum(items.duration[others], _SYNC_NS)


def _set_copy_waits(items: Items, ops: Operations, events: Events) -> None:
    """Set the waits of copies that return when the copy has ended."""
    rows = np.flatnonzero((items.kind == CALL_NUMBERS["copy"]) & (items.launches > 0) & (items.lane == 0))
    last = items.first[rows] + items.launches[rows] - 1
    pageable = events.operations["pageable"].gather(create_series(ops.row[last])).to_numpy()
    names = events.calls["name"].gather(create_series(items.call[rows])).cast(pl.String)
    blocks = pageable | ~names.str.contains("Async").to_numpy()
    residue = items.end[rows] - ops.end[last]
    waits = blocks & (residue > -NEAR_NS)
    chosen = rows[waits]
    items.wait[chosen], items.target[chosen], items.residue[chosen] = WAIT_OPERATION, last[waits], residue[waits]
    items.duration[chosen] = np.minimum(items.duration[chosen], _COPY_CALL_NS)
