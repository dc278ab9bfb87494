"""Reports made for tests: packed from parts, or real ones taken apart, changed and packed again."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from tracekit.readers.common.protobuf.decoding import DELIMITED, FIXED64, VARINT, read_delimited
from tracekit.readers.nsys_rep.container import CLOCKS, OFFSETS, RAW, UI_DATA, Container, RawData
from tracekit.readers.nsys_rep.entries import count_block_events
from tracekit.registry.source import Source

SHARED = Path(__file__).parents[3] / "shared"
CAPTURES = Path(__file__).parents[2] / "fixtures"
MAGIC = b"NVIDIA Tegra Profiler Report 1."
RAW_MAGIC = b"QDTEXT00"
LZ4 = pa.Codec("lz4_raw")
Value = int | float | bytes | str


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def message(*fields: tuple[int, Value]) -> bytes:
    out = b""
    for number, value in fields:
        if isinstance(value, float):
            out += varint(number << 3 | FIXED64) + struct.pack("<d", value)
        elif isinstance(value, int):
            out += varint(number << 3 | VARINT) + varint(value)
        else:
            out += varint(number << 3 | DELIMITED) + delimited(value.encode() if isinstance(value, str) else value)
    return out


def delimited(data: bytes) -> bytes:
    return varint(len(data)) + data


def event(event_type: int, payload: int, *fields: tuple[int, Value]) -> bytes:
    return message((1, message((1, event_type), (payload, message(*fields)))))


def strings(*texts: str | bytes) -> bytes:
    return message(*((1, t) for t in texts))


def packed(body: bytes, *, size: int | None = None) -> bytes:
    """Pack a block; ``size`` may lie about how large it becomes."""
    whole = delimited(body)
    data = LZ4.compress(whole, asbytes=True)
    return varint(len(data)) + varint(len(whole) if size is None else size) + data


@dataclass(frozen=True)
class Parts:
    """A report in parts; blocks are unpacked."""

    blocks: Sequence[bytes] = ()
    strings: Sequence[bytes] = ()
    header: bytes = b""
    stream: bytes | None = None
    rest: Sequence[bytes] = ()
    sections: dict[str, bytes] = field(default_factory=lambda: {UI_DATA: message((6, "2025.3.1.0-test"))})
    offsets: bool = True
    compression: str = "lz4"
    schemas: bytes | None = None

    def counts(self) -> bytes:
        """A stream header that says how much there is."""
        entries = sum(count_block_events(memoryview(b)) for b in self.blocks)
        texts = sum(len(list(_entries(b))) for b in self.strings)
        return message((1, entries), (3, texts), (9, self.compression))

    def raw(self, blocks: Iterable[bytes]) -> tuple[bytes, int]:
        """The section of raw data made of packed blocks, and where its strings begin."""
        stream = self.counts() if self.stream is None else self.stream
        head = RAW_MAGIC + delimited(self.header) + delimited(stream) + b"".join(blocks)
        return head + b"".join(map(packed, self.strings)) + b"".join(map(delimited, self.rest)), len(head)

    def pack(self, *, blocks: Iterable[bytes] | None = None) -> bytes:
        """The file; with other (packed) blocks if some are given."""
        raw, strings_at = self.raw(map(packed, self.blocks) if blocks is None else blocks)
        sections = {RAW: raw, **self.sections}
        schemas = [] if self.schemas is None else [(3, len(raw) - len(RAW_MAGIC))]
        if self.schemas is not None:
            sections[RAW] = raw + packed(self.schemas)
        if self.offsets:
            sections[OFFSETS] = message((1, "lz4"), (2, strings_at - len(RAW_MAGIC)), *schemas)
        return container(sections)


def container(sections: dict[str, bytes]) -> bytes:
    out, contents = MAGIC, b""
    for name, data in sections.items():
        contents += message((1, message((1, name), (2, len(out)), (3, len(data)))))
        out += data
    return out + contents + struct.pack("<Q", len(out)) + b"U3w[END]"


def take_apart(path: Path) -> Parts:
    """Take a real report apart; packed again it holds the same."""
    opened = Container(Source(path))
    raw = RawData(opened, count_block_events)
    at, texts = raw._strings_offset, []
    while at < raw._strings_and_end[1]:
        block = raw._read_block(at)
        at = block.offset + block.packed
        texts.append(bytes(raw.decompress(block)))
    header, after = read_delimited(raw.data, len(RAW_MAGIC))
    return Parts(
        blocks=[bytes(raw.decompress(b)) for b in raw.blocks],
        strings=texts,
        header=bytes(header),
        stream=bytes(read_delimited(raw.data, after)[0]),
        rest=[bytes(m) for m in raw._messages_after_strings],
        sections={n: bytes(opened.read_section(n)) for n in (CLOCKS, UI_DATA) if n in opened.sections},
    )


def _entries(block: bytes) -> Iterable[bytes]:
    data, at = memoryview(block), 0
    while at < len(data):
        tag = data[at]
        body, at = read_delimited(data, at + 1)
        if tag == 1 << 3 | DELIMITED:
            yield bytes(body)
