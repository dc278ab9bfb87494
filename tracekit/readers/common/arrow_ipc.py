"""Read Arrow IPC files and streams, checking the sizes in their messages before memory is allocated.

pyarrow always reads whole messages of a stream. Single columns of uncompressed streams, which nsys writes, are
therefore extracted from the messages here.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyarrow import ipc

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.flatbuffers import FlatTable

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


class IpcMessage(NamedTuple):
    """The location of a message in an Arrow file: its offset, its metadata size, its body size, and its metadata."""

    at: int
    head: int
    body: int
    message: FlatTable


class IpcFile:
    """An Arrow IPC file or stream.

    Attributes:
        rows: Number of rows that the record batches declare.
        schema: Schema of the record batches.
    """

    def __init__(self, file: InputFile) -> None:
        """Read the metadata of all messages without reading any values.

        Raises:
            Damage: The metadata of a message is invalid.
            ValueError: The file is truncated.
            pyarrow.ArrowInvalid: The schema is invalid.
        """
        self._is_stream = file.read(0, min(len(STREAM), file.size)) == STREAM
        blocks = list(_stream_messages(file) if self._is_stream else _file_messages(file))
        self._batches = [b for b in blocks if b.message.number(_HEADER_TYPE, "<B") == _BATCH]
        self._dictionaries = [b for b in blocks if b.message.number(_HEADER_TYPE, "<B") == _DICTIONARY]
        self.rows = sum(_require_table(block, _HEADER).number(_LENGTH, "<q") for block in self._batches)
        with self._open_reader(file, None) as reader:
            self.schema: pa.Schema = reader.schema
        self._columns = _column_layouts(self.schema) if self._is_stream and not self._is_compressed() else None

    def read(self, file: InputFile, columns: Sequence[str], budget: Budget) -> pa.Table:
        """Read some columns of all record batches, without reading the other columns where the file layout allows that.

        Raises:
            Damage: The columns exceed the memory budget.
            ValueError: The columns are invalid.
            TracekitError: The file changed since it was opened.
        """
        self.check_sizes(file, budget)
        schema = pa.schema([self.schema.field(c) for c in columns], self.schema.metadata)
        return pa.Table.from_batches(self.record_batches(file, columns), schema)

    def record_batches(self, file: InputFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield record batches with some columns, without reading the other columns where the file layout allows that.

        Raises:
            ValueError: The columns are invalid.
            TracekitError: The file changed since it was opened.
        """
        if self._columns is not None:
            yield from (self._decode_batch(file, block, columns) for block in self._batches)
            return
        with self._open_reader(file, [self.schema.names.index(c) for c in columns]) as reader:
            batches = reader if self._is_stream else map(reader.get_batch, range(reader.num_record_batches))
            for batch in batches:
                file.check()
                yield batch.select(list(columns))

    @contextlib.contextmanager
    def _open_reader(
        self, file: InputFile, indices: Sequence[int] | None
    ) -> Iterator[ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader]:
        options = ipc.IpcReadOptions(included_fields=indices)
        with pa.OSFile(file.native_path) as native:
            yield (ipc.open_stream if self._is_stream else ipc.open_file)(native, options=options)
        file.check()

    def _decode_batch(self, file: InputFile, block: IpcMessage, columns: Sequence[str]) -> pa.RecordBatch:
        """Decode some columns of an uncompressed record batch, without validating the values."""
        batch, start = _require_table(block, _HEADER), block.at + block.head
        rows, buffers = batch.number(_LENGTH, "<q"), list(batch.structs(_BUFFERS, _BUFFER))
        nodes = list(batch.structs(_NODES, _NODE))
        arrays = []
        for name in columns:
            layout = (self._columns or {})[name]
            length, nulls = nodes[layout.node]
            if length != rows or rows < 0:
                raise ValueError("its columns have different lengths")
            valid, *values = (file.read(start + at, size) for at, size in buffers[layout.first : layout.stop])
            parts = [pa.py_buffer(valid) if valid else None, *map(pa.py_buffer, values)]
            arrays.append(pa.Array.from_buffers(layout.kind, rows, parts, nulls))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.schema.field(c) for c in columns]))

    def _is_compressed(self) -> bool:
        return any(_require_table(block, _HEADER).table(_COMPRESSION) is not None for block in self._batches)

    def check_sizes(self, file: InputFile, budget: Budget) -> None:
        """Check the offsets of all buffers, and count the uncompressed size of compressed buffers against a budget.

        Raises:
            Damage: A buffer lies outside its message, or the buffers exceed the memory budget.
        """
        for block in (*self._batches, *self._dictionaries):
            batch = _batch_table(block)
            if batch is not None:
                _check_buffers(file, block, batch, budget)


