"""Build the event model of one process, whose replay predicts the time of its steps after an edit.

The model has two kinds of events:

- *Items* are what the CPU does: API calls, and the pauses between them, which are divided at the bounds of ranges. The
  calls of all threads that take turns, such as the main thread and the autograd thread of PyTorch, form one sequence.
  Threads that make calls at the same time as the main thread have sequences of their own, whose items keep their
  recorded times.
- *Operations* are what the GPU does, in the order in which they were launched.

An item begins when the one before it ends. An operation begins when it has been launched, its stream is free, and the
operation on which it depends has ended. An item that waits ends when the operations for which it waits have ended.
Which of these bounds held in the recording is inferred from the recorded times: the model replays what was recorded,
and the bounds that did not hold have usual values, so that they can hold after an edit.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import polars as pl

from tracekit.core.diagnosis import kinds
from tracekit.core.diagnosis.events import SIZES
from tracekit.core.diagnosis.kinds import CALL_NUMBERS
from tracekit.core.diagnosis.operations import (
    LONG_NS,
    NEAR_NS,
    NO_WAIT,
    PAUSE,
    USUAL_DELAY_NS,
    WAIT_ALL,
    WAIT_LANE,
    WAIT_OPERATION,
    Items,
    Operations,
    add_other_items,
    delay_waits,
    divide_main_sequence,
    find_lane_starts,
    find_threads_in_turn,
    infer_bounds_of_operations,
    is_of_threads_expr,
    join_synchronizations,
)
from tracekit.system.memory import spill_if_large
from tracekit.system.sorting import create_series, sort_and_deduplicate

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]
    Arrays = tuple[npt.NDArray[Any], ...]
    from tracekit.core.diagnosis.events import Events, Labels, Step

    Int32s = npt.NDArray[np.int32]
    Mask = npt.NDArray[np.bool_]

_MIN_SHARED_NS = 2_000
_SYNC_NS, _COPY_CALL_NS, _SLOW_CALL_NS, _WAITED_NS = 1_500, 3_000, 100_000, 10_000
_FULL_QUEUE, _SOME_QUEUE = 500, 64
_NEVER = np.iinfo(np.int64).min
MIN_STEPS = 3
"""Number of steps from which on it can be told what recurs."""
MAX_ITEMS = 300_000
"""Number of items and operations above which only some consecutive steps are replayed."""


class Contention(NamedTuple):
    """The kernels that run at the same time as other kernels of the GPU.

    Attributes:
        rows: Rows of the operations.
        begin: Position of the start of each of them among ``bounds``.
        end: Position of its end.
        width: Time from each of the bounds to the next one, divided by the number of kernels that run in it.
    """

    rows: Int64s
    begin: Int64s
    end: Int64s
    width: npt.NDArray[np.float64]

    def shorten_others(self, duration: Int64s, edited: Int64s) -> Int64s:
        """Return durations of operations in which kernels become shorter along with those that run beside them.

        The GPU divides its time equally among the kernels that run at the same time. Therefore, a kernel that is not
        edited becomes shorter by the average of the kernels with which it shares the GPU.

        Args:
            duration: Recorded durations of all operations.
            edited: Durations of all operations after an edit.
        """
        old, new = duration[self.rows], edited[self.rows]
        ratio = np.where(new < old, new / np.maximum(old, 1), 1.0)
        if (ratio == 1).all():
            return edited
        total = np.zeros(len(self.width) + 1)
        np.add.at(total, self.begin, ratio)
        np.add.at(total, self.end, -ratio)
        area = np.concatenate([[0.0], np.cumsum(np.cumsum(total)[:-1] * self.width)])
        shared = (area[self.end] - area[self.begin]).astype(np.int64)
        result = edited.copy()
        result[self.rows] = np.where(new == old, np.minimum(old, shared + 1), new)
        return result


def find_contention(ops: Operations) -> Contention | None:
    """Return the kernels that run at the same time as others for a noticeable time, or None if there are none."""
    kernels = np.flatnonzero(kinds.select_classes(ops.cls, kinds.COMPUTE_CLASSES) & (ops.duration > 0))
    order = kernels[np.argsort(ops.start[kernels], kind="stable")]
    start, end = ops.start[order], ops.end[order]
    if not len(order):
        return None
    after = np.append(np.False_, np.maximum.accumulate(end)[:-1] - start[1:] > _MIN_SHARED_NS)
    if not after.any():
        return None
    before = np.append(end[:-1] - start[1:] > _MIN_SHARED_NS, np.False_)
    rows = order[before | after]
    bounds = sort_and_deduplicate(np.concatenate([ops.start[rows], ops.end[rows]]))
    begin, stop = np.searchsorted(bounds, ops.start[rows]), np.searchsorted(bounds, ops.end[rows])
    count = np.zeros(len(bounds), np.int64)
    np.add.at(count, begin, 1)
    np.add.at(count, stop, -1)
    running = np.maximum(np.cumsum(count)[:-1], 1)
    return Contention(rows, begin, stop, np.diff(bounds) / running)


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
    blocks = pageable | ~names.str.contains("Async").fill_null(value=False).to_numpy()
    residue = items.end[rows] - ops.end[last]
    waits = blocks & (residue > -NEAR_NS)
    chosen = rows[waits]
    items.wait[chosen], items.target[chosen], items.residue[chosen] = WAIT_OPERATION, last[waits], residue[waits]
    items.duration[chosen] = np.minimum(items.duration[chosen], _COPY_CALL_NS)


@dataclass(frozen=True)
class Model:
    """The event model of consecutive steps of one process.

    Attributes:
        events: The events of the process.
        steps: The steps that are modeled.
        bounds: Time at which each of these steps begins, and the time at which the last one ends. A step begins when
            the CPU has begun it and the GPU has finished all earlier steps.
        items: What the CPU does.
        operations: What the GPU does.
        lane_starts: Time at which each stream becomes free for the first operation of the model, or the smallest
            integer.
    """

    events: Events
    steps: tuple[Step, ...]
    bounds: Int64s
    items: Items
    operations: Operations
    lane_starts: Int64s

    @property
    def start_ns(self) -> int:
        """Start of the first step."""
        return int(self.bounds[0])

    @property
    def end_ns(self) -> int:
        """End of the last step."""
        return int(self.bounds[-1])

    @property
    def duration_ns(self) -> int:
        """Recorded duration of all steps."""
        return self.end_ns - self.start_ns

    @property
    def labels(self) -> Labels:
        """The labels of the program."""
        return self.events.labels

    @functools.cached_property
    def pauses(self) -> Mask:
        """Which items are pauses on lane 0."""
        result: Mask = (self.items.kind == PAUSE) & (self.items.lane == 0)
        return result

    @functools.cached_property
    def long_pauses(self) -> Mask:
        """Which items are pauses that are work of the program."""
        return self.pauses & (self.items.end - self.items.start >= LONG_NS)

    @functools.cached_property
    def step_of_item(self) -> Int32s:
        """Number of the step in which each item starts, from 0."""
        starts = np.array([s.start_ns for s in self.steps], np.int64)
        return np.maximum(find_steps(starts, self.items.start), 0).astype(np.int32)

    @functools.cached_property
    def contention(self) -> Contention | None:
        """The kernels that run at the same time as others, or None if there are none."""
        return find_contention(self.operations)

    def find_kind(self, *names: str) -> Mask:
        """Return which items are API calls of the named kinds."""
        result: Mask = np.isin(self.items.kind, [CALL_NUMBERS[n] for n in names])
        return result

    def find_class(self, *names: str) -> Mask:
        """Return which operations belong to the named classes."""
        return kinds.select_classes(self.operations.cls, names)

    @functools.cached_property
    def sizes(self) -> pl.DataFrame:
        """What was recorded of the operations, in their order: the columns ``SIZES`` of ``Events.operations``."""
        columns = SIZES
        return self.events.operations.select(pl.col(columns).gather(create_series(self.operations.row)))

    @functools.cached_property
    def bytes(self) -> Int64s:
        """The size of each copy and memory set in bytes, or 0."""
        return self.sizes["bytes"].fill_null(0).to_numpy()

    @functools.cached_property
    def blocks(self) -> Int64s:
        """The number of thread blocks of each kernel, or 0 if it is unknown."""
        return self.sizes["blocks"].fill_null(0).to_numpy()

    @functools.cached_property
    def names(self) -> pl.Series:
        """The name of each operation."""
        return self.sizes["name"]

    def match_names(self, pattern: str) -> Mask:
        """Return which operations have a name that a regular expression matches."""
        distinct = self.names.unique().drop_nulls()
        matches = distinct.filter(distinct.cast(pl.String).str.contains(pattern))
        return self.names.is_in(matches.implode()).fill_null(value=False).to_numpy()

    def match_labels(self, pattern: str) -> Mask:
        """Return which labels a regular expression matches, by number."""
        return pl.Series(self.labels.names, dtype=pl.String).str.contains(pattern).to_numpy()


def find_bounds(events: Events, steps: tuple[Step, ...]) -> Int64s:
    """Return the time at which each step begins, and the time at which the last one ends.

    A step begins when the CPU has begun it and the GPU has finished the work of all earlier steps. The last one ends
    when both have ended it.
    """
    times = np.array([*(s.start_ns for s in steps), steps[-1].end_ns], np.int64)
    done = find_last_ends(events.launch_ns, events.operations["end_ns"].to_numpy(), times)
    return np.maximum.accumulate(np.maximum(times, done))


def find_last_ends(launches: Int64s, ends: Int64s, times: Int64s) -> Int64s:
    """Return the last end of the operations that were launched before each time, or the smallest integer."""
    order = np.argsort(launches, kind="stable")
    latest: Int64s = np.append(_NEVER, np.maximum.accumulate(ends[order]))
    return latest[np.searchsorted(launches[order], times, side="left")]


def find_steps(bounds: Int64s, times: Int64s) -> Int64s:
    """Return the number of the step in which each time lies, from 0. It is -1 before the first of the bounds."""
    return np.searchsorted(bounds, times, side="right") - 1


def build_model(events: Events, steps: tuple[Step, ...]) -> Model:
    """Return the event model of consecutive steps."""
    bounds = find_bounds(events, steps)
    first, cpu_end = steps[0].start_ns, steps[-1].end_ns
    calls = events.calls.with_row_index("position")
    calls = calls.filter(((pl.col("end_ns") > first) | (pl.col("start_ns") >= first)) & (pl.col("start_ns") < cpu_end))
    calls = delay_waits(calls, events)
    main = calls.filter(is_of_threads_expr(find_threads_in_turn(events, calls)))
    items, item_of_call = divide_main_sequence(main, events, first, cpu_end)
    rows = _select_operations(events, calls["position"], first, int(bounds[-1]))
    items, (rows, item) = add_other_items(items, item_of_call, rows, events)
    ops = infer_bounds_of_operations(items, rows, item, events)
    set_waits(items, ops, events)
    items = Items._make(map(spill_if_large, cast("Arrays", items)))
    ops = Operations._make(map(spill_if_large, cast("Arrays", ops)))
    return Model(events, steps, bounds, items, ops, find_lane_starts(ops, events))


def find_representative_steps(durations: Int64s, count: int) -> int:
    """Return the first of consecutive steps whose mean duration is nearest to that of all steps."""
    totals = np.concatenate([[0], np.cumsum(durations)])
    means = (totals[count:] - totals[:-count]) / count
    return int(np.argmin(np.abs(means - durations.mean())))


def _select_operations(events: Events, calls: pl.Series, first: int, last: int) -> Int64s:
    """Return the operations that the calls launched, and those without a recorded call that ran at the time."""
    is_launched = pl.col("call").is_in(calls.implode())
    is_unknown = pl.col("call").is_null() & pl.col("start_ns").is_between(first, last, closed="left")
    return events.operations.select((is_launched | is_unknown).arg_true().cast(pl.Int64)).to_series().to_numpy()
