"""Encode packets of variable length by whole columns.

Each packet is a row of slots of 16 bytes, and only the first bytes of a slot belong to the packet. A single numpy
operation copies all slots to their offsets in the output. It copies 16 bytes per slot, in the order of the output, so
the next slot overwrites the bytes that do not belong to the packet.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from tracekit.exporters.perfetto.wire import assemble, field_tag, row_sizes, varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.exporters.perfetto.wire import Bytes, Column, Mask, Matrix, Numbers, Sizes

    SizeMatrix = np.ndarray[tuple[int, int], np.dtype[np.int64]]

SLOT_BYTES, COPIED_BYTES = 16, 64
_SLOT = np.dtype(f"V{SLOT_BYTES}")
_WORD_BYTES, _PAYLOAD_BITS, _CONTINUES = 8, 7, 0x80
_MAX_WIDTH = 10


class Slots(Protocol):
    """The bytes of one field, or of consecutive fields, in each row, in one or more slots per row."""

    @property
    def count(self) -> int:
        """Number of slots per row."""
        ...

    @property
    def sizes(self) -> Sizes | int:
        """Number of bytes in each row, as one number if it is equal in all rows."""
        ...

    def fill(self, content: Matrix) -> None:
        """Write the bytes of each row to a row of a matrix. The other bytes in the row may have any value."""
        ...


class VarintSlots:
    """Integers of variable length, each after the same bytes."""

    def __init__(
        self, prefix: bytes, values: Numbers, present: Mask | None = None, *, length_at: int | None = None
    ) -> None:
        """Compute the size of each integer.

        Args:
            prefix: The bytes before each integer.
            values: The integers. Negative ones are written as their two's complement.
            present: Rows that have the field. If None, all rows have it.
            length_at: Position in ``prefix`` of a byte to which the size of the integer is added. If None, there is
                no such byte.
        """
        self._prefix, self._values, self._length_at = prefix, values, length_at
        self._widths = varint_widths(values)
        low, self._max = (int(self._widths.min()), int(self._widths.max())) if len(values) else (1, 1)
        self.count = _slots(len(prefix) + max(self._max, _WORD_BYTES))
        if present is not None:
            self.sizes: Sizes | int = np.where(present, self._widths + np.int64(len(prefix)), 0)
        else:
            self.sizes = len(prefix) + low if low == self._max else self._widths + np.int64(len(prefix))

    def fill(self, content: Matrix) -> None:
        """Write the bytes and the integer to each row of a matrix."""
        at = len(self._prefix)
        content[:, :at] = np.frombuffer(self._prefix, np.uint8)
        _word_column(content, at)[:] = varint_words(self._values, self._widths, self._max)
        for nth in range(_WORD_BYTES, self._max):
            digits = (self._values >> np.uint64(_PAYLOAD_BITS * nth)).astype(np.uint8) & np.uint8(_CONTINUES - 1)
            content[:, at + nth] = digits | (self._widths > nth + 1).astype(np.uint8) << _PAYLOAD_BITS
        if self._length_at is not None:
            content[:, self._length_at] += self._widths


class Fixed64Slots:
    """Numbers of 8 bytes, each after the same bytes."""

    def __init__(self, prefix: bytes, values: Numbers, present: Mask | None = None) -> None:
        self._prefix, self._values = prefix, values
        size = len(prefix) + _WORD_BYTES
        self.count = _slots(size)
        self.sizes: Sizes | int = size if present is None else present * np.int64(size)

    def fill(self, content: Matrix) -> None:
        """Write the bytes and the number to each row of a matrix."""
        at = len(self._prefix)
        content[:, :at] = np.frombuffer(self._prefix, np.uint8)
        _word_column(content, at)[:] = self._values


class Blobs(NamedTuple):
    """Byte strings by code.

    Attributes:
        content: The bytes of each string, padded to slots.
        lengths: Number of bytes of each string.
    """

    content: Matrix
    lengths: Sizes

    @classmethod
    def from_bytes(cls, data: memoryview | bytes, lengths: Sizes) -> Blobs:
        """Return byte strings that are stored one after another."""
        count = _slots(int(lengths.max(initial=1)))
        padded = np.zeros(len(data) + count * SLOT_BYTES, np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        content = chunks(padded, count * SLOT_BYTES)[np.cumsum(lengths) - lengths]
        return cls(content.view(np.uint8).reshape(len(lengths), -1), lengths)


def encode_blobs(columns: Sequence[Column], rows: int) -> Blobs:
    """Encode columns as one byte string per row."""
    size = row_sizes(columns)
    return Blobs.from_bytes(assemble(columns, rows), np.full(rows, size) if isinstance(size, int) else size)


class BlobSlots:
    """Byte strings of a table, of which each row has one."""

    def __init__(self, blobs: Blobs, codes: Sizes) -> None:
        self._blobs, self._codes = blobs, codes
        self.count = blobs.content.shape[1] // SLOT_BYTES
        self.sizes: Sizes | int = blobs.lengths[codes]

    def fill(self, content: Matrix) -> None:
        """Write a byte string to each row of a matrix."""
        width = np.dtype(f"V{self._blobs.content.shape[1]}")
        content.view(width)[:, 0] = self._blobs.content.view(width)[self._codes, 0]


class Packets(NamedTuple):
    """Encoded packets.

    Attributes:
        data: The bytes of all packets.
        gaps: Offset of the gap at the end of the event of each packet.
    """

    data: Bytes
    gaps: Sizes


def encode_packets(sequence: bytes, event: Sequence[Slots], deltas: Numbers, gaps: Sizes | int = 0) -> Packets:
    """Encode packets with track events.

    Args:
        sequence: The fields of each packet that are equal in all packets.
        event: The fields of the events.
        deltas: The timestamps of the packets, relative to the previous one.
        gaps: Number of bytes at the end of each event that the caller will write.
    """
    rows = len(deltas)
    time = VarintSlots(field_tag("TracePacket", "timestamp"), deltas)
    event_sizes = _total(event) + gaps
    fields = sequence + field_tag("TracePacket", "track_event")
    packet_sizes = len(fields) + fixed_width(event_sizes) + event_sizes + time.sizes
    head = FixedSlots([(field_tag("Trace", "packet"), packet_sizes), (fields, event_sizes)], rows)
    parts: list[Slots] = [head, *event, time]
    counts = [part.count for part in parts]
    content = np.empty((rows, sum(counts) * SLOT_BYTES), np.uint8)
    advances = np.empty((rows, sum(counts)), np.int64)
    start = 0
    for part, count in zip(parts, counts, strict=True):
        part.fill(content[:, start * SLOT_BYTES : (start + count) * SLOT_BYTES])
        _split_sizes(part.sizes, advances[:, start : start + count])
        start += count
    last = start - time.count - 1
    ends_of_events = advances[:, last].copy()
    advances[:, last] += gaps
    ends = np.cumsum(advances.reshape(-1))
    starts = ends - advances.reshape(-1)
    data = np.empty(int(ends[-1]) + SLOT_BYTES, np.uint8)
    chunks(data, SLOT_BYTES)[starts] = content.reshape(-1).view(_SLOT)
    return Packets(data[: int(ends[-1])], starts.reshape(advances.shape)[:, last] + ends_of_events)


class FixedSlots:
    """Integers of variable length that have an equal number of bytes in all rows, each after the same bytes."""

    def __init__(self, fields: Sequence[tuple[bytes, Sizes | int]], rows: int) -> None:
        """Encode the integers.

        Args:
            fields: The bytes before each integer, and the integers.
            rows: Number of rows.
        """
        self._fields = [(tag, *fixed_varints(values, rows)) for tag, values in fields]
        self.width = sum(len(tag) + width for tag, _, width in self._fields)
        self.sizes: Sizes | int = self.width
        self.count = _slots(self.width + _WORD_BYTES)

    def fill(self, content: Matrix) -> None:
        """Write the integers, and the bytes before each of them, to each row of a matrix."""
        at = 0
        for tag, words, width in self._fields:
            content[:, at : at + len(tag)] = np.frombuffer(tag, np.uint8)
            _word_column(content, at + len(tag))[:] = words
            at += len(tag) + width


def copy_bytes(source: Bytes, starts: Sizes, target: Bytes, offsets: Sizes, sizes: Sizes) -> None:
    """Copy byte strings. Up to 63 bytes after each string are overwritten in the target, before the next one is copied.

    Args:
        source: The bytes of the strings, followed by at least 63 other bytes.
        starts: Offset of each string in the source.
        target: The bytes that are overwritten.
        offsets: Offset of each string in the target, in ascending order.
        sizes: Number of bytes of each string.
    """
    counts = -(-sizes // COPIED_BYTES)
    positions = COPIED_BYTES * (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts))
    copied = chunks(source, COPIED_BYTES)[np.repeat(starts, counts) + positions]
    chunks(target, COPIED_BYTES)[np.repeat(offsets, counts) + positions] = copied


def chunks(data: Bytes, size: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return a view of bytes whose n-th element consists of the ``size`` bytes from offset n on."""
    return np.ndarray((len(data) - size + 1,), np.dtype(f"V{size}"), data, strides=(1,))