class ColumnLayout(NamedTuple):
    """The layout of a column in a record batch: its Arrow type, the index of its node, and the range of its buffers."""

    kind: pa.DataType
    node: int
    first: int
    stop: int


def _column_layouts(schema: pa.Schema) -> dict[str, ColumnLayout] | None:
    """Return the layout of each column, or None if any column is nested or dictionary-encoded."""
    columns: dict[str, ColumnLayout] = {}
    first = 0
    for node, field in enumerate(schema):
        if pa.types.is_primitive(field.type):
            count = 2
        elif field.type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
            count = 3
        else:
            return None
        columns[field.name] = ColumnLayout(field.type, node, first, first + count)
        first += count
    return columns


def _stream_messages(file: InputFile) -> Iterator[IpcMessage]:
    """Yield the messages of a stream, beginning with its schema."""
    if file.size < len(STREAM_END) or file.read(file.size - len(STREAM_END), len(STREAM_END)) != STREAM_END:
        raise ValueError("truncated: it has no end marker")
    at = 0
    while (block := _read_message(file, at)) is not None:
        yield block
        at += block.head + block.body
    at += _PREFIX.size
    if at != file.size:
        raise ValueError(f"its end marker is at offset {at} of {file.size}")


def _file_messages(file: InputFile) -> Iterator[IpcMessage]:
    """Yield the messages of the dictionaries and record batches that the footer of a file lists."""
    tail = len(FILE) + 4
    if file.size < _FILE_HEAD_BYTES + tail or not file.read(file.size - len(FILE), len(FILE)) == FILE:
        raise ValueError("truncated: it has no end marker")
    size = int.from_bytes(file.read(file.size - tail, 4), "little")
    if size > file.size - tail - _FILE_HEAD_BYTES:
        raise Damage(f"its footer declares {size} bytes, and the file has {file.size}")
    footer = FlatTable.root(file.read(file.size - tail - size, size))
    for field in (_OF_FOOTER_DICTIONARIES, _OF_FOOTER_BATCHES):
        for at, head, body in footer.structs(field, _BLOCK):
            block = _read_message(file, at) if 0 <= at <= file.size - _PREFIX.size else None
            if block is None or (block.head, block.body) != (head, body):
                raise Damage(f"its footer contradicts the message at offset {at}")
            yield block


def _read_message(file: InputFile, at: int) -> IpcMessage | None:
    """Read the metadata of the message at an offset. The result is None for the end marker of a stream."""
    mark, size = _PREFIX.unpack(_read_bytes(file, at, _PREFIX.size))
    if mark != STREAM:
        raise Damage(f"no message begins at offset {at}")
    if not size:
        return None
    message = FlatTable.root(_read_bytes(file, at + _PREFIX.size, size))
    body = message.number(_BODY_LENGTH, "<q")
    head = _PREFIX.size + size
    if not 0 <= body <= file.size - at - head:
        raise Damage(
            f"the message at offset {at} declares a body of {body} bytes, and {file.size - at - head} are left"
        )
    return IpcMessage(at, head, body, message)


def _read_bytes(file: InputFile, at: int, size: int) -> bytes:
    if at + size > file.size:
        raise Damage(f"{size} bytes are declared at offset {at}, and {file.size - at} are left")
    return file.read(at, size)


def _require_table(block: IpcMessage, field: int) -> FlatTable:
    table = block.message.table(field)
    if table is None:
        raise Damage(f"the message at offset {block.at} is empty")
    return table


def _batch_table(block: IpcMessage) -> FlatTable | None:
    """Return the metadata of a record batch, or of the batch within a dictionary.

    The result is None if it is absent.
    """
    header = _require_table(block, _HEADER)
    return header if block.message.number(_HEADER_TYPE, "<B") == _BATCH else header.table(_DATA)


def _check_buffers(file: InputFile, block: IpcMessage, batch: FlatTable, budget: Budget) -> None:
    """Check the buffer offsets of a record batch, and count the uncompressed size that a compressed buffer declares."""
    compressed = batch.table(_COMPRESSION) is not None
    for offset, length in batch.structs(_BUFFERS, _BUFFER):
        if not 0 <= offset <= offset + length <= block.body:
            raise Damage(f"a buffer is declared at offsets {offset} to {offset + length} of {block.body}")
        if compressed and length:
            size = int.from_bytes(_read_bytes(file, block.at + block.head + offset, 8), "little", signed=True)
            budget.take(max(0, size), 1, "bytes of values")
