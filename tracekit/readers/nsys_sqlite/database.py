"""Safe and fast reading of one SQLite file: header checks, catalogue, columns straight into Arrow.

The file is opened read-only and immutable, so that neither it nor its folder changes. Large tables are read in slices
of rowids by several connections at once; ADBC's SQLite driver fills Arrow arrays without Python objects.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tracekit.errors import CorruptTraceError, TracekitError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.registry import Source

MAGIC = b"SQLite format 3\x00"
SLICE_ROWS = 1 << 17
MAX_THREADS = 4
_HEADER = struct.Struct(">16sH6xII")
_EXPORT_AGAIN = "export it again: nsys export --type sqlite REPORT"


class Database:
    """One SQLite file: its tables, their columns, and slices of them as Arrow arrays."""

    def __init__(self, source: Source) -> None:
        self.path = source.path
        check_header(source)
        self.uri = f"{self.path.absolute().as_uri()}?mode=ro&immutable=1"
        self._local = threading.local()
        self._open: list[Any] = []
        self.columns = self._catalogue()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a small query; text comes as ``str``, with bytes that are not UTF-8 replaced."""
        try:
            with contextlib.closing(sqlite3.connect(self.uri, uri=True, check_same_thread=False)) as connection:
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.text_factory = lambda b: b.decode("utf-8", "replace")
                return connection.execute(sql, parameters).fetchall()
        except sqlite3.DatabaseError as e:
            raise CorruptTraceError(f"SQLite cannot read it: {e}", path=self.path, hint=_EXPORT_AGAIN) from e

    def count(self, table: str, where: str = "") -> int:
        """Number of rows of a table; 0 if there is no such table."""
        if table not in self.columns:
            return 0
        return int(self.query(f"SELECT count(*) FROM {quote(table)} {where}")[0][0])  # noqa: S608 - quoted

    def slices(self, table: str, select: Sequence[str], where: str = "") -> Iterator[pa.RecordBatch]:
        """Yield rows of a table in rowid order, a slice of rowids at a time, read by several threads.

        Args:
            table: Name of a table of the catalogue.
            select: SQL expressions, quoted by the caller.
            where: Further condition, without ``WHERE``.
        """
        bounds = self._bounds(table)
        condition = f" AND ({where})" if where else ""
        body = f"SELECT {', '.join(select)} FROM {quote(table)} WHERE rowid BETWEEN "  # noqa: S608 - quoted
        queries = [f"{body}{low} AND {high}{condition} ORDER BY rowid" for low, high in bounds]
        if len(queries) == 1:
            yield self._fetch(queries[0], table)
            return
        with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
            try:
                yield from pool.map(lambda q: self._fetch(q, table), queries)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def wrong_type(self, table: str, column: str, kinds: str) -> CorruptTraceError:
        """Return the error for a column in which SQLite's loose typing let a foreign type in."""
        sql = f"SELECT rowid, typeof({quote(column)}) FROM {quote(table)} WHERE typeof({quote(column)}) NOT IN ({kinds}) LIMIT 1"  # noqa: E501, S608 - quoted, kinds is a constant
        found = self.query(sql)
        row, kind = found[0] if found else (None, "mixed values")
        return CorruptTraceError(
            f"column {column} holds {kind}, expected {kinds}", path=self.path, table=table, row=row, hint=_EXPORT_AGAIN
        )

    def close(self) -> None:
        """Close the connections of all threads."""
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._local = threading.local()

    def _catalogue(self) -> dict[str, tuple[str, ...]]:
        """Return the columns of each ordinary table; views and virtual tables are nobody's data."""
        sql = """SELECT m.name, c.name FROM sqlite_schema m, pragma_table_xinfo(m.name) c
                 WHERE m.type = 'table' AND m.rootpage > 0 ORDER BY m.name, c.cid"""
        found: dict[str, tuple[str, ...]] = {}
        for table, column in self.query(sql):
            found[table] = (*found.get(table, ()), column)
        return found

    def _bounds(self, table: str) -> list[tuple[int, int]]:
        """Cut the rowids of a table into slices; a table with large gaps stays in one piece."""
        name = quote(table)
        low, high = self.query(f"SELECT min(rowid), max(rowid) FROM {name}")[0]  # noqa: S608 - quoted
        if low is None:
            return [(0, 0)]
        if high - low > SLICE_ROWS and high - low >= 4 * self.count(table):
            return [(low, high)]
        return [(a, min(a + SLICE_ROWS - 1, high)) for a in range(low, high + 1, SLICE_ROWS)]

    def _fetch(self, sql: str, table: str) -> pa.RecordBatch:
        from adbc_driver_manager import Error

        try:
            with self._connection().cursor() as cursor:
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(1 << 30)})
                cursor.execute(sql)
                data = cursor.fetch_arrow_table().combine_chunks()
        except Error as e:
            text = str(e).splitlines()[0]
            raise CorruptTraceError(f"cannot be read: {text}", path=self.path, table=table, hint=_EXPORT_AGAIN) from e
        return data.to_batches()[0] if data.num_rows else pa.RecordBatch.from_pylist([], data.schema)

    def _connection(self) -> Any:
        if not hasattr(self._local, "connection"):
            from adbc_driver_sqlite import dbapi

            self._local.connection = dbapi.connect(self.uri, autocommit=True)
            with self._local.connection.cursor() as cursor:
                cursor.execute("PRAGMA trusted_schema = OFF")
            self._open.append(self._local.connection)
        return self._local.connection


def quote(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def check_header(source: Source) -> None:
    """Check that the file is whole: as long as its header says, and not in the middle of being written.

    Raises:
        CorruptTraceError: It is cut short, or a journal beside it shows an unfinished export.
        TracekitError: It may not be read.
    """
    try:
        head, size = source.head, source.size
    except PermissionError as e:
        raise TracekitError("cannot be read: permission denied", path=source.path, hint="check its mode") from e
    if len(head) < 100:
        raise CorruptTraceError(f"cut short: {len(head)} bytes, no SQLite header", path=source.path, hint=_EXPORT_AGAIN)
    _, page, changes, pages = _HEADER.unpack_from(head)
    page = 65536 if page == 1 else page
    valid_for = struct.unpack_from(">I", head, 92)[0]
    if changes == valid_for and pages * page > size:
        raise CorruptTraceError(
            f"cut short: its header counts {pages} pages of {page} bytes, the file holds {size // page}",
            path=source.path,
            hint=_EXPORT_AGAIN,
        )
    for suffix in ("-journal", "-wal"):
        beside = source.path.with_name(source.path.name + suffix)
        if beside.exists() and beside.stat().st_size:
            raise CorruptTraceError(
                f"a {suffix[1:]} file beside it holds changes that are not in it yet",
                path=source.path,
                hint="wait for the writer to end, or export it again",
            )
