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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.diagnosis import kinds
from tracekit.core.diagnosis.kinds import CALL_NUMBERS
from tracekit.sorting import create_series

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracekit.core.diagnosis.events import Events, Labels, Step

    Int64s = npt.NDArray[np.int64]
    Int32s = npt.NDArray[np.int32]
    Mask = npt.NDArray[np.bool_]

LONG_NS = 200_000
"""Duration of a pause between API calls from which on it is work of the program, and not part of launching."""

PAUSE = -1
NO_WAIT, WAIT_OPERATION, WAIT_LANE, WAIT_ALL = 0, 1, 2, 3
_QUEUED_GAP_NS, _LAUNCH_NS, _NEAR_NS, _FAR_NS = 4_000, 60_000, 30_000, 1_000_000
_SYNC_NS, _COPY_CALL_NS, _SLOW_CALL_NS = 1_500, 3_000, 100_000
_FULL_QUEUE, _SOME_QUEUE = 500, 64
_FREE_GAP_NS, _WAITED_NS = 6_000, 10_000
_USUAL_DELAY_NS, _USUAL_GAP_NS = 7_000, 1_000
_PARALLEL_SHARE = 0.25
MIN_STEPS = 3
"""Number of steps from which on it can be told what recurs."""

MAX_ITEMS = 300_000
"""Number of items and operations above which only some consecutive steps are replayed."""


