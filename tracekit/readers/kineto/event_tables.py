"""Assign events to tables, and collect the JSON members that each table needs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.budget import OBJECT_ROW_BYTES
from tracekit.readers.common.builders import TableBuilder
from tracekit.readers.common.json.scanner import NUMBER
from tracekit.readers.kineto import repairs
from tracekit.readers.kineto.keys import Slot
from tracekit.readers.kineto.labels import DEVICE_CATEGORY_PATTERN, RUNTIME_CATEGORY_PATTERN, map_strings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.json.scanner import Int64Array, JsonCells

SLICE, INSTANT, METADATA, FLOWS = "X", "i", "M", ("s", "t", "f")
ARGUMENTS, OVERHEADS = "arguments", "overheads"
MAX_TIME_NS, MAX_DURATION_NS = 1 << 62, 1 << 60
MAX_NAMES = 1000
_FEW_ROWS = 1 << 10


class TableMembers(NamedTuple):
    """The JSON members that are collected from the events of one table.

    Attributes:
        is_interval: Whether the events have a duration in addition to a start.
        integers: Members that are read as integers.
        strings: Members that are read as strings. Values that are not strings are null.
        any_types: Members that are read as strings. Values that are not strings become their JSON text.
    """

    is_interval: bool
    integers: tuple[Slot, ...]
    strings: tuple[Slot, ...] = ()
    any_types: tuple[Slot, ...] = ()


def _create_interval_members(
    integers: tuple[Slot, ...], strings: tuple[Slot, ...] = (), any_types: tuple[Slot, ...] = ()
) -> TableMembers:
    return TableMembers(is_interval=True, integers=integers, strings=strings, any_types=any_types)


def _create_instant_members(
    integers: tuple[Slot, ...], strings: tuple[Slot, ...] = (), any_types: tuple[Slot, ...] = ()
) -> TableMembers:
    return TableMembers(is_interval=False, integers=integers, strings=strings, any_types=any_types)


_TIMES = (Slot.START, Slot.DURATION)
_TRACK = (Slot.PID, Slot.TID)
_STREAM = (Slot.DEVICE, Slot.CONTEXT, Slot.STREAM)
_ON_GPU = (*_TIMES, *_TRACK, Slot.CORRELATION, Slot.EXTERNAL, *_STREAM, Slot.NEGATIVE)
_NVTX_TEXTS = (Slot.NAME, Slot.CATEGORY, Slot.DOMAIN, Slot.CATEGORY_NAME, Slot.COLOR, Slot.PAYLOAD_TYPE)
_OF_LAUNCH = (Slot.SHARED, Slot.BYTES)
_SIZES = (Slot.REGISTERS, Slot.SHARED, Slot.STATIC, Slot.DYNAMIC)
TABLE_MEMBERS = {
    "kernels": _create_interval_members(
        (*_ON_GPU, *_SIZES, Slot.GRAPH_NODE, Slot.GRAPH, Slot.KERNEL_ID),
        (Slot.NAME, Slot.FULL_NAME),
        (Slot.GRID, Slot.BLOCK, Slot.OCCUPANCY, Slot.BLOCKS_PER_SM, Slot.WARPS_PER_SM),
    ),
    "memcpys": _create_interval_members(
        (*_ON_GPU, Slot.BYTES, Slot.GRAPH_NODE, Slot.MEMCPY_ID),
        (Slot.NAME, Slot.COPY_KIND, Slot.SOURCE, Slot.TARGET, Slot.CAUSE),
    ),
    "memsets": _create_interval_members(
        (*_ON_GPU, Slot.BYTES, Slot.VALUE, Slot.GRAPH_NODE, Slot.MEMSET_ID),
        (Slot.NAME, Slot.MEMORY),
    ),
    "graph_launches": _create_interval_members((*_ON_GPU, Slot.GRAPH, Slot.GRAPH_EXEC, Slot.GRAPH_LAUNCH_ID)),
    "syncs": _create_interval_members((*_ON_GPU, Slot.EVENT, Slot.EVENT_SYNC, Slot.SYNC_ID), (Slot.NAME, Slot.SYNC)),
    "api_calls": _create_interval_members(
        (*_TIMES, *_TRACK, Slot.CORRELATION, Slot.EXTERNAL, *_OF_LAUNCH, Slot.RETURNED, Slot.NEGATIVE, Slot.CALL_ID),
        (Slot.NAME, Slot.CATEGORY, Slot.API),
        (Slot.GRID, Slot.BLOCK),
    ),
    "osrt_calls": _create_interval_members(
        (*_TIMES, *_TRACK, Slot.RETURNED, Slot.NEGATIVE, Slot.OSRT_CALL_ID), (Slot.NAME,)
    ),
    "nvtx_ranges": _create_interval_members(
        (*_TIMES, *_TRACK, Slot.CATEGORY_ID, Slot.THREAD, Slot.END_THREAD, Slot.NEGATIVE, Slot.RANGE_ID),
        _NVTX_TEXTS,
        (Slot.PAYLOAD, Slot.OPEN),
    ),
    "nvtx_marks": _create_instant_members(
        (Slot.START, *_TRACK, Slot.CATEGORY_ID, Slot.MARK_ID),
        _NVTX_TEXTS,
        (Slot.PAYLOAD,),
    ),
    OVERHEADS: _create_interval_members((*_TIMES, *_TRACK, Slot.NEGATIVE), (Slot.NAME,)),
    "profiler_metrics": _create_interval_members((*_TIMES, *_TRACK, *_STREAM), (Slot.NAME,), (Slot.PAYLOAD,)),
    "cuda_events": _create_instant_members(
        (Slot.START, *_TRACK, Slot.CORRELATION, *_STREAM, Slot.EVENT, Slot.EVENT_SYNC, Slot.CUDA_EVENT_ID),
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
RANGE_CATEGORIES = ("cpu_op", "user_annotation", "python_function", "Operator", "collective_comm")
MARK_CATEGORIES = ("cpu_instant_event",)
ON_THREADS = ("api_calls", "nvtx_ranges")
DOMAINS = {"cpu_op": 1, "user_annotation": 2, "python_function": 3, "cpu_instant_event": 4, "collective_comm": 5}
COMMAND_CATEGORY = "mtia_ccp_events"
"""Category of the commands that the control processor of an MTIA executes: programs, copies and synchronizations."""
_COMMAND_TABLES = {"dma_request": "memcpys", "event_wait": "syncs", "event_record": "cuda_events"}
"""Tables of the commands that are not programs, by name."""
_CATEGORY_TABLES = {
    "kernel": "kernels",
    "Kernel": "kernels",
    "gpu_memcpy": "memcpys",
    "Memcpy": "memcpys",
    "gpu_memset": "memsets",
    "Memset": "memsets",
    "Runtime": "api_calls",
    "cuda_sync": "syncs",
    "cuda_event": "cuda_events",
    "hpu_op": "kernels",
    COMMAND_CATEGORY: "kernels",
    "cuda_profiler_range": "profiler_metrics",
    "overhead": OVERHEADS,
    **dict.fromkeys(RANGE_CATEGORIES, "nvtx_ranges"),
    **dict.fromkeys(MARK_CATEGORIES, "nvtx_marks"),
}
PROFILER_TABLES = frozenset(_CATEGORY_TABLES.values())
"""Names of the tables that contain events of the PyTorch profiler."""
LAUNCH_FLOW = "ac2g"
"""Category of flow events from API calls to activities, which are ignored, because correlation ids link these rows."""

FLOW_PREFIX, WITHOUT_CATEGORY = "flow ", "without category"
AUXILIARY_CATEGORIES = ("Trace", "gpu_user_annotation")
"""Categories of events that only describe the capture, or that repeat annotations at the time of their kernels."""
_MARK_NAMES = pa.array(["Iteration Start: PyTorch Profiler", "Record Window End"])
_TABLES = list(TABLE_MEMBERS)
_CATEGORIES = pa.array(_CATEGORY_TABLES)
_API_CALLS = _TABLES.index("api_calls")
_CATEGORY_TABLE_INDEXES = np.array([_TABLES.index(t) for t in _CATEGORY_TABLES.values()] + [-1, -1])
_PHASES = pa.array([SLICE, INSTANT, METADATA, *FLOWS])
_SLICE, _INSTANT, _METADATA, _FLOW = range(4)
_MARKS, _KERNELS = _TABLES.index("nvtx_marks"), _TABLES.index("kernels")
_COMMANDS = pa.array([COMMAND_CATEGORY])
_COMMAND_NAMES = pa.array(_COMMAND_TABLES)
_COMMAND_TABLE_INDEXES = np.array([*(_TABLES.index(t) for t in _COMMAND_TABLES.values()), _KERNELS, _KERNELS])


class EventCollector:
    """A builder of all event tables, to which events are added in batches.

    Attributes:
        undecoded: Number of events that belong to no table, by category.
        uncategorized_marks: Number of events without a category that mark the steps and the end of the recording.
        untimed: Number of events that were skipped because their time or duration is missing or invalid.
        unplaced: Number of API calls and ranges whose process id or thread id is missing or not a number.
        counts: Number of rows by table.
        device_categories: How the categories of events begin that belong to a kind of device, such as ``xpu``.
        track_names: Builder for the events that name processes and threads.
    """

    def __init__(self, budget: Budget, *, exported: bool) -> None:
        """Create an empty collector.

        Args:
            budget: The memory budget for the collected rows.
            exported: Whether tracekit wrote the file.
        """
        self._budget = budget
        self.undecoded: Counter[str] = Counter()
        self.uncategorized_marks = 0
        self.untimed = self.unplaced = 0
        self.counts: Counter[str] = Counter()
        self.device_categories: set[str] = set()
        self._exported = exported
        self._builders = {name: TableBuilder(_FEW_ROWS) for name in TABLE_MEMBERS}
        self.track_names = TableBuilder(_FEW_ROWS)

    def add_events(self, cells: JsonCells) -> None:
        """Add the events of one batch to the tables that they belong to.

        Raises:
            Damage: The rows exceed the memory budget.
        """
        phases = cells.find_string_indices(Slot.PHASE, _PHASES)
        tables = (
            self._find_table_indices_of_exported_events(cells)
            if self._exported
            else self._find_table_indices_of_profiler_events(cells, phases)
        )
        for number in np.flatnonzero(np.bincount(tables + 1, minlength=1)[1:]):
            self._append_rows(_TABLES[number], np.flatnonzero(tables == number), cells)
        metadata = np.flatnonzero(phases == _METADATA)
        if len(metadata):
            self._budget.reserve(len(metadata), OBJECT_ROW_BYTES, "names of processes and threads")
            self.track_names.append(_read_track_name_members(cells, metadata))

    def get_collected_values(self) -> dict[str, dict[str, pa.Array]]:
        """Return the collected values by table name and member name. Tables without rows are omitted.

        Events whose times were never set are dropped and counted in ``untimed``, unless tracekit wrote the file.
        """
        tables = {name: builder.finish() for name, builder in self._builders.items()}
        tables = {name: columns for name, columns in tables.items() if columns}
        masks = {} if self._exported else repairs.find_rows_with_times(tables)
        for name, mask in masks.items():
            self.untimed += int((~mask).sum())
            self.counts[name] -= int((~mask).sum())
            keep = pa.array(mask)
            tables[name] = {column: values.filter(keep) for column, values in tables[name].items()}
        return tables

    def _find_table_indices_of_profiler_events(self, cells: JsonCells, phases: Int64Array) -> Int64Array:
        """Return the index of the table to which each event belongs, or -1 for an event that belongs to no table.

        The table is determined by the category and the phase that the PyTorch profiler writes.
        """
        categories = cells.find_string_indices(Slot.CATEGORY, _CATEGORIES)
        self.device_categories |= _find_device_categories(cells, phases)
        tables = np.where(_compute_runtime_mask(cells), _API_CALLS, _CATEGORY_TABLE_INDEXES[categories])
        commands = cells.find_string_indices(Slot.CATEGORY, _COMMANDS) >= 0
        if commands.any():
            kinds = cells.find_string_indices(Slot.NAME, _COMMAND_NAMES)
            tables = np.where(commands, _COMMAND_TABLE_INDEXES[kinds], tables)
        phase = np.where(tables == _MARKS, _INSTANT, _SLICE)  # the profiler writes recordings of events as slices
        tables = np.where((phases == phase) & (tables >= 0), tables, -1)
        self._add_undecoded_counts(cells, np.flatnonzero((tables < 0) & (phases != _METADATA)), phases)
        return tables

    def _find_table_indices_of_exported_events(self, cells: JsonCells) -> Int64Array:
        """Return the index of the table of each event that tracekit wrote, or -1 for an event that has no table.

        The table is determined by the argument that contains the row id, such as ``kernel_id``.
        """
        tables = np.full(cells.rows, -1)
        for name, slot in ROW_IDS.items():
            if cells.has_member(slot):
                tables[cells.get_member_types(slot) > 0] = _TABLES.index(name)
        return tables

    def _add_undecoded_counts(self, cells: JsonCells, rows: Int64Array, phases: Int64Array) -> None:
        if not len(rows):
            return
        flows = phases[rows] >= _FLOW
        is_mark = cells.find_string_indices(Slot.NAME, _MARK_NAMES)[rows] >= 0
        self.uncategorized_marks += int((is_mark & (cells.get_string_codes(Slot.CATEGORY)[rows] < 0)).sum())
        for flow in (True, False):
            codes, counts = np.unique(cells.get_string_codes(Slot.CATEGORY)[rows[flows == flow]], return_counts=True)
            for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
                name = cells.dictionary_strings[code].as_py() if code >= 0 else WITHOUT_CATEGORY
                if name != LAUNCH_FLOW:
                    label = f"{FLOW_PREFIX}{name}" if flow else name
                    self.undecoded[label if len(self.undecoded) < MAX_NAMES else "other"] += count

    def _append_rows(self, table_name: str, rows: Int64Array, cells: JsonCells) -> None:
        members = TABLE_MEMBERS[table_name]
        valid = _compute_valid_time_mask(cells, rows, is_interval=members.is_interval)
        if valid is not None:
            self.untimed += int((~valid).sum())
            rows = rows[valid]
        batch: dict[str, pa.Array] = {s.name: cells.get_member_integers(s, rows) for s in members.integers}
        if not self._exported:
            batch |= _read_ids_of_profiler_events(cells, batch, rows)
        if table_name == OVERHEADS:
            has_process = pc.greater_equal(batch[Slot.PID.name], 0)  # the profiler writes -1 for an unknown process
            batch |= {s.name: pc.if_else(has_process, batch[s.name], pa.scalar(None, pa.int64())) for s in _TRACK}
        if table_name in ON_THREADS and not self._exported:
            has_no_process = pc.and_(batch[Slot.PID.name].is_null(), batch[repairs.PID_TEXT].is_null())
            self.unplaced += pc.or_(has_no_process, batch[Slot.TID.name].is_null()).true_count
        batch |= {s.name: cells.get_member_strings(s, rows) for s in members.strings}
        batch |= {s.name: cells.get_member_strings(s, rows, include_other_types=True) for s in members.any_types}
        if not self._exported and Slot.PAYLOAD in members.any_types:
            batch[ARGUMENTS] = cells.format_nested_json(rows)
        self._budget.reserve(sum(column.nbytes for column in batch.values()), 1, f"bytes of {table_name}")
        self.counts[table_name] += len(rows)
        self._builders[table_name].append(batch)


def _read_ids_of_profiler_events(
    cells: JsonCells, batch: Mapping[str, pa.Array], rows: Int64Array
) -> dict[str, pa.Array]:
    """Return the process ids that are text, and the correlation and external ids.

    Ids of 0 and negative ids, with which profilers mark events without an id, are null.
    """
    ids = {s.name: batch[s.name] for s in (Slot.CORRELATION, Slot.EXTERNAL) if s.name in batch}
    positive = {
        name: pc.if_else(pc.less_equal(values, 0), pa.scalar(None, pa.int64()), values) for name, values in ids.items()
    }
    return {**positive, repairs.PID_TEXT: _read_prefixed_ids(cells, rows)}


def _read_prefixed_ids(cells: JsonCells, rows: Int64Array) -> pa.DictionaryArray:
    """Return the process id of each event if it consists of a number and the label of a rank, and null otherwise."""
    return map_strings(cells.get_member_strings(Slot.PID, rows), lambda t: t if repairs.parse_prefixed_id(t) else None)


def _find_device_categories(cells: JsonCells, phases: Int64Array) -> set[str]:
    """Return how the categories of events begin that belong to a kind of device, such as ``xpu``."""
    codes = np.unique(cells.get_string_codes(Slot.CATEGORY)[phases == _SLICE])
    names = cells.dictionary_strings.take(pa.array(codes[codes >= 0]))
    devices = pc.struct_field(pc.extract_regex(names, DEVICE_CATEGORY_PATTERN), "device")
    return {*pc.unique(devices.drop_null()).to_pylist()}


def _compute_runtime_mask(cells: JsonCells) -> np.ndarray:
    """Return a mask of the events that are calls of a runtime or driver, with categories such as ``xpu_runtime``."""
    is_runtime = pc.match_substring_regex(cells.dictionary_strings, RUNTIME_CATEGORY_PATTERN)
    mask = np.append(is_runtime.to_numpy(zero_copy_only=False).astype(bool), False)
    runtime: np.ndarray = mask[cells.get_string_codes(Slot.CATEGORY)]
    return runtime


def _compute_valid_time_mask(cells: JsonCells, rows: Int64Array, *, is_interval: bool) -> np.ndarray | None:
    """Return a mask of the rows with a valid time and duration. None means that all rows are valid."""
    limits = {Slot.START: MAX_TIME_NS, Slot.DURATION: MAX_DURATION_NS} if is_interval else {Slot.START: MAX_TIME_NS}
    masks = [_compute_within_limit_mask(cells, slot, rows, limit) for slot, limit in limits.items()]
    present = [m for m in masks if m is not None]
    return np.logical_and.reduce(present) if present else None


def _compute_within_limit_mask(cells: JsonCells, slot: Slot, rows: Int64Array, limit: int) -> np.ndarray | None:
    """Return a mask of the rows in which a JSON member is a number between ``-limit`` and ``limit``.

    None means that the mask is True for all rows.
    """
    values = cells.get_member_values(slot)[rows]
    if (cells.get_member_types(slot)[rows] == NUMBER).all() and -limit < values.min() and values.max() < limit:
        return None
    numbers = cells.get_member_integers(slot, rows)
    within = pc.and_(pc.less(numbers, limit), pc.greater(numbers, -limit)).cast(pa.int8()).fill_null(0)
    mask: np.ndarray = within.to_numpy(zero_copy_only=False) == 1
    return mask


def _read_track_name_members(cells: JsonCells, rows: Int64Array) -> Mapping[str, pa.Array]:
    """Return the JSON members, such as ids and names, of the given events that name processes and threads."""
    numbers = (Slot.PID, Slot.TID, Slot.PROCESS, Slot.THREAD, *_STREAM, Slot.DOMAIN_ID)
    strings = (Slot.NAME, Slot.FULL_NAME, Slot.LABELS, Slot.KIND)
    members = {s.name: cells.get_member_integers(s, rows) for s in numbers}
    members |= {s.name: cells.get_member_strings(s, rows) for s in strings}
    return members | {repairs.PID_TEXT: _read_prefixed_ids(cells, rows)}
