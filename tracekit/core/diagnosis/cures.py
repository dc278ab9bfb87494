"""Declare what a cure changes in an event model, and predict what it saves.

A *cure* owns items and operations of a model. For each of them, it states how much time stays in three cases: a low, a
likely and a high saving. Every item and operation belongs to at most one cure, so the cures of a model are disjoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.core.diagnosis.answer import Saving
from tracekit.core.diagnosis.replay import RECORDED, CpuScales, Edit, create_unedited
from tracekit.system.sorting import sort_and_deduplicate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from tracekit.core.diagnosis.model import Model
    from tracekit.core.diagnosis.replay import ModelReplay

    Int64s = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Mask = npt.NDArray[np.bool_]

LOW, LIKELY, HIGH = 0, 1, 2
_MIN_COMPARED, _EXPLAINED_SHARE = 4, 0.3
_UNSURE_DIVISOR = 3
_BEYOND_SHARE, _LARGE_SAVING = 0.3, 0.1
"""Share of the time that remains after a cure by which the high saving is extended, and saving from which on it is.

Rules keep to what the cure removes. In programs whose savings were predicted before they were measured, the cure saved
more than the interval contained in 9 of 28 cases, because it also changed other work, and less in one. Smaller savings
are extended in proportion.
"""
Stays = tuple[float, float, float]
"""The share of a duration that stays if the saving is low, likely, and high."""


SCALES = (RECORDED, CpuScales(0.85, 0.62, 0.3), CpuScales(0.6, 0.45, 0.0), CpuScales(1.2, 0.6, 0.0))
"""Scales between which the CPU ran without the profiler, in the captures whose programs were also timed without it.

The second one is the most likely one.
"""

SCALES_OF_PYTORCH = (RECORDED, CpuScales(0.9, 0.45, 0.3), CpuScales(0.8, 0.3, 0.0), CpuScales(1.1, 0.6, 0.0))
"""The same for traces of PyTorch's profiler, which records each operation and therefore slows launching down more."""

SCALES_OF_EMIT_NVTX = (RECORDED, CpuScales(0.9, 0.35, 0.3), CpuScales(0.8, 0.2, 0.0), CpuScales(1.1, 0.6, 0.0))
"""The same for captures of Nsight Systems in which PyTorch marks each operation with a range."""


class Example(NamedTuple):
    """The longest occurrence of a cause.

    Attributes:
        table: Table of the row.
        row_id: Id of the row in this table, or None for a pause between API calls.
        start_ns: Start of the occurrence.
        end_ns: End of the occurrence.
    """

    table: str
    row_id: int | None
    start_ns: int
    end_ns: int


@dataclass
class Cure:
    """What a cure of one cause changes in a model.

    Attributes:
        cause: Name of the cause.
        place: Label of the code, or "" if there is none.
        evidence: What was counted, as a sentence.
        brief: What was counted in a few words, or "".
        change: Name of the change that is recommended, or "" if it is that of the cause.
        items: Rows of items and the shares of their durations that stay.
        operations: Rows of operations and the durations that stay in the three cases, in ns.
        waits: Rows of items that no longer wait.
        shared: Rows of operations that belong to another cure and that this cure may shorten, too, with the durations
            that stay.
        independent: Rows of operations that no longer depend on other streams if the saving is high.
        max_gap_ns: Gap between operations of a stream above which the gap is reduced, or None.
        example: The longest occurrence.
        is_unsure: Whether the capture cannot show that the cure applies.
        is_healthy: Whether the cause only states what limits work that needs no cure.
        missing: What has to be recorded to be sure.
        functions: Functions in which the CPU is during the items, the most frequent first.
        communicator: Name of the communicator whose operations the cure owns, or "".
        joins_ranks: Whether ranks meet once per step after the cure, and no longer in barriers.
    """

    cause: str
    place: str = ""
    evidence: str = ""
    brief: str = ""
    change: str = ""
    items: list[tuple[Int64s, Stays]] = field(default_factory=list)
    operations: list[tuple[Int64s, tuple[Int64s, Int64s, Int64s]]] = field(default_factory=list)
    waits: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    shared: list[tuple[Int64s, tuple[Int64s, Int64s, Int64s]]] = field(default_factory=list)
    independent: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    max_gap_ns: int | None = None
    example: Example | None = None
    is_unsure: bool = False
    is_healthy: bool = False
    missing: str = ""
    functions: list[str] = field(default_factory=list)
    communicator: str = ""
    joins_ranks: bool = False

    @property
    def item_rows(self) -> Int64s:
        """The rows of all owned items."""
        return np.concatenate([rows for rows, _ in self.items]) if self.items else np.zeros(0, np.int64)

    @property
    def operation_rows(self) -> Int64s:
        """The rows of all owned operations."""
        return np.concatenate([rows for rows, _ in self.operations]) if self.operations else np.zeros(0, np.int64)


