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
    """Encoded fields of the packets of a batch, in one or more slots per packet."""

    @property
    def count(self) -> int:
        """Number of slots per row."""
        ...

    @property
    def sizes(self) -> Sizes | int:
        """Number of bytes in each row, or a single number if all rows have the same size."""
        ...

    def fill(self, content: Matrix) -> None:
        """Write the fields of each packet to a row of a matrix. The bytes after the fields may have any value."""
        ...


class VarintSlots:
    """One varint per packet, preceded by constant bytes."""

    def __init__(
        self, prefix: bytes, values: Numbers, present: Mask | None = None, *, length_at: int | None = None
    ) -> None:
        """Compute the size of each varint.

        Args:
            prefix: The constant bytes.
            values: The integers. Negative ones are written as their two's complement.
            present: Rows that have the field. If None, all rows have it.
            length_at: Position in ``prefix`` of a length byte, to which the size of the varint is added. None if the
                prefix contains no length.
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
        """Write the constant bytes and the varint to each row of a matrix."""
        at = len(self._prefix)
        content[:, :at] = np.frombuffer(self._prefix, np.uint8)
        _word_column(content, at)[:] = varint_words(self._values, self._widths, self._max)
        for nth in range(_WORD_BYTES, self._max):
            digits = (self._values >> np.uint64(_PAYLOAD_BITS * nth)).astype(np.uint8) & np.uint8(_CONTINUES - 1)
            content[:, at + nth] = digits | (self._widths > nth + 1).astype(np.uint8) << _PAYLOAD_BITS
        if self._length_at is not None:
            content[:, self._length_at] += self._widths


class Fixed64Slots:
    """One number of 8 bytes per packet, preceded by constant bytes."""

    def __init__(self, prefix: bytes, values: Numbers, present: Mask | None = None) -> None:
        self._prefix, self._values = prefix, values
        size = len(prefix) + _WORD_BYTES
        self.count = _slots(size)
        self.sizes: Sizes | int = size if present is None else present * np.int64(size)

    def fill(self, content: Matrix) -> None:
        """Write the constant bytes and the number to each row of a matrix."""
        at = len(self._prefix)
        content[:, :at] = np.frombuffer(self._prefix, np.uint8)
        _word_column(content, at)[:] = self._values


class Blobs(NamedTuple):
    """Distinct byte strings, which packets refer to by number.

    Attributes:
        content: One row of whole slots per byte string.
        lengths: Number of bytes of each byte string.
    """

    content: Matrix
    lengths: Sizes

    @classmethod
    def from_bytes(cls, data: memoryview | bytes, lengths: Sizes) -> Blobs:
        """Return the byte strings of the given lengths that ``data`` contains one after another."""
        count = _slots(int(lengths.max(initial=1)))
        padded = np.zeros(len(data) + count * SLOT_BYTES, np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        content = chunks(padded, count * SLOT_BYTES)[np.cumsum(lengths) - lengths]
        return cls(content.view(np.uint8).reshape(len(lengths), -1), lengths)


def encode_blobs(columns: Sequence[Column], rows: int) -> Blobs:
    """Encode each row of some columns as a byte string."""
    size = row_sizes(columns)
    return Blobs.from_bytes(assemble(columns, rows), np.full(rows, size) if isinstance(size, int) else size)


class BlobSlots:
    """One of several distinct byte strings per packet."""

    def __init__(self, blobs: Blobs, codes: Sizes) -> None:
        self._blobs, self._codes = blobs, codes
        self.count = blobs.content.shape[1] // SLOT_BYTES
        self.sizes: Sizes | int = blobs.lengths[codes]

    def fill(self, content: Matrix) -> None:
        """Write the byte string of each packet to a row of a matrix."""
        width = np.dtype(f"V{self._blobs.content.shape[1]}")
        content.view(width)[:, 0] = self._blobs.content.view(width)[self._codes, 0]


class Packets(NamedTuple):
    """Encoded packets.

    Attributes:
        data: The bytes of all packets.
        gaps: Offset of the gap at the end of each event, which the caller has to fill.
    """

    data: Bytes
    gaps: Sizes


def encode_packets(sequence: bytes, event: Sequence[Slots], deltas: Numbers, gaps: Sizes | int = 0) -> Packets:
    """Encode packets that contain one track event each.

    Args:
        sequence: The encoded fields that all packets share.
        event: The fields of the events.
        deltas: The timestamp of each packet in ns, relative to the previous packet.
        gaps: Number of bytes to leave free at the end of each event.
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
    """Varints that are padded to the same number of bytes in all packets, with constant bytes before each."""

    def __init__(self, fields: Sequence[tuple[bytes, Sizes | int]], rows: int) -> None:
        """Encode the varints.

        Args:
            fields: The constant bytes before each varint, and its values.
            rows: Number of packets.
        """
        self._fields = [(tag, *fixed_varints(values, rows)) for tag, values in fields]
        self.width = sum(len(tag) + width for tag, _, width in self._fields)
        self.sizes: Sizes | int = self.width
        self.count = _slots(self.width + _WORD_BYTES)

    def fill(self, content: Matrix) -> None:
        """Write the constant bytes and the varints to each row of a matrix."""
        at = 0
        for tag, words, width in self._fields:
            content[:, at : at + len(tag)] = np.frombuffer(tag, np.uint8)
            _word_column(content, at + len(tag))[:] = words
            at += len(tag) + width


