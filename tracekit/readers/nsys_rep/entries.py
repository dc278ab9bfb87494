"""Find the offset, size and kind of the payload of each event in the blocks of a report.

An entry is an encoded event in a block. Each entry begins where the previous entry ends.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf import decoder
from tracekit.readers.common.protobuf.decoder import (
    BROKEN_CHAIN,
    FULL,
    SCRATCH,
    SCRATCH_BYTES,
    SLACK,
    TOO_MANY,
    check_result_code,
)
from tracekit.readers.common.protobuf.decoding import Buffer
from tracekit.system import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Int64Array, Mask

Kinds: TypeAlias = npt.NDArray[np.uint16]
UInt32Array: TypeAlias = npt.NDArray[np.uint32]

GENERIC, UNKNOWN = decoder.GENERIC, decoder.UNKNOWN
FIRST_PAYLOAD, PAYLOADS, TYPES = decoder.FIRST_PAYLOAD, decoder.PAYLOADS, decoder.TYPES
_FIRST = np.zeros(1, np.int64)
MAX_ENTRIES = 1 << 17
ENTRY_BYTES = 16
"""Bytes of memory to reserve per entry, including temporary memory."""
STORED_BYTES = 8
"""Bytes per entry that stay in memory, or in a temporary file."""


class EventSelection(NamedTuple):
    """A selection of events by payload field and event type.

    Attributes:
        payload: Number of the event field that holds the payload, or ``GENERIC`` for generic events.
        types: Event types to select. If empty, all types are selected.
    """

    payload: int
    types: tuple[int, ...] = ()


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

    def get_event_types_at(self, rows: Int64Array, indices: Int64Array) -> npt.NDArray[np.uint16]:
        """Return the event types of some of the given events, which must be neither generic nor unknown.

        Args:
            rows: Indices of events.
            indices: Positions in ``rows`` of the events whose types are returned.
        """
        return self.kinds[rows[indices]] % TYPES

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
