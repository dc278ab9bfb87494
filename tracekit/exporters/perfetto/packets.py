"""Encode the packets that describe clocks, sequences, strings and tracks, and compress packets."""

from __future__ import annotations

import functools
import json
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit import schemas
from tracekit.exporters.perfetto.strings import StringTables
from tracekit.exporters.perfetto.wire import (
    encode_field_tag,
    encode_length_delimited,
    encode_varint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from tracekit.exporters.perfetto.strings import StringBatch, StringPool
    from tracekit.exporters.perfetto.wire import Numbers, PacketEncoder
    from tracekit.exporters.timeline.tracks import LaneRegistry, ShownThread

UTC_CLOCK, SHOWN_CLOCK, SEQUENCE_CLOCKS = 1, 6, range(64, 128)
_CLOCKS = [{"clock_id": SHOWN_CLOCK, "timestamp": 0}]
_CLOCKS += [{"clock_id": clock, "timestamp": 0, "is_incremental": True} for clock in SEQUENCE_CLOCKS]
_STATE_CLEARED = 1


def encode_packet(**fields: Any) -> bytes:
    """Return an encoded packet with the given fields, preceded by its tag and length."""
    encoded = schemas.load_message_class("perfetto", "TracePacket")(**fields).SerializeToString(deterministic=True)
    return encode_length_delimited(encode_field_tag("Trace", "packet"), encoded)


def encode_clock_packet(sequence_number: int, origin_utc_ns: int | None) -> bytes:
    """Return a packet with the UTC time at time 0 of the file, or an empty byte string if the UTC time is unknown."""
    if origin_utc_ns is None or origin_utc_ns < 0:
        return b""
    clocks = [{"clock_id": SHOWN_CLOCK, "timestamp": 0}, {"clock_id": UTC_CLOCK, "timestamp": origin_utc_ns}]
    return encode_packet(trusted_packet_sequence_id=sequence_number, clock_snapshot={"clocks": clocks})


def encode_metadata_packet(sequence_number: int, metadata: Mapping[str, str]) -> bytes:
    """Return a packet with the metadata of the file."""
    entries = [{"name": name, "string_value": value} for name, value in metadata.items()]
    return encode_packet(trusted_packet_sequence_id=sequence_number, chrome_events={"metadata": entries})


def format_description(attributes: Mapping[str, int | str]) -> str:
    """Return the description of a track: the columns that have the same value for all of its events, as JSON."""
    return json.dumps(attributes, separators=(",", ":"), ensure_ascii=False)


def encode_track_packets(
    lanes: LaneRegistry, sequence_number: int, uuids: TrackUuids, *, omitted: Collection[int] = ()
) -> bytes:
    """Return the packets that describe the processes and threads of a trace.

    Args:
        lanes: The lanes of all tracks.
        sequence_number: The packet sequence.
        uuids: The uuids of the tracks in the file.
        omitted: Ids of lanes that are not drawn as threads. A process is omitted if none of its lanes is drawn.
    """
    written = bytearray()
    drawn = [thread for thread in lanes.iterate_threads() if thread.lane_id not in omitted]
    pids = {thread.pid for thread in drawn}
    for process in (process for process in lanes.iterate_processes() if process.pid in pids):
        about = {"pid": process.pid, "process_name": process.name, "legacy_sort_index": process.sort_index}
        descriptor = {"uuid": uuids.get_process_uuid(process.pid), "process": about}
        written += encode_packet(trusted_packet_sequence_id=sequence_number, track_descriptor=descriptor)
    for thread in drawn:
        if thread.name is not None:
            about = {"pid": thread.pid, "tid": thread.tid, "thread_name": thread.name, "legacy_sort_index": thread.tid}
            descriptor = {
                "uuid": uuids.get_lane_uuid(thread),
                "parent_uuid": uuids.get_process_uuid(thread.pid),
                "thread": about,
                "description": format_description(thread.attributes),
            }
            written += encode_packet(trusted_packet_sequence_id=sequence_number, track_descriptor=descriptor)
    return bytes(written)


class PacketCompression:
    """Compression of a Perfetto file: each batch of packets becomes one packet, which readers decompress."""

    LEVEL = 1

    def compress(self, data: memoryview) -> memoryview | bytes:
        """Return a packet with the compressed batch, or the batch itself if compression does not make it smaller."""
        content = zlib.compress(data, self.LEVEL)
        field = encode_length_delimited(encode_field_tag("TracePacket", "compressed_packets"), content)
        compressed = encode_length_delimited(encode_field_tag("Trace", "packet"), field)
        return compressed if len(compressed) < len(data) else data

    def finish_batch(self, _: memoryview, compressed: memoryview | bytes) -> memoryview | bytes:
        """Return the compressed batch unchanged."""
        return compressed

    def finish(self) -> bytes:
        """Return an empty byte string, because the file has no trailer."""
        return b""


class TrackUuids:
    """Uuids of the tracks in a file: 2^40 plus the pid for processes, even numbers for lanes, odd ones for counters."""

    PROCESSES = 1 << 40

    def __init__(self) -> None:
        self._counters = 0

    def get_process_uuid(self, pid: int) -> int:
        """Return the uuid of the track of a process."""
        return self.PROCESSES + pid

    def get_lane_uuids(self, lanes: LaneRegistry) -> Numbers:
        """Return the uuid of the track of each lane, by lane id."""
        threads = {thread.lane_id: self.get_lane_uuid(thread) for thread in lanes.iterate_threads()}
        return np.array([threads[lane_id] for lane_id in range(len(threads))], np.uint64)

    def get_lane_uuid(self, thread: ShownThread) -> int:
        """Return the uuid of the track of a lane."""
        return 2 * thread.tid

    def create_counter_uuid(self) -> int:
        """Return a new uuid for the track of a counter."""
        self._counters += 1
        return 2 * self._counters - 1


class PacketSequence:
    """A packet sequence with its own string tables. It contains streams, each with its own incremental clock.

    Attributes:
        number: The number of the sequence, which is unique in the file.
        strings: The interned strings of the sequence.
    """

    def __init__(self, number: int, pool: StringPool) -> None:
        self.number = number
        self.strings = StringTables(pool)
        self._streams = 0

    @property
    def has_unused_clock(self) -> bool:
        """Whether the sequence has an unused clock for another stream."""
        return self._streams < len(SEQUENCE_CLOCKS)

    @property
    def encoded_fields(self) -> bytes:
        """The encoded fields that every packet of the sequence contains."""
        return encode_field_tag("TracePacket", "trusted_packet_sequence_id") + encode_varint(self.number)

    def encode_event_lead(self, field: str) -> bytes:
        """Return the encoded fields that precede an event in a packet of the sequence, and the tag of the event.

        Args:
            field: The field of the packet that contains the event.
        """
        return self.encoded_fields + encode_field_tag("TracePacket", field)

    def begin_stream(self) -> bytes:
        """Begin a stream whose clock starts at 0. Return its first packets. The previous stream must be complete."""
        number = {"trusted_packet_sequence_id": self.number}
        begin = (
            b""
            if self._streams
            else encode_packet(**number, sequence_flags=_STATE_CLEARED)
            + encode_packet(**number, clock_snapshot={"clocks": _CLOCKS})
        )
        defaults = {"timestamp_clock_id": SEQUENCE_CLOCKS[self._streams]}
        self._streams += 1
        return begin + encode_packet(**number, trace_packet_defaults=defaults)

    def create_string_jobs(self, encoder: PacketEncoder) -> Iterator[Callable[[], memoryview]]:
        """Yield jobs (functions) that each return a packet with strings that were interned since the last call."""
        for batch in self.strings.pop_batches():
            yield functools.partial(self._encode_string_packet, encoder, batch)

    def _encode_string_packet(self, encoder: PacketEncoder, batch: StringBatch) -> memoryview:
        table = encoder.encode_string_table(encode_field_tag("InternedData", batch.table), batch.first, batch.texts)
        data = encode_length_delimited(encode_field_tag("TracePacket", "interned_data"), table)
        return memoryview(encode_length_delimited(encode_field_tag("Trace", "packet"), self.encoded_fields + data))