def varint_widths(values: Numbers) -> Bytes:
    """Return the number of bytes of each integer."""
    widths = np.ones(len(values), np.uint8)
    bits = int(values.max()).bit_length() if len(values) else 0
    for shift in range(_PAYLOAD_BITS, bits, _PAYLOAD_BITS):
        widths += values >= np.uint64(1 << shift)
    return widths


def varint_words(values: Numbers, widths: Bytes, width: int) -> Numbers:
    """Return the first 8 bytes of each integer of variable length.

    Args:
        values: The integers.
        widths: Number of bytes of each integer.
        width: The largest number of bytes of an integer.
    """
    words = values & np.uint64(_CONTINUES - 1)
    for nth in range(1, min(width, _WORD_BYTES)):
        words |= (values << np.uint64(nth)) & np.uint64(_CONTINUES - 1 << 8 * nth)
    return words if width == 1 else words | _continuations()[widths]


@functools.cache
def _continuations() -> Numbers:
    """Return the bits that mark the bytes that are not the last, by the number of bytes."""
    flags = [sum(_CONTINUES << 8 * n for n in range(min(width - 1, _WORD_BYTES))) for width in range(1, _MAX_WIDTH + 1)]
    return np.array([0, *flags], np.uint64)


def fixed_varints(values: Sizes | int, rows: int) -> tuple[Numbers, int]:
    """Return integers as words whose first bytes encode them with an equal number of bytes, and this number."""
    width = fixed_width(values)
    numbers = np.full(rows, values, np.uint64) if isinstance(values, int) else values.astype(np.uint64)
    return varint_words(numbers, np.full(rows, width, np.uint8), width), width


def fixed_width(values: Sizes | int) -> int:
    """Return the number of bytes of the largest integer."""
    return len(varint(values if isinstance(values, int) else int(values.max(initial=0))))


def _word_column(content: Matrix, at: int) -> Numbers:
    """Return the 8 bytes of each row from a position on as integers."""
    return content[:, at : at + _WORD_BYTES].view("<u8")[:, 0]


def _slots(size: int) -> int:
    """Return the number of slots for a number of bytes."""
    return -(-size // SLOT_BYTES)


def _split_sizes(sizes: Sizes | int, columns: SizeMatrix) -> None:
    """Write the number of bytes in each slot, of which all but the last are filled first."""
    count = columns.shape[1]
    if count == 1:
        columns[:, 0] = sizes
        return
    for nth in range(count):
        columns[:, nth] = np.clip(sizes - np.int64(nth * SLOT_BYTES), 0, SLOT_BYTES)


def _total(parts: Sequence[Slots]) -> Sizes | int:
    """Return the number of bytes in each row."""
    total: Sizes | int = 0
    for part in parts:
        total = total + part.sizes
    return total
