"""Write a copy of a Perfetto trace without values that identify people and machines.

The trace is read in batches: first to collect private names, and then to copy it. Values keep their length, so that all
other bytes of the packets are unchanged. Packets that were compressed are compressed again.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib
from typing import IO, TYPE_CHECKING, NamedTuple, cast

import numpy as np

from tracekit.errors import TracekitError
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import Damage, convert_damage
from tracekit.readers.common.json.heads import GZIP
from tracekit.readers.common.json.stream import Stream
from tracekit.readers.common.protobuf.decoding import (
    DELIMITED,
    FIXED64,
    MORE,
    VARINT,
    decode,
    encode_field,
    find_occurrences,
)
from tracekit.readers.common.protobuf.fields import read_integers, read_strings
from tracekit.readers.pftrace.packets import COMPRESSED, INTERNED, PACKET, PacketReader
from tracekit.readers.pftrace.strings import InternedTable
from tracekit.readers.redaction.csv_text import NAMES_OF_SECRETS
from tracekit.readers.redaction.kineto import find_kind_of_key, is_private_number_key
from tracekit.readers.redaction.matcher import TooManyCandidates
from tracekit.readers.redaction.nsys_rep.messages import (
    Overwriter,
    StepBudget,
    find_innermost_fields,
    iterate_field_spans,
)
from tracekit.readers.redaction.patterns import (
    COMMAND,
    HOST,
    IDENTIFIER,
    OUTPUT,
    PATH,
    SECRET,
    overwrite_private_folders,
)
from tracekit.readers.redaction.state import Redaction

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from tracekit.readers.common.protobuf.decoding import Int64Array
    from tracekit.readers.pftrace.packets import DecodedPackets
    from tracekit.readers.redaction.matcher import PrivateValueMatcher
    from tracekit.registry.source import Source

_COMPRESSED_WITH_ZSTD = 133
_COMPRESSION_LEVEL = 6
_STEPS_PER_BYTE = 4
_ANNOTATION_NAMES, _STRING_VALUES, _IID, _TEXT = 3, 29, 1, 2
_MAX_DEPTH = 32

_PATH_PARTS = ((12, 17, 2), (12, 18, 2))
"""Fields that contain the name of one folder or file of a path."""
_PROGRAMS = ((43, 6), (60, 3, 6), (132, 9))
"""Fields with the path of a program. The name of the program stays."""
_FIELDS: dict[str, tuple[tuple[int, ...], ...]] = {
    COMMAND: ((2, 1, 3), (43, 2), (60, 3, 2)),
    HOST: ((45, 17), (132, 11)),
    OUTPUT: ((11, 50, 1), (11, 50, 2), (11, 50, 3)),
    PATH: (*_PROGRAMS, *_PATH_PARTS, (11, 33, 2), (12, 4, 2), (12, 28, 2), (33, 29), (33, 38)),
    IDENTIFIER: ((128, 1, 5),),
}
"""Fields of packets with private values, by kind: the numbers of the fields from the packet to the value."""
_UUIDS: dict[tuple[int, ...], tuple[int, int]] = {(89,): (1, 2), (33,): (27, 28)}
"""Messages with the id of the trace, and the fields of its halves."""


class _NamedValues(NamedTuple):
    """A message with a name and a value.

    Attributes:
        path: Numbers of the fields from the packet to the message.
        name: Field with the name.
        texts: Fields with a string.
        numbers: Fields with a number.
        name_iid: Field with the interned name, or None.
        inner: Fields with inner messages of the same type.
    """

    path: tuple[int, ...]
    name: int
    texts: tuple[int, ...]
    numbers: tuple[int, ...] = ()
    name_iid: int | None = None
    inner: tuple[int, ...] = ()


_ANNOTATION = _NamedValues((11, 4), 10, (6, 9), (3, 4, 5, 7), 1, (11, 12))
_TEXT_IID, _NESTED, _NESTED_KEYS, _NESTED_VALUES, _NESTED_TEXT = 17, 8, 2, (3, 4), 8
_NAMED_VALUES = (
    _ANNOTATION,
    _NamedValues((5, 1, 14), 1, (6, 8), (3, 4, 5, 7)),
    _NamedValues((5, 2), 1, (2, 5), (4,)),
    *(_NamedValues((86, 1), 1, (2,)), _NamedValues((126, 1), 1, (3,), (2,)), _NamedValues((33, 48, 1), 1, (3,), (2,))),
)
_NUMBERS = frozenset((VARINT, FIXED64))
_LEADING_FOLDER = re.compile(rb"[/~\\]|[A-Za-z]:[/\\]")


class _NamedMessage(NamedTuple):
    """A message whose name says that its values may be private, its place, and the state of its sequence."""

    name: bytes
    start: int
    stop: int
    state: int


class _Private(NamedTuple):
    """A private value.

    Attributes:
        kind: Kind of the value. ``PATH`` stands for a path whose private folders are overwritten.
        start: Start offset in the batch.
        stop: End offset.
        name: Name that tells that the value may be a secret, or None if the value is overwritten as a whole.
        wire_type: Wire type of the number, or None if the value is a string.
    """

    kind: str
    start: int
    stop: int
    name: bytes | None = None
    wire_type: int | None = None


def redact(source: Source, target: Path | None = None, key: bytes | None = None) -> dict[str, int]:
    """Write a copy of a trace without values that identify people and machines.

    The copy is gzipped if the trace is.

    Args:
        source: Trace to copy.
        target: Path of the copy, which must not exist. If None, the private values are only counted.
        key: Key that determines the pseudonyms, or None for a random key.

    Returns:
        The number of replaced values of each kind.

    Raises:
        CorruptTraceError: The trace is damaged or truncated, or redacting it takes more steps than its size
            allows.
        TracekitError: The trace contains packets that are compressed with zstd, or changed while it was read.
    """
    redactor = _TraceRedactor(Redaction(source.path, key))
    for _ in range(2):  # the second time, the interned values of private annotations are known
        for batch, _ in _read_batches(source):
            redactor.collect(batch)
        if not redactor.restart():
            break
    redactor.prepare()
    with contextlib.ExitStack() as stack:
        out: IO[bytes] | None = None if target is None else stack.enter_context(target.open("wb"))
        if out is not None and source.head.startswith(GZIP):
            out = stack.enter_context(cast("IO[bytes]", gzip.GzipFile("", "wb", _COMPRESSION_LEVEL, out, mtime=0)))
        for batch, is_compressed in _read_batches(source):
            copy = redactor.overwrite(batch)
            if out is not None:
                out.write(_compress(copy) if is_compressed else copy)
    return dict(redactor.redaction.counts)


def _read_batches(source: Source) -> Iterator[tuple[DecodedPackets, bool]]:
    """Yield the packets in batches, and whether any of them were compressed.

    Raises:
        CorruptTraceError: The trace is damaged or truncated.
        TracekitError: The trace contains packets that are compressed with zstd, or changed while it was read.
    """
    with source.open() as file, convert_damage(source.path, file=file):
        with Stream(file, compressed=source.head.startswith(GZIP)) as stream:
            reader = PacketReader(stream, Budget(source.size))
            compressed = 0
            for batch in reader.iterate_batches():
                fields = {COMPRESSED, _COMPRESSED_WITH_ZSTD}
                packed = decode(batch.buffer, batch.packets.starts, batch.packets.stops, fields)
                if COMPRESSED in packed:
                    raise Damage("compressed packets contain compressed packets")
                if packed:
                    what = "packets that are compressed with zstd cannot be redacted"
                    raise TracekitError(what, path=source.path, hint="record the trace without this compression")
                yield batch, reader.compressed_bytes > compressed
                compressed = reader.compressed_bytes
            if stream.damage or reader.is_truncated:
                raise Damage(stream.damage or "the last packet is incomplete")
        file.check_unchanged()


def _compress(packets: bytes) -> bytes:
    """Return a packet with compressed packets."""
    return encode_field(PACKET, encode_field(COMPRESSED, zlib.compress(packets, _COMPRESSION_LEVEL)))


class _TraceRedactor:
    """Redactor of the batches of a trace.

    Attributes:
        redaction: The state of the redaction.
    """

    def __init__(self, redaction: Redaction) -> None:
        self.redaction = redaction
        self._matcher: PrivateValueMatcher | None = None
        self._names = InternedTable()
        self._private_names: list[bytes] = []
        self._interned: dict[tuple[int, int], bytes] = {}
        self._new_interned = False

    def collect(self, batch: DecodedPackets) -> None:
        """Collect the private names in a batch of packets.

        Raises:
            Damage: The batch takes too many steps for its size.
        """
        data = _get_bytes(batch)
        for value in self._iterate_private(batch, data):
            if value.wire_type is None and value.name is None:
                self.redaction.collect_names(value.kind, data[value.start : value.stop])
        budget = StepBudget(_STEPS_PER_BYTE * len(data))
        for first, last, spans in _group_by_packet(batch, budget.find_environment_candidates(data, include_homes=True)):
            for start, stop, _ in find_innermost_fields(data[first:last], spans, budget):
                self.redaction.collect_names_from_string(data[first + start : first + stop])

    def restart(self) -> bool:
        """Forget the state of the sequences, and return whether a further pass is needed to collect names."""
        self._names = InternedTable()
        is_needed, self._new_interned = self._new_interned, False
        return is_needed

    def prepare(self) -> None:
        """Prepare to overwrite the values, after all names have been collected."""
        self._names = InternedTable()
        self._matcher = self.redaction.build_matcher()

    def overwrite(self, batch: DecodedPackets) -> bytes:
        """Return the bytes of a batch of packets without private values.

        Raises:
            Damage: The batch takes too many steps for its size.
        """
        original = _get_bytes(batch)
        data = bytearray(original)
        for value in self._iterate_private(batch, original):
            data[value.start : value.stop] = self._replace(value, bytes(data[value.start : value.stop]))
        matcher = self._get_matcher()
        budget = StepBudget(_STEPS_PER_BYTE * len(data))
        overwriter = Overwriter(self.redaction, budget, matcher)
        try:
            candidates = matcher.find_candidates(bytes(data), budget.left)
        except TooManyCandidates as e:
            raise budget.create_limit_exceeded_error() from e
        for first, last, spans in _group_by_packet(batch, candidates):
            data[first:last] = overwriter.overwrite_private_values(bytes(data[first:last]), spans)
        return bytes(data)

    def _get_matcher(self) -> PrivateValueMatcher:
        if self._matcher is None:
            self._matcher = self.redaction.build_matcher()
        return self._matcher

    def _replace(self, value: _Private, content: bytes) -> bytes:
        """Return the replacement of a private value, which has the same length."""
        if value.wire_type is not None:
            cleared = bytes(byte & MORE for byte in content) if value.wire_type == VARINT else bytes(len(content))
            self.redaction.counts[value.kind] += cleared != content
            return cleared
        if value.name is not None:
            redacted, kinds = self._get_matcher().redact_string(content, value.name + b'": ')
            if redacted != content:
                self.redaction.counts.update(kinds)
            return redacted
        if value.kind == PATH:
            return self.redaction.redact_folders(content)
        if value.kind == IDENTIFIER:
            return self.redaction.replace_uuid(content)
        if content.strip(b"x"):
            self.redaction.counts[value.kind] += 1
        return b"x" * len(content)

    def _iterate_private(self, batch: DecodedPackets, data: bytes) -> Iterator[_Private]:
        """Yield the private values in the fields of a batch."""
        for kind, paths in _FIELDS.items():
            for path in paths:
                yield from _iterate_fields(batch, data, kind, path)
        for path, numbers in _UUIDS.items():
            for start, stop in zip(*(places.tolist() for places in _find_values(batch, path)[:2]), strict=True):
                for part in iterate_field_spans(data[start:stop]):
                    if part.number in numbers and part.kind == VARINT:
                        yield _Private(IDENTIFIER, start + part.value_start, start + part.end, wire_type=VARINT)
        yield from self._iterate_interned(batch)
        for form in _NAMED_VALUES:
            yield from self._iterate_named(batch, data, form)

    def _iterate_interned(self, batch: DecodedPackets) -> Iterator[_Private]:
        """Add the interned names of a batch, and yield its interned strings that are values of private annotations."""
        rows, starts, stops = batch.find(INTERNED)
        if not len(rows):
            return
        states = batch.states[rows]
        names, values = find_occurrences(batch.buffer, starts, stops, (_ANNOTATION_NAMES, _STRING_VALUES))
        fields = decode(batch.buffer, names.starts, names.stops, {_IID, _TEXT})
        ids, has_id = read_integers(fields, _IID, len(names))
        codes = self._classify(read_strings(batch.buffer, fields.get(_TEXT), len(names)))
        self._names.add(states[names.rows][has_id], ids[has_id], codes[has_id])
        if not self._interned:
            return
        fields = decode(batch.buffer, values.starts, values.stops, {_IID, _TEXT})
        ids, _ = read_integers(fields, _IID, len(values))
        texts = fields.get(_TEXT)
        if texts is None:
            return
        text_starts, text_stops = texts.compute_byte_ranges()
        for nth, pair in enumerate(zip(states[values.rows].tolist(), ids.tolist(), strict=True)):
            name = self._interned.get(pair)
            if name is not None and text_stops[nth] > text_starts[nth]:
                yield self._create_text(name, int(text_starts[nth]), int(text_stops[nth]))

    def _iterate_named(self, batch: DecodedPackets, data: bytes, form: _NamedValues) -> Iterator[_Private]:
        """Yield the values of the messages of one form whose names say that they may be private."""
        starts, stops, _, rows = _find_messages(batch, form.path)
        states = batch.states[rows]
        for _ in range(_MAX_DEPTH):
            if not len(starts):
                return
            numbers = {form.name} | ({form.name_iid, _NESTED} if form.name_iid is not None else set())
            fields = decode(batch.buffer, starts, stops, numbers)
            codes = self._classify(read_strings(batch.buffer, fields.get(form.name), len(starts)))
            if form.name_iid is not None:
                ids, has_id = read_integers(fields, form.name_iid, len(starts))
                codes = np.where(codes > 0, codes, self._names.look_up(states, ids, has_id))
            for nth in np.flatnonzero(codes > 0).tolist():
                message = _NamedMessage(
                    self._private_names[codes[nth] - 1], int(starts[nth]), int(stops[nth]), int(states[nth])
                )
                yield from self._iterate_values(data, message, form)
            if _NESTED in fields:
                for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                    yield from self._iterate_nested(data, start, stop)
            if not form.inner:
                return
            inner = find_occurrences(batch.buffer, starts, stops, form.inner)
            states = np.concatenate([states[parts.rows] for parts in inner])
            starts, stops = (np.concatenate([getattr(parts, side) for parts in inner]) for side in ("starts", "stops"))
            order = np.argsort(starts, kind="stable")
            states, starts, stops = states[order], starts[order], stops[order]

    def _iterate_values(
        self, data: bytes, message: _NamedMessage, form: _NamedValues, depth: int = 0
    ) -> Iterator[_Private]:
        """Yield the strings and numbers in a message whose name says that its values may be private."""
        is_private_number = is_private_number_key(message.name)
        for part in iterate_field_spans(data[message.start : message.stop]):
            start, stop = message.start + part.value_start, message.start + part.end
            if part.kind == DELIMITED and part.number in form.texts:
                yield self._create_text(message.name, start, stop)
            elif part.kind in _NUMBERS and part.number in form.numbers and is_private_number:
                yield _Private(SECRET, start, stop, wire_type=part.kind)
            elif form.name_iid is not None and part.number == _TEXT_IID and part.kind == VARINT:
                key = message.state, _read_number(data[start:stop])
                self._new_interned |= key not in self._interned
                self._interned[key] = message.name
            elif part.kind == DELIMITED and part.number in form.inner and depth < _MAX_DEPTH:
                yield from self._iterate_values(data, message._replace(start=start, stop=stop), form, depth + 1)

    def _iterate_nested(self, data: bytes, start: int, stop: int, depth: int = 0) -> Iterator[_Private]:
        """Yield the private values in the nested values of an annotation, which old versions of Chrome wrote."""
        keys: list[bytes] = []
        values: list[tuple[int, int]] = []
        for part in iterate_field_spans(data[start:stop]) if depth < _MAX_DEPTH else ():
            place = start + part.value_start, start + part.end
            if part.kind != DELIMITED:
                continue
            if depth == 0:
                if part.number == _NESTED:
                    yield from self._iterate_nested(data, *place, 1)
            elif part.number == _NESTED_KEYS:
                keys.append(data[slice(*place)])
            elif part.number in _NESTED_VALUES:
                values.append(place)
                yield from self._iterate_nested(data, *place, depth + 1)
        for key, place in zip(keys, values, strict=False):
            for part in iterate_field_spans(data[slice(*place)]) if _may_be_private(key) else ():
                if part.kind == DELIMITED and part.number == _NESTED_TEXT:
                    yield self._create_text(key, place[0] + part.value_start, place[0] + part.end)

    def _create_text(self, name: bytes, start: int, stop: int) -> _Private:
        """Return a string whose name says that it may be private."""
        kind = find_kind_of_key(name)
        return _Private(SECRET, start, stop, name) if kind is None else _Private(kind, start, stop)

    def _classify(self, names: pa.Array) -> Int64Array:
        """Return a number from 1 for each name that says that a value may be private, and 0 for other names."""
        encoded = names.dictionary_encode()
        codes = np.zeros(len(encoded.dictionary) + 1, np.int64)
        for nth, text in enumerate(encoded.dictionary.to_pylist()):
            name = text.encode("utf-8", "surrogatepass")
            if _may_be_private(name):
                if name not in self._private_names:
                    self._private_names.append(name)
                codes[nth] = 1 + self._private_names.index(name)
        rows: Int64Array = codes[encoded.indices.fill_null(len(encoded.dictionary)).to_numpy().astype(np.int64)]
        return rows


def _iterate_fields(batch: DecodedPackets, data: bytes, kind: str, path: tuple[int, ...]) -> Iterator[_Private]:
    """Yield the values of a field that are private. The first argument of a command line is the name of a process."""
    starts, stops, owners = _find_values(batch, path)
    is_first = np.append(True, owners[1:] != owners[:-1])[: len(owners)]
    for start, stop, first in zip(starts.tolist(), stops.tolist(), is_first.tolist(), strict=True):
        is_name = kind == COMMAND and first
        if not is_name and kind != PATH:
            yield _Private(kind, start, stop)
        elif path in _PATH_PARTS or _LEADING_FOLDER.match(data, start, stop):
            end = max(data.rfind(b"/", start, stop), data.rfind(b"\\", start, stop))
            if not is_name and path not in _PROGRAMS:
                yield _Private(PATH, start, stop)
            elif overwrite_private_folders(data[start:stop], b"/\\") != data[start:stop]:
                yield _Private(COMMAND, start + 1, end)


def _may_be_private(name: bytes) -> bool:
    """Return whether a name says that its value may be private."""
    is_secret = NAMES_OF_SECRETS.search(name) is not None
    return is_secret or find_kind_of_key(name) is not None or is_private_number_key(name)


def _get_bytes(batch: DecodedPackets) -> bytes:
    return batch.buffer.data[: batch.size].tobytes()


def _find_messages(
    batch: DecodedPackets, path: tuple[int, ...]
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Return the start, the end, the number of the containing message and the packet of each message at a path."""
    starts, stops, rows = batch.packets.starts, batch.packets.stops, np.arange(len(batch.packets.starts))
    owners = rows
    for number in path:
        (parts,) = find_occurrences(batch.buffer, starts, stops, (number,))
        starts, stops, rows, owners = parts.starts, parts.stops, rows[parts.rows], parts.rows
        if not len(starts):
            break
    return starts, stops, owners, rows


