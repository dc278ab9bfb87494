"""Decode many protobuf messages of one type. Each field becomes a column with a number or byte range per message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.readers.common import columns as col
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoder import (
    COUNTS,
    FIELDS,
    MAX_SLOTS,
    SCRATCH,
    SCRATCH_BYTES,
    SLACK,
    SLOTS,
    WIRE_TYPES,
    DecoderSandbox,
    check_result_code,
)
from tracekit.readers.common.protobuf.wire import DELIMITED

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

UInt64Array: TypeAlias = npt.NDArray[np.uint64]
Int64Array: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

WORD = 8
MAX_ROWS = (1 << 14) - 8
"""Number of messages that are decoded at a time, so that the result stays in the processor's cache.

The number is not a power of two, so that the columns do not compete for the same cache sets.
"""
MAX_GAP_FACTOR = 32
"""Strings are copied to a new buffer if the range from the first to the last exceeds this many times their size."""
MAX_LENGTH = np.uint64(1 << 40)
_ABSENT = np.uint64(0)
_MESSAGE_BYTES, _FIELD_BYTES = 2 * WORD, 2 * WORD + 1
"""Bytes of scratch memory per message (start and end offset), and per field of a message (value, end, presence)."""


class Buffer(DecoderSandbox):
    """A decoder sandbox whose memory can be accessed as 64-bit integers.

    Attributes:
        words: The unsigned little-endian 64-bit integer that begins at each offset: element ``i`` consists of the bytes
            ``i`` to ``i + 7``.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.words: UInt64Array = np.ndarray((size + SLACK - WORD,), "<u8", self.data.data, strides=(1,))


@dataclass(slots=True)
class Field:
    """One field of many protobuf messages, decoded into arrays with one element per message.

    Attributes:
        values: The numbers, or the start offsets of the bytes. The value is undefined if the message lacks the field.
        stops: The end offsets of the bytes, or None if the field holds numbers.
        valid: For each message, whether it has the field. None if all messages have it.
        number: The field number.
    """

    values: UInt64Array
    stops: Int64Array | None
    valid: Mask | None
    number: int

    def rows(self) -> Int64Array | None:
        """Return the indices of the messages that have the field, or None if all messages have it."""
        return None if self.valid is None else np.flatnonzero(self.valid)

    def spans(self) -> tuple[Int64Array, Int64Array]:
        """Return the start and end offsets of the bytes of the field in the messages that have the field.

        Raises:
            Damage: The field holds numbers.
        """
        starts, stops = self.compute_byte_ranges()
        return (starts, stops) if self.valid is None else (starts[self.valid], stops[self.valid])

    def compute_byte_ranges(self) -> tuple[Int64Array, Int64Array]:
        """Return the start and end offsets of the bytes of the field in all messages.

        The offsets are undefined for messages that lack the field.

        Raises:
            Damage: The field holds numbers.
        """
        if self.stops is None:
            raise Damage(f"field {self.number} holds a number instead of bytes")
        return self.values.view(np.int64), self.stops

    def take(self, rows: Int64Array) -> Field:
        """Return this field for the messages with the given indices, in the order of the indices."""
        stops = None if self.stops is None else self.stops[rows]
        return Field(self.values[rows], stops, None if self.valid is None else self.valid[rows], self.number)


