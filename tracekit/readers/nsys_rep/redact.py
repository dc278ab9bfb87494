"""A copy of a report without what identifies people and machines; all else is the same.

Sections are copied one after the other, the raw data block by block. Only blocks in which something changes are packed
anew; only the lengths and places that this moves are counted anew.
"""

from __future__ import annotations

import functools
import io
import operator
from bisect import bisect_left
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from tracekit.readers.common.damage import Damage, damage_as_error
from tracekit.readers.common.protobuf.rewriting import edit_message, encode_delimited, encode_field, encode_varint
from tracekit.readers.common.protobuf.wire import VARINT, Message, read_delimited
from tracekit.readers.common.redaction import (
    ENVIRONMENT,
    OUTPUT,
    PATH,
    Redaction,
    TooManyCandidates,
    environment_candidates,
    environment_start,
    is_environment,
)
from tracekit.readers.nsys_rep import private
from tracekit.readers.nsys_rep.blocks import MAGIC, RawData, packed
from tracekit.readers.nsys_rep.container import END, OFFSETS, RAW, TAIL, Container
from tracekit.readers.nsys_rep.container import MAGIC as FILE_MAGIC
from tracekit.readers.nsys_rep.entries import count
from tracekit.readers.nsys_rep.fields import fields_of
from tracekit.readers.nsys_rep.overwriting import Budget, Entries, Overwriter, each_replaced, leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tracekit.readers.common.protobuf.decoding import Places
    from tracekit.readers.common.protobuf.rewriting import FieldSpan
    from tracekit.readers.nsys_rep.blocks import Block
    from tracekit.readers.nsys_rep.overwriting import Span
    from tracekit.registry import Source

EVENT = fields_of("EventBlock").events
STRING, STREAM = fields_of("StringBlock").strings, fields_of("StringBlock").process_streams
_STREAM, _OFFSETS = fields_of("StreamHeader"), fields_of("DataOffsets")
_CONTENT = fields_of("ProcessStream").content_text_id
BATCH = 4 << 20
"""Bytes of blocks that are searched together."""
LEAST_STRINGS = 1 << 20
"""Strings that any report may have; more only if it has as many bytes."""
UNPACKED_PER_STEP = 128
"""Bytes of blocks that may be unpacked for a step; they are unpacked twice."""
MESSAGES = 4
"""How much more the bytes of a message cost than those of a text."""


def redacted(source: Source, target: Path, key: bytes | None = None) -> dict[str, int]:
    """Write a copy without what identifies people and machines.

    Args:
        source: The report.
        target: Path of the copy, which does not exist yet.
        key: Makes the pseudonyms; the same key makes the same ones. None for a random key.

    Returns:
        How many values were replaced, by kind.

    Raises:
        CorruptTraceError: The report is damaged, or looking through it would cost more than a file of its size may.
        UnsupportedVersionError: It is packed in a way that is not read.
        TracekitError: It changed while it was read.
    """
    with target.open("wb") as out:
        return _redact(source, out, key)


def remaining(source: Source) -> dict[str, int]:
    """Count what ``redacted`` would replace, by kind, without writing anything.

    Raises:
        CorruptTraceError: The report is damaged, or looking through it would cost more than a file of its size may.
        UnsupportedVersionError: It is packed in a way that is not read.
        TracekitError: It changed while it was read.
    """
    return _redact(source, io.BufferedWriter(_Nowhere()), None)


def _redact(source: Source, out: BinaryIO, key: bytes | None) -> dict[str, int]:
    container = Container(source)
    try:
        with damage_as_error(source.path, file=container.file):
            report = _Report(container, source, key)
            report.write(out)
        container.file.check()
    finally:
        container.close()
    return dict(report.redaction.counts)


class _Nowhere(io.RawIOBase):
    """A file that keeps nothing but its length."""

    def __init__(self) -> None:
        self._length = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        size = memoryview(data).nbytes  # type: ignore[arg-type]
        self._length += size
        return size

    def seek(self, _: int, __: int = io.SEEK_SET) -> int:
        """Return the length: nobody goes anywhere but to the end."""
        return self._length


class _Unpacked(NamedTuple):
    """A block with its bytes, and where something may stand in it."""

    block: Block
    body: bytes
    spans: list[Span]


