"""Find the offset, size and kind of the payload of each event in the blocks of a report.

An entry is an encoded event in a block. Each entry begins where the previous entry ends.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit import schemas
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf import decoding
from tracekit.readers.common.protobuf.decoding import (
    BROKEN_CHAIN,
    FULL,
    SCRATCH,
    SCRATCH_BYTES,
    SLACK,
    TOO_MANY,
    Buffer,
    check_result_code,
)
from tracekit.readers.nsys_rep import layout
from tracekit.system import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Int64Array, Mask

Kinds: TypeAlias = npt.NDArray[np.uint16]
UInt32Array: TypeAlias = npt.NDArray[np.uint32]

GENERIC, UNKNOWN = decoding.GENERIC, decoding.UNKNOWN
FIRST_PAYLOAD, PAYLOADS, TYPES = decoding.FIRST_PAYLOAD, decoding.PAYLOADS, decoding.TYPES
_FIRST = np.zeros(1, np.int64)
MAX_ENTRIES = 1 << 17
ENTRY_BYTES = 16
"""Bytes of memory to reserve per entry, including temporary memory."""
STORED_BYTES = 8
"""Bytes per entry that stay in memory, or in a temporary file."""
EVENT_TYPES = {
    27: "process",
    28: "memory map",
    47: "start or finish mark",
    48: "function call",
    50: "OpenGL workload",
    77: "graphics command buffer",
    78: "display refresh",
    81: "performance counter",
    88: "NvMedia",
    89: "OpenACC",
    91: "Direct3D 12",
    92: "Direct3D 12 workload",
    95: "Vulkan",
    96: "Vulkan workload",
    100: "system event",
    101: "GPU memory event",
    105: "ETW event",
    108: "CUDA call chain",
    109: "WDDM event",
    110: "Direct3D 11",
    112: "DXGI",
    114: "OpenMP",
    115: "uncore counter",
    118: "ETW graphics kernel event",
    121: "network metric",
    122: "network metric list",
    123: "interrupt",
    124: "video encoder",
    125: "video decoder",
    126: "JPEG engine",
    128: "performance counter",
    134: "GPU memory transfer",
    137: "InfiniBand switch metric",
    141: "InfiniBand switch congestion",
    143: "performance metric",
    144: "OpenXR",
    149: "update of a CUDA graph node",
}
_GRAPHICS = ("graphics_calls", "graphics_workloads", "khr_debug_events")
TABLES_OF_UNDECODED_EVENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("OpenGL workload", "Vulkan workload", "Direct3D 12 workload"), _GRAPHICS),
    **dict.fromkeys(("graphics command buffer", "Direct3D 12", "Direct3D 11", "Vulkan", "DXGI", "OpenXR"), _GRAPHICS),
    **dict.fromkeys(("OpenGL call", "Vulkan call", "Direct3D 11 call", "Direct3D 12 call"), _GRAPHICS),
    "GPU memory event": ("dx12_memory_operations",),
    "OpenACC": ("openacc_events",),
    "OpenMP": ("openmp_events",),
    "WDDM event": ("wddm_packets", "wddm_paging_packets", "wddm_queue_events"),
    "performance counter": ("performance_counters",),
    "uncore counter": ("performance_counters",),
    "network metric": ("network_metrics",),
    "network metric list": ("network_metrics", "network_metric_names"),
    "InfiniBand switch metric": ("network_metrics",),
    "InfiniBand switch congestion": ("network_congestion_events",),
    **dict.fromkeys(("video encoder call", "video decoder call", "JPEG engine call"), ("graphics_calls",)),
    **dict.fromkeys(("video encoder", "video decoder", "JPEG engine"), ("graphics_calls", "video_engine_workloads")),
    **dict.fromkeys(("NvMedia", "NvMedia call"), ("graphics_calls",)),
}
"""Names of the declared tables to which undecoded events may belong, by class of event."""
AUXILIARY_CLASSES = frozenset(("start or finish mark", "memory map", "process without a name"))
"""Classes of undecoded events that only describe the capture."""
CALL_CLASSES = {
    2: "OpenGL call",
    38: "NvMedia call",
    41: "Direct3D 12 call",
    48: "OpenACC",
    53: "Vulkan call",
    70: "WDDM event",
    71: "Direct3D 11 call",
    78: "OpenMP",
    83: "video encoder call",
    86: "video decoder call",
    89: "JPEG engine call",
}
MARK_CLASSES = frozenset((
    *range(6, 13), *range(31, 37), 39, 40, *range(43, 48), 55, 56, 63, 64, 68, 69, 72, 73, 79, 80, 84, 85, 87, 88,
    90, 91, 109, 110,
))  # fmt: skip
KNOWN_CLASSES = frozenset((*range(14), 18, *range(26, 30), *range(31, 97), 102, 103, *range(107, 111)))
"""Classes of calls that nsys up to 2026.2 records. A call with a different class may be a CUDA call."""
WITHOUT_CLASS = "call without a class"
_RANGE_ENDS = (
    "start of a push/pop range",
    "end of a push/pop range",
    "start of a start/end range",
    "end of a start/end range",
)
NVTX_RANGE_ENDS = dict(enumerate(_RANGE_ENDS, 35)) | dict(enumerate(_RANGE_ENDS, 66))
"""Names of the events that record only the start or only the end of a range, by event type.

