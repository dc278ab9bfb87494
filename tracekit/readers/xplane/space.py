"""Decode the planes of a profile, with the lines and events of each plane."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import build_number_array
from tracekit.readers.common.damage import Damage, warn_about_trailing_bytes
from tracekit.readers.common.json.stream import Stream
from tracekit.readers.common.protobuf.decoding import Buffer, Occurrences, decode, find_occurrences
from tracekit.readers.common.protobuf.fields import read_integers, read_spans, read_strings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Int64Array, Mask
    from tracekit.system.files import InputFile

MAX_FILE_BYTES = (1 << 31) - (1 << 23)
"""Maximum size of a profile in bytes, which is slightly less than the maximum size of a protobuf message."""
MAX_PLANES, MAX_MESSAGES = 1 << 10, 1 << 20
"""Maximum number of planes, and of planes, errors and warnings together."""
MAX_EVENT_BYTES = 1 << 24
BATCH_BYTES = 1 << 20
"""Size of the events that are decoded together."""
GZIP = b"\x1f\x8b"
_PLANES, _ERRORS, _WARNINGS = 1, 2, 3
_PLANE_NAME, _LINES, _EVENT_METADATA, _STAT_METADATA, _PLANE_VALUES = 2, 3, 4, 5, 6
_KEY, _ENTRY = 1, 2
METADATA_NAME = 2
_LINE_ID, _LINE_NAME, _TIMESTAMP, _EVENTS, _DISPLAY_NAME = 1, 2, 3, 4, 11
_METADATA_ID, _OFFSET, _DURATION, _OCCURRENCES = 1, 2, 3, 5
_EVENT_BYTES, _LINE_BYTES, _METADATA_BYTES = 192, 512, 256
"""Bytes of memory to reserve per event, line and name."""
_MAX_TIME = 1 << 62
_MAX_OCCURRENCES = 1 << 40
_PS_PER_NS = 1000


class Names(NamedTuple):
    """Names that events or values refer to by number. The numbers are ascending.

    Attributes:
        ids: Number of each name.
        texts: The names.
        metadata: The encoded metadata of each name, in the order of the file.
    """

    ids: Int64Array
    texts: pa.Array
    metadata: Occurrences

    def find(self, ids: Int64Array) -> tuple[Int64Array, Mask]:
        """Return the index of the name with each number, and a mask of the numbers that have a name."""
        if not len(self.ids):
            return np.zeros(len(ids), np.int64), np.zeros(len(ids), np.bool_)
        positions = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return positions, self.ids[positions] == ids

    def look_up(self, ids: Int64Array, valid: Mask) -> pa.DictionaryArray:
        """Return the name with each number, null for unknown numbers and where ``valid`` is False."""
        positions, known = self.find(ids)
        return pa.DictionaryArray.from_arrays(build_number_array(positions.astype(np.int32), known & valid), self.texts)


class Line(NamedTuple):
    """A line of a plane, such as a thread or a stream.

    Attributes:
        id: Number of the line, which is that of the thread or stream.
        name: Name of the line.
        timestamp_ns: Time to which the times of its events are relative.
        display_name: Name of the line in the trace viewer, or "" if it is the same.
    """

    id: int
    name: str
    timestamp_ns: int
    display_name: str = ""

    @property
    def label(self) -> str:
        """The name of the line in the trace viewer."""
        return self.display_name or self.name


class KnownValues(Protocol):
    """The values of a batch of events that need not be decoded. The methods are those of ``EventValues``."""

    def take(self, rows: Int64Array) -> KnownValues:
        """Return the values of the events with the given indices."""
        ...

    def get_integers(self, name: str) -> tuple[Int64Array, Mask]:
        """Return the integer value with a name of each event, and a mask of the events that have one."""
        ...

    def get_strings(self, name: str) -> pa.DictionaryArray:
        """Return the string value with a name of each event, null for events that have none."""
        ...

    def has(self, name: str) -> Mask:
        """Return a mask of the events that have a value with a name."""
        ...

    def to_json(self, ignored: Collection[str], is_selected: Mask) -> pa.Array:
        """Return the values of each event as a JSON object, null for events without values."""
        ...


class EventBatch(NamedTuple):
    """A batch of events of a plane.

    Attributes:
        encoded: The encoded events.
        lines: Index of the line of each event.
        start_ns: Start of each event.
        end_ns: End of each event.
        has_duration: Whether each event has a duration that is not 0.
        names: Name of each event.
        values: Their values, if they are known already, as they are for traces of the trace viewer.
    """

    encoded: Occurrences
    lines: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    has_duration: Mask
    names: pa.DictionaryArray
    values: KnownValues | None = None

    def take(self, rows: Int64Array) -> EventBatch:
        """Return the events with the given indices, which are ascending."""
        encoded = self.encoded
        if self.values is None:
            encoded = Occurrences(*(c[rows] for c in (encoded.rows, encoded.starts, encoded.stops)))
        values = None if self.values is None else self.values.take(rows)
        names = self.names.take(build_number_array(rows))
        return EventBatch(
            encoded, self.lines[rows], self.start_ns[rows], self.end_ns[rows], self.has_duration[rows], names, values
        )


class TotalBatch(NamedTuple):
    """A batch of events of a plane that each stand for several events, whose times are not recorded.

    Attributes:
        encoded: The encoded events.
        lines: Index of the line of each event.
        counts: Number of events for which each event stands.
        duration_ps: Sum of their durations.
        names: Name of each event.
    """

    encoded: Occurrences
    lines: Int64Array
    counts: Int64Array
    duration_ps: Int64Array
    names: pa.DictionaryArray


@dataclass(frozen=True)
class Plane:
    """A plane of a profile. Its lines, names and events are decoded when they are used.

    Attributes:
        buffer: The buffer that contains the profile.
        budget: The memory budget.
        start: Start offset of the encoded plane.
        stop: End offset of the encoded plane.
        name: Name of the plane, such as ``/device:GPU:0``.
    """

    buffer: Buffer
    budget: Budget
    start: int
    stop: int
    name: str

    def copy(self) -> Plane:
        """Return a copy of the plane with a buffer of its own, so that the content of the profile can be freed."""
        size = self.stop - self.start
        buffer = Buffer(size)
        buffer.data.data[:size] = self.buffer.data.data[self.start : self.stop]
        return Plane(buffer, self.budget, 0, size, self.name)

    @functools.cached_property
    def _parts(self) -> list[Occurrences]:
        numbers = (_LINES, _EVENT_METADATA, _STAT_METADATA, _PLANE_VALUES)
        return find_occurrences(self.buffer, np.array([self.start]), np.array([self.stop]), numbers)

    @functools.cached_property
    def values(self) -> Occurrences:
        """The encoded values of the plane itself."""
        return self._parts[3]

    @functools.cached_property
    def event_names(self) -> Names:
        """The names of events."""
        return self._read_names(self._parts[1])

    @functools.cached_property
    def value_names(self) -> Names:
        """The names of values, which are also strings to which values refer."""
        return self._read_names(self._parts[2])

    def find_value_names(self, text: str) -> Mask | None:
        """Return a mask of the names of values that are a text, or None if there is none."""
        if text not in self._distinct_value_names:
            return None
        if text not in self._value_masks:
            self._value_masks[text] = pc.equal(self.value_names.texts, text).to_numpy(zero_copy_only=False)
        return self._value_masks[text]

    @functools.cached_property
    def _distinct_value_names(self) -> set[str]:
        return set(self.value_names.texts.to_pylist())

    @functools.cached_property
    def _value_masks(self) -> dict[str, Mask]:
        return {}

    @functools.cached_property
    def json_keys(self) -> pa.Array:
        """The names of values as keys of a JSON object, with the colon."""
        return pa.array([json.dumps(text) + ":" for text in self.value_names.texts.to_pylist()], pa.string())

    def _read_names(self, entries: Occurrences) -> Names:
        self.budget.reserve(len(entries), _METADATA_BYTES, "names of events and values")
        fields = decode(self.buffer, entries.starts, entries.stops, {_KEY, _ENTRY})
        keys, _ = read_integers(fields, _KEY, len(entries))
        starts, stops, valid = read_spans(fields, _ENTRY, len(entries))
        keys, starts, stops = keys[valid], starts[valid], stops[valid]
        rows = np.argsort(keys, kind="stable")
        rows = rows[np.append(keys[rows][1:] != keys[rows][:-1], True)[: len(rows)]]
        names = decode(self.buffer, starts, stops, {METADATA_NAME}).get(METADATA_NAME)
        texts = read_strings(self.buffer, names, len(starts)).fill_null("").take(build_number_array(rows))
        return Names(keys[rows], texts, Occurrences(rows, starts[rows], stops[rows]))

    @functools.cached_property
    def lines(self) -> list[Line]:
        """The lines of the plane."""
        encoded = self._parts[0]
        rows = len(encoded)
        self.budget.reserve(rows, _LINE_BYTES, "lines")
        fields = decode(self.buffer, encoded.starts, encoded.stops, {_LINE_ID, _LINE_NAME, _TIMESTAMP, _DISPLAY_NAME})
        ids, _ = read_integers(fields, _LINE_ID, rows)
        times, _ = read_integers(fields, _TIMESTAMP, rows)
        if rows and (times.min() < -_MAX_TIME or times.max() > _MAX_TIME):
            raise Damage("the time of a line is out of range")
        names, labels = (
            read_strings(self.buffer, fields.get(number), rows).fill_null("").to_pylist()
            for number in (_LINE_NAME, _DISPLAY_NAME)
        )
        return [Line(*line) for line in zip(ids.tolist(), names, times.tolist(), labels, strict=True)]

    def count_events_by_line(self) -> list[int]:
        """Return the number of events of each line."""
        counts: list[int] = np.bincount(self._encoded_events.rows, minlength=len(self.lines)).tolist()
        return counts

    @functools.cached_property
    def _encoded_events(self) -> Occurrences:
        lines = self._parts[0]
        (events,) = find_occurrences(self.buffer, lines.starts, lines.stops, (_EVENTS,))
        self.budget.reserve(len(events), _EVENT_BYTES, "events")
        return events

    def iterate_events(self, line_indices: list[int]) -> Iterator[EventBatch]:
        """Yield batches of the events of the given lines. Events that stand for several events are skipped.

        Raises:
            Damage: An event is too large, or its time is out of range.
        """
        is_selected = np.zeros(len(self.lines), np.bool_)
        is_selected[line_indices] = True
        rows = np.flatnonzero(is_selected[self._encoded_events.rows] & ~self._total_mask)
        for encoded in self._divide_into_batches(rows):
            yield self._decode_events(encoded)

    def iterate_totals(self) -> Iterator[TotalBatch]:
        """Yield batches of the events that each stand for several events.

        Raises:
            Damage: An event is too large, or its duration or number of occurrences is out of range.
        """
        for encoded in self._divide_into_batches(np.flatnonzero(self._total_mask)):
            rows = len(encoded)
            fields = decode(self.buffer, encoded.starts, encoded.stops, {_METADATA_ID, _DURATION, _OCCURRENCES})
            ids, durations, counts = (
                read_integers(fields, number, rows)[0] for number in (_METADATA_ID, _DURATION, _OCCURRENCES)
            )
            for numbers, limit in ((durations, _MAX_TIME), (counts, _MAX_OCCURRENCES)):
                if numbers.min() < 0 or numbers.max() > limit:
                    raise Damage("the duration or the number of occurrences of an event is out of range")
            names = self.event_names.look_up(ids, np.ones(rows, np.bool_))
            yield TotalBatch(encoded, encoded.rows, counts, durations, names)

    def iterate_encoded_events(self) -> Iterator[Occurrences]:
        """Yield batches of all events in encoded form.

        Raises:
            Damage: An event is too large.
        """
        yield from self._divide_into_batches(np.arange(len(self._encoded_events)))

    @functools.cached_property
    def _total_mask(self) -> Mask:
        events = self._encoded_events
        return read_integers(
            decode(self.buffer, events.starts, events.stops, {_OCCURRENCES}), _OCCURRENCES, len(events)
        )[1]

    def _divide_into_batches(self, rows: Int64Array) -> Iterator[Occurrences]:
        events = self._encoded_events
        sizes = (events.stops - events.starts)[rows] + 1
        if len(rows) and sizes.max() > MAX_EVENT_BYTES:
            raise Damage(f"an event has {sizes.max():,} bytes, but tracekit supports at most {MAX_EVENT_BYTES:,}")
        batches = np.cumsum(sizes) // BATCH_BYTES
        edges = [0, *(np.flatnonzero(np.diff(batches)) + 1).tolist(), len(rows)]
        for first, stop in itertools.pairwise(edges):
            part = rows[first:stop]
            if len(part):
                yield Occurrences(events.rows[part], events.starts[part], events.stops[part])

    def _decode_events(self, encoded: Occurrences) -> EventBatch:
        rows = len(encoded)
        fields = decode(self.buffer, encoded.starts, encoded.stops, {_METADATA_ID, _OFFSET, _DURATION})
        ids, _ = read_integers(fields, _METADATA_ID, rows)
        offsets, _ = read_integers(fields, _OFFSET, rows)
        durations, _ = read_integers(fields, _DURATION, rows)
        if (
            offsets.min() < -_MAX_TIME
            or offsets.max() > _MAX_TIME
            or durations.min() < 0
            or durations.max() > _MAX_TIME
        ):
            raise Damage("the time or duration of an event is out of range")
        origin = np.array([line.timestamp_ns for line in self.lines], np.int64)[encoded.rows]
        start, duration = offsets // _PS_PER_NS, durations // _PS_PER_NS
        end = start + duration + (offsets % _PS_PER_NS + durations % _PS_PER_NS) // _PS_PER_NS  # never overflows
        names = self.event_names.look_up(ids, np.ones(rows, np.bool_))
        return EventBatch(encoded, encoded.rows, origin + start, origin + end, durations > 0, names)


class Space(NamedTuple):
    """A profile.

    Attributes:
        planes: Its planes.
        errors: Number of errors that the profiler reported.
        warnings: Number of warnings that the profiler reported.
        others: Number of events that are neither events of threads nor of devices, in a trace of the trace viewer.
        repeated: Number of planes that were removed because they repeat others.
    """

    planes: list[Plane]
    errors: int
    warnings: int
    others: int = 0
    repeated: int = 0

    def remove_repeated_planes(self) -> Space:
        """Return the profile without planes whose bytes are those of another plane.

        Protobuf merges messages that follow one another by appending their repeated fields. So a file that was appended
        to itself is a profile with each plane twice.
        """
        sizes = Counter(plane.stop - plane.start for plane in self.planes)
        planes: dict[tuple[int, bytes], Plane] = {}
        for plane in self.planes:
            size = plane.stop - plane.start
            content = plane.buffer.data.data[plane.start : plane.stop] if sizes[size] > 1 else b""
            planes.setdefault((size, hashlib.blake2b(content).digest()), plane)
        return self._replace(planes=[*planes.values()], repeated=len(self.planes) - len(planes))


def read_content(file: InputFile) -> tuple[Buffer, int]:
    """Read a plain or gzipped file into memory, and return the buffer and the size of its content.

    Raises:
        Damage: The content is too large, or the compressed data is invalid.
        CorruptTraceError: The data is compressed more than any profile.
    """
    if file.read(0, min(len(GZIP), file.size)) != GZIP:
        _check_size(file.size)
        buffer = Buffer(file.size)
        file.read_into(0, buffer.data.data[: file.size])
        return buffer, file.size
    blocks: list[bytes] = []
    with Stream(file, compressed=True) as stream:
        while block := stream.read():
            blocks.append(block)
            _check_size(sum(map(len, blocks)))
        if stream.damage is not None:
            raise Damage(stream.damage)
        warn_about_trailing_bytes(file.path, stream.trailing_bytes)
    content = b"".join(blocks)
    buffer = Buffer(len(content))
    buffer.data.data[: len(content)] = content
    return buffer, len(content)


def _check_size(size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise Damage(f"the profile has {size:,} bytes, but tracekit supports at most {MAX_FILE_BYTES:,}")


def read_space(buffer: Buffer, size: int, budget: Budget) -> Space:
    """Find the planes in the content of a profile.

    Raises:
        Damage: The content is not a profile.
    """
    whole = np.array([0]), np.array([size])
    planes, errors, warnings = find_occurrences(buffer, *whole, (_PLANES, _ERRORS, _WARNINGS), MAX_MESSAGES)
    if len(planes) > MAX_PLANES:
        raise Damage(f"the profile has {len(planes):,} planes, but tracekit supports at most {MAX_PLANES:,}")
    fields = decode(buffer, planes.starts, planes.stops, {_PLANE_NAME})
    names = read_strings(buffer, fields.get(_PLANE_NAME), len(planes)).fill_null("").to_pylist()
    bounds = zip(planes.starts.tolist(), planes.stops.tolist(), names, strict=True)
    return Space([Plane(buffer, budget, *bound) for bound in bounds], len(errors), len(warnings))
