"""Read the sections of a report file, which consists of magic bytes, sections, a table of contents and an end marker.

Offsets and sizes are checked against the size of the file before anything is read. Sections are read only on demand.
"""

from __future__ import annotations

import functools
import re
import struct
from array import array
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.errors import CorruptTraceError, UnsupportedVersionError, warn
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import Damage, checked_property, convert_damage, find_end, warn_about_trailing_bytes
from tracekit.readers.common.protobuf.decoding import (
    DELIMITED,
    MORE,
    Message,
    encode_delimited,
    encode_varint,
    extract_strings,
    read_delimited,
    read_varint,
)
from tracekit.readers.nsys_rep.layout import load_fields
from tracekit.registry.detection import create_report_hint, describe_unrecognized
from tracekit.system.files import Region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.registry.source import Source

MAGIC = b"NVIDIA Tegra Profiler Report"
END = b"U3w[END]"
TAIL = struct.Struct(f"<Q{len(END)}s")
RAW, OFFSETS, CLOCKS, UI_DATA = "Raw Sampling Data", "Sampling Data Offsets", "Time Conversion Data", "UI Data"
OPTIONS = "Analysis Options Data"
MAX_CONTENTS = 1 << 20
OLDEST, NEWEST = (2019, 5), (2026, 2)
UNFINISHED = (
    "copy it again; if the original is also unfinished, let nsys finish, record again, "
    "or convert the .qdstrm file: QdstrmImporter -i FILE.qdstrm"
)
BLOCK_MAGIC = b"QDTEXT00"
MAX_BLOCK_BYTES = 32 << 20
MAX_SCHEMA_BYTES = 1 << 18
MAX_RATIO = 255
"""Maximum compression ratio of LZ4."""
UNCHECKED_BLOCKS, MIN_MEAN_BLOCK_BYTES = 1000, 4096
"""Number of blocks above which their mean decompressed size is checked, and the minimum of this mean."""
MAX_TRAILING_MESSAGES = 1000
END_LITERALS = 5
MIN_PACKED_EVENT_BYTES = 4
"""Minimum compressed size of an event in bytes. The lowest average in known reports is 10."""
STRING_BYTES, STRING_DATA_BYTES = 32, 3
"""Bytes of memory to reserve per string, and per byte of a string, of which up to three copies exist at a time."""
ARRAY_BYTES = 16 << 20
"""Number of bytes of strings that are converted to one array."""
_STREAM, _OFFSETS = load_fields("StreamHeader"), load_fields("DataOffsets")
STRING_KEY = load_fields("StringBlock").strings << 3 | DELIMITED


