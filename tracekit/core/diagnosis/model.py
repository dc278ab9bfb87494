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
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.diagnosis import kinds
from tracekit.core.diagnosis.contention import Contention, find_contention
from tracekit.core.diagnosis.events import SIZES
from tracekit.core.diagnosis.items import (
    LONG_NS,
    PAUSE,
    add_other_items,
    delay_waits,
    divide_main_sequence,
    find_threads_in_turn,
    is_of_threads_expr,
)
from tracekit.core.diagnosis.kinds import CALL_NUMBERS
from tracekit.core.diagnosis.operations import find_lane_starts, infer_bounds_of_operations
from tracekit.core.diagnosis.waits import set_waits
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracekit.core.diagnosis.events import Events, Labels, Step
    from tracekit.core.diagnosis.items import Items
    from tracekit.core.diagnosis.operations import Operations

    Int64s = npt.NDArray[np.int64]
    Int32s = npt.NDArray[np.int32]
    Mask = npt.NDArray[np.bool_]

MIN_STEPS = 3
"""Number of steps from which on it can be told what recurs."""

MAX_ITEMS = 300_000
"""Number of items and operations above which only some consecutive steps are replayed."""


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
    order = np.argsort(events.launch_ns, kind="stable")
    latest = np.maximum.accumulate(events.operations["end_ns"].to_numpy()[order])
    count = np.searchsorted(events.launch_ns[order], times, side="left")
    done: Int64s = np.append(np.iinfo(np.int64).min, latest)[count]
    return np.maximum.accumulate(np.maximum(times, done))


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
