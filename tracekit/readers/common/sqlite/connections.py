"""Connections of SQLite to a file that nobody vouches for: read-only, limited in steps and sizes, used again."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tracekit.errors import first_line
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.sqlite_files import read_only_uri

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

STEPS = 50_000_000
STEPS_PER_BYTE = 8
"""Steps of SQLite's machine that a query may take: a fixed number, and more for a larger file."""

MAX_COLUMNS = 500
"""The widest table of a real file has 41 columns."""

_STEPS_AT_A_TIME = 100_000
_SETTINGS = ("trusted_schema = OFF", "query_only = ON")
_SPARE_BYTES = 1 << 20
_MOST_BYTES = 1_000_000_000
_RETURNED = (pa.int64(), pa.float64(), pa.string(), pa.binary())


class Connections:
    """Connections to one file, opened when they are needed; several threads may share them."""

    def __init__(self, path: Path, size: int) -> None:
        """Take note of a file.

        Args:
            path: The file.
            size: Its size in bytes, which limits what a query may cost.
        """
        self._uri = read_only_uri(path)
        self._size = size
        self._steps_left = 0
        self._lock = threading.Lock()
        self._small: sqlite3.Connection | None = None
        self._closings = 0
        self.idle: list[Any] = []

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a small query; text comes as ``str``, with bytes that are not UTF-8 replaced.

        Raises:
            Damage: It takes more steps than a file of this size can need.
            sqlite3.Error: SQLite fails.
        """
        with self._lock:
            if self._small is None:
                self._small = self._opened()
            self._steps_left = STEPS + STEPS_PER_BYTE * self._size
            try:
                return self._small.execute(sql, parameters).fetchall()
            except sqlite3.OperationalError as e:
                if self._steps_left > 0:
                    raise
                raise Damage("takes longer to read than a file of its size can need") from e

    def fetch(self, sql: str, parameters: Sequence[int], rows: int) -> Iterator[pa.RecordBatch]:
        """Run a query into Arrow arrays.

        Args:
            sql: The query; what it reads has to be checked before.
            parameters: Its parameters.
            rows: Number of rows that it is to give; memory for that many is set aside.

        Yields:
            Batches whose texts are bytes, which need not be UTF-8: one batch if it gives that many rows.

        Raises:
            Damage: SQLite fails, or its driver returns what it should not.
        """
        from adbc_driver_manager import Error

        try:
            with self._lent() as connection, connection.cursor() as cursor:
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
                cursor.execute(sql, tuple(parameters) or None)
                for batch in cursor.fetch_record_batch():
                    yield checked(batch)
        except (Error, pa.ArrowException, OSError) as e:
            raise Damage(first_line(e)) from e

    def close(self) -> None:
        """Close all connections; another query opens a new one."""
        with self._lock:
            small, self._small = self._small, None
            if small is not None:
                small.close()
            self._closings += 1
        while self.idle:
            self.idle.pop().close()

    def _opened(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._uri, uri=True, check_same_thread=False)
        connection.text_factory = lambda b: b.decode("utf-8", "replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, MAX_COLUMNS)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(self._size + _SPARE_BYTES, _MOST_BYTES))
        connection.set_progress_handler(self._count_steps, _STEPS_AT_A_TIME)
        self._steps_left = STEPS
        for setting in _SETTINGS:
            connection.execute(f"PRAGMA {setting}")
        return connection

    def _count_steps(self) -> int:
        """Return 1 once a query has taken all its steps, which ends it."""
        self._steps_left -= _STEPS_AT_A_TIME
        return int(self._steps_left <= 0)

    @contextlib.contextmanager
    def _lent(self) -> Iterator[Any]:
        """Lend a connection that no other thread uses."""
        closings = self._closings
        try:
            connection = self.idle.pop()
        except IndexError:
            connection = self._connected()
        try:
            yield connection
        finally:
            if closings == self._closings:
                self.idle.append(connection)
            else:
                connection.close()

    def _connected(self) -> Any:
        from adbc_driver_sqlite import dbapi

        connection = dbapi.connect(self._uri, autocommit=True)
        with connection.cursor() as cursor:
            for setting in _SETTINGS:
                cursor.execute(f"PRAGMA {setting}")
        return connection


def checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Check a batch that a driver returned: n rows in, n rows out, texts as bytes.

    Raises:
        Damage: Its arrays contradict themselves, or are of a type that SQLite does not have.
    """
    foreign = [a.type for a in batch.columns if a.type not in _RETURNED]
    if foreign:
        raise Damage(f"SQLite returned a column of {foreign[0]}")
    arrays = [_as_bytes(a) for a in batch.columns]
    for array in arrays:
        array.validate(full=True)
    return pa.RecordBatch.from_arrays(arrays, batch.schema.names)


def _as_bytes(array: pa.Array) -> pa.Array:
    """Take texts as bytes, of which no encoding is expected."""
    if array.type != pa.string():
        return array
    return pa.Array.from_buffers(pa.binary(), len(array), array.buffers(), array.null_count, array.offset)
