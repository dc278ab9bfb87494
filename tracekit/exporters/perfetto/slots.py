"""Encode packets of variable length with vectorized operations.

Each packet is a row of slots of 16 bytes. Only the first bytes of a slot belong to the packet. A single numpy operation
copies all slots to their offsets in the output, in ascending order and with 16 bytes per slot. Each slot therefore
overwrites the unused bytes of the previous slot.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from tracekit.exporters.perfetto.wire import compute_row_sizes, encode_field_tag, encode_rows, encode_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.exporters.perfetto.wire import Bytes, EncodedColumn, Mask, Matrix, Numbers, Sizes
    from tracekit.exporters.timeline.combinations import Codes

    SizeMatrix = np.ndarray[tuple[int, int], np.dtype[np.int64]]

SLOT_BYTES, COPIED_BYTES = 16, 64
_SLOT = np.dtype(f"V{SLOT_BYTES}")
_WORD_BYTES, _PAYLOAD_BITS, _CONTINUES = 8, 7, 0x80
_MAX_WIDTH = 10


class Slots(Protocol):
    """Encoded fields of a batch of packets, in one or more slots of 16 bytes per packet."""

    @property
    def slot_count(self) -> int:
        """Number of 16-byte slots that the fields take in each packet."""
        ...

    @property
    def sizes(self) -> Sizes | int:
        """Size in bytes of the fields of each packet, or a single number if all sizes are equal."""
        ...

    def fill(self, content: Matrix) -> None:
        """Write the fields of each packet to a row of a byte matrix. Bytes after the fields may have any value."""
        ...


class VarintSlots:
    """One varint per packet, preceded by constant bytes."""

    def __init__(
        self, prefix: bytes, values: Numbers, present: Mask | None = None, *, length_at: int | None = None
    ) -> None:
        """Compute the size of each varint.

        Args:
            prefix: The constant bytes.
            values: The integers. Pass negative integers as their two's complement.
            present: Mask of the packets that have the varint, or None if all packets have it.
            length_at: Position of a length byte in ``prefix``, to which the size of the varint is added, or None if the
                prefix contains no length.
        """
        self._prefix, self._values, self._length_at = prefix, values, length_at
        self._widths = compute_varint_widths(values)
        low, self._max = (int(self._widths.min()), int(self._widths.max())) if len(values) else (1, 1)
        self.slot_count = _count_slots(len(prefix) + max(self._max, _WORD_BYTES))
        if present is not None:
            self.sizes: Sizes | int = np.where(present, self._widths + np.int64(len(prefix)), 0)
        else:
            self.sizes = len(prefix) + low if low == self._max else self._widths + np.int64(len(prefix))

    def fill(self, content: Matrix) -> None:
        """Write the constant bytes and the varint of each packet to a row of a byte matrix."""
        at = len(self._prefix)
        content[:, :at] = np.frombuffer(self._prefix, np.uint8)
        _view_word_column(content, at)[:] = encode_varint_words(self._values, self._widths, self._max)
        for nth in range(_WORD_BYTES, self._max):
            digits = (self._values >> np.uint64(_PAYLOAD_BITS * nth)).astype(np.uint8) & np.uint8(_CONTINUES - 1)
            content[:, at + nth] = digits | (self._widths > nth + 1).astype(np.uint8) << _PAYLOAD_BITS
        if self._length_at is not None:
            content[:, self._length_at] += self._widths


class Fixed64Slots:
    """One 8-byte number per packet, preceded by constant bytes."""

    def __init__(self, prefix: bytes, values: Numbers, present: Mask | None = None) -> None:
        self._prefix, self._values = prefix, values
        size = len(prefix) + _WORD_BYTES
        self.slot_count = _count_slots(size)
        self.sizes: Sizes | int = size if present is None else present * np.int64(size)

    def fill(self, content: Matrix) -> None:
        """Write the constant bytes and the number of each packet to a row of a byte matrix."""
        at = len(self._prefix)
        content[:, :at] = np.frombuffer(self._prefix, np.uint8)
        _view_word_column(content, at)[:] = self._values


class Blobs(NamedTuple):
    """Distinct byte strings, to which packets refer by index.

    Attributes:
        content: Byte matrix with one byte string per row, padded to a multiple of the slot size.
        lengths: Length of each byte string in bytes.
    """

    content: Matrix
    lengths: Sizes

    @classmethod
    def from_bytes(cls, data: memoryview | bytes, lengths: Sizes) -> Blobs:
        """Split ``data`` into consecutive byte strings of the given lengths in bytes."""
        count = _count_slots(int(lengths.max(initial=1)))
        padded = np.zeros(len(data) + count * SLOT_BYTES, np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        content = view_byte_windows(padded, count * SLOT_BYTES)[np.cumsum(lengths) - lengths]
        return cls(content.view(np.uint8).reshape(len(lengths), -1), lengths)


def encode_blobs(columns: Sequence[EncodedColumn], row_count: int) -> Blobs:
    """Encode each row of the given columns as one byte string."""
    size = compute_row_sizes(columns)
    return Blobs.from_bytes(
        encode_rows(columns, row_count), np.full(row_count, size) if isinstance(size, int) else size
    )


class BlobSlots:
    """One byte string per packet, selected from ``Blobs``."""

    def __init__(self, blobs: Blobs, codes: Codes) -> None:
        self._blobs, self._codes = blobs, codes
        self.slot_count = blobs.content.shape[1] // SLOT_BYTES
        self.sizes: Sizes | int = blobs.lengths[codes]

    def fill(self, content: Matrix) -> None:
        """Write the byte string of each packet to a row of a byte matrix."""
        width = np.dtype(f"V{self._blobs.content.shape[1]}")
        content.view(width)[:, 0] = self._blobs.content.view(width)[self._codes, 0]


class Packets(NamedTuple):
    """A batch of encoded packets.

    Attributes:
        data: The bytes of all packets.
        gap_offsets: Offset in ``data`` of the bytes reserved at the end of each event. The caller must fill them.
    """

    data: Bytes
    gap_offsets: Sizes


def encode_packets(
    shared_fields: bytes, event_fields: Sequence[Slots], deltas: Numbers, gap_sizes: Sizes | int = 0
) -> Packets:
    """Encode packets that contain one track event each.

    Args:
        shared_fields: The encoded fields that are equal in all packets.
        event_fields: The fields of the track events.
        deltas: The timestamp of each packet in ns, relative to the previous packet.
        gap_sizes: Number of bytes to reserve at the end of each event.
    """
    rows = len(deltas)
    time = VarintSlots(encode_field_tag("TracePacket", "timestamp"), deltas)
    event_sizes = _compute_total_sizes(event_fields) + gap_sizes
    fields = shared_fields + encode_field_tag("TracePacket", "track_event")
    packet_sizes = len(fields) + compute_max_varint_width(event_sizes) + event_sizes + time.sizes
    head = FixedSlots([(encode_field_tag("Trace", "packet"), packet_sizes), (fields, event_sizes)], rows)
    parts: list[Slots] = [head, *event_fields, time]
    counts = [part.slot_count for part in parts]
    content = np.empty((rows, sum(counts) * SLOT_BYTES), np.uint8)
    advances = np.empty((rows, sum(counts)), np.int64)
    start = 0
    for part, count in zip(parts, counts, strict=True):
        part.fill(content[:, start * SLOT_BYTES : (start + count) * SLOT_BYTES])
        _fill_slot_sizes(part.sizes, advances[:, start : start + count])
        start += count
    last = start - time.slot_count - 1
    ends_of_events = advances[:, last].copy()
    advances[:, last] += gap_sizes
    ends = np.cumsum(advances.reshape(-1))
    starts = ends - advances.reshape(-1)
    data = np.empty(int(ends[-1]) + SLOT_BYTES, np.uint8)
    view_byte_windows(data, SLOT_BYTES)[starts] = content.reshape(-1).view(_SLOT)
    return Packets(data[: int(ends[-1])], starts.reshape(advances.shape)[:, last] + ends_of_events)


class FixedSlots:
    """One or more varints per packet. Each is preceded by constant bytes and has the same size in all packets."""

    def __init__(self, fields: Sequence[tuple[bytes, Sizes | int]], packet_count: int) -> None:
        """Encode the varints of all packets.

        Args:
            fields: For each varint, the constant bytes that precede it and its value in each packet.
            packet_count: Number of packets.
        """
        self._fields = [(tag, *encode_varints_of_equal_size(values, packet_count)) for tag, values in fields]
        self.width = sum(len(tag) + width for tag, _, width in self._fields)
        self.sizes: Sizes | int = self.width
        self.slot_count = _count_slots(self.width + _WORD_BYTES)

    def fill(self, content: Matrix) -> None:
        """Write the constant bytes and the varints of each packet to a row of a byte matrix."""
        at = 0
        for tag, words, width in self._fields:
            content[:, at : at + len(tag)] = np.frombuffer(tag, np.uint8)
            _view_word_column(content, at + len(tag))[:] = words
            at += len(tag) + width


def copy_bytes(source: Bytes, source_offsets: Sizes, target: Bytes, target_offsets: Sizes, sizes: Sizes) -> None:
    """Copy byte strings from one buffer to the given offsets of another buffer.

    Strings are copied in blocks of 64 bytes. Up to 63 bytes after each string are overwritten before the next string is
    copied. In both buffers, at least 63 bytes must follow the last string.

    Args:
        source: The buffer that contains the strings.
        source_offsets: Offset of each string in the source.
        target: The buffer that the strings are copied to.
        target_offsets: Offset of each string in the target, in ascending order.
        sizes: Size of each string in bytes.
    """
    counts = -(-sizes // COPIED_BYTES)
    positions = COPIED_BYTES * (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts))
    copied = view_byte_windows(source, COPIED_BYTES)[np.repeat(source_offsets, counts) + positions]
    view_byte_windows(target, COPIED_BYTES)[np.repeat(target_offsets, counts) + positions] = copied


def view_byte_windows(data: Bytes, size: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return a view of a buffer as overlapping windows: element n consists of ``size`` bytes that begin at offset n."""
    return np.ndarray((len(data) - size + 1,), np.dtype(f"V{size}"), data, strides=(1,))


