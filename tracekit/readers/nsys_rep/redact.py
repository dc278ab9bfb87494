"""A copy of a report without environments, command lines, host and user names; all else is the same.

Sections are copied one after the other, the raw data block by block. Only blocks in which something changes are packed
anew; only the lengths and places that this moves are counted anew.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from typing import TYPE_CHECKING, BinaryIO

from tracekit.readers.common.damage import Damage, located
from tracekit.readers.common.protobuf.rewriting import counted, edited, encoded, field, parts, within
from tracekit.readers.common.protobuf.wire import DELIMITED, VARINT, Message, delimited
from tracekit.readers.common.redaction import ENVIRONMENT, OUTPUT, Redaction, is_environment
from tracekit.readers.nsys_rep import private
from tracekit.readers.nsys_rep.blocks import MAGIC, RawData, packed
from tracekit.readers.nsys_rep.container import END, OFFSETS, RAW, TAIL, Container
from tracekit.readers.nsys_rep.container import MAGIC as FILE_MAGIC
from tracekit.readers.nsys_rep.entries import count

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.readers.common.protobuf.rewriting import Edit, Part
    from tracekit.readers.nsys_rep.blocks import Block
    from tracekit.registry import Source

EVENT = 1
STRING, STREAM = 1, 2
DEEPEST = 24


def redacted(source: Source, target: Path) -> dict[str, int]:
    """Write a copy without what identifies people and machines.

    Returns:
        How many values were emptied, by kind.

    Raises:
        CorruptTraceError: The report is damaged.
        UnsupportedVersionError: It is packed in a way that is not read.
    """
    container = Container(source)
    try:
        with located(source.path, file=container.file):
            report = _Report(container, source)
            with target.open("wb") as out:
                report.write(out)
    finally:
        container.close()
    return dict(report.redaction.counts)


class _Report:
    """A report while it is redacted: small parts are edited at once, blocks when they are written."""

    def __init__(self, container: Container, source: Source) -> None:
        self.container = container
        self.raw = RawData(container, count)
        self.redaction = Redaction(source.path)
        self.lead = source.head[: min(container.places[n] for n, data in container.sections.items() if data)]
        if not self.lead.startswith(FILE_MAGIC):
            raise Damage("a section lies where the file begins")
        if sum(map(len, container.sections.values())) > source.size:
            raise Damage("its sections overlap")
        edits = private.sections(self.redaction)
        large = (RAW, OFFSETS)
        small = {name: bytes(data) for name, data in container.sections.items() if name not in large}
        self.small = {name: edits[name](data) if name in edits else data for name, data in small.items()}
        header, at = delimited(self.raw.data, len(MAGIC))
        self.header = within({1: private.target(self.redaction), 2: edits[private.OPTIONS]})(bytes(header))
        self.stream = bytes(delimited(self.raw.data, at)[0])
        self.environments = self._environments()
        self.outputs: set[int] = set()
        self.strings, self.strings_end = self._learn_from_strings()
        self.names = self.redaction.names()

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
                out.write(offsets if name == OFFSETS else self._without_names(self.small[name]))
            contents.append(field(1, field(1, name.encode()) + field(2, at) + field(3, out.tell() - at)))
        at = out.tell()
        out.writelines(contents)
        out.write(TAIL.pack(at, END))

    def _order(self) -> list[str]:
        """Return the sections as they lie in the file; nsys refuses those that the contents list in another order."""
        names = sorted(self.container.sections, key=lambda name: self.container.places[name])
        if OFFSETS in names[: names.index(RAW)]:
            names.remove(OFFSETS)
            names.insert(names.index(RAW) + 1, OFFSETS)
        return names

    def _write_raw(self, out: BinaryIO) -> bytes:
        """Write the raw data; return the section that tells the places in it."""
        raw, begin = self.raw, out.tell() + len(MAGIC)
        out.write(MAGIC + counted(self._without_names(self.header)) + counted(self._without_names(self.stream)))
        out.writelines(self._repacked(block, self._without_private_events) for block in raw.blocks)
        moved = {2: out.tell() - begin}
        out.writelines(self._repacked(block, self._strings_from(first)) for block, first in self.strings)
        places = self.container.section(OFFSETS)
        schema = Message(places).number(3)
        end = len(raw.data) if schema is None else schema + len(MAGIC)
        at = self.strings_end
        while at < end:
            message, at = delimited(raw.data, at)
            out.write(counted(self._without_names(bytes(message))))
        moved[3] = out.tell() - begin
        if schema is not None:
            block = raw.block(end)
            out.write(self._repacked(block, self._without_names))
            out.write(self._without_names(bytes(raw.data[block.at + block.packed :])))
        return edited(bytes(places), lambda p, v: encoded(moved[p.number]) if _is_place(p, moved) else v)

    def _repacked(self, block: Block, edit: Edit) -> bytes:
        """Return a block with its message edited; if nothing becomes other, as it was."""
        body = self._body(block)
        made = edit(body)
        if made != body:
            return packed(made)
        head = encoded(block.packed) + encoded(block.size)
        return head + bytes(self.raw.data[block.at : block.at + block.packed])

    def _body(self, block: Block) -> bytes:
        """Unpack a block."""
        return bytes(self.raw.unpack(block))

    def _environments(self) -> set[int]:
        """Return which strings are the environments of processes."""
        found: set[int] = set()
        for block in self.raw.blocks:
            body = self._body(block)
            for part in parts(body) if private.PROCESS_MARK in body else ():
                event = body[part.start : part.end]
                if part.number == EVENT and private.PROCESS_MARK in event:
                    found.update(private.environments(event))
        return found

    def _learn_from_strings(self) -> tuple[list[tuple[Block, int]], int]:
        """Learn names from environments, and which strings are output of programs.

        Returns:
            The blocks of strings, each with the id of its first string, and the place after the last one.
        """
        found: list[tuple[Block, int]] = []
        at, have, wanted = self.raw.strings_at, 0, self.raw.stream.number(3) or 0
        while have < wanted:
            block = self.raw.block(at)
            found.append((block, have))
            body = self._body(block)
            for part in parts(body):
                value = body[part.start : part.end]
                if part.number == STREAM:
                    self.outputs.update(Message(memoryview(value)).numbers(3))
                elif part.number == STRING and part.kind == DELIMITED:
                    if have in self.environments or is_environment(value):
                        self.redaction.learn(ENVIRONMENT, value)
                    have += 1
            at = block.at + block.packed
        return found, at

    def _strings_from(self, first: int) -> Edit:
        """Return the edit of a block of strings whose first one has the id ``first``."""
        numbers = itertools.count(first)

        def edit(value: bytes) -> bytes:
            number = next(numbers)
            if number in self.outputs:
                return self.redaction.take(OUTPUT, value)
            if number in self.environments or is_environment(value):
                return self.redaction.take(ENVIRONMENT, value)
            return self.redaction.overwrite(self.names, value) if self.names.marked(value) else value

        return within({STRING: edit})

    def _without_private_events(self, body: bytes) -> bytes:
        """Edit a block of events."""
        process = within({private.PROCESS: private.process(self.redaction)})
        if private.PROCESS_MARK in body:
            body = within({EVENT: lambda event: process(event) if private.PROCESS_MARK in event else event})(body)
        return self._without_names(body)

    def _without_names(self, value: bytes, depth: int = 0) -> bytes:
        """Overwrite names in a message, a text or other bytes.

        Bytes are taken for a message if they can be, and if all that looks like a name then stands within its fields.
        """
        if not self.names.marked(value):
            return value
        inner = self._fields(value) if depth < DEEPEST else None
        if inner is None:
            return self.redaction.overwrite(self.names, value)
        made = bytearray(value)
        for part in inner:
            made[part.start : part.end] = self._without_names(value[part.start : part.end], depth + 1)
        return bytes(made)

    def _fields(self, value: bytes) -> list[Part] | None:
        """Return the fields of a message that hold bytes; None if it is none, or if a name stands elsewhere."""
        try:
            found = [p for p in parts(value) if p.kind == DELIMITED]
        except Damage:
            return None
        starts = [p.start for p in found]
        for begin, end in self.names.places(value):
            i = bisect_right(starts, begin) - 1
            if i < 0 or found[i].end < end:
                return None
        return found


def _is_place(part: Part, moved: dict[int, int]) -> bool:
    return part.kind == VARINT and part.number in moved
