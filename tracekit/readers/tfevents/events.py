"""Decode the events of one file in batches: summary values, traced runs, and the locations of graphs."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import decode, find_occurrences
from tracekit.readers.tensorflow.fields import slice_strings
from tracekit.readers.tfevents import step_stats, values
from tracekit.readers.tfevents.records import RecordReader
from tracekit.system.files import InputFile

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Int64Array
    from tracekit.readers.tfevents.records import BufferedRecords, BufferPool
    from tracekit.readers.tfevents.step_stats import Executions
    from tracekit.readers.tfevents.values import Float64Array, SummaryValues

WALL_TIME, STEP, VERSION, GRAPH, SUMMARY, LOG, SESSION, RUN, META_GRAPH, WRITER = range(1, 11)
NO_TIME = np.iinfo(np.int64).min
VALUES_PER_BATCH = 1 << 18
"""Number of summary values that are decoded together."""
_NS = 1_000_000_000
_MAX_SECONDS = 9.2e9
_SUMMARY_VALUE, _WRITER_NAME = 1, 1
_COUNTED_FIELDS = {LOG: "log message", SESSION: "session log"}
_NUMBER_FIELDS = {WALL_TIME, STEP}


class NotAnEventFile(Exception):  # noqa: N818 - never leaves the reader
    """An error that is raised if the records of a file are valid but are not events."""


class SummaryPoints(NamedTuple):
    """A batch of summary values with the step and the time of their events.

    Attributes:
        values: The values.
        steps: Step of each value.
        times: Time of each value in ns since 1970, or ``NO_TIME``.
        offset: Offset in the file of the buffer that the values refer to.
    """

    values: SummaryValues
    steps: Int64Array
    times: Int64Array
    offset: int


class GraphSpans(NamedTuple):
    """The locations of graphs in a file.

    Attributes:
        steps: Step of each graph.
        times: Time of each graph in ns since 1970, or ``NO_TIME``.
        starts: Offset in the file at which each graph starts.
        sizes: Size of each graph in bytes.
        checksums: CRC-32 of the bytes of each graph.
        meta: True if all graphs are meta graphs, or False if none of them is a meta graph.
    """

    steps: Int64Array
    times: Int64Array
    starts: Int64Array
    sizes: Int64Array
    checksums: list[int]
    meta: bool


@dataclass
class FileEvents:
    """The contents of an event file.

    Attributes:
        path: Path of the file.
        size: Size of the file in bytes.
        records: Number of records that were read.
        end: Offset of the end of the last record that was read.
        damage: Why the record at the offset ``end`` is invalid, or None if no record is invalid.
        points: Batches of summary values.
        executions: Batches of executions of graph nodes.
        graphs: Locations of graphs.
        counts: Number of events that belong to no table, by kind.
        version: Version of the file format, as recorded in the file, or None if it is missing.
        writer: Name of the program that wrote the file, or None if it is missing.
        first: Earliest time of an event in ns since 1970, or None if no event has a time.
        last: Latest time of an event in ns since 1970, or None if no event has a time.
    """

    path: Path
    size: int = 0
    records: int = 0
    end: int = 0
    damage: str | None = None
    points: list[SummaryPoints] = field(default_factory=list)
    executions: list[Executions] = field(default_factory=list)
    graphs: list[GraphSpans] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    version: str | None = None
    writer: str | None = None
    first: int | None = None
    last: int | None = None


def read_events(path: Path, pool: BufferPool) -> FileEvents:
    """Read an event file up to its end or the first incomplete or invalid record.

    Raises:
        Damage: The content of a complete record is invalid.
        NotAnEventFile: The records are not events.
        TracekitError: The file cannot be read, or changed other than by appending.
        FileNotFoundError: The file no longer exists.
    """
    events = FileEvents(path)
    with InputFile(path, may_grow=True) as file, pool.borrow_buffers() as buffers:
        records = RecordReader(file, buffers)
        for batch in records.iterate_record_batches():
            try:
                _add_events(events, batch)
            except Damage as e:
                raise Damage(f"{e} (bytes {batch.offset} to {records.end})") from e
        events.size, events.end = records.size, records.end
        events.damage = records.damage
    return events


def convert_to_nanoseconds(seconds: Float64Array) -> Int64Array:
    """Convert seconds since 1970 to integer nanoseconds. NaN and times outside 1678 to 2261 become ``NO_TIME``."""
    with np.errstate(invalid="ignore"):
        is_valid = np.abs(seconds) < _MAX_SECONDS
    valid_seconds = np.where(is_valid, seconds, 0.0)
    whole_seconds = np.floor(valid_seconds)
    result = whole_seconds.astype(np.int64) * _NS + np.rint((valid_seconds - whole_seconds) * _NS).astype(np.int64)
    return np.where(is_valid, result, NO_TIME)


def compute_checksums(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> list[int]:
    """Return the CRC-32 of each range of bytes in a buffer."""
    data = buffer.data.data
    return [zlib.crc32(data[a:b]) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]


def _add_events(events: FileEvents, batch: BufferedRecords) -> None:
    """Decode the events in a batch of records, and add their contents to ``events``."""
    n = len(batch.starts)
    if not events.records:
        _check_first_record(batch)
    events.records += n
    fields = decode(batch.buffer, batch.starts, batch.stops, range(WALL_TIME, WRITER + 1))
    if not _have_expected_wire_types(fields):
        raise Damage("a field of an event has an unexpected wire type")
    times = convert_to_nanoseconds(_decode_int64_values(fields.get(WALL_TIME), n).view(np.float64))
    steps = _decode_int64_values(fields.get(STEP), n)
    _add_file_metadata(events, batch.buffer, fields, times)
    _add_summary_points(events, batch, fields.get(SUMMARY), steps, times)
    if RUN in fields:
        rows = _find_row_numbers_with_field(fields[RUN], n)
        traced_runs = step_stats.find_traced_runs(batch.buffer, *fields[RUN].spans(), steps[rows])
        events.executions += step_stats.iterate_execution_batches(batch.buffer, traced_runs)
        events.counts.update(step_stats.count_fields(batch.buffer, traced_runs.starts, traced_runs.stops))
    for number in (GRAPH, META_GRAPH):
        if number in fields:
            rows = _find_row_numbers_with_field(fields[number], n)
            starts, stops = fields[number].spans()
            offsets, crcs = starts + batch.offset, compute_checksums(batch.buffer, starts, stops)
            events.graphs.append(
                GraphSpans(steps[rows], times[rows], offsets, stops - starts, crcs, number == META_GRAPH)
            )


def _check_first_record(batch: BufferedRecords) -> None:
    """Check that the first record is an event.

    Raises:
        NotAnEventFile: The first record is not an event.
    """
    starts, stops = batch.starts[:1], batch.stops[:1]
    try:
        fields = decode(batch.buffer, starts, stops, range(WALL_TIME, WRITER + 1))
    except Damage as e:
        raise NotAnEventFile from e
    if not _have_expected_wire_types(fields) or (not fields and stops[0] > starts[0]):
        raise NotAnEventFile


def _have_expected_wire_types(fields: dict[int, Field]) -> bool:
    return all((field.stops is None) == (number in _NUMBER_FIELDS) for number, field in fields.items())


def _add_summary_points(
    events: FileEvents, batch: BufferedRecords, field: Field | None, steps: Int64Array, times: Int64Array
) -> None:
    if field is None:
        return
    rows = _find_row_numbers_with_field(field, len(steps))
    (locations,) = find_occurrences(batch.buffer, *field.spans(), (_SUMMARY_VALUE,))
    for first in range(0, len(locations), VALUES_PER_BATCH):
        batch_slice = slice(first, first + VALUES_PER_BATCH)
        event_rows = rows[locations.rows[batch_slice]]
        summary_values = values.read_values(batch.buffer, locations.starts[batch_slice], locations.stops[batch_slice])
        events.points.append(SummaryPoints(summary_values, steps[event_rows], times[event_rows], batch.offset))


def _add_file_metadata(events: FileEvents, buffer: Buffer, fields: dict[int, Field], times: Int64Array) -> None:
    """Update the metadata of a file from a batch of its events.

    The metadata is the first and the last time, the version, the writer, and the number of events that belong to no
    table.
    """
    valid_times = times[times != NO_TIME]
    if len(valid_times):
        first, last = int(valid_times.min()), int(valid_times.max())
        events.first = first if events.first is None else min(events.first, first)
        events.last = last if events.last is None else max(events.last, last)
    for number, name in _COUNTED_FIELDS.items():
        if number in fields:
            events.counts[name] += len(_find_row_numbers_with_field(fields[number], len(times)))
    if events.version is None and VERSION in fields:
        events.version = _decode_first_string(buffer, fields[VERSION])
    if events.writer is None and WRITER in fields:
        starts, stops = (s[:1] for s in fields[WRITER].spans())
        name_field = decode(buffer, starts, stops, {_WRITER_NAME}).get(_WRITER_NAME)
        events.writer = (
            None if name_field is None or name_field.stops is None else _decode_first_string(buffer, name_field)
        )


def _decode_first_string(buffer: Buffer, field: Field) -> str:
    starts, stops = (s[:1] for s in field.spans())
    return str(slice_strings(buffer, starts, stops)[0])


def _decode_int64_values(field: Field | None, row_count: int) -> Int64Array:
    return np.zeros(row_count, np.int64) if field is None else field.values.view(np.int64)


def _find_row_numbers_with_field(field: Field, row_count: int) -> Int64Array:
    return np.arange(row_count) if field.valid is None else np.flatnonzero(field.valid)