def compute_varint_widths(values: Numbers) -> Bytes:
    """Return the size in bytes of each integer as a varint."""
    widths = np.ones(len(values), np.uint8)
    bits = int(values.max()).bit_length() if len(values) else 0
    for shift in range(_PAYLOAD_BITS, bits, _PAYLOAD_BITS):
        widths += values >= np.uint64(1 << shift)
    return widths


def encode_varint_words(values: Numbers, widths: Bytes, max_width: int) -> Numbers:
    """Return the first 8 bytes of the varint of each integer as a little-endian word.

    Args:
        values: The integers.
        widths: Size of each varint in bytes.
        max_width: Size of the longest varint in bytes.
    """
    words = values & np.uint64(_CONTINUES - 1)
    for nth in range(1, min(max_width, _WORD_BYTES)):
        words |= (values << np.uint64(nth)) & np.uint64(_CONTINUES - 1 << 8 * nth)
    return words if max_width == 1 else words | _compute_continuation_bits()[widths]


@functools.cache
def _compute_continuation_bits() -> Numbers:
    """Return the continuation bits in the first 8 bytes of a varint, indexed by the size of the varint in bytes."""
    flags = [sum(_CONTINUES << 8 * n for n in range(min(width - 1, _WORD_BYTES))) for width in range(1, _MAX_WIDTH + 1)]
    return np.array([0, *flags], np.uint64)


