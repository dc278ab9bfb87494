"""Arrow files and streams: what their messages announce, read before memory is set aside for it.

Of a stream pyarrow reads every message as a whole. So columns of streams that are not compressed, as nsys writes them,
are taken out of the messages here.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyarrow import ipc

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.flatbuffers import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.files import InputFile
    from tracekit.readers.common.budget import Budget

STREAM, FILE = b"\xff\xff\xff\xff", b"ARROW1"
STREAM_END = STREAM + bytes(4)
_FILE_HEAD_BYTES = 8
_PREFIX = struct.Struct("<4sI")
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_NODE, _BUFFER, _BLOCK = "<qq", "<qq", "<qi4xq"
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = range(4)
_DATA = 1
_OF_FOOTER_DICTIONARIES, _OF_FOOTER_BATCHES = 2, 3


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
            ValueError: It is cut short.
            pyarrow.ArrowInvalid: The schema breaks the format.
        """
        self._is_stream = file.read(0, min(len(STREAM), file.size)) == STREAM
        blocks = list(_of_stream(file) if self._is_stream else _of_file(file))
        self._batches = [b for b in blocks if b.message.number(_HEADER_TYPE, "<B") == _BATCH]
        self._dictionaries = [b for b in blocks if b.message.number(_HEADER_TYPE, "<B") == _DICTIONARY]
        self.rows = sum(_table(block, _HEADER).number(_LENGTH, "<q") for block in self._batches)
        with self._opened(file, None) as reader:
            self.schema: pa.Schema = reader.schema
        self._columns = _columns(self.schema) if self._is_stream and not self._is_compressed() else None

    def read(self, file: InputFile, columns: Sequence[str], budget: Budget) -> pa.Table:
        """Read some columns, and nothing of the others.

        Raises:
            Damage: They take more memory than they may.
            ValueError: They break the format.
            TracekitError: The file changed since it was opened.
        """
        self.check_sizes(file, budget)
        schema = pa.schema([self.schema.field(c) for c in columns], self.schema.metadata)
        return pa.Table.from_batches(self.record_batches(file, columns), schema)

    def record_batches(self, file: InputFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read the batches of some columns, and nothing of the others where the file allows it; columns in this order.

        Raises:
            ValueError: They break the format.
            TracekitError: The file changed since it was opened.
        """
        if self._columns is not None:
            yield from (self._decoded(file, block, columns) for block in self._batches)
            return
        with self._opened(file, [self.schema.names.index(c) for c in columns]) as reader:
            batches = reader if self._is_stream else map(reader.get_batch, range(reader.num_record_batches))
            for batch in batches:
                file.check()
                yield batch.select(list(columns))

    @contextlib.contextmanager
    def _opened(
        self, file: InputFile, places: Sequence[int] | None
    ) -> Iterator[ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader]:
        options = ipc.IpcReadOptions(included_fields=places)
        with pa.OSFile(file.native_path) as native:
            yield (ipc.open_stream if self._is_stream else ipc.open_file)(native, options=options)
        file.check()

    def _decoded(self, file: InputFile, block: Block, columns: Sequence[str]) -> pa.RecordBatch:
        """Make columns of a batch whose values are not compressed; they are not checked."""
        batch, start = _table(block, _HEADER), block.at + block.head
        rows, buffers = batch.number(_LENGTH, "<q"), list(batch.structs(_BUFFERS, _BUFFER))
        nodes = list(batch.structs(_NODES, _NODE))
        arrays = []
        for name in columns:
            place = (self._columns or {})[name]
            length, nulls = nodes[place.node]
            if length != rows or rows < 0:
                raise ValueError("its columns are not of one length")
            valid, *values = (file.read(start + at, size) for at, size in buffers[place.first : place.stop])
            parts = [pa.py_buffer(valid) if valid else None, *map(pa.py_buffer, values)]
            arrays.append(pa.Array.from_buffers(place.kind, rows, parts, nulls))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.schema.field(c) for c in columns]))

    def _is_compressed(self) -> bool:
        return any(_table(block, _HEADER).table(_COMPRESSION) is not None for block in self._batches)

    def check_sizes(self, file: InputFile, budget: Budget) -> None:
        """Check where values are said to lie, and count what compressed ones become when they are unpacked.

        Raises:
            Damage: They lie outside of their message, or take more memory than they may.
        """
        for block in (*self._batches, *self._dictionaries):
            batch = _values(block)
            if batch is not None:
                _check_buffers(file, block, batch, budget)


class Column(NamedTuple):
    """Where the parts of a column lie among those of a batch: its type, its node, and its buffers."""

    kind: pa.DataType
    node: int
    first: int
    stop: int


def _columns(schema: pa.Schema) -> dict[str, Column] | None:
    """Find the parts of columns; None if some are not simply one after the other."""
    columns: dict[str, Column] = {}
    first = 0
    for node, field in enumerate(schema):
        if pa.types.is_primitive(field.type):
            count = 2
        elif field.type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
            count = 3
        else:
            return None
        columns[field.name] = Column(field.type, node, first, first + count)
        first += count
    return columns


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
    if file.size < _FILE_HEAD_BYTES + tail or not file.read(file.size - len(FILE), len(FILE)) == FILE:
        raise ValueError("cut short: it has no end mark")
    size = int.from_bytes(file.read(file.size - tail, 4), "little")
    if size > file.size - tail - _FILE_HEAD_BYTES:
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


def _values(block: Block) -> Table | None:
    """Return the table that tells the values of a batch or of a dictionary; None if it has none."""
    header = _table(block, _HEADER)
    return header if block.message.number(_HEADER_TYPE, "<B") == _BATCH else header.table(_DATA)


def _check_buffers(file: InputFile, block: Block, batch: Table, budget: Budget) -> None:
    """Check the buffers of a batch; compressed ones stand behind the number of bytes that they become."""
    compressed = batch.table(_COMPRESSION) is not None
    for offset, length in batch.structs(_BUFFERS, _BUFFER):
        if not 0 <= offset <= offset + length <= block.body:
            raise Damage(f"a column is said to be at bytes {offset} to {offset + length} of {block.body}")
        if compressed and length:
            size = int.from_bytes(_read(file, block.at + block.head + offset, 8), "little", signed=True)
            budget.take(max(0, size), 1, "bytes of values")
