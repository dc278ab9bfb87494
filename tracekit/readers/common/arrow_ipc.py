"""Read Arrow IPC files and streams, and check the sizes that their messages declare before memory is allocated.

pyarrow always reads whole messages of a stream, with all columns. Therefore, this module itself decodes uncompressed
streams, such as those that nsys writes, and reads only the requested columns.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyarrow import ipc

from tracekit.readers.common.damage import Damage, find_end, open_native, warn_about_trailing_bytes
from tracekit.readers.common.flatbuffers import FlatTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.readers.common.budget import Budget
    from tracekit.system.files import InputFile

STREAM, FILE = b"\xff\xff\xff\xff", b"ARROW1"
STREAM_END = STREAM + bytes(4)
_FILE_HEAD_BYTES = 8
_PREFIX = struct.Struct("<4sI")
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_NODE, _BUFFER, _BLOCK = "<qq", "<qq", "<qi4xq"
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = range(4)
_DATA = 1
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3


class IpcMessage(NamedTuple):
    """A message in an Arrow IPC file or stream, such as its schema or a record batch.

    Attributes:
        offset: Offset of the message in the file.
        metadata_size: Size in bytes of the length prefix and the metadata. The body follows them.
        body_size: Size of the body in bytes.
        metadata: The metadata, a FlatBuffers table.
    """

    offset: int
    metadata_size: int
    body_size: int
    metadata: FlatTable


class IpcFile:
    """An Arrow IPC file or stream whose columns are read on request.

    Attributes:
        rows: Total number of rows that the record batches declare.
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
        end = find_end(file, STREAM_END if self._is_stream else FILE)
        if end is None:
            raise ValueError("the file is truncated: its end marker is missing")
        self._end = end
        messages = list((_read_stream_messages if self._is_stream else _read_file_messages)(file, end))
        self._batches = [m for m in messages if m.metadata.read_number(_HEADER_TYPE, "<B") == _BATCH]
        self._dictionaries = [m for m in messages if m.metadata.read_number(_HEADER_TYPE, "<B") == _DICTIONARY]
        self.rows = sum(_read_metadata_table(message, _HEADER).read_number(_LENGTH, "<q") for message in self._batches)
        with self._open_reader(file, None) as reader:
            self.schema: pa.Schema = reader.schema
        warn_about_trailing_bytes(file.path, file.size - end)
        self._columns = _compute_column_layouts(self.schema) if self._is_stream and not self._is_compressed() else None

    def read(self, file: InputFile, columns: Sequence[str], budget: Budget) -> pa.Table:
        """Read the requested columns of all record batches into a table.

        If the file is a compressed stream, or a stream with nested or dictionary-encoded columns, pyarrow reads all
        columns into memory before the requested ones are selected.

        Raises:
            Damage: A buffer lies outside its message, or the columns exceed the memory budget.
            ValueError: The data of a column is invalid.
            TracekitError: The file changed since it was opened.
        """
        self.reserve_buffers(file, budget)
        schema = pa.schema([self.schema.field(c) for c in columns], self.schema.metadata)
        return pa.Table.from_batches(self.read_record_batches(file, columns), schema)

    def read_record_batches(self, file: InputFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all record batches in file order, each with only the requested columns.

        If the file is a compressed stream, or a stream with nested or dictionary-encoded columns, pyarrow reads all
        columns into memory before the requested ones are selected.

        Raises:
            ValueError: The data of a column is invalid.
            TracekitError: The file changed since it was opened.
        """
        if self._columns is not None:
            yield from (self._decode_batch(file, message, columns) for message in self._batches)
            return
        with self._open_reader(file, [self.schema.names.index(c) for c in columns]) as reader:
            batches = reader if self._is_stream else map(reader.get_batch, range(reader.num_record_batches))
            for batch in batches:
                file.check_unchanged()
                yield batch.select(list(columns))

    @contextlib.contextmanager
    def _open_reader(
        self, file: InputFile, column_indices: Sequence[int] | None
    ) -> Iterator[ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader]:
        options = ipc.IpcReadOptions(included_fields=column_indices)
        with open_native(file, self._end) as native:
            yield (ipc.open_stream if self._is_stream else ipc.open_file)(native, options=options)
        file.check_unchanged()

    def _decode_batch(self, file: InputFile, message: IpcMessage, columns: Sequence[str]) -> pa.RecordBatch:
        """Return the requested columns of an uncompressed record batch, without validating their values."""
        batch, start = _read_metadata_table(message, _HEADER), message.offset + message.metadata_size
        rows, buffers = batch.read_number(_LENGTH, "<q"), list(batch.iterate_structs(_BUFFERS, _BUFFER))
        nodes = list(batch.iterate_structs(_NODES, _NODE))
        arrays = []
        for name in columns:
            layout = (self._columns or {})[name]
            length, nulls = nodes[layout.node]
            if length != rows or rows < 0:
                raise ValueError(f"column {name!r} declares {length} values in a record batch of {rows} rows")
            valid, *values = (file.read(start + at, size) for at, size in buffers[layout.first : layout.stop])
            parts = [pa.py_buffer(valid) if valid else None, *map(pa.py_buffer, values)]
            arrays.append(pa.Array.from_buffers(layout.kind, rows, parts, nulls))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.schema.field(c) for c in columns]))

    def _is_compressed(self) -> bool:
        return any(
            _read_metadata_table(message, _HEADER).read_nested_table(_COMPRESSION) is not None
            for message in self._batches
        )

    def reserve_buffers(self, file: InputFile, budget: Budget) -> None:
        """Check that all buffers lie within their messages, and reserve memory for the decompressed data.

        Raises:
            Damage: A buffer lies outside its message, or the buffers exceed the memory budget.
        """
        for message in (*self._batches, *self._dictionaries):
            batch = _read_batch_metadata(message)
            if batch is not None:
                _reserve_batch_buffers(file, message, batch, budget)


class ColumnLayout(NamedTuple):
    """The location of a column in the metadata of a record batch.

    Attributes:
        kind: Arrow type of the column.
        node: Index of the column's field node, which holds the numbers of rows and nulls.
        first: Index of the column's first buffer among the buffers of the record batch.
        stop: Index after the column's last buffer.
    """

    kind: pa.DataType
    node: int
    first: int
    stop: int


def _compute_column_layouts(schema: pa.Schema) -> dict[str, ColumnLayout] | None:
    """Return the layout of each column by name, or None if a column is not of a primitive, string or binary type."""
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


def _read_stream_messages(file: InputFile, end: int) -> Iterator[IpcMessage]:
    """Yield the messages of an Arrow stream that ends at the given offset. The first message holds the schema."""
    at = 0
    while (message := _read_message(file, at, end)) is not None:
        yield message
        at += message.metadata_size + message.body_size
    at += _PREFIX.size
    if at != end:
        raise ValueError(f"{end - at} bytes follow the end marker of the stream, which must be at the end of the file")


def _read_file_messages(file: InputFile, end: int) -> Iterator[IpcMessage]:
    """Yield the messages that the footer of an Arrow file lists: first the dictionaries, then the record batches.

    The footer ends at the given offset.
    """
    tail = len(FILE) + 4
    if end < _FILE_HEAD_BYTES + tail:
        raise ValueError("the file is truncated: its end marker is missing")
    size = int.from_bytes(file.read(end - tail, 4), "little")
    if size > end - tail - _FILE_HEAD_BYTES:
        raise Damage(f"the file declares a footer of {size} bytes, which does not fit into its {end} bytes")
    footer = FlatTable.read_root_table(file.read(end - tail - size, size))
    for field in (_FOOTER_DICTIONARIES, _FOOTER_BATCHES):
        for at, head, body in footer.iterate_structs(field, _BLOCK):
            message = _read_message(file, at, end) if 0 <= at <= end - _PREFIX.size else None
            if message is None or (message.metadata_size, message.body_size) != (head, body):
                raise Damage(
                    f"the footer declares a message at offset {at}, but no message of the declared size begins there"
                )
            yield message


def _read_message(file: InputFile, offset: int, end: int) -> IpcMessage | None:
    """Return the message at an offset, without reading its body, or None if a stream has its end marker there."""
    prefix, size = _PREFIX.unpack(_read_bytes(file, offset, _PREFIX.size))
    if prefix != STREAM:
        raise Damage(f"no Arrow message begins at offset {offset}")
    if not size:
        return None
    metadata = FlatTable.read_root_table(_read_bytes(file, offset + _PREFIX.size, size))
    body = metadata.read_number(_BODY_LENGTH, "<q")
    head = _PREFIX.size + size
    if not 0 <= body <= end - offset - head:
        raise Damage(
            f"the message at offset {offset} declares a body of {body} bytes, "
            f"but only {end - offset - head} bytes follow"
        )
    return IpcMessage(offset, head, body, metadata)


def _read_bytes(file: InputFile, offset: int, size: int) -> bytes:
    if offset + size > file.size:
        raise Damage(
            f"the file must have {size} bytes at offset {offset}, but only {max(file.size - offset, 0)} bytes follow"
        )
    return file.read(offset, size)


def _read_metadata_table(message: IpcMessage, field: int) -> FlatTable:
    """Return the FlatBuffers table in field number ``field`` of the metadata of a message."""
    table = message.metadata.read_nested_table(field)
    if table is None:
        raise Damage(f"the message at offset {message.offset} has no header")
    return table


def _read_batch_metadata(message: IpcMessage) -> FlatTable | None:
    """Return the metadata of the record batch in a message, or None if a dictionary message lacks its record batch.

    A dictionary message contains a record batch that holds the values of the dictionary.
    """
    header = _read_metadata_table(message, _HEADER)
    return header if message.metadata.read_number(_HEADER_TYPE, "<B") == _BATCH else header.read_nested_table(_DATA)


def _reserve_batch_buffers(file: InputFile, message: IpcMessage, batch: FlatTable, budget: Budget) -> None:
    """Check that the buffers of a record batch lie within its message.

    For each compressed buffer, reserve memory for the decompressed size that the buffer declares.
    """
    compressed = batch.read_nested_table(_COMPRESSION) is not None
    for offset, length in batch.iterate_structs(_BUFFERS, _BUFFER):
        if not 0 <= offset <= offset + length <= message.body_size:
            raise Damage(
                f"a buffer at offsets {offset} to {offset + length} lies outside its message body "
                f"of {message.body_size} bytes"
            )
        if compressed and length:
            size = int.from_bytes(
                _read_bytes(file, message.offset + message.metadata_size + offset, 8), "little", signed=True
            )
            budget.reserve(max(0, size), 1, "bytes of values")
