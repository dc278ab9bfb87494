"""Which events are rows of which table, and what is kept of them until all is read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.budget import OBJECT_ROW_BYTES
from tracekit.readers.common.pieces import Joined
from tracekit.readers.kineto.cells import NUMBER
from tracekit.readers.kineto.keys import Slot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.kineto.cells import Cells
    from tracekit.readers.kineto.walker import Numbers

SLICE, INSTANT, NAMING, FLOWS = "X", "i", "M", ("s", "t", "f")
ARGUMENTS = "arguments"
MAX_TIME_NS, MAX_DURATION_NS = 1 << 62, 1 << 60
MAX_NAMES = 1000
_FEW_ROWS = 1 << 10


class Kept(NamedTuple):
    """What is kept of the events of one table.

    Attributes:
        slices: Whether they last.
        integers: Members taken as integers.
        texts: Members taken as texts.
        others: Members taken as texts, whatever they are.
    """

    slices: bool
    integers: tuple[Slot, ...]
    texts: tuple[Slot, ...] = ()
    others: tuple[Slot, ...] = ()


def _slice(integers: tuple[Slot, ...], texts: tuple[Slot, ...] = (), others: tuple[Slot, ...] = ()) -> Kept:
    return Kept(slices=True, integers=integers, texts=texts, others=others)


def _moment(integers: tuple[Slot, ...], texts: tuple[Slot, ...] = (), others: tuple[Slot, ...] = ()) -> Kept:
    return Kept(slices=False, integers=integers, texts=texts, others=others)


_TIMES = (Slot.START, Slot.DURATION)
_TRACK = (Slot.PID, Slot.TID)
_QUEUE = (Slot.DEVICE, Slot.CONTEXT, Slot.STREAM)
_ON_GPU = (*_TIMES, *_TRACK, Slot.CORRELATION, *_QUEUE, Slot.NEGATIVE)
_NVTX_TEXTS = (Slot.NAME, Slot.CATEGORY, Slot.DOMAIN, Slot.CATEGORY_NAME, Slot.COLOR, Slot.PAYLOAD_TYPE)
_SIZES = (Slot.REGISTERS, Slot.SHARED, Slot.STATIC, Slot.DYNAMIC)
KEPT = {
    "kernels": _slice(
        (*_ON_GPU, *_SIZES, Slot.GRAPH_NODE, Slot.GRAPH, Slot.KERNEL_ID),
        (Slot.NAME, Slot.FULL_NAME),
        (Slot.GRID, Slot.BLOCK),
    ),
    "memcpys": _slice(
        (*_ON_GPU, Slot.BYTES, Slot.GRAPH_NODE, Slot.MEMCPY_ID),
        (Slot.NAME, Slot.COPY_KIND, Slot.SOURCE, Slot.TARGET, Slot.CAUSE),
    ),
    "memsets": _slice(
        (*_ON_GPU, Slot.BYTES, Slot.VALUE, Slot.GRAPH_NODE, Slot.MEMSET_ID),
        (Slot.NAME, Slot.MEMORY),
    ),
    "graph_launches": _slice((*_ON_GPU, Slot.GRAPH, Slot.GRAPH_EXEC, Slot.GRAPH_LAUNCH_ID)),
    "syncs": _slice((*_ON_GPU, Slot.EVENT, Slot.EVENT_SYNC, Slot.SYNC_ID), (Slot.NAME, Slot.SYNC)),
    "api_calls": _slice(
        (*_TIMES, *_TRACK, Slot.CORRELATION, Slot.RETURNED, Slot.NEGATIVE, Slot.CALL_ID),
        (Slot.NAME, Slot.CATEGORY),
    ),
    "osrt_calls": _slice((*_TIMES, *_TRACK, Slot.RETURNED, Slot.NEGATIVE, Slot.OSRT_CALL_ID), (Slot.NAME,)),
    "nvtx_ranges": _slice(
        (*_TIMES, *_TRACK, Slot.CATEGORY_ID, Slot.THREAD, Slot.END_THREAD, Slot.NEGATIVE, Slot.RANGE_ID),
        _NVTX_TEXTS,
        (Slot.PAYLOAD, Slot.OPEN),
    ),
    "nvtx_marks": _moment(
        (Slot.START, *_TRACK, Slot.CATEGORY_ID, Slot.MARK_ID),
        _NVTX_TEXTS,
        (Slot.PAYLOAD,),
    ),
    "cuda_events": _moment(
        (Slot.START, *_TRACK, Slot.CORRELATION, *_QUEUE, Slot.EVENT, Slot.EVENT_SYNC, Slot.CUDA_EVENT_ID),
    ),
}
ROW_IDS = {
    "kernels": Slot.KERNEL_ID,
    "memcpys": Slot.MEMCPY_ID,
    "memsets": Slot.MEMSET_ID,
    "graph_launches": Slot.GRAPH_LAUNCH_ID,
    "syncs": Slot.SYNC_ID,
    "api_calls": Slot.CALL_ID,
    "nvtx_ranges": Slot.RANGE_ID,
    "nvtx_marks": Slot.MARK_ID,
    "cuda_events": Slot.CUDA_EVENT_ID,
    "osrt_calls": Slot.OSRT_CALL_ID,
}
RANGES = ("cpu_op", "user_annotation", "python_function", "Operator")
MARKS = ("cpu_instant_event",)
ON_THREADS = ("api_calls", "nvtx_ranges")
DOMAINS = {"cpu_op": 1, "user_annotation": 2, "python_function": 3, "cpu_instant_event": 4}
_OF_CATEGORY = {
    "kernel": "kernels",
    "Kernel": "kernels",
    "gpu_memcpy": "memcpys",
    "Memcpy": "memcpys",
    "gpu_memset": "memsets",
    "Memset": "memsets",
    "cuda_runtime": "api_calls",
    "cuda_driver": "api_calls",
    "Runtime": "api_calls",
    "cuda_sync": "syncs",
    **dict.fromkeys(RANGES, "nvtx_ranges"),
    **dict.fromkeys(MARKS, "nvtx_marks"),
}
LAUNCH = "ac2g"
"""Flows from calls to what they launched, which correlation ids tell too."""

_TABLES = list(KEPT)
_CATEGORIES = pa.array(_OF_CATEGORY)
_TABLE_OF_CATEGORY = np.array([_TABLES.index(t) for t in _OF_CATEGORY.values()] + [-1, -1])
_PHASES = pa.array([SLICE, INSTANT, NAMING, *FLOWS])
_SLICE, _INSTANT, _NAMING, _FLOW = range(4)
_MARKS = _TABLES.index("nvtx_marks")


class Collected:
    """Rows collected piece by piece.

    Attributes:
        undecoded: Events that are rows of no table, by what they are.
        timeless: Rows without a time.
        placeless: Calls and ranges whose process or thread is no number: nothing is attributed to them.
        namings: Events that name processes and threads.
    """

    def __init__(self, budget: Budget, *, exported: bool) -> None:
        """Begin without rows.

        Args:
            budget: Memory that the rows may take.
            exported: Whether tracekit wrote the file.
        """
        self._budget = budget
        self.undecoded: Counter[str] = Counter()
        self.timeless = self.placeless = 0
        self.counts: Counter[str] = Counter()
        self._exported = exported
        self._joined = {name: Joined(_FEW_ROWS) for name in KEPT}
        self.namings = Joined(_FEW_ROWS)

    def take(self, cells: Cells) -> None:
        """Take the rows among some events.

        Raises:
            Damage: They take more memory than they may.
        """
        phases = cells.known(Slot.PHASE, _PHASES)
        tables = self._of_exported(cells) if self._exported else self._of_kineto(cells, phases)
        for number in np.flatnonzero(np.bincount(tables + 1, minlength=1)[1:]):
            self._keep(_TABLES[number], np.flatnonzero(tables == number), cells)
        named = np.flatnonzero(phases == _NAMING)
        if len(named):
            self._budget.take(len(named), OBJECT_ROW_BYTES, "names of processes and threads")
            self.namings.append(_namings(cells, named))

    def finish(self) -> dict[str, dict[str, pa.Array]]:
        """Return what is kept, by table and member."""
        found = {name: joined.finish() for name, joined in self._joined.items()}
        return {name: columns for name, columns in found.items() if columns}

    def _of_kineto(self, cells: Cells, phases: Numbers) -> Numbers:
        """Number the table of each event; -1 for none."""
        categories = cells.known(Slot.CATEGORY, _CATEGORIES)
        tables = _TABLE_OF_CATEGORY[categories]
        wanted = np.where(tables == _MARKS, _INSTANT, _SLICE)
        tables = np.where((phases == wanted) & (tables >= 0), tables, -1)
        self._count_others(cells, np.flatnonzero((tables < 0) & (phases != _NAMING)), phases)
        return tables

    def _of_exported(self, cells: Cells) -> Numbers:
        tables = np.full(cells.rows, -1)
        for name, slot in ROW_IDS.items():
            if cells.has(slot):
                tables[cells.marks(slot) > 0] = _TABLES.index(name)
        return tables

    def _count_others(self, cells: Cells, rows: Numbers, phases: Numbers) -> None:
        if not len(rows):
            return
        flows = phases[rows] >= _FLOW
        for flow in (True, False):
            codes, counts = np.unique(cells.codes(Slot.CATEGORY)[rows[flows == flow]], return_counts=True)
            for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
                name = cells.names[code].as_py() if code >= 0 else "without category"
                if name != LAUNCH:
                    told = f"flow {name}" if flow else name
                    self.undecoded[told if len(self.undecoded) < MAX_NAMES else "other"] += count

    def _keep(self, name: str, rows: Numbers, cells: Cells) -> None:
        kept = KEPT[name]
        timed = _timed(cells, rows, slices=kept.slices)
        if timed is not None:
            self.timeless += int((~timed).sum())
            rows = rows[timed]
        piece: dict[str, pa.Array] = {s.name: cells.integers(s, rows) for s in kept.integers}
        if name in ON_THREADS and not self._exported:
            self.placeless += pc.or_(*(piece[s.name].is_null() for s in _TRACK)).true_count
        piece |= {s.name: cells.texts(s, rows) for s in kept.texts}
        piece |= {s.name: cells.texts(s, rows, other=True) for s in kept.others}
        if not self._exported and Slot.PAYLOAD in kept.others:
            piece[ARGUMENTS] = cells.arguments(rows)
        self._budget.take(sum(column.nbytes for column in piece.values()), 1, f"bytes of {name}")
        self.counts[name] += len(rows)
        self._joined[name].append(piece)


def _timed(cells: Cells, rows: Numbers, *, slices: bool) -> np.ndarray | None:
    """Tell which rows have times that can be reckoned with; None if all have."""
    limits = {Slot.START: MAX_TIME_NS, Slot.DURATION: MAX_DURATION_NS} if slices else {Slot.START: MAX_TIME_NS}
    good = [_within(cells, slot, rows, most) for slot, most in limits.items()]
    known = [g for g in good if g is not None]
    return np.logical_and.reduce(known) if known else None


def _within(cells: Cells, slot: Slot, rows: Numbers, most: int) -> np.ndarray | None:
    """Tell which rows have a number of some size; None if all have."""
    values = cells.values(slot)[rows]
    if (cells.marks(slot)[rows] == NUMBER).all() and -most < values.min() and values.max() < most:
        return None
    numbers = cells.integers(slot, rows)
    good = pc.and_(pc.less(numbers, most), pc.greater(numbers, -most)).cast(pa.int8()).fill_null(0)
    found: np.ndarray = good.to_numpy(zero_copy_only=False) == 1
    return found


def _namings(cells: Cells, rows: Numbers) -> Mapping[str, pa.Array]:
    numbers = (Slot.PID, Slot.TID, Slot.PROCESS, Slot.THREAD, *_QUEUE, Slot.DOMAIN_ID)
    texts = (Slot.NAME, Slot.FULL_NAME, Slot.LABELS, Slot.KIND)
    return {s.name: cells.integers(s, rows) for s in numbers} | {s.name: cells.texts(s, rows) for s in texts}
