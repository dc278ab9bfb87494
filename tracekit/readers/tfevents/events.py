"""The events of one file, taken apart some megabytes at a time: points of curves, texts, steps, where graphs lie."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.files import InputFile
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.common.protobuf.occurrences import occurrences
from tracekit.readers.tfevents import step_stats, texts, values
from tracekit.readers.tfevents.records import Records

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Places
    from tracekit.readers.tfevents.records import Batch, Rooms
    from tracekit.readers.tfevents.step_stats import Executions
    from tracekit.readers.tfevents.tensors import Reals
    from tracekit.readers.tfevents.values import Values

WALL_TIME, STEP, VERSION, GRAPH, SUMMARY, LOG, SESSION, RUN, META_GRAPH, WRITER = range(1, 11)
NO_TIME = np.iinfo(np.int64).min
VALUES = 1 << 18
"""Values taken apart at a time."""
_NS = 1_000_000_000
_LATEST = 9.2e9
_SUMMARY_VALUE, _WRITER_NAME = 1, 1
_COUNTED = {LOG: "log message", SESSION: "session log"}
_NUMBERS = {WALL_TIME, STEP}


class NoEvents(Exception):  # noqa: N818 - never leaves the reader
    """The records are whole, and are no events."""


class Points(NamedTuple):
    """Values of summaries, with the step and the time of their event.

    Attributes:
        values: n values.
        steps: n steps.
        times: n times in ns since 1970, or ``NO_TIME``.
        offset: Where in the file their places begin to count.
    """

    values: Values
    steps: Places
    times: Places
    offset: int


class Graphs(NamedTuple):
    """Graphs that lie in the file.

    Attributes:
        steps: n steps.
        times: n times in ns since 1970, or ``NO_TIME``.
        starts: n places in the file where they begin.
        sizes: n sizes in bytes.
        checksums: n CRC-32 of these bytes.
        meta: Whether they are meta graphs.
    """

    steps: Places
    times: Places
    starts: Places
    sizes: Places
    checksums: list[int]
    meta: bool


@dataclass
class FileEvents:
    """What an event file holds.

    Attributes:
        path: The file.
        size: Its size in bytes.
        records: How many records were read.
        end: Where the last of them ends.
        damage: What is wrong there, if anything is.
        points: Values of summaries.
        executions: Executions of nodes.
        graphs: Where graphs lie.
        counts: Events that no table holds, by kind.
        version: What the file says it is.
        writer: What wrote it.
        first: Earliest time of an event in ns since 1970.
        last: Latest time.
    """

    path: Path
    size: int = 0
    records: int = 0
    end: int = 0
    damage: str | None = None
    points: list[Points] = field(default_factory=list)
    executions: list[Executions] = field(default_factory=list)
    graphs: list[Graphs] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    version: str | None = None
    writer: str | None = None
    first: int | None = None
    last: int | None = None


def read(path: Path, rooms: Rooms) -> FileEvents:
    """Read a file up to its last whole record, or to damage.

    Raises:
        Damage: A record is whole and breaks the format inside.
        NoEvents: The records are no events.
        TracekitError: The file cannot be read, or changed in another way than that something was added to it.
        FileNotFoundError: There is no such file any more.
    """
    made = FileEvents(path)
    with InputFile(path, may_grow=True) as file, rooms.one() as room:
        records = Records(file, room)
        for batch in records.batches():
            try:
                _take(made, batch)
            except Damage as e:
                raise Damage(f"{e} (bytes {batch.offset} to {records.end})") from e
        made.size, made.end = records.size, records.end
        made.damage = records.damage
    return made


def nanoseconds(seconds: Reals) -> Places:
    """Turn seconds into the nearest whole nanoseconds, exactly; ``NO_TIME`` where they are none, or after 2261."""
    with np.errstate(invalid="ignore"):
        known = np.abs(seconds) < _LATEST
    kept = np.where(known, seconds, 0.0)
    whole = np.floor(kept)
    found = whole.astype(np.int64) * _NS + np.rint((kept - whole) * _NS).astype(np.int64)
    return np.where(known, found, NO_TIME)


def checksums(buffer: Buffer, starts: Places, stops: Places) -> list[int]:
    """Return the CRC-32 of the bytes between n places and n others."""
    octets = buffer.octets.data
    return [zlib.crc32(octets[a:b]) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]


def _take(made: FileEvents, batch: Batch) -> None:
    """Take over the events of a batch."""
    n = len(batch.starts)
    if not made.records:
        _check_first(batch)
    made.records += n
    fields = decode(batch.buffer, batch.starts, batch.stops, range(WALL_TIME, WRITER + 1))
    if not _fit(fields):
        raise Damage("a field of an event is of another kind than it should be")
    times = nanoseconds(_numbers(fields.get(WALL_TIME), n).view(np.float64))
    steps = _numbers(fields.get(STEP), n)
    _note(made, batch.buffer, fields, times)
    _take_points(made, batch, fields.get(SUMMARY), steps, times)
    if RUN in fields:
        rows = _rows(fields[RUN], n)
        traced = step_stats.tagged(batch.buffer, *fields[RUN].spans(), steps[rows])
        made.executions += step_stats.read(batch.buffer, traced)
        made.counts.update(step_stats.others(batch.buffer, traced.starts, traced.stops))
    for number in (GRAPH, META_GRAPH):
        if number in fields:
            rows = _rows(fields[number], n)
            starts, stops = fields[number].spans()
            where, sums = starts + batch.offset, checksums(batch.buffer, starts, stops)
            made.graphs.append(Graphs(steps[rows], times[rows], where, stops - starts, sums, number == META_GRAPH))


def _check_first(batch: Batch) -> None:
    """Hold the first record against what an event looks like.

    Raises:
        NoEvents: It is none.
    """
    starts, stops = batch.starts[:1], batch.stops[:1]
    try:
        fields = decode(batch.buffer, starts, stops, range(WALL_TIME, WRITER + 1))
    except Damage as e:
        raise NoEvents from e
    if not _fit(fields) or (not fields and stops[0] > starts[0]):
        raise NoEvents


def _fit(fields: dict[int, Field]) -> bool:
    return all((found.stops is None) == (number in _NUMBERS) for number, found in fields.items())


def _take_points(made: FileEvents, batch: Batch, found: Field | None, steps: Places, times: Places) -> None:
    if found is None:
        return
    rows = _rows(found, len(steps))
    (parts,) = occurrences(batch.buffer, *found.spans(), (_SUMMARY_VALUE,))
    for first in range(0, len(parts), VALUES):
        part = slice(first, first + VALUES)
        events = rows[parts.rows[part]]
        read_ = values.read(batch.buffer, parts.starts[part], parts.stops[part])
        made.points.append(Points(read_, steps[events], times[events], batch.offset))


def _note(made: FileEvents, buffer: Buffer, fields: dict[int, Field], times: Places) -> None:
    """Note when events are, what wrote them, and how many no table holds."""
    known = times[times != NO_TIME]
    if len(known):
        first, last = int(known.min()), int(known.max())
        made.first = first if made.first is None else min(made.first, first)
        made.last = last if made.last is None else max(made.last, last)
    for number, name in _COUNTED.items():
        if number in fields:
            made.counts[name] += len(_rows(fields[number], len(times)))
    if made.version is None and VERSION in fields:
        made.version = _first(buffer, fields[VERSION])
    if made.writer is None and WRITER in fields:
        starts, stops = (s[:1] for s in fields[WRITER].spans())
        found = decode(buffer, starts, stops, {_WRITER_NAME}).get(_WRITER_NAME)
        made.writer = None if found is None or found.stops is None else _first(buffer, found)


def _first(buffer: Buffer, found: Field) -> str:
    starts, stops = (s[:1] for s in found.spans())
    return str(texts.at(buffer, starts, stops)[0])


def _numbers(found: Field | None, n: int) -> Places:
    return np.zeros(n, np.int64) if found is None else found.values.view(np.int64)


def _rows(found: Field, n: int) -> Places:
    return np.arange(n) if found.valid is None else np.flatnonzero(found.valid)
