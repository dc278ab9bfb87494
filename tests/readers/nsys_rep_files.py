"""Reports made for tests: packed from parts, or real ones taken apart, changed and packed again."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from tracekit.readers.nsys_rep.blocks import Block, RawData
from tracekit.readers.nsys_rep.container import CLOCKS, FACTS, OFFSETS, RAW, Container
from tracekit.readers.nsys_rep.entries import count
from tracekit.readers.nsys_rep.wire import DELIMITED, FIXED64, VARINT
from tracekit.registry import Source

MAGIC = b"NVIDIA Tegra Profiler Report 1."
LZ4 = pa.Codec("lz4_raw")


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def message(*fields: tuple[int, int | float | bytes | str]) -> bytes:
    out = b""
    for number, value in fields:
        if isinstance(value, float):
            out += varint(number << 3 | FIXED64) + struct.pack("<d", value)
        elif isinstance(value, int):
            out += varint(number << 3 | VARINT) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | DELIMITED) + delimited(data)
    return out


def delimited(data: bytes) -> bytes:
    return varint(len(data)) + data


def event(event_type: int, payload: int, *fields: tuple[int, int | float | bytes | str]) -> bytes:
    return message((1, message((1, event_type), (payload, message(*fields)))))


def packed(body: bytes, *, size: int | None = None) -> bytes:
    whole = delimited(body)
    data = LZ4.compress(whole, asbytes=True)
    return varint(len(data)) + varint(len(whole) if size is None else size) + data


@dataclass(frozen=True)
class Parts:
    """A report in parts: block bodies are unpacked."""

    blocks: Sequence[bytes] = ()
    strings: Sequence[bytes] = ()
    header: bytes = b""
    stream: bytes | None = None
    rest: Sequence[bytes] = ()
    sections: dict[str, bytes] = field(default_factory=lambda: {FACTS: message((6, "2025.3.1.0-test"))})
    offsets: bool = True
    compression: str = "lz4"

    def raw(self, blocks: Iterable[bytes] | None = None) -> tuple[bytes, int]:
        """The section of raw data, and where its strings begin; ``blocks`` are packed already."""
        events = list(map(packed, self.blocks) if blocks is None else blocks)
        stream = self.counts() if self.stream is None else self.stream
        head = b"QDTEXT00" + delimited(self.header) + delimited(stream) + b"".join(events)
        tail = b"".join(map(packed, self.strings)) + b"".join(map(delimited, self.rest))
        return head + tail, len(head)

    def counts(self) -> bytes:
        entries = sum(count(memoryview(b)) for b in self.blocks)
        strings = sum(b.count(b"\n") for b in self.strings)
        return message((1, entries), (3, strings), (9, self.compression))

    def pack(self, *, blocks: Iterable[bytes] | None = None) -> bytes:
        raw, strings_at = self.raw(blocks)
        sections = {RAW: raw, **self.sections}
        if self.offsets:
            sections[OFFSETS] = message((1, "lz4"), (2, strings_at - len(b"QDTEXT00")))
        out, contents = MAGIC, b""
        for name, data in sections.items():
            contents += message((1, message((1, name), (2, len(out)), (3, len(data)))))
            out += data
        return out + contents + struct.pack("<Q", len(out)) + b"U3w[END]"


def strings(*texts: str | bytes) -> bytes:
    return message(*((1, t) for t in texts))


def take_apart(path: Path) -> Parts:
    """Take a real report apart; packed again it holds the same."""
    container = Container(Source(path))
    raw = RawData(container, count)
    at, found = raw._strings_at, []
    while at < raw._string_blocks[1]:
        block = raw._block(at)
        at = block.at + block.packed
        found.append(bytes(raw.unpack(block)))
    header, start = _delimited(raw.data, 8)
    stream, _ = _delimited(raw.data, start)
    return Parts(
        blocks=[bytes(raw.unpack(b)) for b in raw.blocks],
        strings=found,
        header=header,
        stream=stream,
        rest=[bytes(m) for m in raw._rest],
        sections={n: bytes(container.section(n)) for n in (CLOCKS, FACTS) if n in container.sections},
    )


def _delimited(data: memoryview, at: int) -> tuple[bytes, int]:
    from tracekit.readers.nsys_rep.wire import delimited as read

    body, end = read(data, at)
    return bytes(body), end


__all__ = ["Block", "Parts", "delimited", "event", "message", "packed", "replace", "strings", "take_apart", "varint"]
