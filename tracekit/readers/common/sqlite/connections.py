"""Open read-only SQLite connections to an untrusted file, and limit the time and memory of queries."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tracekit.errors import get_first_line_of_message
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.sqlite_files import create_read_only_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

STEPS = 50_000_000
STEPS_PER_BYTE = 8
"""Maximum number of virtual machine instructions of a query: a fixed number, plus a number per byte of the file."""

MAX_COLUMNS = 500
"""Maximum number of columns of a table. The widest table of a real file has 41 columns."""

_STEPS_AT_A_TIME = 100_000
_SETTINGS = ("trusted_schema = OFF", "query_only = ON")
_SPARE_BYTES = 1 << 20
_MOST_BYTES = 1_000_000_000
_RETURNED = (pa.int64(), pa.float64(), pa.string(), pa.binary())


class ConnectionPool:
    """A thread-safe pool of connections to one file. Connections are opened on demand.

    Attributes:
        idle: Open ADBC connections that no thread uses.
    """

    def __init__(self, path: Path, size: int) -> None:
        """Create an empty pool.

        Args:
            path: Path of the file.
            size: Size of the file in bytes, which determines the limits of queries.
        """
        self._uri = create_read_only_uri(path)
        self._size = size
        self._limit = _InstructionLimit()
        self._lock = threading.Lock()
        self._query_connection: sqlite3.Connection | None = None
        self._close_query_connection: Callable[[], object] | None = None
        self._closings = 0
        self.idle: list[Any] = []

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a query with a small result. Return its rows as Python objects, with invalid UTF-8 replaced.

        Raises:
            Damage: The query executes more virtual machine instructions than are allowed for the size of the file.
            sqlite3.Error: SQLite reports an error.
        """
        with self._lock:
            if self._query_connection is None:
                self._query_connection = self._open_connection()
            limit = self._limit.left = STEPS + STEPS_PER_BYTE * self._size
            try:
                return self._query_connection.execute(sql, parameters).fetchall()
            except sqlite3.OperationalError as e:
                if self._limit.left > 0:
                    raise
                raise Damage(
                    f"a query executes more than {limit:,} SQLite instructions, "
                    f"the maximum that tracekit allows for a file of {self._size:,} bytes"
                ) from e

    def fetch(self, sql: str, parameters: Sequence[int], expected_rows: int) -> Iterator[pa.RecordBatch]:
        """Run a query and yield its rows as Arrow record batches.

        Args:
            sql: The query. The caller must have checked the pages that the query reads.
            parameters: Values of the parameters of the query.
            expected_rows: Expected number of rows. The driver reserves memory for this many rows per batch.

        Yields:
            Record batches, in which strings have the type binary. There is one batch if the query returns the expected
            number of rows.

        Raises:
            Damage: SQLite reports an error, or its driver returns invalid arrays.
        """
        from adbc_driver_manager import Error

        try:
            with self._borrow_connection() as connection, connection.cursor() as cursor:
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(expected_rows)})
                cursor.execute(sql, tuple(parameters) or None)
                for batch in cursor.fetch_record_batch():
                    yield validate_batch(batch)
        except (Error, pa.ArrowException, OSError) as e:
            raise Damage(get_first_line_of_message(e)) from e

    def close(self) -> None:
        """Close all connections. A later query opens a new connection."""
        with self._lock:
            self._query_connection = None
            if self._close_query_connection is not None:
                self._close_query_connection()
            self._closings += 1
        while self.idle:
            self.idle.pop().close()

    def _open_connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._uri, uri=True, check_same_thread=False)
        connection.text_factory = lambda b: b.decode("utf-8", "replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, MAX_COLUMNS)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(self._size + _SPARE_BYTES, _MOST_BYTES))
        connection.set_progress_handler(self._limit.deduct_executed_instructions, _STEPS_AT_A_TIME)
        self._limit.left = STEPS
        for setting in _SETTINGS:
            connection.execute(f"PRAGMA {setting}")
        # Python 3.13 warns of a connection that is deleted without being closed.
        finalizer = weakref.finalize(self, connection.close)
        finalizer.atexit = False
        self._close_query_connection = finalizer
        return connection

    @contextlib.contextmanager
    def _borrow_connection(self) -> Iterator[Any]:
        """Return a context manager that provides an idle or new ADBC connection for use in one thread."""
        closings = self._closings
        try:
            connection = self.idle.pop()
        except IndexError:
            connection = self._open_adbc_connection()
        try:
            yield connection
        finally:
            if closings == self._closings:
                self.idle.append(connection)
            else:
                connection.close()

    def _open_adbc_connection(self) -> Any:
        from adbc_driver_sqlite import dbapi

        connection = dbapi.connect(self._uri, autocommit=True)
        with connection.cursor() as cursor:
            for setting in _SETTINGS:
                cursor.execute(f"PRAGMA {setting}")
        return connection


class _InstructionLimit:
    """A counter that interrupts a query after a maximum number of instructions of SQLite's virtual machine.

    Attributes:
        left: Number of instructions that the query may still execute.
    """

    def __init__(self) -> None:
        self.left = 0

    def deduct_executed_instructions(self) -> int:
        """Subtract the instructions executed since the last call from ``left``. Return 1 if none are left, otherwise 0.

        SQLite calls this method each time that the query has executed ``_STEPS_AT_A_TIME`` instructions. It interrupts
        the query if the result is 1.
        """
        self.left -= _STEPS_AT_A_TIME
        return int(self.left <= 0)


def validate_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Validate the arrays of a batch from the SQLite driver. Return the batch with strings as binary arrays.

    Raises:
        Damage: A column has a type that the driver never returns.
        pyarrow.ArrowInvalid: An array is invalid.
    """
    unexpected = [field for field in batch.schema if field.type not in _RETURNED]
    if unexpected:
        raise Damage(
            f"SQLite returned column {unexpected[0].name!r} with the type {unexpected[0].type}, "
            f"but only these types are allowed: {', '.join(map(str, _RETURNED))}"
        )
    arrays = [_view_strings_as_binary(a) for a in batch.columns]
    for array in arrays:
        array.validate(full=True)
    return pa.RecordBatch.from_arrays(arrays, batch.schema.names)


def _view_strings_as_binary(array: pa.Array) -> pa.Array:
    """Return an array of strings as a binary array without copying it. Other arrays are returned unchanged."""
    if array.type != pa.string():
        return array
    return pa.Array.from_buffers(pa.binary(), len(array), array.buffers(), array.null_count, array.offset)
