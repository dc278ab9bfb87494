"""Arrow files and streams: what their messages announce, read before pyarrow sets memory aside for it.

A stream is shown to pyarrow as a file, whose batches can be read column by column.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from pyarrow import ipc

from tracekit.readers.common.arrow_input import ArrowInput
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.flatbuffers import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from tracekit.files import InputFile
    from tracekit.readers.common.budget import Budget

STREAM, FILE = b"\xff\xff\xff\xff", b"ARROW1"
STREAM_END = STREAM + bytes(4)
_HEAD = FILE + bytes(2)
_PREFIX = struct.Struct("<4sI")
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_BUFFER, _BLOCK = "<qq", "<qi4xq"
_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH = range(4)
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3
_ID, _DATA, _IS_DELTA = range(3)
_OF_FOOTER_DICTIONARIES, _OF_FOOTER_BATCHES = 2, 3
_NOT_COMPRESSED = -1


class Block(NamedTuple):
    """A message: where it begins in the file, size of its description, size of its body, and the description."""

    at: int
    head: int
    body: int
    message: Table


class IpcFile:
    """What an Arrow file or stream says it holds.

    Attributes:
        rows: Number of rows that its batches say they have.
        schema: Its schema.
    """

    def __init__(self, file: InputFile) -> None:
        """Read the descriptions of all messages, but no values.

        Raises:
            Damage: A description breaks the format.
            ValueError: A stream is cut short.
            pyarrow.ArrowInvalid: The schema breaks the format.
        """
        self._is_stream = file.read(0, min(len(STREAM), file.size)) == STREAM
        blocks = list(_of_stream(file) if self._is_stream else _of_file(file))
        self._batches = [b for b in blocks if b.message.number(_HEADER_TYPE, "<B") == _BATCH]
        self._dictionaries = [b for b in blocks if b.message.number(_HEADER_TYPE, "<B") == _DICTIONARY]
        self.rows = sum(_table(block, _HEADER).number(_LENGTH, "<q") for block in self._batches)
        self._footer = _footer(file, blocks[0], self._dictionaries, self._batches) if self._is_stream else b""
        self.schema: pa.Schema = self.open(file).schema

    def open(
        self, file: InputFile, columns: Sequence[str] | None = None
    ) -> ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader:
        """Open the same file again for reading some columns, all of them if None.

        Raises:
            pyarrow.ArrowInvalid: It breaks the format.
        """
        places = None if columns is None else [self.schema.names.index(c) for c in columns]
        options = ipc.IpcReadOptions(included_fields=places)
        if not self._is_stream:
            return ipc.open_file(ArrowInput(file), options=options)
        if self._replaces_dictionaries():
            return ipc.open_stream(ArrowInput(file), options=options)
        return ipc.open_file(ArrowInput(file, before=_HEAD, after=self._footer), options=options)

    def read(self, file: InputFile, columns: Sequence[str], budget: Budget) -> pa.Table:
        """Read some columns, and nothing of the others.

        Raises:
            Damage: They take more memory than they may.
            pyarrow.ArrowInvalid: They break the format.
        """
        self.check_sizes(file, budget)
        return self.open(file, columns).read_all()

    def record_batches(self, file: InputFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read the batches of some columns, and nothing of the others; the columns in this order.

        Raises:
            pyarrow.ArrowInvalid: They break the format.
        """
        reader = self.open(file, columns)
        if isinstance(reader, ipc.RecordBatchFileReader):
            yield from (reader.get_batch(i).select(columns) for i in range(reader.num_record_batches))
        else:
            yield from (batch.select(columns) for batch in reader)

    def check_sizes(self, file: InputFile, budget: Budget) -> None:
        """Check what compressed values become when they are unpacked.

        Raises:
            Damage: More than a file of that size may take.
        """
        for block in self._batches:
            _check_buffers(file, block, _table(block, _HEADER), budget)
        for block in self._dictionaries:
            data = _table(block, _HEADER).table(_DATA)
            if data is not None:
                _check_buffers(file, block, data, budget)

    def _replaces_dictionaries(self) -> bool:
        """Whether a dictionary comes again in another form, which no file can say."""
        ids = [_table(b, _HEADER).number(_ID, "<q") for b in self._dictionaries]
        return len(set(ids)) < len(ids)