class Claims:
    """Which items and operations of a model already belong to a cure."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._free_items: Mask = model.items.lane == 0
        self._free_operations: Mask = np.ones(len(model.operations.start), np.bool_)

    @property
    def free_items(self) -> Mask:
        """Which items belong to no cure yet."""
        return self._free_items.copy()

    @property
    def free_operations(self) -> Mask:
        """Which operations belong to no cure yet."""
        return self._free_operations.copy()

    @property
    def owned_share(self) -> float:
        """Time of the items and operations that belong to a cure, as a share of the duration of the model."""
        items, ops = self.model.items, self.model.operations
        on_cpu = (items.end - items.start)[~self._free_items & (items.lane == 0)].sum()
        on_gpu = ops.duration[~self._free_operations].sum()
        return float(on_cpu + on_gpu) / max(1, self.model.duration_ns)

    def take_items(self, rows: Int64s) -> Int64s:
        """Claim the items that belong to no cure yet, and return their rows."""
        rows = deduplicate(rows)
        rows = rows[self._free_items[rows]]
        self._free_items[rows] = False
        return rows

    def take_operations(self, rows: Int64s) -> Int64s:
        """Claim the operations that belong to no cure yet, and return their rows."""
        rows = deduplicate(rows)
        rows = rows[self._free_operations[rows]]
        self._free_operations[rows] = False
        return rows

    def scale_operations(
        self, rows: Int64s, stays: Stays, floors_ns: Sequence[int] = (0, 0, 0)
    ) -> tuple[Int64s, tuple[Int64s, Int64s, Int64s]]:
        """Claim operations, and return the durations that stay.

        Args:
            rows: Rows of operations.
            stays: Shares of the durations that stay.
            floors_ns: Durations below which no operation becomes shorter.
        """
        rows = self.take_operations(rows)
        duration = self.model.operations.duration[rows]
        low, likely, high = (
            np.minimum(duration, np.maximum(floor, (duration * share).astype(np.int64)))
            for share, floor in zip(stays, floors_ns, strict=True)
        )
        return rows, (low, likely, high)


def deduplicate(rows: Int64s) -> Int64s:
    """Return the distinct rows in order."""
    return sort_and_deduplicate(np.array(rows, np.int64))


def apply_cures(model: Model, cures: Iterable[Cure], case: int) -> Edit:
    """Return the edit of several cures in one of the cases ``LOW``, ``LIKELY`` and ``HIGH``."""
    edit = create_unedited(model)
    gaps = [cure.max_gap_ns for cure in cures if cure.max_gap_ns is not None]
    for cure in cures:
        for rows, stays in cure.items:
            edit.item_duration[rows] = np.minimum(edit.item_duration[rows], model.items.duration[rows] * stays[case])
        for rows, durations in (*cure.operations, *cure.shared):
            edit.operation_duration[rows] = np.minimum(edit.operation_duration[rows], durations[case])
        edit.dropped_waits[cure.waits] = True
        edit.dropped_dependencies[cure.independent] = case == HIGH
    if model.contention is not None:
        shortened = model.contention.shorten_others(model.operations.duration, edit.operation_duration)
        edit = edit._replace(operation_duration=shortened)
    return edit._replace(max_gap_ns=min(gaps) if gaps else None)


class Prediction(NamedTuple):
    """The predicted saving of a cure.

    Attributes:
        cure: The cure.
        saving: Saving of the cure alone.
        after: What the cure saves in addition to those before it.
    """

    cure: Cure
    saving: Saving
    after: float


def find_stalls(model: Model, cures: Iterable[Cure]) -> Mask:
    """Return which items are long pauses that no cure explains, such as pauses of the profiler or the scheduler."""
    is_stall = model.long_pauses.copy()
    for cure in cures:
        is_stall[cure.item_rows] = False
    return is_stall


def predict_savings(
    engine: ModelReplay, cures: Sequence[Cure], scales: Sequence[CpuScales], slack: float, *, likely: int
) -> list[Prediction]:
    """Predict what cures save, and order them by their savings.

    Args:
        engine: The replay of the model.
        cures: The cures.
        scales: Scales between which the CPU ran without the profiler.
        slack: Share by which each interval is extended on both sides.
        likely: Number of the most likely scales.

    Returns:
        The cures with their savings, in order of these.
    """
    is_stall = find_stalls(engine.model, cures)
    base = [engine.measure(create_unedited(engine.model), s, is_stall) for s in scales]
    setting = _Setting(engine, scales, base, is_stall, slack, likely)
    savings = [_predict_alone(setting, cure) for cure in cures]
    weights = [_compute_weight(cure, saving) for cure, saving in zip(cures, savings, strict=True)]
    order = sorted(range(len(cures)), key=lambda i: (-weights[i], -savings[i].low, i))
    predictions: list[Prediction] = []
    applied, before = [], 0.0
    for i in order:
        applied.append(cures[i])
        now = before
        if savings[i].high > slack:
            time = engine.measure(apply_cures(engine.model, applied, LIKELY), scales[likely], is_stall)
            now = max(1 - time / max(1, base[likely]), before)
        predictions.append(Prediction(cures[i], savings[i], now - before))
        before = now
    return predictions


def _compute_weight(cure: Cure, saving: Saving) -> float:
    """Return the saving by which cures are ordered. If it is unsure, a third of it above the low one counts."""
    return saving.low + (saving.likely - saving.low) / _UNSURE_DIVISOR if cure.is_unsure else saving.likely


class _Setting(NamedTuple):
    """What all predictions for one model have in common.

    Attributes:
        engine: The replay of the model.
        scales: Scales between which the CPU ran without the profiler.
        base: Time of all steps without a cure, for each of the scales.
        is_stall: Which items are long pauses that no cure explains.
        slack: Share by which each interval is extended on both sides.
        likely: Number of the most likely scales.
    """

    engine: ModelReplay
    scales: Sequence[CpuScales]
    base: Sequence[int]
    is_stall: Mask
    slack: float
    likely: int


def _predict_alone(setting: _Setting, cure: Cure) -> Saving:
    engine, scales, base, is_stall, slack, likely = setting
    edits = [apply_cures(engine.model, [cure], case) for case in (LOW, LIKELY, HIGH)]
    middle = _compute_saving(engine, edits[LIKELY], scales[likely], base[likely], is_stall)
    best = _compute_saving(engine, edits[HIGH], scales[0], base[0], is_stall)
    if best < slack / 2 and middle < slack / 2:
        return Saving(0.0, max(0.0, middle), max(best, middle, 0.0))
    lows = [_compute_saving(engine, edits[LOW], s, b, is_stall) for s, b in zip(scales, base, strict=True)]
    highs = [_compute_saving(engine, edits[HIGH], s, b, is_stall) for s, b in zip(scales, base, strict=True)]
    others = [_compare_with_other_steps(engine, cure, s, is_stall) for s in scales]
    middle = max(middle, others[likely])
    return extend_interval(min(*lows, middle), middle, max(*highs, *others, middle), slack)


def extend_interval(low: float, likely: float, high: float, slack: float) -> Saving:
    """Return the interval of a saving, extended by a slack on both sides, and by what cures save beyond the rules."""
    beyond = _BEYOND_SHARE * (1 - high) * min(1.0, max(0.0, likely) / _LARGE_SAVING)
    return Saving(max(0.0, low - slack), max(0.0, likely), min(1.0, high + slack + beyond))


def _compare_with_other_steps(engine: ModelReplay, cure: Cure, scales: CpuScales, is_stall: Mask) -> float:
    """Return the saving if all steps were like those without the cause, or 0 if it occurs in more than half of them."""
    model = engine.model
    affected = np.zeros(len(model.steps), np.bool_)
    affected[model.step_of_item[cure.item_rows]] = True
    if len(affected) < _MIN_COMPARED or affected.sum() > len(affected) / 2 or not affected.any():
        return 0.0
    times = np.diff(engine.measure_steps(engine.run(create_unedited(model), scales, is_stall)))
    excess = int(times[affected].sum()) - int(affected.sum()) * float(np.median(times[~affected]))
    own = model.items.end[cure.item_rows] - model.items.start[cure.item_rows]
    if int(own.sum()) < _EXPLAINED_SHARE * excess:
        return 0.0
    return max(0.0, 1 - float(np.median(times[~affected])) * len(times) / max(1, int(times.sum())))


def _compute_saving(engine: ModelReplay, edit: Edit, scales: CpuScales, base: int, is_stall: Mask) -> float:
    return 1 - engine.measure(edit, scales, is_stall) / max(1, base)
