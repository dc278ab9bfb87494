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

SLOT_BYTES = 16
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
    parts: list[Slots] = [HeadSlots(sequence, event_sizes + time.sizes, event_sizes, rows), *event, time]
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


class HeadSlots:
    """The beginning of each packet, in which lengths have a fixed number of bytes."""

    def __init__(self, fields: bytes, packet_sizes: Sizes | int, event_sizes: Sizes | int, rows: int) -> None:
        """Encode the lengths.

        Args:
            fields: The fields of each packet before its event.
            packet_sizes: Number of bytes of each packet after the length of its event.
            event_sizes: Number of bytes of each event.
            rows: Number of packets.
        """
        event_words, event_width = fixed_varints(event_sizes, rows)
        fields += field_tag("TracePacket", "track_event")
        packet_words, packet_width = fixed_varints(packet_sizes + len(fields) + event_width, rows)
        self._fields: list[tuple[bytes, Numbers, int]] = [
            (field_tag("Trace", "packet"), packet_words, packet_width),
            (fields, event_words, event_width),
        ]
        self.sizes: Sizes | int = sum(len(tag) + width for tag, _, width in self._fields)
        self.count = _slots(self.sizes + _WORD_BYTES)

    def fill(self, content: Matrix) -> None:
        """Write the lengths of the packet and of the event, and the fields before each of them, to each row."""
        at = 0
        for tag, words, width in self._fields:
            content[:, at : at + len(tag)] = np.frombuffer(tag, np.uint8)
            _word_column(content, at + len(tag))[:] = words
            at += len(tag) + width


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
    if isinstance(values, int):
        encoded = varint(values)
        return np.full(rows, int.from_bytes(encoded, "little"), np.uint64), len(encoded)
    width = len(varint(int(values.max(initial=0))))
    return varint_words(values.astype(np.uint64), np.full(rows, width, np.uint8), width), width


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