class _Report:
    """A report while it is redacted: small parts are edited at once, blocks when they are written."""

    def __init__(self, container: Container, source: Source, key: bytes | None) -> None:
        self.container = container
        self.raw = RawData(container, count)
        self.budget = Budget(source.size)
        self.redaction = Redaction(source.path, key)
        self.lead = source.head[: min(container.places[n] for n, data in container.sections.items() if data)]
        if not self.lead.startswith(FILE_MAGIC):
            raise Damage("a section lies where the file begins")
        if sum(map(len, container.sections.values())) > source.size:
            raise Damage("its sections overlap")
        self._check_counts(source.size)
        edits = private.sections(self.redaction)
        small = {name: bytes(data) for name, data in container.sections.items() if name not in (RAW, OFFSETS)}
        self.small = {name: edits[name](data) if name in edits else data for name, data in small.items()}
        header, at = read_delimited(self.raw.data, len(MAGIC))
        target, options = private.target(self.redaction), edits[private.OPTIONS]
        self.header = private.edit_fields("CaptureHeader", targets=target, options=options)(bytes(header))
        self.stream = bytes(read_delimited(self.raw.data, at)[0])
        self.processes: dict[int, set[int]] = {}
        self.environments = self._learn_from_events()
        self.outputs: set[int] = set()
        self.strings, self.strings_end = self._learn_from_strings()
        self.overwriter = Overwriter(self.redaction, self.budget, self.redaction.names())

    def write(self, out: BinaryIO) -> None:
        """Write the whole file; the places of strings are known when the raw data is written."""
        out.write(self.lead)
        contents: list[bytes] = []
        offsets = b""
        for name in self._order():
            at = out.tell()
            if name == RAW:
                offsets = self._write_raw(out)
            else:
                out.write(offsets if name == OFFSETS else self.overwriter.overwritten(self.small[name]))
            contents.append(_section_entry(name, at, out.tell() - at))
        at = out.tell()
        out.writelines(contents)
        out.write(TAIL.pack(at, END))

    def _check_counts(self, size: int) -> None:
        """Refuse more strings than a file of so many bytes can hold: each is another one."""
        announced = self.raw.stream.number(_STREAM.string_count) or 0
        if announced > LEAST_STRINGS + size:
            raise Damage(f"{announced} strings are announced in a file of {size} bytes")

    def _order(self) -> list[str]:
        """Return the sections as they lie in the file; nsys refuses those that the contents list in another order."""
        names = sorted(self.container.sections, key=lambda name: self.container.places[name])
        if OFFSETS in names[: names.index(RAW)]:
            names.remove(OFFSETS)
            names.insert(names.index(RAW) + 1, OFFSETS)
        return names

    def _write_raw(self, out: BinaryIO) -> bytes:
        """Write the raw data; return the section that says where what is in it."""
        raw, begin, overwritten = self.raw, out.tell() + len(MAGIC), self.overwriter.overwritten
        out.write(MAGIC + encode_delimited(overwritten(self.header)) + encode_delimited(overwritten(self.stream)))
        events = self._searched(raw.blocks, self.overwriter.candidates)
        out.writelines(self._repacked(e.block, e.body, self._without_private_events(e)) for e in events)
        moved = {_OFFSETS.strings: out.tell() - begin}
        firsts = dict(self.strings)
        for unpacked in self._searched(list(firsts), self.overwriter.candidates):
            edited_block = self._without_private_strings(unpacked, firsts[unpacked.block])
            out.write(self._repacked(unpacked.block, unpacked.body, edited_block))
        places = self.container.section(OFFSETS)
        schema = Message(places).number(_OFFSETS.payload_schemas)
        end = len(raw.data) if schema is None else schema + len(MAGIC)
        at = self.strings_end
        trailer = private.trailer(self.redaction)
        while at < end:
            message, at = read_delimited(raw.data, at)
            self.budget.spend()
            out.write(encode_delimited(overwritten(trailer(bytes(message)))))
        moved[_OFFSETS.payload_schemas] = out.tell() - begin
        if schema is not None:
            block = raw.block(end)
            body = self._body(block)
            out.write(self._repacked(block, body, overwritten(body)))
            out.write(overwritten(bytes(raw.data[block.at + block.packed :])))
        return edit_message(bytes(places), lambda p, v: encode_varint(moved[p.number]) if _is_place(p, moved) else v)

    def _repacked(self, block: Block, body: bytes, after: bytes) -> bytes:
        """Return a block with another message; if the message is the same, the block as it was."""
        if after != body:
            return packed(after)
        head = encode_varint(block.packed) + encode_varint(block.size)
        return head + bytes(self.raw.data[block.at : block.at + block.packed])

    def _body(self, block: Block) -> bytes:
        """Unpack a block."""
        self.budget.spend(block.size // UNPACKED_PER_STEP)
        return bytes(self.raw.unpack(block))

    def _searched(self, blocks: Iterable[Block], candidates: Callable[[bytes], list[Span]]) -> Iterator[_Unpacked]:
        """Yield blocks with the stretches in which something may stand; some megabytes are searched at once."""
        batch: list[tuple[Block, bytes]] = []
        size = 0
        for block in blocks:
            body = self._body(block)
            batch.append((block, body))
            size += len(body)
            if size >= BATCH:
                yield from _split(batch, candidates)
                batch, size = [], 0
        yield from _split(batch, candidates)

    def _learn_from_events(self) -> set[int]:
        """Learn from environments within events; return which strings are the environments of processes.

        Which events describe a process that loses something is kept for later.
        """
        environments: set[int] = set()
        for block, body, spans in self._searched(self.raw.blocks, self._environment_spans):
            marks = list(_places(body, private.PROCESS_MARK))
            if not marks and not spans:
                continue
            entries = Entries.of(body)
            for nth in entries.holding(marks):
                event = self._event(entries, nth)
                if entries.numbers[nth] == EVENT and private.PROCESS_MARK in event:
                    processes = private.Processes.of(event)
                    environments.update(processes.environments)
                    if processes.change:
                        self.processes.setdefault(block.at, set()).add(nth)
            for nth in entries.holding(start for start, _, _ in spans):
                event = self._event(entries, nth)
                for start, end, _ in leaves(event, entries.spans(nth, spans), self.budget):
                    self._learn_environment(event[start:end])
        return environments

    def _event(self, entries: Entries, nth: int) -> bytes:
        """Return an entry that is about to be looked at field by field."""
        event = entries[nth]
        self.budget.spend_bytes(MESSAGES * len(event))
        return event

    def _learn_environment(self, text: bytes) -> bool:
        """Learn from a text that holds an environment; return whether it is nothing else."""
        start = environment_start(text)
        if start is not None:
            self.redaction.learn(ENVIRONMENT, text[start:])
        return start is not None and is_environment(text)

    def _environment_spans(self, data: bytes, *, homes: bool = False) -> list[Span]:
        try:
            starts = environment_candidates(data, self.budget.left, homes=homes)
        except TooManyCandidates as e:
            raise self.budget.exceeded() from e
        self.budget.spend(len(starts))
        return [(start, start + 1, 0) for start in starts]

    def _learn_from_strings(self) -> tuple[list[tuple[Block, int]], int]:
        """Learn from environments among the strings, and which strings are output of programs.

        Returns:
            The blocks of strings, each with the id of its first string, and the place after the last one.
        """
        found: list[tuple[Block, int]] = []
        at, have, wanted = self.raw.strings_at, 0, self.raw.stream.number(_STREAM.string_count) or 0
        while have < wanted:
            block = self.raw.block(at)
            found.append((block, have))
            self.budget.spend()
            entries = Entries.of(self._body(block))
            is_string = entries.numbers == STRING
            self._learn_from_block(entries, np.cumsum(is_string) - 1 + have)
            have += int(np.count_nonzero(is_string))
            at = block.at + block.packed
        return found, at

    def _learn_from_block(self, entries: Entries, ids: Places) -> None:
        """Learn from a block of strings; ids are those of its entries, as far as they are strings."""
        for nth in np.flatnonzero(entries.numbers == STREAM).tolist():
            self.outputs.update(Message(memoryview(self._event(entries, nth))).numbers(_CONTENT))
        zeros = np.flatnonzero(np.frombuffer(entries.body, np.uint8) == 0)
        marks = [start for start, _, _ in self._environment_spans(entries.body, homes=True)]
        known = self._named(entries, ids, self.environments)
        for nth in sorted({*entries.holding(zeros), *entries.holding(marks), *known}):
            text = entries[nth]
            self.budget.spend_bytes(len(text))
            if entries.numbers[nth] != STRING:
                continue
            self.redaction.learn(PATH, text)
            if self._learn_environment(text):
                self.environments.add(int(ids[nth]))
            elif nth in known:
                self.redaction.learn(ENVIRONMENT, text)

    def _named(self, entries: Entries, ids: Places, wanted: set[int]) -> set[int]:
        """Return which entries of a block are strings with some ids."""
        if not len(ids) or not wanted:
            return set()
        first, last = int(ids[0]), int(ids[-1])
        return {
            int(nth)
            for number in wanted
            if max(first, 0) <= number <= last
            for nth in [np.searchsorted(ids, number)]
            if entries.numbers[nth] == STRING
        }

    def _without_private_strings(self, unpacked: _Unpacked, first: int) -> bytes:
        """Edit a block of strings whose first one has the id ``first``."""
        _, body, spans = unpacked
        if not spans and not self.outputs and not self.environments:
            return body
        entries = self.overwriter.without_others(Entries.of(body), spans)
        ids = np.cumsum(entries.numbers == STRING) - 1 + first
        outputs, environments = (self._named(entries, ids, wanted) for wanted in (self.outputs, self.environments))
        chosen = {*outputs, *environments, *entries.holding(start for start, _, _ in spans)}

        def edit(nth: int, value: bytes) -> bytes:
            if nth in outputs:
                return self.redaction.take(OUTPUT, value)
            if nth in environments:
                return self.redaction.take(ENVIRONMENT, value)
            inside = entries.spans(nth, spans)
            if entries.numbers[nth] != STRING:
                return self.overwriter.overwritten(value, inside)
            bits = functools.reduce(operator.or_, (bits for _, _, bits in inside))
            return self.overwriter.overwritten_text(value, bits)

        return each_replaced(entries, sorted(chosen), edit, self.budget)

    def _without_private_events(self, unpacked: _Unpacked) -> bytes:
        """Edit a block of events."""
        block, body, spans = unpacked
        processes = self.processes.get(block.at, set())
        if not processes and not spans:
            return body
        entries = self.overwriter.without_others(Entries.of(body), spans)
        process = private.edit_fields("Event", process=private.process(self.redaction))

        def edit(nth: int, value: bytes) -> bytes:
            inside = entries.spans(nth, spans)
            if nth in processes:
                self.budget.spend_bytes(MESSAGES * len(value))
                shorter = process(value)
                inside, value = self.overwriter.candidates(shorter), shorter
            return self.overwriter.overwritten(value, inside)

        chosen = processes.union(entries.holding(start for start, _, _ in spans))
        return each_replaced(entries, sorted(chosen), edit, self.budget)


def _section_entry(name: str, offset: int, size: int) -> bytes:
    """Return the entry of a section in the table of contents."""
    fields = fields_of("Section")
    entry = (
        encode_field(fields.name, name.encode()) + encode_field(fields.offset, offset) + encode_field(fields.size, size)
    )
    return encode_field(fields_of("Contents").sections, entry)


def _split(batch: list[tuple[Block, bytes]], candidates: Callable[[bytes], list[Span]]) -> Iterator[_Unpacked]:
    """Search blocks together, and yield each with what is in it."""
    spans = candidates(b"\0".join(body for _, body in batch)) if batch else []
    start = 0
    for block, body in batch:
        end = start + len(body)
        first, last = bisect_left(spans, (start, 0, 0)), bisect_left(spans, (end, 0, 0))
        yield _Unpacked(block, body, [(a - start, min(b, end) - start, bits) for a, b, bits in spans[first:last]])
        start = end + 1


def _places(data: bytes, mark: bytes) -> Iterator[int]:
    """Yield where a mark stands in data."""
    at = data.find(mark)
    while at >= 0:
        yield at
        at = data.find(mark, at + 1)


def _is_place(part: FieldSpan, moved: dict[int, int]) -> bool:
    return part.kind == VARINT and part.number in moved