def decode(
    buffer: Buffer, starts: Int64Array, stops: Int64Array, fields: Collection[int], span_field: int | None = None
) -> dict[int, Field]:
    """Decode the given fields of many protobuf messages into arrays.

    Args:
        buffer: Buffer that holds the messages.
        starts: Start offset of each message.
        stops: End offset of each message, within the buffer.
        fields: At most 255 field numbers below 2048. If a message has a field several times, the last value is
            decoded.
        span_field: Number of a repeated, length-delimited field in ``fields``, or None. For this field, the byte range
            in each message extends from the key of the first value to the end of the last value, instead of covering
            only the last value. Values of this field that are not length-delimited are ignored.

    Returns:
        The fields that occur in any message, by field number.

    Raises:
        Damage: A field extends beyond the end of its message, has an unknown wire type, or holds both numbers and
            bytes.
    """
    numbers = sorted(fields)
    if not numbers or not len(starts):
        return {}
    collector = _FieldCollector(numbers, len(starts))
    rows = max(1, min(MAX_ROWS, SCRATCH_BYTES // (_MESSAGE_BYTES + _FIELD_BYTES * len(numbers))))
    for first in range(0, len(starts), rows):
        part = slice(first, min(first + rows, len(starts)))
        collector.add_batch(part, _DecodedBatch(buffer, numbers, starts[part], stops[part], span_field))
    return collector.collect_decoded_fields()


def decode_varints(buffer: Buffer, offsets: Int64Array) -> tuple[UInt64Array, Int64Array]:
    """Decode the varint at each offset. Return the values, and the length of each varint in bytes.

    Raises:
        Damage: A varint is too long or truncated.
    """
    values, lengths = np.empty(len(offsets), np.uint64), np.empty(len(offsets), np.int64)
    rows = SCRATCH_BYTES // (3 * WORD)
    for first in range(0, len(offsets), rows):
        part = slice(first, first + rows)
        n = len(offsets[part])
        at = [SCRATCH + k * n * WORD for k in range(3)]
        buffer.array(at[0], n, np.int64)[:] = offsets[part]
        check_result_code(buffer.call("varints", rows=n, offsets=at[0], values=at[1], lengths=at[2], limit=buffer.size))
        values[part] = buffer.array(at[1], n, np.uint64)
        lengths[part] = buffer.array(at[2], n, np.int64)
    return values, lengths


class _DecodedBatch:
    """The decoded fields of a batch of protobuf messages, in arrays that are views of the sandbox memory."""

    def __init__(
        self, buffer: Buffer, numbers: Sequence[int], starts: Int64Array, stops: Int64Array, span_field: int | None
    ) -> None:
        rows, slots = len(starts), len(numbers)
        if slots > MAX_SLOTS:
            raise ValueError(f"{slots} fields were requested, but at most {MAX_SLOTS} fields are allowed")
        unsupported = [number for number in numbers if not 0 <= number < FIELDS]
        if unsupported:
            raise ValueError(f"field numbers from 0 to {FIELDS - 1} are supported, but not {unsupported}")
        at = np.cumsum([SCRATCH, *(WORD * rows for _ in range(2)), *(WORD * rows * slots for _ in range(2))]).tolist()
        buffer.array(at[0], rows, np.int64)[:] = starts
        buffer.array(at[1], rows, np.int64)[:] = stops
        present = buffer.array(at[4], rows * slots, np.bool_)
        present[:] = False
        table = buffer.bytes(SLOTS, FIELDS)
        table[:] = 0
        table[list(numbers)] = np.arange(1, slots + 1)
        self.counts: npt.NDArray[np.int32] = buffer.array(COUNTS, slots, np.int32)
        self.kinds: npt.NDArray[np.int32] = buffer.array(WIRE_TYPES, slots, np.int32)
        self.counts[:], self.kinds[:] = 0, 0
        arrays = dict(zip(("starts", "stops", "values", "ends", "present"), at, strict=True))
        repeated = 0 if span_field is None else 1 + numbers.index(span_field)
        check_result_code(buffer.call("messages", rows=rows, limit=buffer.size, repeated=repeated, **arrays))
        self.values: UInt64Array = buffer.array(at[2], rows * slots, np.uint64).reshape(slots, rows)
        self.stops: Int64Array = buffer.array(at[3], rows * slots, np.int64).reshape(slots, rows)
        self.present: Mask = present.reshape(slots, rows)


class _FieldCollector:
    """A builder that joins the decoded fields of all batches. Memory is allocated only for fields that occur."""

    def __init__(self, numbers: Sequence[int], rows: int) -> None:
        self._numbers = numbers
        self._rows = rows
        self._fields: dict[int, Field] = {}
        self._counts = [0] * len(numbers)

    def add_batch(self, rows: slice, batch: _DecodedBatch) -> None:
        """Copy the fields of a decoded batch into the arrays of all messages.

        Args:
            rows: Indices of the messages of the batch among all messages.
            batch: The decoded batch.
        """
        kinds = batch.kinds.tolist()
        for slot, count in enumerate(batch.counts.tolist()):
            if count:
                field = self._get_field_at_index(slot, kinds[slot])
                present = batch.present[slot]
                everywhere = count == len(present)
                field.values[rows] = (
                    batch.values[slot] if everywhere else np.where(present, batch.values[slot], _ABSENT)
                )
                if field.stops is not None:
                    field.stops[rows] = batch.stops[slot] if everywhere else np.where(present, batch.stops[slot], 0)
                if field.valid is not None:
                    field.valid[rows] = present
                self._counts[slot] += count

    def collect_decoded_fields(self) -> dict[int, Field]:
        """Return the fields that occur in any message, by field number."""
        for slot, number in enumerate(self._numbers):
            if self._counts[slot] == self._rows:
                self._fields[number].valid = None
        return self._fields

    def _get_field_at_index(self, index: int, wire_type_mask: int) -> Field:
        """Return the field at an index among the requested fields. The first call for a field allocates its arrays.

        Args:
            index: Index of the field among the requested fields.
            wire_type_mask: Bit mask of the wire types with which the field occurs in a batch.
        """
        number = self._numbers[index]
        delimited = wire_type_mask == 1 << DELIMITED
        field = self._fields.get(number)
        if field is None:
            stops = np.zeros(self._rows, np.int64) if delimited else None
            field = Field(np.zeros(self._rows, np.uint64), stops, np.zeros(self._rows, np.bool_), number)
            self._fields[number] = field
        if (field.stops is not None) != delimited or (wire_type_mask >> DELIMITED & 1) != delimited:
            raise Damage(f"field {number} holds both numbers and bytes")
        return field


def extract_strings(
    data: np.ndarray[tuple[int], np.dtype[np.uint8]], edges: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> pa.Array:
    """Copy strings from a buffer into an Arrow array of type binary.

    Args:
        data: The bytes that contain the strings.
        edges: Alternating start and end offsets of the strings, in ascending order.
    """
    if len(edges) and MAX_GAP_FACTOR * int((edges[1::2] - edges[::2]).sum()) < edges[-1] - edges[0]:
        data, edges = _gather_strings(data, edges)
    offsets = pa.py_buffer(edges.astype(np.int32))
    between = pa.Array.from_buffers(pa.binary(), max(0, len(edges) - 1), [None, offsets, pa.py_buffer(data)])
    return between.take(col.build_number_array(np.arange(0, len(between), 2)))


def _gather_strings(
    data: np.ndarray[tuple[int], np.dtype[np.uint8]], edges: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Copy strings into a new buffer without the gaps between them.

    Return the new buffer, and the alternating start and end offsets of the strings in the new buffer.
    """
    sizes = edges[1::2] - edges[::2]
    ends = np.cumsum(sizes)
    offsets = np.repeat(edges[::2] - (ends - sizes), sizes) + np.arange(ends[-1])
    return data[offsets], np.stack((ends - sizes, ends), axis=1).reshape(-1)
