"""Read the TFRecord records of an event file in batches, and verify their checksums."""

from __future__ import annotations

import threading
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.errors import TracekitError
from tracekit.native.program import Program
from tracekit.native.sandbox import Bytes, Sandbox
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import Buffer
from tracekit.system.files import CHANGED_HINT, REMOVED_HINT, InputFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.readers.common.protobuf.decoding import Int64Array

NEED_MORE, FULL, BAD_SIZE, BAD_DATA = range(4)
"""Why a search for records ended.

The next record is incomplete, ``MAX_RECORDS`` were located, or the checksum of the size or of the data is wrong.
"""
MAX_RECORDS = 1 << 18
"""Maximum number of records that one call locates."""
HEADER_BYTES, FOOTER_BYTES = 12, 4
_CRC_TABLES = 1024
_STARTS = 16384
_SIZES = _STARTS + 4 * MAX_RECORDS
_BUFFER = 1 << 22
"""Offsets of the CRC-32C tables, of the starts and sizes of records (32 bits each), and of the section of the file."""
_SLACK = 64

PROGRAM = Program(
    "records",
    {"records": ("offset", "end", "capacity", "next", "count"), "fill_tables": ()},
    {
        "CRC_TABLES": _CRC_TABLES,
        "STARTS": _STARTS,
        "SIZES": _SIZES,
        "BUFFER": _BUFFER,
        "HEADER_BYTES": HEADER_BYTES,
        "FOOTER_BYTES": FOOTER_BYTES,
        "MORE": NEED_MORE,
        "FULL": FULL,
        "BAD_SIZE": BAD_SIZE,
        "BAD_DATA": BAD_DATA,
    },
)
WINDOW_BYTES = 16 << 20
MAX_RECORD_BYTES = 1 << 30


class RecordBounds(NamedTuple):
    """The locations of records, and why the search for more records ended.

    Attributes:
        result: ``NEED_MORE`` if the next record is incomplete, ``FULL`` if the maximum number of records was located,
            ``BAD_SIZE`` if the checksum of the size of a record is wrong, or ``BAD_DATA`` if the checksum of its data
            is wrong.
        offset: Offset at which the search ended, which is the end of the last located record.
        starts: Offset at which the data of each record starts.
        stops: Offset at which the data of each record ends.
    """

    result: int
    offset: int
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]


class RecordSandbox(Sandbox):
    """A sandbox that contains a section of a file and locates the records in this section.

    Attributes:
        data: The memory for the section of the file.
    """

    def __init__(self, size: int) -> None:
        """Allocate memory for a section of the given size in bytes."""
        super().__init__(
            PROGRAM, _BUFFER + size + _SLACK, lambda: Damage("a record extends beyond the end of the file")
        )
        self.data: Bytes = self.bytes(_BUFFER, size)
        self.call("fill_tables")

    def find_records(self, offset: int, end: int) -> RecordBounds:
        """Locate up to ``MAX_RECORDS`` complete records between two offsets in the section of the file."""
        result = self.call("records", offset=_BUFFER + offset, end=_BUFFER + end, capacity=MAX_RECORDS)
        count = self.parameter("records", "count")
        starts, sizes = (self.array(array, count, np.uint32).astype(np.int64) for array in (_STARTS, _SIZES))
        return RecordBounds(result, self.parameter("records", "next") - _BUFFER, starts, starts + sizes)


class BufferedRecords(NamedTuple):
    """A batch of records in a buffer.

    Attributes:
        buffer: The buffer that contains the records until the next batch replaces them.
        starts: Offset in the buffer at which the data of each record starts.
        stops: Offset in the buffer at which the data of each record ends.
        offset: Offset in the file of the first byte of the buffer.
    """

    buffer: Buffer
    starts: Int64Array
    stops: Int64Array
    offset: int


