"""Divide the events of a trace into slices, marks, counters and names, and collect their JSON members in batches."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.builders import TableBuilder
from tracekit.readers.common.columns import build_number_array
from tracekit.readers.common.json.scanner import AS_STRING, MISSING, THOUSANDTHS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.json.scanner import Int64Array, JsonCells


class TraceKey(IntEnum):
    """The position of each JSON member among the values of a parsed event. Position 0 contains the arguments."""

    ARGS = 0
    PHASE = 1
    CATEGORY = 2
    NAME = 3
    PID = 4
    TID = 5
    START = 6
    DURATION = 7
    ID = 8
    LOCAL_ID = 9
    SCOPE = 10
    LABEL = 11


_MEMBERS = {
    "args": TraceKey.ARGS,
    "ph": TraceKey.PHASE,
    "cat": TraceKey.CATEGORY,
    "name": TraceKey.NAME,
    "pid": TraceKey.PID,
    "tid": TraceKey.TID,
    "ts": TraceKey.START + THOUSANDTHS,
    "dur": TraceKey.DURATION + THOUSANDTHS,
    "id": TraceKey.ID + AS_STRING,
    "id2": TraceKey.LOCAL_ID + AS_STRING,
    "scope": TraceKey.SCOPE,
}
KEYS = {**{(0, key): int(slot) for key, slot in _MEMBERS.items()}, (1, "name"): int(TraceKey.LABEL)}
SLICES, MARKS, COUNTERS, NAMES = "slices", "marks", "counters", "names"
COMPLETE, BEGIN, END, ASYNC_BEGIN, ASYNC_END, OLD_BEGIN, OLD_END = "X", "B", "E", "b", "e", "S", "F"
_SLICE_PHASES = (COMPLETE, BEGIN, END, ASYNC_BEGIN, ASYNC_END, OLD_BEGIN, OLD_END)
_MARK_PHASES = ("i", "I", "R", "n", "T", "p")
_COUNTER, _METADATA, _FLOWS = "C", "M", ("s", "t", "f")
_PHASES = (*_SLICE_PHASES, *_MARK_PHASES, _COUNTER, _METADATA, *_FLOWS)
_GROUPS = (
    *(SLICES for _ in _SLICE_PHASES),
    *(MARKS for _ in _MARK_PHASES),
    COUNTERS,
    NAMES,
    *(None for _ in _FLOWS),
)
_OTHER_PHASES = {
    "O": "snapshots of objects",
    "N": "creations of objects",
    "D": "deletions of objects",
    "P": "samples",
    "V": "global memory dumps",
    "v": "memory dumps of processes",
    "c": "clock synchronizations",
    "(": "beginnings of contexts",
    ")": "ends of contexts",
    ",": "linked ids",
}
_NUMBERS = (TraceKey.START, TraceKey.PID, TraceKey.TID)
_TEXTS = (TraceKey.NAME, TraceKey.CATEGORY)
_IDS = (TraceKey.PID, TraceKey.TID)
"""Members that are also collected as texts, for programs that write names instead of numbers."""
_PHASE_ARRAY = pa.array(_PHASES)
MAX_TIME_NS, MAX_DURATION_NS = 1 << 62, 1 << 60
_MAX_NAMES = 1000
_FEW_ROWS = 1 << 10
TEXT, ROW = "text", "row"


class PhaseCollector:
    """A builder of the groups of events, to which events are added in batches.

    Attributes:
        counts: Number of events by group.
        undecoded: Number of events that belong to no group, by class.
        flows: Number of events of flows, by category.
        untimed: Number of events that were skipped because their time or duration is missing or invalid.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._builders = {group: TableBuilder(_FEW_ROWS) for group in (SLICES, MARKS, COUNTERS, NAMES)}
        self._rows = 0
        self.counts: Counter[str] = Counter()
        self.undecoded: Counter[str] = Counter()
        self.flows: Counter[str] = Counter()
        self.untimed = 0

    def add_events(self, cells: JsonCells) -> None:
        """Add the events of one batch to their groups.

        Raises:
            Damage: The events exceed the memory budget.
        """
        phases = cells.find_string_indices(TraceKey.PHASE, _PHASE_ARRAY)
        for group, builder in self._builders.items():
            numbers = [nth for nth, name in enumerate(_GROUPS) if name == group]
            rows = np.flatnonzero((phases >= numbers[0]) & (phases <= numbers[-1]))
            if group != NAMES:
                rows = self._select_timed(cells, rows, phases)
            if len(rows):
                batch = self._read_members(cells, rows, phases, group)
                self._budget.reserve(sum(column.nbytes for column in batch.values()), 1, f"bytes of {group}")
                self.counts[group] += len(rows)
                builder.append(batch)
        self._count_others(cells, phases)
        self._rows += cells.rows

    def finish(self) -> dict[str, dict[str, pa.Array | pa.ChunkedArray]]:
        """Return the collected members of the events of each group that has events, by name."""
        groups = {group: builder.finish() for group, builder in self._builders.items()}
        return {group: columns for group, columns in groups.items() if columns}

    def _select_timed(self, cells: JsonCells, rows: Int64Array, phases: Int64Array) -> Int64Array:
        """Return the given rows without those whose time or duration is missing or invalid, and count these."""
        valid = _compute_within_limit_mask(cells, TraceKey.START, rows, MAX_TIME_NS)
        complete = phases[rows] == _PHASES.index(COMPLETE)
        valid &= ~complete | _compute_within_limit_mask(cells, TraceKey.DURATION, rows, MAX_DURATION_NS)
        self.untimed += int((~valid).sum())
        timed: Int64Array = rows[valid]
        return timed

    def _read_members(
        self, cells: JsonCells, rows: Int64Array, phases: Int64Array, group: str
    ) -> Mapping[str, pa.Array]:
        batch: dict[str, pa.Array] = {slot.name: cells.get_member_integers(slot, rows) for slot in _NUMBERS}
        batch |= {slot.name: cells.get_member_strings(slot, rows) for slot in _TEXTS}
        batch |= {f"{slot.name} {TEXT}": cells.get_member_strings(slot, rows) for slot in _IDS}
        if group == NAMES:
            return {**batch, TraceKey.LABEL.name: cells.get_member_strings(TraceKey.LABEL, rows)}
        batch[TraceKey.ARGS.name] = _format_arguments(cells, rows)
        batch[TraceKey.ID.name] = cells.get_member_strings(TraceKey.ID, rows, include_other_types=True)
        if group == SLICES:
            batch[ROW] = build_number_array(self._rows + rows)
            batch[TraceKey.PHASE.name] = build_number_array(phases[rows].astype(np.int8))
            batch[TraceKey.DURATION.name] = cells.get_member_integers(TraceKey.DURATION, rows)
            for slot in (TraceKey.LOCAL_ID, TraceKey.SCOPE):
                batch[slot.name] = cells.get_member_strings(slot, rows, include_other_types=True)
        return batch

    def _count_others(self, cells: JsonCells, phases: Int64Array) -> None:
        is_flow = phases >= len(_PHASES) - len(_FLOWS)
        for slot, rows, counts in (
            (TraceKey.CATEGORY, np.flatnonzero(is_flow), self.flows),
            (TraceKey.PHASE, np.flatnonzero(phases < 0), self.undecoded),
        ):
            codes, numbers = np.unique(cells.get_string_codes(slot)[rows], return_counts=True)
            for code, number in zip(codes.tolist(), numbers.tolist(), strict=True):
                text = cells.dictionary_strings[code].as_py() if code >= 0 else ""
                if slot is TraceKey.PHASE:
                    text = _OTHER_PHASES.get(text, f"events of phase {text}" if text else "events without a phase")
                counts[text if len(counts) < _MAX_NAMES else "other"] += number


def get_phase_code(phase: str) -> int:
    """Return the number that stands for the phase of a slice in the collected members."""
    return _PHASES.index(phase)


def _compute_within_limit_mask(cells: JsonCells, slot: TraceKey, rows: Int64Array, limit: int) -> np.ndarray:
    """Return a mask of the rows whose time or duration is valid: a number that is not too large."""
    numbers = cells.get_member_integers(slot, rows)
    lowest = 0 if slot is TraceKey.DURATION else -limit
    valid = pc.and_(pc.greater_equal(numbers, lowest), pc.less_equal(numbers, limit)).fill_null(False)  # noqa: FBT003
    mask: np.ndarray = valid.to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask


def _format_arguments(cells: JsonCells, rows: Int64Array) -> pa.Array:
    """Return the arguments of each event as JSON, null if there are none."""
    if (cells.get_member_types(TraceKey.ARGS)[rows] == MISSING).all():
        return pa.nulls(len(rows), pa.string())
    texts = cells.format_nested_json(rows)
    return pc.if_else(pc.match_substring_regex(texts, r"^(?:\{\s*\})?$"), pa.scalar(None, pa.string()), texts)