def encode_varints_of_equal_size(values: Sizes | int, count: int) -> tuple[Numbers, int]:
    """Encode integers as varints of equal size. Return the first 8 bytes of each varint, and the size in bytes."""
    width = compute_max_varint_width(values)
    numbers = np.full(count, values, np.uint64) if isinstance(values, int) else values.astype(np.uint64)
    return encode_varint_words(numbers, np.full(count, width, np.uint8), width), width


def compute_max_varint_width(values: Sizes | int) -> int:
    """Return the size in bytes of the largest integer as a varint."""
    return len(encode_varint(values if isinstance(values, int) else int(values.max(initial=0))))


def _view_word_column(content: Matrix, first_column: int) -> Numbers:
    """Return a view of 8 columns of a byte matrix, from ``first_column`` on, as one 64-bit integer per row."""
    return content[:, first_column : first_column + _WORD_BYTES].view("<u8")[:, 0]


def _count_slots(size: int) -> int:
    """Return the number of 16-byte slots needed for the given number of bytes."""
    return -(-size // SLOT_BYTES)


def _fill_slot_sizes(sizes: Sizes | int, columns: SizeMatrix) -> None:
    """Write the number of used bytes in each 16-byte slot to ``columns``, given the total size per packet."""
    count = columns.shape[1]
    if count == 1:
        columns[:, 0] = sizes
        return
    for nth in range(count):
        columns[:, nth] = np.clip(sizes - np.int64(nth * SLOT_BYTES), 0, SLOT_BYTES)


def _compute_total_sizes(parts: Sequence[Slots]) -> Sizes | int:
    """Return the total size in bytes of the given fields in each packet, or a single number if all sizes are equal."""
    total: Sizes | int = 0
    for part in parts:
        total = total + part.sizes
    return total