class ReadBuffers:
    """Memory for two copies of a section of a file: records are located in one copy and decoded in the other.

    Attributes:
        size: Maximum size of the section in bytes.
        sandbox: The copy in which records are located.
        buffer: The copy in which records are decoded.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.sandbox = RecordSandbox(size)
        self.buffer = Buffer(size)


class BufferPool:
    """A pool of buffers for several threads. Each buffer is used by one thread at a time."""

    def __init__(self) -> None:
        self._free: list[ReadBuffers] = []
        self._lock = threading.Lock()

    @contextmanager
    def borrow_buffers(self) -> Iterator[ReadBuffers]:
        """Return a context manager that yields buffers. No other thread uses them until the context ends."""
        with self._lock:
            buffers = self._free.pop() if self._free else None
        buffers = buffers or ReadBuffers(WINDOW_BYTES)
        try:
            yield buffers
        finally:
            with self._lock:
                self._free.append(buffers)


class RecordReader:
    """A reader of the records of one event file.

    Attributes:
        size: Size of the file when it was opened.
        count: Number of records that were read.
        end: Offset of the end of the last record that was read.
        damage: Why the record at the offset ``end`` is invalid, or None if it is valid, truncated or missing.
    """

    def __init__(self, file: InputFile, buffers: ReadBuffers) -> None:
        self.size = file.size
        self.count = self.end = 0
        self.damage: str | None = None
        self._file, self._buffers = file, buffers
        self._read = self._filled = self._consumed = 0

    def iterate_record_batches(self) -> Iterator[BufferedRecords]:
        """Yield batches of complete records up to the end of the file or the first invalid record.

        Raises:
            TracekitError: The file cannot be read, or changed other than by appending.
        """
        while self._append_next_bytes():
            self._buffers.buffer.data[: self._filled] = self._buffers.sandbox.data[: self._filled]
            result = FULL
            while result == FULL:
                bounds = self._buffers.sandbox.find_records(self._consumed, self._filled)
                result, self._consumed = bounds.result, bounds.offset
                self.count += len(bounds.starts)
                self.end = self._buffer_offset + bounds.offset
                if len(bounds.starts):
                    yield BufferedRecords(self._buffers.buffer, bounds.starts, bounds.stops, self._buffer_offset)
            if result != NEED_MORE:
                self.damage = f"the checksum of the {'data' if result == BAD_DATA else 'size'} of a record is wrong"
                return
            if not self._ensure_space_for_record():
                return

    @property
    def remaining_bytes(self) -> int:
        """Number of bytes after the last complete record. The value is valid only after all records have been read."""
        return self.size - self.end

    @property
    def _buffer_offset(self) -> int:
        """Offset in the file of the first byte in the buffers."""
        return self._read - self._filled

    def _append_next_bytes(self) -> bool:
        """Append the next bytes of the file to the unprocessed bytes in the buffers.

        Return False at the end of the file.
        """
        data, remaining = self._buffers.sandbox.data, self._filled - self._consumed
        if self._consumed:
            data[:remaining] = data[self._consumed : self._filled].copy()
        self._consumed, self._filled = 0, remaining
        missing = min(self._buffers.size - remaining, self.size - self._read)
        self._file.read_into(self._read, memoryview(data.data)[remaining : remaining + missing])
        self._filled += missing
        self._read += missing
        return missing > 0

    def _ensure_space_for_record(self) -> bool:
        """Enlarge the buffers if the next record does not fit.

        Return False if the record is incomplete or too large.
        """
        remaining = self._filled - self._consumed
        if remaining < HEADER_BYTES:
            return True
        header = self._buffers.sandbox.data[self._consumed : self._consumed + 8]
        size = int(header.copy().view(np.uint64)[0])
        if size > MAX_RECORD_BYTES:
            self.damage = f"a record of {size} bytes exceeds tracekit's limit of {MAX_RECORD_BYTES}"
            return False
        needed = HEADER_BYTES + size + FOOTER_BYTES
        if needed > self.size - self.end:
            return False
        if needed > self._buffers.size:
            self._enlarge_buffers(needed)
        return True

    def _enlarge_buffers(self, size: int) -> None:
        larger = ReadBuffers(size)
        larger.sandbox.data[: self._filled] = self._buffers.sandbox.data[: self._filled]
        self._buffers = larger


def reread_section(path: Path, start: int, size: int, checksum: int) -> bytes:
    """Read a section of a file again, and return its bytes. The section must not have changed since it was first read.

    Args:
        path: The file, to which data may have been appended in the meantime.
        start: Offset of the section.
        size: Size of the section in bytes.
        checksum: CRC-32 of the section when it was first read.

    Raises:
        TracekitError: The section has changed or can no longer be read.
    """
    try:
        with InputFile(path, may_grow=True) as file:
            data = file.read(start, size) if start + size <= file.size else b""
    except FileNotFoundError as e:
        raise TracekitError("the file was removed while it was open", path=path, hint=REMOVED_HINT) from e
    if len(data) != size or zlib.crc32(data) != checksum:
        what = f"the file changed while it was open: the {size} bytes at offset {start} are different now"
        raise TracekitError(what, path=path, hint=CHANGED_HINT)
    return data