def _find_values(batch: DecodedPackets, path: tuple[int, ...]) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the start, the end and the number of the containing message of each value at a path."""
    return _find_messages(batch, path)[:3]


def _group_by_packet(
    batch: DecodedPackets, candidates: list[tuple[int, int, int]]
) -> Iterator[tuple[int, int, list[tuple[int, int, int]]]]:
    """Yield the packets, and the ranges between them, that contain any of the given ranges.

    Yields:
        The start and end offset, and the ranges that start there, relative to its start.
    """
    edges = np.stack((batch.packets.starts, batch.packets.stops), axis=1).reshape(-1)
    edges = np.unique(np.concatenate((edges, [0, batch.size])))
    places = np.searchsorted(edges, [start for start, _, _ in candidates], side="right") - 1
    grouped: dict[int, list[tuple[int, int, int]]] = {}
    for place, candidate in zip(places.tolist(), candidates, strict=True):
        grouped.setdefault(place, []).append(candidate)
    for place, spans in grouped.items():
        first, last = int(edges[place]), int(edges[place + 1])
        yield first, last, [(start - first, min(stop, last) - first, mask) for start, stop, mask in spans]


def _read_number(varint: bytes) -> int:
    number = sum((byte & 0x7F) << 7 * nth for nth, byte in enumerate(varint)) & (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number