class Items(NamedTuple):
    """What the CPU does, as columns with one element per item. The items of lane 0 come first and leave no gaps.

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
        return np.maximum(np.searchsorted(starts, self.items.start, side="right") - 1, 0).astype(np.int32)

    def find_kind(self, *names: str) -> Mask:
        """Return which items are API calls of the named kinds."""
        result: Mask = np.isin(self.items.kind, [CALL_NUMBERS[n] for n in names])
        return result

    def find_class(self, *names: str) -> Mask:
        """Return which operations belong to the named classes."""
        return kinds.select_classes(self.operations.cls, names)

    @functools.cached_property
    def sizes(self) -> pl.DataFrame:
        """The ``bytes``, ``blocks``, ``threads``, ``pageable`` and ``name`` of the operations, in their order."""
        columns = ("bytes", "blocks", "threads", "pageable", "name")
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
    starts = np.array([s.start_ns for s in steps], np.int64)
    rows = events.operations.select("start_ns", "end_ns", "call")
    launched = events.calls["start_ns"].gather(rows["call"]).fill_null(rows["start_ns"]).to_numpy()
    ends, order = rows["end_ns"].to_numpy(), np.argsort(launched, kind="stable")
    last = np.maximum.accumulate(ends[order]) if len(order) else np.zeros(0, np.int64)
    before = np.searchsorted(launched[order], starts, side="left") - 1
    first_end = events.steps[0].start_ns
    done = np.where(before >= 0, last[np.maximum(before, 0)] if len(last) else first_end, starts)
    begins = np.maximum.accumulate(np.maximum(starts, done))
    stop = int(steps[-1].end_ns)
    until = int(np.searchsorted(launched[order], stop, side="left")) - 1
    end = max(stop, int(last[until]) if until >= 0 else stop, int(begins[-1]))
    return np.append(begins, end)


def build_model(events: Events, steps: tuple[Step, ...]) -> Model:
    """Return the event model of consecutive steps."""
    bounds = find_bounds(events, steps)
    first, cpu_end = steps[0].start_ns, steps[-1].end_ns
    calls = events.calls.with_row_index("position")
    calls = calls.filter(((pl.col("end_ns") > first) | (pl.col("start_ns") >= first)) & (pl.col("start_ns") < cpu_end))
    in_turn = _find_threads_in_turn(events, calls)
    main = calls.filter(_is_of_threads_expr(in_turn))
    items, item_of_call = _build_main_items(main, events, first, cpu_end)
    operations = _select_operations(events, calls, first, int(bounds[-1]))
    items, rows_and_items = _add_other_items(items, item_of_call, operations, events)
    ops = _infer_bounds_of_operations(items, rows_and_items, events)
    items = _infer_waits(items, ops, events)
    return Model(events, steps, bounds, items, ops, _find_lane_starts(ops, events))


def _find_lane_starts(ops: Operations, events: Events) -> Int64s:
    """Return when each stream becomes free for its first operation, if an earlier operation of the process held it."""
    starts = np.full(events.lanes.height, np.iinfo(np.int64).min)
    if not len(ops.start):
        return starts
    first = np.zeros(events.lanes.height, np.int64)
    first[ops.lane[::-1]] = np.arange(len(ops.lane))[::-1]
    used = np.flatnonzero(np.bincount(ops.lane, minlength=events.lanes.height))
    table = events.operations.with_row_index("row").filter(
        ~pl.col("row").is_in(create_series(ops.row).cast(pl.UInt32).implode())
    )
    lane, end = table["lane"].to_numpy(), table["end_ns"].to_numpy()
    for number in used.tolist():
        start = ops.start[first[number]]
        earlier = end[(lane == number) & (end <= start) & (table["start_ns"].to_numpy() < start)]
        if len(earlier) and start - earlier.max() <= _LAUNCH_NS:
            starts[number] = start
    return starts


def _find_threads_in_turn(events: Events, calls: pl.DataFrame) -> set[int | None]:
    """Return the main thread and the launching threads whose calls rarely run at the same time as those of others."""
    launching = events.calls["thread_id"].gather(events.operations["call"].drop_nulls()).unique().to_list()
    chosen: set[int | None] = {events.main_thread}
    counts = calls.filter(_is_of_threads_expr(set(launching))).group_by("thread_id").agg(pl.len())
    for thread in counts.sort("len", "thread_id", descending=[True, False])["thread_id"]:
        if thread in chosen:
            continue
        rows = calls.filter(_is_of_threads_expr(chosen))
        own = calls.filter(_is_of_threads_expr({thread}))
        if rows.height and own.height:
            ends = np.maximum.accumulate(rows["end_ns"].to_numpy())
            before = np.searchsorted(rows["start_ns"].to_numpy(), own["start_ns"].to_numpy(), side="right") - 1
            overlaps = (before >= 0) & (ends[np.maximum(before, 0)] > own["start_ns"].to_numpy())
            if overlaps.mean() > _PARALLEL_SHARE:
                continue
        chosen.add(thread)
    return chosen


def _is_of_threads_expr(threads: set[int | None]) -> pl.Expr:
    ids = pl.Series(list(threads), dtype=pl.Int64)
    return pl.col("thread_id").is_in(ids.implode(), nulls_equal=True)


def _build_main_items(calls: pl.DataFrame, events: Events, first: int, last: int) -> tuple[Items, Int64s]:
    """Return the items of lane 0, and the item of each row of ``Events.calls``, or -1.

    A call that runs within another one is part of it.
    """
    starts, ends = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    kind = calls["kind"].to_numpy()
    latest = np.maximum.accumulate(ends) if len(ends) else ends
    before = np.concatenate([[first], np.maximum(latest[:-1], first)]) if len(ends) else ends
    is_outer = (ends > before) | ((starts >= before) & (ends >= before))
    number = np.cumsum(is_outer) - 1
    outer_kind = _find_kinds_of_outer_calls(kind, ends - starts, is_outer, number)
    begin = np.maximum(starts, before)[is_outer]
    end = np.minimum(np.maximum(ends, before), last)[is_outer]
    begin = np.minimum(begin, end)
    gap_start = np.concatenate([[first], end])
    gap_end = np.concatenate([begin, [last]])
    cuts = np.concatenate([events.labels.times, np.array([s.start_ns for s in events.steps], np.int64)])
    cuts = cuts[np.argsort(cuts, kind="stable")]
    cuts = cuts[np.concatenate([[True], cuts[1:] != cuts[:-1]])]
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
    positions = calls["position"].to_numpy()
    outer_positions = positions[is_outer]
    is_call = row != PAUSE
    call = np.where(is_call, outer_positions[np.maximum(row, 0)] if len(outer_positions) else PAUSE, PAUSE)
    item_kind = np.where(is_call, outer_kind[np.maximum(row, 0)] if len(outer_kind) else PAUSE, PAUSE)
    item_of_outer = np.empty(len(begin), np.int64)
    item_of_outer[row[is_call]] = np.flatnonzero(is_call)
    item_of_call = np.full(events.calls.height, -1, np.int64)
    item_of_call[positions] = item_of_outer[np.maximum(number, 0)] if len(begin) else -1
    size = len(start)
    zeros = np.zeros(size, np.int32)
    items = Items(
        start=start,
        end=stop,
        call=call.astype(np.int32),
        kind=item_kind.astype(np.int8),
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
    loads = ~is_outer & (kind == CALL_NUMBERS["load"]) & (number >= 0)
    loading = np.bincount(number[loads], weights=duration[loads], minlength=len(outer))
    outer[2 * loading > duration[is_outer]] = CALL_NUMBERS["load"]
    return outer


class _Launched(NamedTuple):
    """The operations of the modeled steps in order of launch: their rows in ``Events.operations``, and their calls."""

    row: Int64s
    call: Int64s
    launched: Int64s


def _select_operations(events: Events, calls: pl.DataFrame, first: int, last: int) -> _Launched:
    """Return the operations that the calls launched, and those without a recorded call that ran at the time."""
    rows = events.operations.select("start_ns", "call").with_row_index("row")
    inside = rows["call"].is_in(calls["position"].implode())
    unknown = rows["call"].is_null() & rows["start_ns"].is_between(first, last, closed="left")
    rows = rows.filter(inside | unknown)
    call = rows["call"].cast(pl.Int64).fill_null(-1).to_numpy()
    return _Launched(rows["row"].cast(pl.Int64).to_numpy(), call, rows["start_ns"].to_numpy())


def _add_other_items(
    items: Items, item_of_call: Int64s, launched: _Launched, events: Events
) -> tuple[Items, tuple[Int64s, Int64s]]:
    """Add items that launch the operations of other threads, and those without a recorded call.

    Each of these items starts at the end of an item of lane 0: at the end of the one that runs at the time, or of the
    one before, whichever is nearer. If the items of lane 0 become shorter, these items start earlier, too.

    Returns:
        The items, and the row numbers in ``Events.operations`` and the items of the operations in order of launch.
    """
    item = np.where(launched.call >= 0, item_of_call[np.maximum(launched.call, 0)] if len(item_of_call) else -1, -1)
    others = np.flatnonzero(item < 0)
    call_starts = events.calls["start_ns"].to_numpy()
    known = launched.call[others] >= 0
    times = launched.launched[others]
    if known.any():
        times = np.where(known, call_starts[np.maximum(launched.call[others], 0)], times)
    threads = np.where(known, launched.call[others], -1)
    order = np.lexsort((threads, times))
    others, times = others[order], times[order]
    size = len(items.start)
    item[others] = size + np.arange(len(others))
    added = len(others)
    after, times = _find_nearest_ends(items, times)

    values: dict[str, object] = {
        **dict.fromkeys(Items._fields, 0),
        "start": times,
        "end": times,
        "after": after,
        "call": launched.call[others],
        "kind": CALL_NUMBERS["launch"],
        "lane": 1,
        "target": -1,
    }
    columns = zip(Items._fields, items, strict=True)
    items = Items._make(_extend(column, values[name], added) for name, column in columns)
    # A pass over items in one order needs the items of all lanes in order of time.
    by_time = np.argsort(items.start, kind="stable") if added else np.arange(size)
    position = np.empty(size + added, np.int64)
    position[by_time] = np.arange(size + added)
    items = Items._make(np.asarray(column)[by_time] for column in items)
    items = items._replace(after=np.where(items.after >= 0, position[items.after], -1).astype(np.int32))
    item = position[item]
    starts = events.operations["start_ns"].to_numpy()[launched.row]
    by_launch = np.lexsort((starts, item))
    item, rows = item[by_launch], launched.row[by_launch]
    count = np.bincount(item, minlength=size + added).astype(np.int32)
    first = (np.cumsum(count) - count).astype(np.int32)
    return items._replace(first=first, launches=count), (rows, item)


def _find_nearest_ends(items: Items, times: Int64s) -> tuple[Int64s, Int64s]:
    """Return the item of lane 0 whose end is nearest to each time, or -1 before all items, and this end."""
    row = np.searchsorted(items.start, times, side="right") - 1
    current = np.maximum(row, 0)
    before_end = np.where(row > 0, items.end[np.maximum(current - 1, 0)], items.start[0])
    is_nearer = (items.end[current] - times <= times - before_end) & (row >= 0)
    after = np.where(row < 0, -1, np.where(is_nearer, current, current - 1))
    return after, np.where(is_nearer, items.end[current], np.where(row < 0, times, before_end))


def _extend(column: object, values: object, count: int) -> npt.NDArray[Any]:
    """Return a column with further values, which are repeated if there is only one."""
    array = np.asarray(column)
    return np.concatenate([array, np.broadcast_to(np.asarray(values, array.dtype), count)])


def _infer_bounds_of_operations(items: Items, launched: tuple[Int64s, Int64s], events: Events) -> Operations:
    """Infer from recorded times what held back each operation: its launch, its stream, or another stream."""
    rows, item = launched
    table = events.operations.select(pl.col("start_ns", "end_ns", "lane", "cls").gather(create_series(rows)))
    start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    lane = table["lane"].to_numpy().astype(np.int32)
    delay = start - items.start[item] if len(item) else start
    last = table.select(pl.col("end_ns").cum_max().shift(1).over("lane")).to_series()
    has_last = last.is_not_null().to_numpy()
    gap = start - last.fill_null(0).to_numpy()
    usual_delay, usual_gap = _find_usual_delay_and_gap(delay, gap, has_last)
    short_gap = np.minimum(gap, usual_gap)
    held = _find_recorded_dependencies(items, lane, end, start, events)
    is_queued = has_last & (gap <= _QUEUED_GAP_NS)
    is_launched = delay <= _LAUNCH_NS
    since_held = start - end[np.maximum(held, 0)] if len(end) else start
    is_held = (held >= 0) & ~is_queued & (since_held < _NEAR_NS)
    is_late = has_last & (gap <= _LAUNCH_NS) & (delay > gap + 20_000)
    is_settled = is_queued | is_launched | is_held
    limit = np.where(is_late, _FREE_GAP_NS, np.clip(delay // 2, _NEAR_NS, _FAR_NS))
    other = _find_operations_that_ended_before(start, end, lane, ~is_settled, limit)
    dependency = np.where(is_held, held, other)
    waits_for_other = ~is_queued & (dependency >= 0)
    dependency_gap = np.where(dependency >= 0, start - end[np.maximum(dependency, 0)], 0) if len(end) else start
    is_bound_elsewhere = is_queued | waits_for_other | (is_late & ~is_launched)
    new_delay = np.where(is_bound_elsewhere, np.minimum(delay, usual_delay), delay)
    new_gap = np.select([~has_last, is_queued | (is_late & ~is_launched & ~waits_for_other)], [0, gap], short_gap)
    dependency = np.where(waits_for_other, dependency, held).astype(np.int32)
    dependency_gap = np.where(waits_for_other, dependency_gap, np.minimum(since_held, usual_gap))
    return Operations(
        start,
        end,
        rows,
        item,
        lane,
        table["cls"].to_numpy(),
        end - start,
        new_delay,
        new_gap,
        dependency,
        np.where(dependency >= 0, dependency_gap, 0),
    )


def _find_usual_delay_and_gap(delay: Int64s, gap: Int64s, has_last: Mask) -> tuple[int, int]:
    """Return the usual time from a launch to its operation on a free stream, and between queued operations."""
    free = np.sort(delay[has_last & (gap > _FREE_GAP_NS) & (delay > 0) & (delay < _LAUNCH_NS)])
    packed = np.sort(gap[has_last & (gap >= 0) & (gap < _QUEUED_GAP_NS)])
    usual_delay = int(free[len(free) // 4]) if len(free) else _USUAL_DELAY_NS
    return usual_delay, int(packed[len(packed) // 2]) if len(packed) else _USUAL_GAP_NS


def _find_recorded_dependencies(items: Items, lane: Int32s, end: Int64s, start: Int64s, events: Events) -> Int64s:
    """Return the operation on which a recorded wait for an event makes each operation depend, or -1.

    The first operation that is launched on a stream after ``cudaStreamWaitEvent`` depends on the last one that was
    launched on the stream of the event before ``cudaEventRecord``.
    """
    result = np.full(len(lane), -1, np.int64)
    waits = np.flatnonzero(items.kind == CALL_NUMBERS["wait_event"])
    if not len(waits) or not len(lane):
        return result
    records = read_event_records(items, events)
    by_id = {event: (item, of_lane) for item, event, of_lane in records}
    wait_ids = read_waits_for_events(items, events)
    for item, event, of_lane in wait_ids:
        known = by_id.get(event)
        if known is None:
            continue
        source = _find_last_launch(items, lane, known[1], known[0])
        later = np.flatnonzero(lane[items.first[item] :] == of_lane)
        if source >= 0 and len(later):
            target = int(items.first[item]) + int(later[0])
            if source < target and end[source] <= start[target] + 1_000:
                result[target] = source
    return result


def _find_last_launch(items: Items, lane: Int32s, of_lane: int, item: int) -> int:
    """Return the last operation on a lane that was launched before an item, or -1."""
    stop = int(items.first[item])
    rows = np.flatnonzero(lane[:stop] == of_lane)
    return int(rows[-1]) if len(rows) else -1


def read_event_records(items: Items, events: Events) -> list[tuple[int, int, int]]:
    """Return the recordings of CUDA events: the item, the id of the recording, and the lane."""
    table = events.frames("cuda_events").filter(_is_of_process_expr(events))
    return _find_items_of_events(items, events, table)


def read_waits_for_events(items: Items, events: Events) -> list[tuple[int, int, int]]:
    """Return the waits for CUDA events: the item, the id of the recording, and the lane that waits."""
    table = events.frames("syncs").filter(_is_of_process_expr(events))
    return _find_items_of_events(items, events, table)


def _is_of_process_expr(events: Events) -> pl.Expr:
    return pl.col("process_id").eq_missing(pl.lit(events.process_id, pl.Int64))


def _find_items_of_events(items: Items, events: Events, table: pl.LazyFrame) -> list[tuple[int, int, int]]:
    columns = ("correlation_id", "event_sync_id", "device_id", "context_id", "stream_id")
    rows = table.select(columns).drop_nulls(["correlation_id", "event_sync_id"]).collect()
    if rows.is_empty():
        return []
    is_call = items.call >= 0
    of_items = pl.DataFrame(
        {
            "item": create_series(np.flatnonzero(is_call)),
            "correlation_id": events.calls["correlation_id"].gather(create_series(items.call[is_call])),
        }
    )
    joined = rows.join(of_items, on="correlation_id", how="inner")
    joined = joined.join(events.lanes, on=["device_id", "context_id", "stream_id"], how="left", nulls_equal=True)
    return list(
        joined.sort("item").select("item", "event_sync_id", pl.col("lane").fill_null(-1).cast(pl.Int64)).iter_rows()
    )


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
    limit = limit_ns[rows]
    for _ in range(8):
        candidate = by_end[np.maximum(position, 0)]
        near = (position >= 0) & (start[rows] - end[candidate] < limit)
        fits = near & (lane[candidate] != lane[rows]) & (candidate < rows)
        hit = fits & (result[rows] < 0)
        result[rows[hit]] = candidate[hit]
        position = position - 1
    return result


def _infer_waits(items: Items, ops: Operations, events: Events) -> Items:
    """Infer for what calls wait: synchronizations, blocking copies, and launches into a full queue."""
    size = len(items.start)
    wait, target = np.zeros(size, np.uint8), np.full(size, -1, np.int32)
    residue, duration = np.zeros(size, np.int64), items.duration.copy()
    if not len(ops.start):
        return items
    by_end = np.argsort(ops.end, kind="stable")
    ends = ops.end[by_end]
    done = np.searchsorted(ends, items.end, side="right") - 1
    ended = by_end[np.maximum(done, 0)]
    ended = np.where((done >= 0) & (ended < items.first), ended, -1)
    since = items.end - ops.end[np.maximum(ended, 0)]
    _set_synchronization_waits(items, ops, events, (wait, target, residue, duration), (ended, since))
    _set_copy_waits(items, ops, events, (wait, target, residue, duration))
    is_launch = np.isin(items.kind, [CALL_NUMBERS[k] for k in ("launch", "copy", "memset", "graph_launch", "other")])
    typical = _find_typical_launch(items)
    outstanding = items.first - np.searchsorted(ends, items.start, side="right")
    slow = (duration > _SLOW_CALL_NS) & (outstanding > _SOME_QUEUE) | (duration > 2 * typical) & (
        outstanding > _FULL_QUEUE
    )
    is_full = is_launch & (wait == NO_WAIT) & slow & (ended >= 0) & (since < _SLOW_CALL_NS) & (items.lane == 0)
    is_full &= since <= duration
    wait[is_full], target[is_full] = WAIT_OPERATION, ended[is_full]
    residue[is_full] = since[is_full]
    duration[is_full] = np.minimum(duration[is_full], typical)
    return items._replace(wait=wait, target=target, residue=residue, duration=duration)


def _find_typical_launch(items: Items) -> int:
    durations = items.duration[items.kind == CALL_NUMBERS["launch"]]
    return int(np.median(durations)) if len(durations) else _USUAL_DELAY_NS


_Columns = tuple["npt.NDArray[np.uint8]", "Int32s", "Int64s", "Int64s"]


def _set_synchronization_waits(
    items: Items, ops: Operations, events: Events, columns: _Columns, last_ended: tuple[Int64s, Int64s]
) -> None:
    """Set the waits of calls that synchronize with a device, a stream or an event."""
    wait, target, residue, duration = columns
    ended, since = last_ended
    latest = np.maximum.accumulate(ops.end)
    rows = np.flatnonzero((items.kind == CALL_NUMBERS["synchronize"]) & (items.lane == 0))
    if not len(rows):
        return
    names = events.calls["name"].cast(pl.String).str.to_lowercase().gather(create_series(items.call[rows]))
    of_event = names.str.contains("eventsynchronize").to_numpy()
    lanes = dict.fromkeys(rows.tolist(), -1) | _find_lanes_of_synchronizations(items, events)
    of_stream = names.str.contains("streamsynchronize|queuesynchronize").to_numpy()
    lane_of = np.array([lanes[r] for r in rows.tolist()])
    for lane in [-1, *np.flatnonzero(np.bincount(ops.lane))]:
        of_lane = rows[~of_event & (np.where(of_stream, lane_of, -1) == lane)]
        if not len(of_lane):
            continue
        if lane < 0:
            stop = items.first[of_lane] + items.launches[of_lane]
            last = np.where(stop > 0, latest[np.maximum(stop - 1, 0)], np.iinfo(np.int64).min)
        else:
            own = np.flatnonzero(ops.lane == lane)
            own_latest = np.maximum.accumulate(ops.end[own])
            before = np.searchsorted(own, items.first[of_lane] + items.launches[of_lane], side="left") - 1
            last = np.where(before >= 0, own_latest[np.maximum(before, 0)], np.iinfo(np.int64).min)
        base = np.minimum(duration[of_lane], _SYNC_NS)
        waited = (last > items.start[of_lane] + base) & (last <= items.end[of_lane])
        wait[of_lane] = np.where(last == np.iinfo(np.int64).min, NO_WAIT, WAIT_ALL if lane < 0 else WAIT_LANE)
        wait[of_lane[last > items.end[of_lane]]] = NO_WAIT
        target[of_lane] = lane
        residue[of_lane] = np.where(waited, items.end[of_lane] - last, 0)
        duration[of_lane] = np.where(waited, base, duration[of_lane])
    others = rows[(of_event | (wait[rows] == NO_WAIT)) & (duration[rows] > _WAITED_NS)]
    others = others[(ended[others] >= 0) & (since[others] < _NEAR_NS)]
    wait[others], target[others], residue[others] = WAIT_OPERATION, ended[others], since[others]
    duration[others] = np.minimum(duration[others], _SYNC_NS)


def _find_lanes_of_synchronizations(items: Items, events: Events) -> dict[int, int]:
    """Return the lane with which each item synchronizes, as far as it was recorded."""
    columns = ("correlation_id", "device_id", "context_id", "stream_id")
    rows = (
        events.frames("syncs")
        .filter(_is_of_process_expr(events))
        .select(columns)
        .collect()
        .drop_nulls("correlation_id")
    )
    if rows.is_empty():
        return {}
    is_sync = items.kind == CALL_NUMBERS["synchronize"]
    of_items = pl.DataFrame(
        {
            "item": create_series(np.flatnonzero(is_sync)),
            "correlation_id": events.calls["correlation_id"].gather(create_series(items.call[is_sync])),
        }
    )
    joined = of_items.join(rows.unique("correlation_id"), on="correlation_id")
    joined = joined.join(events.lanes, on=["device_id", "context_id", "stream_id"], nulls_equal=True)
    return {int(i): int(lane) for i, lane in joined.select("item", "lane").iter_rows()}


def _set_copy_waits(items: Items, ops: Operations, events: Events, columns: _Columns) -> None:
    """Set the waits of copies that return when the copy has ended."""
    wait, target, residue, duration = columns
    rows = np.flatnonzero((items.kind == CALL_NUMBERS["copy"]) & (items.launches > 0) & (items.lane == 0))
    if not len(rows):
        return
    last = items.first[rows] + items.launches[rows] - 1
    pageable = events.operations["pageable"].gather(create_series(ops.row[last])).to_numpy()
    names = events.calls["name"].cast(pl.String).gather(create_series(items.call[rows]))
    blocks = pageable | ~names.str.contains("Async").to_numpy()
    waits = blocks & (items.end[rows] > ops.end[last] - _NEAR_NS)
    chosen, op = rows[waits], last[waits]
    wait[chosen], target[chosen], residue[chosen] = WAIT_OPERATION, op, items.end[chosen] - ops.end[op]
    duration[chosen] = np.minimum(duration[chosen], _COPY_CALL_NS)