def _of_stream(file: InputFile) -> Iterator[Block]:
    """Yield the messages of a stream; the first is its schema."""
    if file.size < len(STREAM_END) or file.read(file.size - len(STREAM_END), len(STREAM_END)) != STREAM_END:
        raise ValueError("cut short: it has no end mark")
    at = 0
    while (block := _block(file, at)) is not None:
        yield block
        at += block.head + block.body
    at += _PREFIX.size
    if at != file.size:
        raise ValueError(f"ends at {at} of {file.size} bytes")


def _of_file(file: InputFile) -> Iterator[Block]:
    """Yield the dictionaries and batches of a file, which its footer lists."""
    tail = len(FILE) + 4
    if file.size < len(_HEAD) + tail or not file.read(file.size - len(FILE), len(FILE)) == FILE:
        raise ValueError("cut short: it has no end mark")
    size = int.from_bytes(file.read(file.size - tail, 4), "little")
    if size > file.size - tail - len(_HEAD):
        raise Damage(f"its footer is said to have {size} bytes, of {file.size} in all")
    footer = Table.root(file.read(file.size - tail - size, size))
    for field in (_OF_FOOTER_DICTIONARIES, _OF_FOOTER_BATCHES):
        for at, head, body in footer.structs(field, _BLOCK):
            block = _block(file, at) if 0 <= at <= file.size - _PREFIX.size else None
            if block is None or (block.head, block.body) != (head, body):
                raise Damage(f"its footer is wrong about the message at byte {at}")
            yield block


def _block(file: InputFile, at: int) -> Block | None:
    """Read the description of a message; None for the mark of the end."""
    mark, size = _PREFIX.unpack(_read(file, at, _PREFIX.size))
    if mark != STREAM:
        raise Damage(f"no message begins at byte {at}")
    if not size:
        return None
    message = Table.root(_read(file, at + _PREFIX.size, size))
    body = message.number(_BODY_LENGTH, "<q")
    head = _PREFIX.size + size
    if not 0 <= body <= file.size - at - head:
        raise Damage(f"a message of {body} bytes is announced at byte {at}, {file.size - at - head} are left")
    return Block(at, head, body, message)


def _read(file: InputFile, at: int, size: int) -> bytes:
    if at + size > file.size:
        raise Damage(f"{size} bytes are announced at byte {at}, {file.size - at} are left")
    return file.read(at, size)


def _table(block: Block, field: int) -> Table:
    found = block.message.table(field)
    if found is None:
        raise Damage(f"the message at byte {block.at} is empty")
    return found


def _check_buffers(file: InputFile, block: Block, batch: Table, budget: Budget) -> None:
    """Count the bytes of a batch as they are in memory; compressed ones stand behind their size."""
    compressed = batch.table(_COMPRESSION) is not None
    start, total = block.at + block.head, 0
    for offset, length in batch.structs(_BUFFERS, _BUFFER):
        if not 0 <= offset <= offset + length <= block.body:
            raise Damage(f"a column is said to be at bytes {offset} to {offset + length} of {block.body}")
        size = length
        if compressed and length:
            size = int.from_bytes(_read(file, start + offset, 8), "little", signed=True)
        total += length if size == _NOT_COMPRESSED else max(0, size)
    budget.take(total, 1, "bytes of values")


def _footer(file: InputFile, schema: Block, dictionaries: Sequence[Block], batches: Sequence[Block]) -> bytes:
    """Write what stands at the end of an Arrow file that holds the messages of a stream.

    It is a table with the version, the schema, and two vectors of blocks; the schema is the message of the stream.
    """
    version = schema.message.number(_VERSION, "<h")
    data = file.read(schema.at + _PREFIX.size, schema.head - _PREFIX.size)
    vectors = [_vector(dictionaries), _vector(batches)]
    first, second = 36, 36 + len(vectors[0]) + 4
    embedded = second + len(vectors[1])
    embedded += -embedded % 8
    to_schema = embedded + _table(schema, _HEADER).at
    head = struct.pack("<I6H", 16, 12, 20, 16, 4, 8, 12)
    table = struct.pack("<iIIIhxx", 12, to_schema - 20, first - 24, second - 28, version)
    parts = head + table + vectors[0] + bytes(4) + vectors[1]
    footer = parts + bytes(embedded - len(parts)) + data
    return footer + struct.pack("<I", len(footer)) + FILE


def _vector(blocks: Sequence[Block]) -> bytes:
    places = (struct.pack(_BLOCK, block.at + len(_HEAD), block.head, block.body) for block in blocks)
    return struct.pack("<I", len(blocks)) + b"".join(places)
