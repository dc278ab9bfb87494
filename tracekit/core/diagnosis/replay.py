"""Replay an event model with edits: other durations, without waits, or as fast as without the profiler."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.core.diagnosis.kinds import CALL_NUMBERS
from tracekit.core.diagnosis.model import find_last_ends
from tracekit.core.diagnosis.operations import NO_WAIT, WAIT_ALL, WAIT_LANE, WAIT_OPERATION
from tracekit.native.replay import ANY_TIME, NONE, Replay

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracekit.core.diagnosis.model import Model
    from tracekit.native.replay import ReplayResult

    Int64s = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Mask = npt.NDArray[np.bool_]

_REMOVED_DELAY_NS = -(2**52)
_MAX_NS = 2.0**62


class CpuScales(NamedTuple):
    """Durations on the CPU without the profiler, as a share of the recorded ones.

    Attributes:
        host: Scale of the work of the program.
        launch: Scale of API calls and of the code between them.
        stalls: Scale of long pauses that do not recur.
    """

    host: float
    launch: float
    stalls: float


RECORDED = CpuScales(1.0, 1.0, 1.0)


class Edit(NamedTuple):
    """Durations and waits that replace those of a model.

    Attributes:
        item_duration: Durations of items, without waiting.
        operation_duration: Durations of operations.
        dropped_waits: Which items no longer wait.
        dropped_dependencies: Which operations no longer depend on other streams.
        max_gap_ns: Gap between operations of a stream above which the gap is reduced, or None.
    """

    item_duration: Floats
    operation_duration: Int64s
    dropped_waits: Mask
    dropped_dependencies: Mask
    max_gap_ns: int | None


def create_unedited(model: Model) -> Edit:
    """Return the edit that changes nothing."""
    return Edit(
        model.items.duration.astype(np.float64),
        model.operations.duration.copy(),
        np.zeros(len(model.items.start), np.bool_),
        np.zeros(len(model.operations.start), np.bool_),
        None,
    )


def scale_items(model: Model, durations: Floats, scales: CpuScales, is_stall: Mask) -> Int64s:
    """Return durations of items as they would be without the profiler."""
    items = model.items
    is_long = model.long_pauses
    scale = np.full(len(durations), scales.launch)
    scale[is_long] = scales.host
    scale[is_long & is_stall] = scales.stalls
    blocks = (items.kind == CALL_NUMBERS["copy"]) & (items.wait != NO_WAIT)
    fixed = np.isin(items.kind, [CALL_NUMBERS[k] for k in ("allocate", "host_allocate", "load")])
    scale[blocks | fixed | (items.lane != 0)] = 1.0
    result: Int64s = np.minimum(durations * scale, _MAX_NS).astype(np.int64)
    return result


class ReplayError(Exception):
    """A model cannot be replayed, because times do not fit into 64 bits or it needs too much memory."""


@dataclass(frozen=True)
class ModelReplay:
    """The replay of one model.

    Attributes:
        model: The model.
        operation_base: Durations of operations that replace the recorded ones before each edit, or None.
        item_base: The same for items.
    """

    model: Model
    operation_base: Int64s | None = None
    item_base: Int64s | None = None

    @functools.cached_property
    def _replay(self) -> Replay:
        items, ops = self.model.items, self.model.operations
        wait, target = self._waits
        return Replay(
            cpu_lane_start=np.array([int(items.start[np.argmin(items.lane)]), ANY_TIME]),
            gpu_lane_start=self.model.lane_starts if len(self.model.lane_starts) else np.full(1, ANY_TIME),
            item_lane=(items.lane != 0).astype(np.int32),
            item_duration=items.duration,
            item_op_count=items.launches,
            item_wait_kind=wait,
            item_wait_target=target,
            item_wait_residue=items.residue,
            item_after=items.after,
            item_earliest=np.where((items.lane != 0) & (items.after < 0), items.start, ANY_TIME),
            op_lane=ops.lane,
            op_duration=ops.duration,
            op_delay=ops.delay,
            op_gap=ops.gap,
            op_dependency=ops.dependency,
            op_dependency_gap=ops.dependency_gap,
        )

    def run(self, edit: Edit, scales: CpuScales = RECORDED, is_stall: Mask | None = None) -> ReplayResult:
        """Return the times of all items and operations after an edit.

        Raises:
            ReplayError: The model cannot be replayed.
        """
        model, ops = self.model, self.model.operations
        stalls = np.zeros(len(model.items.start), np.bool_) if is_stall is None else is_stall
        on_cpu = edit.item_duration
        if self.item_base is not None:
            on_cpu = np.minimum(on_cpu, self.item_base)
        duration = edit.operation_duration
        if self.operation_base is not None:
            duration = np.minimum(duration, self.operation_base)
        removed = (duration == 0) & (ops.duration > 0)
        gap = ops.gap if edit.max_gap_ns is None else np.minimum(ops.gap, edit.max_gap_ns)
        wait, _ = self._waits
        try:
            return self._replay.run(
                item_duration=scale_items(model, on_cpu, scales, stalls),
                item_wait_kind=np.where(edit.dropped_waits, NO_WAIT, wait).astype(np.uint8),
                op_duration=duration,
                op_delay=np.where(removed, _REMOVED_DELAY_NS, ops.delay),
                op_gap=np.where(removed, np.minimum(gap, 0), gap),
                op_dependency=np.where(removed | edit.dropped_dependencies, NONE, ops.dependency).astype(np.int32),
            )
        except (MemoryError, OverflowError, ValueError) as error:
            raise ReplayError(str(error)) from error

    @functools.cached_property
    def _waits(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        return _resolve_waits(self.model)

    def measure(self, edit: Edit, scales: CpuScales = RECORDED, is_stall: Mask | None = None) -> int:
        """Return the time of all steps after an edit, in ns."""
        return self._find_end(self.run(edit, scales, is_stall)) - self.model.start_ns

    def measure_idle_time(self, edit: Edit, scales: CpuScales, is_stall: Mask | None = None) -> int:
        """Return for how long no operation runs in all steps after an edit, in ns."""
        result = self.run(edit, scales, is_stall)
        first, last = self.model.start_ns, self._find_end(result)
        start, end = np.clip(result.op_start, first, last), np.clip(result.op_end, first, last)
        order = np.argsort(start, kind="stable")
        latest = np.maximum.accumulate(np.append(first, end[order]))
        return int(np.maximum(np.append(start[order], last) - latest, 0).sum())

    def _find_end(self, result: ReplayResult) -> int:
        """Return when the last step ends: with its code, or with the last of the operations launched until then."""
        stop = self.model.steps[-1].end_ns
        ends = [result.item_end[self.model.items.lane == 0], result.op_end[self._launch_times < stop]]
        return max(*(int(e.max()) for e in ends if len(e)), self.model.start_ns)

    @functools.cached_property
    def _launch_times(self) -> Int64s:
        """Recorded time at which each operation was launched, or started if its launch is unknown."""
        return self.model.events.launch_ns[self.model.operations.row]

    def measure_steps(self, result: ReplayResult) -> Int64s:
        """Return the bounds of the steps in a replay, as ``find_bounds`` does for recorded times."""
        model, items = self.model, self.model.items
        starts = np.array([s.start_ns for s in model.steps], np.int64)
        own = np.flatnonzero(items.lane == 0)
        inside = own[np.maximum(np.searchsorted(items.start[own], starts, side="right") - 1, 0)]
        begins = np.minimum(result.item_start[inside] + starts - items.start[inside], result.item_end[inside])
        begins = np.maximum(begins, find_last_ends(self._launch_times, result.op_end, starts))
        begins = np.maximum.accumulate(np.maximum(begins, model.start_ns))
        return np.append(begins, max(self._find_end(result), int(begins[-1])))

    def measure_units(self, result: ReplayResult, cuts: Int64s) -> Int64s:
        """Return the durations of steps in a replay, which are divided at the ends of some items of lane 0."""
        bounds, step = self.measure_steps(result), self.model.step_of_item[cuts]
        ends = np.clip(result.item_end[cuts], bounds[step], bounds[step + 1])
        all_bounds: Int64s = np.insert(bounds, step + 1, ends)
        return all_bounds[1:] - all_bounds[:-1]

    @functools.cached_property
    def error(self) -> float:
        """Largest difference between the replayed and the recorded duration of a step, as a share of its duration."""
        replayed = np.diff(self.measure_steps(self.run(create_unedited(self.model))))
        recorded = np.diff(self.model.bounds)
        return float(np.max(np.abs(replayed - recorded) / np.maximum(recorded, 1))) if len(recorded) else 0.0


def _resolve_waits(model: Model) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return the kinds and targets of waits, with waits for a stream as waits for its last operation."""
    items, ops = model.items, model.operations
    wait, target = items.wait.copy(), items.target.copy()
    by_end_so_far = _find_latest(ops.end)
    rows = np.flatnonzero(items.wait == WAIT_ALL)
    last = items.first[rows] + items.launches[rows] - 1
    wait[rows] = np.where(last >= 0, WAIT_OPERATION, NO_WAIT)
    target[rows] = np.where(last >= 0, by_end_so_far[np.maximum(last, 0)] if len(by_end_so_far) else NONE, NONE)
    for lane in np.flatnonzero(np.bincount(items.target[items.wait == WAIT_LANE])):
        rows = np.flatnonzero((items.wait == WAIT_LANE) & (items.target == lane))
        own = np.flatnonzero(ops.lane == lane)
        before = np.searchsorted(own, items.first[rows] + items.launches[rows], side="left") - 1
        wait[rows] = np.where(before >= 0, WAIT_OPERATION, NO_WAIT)
        target[rows] = np.where(before >= 0, own[np.maximum(before, 0)], NONE)
    return wait, target


def _find_latest(ends: Int64s) -> npt.NDArray[np.int64]:
    """Return, for each operation, which of the operations up to it ends last."""
    if not len(ends):
        return np.zeros(0, np.int64)
    latest = np.maximum.accumulate(ends)
    is_latest = ends == latest
    return np.maximum.accumulate(np.where(is_latest, np.arange(len(ends)), 0))
