"""Limit the memory for columns, and store larger columns in memory-mapped temporary files.

Temporary files have no name, so the system deletes them when the process ends, however it ends. Their mapped pages can
be dropped from memory at any time, because the system reads them again from the file.
"""

from __future__ import annotations

import contextlib
import contextvars
import mmap
import os
import threading
import time
import weakref
from typing import IO, TYPE_CHECKING

from tracekit.errors import TracekitError
from tracekit.system.platform import allocator, temporary_files
from tracekit.system.platform.allocator import LARGE_BLOCK, make_malloc_return_large_blocks
from tracekit.system.platform.memory_size import read_available_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import numpy.typing as npt
    import pyarrow as pa

SPILLED_SHARE = 16
"""Reciprocal of the share of the memory limit above which a table is stored in a temporary file."""
ALLOCATORS = {"_RJEM_MALLOC_CONF": "dirty_decay_ms:500", "ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Environment variables that polars and Arrow read when they are imported, by name.

They return freed memory sooner to the system: polars after 0.5 s instead of 10 s, and Arrow at once.
"""
_DROPPING_INTERVAL_S = 0.1
_ALIGNMENT = 64
"""Alignment in bytes of arrays in a temporary file."""
_limit: contextvars.ContextVar[int | None] = contextvars.ContextVar("limit", default=None)
_process_limits: list[int] = []
_lock = threading.Lock()
_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_dropping: list[threading.Thread] = []
"""The thread that drops the pages of mapped files, if any file is mapped."""


@contextlib.contextmanager
def limit_memory(size_bytes: int | None) -> Iterator[None]:
    """Limit the memory for columns to ``size_bytes`` in the context. None means half of the free memory."""
    token = _limit.set(size_bytes)
    try:
        yield
    finally:
        _limit.reset(token)


@contextlib.contextmanager
def limit_memory_of_process(size_bytes: int) -> Iterator[None]:
    """Limit the memory for columns to ``size_bytes`` in the ``with`` block, in all threads of this process.

    A limit that ``limit_memory`` set in the context of a thread takes precedence.
    """
    return_freed_memory()
    _process_limits.append(size_bytes)
    try:
        yield
    finally:
        _process_limits.remove(size_bytes)


def return_freed_memory() -> None:
    """Configure the allocators so that they return freed memory to the system immediately.

    polars and Arrow read their configuration when they are imported, so it also applies to new processes.
    """
    os.environ.update(ALLOCATORS | {"_RJEM_MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0"} | os.environ)
    make_malloc_return_large_blocks()


def get_memory_limit() -> int | None:
    """Return the limit for columns in bytes that applies in this context. None means half of the free memory."""
    limit = _limit.get()
    return _process_limits[-1] if limit is None and _process_limits else limit


def compute_memory_budget() -> int:
    """Return the number of bytes that columns may use: the limit of the current context, or half of the free memory."""
    chosen = get_memory_limit()
    return read_available_memory_bytes() // 2 if chosen is None else chosen


def release_free_memory() -> None:
    """Return to the system the freed memory that the allocators of Arrow and glibc still hold."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    allocator.return_free_blocks()


def release_pages() -> None:
    """Drop the pages of all mapped files from memory. If any file is mapped, also return freed memory to the system.

    Dropped pages are read again from their file when they are accessed.
    """
    if drop_mapped_pages():
        release_free_memory()


def drop_mapped_pages() -> bool:
    """Drop the pages of all mapped files from memory, and return whether any file is mapped."""
    with _lock:
        maps = list(_maps)
    for mapped in maps:
        temporary_files.drop_pages(mapped)
    return bool(maps)


def _track_mapped_pages(mapped: mmap.mmap) -> None:
    """Drop the pages of a mapped file from memory again and again, until the file is no longer mapped.

    The system keeps dropped pages as long as no other program needs the memory, so using them again is fast.
    """
    with _lock:
        _maps.add(mapped)
        if _dropping:
            return
        _dropping.append(threading.Thread(target=_drop_pages_repeatedly, name="tracekit-pages", daemon=True))
        _dropping[0].start()


def _drop_pages_repeatedly() -> None:
    while True:
        time.sleep(_DROPPING_INTERVAL_S)
        if not drop_mapped_pages():
            with _lock:
                if not _maps:
                    _dropping.clear()
                    return


def map_file_into_memory(file: IO[bytes]) -> pa.Buffer:
    """Map a completely written temporary file into memory, close the file, and return its content.

    The content stays mapped until the last reference to the buffer is deleted.
    """
    import pyarrow as pa

    with file:
        file.flush()
        mapped = mmap.mmap(file.fileno(), os.fstat(file.fileno()).st_size, access=mmap.ACCESS_READ)
    _track_mapped_pages(mapped)
    return pa.py_buffer(mapped)


def is_large(size_bytes: int) -> bool:
    """Return whether columns of ``size_bytes`` bytes are large enough to be moved from memory to a temporary file.

    If no limit is set, sizes below 1 MiB are never large. The free memory is then not read, because reading it takes
    longer than computing most columns of a small capture.
    """
    if size_bytes < LARGE_BLOCK and get_memory_limit() is None:
        return False
    return size_bytes > compute_memory_budget() // SPILLED_SHARE


def spill_to_temporary_file(table: pa.Table) -> pa.Table:
    """Write a table to a temporary file, and return an equal table whose data is mapped from this file."""
    stream = TemporaryStream(table.schema)
    for batch in table.to_batches():
        stream.write(batch)
    spilled = table.from_batches(stream.finish_and_map_batches(), table.schema)
    release_pages()
    return spilled


def compact_if_all_null(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column unchanged or, if all its values are null, an equal column that occupies no physical memory.

    Only columns of numbers and dictionary-encoded columns are replaced. The buffers of the new column are zeros that
    are never written, so the operating system allocates no memory for them.
    """
    import pyarrow as pa

    rows, kind = len(column), column.type
    values = kind.index_type if pa.types.is_dictionary(kind) else kind
    if column.null_count < rows or not rows or not (pa.types.is_integer(values) or pa.types.is_floating(values)):
        return column
    nulls = pa.Array.from_buffers(
        values, rows, [_allocate_zero_buffer(-(-rows // 8)), _allocate_zero_buffer(rows * values.bit_width // 8)]
    )
    if values is not kind:
        nulls = pa.DictionaryArray.from_arrays(nulls, pa.array([], kind.value_type), ordered=kind.ordered)
    return pa.chunked_array([nulls], kind)


def _allocate_zero_buffer(size: int) -> pa.Buffer:
    """Return a buffer of ``size`` zero bytes, for which memory is allocated only when the buffer is written."""
    import numpy as np
    import pyarrow as pa

    return pa.py_buffer(np.zeros(size, np.uint8))


def allocate_zeros(length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a new array of zeros, which is mapped from a temporary file if it is large."""
    import numpy as np

    size = length * np.dtype(dtype).itemsize
    if not size or not is_large(size):
        return np.zeros(length, dtype)
    with _convert_disk_errors(), temporary_files.open_unnamed_file() as file:
        temporary_files.reserve_space(file, size)
        mapped = mmap.mmap(file.fileno(), size)
    _track_mapped_pages(mapped)
    return np.frombuffer(mapped, dtype)


def spill_if_large(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array unchanged or, if it is large, an equal array that is mapped from a temporary file."""
    if not is_large(array.nbytes):
        return array
    spilled = allocate_zeros(len(array), array.dtype)
    spilled[:] = array
    return spilled


def spill_arrays(*arrays: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Write arrays to one temporary file, and return equal read-only arrays that are mapped from this file."""
    import numpy as np

    ends = np.cumsum([-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]).tolist()
    if not any(array.nbytes for array in arrays):
        return list(arrays)
    with _convert_disk_errors(), temporary_files.open_unnamed_file() as file:
        for array, end in zip(arrays, ends, strict=True):
            file.write(np.ascontiguousarray(array).data)
            file.seek(end)
        file.truncate(ends[-1])
        file.flush()
        mapped = mmap.mmap(file.fileno(), ends[-1], access=mmap.ACCESS_READ)
    _track_mapped_pages(mapped)
    starts = [0, *ends[:-1]]
    return [np.frombuffer(mapped, a.dtype, a.size, start) for a, start in zip(arrays, starts, strict=True)]


ROW_UNIT = 8
"""Number of rows whose validity bits fill a byte."""


class TemporaryColumns:
    """Columns of numbers in a temporary file, in which the values of each column are contiguous.

    Disk space is allocated only for the rows that are written, and not for the capacity.

    Attributes:
        schema: Names and types of the columns. All types are integers or floating-point numbers.
    """

    def __init__(self, schema: pa.Schema, capacity: int) -> None:
        """Create an empty file with room for ``capacity`` rows of each column."""
        self.schema = schema
        self._capacity = -(-capacity // _ALIGNMENT) * _ALIGNMENT
        self._rows = 0
        self._null_counts = [0] * len(schema)
        self._starts = [0]
        for kind in schema.types:
            for bits in (kind.bit_width, 1):
                self._starts.append(self._starts[-1] + self._capacity // 8 * bits)
        with _convert_disk_errors():
            self._file = temporary_files.open_unnamed_file(buffering=0)  # closed when it is mapped, or at the end
            weakref.finalize(self, _close_ignoring_errors, self._file)

    def is_full(self, rows: int) -> bool:
        """Return whether there is no room for another ``rows`` rows."""
        return self._rows + rows > self._capacity

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch of at least one row. All batches but the last must have a multiple of ``ROW_UNIT`` rows."""
        import numpy as np

        for number, array in enumerate(batch.columns):
            nulls, earlier_nulls = array.null_count, self._null_counts[number]
            self._null_counts[number] += nulls
            if self._null_counts[number] == self._rows + len(array):
                continue  # the bytes that are not written are zeros, so all values are null
            size = array.type.bit_width // 8
            values = array.buffers()[1].slice(array.offset * size, len(array) * size)
            self._write_at(self._starts[2 * number] + self._rows * size, values)
            if nulls or earlier_nulls:
                validity = self._starts[2 * number + 1]
                if not earlier_nulls:
                    self._write_at(validity, b"\xff" * (self._rows // 8))
                bits = np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
                self._write_at(validity + self._rows // 8, bits)
        self._rows += batch.num_rows

    def finish_and_map_columns(self) -> list[pa.Array]:
        """Finish writing, and return the columns, whose data is memory-mapped."""
        import pyarrow as pa

        with _convert_disk_errors():
            self._file.truncate(self._starts[-1])
            data = map_file_into_memory(self._file)
        columns = []
        for number, kind in enumerate(self.schema.types):
            values, validity, end = self._starts[2 * number : 2 * number + 3]
            bits = data.slice(validity, end - validity) if self._null_counts[number] else None
            buffers = [bits, data.slice(values, validity - values)]
            columns.append(pa.Array.from_buffers(kind, self._rows, buffers, self._null_counts[number]))
        return columns

    def _write_at(self, offset: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        with _convert_disk_errors():
            self._file.seek(offset)
            while len(view):
                view = view[self._file.write(view) :]


class TemporaryStream:
    """An Arrow stream in a temporary file.

    Attributes:
        schema: Schema of the batches.
    """

    def __init__(self, schema: pa.Schema) -> None:
        from pyarrow import ipc

        self.schema = schema
        with _convert_disk_errors():
            self._file = temporary_files.open_unnamed_file()  # closed when it is mapped, or at the end
            weakref.finalize(self, _close_ignoring_errors, self._file)
            self._writer = ipc.new_stream(self._file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch to the stream."""
        with _convert_disk_errors():
            self._writer.write_batch(batch)

    def finish_and_map_batches(self) -> list[pa.RecordBatch]:
        """Finish writing, and return all batches, whose data is memory-mapped."""
        from pyarrow import ipc

        with _convert_disk_errors():
            self._writer.close()
            return list(ipc.open_stream(map_file_into_memory(self._file)))


def _close_ignoring_errors(file: IO[bytes]) -> None:
    """Close a temporary file, ignoring errors, because its content is no longer needed."""
    with contextlib.suppress(OSError):
        file.close()


@contextlib.contextmanager
def _convert_disk_errors() -> Iterator[None]:
    """Return a context manager that converts errors of temporary files to ``TracekitError`` with a hint."""
    try:
        yield
    except OSError as e:
        message = f"temporary files cannot be written: {e.strerror or e}"
        hint = "set TMPDIR to a folder with more free space, or allow more memory with --memory"
        raise TracekitError(message, hint=hint) from e
