"""Read the packets of a trace in batches, with the state of their sequences.

A packet belongs to a sequence. The packets of a sequence may refer to its interned data, and may use its default clock
and track, until the sequence clears its state.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.json.stream import MAX_COMPRESSION_RATIO, UNCHECKED_BYTES
from tracekit.readers.common.protobuf.decoding import (
    Buffer,
    Occurrences,
    decode,
    find_complete_occurrences,
    find_occurrences,
)
from tracekit.readers.common.protobuf.fields import read_integers, read_spans
from tracekit.readers.pftrace.clocks import MONOTONIC, SEQUENCE_CLOCKS, ClockReading, Clocks, get_sequence_clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.json.stream import Stream
    from tracekit.readers.common.protobuf.decoding import Field, Int64Array, Mask

BATCH_BYTES = 1 << 22
MAX_PACKET_BYTES = 1 << 26
PACKET = 1
COMPRESSED = 50
CLOCK_SNAPSHOT, TIMESTAMP, SEQUENCE, FLAGS, CLEARED, DROPPED, CLOCK, DEFAULTS = 6, 8, 10, 13, 41, 42, 58, 59
METADATA, TRACK_EVENT, INTERNED, GPU_COUNTERS, RENDER_STAGE, DESCRIPTOR = 5, 11, 12, 52, 53, 60
PROCESS_TREE, PROCESS, THREAD = 2, 43, 44
_STATE_FIELDS = (CLOCK_SNAPSHOT, TIMESTAMP, SEQUENCE, FLAGS, CLEARED, DROPPED, CLOCK, DEFAULTS)
DATA_FIELDS = (
    *(METADATA, TRACK_EVENT, INTERNED, GPU_COUNTERS, RENDER_STAGE, DESCRIPTOR, PROCESS_TREE, PROCESS, THREAD),
)
_IS_CLEARED, _NEEDS_STATE = 1, 2
_DEFAULT_TRACK, _TRACK_UUID = 11, 11
_CLOCKS, _PRIMARY_CLOCK = 1, 2
_MAX_CLOCKS_PER_SNAPSHOT = 512
_PACKET_BYTES, _SNAPSHOT_BYTES, _READING_BYTES, _SEQUENCE_BYTES = 64, 1 << 12, 192, 256
UNKNOWN = -1


class DecodedPackets(NamedTuple):
    """A batch of packets.

    Attributes:
        buffer: Buffer that holds the packets.
        packets: The packets.
        fields: The decoded fields of the packets, by number.
        sequences: Number of the sequence of each packet.
        states: Number of the state of the sequence at each packet. A sequence that clears its state gets a new one.
        times: Time of each packet on the clock of the trace.
        is_timed: For each packet, whether its time is known.
        has_state: For each packet, whether the state that it needs is known.
        default_tracks: Uuid of the track of the events of the sequence that state no other, or ``UNKNOWN``.
        clocks: The clocks of the trace.
        size: Number of bytes of the batch in the buffer.
    """

    buffer: Buffer
    packets: Occurrences
    fields: dict[int, Field]
    sequences: Int64Array
    states: Int64Array
    times: Int64Array
    is_timed: Mask
    has_state: Mask
    default_tracks: Int64Array
    clocks: Clocks
    size: int

    def convert_monotonic_times(self, positions: Int64Array, times: Int64Array) -> Int64Array:
        """Convert times of the monotonic clock in the packets at some positions, if the trace contains this clock.

        Raises:
            Damage: A converted time is out of range.
        """
        converted, valid = self.clocks.convert_to_trace_clock(MONOTONIC, times, positions)
        return np.where(valid, converted, times)

    def find(self, number: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the positions of the packets with a field of bytes, and the start and end offsets of the field."""
        starts, stops, valid = read_spans(self.fields, number, len(self.packets))
        rows = np.flatnonzero(valid)
        return rows, starts[rows], stops[rows]


class _SequenceState(NamedTuple):
    """The state of a sequence at the end of a batch.

    Attributes:
        state: Number of the state.
        is_known: Whether the state is known, because the sequence cleared it and no packet was lost since then.
        clock: Id of the default clock, or ``UNKNOWN``.
        track: Uuid of the default track, or ``UNKNOWN``.
    """

    state: int
    is_known: bool
    clock: int
    track: int