def copy_bytes(source: Bytes, starts: Sizes, target: Bytes, offsets: Sizes, sizes: Sizes) -> None:
    """Copy byte strings from one buffer to offsets in another.

    64 bytes are copied at once, so up to 63 bytes after each string are overwritten before the next one is copied.

    Args:
        source: The buffer with the strings, which must have 63 more bytes after the last one.
        starts: Offset of each string in the source.
        target: The buffer that the strings are copied to.
        offsets: Offset of each string in the target, in ascending order.
        sizes: Number of bytes of each string.
    """
    counts = -(-sizes // COPIED_BYTES)
    positions = COPIED_BYTES * (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts))
    copied = chunks(source, COPIED_BYTES)[np.repeat(starts, counts) + positions]
    chunks(target, COPIED_BYTES)[np.repeat(offsets, counts) + positions] = copied


def chunks(data: Bytes, size: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return a view whose n-th element consists of the ``size`` bytes at offset n. The elements overlap."""
    return np.ndarray((len(data) - size + 1,), np.dtype(f"V{size}"), data, strides=(1,))


def varint_widths(values: Numbers) -> Bytes:
    """Return the number of bytes of each integer as a varint."""
    widths = np.ones(len(values), np.uint8)
    bits = int(values.max()).bit_length() if len(values) else 0
    for shift in range(_PAYLOAD_BITS, bits, _PAYLOAD_BITS):
        widths += values >= np.uint64(1 << shift)
    return widths


def varint_words(values: Numbers, widths: Bytes, width: int) -> Numbers:
    """Return the first 8 bytes of the varint of each integer, in little-endian order.

    Args:
        values: The integers.
        widths: Number of bytes of each varint.
        width: Number of bytes of the longest varint.
    """
    words = values & np.uint64(_CONTINUES - 1)
    for nth in range(1, min(width, _WORD_BYTES)):
        words |= (values << np.uint64(nth)) & np.uint64(_CONTINUES - 1 << 8 * nth)
    return words if width == 1 else words | _continuations()[widths]


@functools.cache
def _continuations() -> Numbers:
    """Return the continuation bits in the first 8 bytes of a varint, by its number of bytes."""
    flags = [sum(_CONTINUES << 8 * n for n in range(min(width - 1, _WORD_BYTES))) for width in range(1, _MAX_WIDTH + 1)]
    return np.array([0, *flags], np.uint64)


def fixed_varints(values: Sizes | int, rows: int) -> tuple[Numbers, int]:
    """Encode integers as varints of the same number of bytes, and return their first 8 bytes and this number."""
    width = fixed_width(values)
    numbers = np.full(rows, values, np.uint64) if isinstance(values, int) else values.astype(np.uint64)
    return varint_words(numbers, np.full(rows, width, np.uint8), width), width


def fixed_width(values: Sizes | int) -> int:
    """Return the number of bytes of the largest integer as a varint."""
    return len(varint(values if isinstance(values, int) else int(values.max(initial=0))))


def _word_column(content: Matrix, at: int) -> Numbers:
    """Return a view of the 8 bytes at a position of each row as integers."""
    return content[:, at : at + _WORD_BYTES].view("<u8")[:, 0]


def _slots(size: int) -> int:
    """Return how many slots are needed for a number of bytes."""
    return -(-size // SLOT_BYTES)


def _split_sizes(sizes: Sizes | int, columns: SizeMatrix) -> None:
    """Divide the number of bytes of each packet among consecutive slots, which are filled from the first on."""
    count = columns.shape[1]
    if count == 1:
        columns[:, 0] = sizes
        return
    for nth in range(count):
        columns[:, nth] = np.clip(sizes - np.int64(nth * SLOT_BYTES), 0, SLOT_BYTES)


def _total(parts: Sequence[Slots]) -> Sizes | int:
    """Return the total number of bytes of some fields in each packet."""
    total: Sizes | int = 0
    for part in parts:
        total = total + part.sizes
    return total