class Container:
    """An open Nsight Systems report file and its sections.

    Attributes:
        path: Path of the file.
        file: Open input file.
        sections: Region of the file that holds each section, by name. A region is read from the file when it is sliced.
        offsets: Offset of each section in the file.
        build: Version of nsys that wrote the report, such as ``2025.3.2.474``, or an empty string if it is unknown.
    """

    def __init__(self, source: Source) -> None:
        self.path = source.path
        if not source.head.startswith(MAGIC):
            what, hint = describe_unrecognized(source)
            hint = create_report_hint(self.path, hint)
            raise CorruptTraceError(f"not an Nsight Systems report: {what}", path=self.path, hint=hint)
        self.file = source.open()
        self.offsets: dict[str, int] = {}
        try:
            with convert_damage(self.path, file=self.file):
                self.sections = self._read_table_of_contents()
                self.build = _parse_build_version(self.read_section(UI_DATA))
        except BaseException:
            self.close()
            raise
        self._warn_if_unsupported()

    def read_section(self, name: str) -> memoryview:
        """Return the bytes of a section, which are empty if the section is missing."""
        return self.find_section_region(name)[:]

    def find_section_region(self, name: str) -> Region:
        """Return the region of the file that holds a section, which is empty if the section is missing."""
        return self.sections.get(name) or Region(self.file, 0, 0)

    @property
    def nsys_version(self) -> tuple[int, ...]:
        """Year and minor version of nsys that wrote the report, such as ``(2025, 3)``.

        The tuple is empty if the version is unknown.
        """
        return tuple(int(n) for n in self.build.split(".")[:2] if n)

    def close(self) -> None:
        """Close the report file."""
        self.file.close()

    def _read_table_of_contents(self) -> dict[str, Region]:
        if self.file.size < len(MAGIC) + TAIL.size:
            raise Damage(f"the file is truncated: it has only {self.file.size} bytes")
        size = find_end(self.file, END)
        if size is None or size < len(MAGIC) + TAIL.size:
            raise CorruptTraceError(
                "the report is unfinished or truncated: "
                f"the end marker is missing at the end of the file ({self.file.size} bytes)",
                path=self.path,
                hint=create_report_hint(self.path, UNFINISHED),
            )
        start, _ = TAIL.unpack(self.file.read(size - TAIL.size, TAIL.size))
        if not len(MAGIC) <= start <= size - TAIL.size:
            raise Damage(f"the offset of the table of contents is {start}, but the file has {size} bytes")
        length = size - TAIL.size - start
        if length > MAX_CONTENTS:
            raise Damage(f"the table of contents has {length} bytes, but tracekit supports at most {MAX_CONTENTS}")
        contents = Message(memoryview(self.file.read(start, length)))
        sections = dict(self._parse_section(entry) for entry in contents.messages(load_fields("Contents").sections))
        warn_about_trailing_bytes(self.path, self.file.size - size)
        return sections

    def _parse_section(self, entry: Message) -> tuple[str, Region]:
        field = load_fields("Section")
        name, at, size = (
            entry.text(field.name) or "",
            entry.int_value(field.offset) or 0,
            entry.int_value(field.size) or 0,
        )
        if not 0 <= at <= at + size <= self.file.size:
            raise Damage(f"section {name!r} is at bytes {at} to {at + size}, but the file has {self.file.size} bytes")
        self.offsets[name] = at
        return name, Region(self.file, at, size)

    def _warn_if_unsupported(self) -> None:
        if not self.nsys_version:
            warn(
                "the report does not contain the version of nsys: "
                "it is read as if the newest supported version had written it",
                path=self.path,
            )
        elif not OLDEST <= self.nsys_version <= NEWEST:
            supported = " to ".join(".".join(map(str, r)) for r in (OLDEST, NEWEST))
            warn(
                f"the report was written by nsys {self.build}, but tracekit supports {supported}: "
                "unknown parts are skipped",
                path=self.path,
            )


def _parse_build_version(section: memoryview) -> str:
    metadata, field = Message(section), load_fields("UiData")
    build = metadata.text(field.build) or metadata.text(field.other_build) or ""
    match = re.match(r"\d{1,9}(\.\d{1,9})*", build, re.ASCII)
    return match[0] if match else ""


class Block(NamedTuple):
    """The location of one compressed block.

    Attributes:
        offset: Offset of the compressed bytes in the section.
        packed: Compressed size in bytes.
        size: Decompressed size in bytes.
    """

    offset: int
    packed: int
    size: int