class PacketReader:
    """Reader of the packets of a file.

    Attributes:
        clocks: The clocks of the trace.
        count: Number of packets that have been read.
        is_truncated: Whether the file ends within a packet.
        compressed_bytes: Number of bytes of the compressed packets that have been read.
    """

    def __init__(self, stream: Stream, budget: Budget) -> None:
        self.clocks = Clocks()
        self.count = 0
        self.is_truncated = False
        self._stream = stream
        self._budget = budget
        self._numbers: dict[int, int] = {}
        self._sequences: list[_SequenceState] = []
        self._states = 0
        self.compressed_bytes = 0
        self._decompressed_bytes = 0

    def iterate_batches(self) -> Iterator[DecodedPackets]:
        """Yield the packets of the file in batches.

        Raises:
            Damage: A packet is invalid or too large.
        """
        parts: list[bytes | memoryview] = []
        size = 0
        for part in self._iterate_parts():
            if len(part):
                parts.append(part)
                size += len(part)
            if size >= BATCH_BYTES:
                yield from self._decode_batch(parts)
                parts, size = [], 0
        if parts:
            yield from self._decode_batch(parts)

    def _iterate_parts(self) -> Iterator[bytes | memoryview]:
        """Yield the file in parts that consist of whole packets, in which no packets are compressed."""
        rest = b""
        while block := self._stream.read():
            data = rest + block
            buffer = _load(data)
            packets, end = find_complete_occurrences(buffer, len(data), PACKET)
            rest = data[end:]
            if len(rest) > MAX_PACKET_BYTES:
                raise Damage(f"packet {self.count + len(packets) + 1:,} has more than {MAX_PACKET_BYTES:,} bytes")
            yield from self._decompress(buffer, packets, memoryview(data)[:end])
        self.is_truncated = bool(rest)

    def _decompress(self, buffer: Buffer, packets: Occurrences, data: memoryview) -> Iterator[bytes | memoryview]:
        """Yield packets with the contents of those that are compressed."""
        fields = decode(buffer, packets.starts, packets.stops, {COMPRESSED})
        starts, stops, valid = read_spans(fields, COMPRESSED, len(packets))
        rows = np.flatnonzero(valid)
        ends = packets.stops[rows].tolist()
        begins = np.append(0, packets.stops)[rows].tolist()
        done = 0
        spans = zip(starts[rows].tolist(), stops[rows].tolist(), begins, ends, strict=True)
        for start, stop, begin, end in spans:
            yield data[done:begin]
            yield self._decompress_packets(data[start:stop])
            done = end
        yield data[done:]

    def _decompress_packets(self, data: memoryview) -> bytes:
        self.compressed_bytes += len(data)
        limit = max(UNCHECKED_BYTES, MAX_COMPRESSION_RATIO * self.compressed_bytes) - self._decompressed_bytes
        decompressor = zlib.decompressobj()
        try:
            content = decompressor.decompress(data, limit + 1)
        except zlib.error as e:
            raise Damage(f"compressed packets are damaged (offset {self.compressed_bytes:,} of all of them)") from e
        if len(content) > limit:
            raise Damage(f"compressed packets decompress to more than {MAX_COMPRESSION_RATIO} times their size")
        if not decompressor.eof:
            raise Damage("compressed packets are truncated")
        self._decompressed_bytes += len(content)
        return content

    def _decode_batch(self, parts: list[bytes | memoryview]) -> Iterator[DecodedPackets]:
        """Yield the packets in some parts of the file, unless there are none."""
        data = b"".join(parts)
        buffer = _load(data)
        packets, end = find_complete_occurrences(buffer, len(data), PACKET)
        first, rows = self.count, len(packets)
        self.clocks.begin_batch(first)
        self.count += rows
        self._budget.check_temporary_memory(rows, _PACKET_BYTES, "packets")
        if end < len(data):
            raise Damage(f"a compressed packet ends within packet {self.count + 1:,}")
        if not rows:
            return
        try:
            fields = decode(buffer, packets.starts, packets.stops, {*_STATE_FIELDS, *DATA_FIELDS})
            batch = self._add_state(buffer, packets, fields)
        except Damage as e:
            raise Damage(f"{e} (in packets {first + 1:,} to {self.count:,})") from e
        yield batch._replace(size=len(data))

    def _add_state(self, buffer: Buffer, packets: Occurrences, fields: dict[int, Field]) -> DecodedPackets:
        rows = len(packets)
        sequences = self._number_sequences(read_integers(fields, SEQUENCE, rows)[0])
        flags, _ = read_integers(fields, FLAGS, rows)
        is_cleared = (flags & _IS_CLEARED != 0) | (read_integers(fields, CLEARED, rows)[0] != 0)
        is_lossy = read_integers(fields, DROPPED, rows)[0] != 0
        defaults = self._read_defaults(buffer, fields, rows)
        order = np.argsort(sequences, kind="stable")
        states, is_known, default_clocks, default_tracks = self._follow(
            sequences[order], is_cleared[order], is_lossy[order], [column[order] for column in defaults]
        )
        unsorted = np.empty_like(order)
        unsorted[order] = np.arange(rows)
        self._read_snapshots(buffer, fields, sequences, rows)
        own_clocks, has_clock = read_integers(fields, CLOCK, rows)
        clocks = np.where(has_clock, own_clocks, default_clocks[unsorted])
        clocks = np.where(clocks == UNKNOWN, self.clocks.trace_clock, clocks)
        of_sequence = (clocks >= SEQUENCE_CLOCKS.start) & (clocks < SEQUENCE_CLOCKS.stop)
        clocks = np.where(of_sequence, get_sequence_clock(sequences, clocks), clocks)
        times, is_timed = read_integers(fields, TIMESTAMP, rows)
        timed = np.flatnonzero(is_timed)
        if len(timed) and (times.min() < 0 or times.max() >= 1 << 62):
            raise Damage("the timestamp of a packet is out of range")
        converted, can_convert = self.clocks.convert_packets(timed, clocks[timed], times[timed])
        times[timed] = converted
        is_timed[timed] = can_convert
        has_state = is_known[unsorted] | (flags & _NEEDS_STATE == 0)
        return DecodedPackets(
            *(buffer, packets, fields, sequences, states[unsorted], times, is_timed, has_state),
            default_tracks[unsorted],
            self.clocks,
            0,
        )

    def _number_sequences(self, ids: Int64Array) -> Int64Array:
        """Return the numbers of sequences from 0, in the order in which they occur in the file."""
        distinct, inverse = np.unique(ids, return_inverse=True)
        new = sum(each not in self._numbers for each in distinct.tolist())
        self._budget.reserve(new, _SEQUENCE_BYTES, "packet sequences")
        for each in distinct.tolist():
            if each not in self._numbers:
                self._numbers[each] = len(self._numbers)
                self._sequences.append(_SequenceState(self._states, is_known=False, clock=UNKNOWN, track=UNKNOWN))
                self._states += 1
        numbers: Int64Array = np.array([self._numbers[each] for each in distinct.tolist()], np.int64)[inverse]
        return numbers

    @staticmethod
    def _read_defaults(buffer: Buffer, fields: dict[int, Field], rows: int) -> list[np.ndarray]:
        """Return a mask of the packets with defaults, and the default clock and track of each."""
        starts, stops, has_defaults = read_spans(fields, DEFAULTS, rows)
        clocks, tracks = np.full(rows, UNKNOWN, np.int64), np.full(rows, UNKNOWN, np.int64)
        chosen = np.flatnonzero(has_defaults)
        inner = decode(buffer, starts[chosen], stops[chosen], {CLOCK, _DEFAULT_TRACK})
        values, valid = read_integers(inner, CLOCK, len(chosen))
        clocks[chosen[valid]] = values[valid]
        inner_starts, inner_stops, valid = read_spans(inner, _DEFAULT_TRACK, len(chosen))
        of_track = decode(buffer, inner_starts[valid], inner_stops[valid], {_TRACK_UUID})
        values, has_track = read_integers(of_track, _TRACK_UUID, int(valid.sum()))
        tracks[chosen[valid][has_track]] = values[has_track]
        return [has_defaults, clocks, tracks]

    def _follow(
        self, sequences: Int64Array, is_cleared: Mask, is_lossy: Mask, defaults: list[np.ndarray]
    ) -> tuple[Int64Array, Mask, Int64Array, Int64Array]:
        """Follow the state of all sequences through a batch of packets, which are ordered by sequence.

        Returns:
            For each packet: the number of the state, whether it is known, and the default clock and track.
        """
        rows = len(sequences)
        firsts = np.flatnonzero(np.append(True, sequences[1:] != sequences[:-1]))
        sizes = np.diff(np.append(firsts, rows))
        begin = np.repeat(firsts, sizes)
        before = [self._sequences[number] for number in sequences[firsts].tolist()]
        state, known, clock, track = (np.repeat(np.array(column), sizes) for column in zip(*before, strict=True))
        position = np.arange(rows)
        last_clear, last_loss, last_default = (
            np.maximum.accumulate(np.where(mask, position, -1)) for mask in (is_cleared, is_lossy, defaults[0])
        )
        has_clear = last_clear >= begin
        states = np.where(has_clear, self._states + np.cumsum(is_cleared) - 1, state)
        self._states += int(is_cleared.sum())
        has_loss = last_loss >= begin
        is_known = np.where(has_clear, ~has_loss | (last_clear >= last_loss), known & ~has_loss)
        has_default = (last_default >= begin) & (~has_clear | (last_default >= last_clear))
        place = np.maximum(last_default, 0)
        clocks = np.where(has_default, defaults[1][place], np.where(has_clear, UNKNOWN, clock))
        tracks = np.where(has_default, defaults[2][place], np.where(has_clear, UNKNOWN, track))
        for last in (np.append(firsts[1:], rows) - 1).tolist():
            self._sequences[int(sequences[last])] = _SequenceState(
                int(states[last]), bool(is_known[last]), int(clocks[last]), int(tracks[last])
            )
        return states, is_known, clocks, tracks

    def _read_snapshots(self, buffer: Buffer, fields: dict[int, Field], sequences: Int64Array, rows: int) -> None:
        starts, stops, valid = read_spans(fields, CLOCK_SNAPSHOT, rows)
        chosen = np.flatnonzero(valid)
        if not len(chosen):
            return
        self._budget.reserve(len(chosen), _SNAPSHOT_BYTES, "clock snapshots")
        (clocks,) = find_occurrences(buffer, starts[chosen], stops[chosen], (_CLOCKS,))
        self._budget.reserve(len(clocks), _READING_BYTES, "times of clocks")
        if np.bincount(clocks.rows, minlength=1).max() > _MAX_CLOCKS_PER_SNAPSHOT:
            raise Damage(f"a clock snapshot has more than {_MAX_CLOCKS_PER_SNAPSHOT} clocks")
        primary, has_primary = read_integers(
            decode(buffer, starts[chosen], stops[chosen], {_PRIMARY_CLOCK}), _PRIMARY_CLOCK, len(chosen)
        )
        if has_primary.any():
            self.clocks.set_trace_clock(int(primary[has_primary][0]))
        decoded = decode(buffer, clocks.starts, clocks.stops, {1, 2, 3, 4})
        columns = [read_integers(decoded, number, len(clocks))[0].tolist() for number in (1, 2, 3, 4)]
        readings = [
            ClockReading(clock, time, bool(incremental), multiplier or 1)
            for clock, time, incremental, multiplier in zip(*columns, strict=True)
        ]
        bounds = np.searchsorted(clocks.rows, np.arange(len(chosen) + 1)).tolist()
        for position, first, last in zip(chosen.tolist(), bounds, bounds[1:], strict=False):
            self.clocks.add_snapshot(position, int(sequences[position]), readings[first:last])


def _load(data: bytes) -> Buffer:
    buffer = Buffer(len(data))
    buffer.data[: len(data)] = np.frombuffer(data, np.uint8)
    return buffer