Reports store a whole range as one event of another type. Types 66 to 69 occur in imported text logs.
"""
_NVTX_TYPES = (33, 34, 39, 59, 60, 64, 65, *range(70, 77), 97, 98, 99)
GPU_TYPES = (79, 80, 106, 127, 130, 142)
_CALL_TYPES = (layout.CALL_MARK, layout.CALL, *EVENT_TYPES)
_DECODED_CALL_TYPES = (layout.SYSTEM_CALL, layout.GRAPH_NODE_CREATION, *layout.GRAPH_CHANGES)
DECODED_TYPES = {
    *((layout.PROCESS, 27), (layout.CPU_SAMPLE, 31), (layout.CPU_SWITCH, 41)),
    *((layout.DIAGNOSTIC, 49), (layout.CONTEXT_SWITCH, 58)),
    *((layout.MEMORY_USAGE, 117), (layout.MEMORY_POOL, 129)),
    *((layout.CPU_PAGE_FAULT, 119), (layout.GPU_PAGE_FAULT, 120), (layout.PERFORMANCE_COUNTER, 128)),
    *((layout.API, t) for t in _DECODED_CALL_TYPES),
    *((layout.GPU, t) for t in GPU_TYPES),
    *((layout.NVTX, t) for t in _NVTX_TYPES),
}
KNOWN_TYPES = DECODED_TYPES | {(layout.API, t) for t in _CALL_TYPES}
"""Pairs of payload field and event type for which it is known whether the events are rows of a declared table."""


class EventSelection(NamedTuple):
    """A selection of events by payload field and event type.

    Attributes:
        payload: Number of the event field that holds the payload, or ``GENERIC`` for generic events.
        types: Event types to select. If empty, all types are selected.
    """

    payload: int
    types: tuple[int, ...] = ()


class UndecodedSize(NamedTuple):
    """The number and total size in bytes of the undecoded events of a class that have the same value."""

    class_index: int
    value: int | None
    number: int
    size: int


class Entries(NamedTuple):
    """The encoded events of consecutive blocks, in order. Each encoded event is an entry.

    Attributes:
        starts: Offset of the payload of each entry in its block.
        sizes: Size of the payload of each entry in bytes.
        kinds: Kind of each entry, which is a number that combines its payload field and its event type.
        bounds: Index of the first entry of each block, followed by the number of entries.
        counts: Number of entries of each kind.
    """

    starts: UInt32Array
    sizes: npt.NDArray[np.uint16 | np.uint32]
    kinds: Kinds
    bounds: Int64Array
    counts: dict[int, int]

    def spill_to_temporary_file(self) -> Entries:
        """Write the arrays to a temporary file, and return entries whose arrays are mapped from this file."""
        starts, sizes, kinds = memory.spill_arrays(self.starts, self.sizes, self.kinds)
        return Entries(starts, sizes, kinds, self.bounds, self.counts)

    def compute_selection_mask(self, selection: EventSelection) -> Mask:
        """Return a mask of the events that a selection includes."""
        selected = np.zeros(1 << 16, np.bool_)
        selected[self._find_selected_kinds(selection)] = True
        return selected[self.kinds]

    def sum_bytes_by_kind(self) -> dict[int, int]:
        """Return the total size in bytes of all payloads for each kind of event (see ``combine_into_event_kind``)."""
        totals = np.zeros(1 << 16, np.int64)
        np.add.at(totals, self.kinds, self.sizes)
        return {kind: int(totals[kind]) for kind in self.counts}

    def count_by_block(self, mask: Mask) -> Int64Array:
        """Return, for each block, the number of events that a mask selects."""
        return np.diff(np.searchsorted(np.flatnonzero(mask), self.bounds))

    def compute_positions_by_payload(self, rows: Int64Array, selection: EventSelection) -> Int64Array:
        """Return the position of each selected event among all events with the same payload field, counted from 0.

        Args:
            rows: Indices of the selected events.
            selection: Payload field and event types of the selected events.
        """
        if not selection.types:
            return np.arange(len(rows))
        return np.cumsum(self.compute_selection_mask(EventSelection(selection.payload)))[rows] - 1

    def get_event_types_at(self, rows: Int64Array) -> npt.NDArray[np.uint8]:
        """Return the event types of the events at the given indices, which must be neither generic nor unknown."""
        return self.kinds[rows].astype(np.uint8)

    def count_events_with_payload(self, payload_field: int) -> int:
        """Return the number of events whose payload is stored in the given event field."""
        return sum(self.counts[k] for k in self._find_selected_kinds(EventSelection(payload_field)))

    def _find_selected_kinds(self, selection: EventSelection) -> list[int]:
        return [k for k in self.counts if _is_kind_selected(k, *selection)]


EMPTY = Entries(np.zeros(0, np.uint32), np.zeros(0, np.uint16), np.zeros(0, np.uint16), _FIRST, {})


def combine_into_event_kind(payload_field: int, event_type: int) -> int:
    """Combine a payload field and an event type into one number, or return ``UNKNOWN`` if either is out of range."""
    has_kind = FIRST_PAYLOAD <= payload_field < FIRST_PAYLOAD + PAYLOADS and event_type < TYPES
    return (payload_field - FIRST_PAYLOAD) * TYPES + event_type if has_kind else UNKNOWN


def split_event_kind(kind: int) -> tuple[int, int]:
    """Split a number that ``combine_into_event_kind`` returned into the payload field and the event type."""
    return kind // TYPES + FIRST_PAYLOAD, kind % TYPES


@functools.cache
def _is_kind_selected(kind: int, payload_field: int, event_types: tuple[int, ...]) -> bool:
    """Return whether a kind of event has a given payload field, and one of ``event_types`` if they are not empty."""
    if GENERIC in (kind, payload_field):
        return kind == payload_field
    field, event_type = split_event_kind(kind)
    return field == payload_field and (not event_types or event_type in event_types)


def find_entries(buffer: Buffer, block_edges: Sequence[int], budget: Budget | None = None) -> Entries:
    """Find the encoded events of consecutive blocks.

    Args:
        buffer: Buffer that holds the decompressed blocks.
        block_edges: Offset of each block, followed by the end of the last block.
        budget: Memory budget for the entries.

    Raises:
        Damage: A block is invalid, or one block or all blocks together have too many entries.
    """
    inside = np.zeros(len(block_edges) - 1, np.int64)
    parts = []
    for part in _read_entry_batches(buffer, block_edges, inside):
        if budget is not None:
            budget.reserve(len(part[0]), ENTRY_BYTES, "events")
        parts.append(part)
    starts, sizes, kinds = (np.concatenate(p) for p in zip(*parts, strict=True))
    narrow: type[np.uint16 | np.uint32] = np.uint32 if len(sizes) and int(sizes.max()) >> 16 else np.uint16
    bounds = np.concatenate((_FIRST, np.cumsum(inside)))
    return Entries(starts, sizes.astype(narrow), kinds, bounds, _count_by_kind(kinds))


def _read_entry_batches(
    buffer: Buffer, block_edges: Sequence[int], out_counts_by_block: Int64Array
) -> Iterator[tuple[UInt32Array, UInt32Array, Kinds]]:
    """Yield batches with the offset, size and kind of each event payload. A batch fits into the scratch memory.

    The number of events of each block is written to the array ``out_counts_by_block``.
    """
    blocks = len(out_counts_by_block)
    after = SCRATCH + 8 * (blocks + 1) + 4 * blocks
    rows = (SCRATCH + SCRATCH_BYTES - after) // 16
    if rows < 1:
        raise Damage(f"a batch has {blocks} blocks of events, which exceed the memory of the decoder")
    at = [SCRATCH, after, after + 4 * rows, after + 8 * rows, after - 4 * blocks]
    buffer.array(SCRATCH, blocks + 1, np.int64)[:] = block_edges
    arrays = dict(zip(("edges", "starts", "sizes", "kinds", "bounds"), at, strict=True))
    result = buffer.call("entries", blocks=blocks, capacity=rows, max_entries=MAX_ENTRIES, **arrays)
    while True:
        if result in (BROKEN_CHAIN, TOO_MANY):
            _raise_entry_error(result, buffer, block_edges)
        check_result_code(0 if result == FULL else result)
        count = buffer.parameter("entries", "count")
        starts, sizes = (buffer.array(offset, count, np.uint32).copy() for offset in at[1:3])
        yield starts, sizes, buffer.array(at[3], count, np.uint16).copy()
        if not result:
            break
        result = buffer.call("entries")
    out_counts_by_block[:] = buffer.array(at[4], blocks, np.int32)


def _raise_entry_error(result_code: int, buffer: Buffer, block_edges: Sequence[int]) -> NoReturn:
    """Raise the error that a result code of the sandboxed function ``entries`` stands for."""
    if result_code == TOO_MANY:
        raise Damage(f"a block holds more than {MAX_ENTRIES} events, which tracekit does not support")
    block, offset = (buffer.parameter("entries", name) for name in ("block", "offset"))
    raise Damage(f"a block of events is damaged at byte {offset} of {block_edges[block + 1] - block_edges[block]}")


def _count_by_kind(kinds: Kinds) -> dict[int, int]:
    """Count the events of each kind, given an array with the kind of each event."""
    counts = np.bincount(kinds)
    known = np.flatnonzero(counts)
    return dict(zip(known.tolist(), counts[known].tolist(), strict=True))


def count_block_events(body: memoryview) -> int:
    """Return the number of events in a decompressed block."""
    return create_block_event_counter()(body)


def create_block_event_counter() -> Callable[[memoryview], int]:
    """Return a function that counts the events in a decompressed block.

    The returned function reuses its memory between calls, so it must not be called by several threads at once.
    """
    buffers: list[Buffer] = []

    def count_events(body: memoryview) -> int:
        if not buffers or len(buffers[0].data) < len(body) + SLACK:
            buffers[:] = [Buffer(len(body))]
        data = buffers[0].data
        data[: len(body)] = np.frombuffer(body, np.uint8)
        data[len(body) : len(body) + SLACK] = 0
        return len(find_entries(buffers[0], [0, len(body)]).kinds)

    return count_events


def list_tables_of_undecoded_events(event_class: str) -> tuple[str, ...]:
    """Return the declared tables to which undecoded events of a class may belong, according to its display name."""
    if event_class.startswith("NVTX "):
        return ("nvtx_ranges", "nvtx_marks")
    if event_class.startswith("GPU activity "):
        return (*schemas.list_tables("activity"), *schemas.list_tables("synchronization"))
    if event_class == WITHOUT_CLASS or event_class.startswith("call of class "):
        return ("api_calls", "osrt_calls")
    return TABLES_OF_UNDECODED_EVENTS.get(event_class, ())


def format_event_kind(kind: int) -> str | None:
    """Return the display name of a kind of event, or None if a declared table may contain events of this kind.

    The result is None for function calls, GPU activities and generic events, because their kind does not determine
    whether a declared table contains them.
    """
    if kind == GENERIC:
        return None
    if kind == UNKNOWN:
        return "event of unknown kind"
    payload, event_type = split_event_kind(kind)
    is_call = payload == layout.API and event_type in layout.CLASSES_BY_TYPE
    is_decoded = is_call or payload == layout.GPU or (payload, event_type) in DECODED_TYPES
    return None if is_decoded else format_event_type(payload, event_type)


def format_event_type(payload_field: int, event_type: int) -> str:
    """Return the display name of events with the given payload field and event type."""
    if payload_field == layout.NVTX:
        return f"NVTX {NVTX_RANGE_ENDS.get(event_type, f'event of type {event_type}')}"
    return EVENT_TYPES.get(event_type, f"event of type {event_type}")


def format_incomplete_event(payload_field: int, event_type: int) -> str:
    """Return the display name of events that lack all fields that identify the rows of a table."""
    if payload_field == layout.PROCESS:
        return "process without a name"
    return format_event_type(payload_field, event_type)


def format_generic_event(source: str | None) -> str:
    """Return the display name of generic events from a source, or from an unknown source if ``source`` is None."""
    return "generic event" if source is None else f"generic event of {source}"


def format_call_class(event_class: int) -> str:
    """Return the display name of a class of function calls.

    The name of an unknown class contains the number of the class.
    """
    return CALL_CLASSES.get(event_class, f"call of class {event_class}")


def format_activity(event_type: int) -> str:
    """Return the display name of GPU activities that have none of the known activity fields."""
    return f"GPU activity of type {event_type}"


def format_call(event_type: int, event_class: int | None) -> str | None:
    """Return the display name of function calls, or None if a declared table contains calls of this type and class.

    The argument ``event_class`` is None for calls without a class.
    """
    if event_class in layout.CLASSES_BY_TYPE[event_type]:
        return None
    if event_type == layout.WDDM_EVENT:
        return EVENT_TYPES[layout.WDDM_EVENT]
    if event_class is None:
        return WITHOUT_CLASS
    if event_type == layout.CALL_MARK or event_class in MARK_CLASSES:
        return EVENT_TYPES[layout.CALL_MARK]
    return format_call_class(event_class)
