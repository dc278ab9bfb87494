"""Raw Sampling Data: headers, compressed blocks of events and strings, thread names, trailer."""

from __future__ import annotations

import functools
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.errors import UnsupportedVersionError
from tracekit.readers.common.budget import Budget
from tracekit.readers.common.damage import Damage, checked_property
from tracekit.readers.common.protobuf.decoding import extract_strings
from tracekit.readers.common.protobuf.rewriting import encode_delimited, encode_varint
from tracekit.readers.common.protobuf.wire import DELIMITED, MORE, Message, read_delimited, read_varint
from tracekit.readers.nsys_rep.container import OFFSETS, RAW
from tracekit.readers.nsys_rep.fields import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.readers.nsys_rep.container import Container

MAGIC = b"QDTEXT00"
MAX_BLOCK = 32 << 20
MAX_SCHEMAS = 1 << 18
MAX_RATIO = 255
"""Bytes that a byte of LZ4 becomes at most."""
FEW_BLOCKS, MIN_MEAN = 1000, 4096
MAX_REST = 1000
END_LITERALS = 5
MIN_EVENT = 4
"""Bytes that an event takes at least when it is compressed; in no known report fewer than 10 on average."""
STRING_BYTES, TEXT_BYTES = 32, 3
"""Memory of a string, and of each byte of it: in its block, cut out of it, and put together with the others."""
AT_ONCE = 16 << 20
"""Bytes of strings that are cut at a time."""
_STREAM, _OFFSETS = fields_of("StreamHeader"), fields_of("DataOffsets")
STRING_KEY = fields_of("StringBlock").strings << 3 | DELIMITED


@dataclass(frozen=True, slots=True)
class Block:
    """One compressed block: where it lies in the section and how large it becomes."""

    at: int
    packed: int
    size: int