class RawData:
    """The section "Raw Sampling Data" of an Nsight Systems report, which holds events and strings.

    Attributes:
        data: Bytes of the section, which are read from the file only when they are sliced.
        file_bytes: Size of the whole report file in bytes.
        header: Capture header, with targets, options and clocks.
        stream: Stream header, with the numbers of events and strings, and the types of generic events.
        blocks: Compressed blocks of events, in file order.
    """

    def __init__(self, container: Container, count_events: Callable[[memoryview], int]) -> None:
        self.path = container.path
        self.data = container.find_section_region(RAW)
        self.file_bytes = container.file.size
        if self.data[: len(BLOCK_MAGIC)] != BLOCK_MAGIC:
            raise Damage(f"the section {RAW!r} ({len(self.data)} bytes) does not begin with {BLOCK_MAGIC.decode()}")
        header, at = read_delimited(self.data, len(BLOCK_MAGIC))
        stream, at = read_delimited(self.data, at)
        self.header, self.stream = Message(header), Message(stream)
        self._check_compression()
        self._offsets = Message(container.read_section(OFFSETS))
        blocks = (
            self._iterate_blocks_until_offset(at)
            if self._offsets.int_value(_OFFSETS.strings)
            else self._iterate_blocks_until_event_count(at, count_events)
        )
        self.blocks = self._collect_checked_blocks(blocks)
        self._strings_offset = max((b.offset + b.packed for b in self.blocks), default=at)

    def decompress(self, block: Block) -> memoryview:
        """Decompress a block and return the message in it.

        The decompressor does not report how many bytes it wrote. However, an LZ4 block always ends with bytes that are
        copied unchanged to the end of the result. If the result ends with the same bytes, the whole block was
        decompressed.

        Raises:
            Damage: The block cannot be decompressed, or its size differs from the declared size.
        """
        packed = self.data[block.offset : block.offset + block.packed]
        try:
            unpacked = memoryview(_create_lz4_codec().decompress(packed, block.size)).cast("B")
        except (OSError, pa.ArrowException) as e:
            raise Damage(f"a block of {block.packed} bytes cannot be decompressed") from e
        tail = min(END_LITERALS, block.size)
        if unpacked[-tail:] != packed[-tail:]:
            raise Damage(
                f"a block of {block.packed} bytes does not decompress to the {block.size} bytes that it declares"
            )
        body, end = read_delimited(unpacked, 0)
        if end != block.size:
            raise Damage(f"a block decompresses to {block.size} bytes, but its message ends at byte {end}")
        return body

    @property
    def event_count(self) -> int:
        """Number of events that the report declares, limited to the number that its blocks can hold."""
        return max(0, min(self._declared_event_count, sum(b.packed for b in self.blocks) // MIN_PACKED_EVENT_BYTES))

    @property
    def strings_offset(self) -> int:
        """Offset in the section, in bytes, at which the first block of strings begins."""
        return self._strings_offset

    def read_block_at(self, offset: int) -> Block:
        """Return the location and sizes of the block at the given offset in the section."""
        return self._read_block(offset)

    @functools.cached_property
    def strings(self) -> pa.BinaryArray:
        """The strings of the report as a binary array. The id of a string is its index in this array."""
        return self._strings_and_end[0]

    @functools.cached_property
    def thread_names_message(self) -> Message:
        """The message that contains the names of threads, which is empty if the report has no thread names."""
        return Message(self._messages_after_strings[0] if self._has_thread_names else memoryview(b""))

    @functools.cached_property
    def trailer(self) -> Message:
        """The message that describes the GPUs, contexts and streams of the machine."""
        rest = self._messages_after_strings[1:] if self._has_thread_names else self._messages_after_strings
        return Message(rest[0] if rest else memoryview(b""))

    @functools.cached_property
    def schemas_message(self) -> Message:
        """The message with the schemas of NVTX payloads, which is empty if the report has no schemas."""
        at = self._offsets.int_value(_OFFSETS.payload_schemas)
        if at is None:
            return Message(memoryview(b""))
        at += len(BLOCK_MAGIC)
        if not 0 < at < len(self.data):
            raise Damage(f"the offset of the payload schemas is {at}, but the section has {len(self.data)} bytes")
        block = self._read_block(at)
        if block.size > MAX_SCHEMA_BYTES:
            raise Damage(
                f"the payload schemas have {block.size} bytes, but tracekit supports at most {MAX_SCHEMA_BYTES}"
            )
        return Message(self.decompress(block))

    @checked_property
    def _messages_after_strings(self) -> list[memoryview]:
        """The messages that follow the strings: the thread names and the trailer."""
        schema = self._offsets.int_value(_OFFSETS.payload_schemas)
        at, end = self._strings_and_end[1], len(self.data) if schema is None else schema + len(BLOCK_MAGIC)
        messages = []
        while at < min(end, len(self.data)):
            message, at = read_delimited(self.data, at)
            messages.append(message)
            if len(messages) > MAX_TRAILING_MESSAGES:
                raise Damage(
                    f"more than {MAX_TRAILING_MESSAGES} messages follow the strings, which tracekit does not support"
                )
        return messages or [memoryview(b"")]

    @checked_property
    def _strings_and_end(self) -> tuple[pa.BinaryArray, int]:
        """The strings of the report, and the offset at which the last block of strings ends."""
        strings, at = (
            _StringBuilder(self.stream.int_value(_STREAM.string_count) or 0, Budget(self.file_bytes)),
            self._strings_offset,
        )
        while strings.left > 0:
            block = self._read_block(at)
            at = block.offset + block.packed
            strings.add_strings(self.decompress(block))
        return strings.build_strings_array(), at

    @property
    def _declared_event_count(self) -> int:
        events, generic = _STREAM.event_count, _STREAM.generic_event_count
        return (self.stream.int_value(events) or 0) + (self.stream.int_value(generic) or 0)

    @property
    def _has_thread_names(self) -> bool:
        return bool(self.stream.int_value(_STREAM.thread_name_count))

    def _check_compression(self) -> None:
        name = self.stream.text(_STREAM.compression)
        if name not in (None, "lz4"):
            raise UnsupportedVersionError(
                f"the blocks of the report are compressed with {name!r}, but tracekit supports only lz4",
                path=self.path,
                hint=create_report_hint(self.path, "run nsys export --type sqlite REPORT, and read the export"),
            )

    def _collect_checked_blocks(self, blocks: Iterator[Block]) -> list[Block]:
        """Return a list of blocks, or raise an error if the blocks are implausibly small.

        nsys writes about 7000 events to a block.

        Raises:
            Damage: There are more than ``UNCHECKED_BLOCKS`` blocks, and their mean decompressed size is less than
                ``MIN_MEAN_BLOCK_BYTES``.
        """
        collected: list[Block] = []
        total = 0
        for block in blocks:
            collected.append(block)
            total += block.size
            if total < (len(collected) - UNCHECKED_BLOCKS) * MIN_MEAN_BLOCK_BYTES:
                break
        number = len(collected)
        if number > UNCHECKED_BLOCKS and total < number * MIN_MEAN_BLOCK_BYTES:
            raise Damage(
                f"the first {number} blocks of events have only {total} bytes in total, but at least "
                f"{MIN_MEAN_BLOCK_BYTES} bytes per block are expected"
            )
        return collected

    def _read_block(self, offset: int) -> Block:
        packed, offset = read_varint(self.data, offset)
        size, offset = read_varint(self.data, offset)
        if not 0 < packed <= len(self.data) - offset:
            raise Damage(
                f"a block at byte {offset} declares {packed} bytes, but only {len(self.data) - offset} bytes are left"
            )
        max_size = min(MAX_BLOCK_BYTES, packed * MAX_RATIO)
        if not 0 < size <= max_size:
            raise Damage(
                f"a block of {packed} bytes declares a decompressed size of {size} bytes, "
                f"but the size must be 1 to {max_size}"
            )
        return Block(offset, packed, size)

    def _iterate_blocks_until_offset(self, offset: int) -> Iterator[Block]:
        """Yield the blocks from an offset to the offset at which the report declares that the strings begin."""
        end = (self._offsets.int_value(_OFFSETS.strings) or 0) + len(BLOCK_MAGIC)
        if not offset <= end <= len(self.data):
            raise Damage(f"the offset of the strings is {end}, but the section has {len(self.data)} bytes")
        while offset < end:
            block = self._read_block(offset)
            offset = block.offset + block.packed
            yield block
        if offset != end:
            raise Damage(f"the events end at byte {offset}, but the strings begin at byte {end}")

    def _iterate_blocks_until_event_count(
        self, offset: int, count_events: Callable[[memoryview], int]
    ) -> Iterator[Block]:
        """Yield blocks until they contain as many events as the report declares.

        Reports of nsys 2019.5 do not store the offset of the strings, at which the blocks of events end.
        """
        left = self._declared_event_count
        while left > 0:
            block = self._read_block(offset)
            offset = block.offset + block.packed
            left -= max(1, count_events(self.decompress(block)))
            yield block


def compress_block(body: bytes) -> bytes:
    """Compress a message and return an encoded block, which begins with its compressed and decompressed sizes."""
    unpacked = encode_delimited(body)
    data: bytes = _create_lz4_codec().compress(unpacked, asbytes=True)
    return encode_varint(len(data)) + encode_varint(len(unpacked)) + data


@functools.cache
def _create_lz4_codec() -> pa.Codec:
    return pa.Codec("lz4_raw")


class _StringBuilder:
    """A builder that joins the strings of all blocks into one array.

    Attributes:
        left: Number of strings that have not been added yet.
    """

    def __init__(self, number: int, budget: Budget) -> None:
        self.left = number
        self._budget = budget
        self._arrays: list[pa.BinaryArray] = []
        self._data = bytearray()
        self._edges = array("q")

    def add_strings(self, block_data: memoryview) -> None:
        """Add the strings of a decompressed block.

        Raises:
            Damage: The block is invalid, the blocks so far have more strings than the report declares, or the strings
                exceed the memory budget.
        """
        self._budget.reserve(len(block_data), STRING_DATA_BYTES, "bytes of strings")
        max_strings, before = min(self.left, self._budget.remaining_bytes // STRING_BYTES), len(self._edges)
        end = self._append_string_edges_and_find_end(bytes(block_data) + b"\0", before + 2 * max_strings)
        count = (len(self._edges) - before) // 2
        self._budget.reserve(count, STRING_BYTES, "strings")
        if end != len(block_data) or count > max_strings:
            raise Damage(
                f"a block of strings is damaged at byte {end} of {len(block_data)}, "
                f"after {count} of {max_strings} strings"
            )
        self.left -= count
        self._data += block_data
        if len(self._data) >= ARRAY_BYTES:
            self._copy_strings_to_array()

    def build_strings_array(self) -> pa.BinaryArray:
        """Return the array of all strings."""
        self._copy_strings_to_array()
        return self._arrays[0] if len(self._arrays) == 1 else pa.concat_arrays(self._arrays)

    def _append_string_edges_and_find_end(self, data: bytes, max_edges: int) -> int:
        """Find the strings of a block, and append the start and end offset of each string to ``_edges``.

        The search stops at an invalid field, and after the first string with which ``_edges`` has more than
        ``max_edges`` elements. The excess shows the caller that the block has too many strings.

        Args:
            data: The decompressed block, followed by a zero byte that is not part of the block.
            max_edges: Maximum number of elements of ``_edges``, including the offsets of strings in earlier blocks.

        Returns:
            The offset at which the last field that was read ends.
        """
        edges, base = self._edges, len(self._data)
        at, end = 0, len(data) - 1
        while at < end and len(edges) <= max_edges:
            key, size, start = data[at], data[at + 1], at + 2
            if size >= MORE:
                size, start = read_varint(memoryview(data)[:end], at + 1)
            at = start + size
            if at > end:
                break
            if key == STRING_KEY:
                edges.append(base + start)
                edges.append(base + at)
            elif key % 8 != DELIMITED:
                break
        return at

    def _copy_strings_to_array(self) -> None:
        """Copy the strings that were added since the last call to a new Arrow array."""
        edges = np.frombuffer(self._edges, np.int64) if self._edges else np.zeros(0, np.int64)
        self._arrays.append(extract_strings(np.frombuffer(self._data, np.uint8), edges))
        self._data, self._edges = bytearray(), array("q")