class RawData:
    """The section that holds the capture itself.

    Attributes:
        data: Its bytes, which are read when a slice of them is taken.
        file_bytes: Size of the whole file.
        header: What was captured: targets, options, clocks.
        stream: What follows: counts of events and strings, generic event types.
        blocks: Compressed blocks of events.
    """

    def __init__(self, container: Container, count: Callable[[memoryview], int]) -> None:
        self.path = container.path
        self.data = container.region(RAW)
        self.file_bytes = container.file.size
        if self.data[: len(MAGIC)] != MAGIC:
            raise Damage(f"its section {RAW!r} ({len(self.data)} bytes) does not begin as it should")
        header, at = read_delimited(self.data, len(MAGIC))
        stream, at = read_delimited(self.data, at)
        self.header, self.stream = Message(header), Message(stream)
        self._check_compression()
        self._offsets = Message(container.section(OFFSETS))
        blocks = self._until_offset(at) if self._offsets.number(_OFFSETS.strings) else self._until_count(at, count)
        self.blocks = self._list(blocks)
        self._strings_at = max((b.at + b.packed for b in self.blocks), default=at)

    def unpack(self, block: Block) -> memoryview:
        """Decompress a block: the message in it.

        The decompressor does not tell how much it wrote. But a block always ends in literal bytes; where those stand at
        the end of the result, it is whole.
        """
        packed = self.data[block.at : block.at + block.packed]
        try:
            made = memoryview(_codec().decompress(packed, block.size)).cast("B")
        except (OSError, pa.ArrowException) as e:
            raise Damage(f"a block of {block.packed} bytes cannot be decompressed") from e
        tail = min(END_LITERALS, block.size)
        if made[-tail:] != packed[-tail:]:
            raise Damage(f"a block of {block.packed} bytes does not hold the {block.size} bytes it announces")
        body, end = read_delimited(made, 0)
        if end != block.size:
            raise Damage(f"a block of {block.size} bytes holds a message that ends at byte {end}")
        return body

    @property
    def events(self) -> int:
        """Number of events that the report says it has; no more than its blocks have room for."""
        return max(0, min(self._announced_events, sum(b.packed for b in self.blocks) // MIN_EVENT))

    @property
    def strings_at(self) -> int:
        """Where the blocks of strings begin."""
        return self._strings_at

    def block(self, at: int) -> Block:
        """Return the block that begins at a place."""
        return self._block(at)

    @functools.cached_property
    def strings(self) -> pa.BinaryArray:
        """The strings of the report by id, as bytes."""
        return self._string_blocks[0]

    @functools.cached_property
    def threads(self) -> Message:
        """Names of threads."""
        return Message(self._rest[0] if self._has_thread_names else memoryview(b""))

    @functools.cached_property
    def trailer(self) -> Message:
        """What the machine was: GPUs, contexts, streams."""
        rest = self._rest[1:] if self._has_thread_names else self._rest
        return Message(rest[0] if rest else memoryview(b""))

    @functools.cached_property
    def schemas(self) -> Message:
        """Schemas of NVTX payloads; empty if there are none."""
        at = self._offsets.number(_OFFSETS.payload_schemas)
        if at is None:
            return Message(memoryview(b""))
        at += len(MAGIC)
        if not 0 < at < len(self.data):
            raise Damage(f"its payload schemas are said to be at byte {at} of {len(self.data)}")
        block = self._block(at)
        if block.size > MAX_SCHEMAS:
            raise Damage(f"its payload schemas take {block.size} bytes, more than {MAX_SCHEMAS}")
        return Message(self.unpack(block))

    @checked_property
    def _rest(self) -> list[memoryview]:
        """The messages after the strings."""
        schema = self._offsets.number(_OFFSETS.payload_schemas)
        at, end = self._string_blocks[1], len(self.data) if schema is None else schema + len(MAGIC)
        found = []
        while at < min(end, len(self.data)):
            message, at = read_delimited(self.data, at)
            found.append(message)
            if len(found) > MAX_REST:
                raise Damage(f"more than {MAX_REST} messages follow its strings")
        return found or [memoryview(b"")]

    @checked_property
    def _string_blocks(self) -> tuple[pa.BinaryArray, int]:
        """The strings, and the place after their last block."""
        strings, at = _Strings(self.stream.number(_STREAM.string_count) or 0, Budget(self.file_bytes)), self._strings_at
        while strings.left > 0:
            block = self._block(at)
            at = block.at + block.packed
            strings.add(self.unpack(block))
        return strings.finish(), at

    @property
    def _announced_events(self) -> int:
        events, generic = _STREAM.event_count, _STREAM.generic_event_count
        return (self.stream.number(events) or 0) + (self.stream.number(generic) or 0)

    @property
    def _has_thread_names(self) -> bool:
        return bool(self.stream.number(_STREAM.thread_name_count))

    def _check_compression(self) -> None:
        name = self.stream.text(_STREAM.compression)
        if name not in (None, "lz4"):
            raise UnsupportedVersionError(
                f"its blocks are compressed with {name!r}; only lz4 is read",
                path=self.path,
                hint="export it: nsys export --type sqlite REPORT, and read that",
            )

    def _list(self, blocks: Iterator[Block]) -> list[Block]:
        """Collect blocks; many tiny ones are refused, for a block is written when thousands of events are there."""
        collected: list[Block] = []
        total = 0
        for block in blocks:
            collected.append(block)
            total += block.size
            if total < (len(collected) - FEW_BLOCKS) * MIN_MEAN:
                break
        number = len(collected)
        if number > FEW_BLOCKS and total < number * MIN_MEAN:
            raise Damage(f"{number} blocks of events hold only {total} bytes")
        return collected

    def _block(self, at: int) -> Block:
        packed, at = read_varint(self.data, at)
        size, at = read_varint(self.data, at)
        if not 0 < packed <= len(self.data) - at:
            raise Damage(f"a block at byte {at} announces {packed} bytes, {len(self.data) - at} are left")
        if not 0 < size <= min(MAX_BLOCK, packed * MAX_RATIO):
            raise Damage(f"a block of {packed} bytes announces {size} bytes")
        return Block(at, packed, size)

    def _until_offset(self, at: int) -> Iterator[Block]:
        end = (self._offsets.number(_OFFSETS.strings) or 0) + len(MAGIC)
        if not at <= end <= len(self.data):
            raise Damage(f"its strings are said to be at byte {end} of {len(self.data)}")
        while at < end:
            block = self._block(at)
            at = block.at + block.packed
            yield block
        if at != end:
            raise Damage(f"its events end at byte {at}, its strings begin at byte {end}")

    def _until_count(self, at: int, count: Callable[[memoryview], int]) -> Iterator[Block]:
        """Yield blocks until all events are seen: reports of 2019.5 do not say where the strings begin."""
        left = self._announced_events
        while left > 0:
            block = self._block(at)
            at = block.at + block.packed
            left -= max(1, count(self.unpack(block)))
            yield block


def packed(body: bytes) -> bytes:
    """Compress a message to a block."""
    whole = encode_delimited(body)
    data: bytes = _codec().compress(whole, asbytes=True)
    return encode_varint(len(data)) + encode_varint(len(whole)) + data


@functools.cache
def _codec() -> pa.Codec:
    return pa.Codec("lz4_raw")


class _Strings:
    """Strings that are taken out of their blocks; streams of processes stand between them.

    Attributes:
        left: How many are still to come.
    """

    def __init__(self, number: int, budget: Budget) -> None:
        self.left = number
        self._budget = budget
        self._arrays: list[pa.BinaryArray] = []
        self._data = bytearray()
        self._edges = array("q")

    def add(self, body: memoryview) -> None:
        """Take the strings out of a block.

        Raises:
            Damage: It is damaged, or holds more strings than are still to come.
        """
        self._budget.take(len(body), TEXT_BYTES, "bytes of strings")
        most, before = min(self.left, self._budget.left // STRING_BYTES), len(self._edges)
        end = self._find(bytes(body) + b"\0", before + 2 * most)
        count = (len(self._edges) - before) // 2
        self._budget.take(count, STRING_BYTES, "strings")
        if end != len(body) or count > most:
            raise Damage(f"a block of strings is damaged at byte {end} of {len(body)}, after {count} of {most} strings")
        self.left -= count
        self._data += body
        if len(self._data) >= AT_ONCE:
            self._cut()

    def finish(self) -> pa.BinaryArray:
        """Return the strings."""
        self._cut()
        return self._arrays[0] if len(self._arrays) == 1 else pa.concat_arrays(self._arrays)

    def _find(self, data: bytes, most: int) -> int:
        """Note where strings begin and end in a block that a zero follows, up to ``most`` edges.

        Returns:
            The place where the last field that was looked at ends.
        """
        edges, base = self._edges, len(self._data)
        at, end = 0, len(data) - 1
        while at < end and len(edges) <= most:
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

    def _cut(self) -> None:
        edges = np.frombuffer(self._edges, np.int64) if self._edges else np.zeros(0, np.int64)
        self._arrays.append(extract_strings(np.frombuffer(self._data, np.uint8), edges))
        self._data, self._edges = bytearray(), array("q")
