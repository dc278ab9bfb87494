"""Safe and fast reading of one SQLite file: header checks, catalogue, columns straight into Arrow.

The file is opened read-only and immutable, so that neither it nor its folder changes. Large tables are read in slices
of rowids by several connections at once; ADBC's SQLite driver fills Arrow arrays without Python objects.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import CorruptTraceError, first_line
from tracekit.readers.common.sqlite_files import EXPORT_AGAIN, check_whole, connect, page_size, quote, read_only_uri
from tracekit.readers.nsys.tables import ROWID
from tracekit.readers.nsys_sqlite import pages
from tracekit.threads import in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracekit.readers.nsys.tables import Where
    from tracekit.readers.nsys_sqlite.pages import Layout, Run
    from tracekit.registry import Source

T = TypeVar("T")

SLICE_ROWS = 1 << 16
LARGE_SLICES = 1
RUN_BYTES = 1 << 21
RESERVED_AT = 20
MIN_ROW_BYTES = 8
LEAST_ROW_BYTES = 4


class Database:
    """One SQLite file: its tables, their columns, and slices of them as Arrow arrays."""

    def __init__(self, source: Source) -> None:
        self.path = source.path
        check_whole(source)
        self.size = source.size
        self._head = source.head
        self._layouts: dict[str, Layout | None] = {}
        self.uri = read_only_uri(source)
        self._idle: list[Any] = []
        self._finalizer = weakref.finalize(self, _close_all, self._idle)
        self.columns: Mapping[str, tuple[str, ...]] = self._catalogue()

    def query(self, sql: str, parameters: Sequence[Any] = (), *, table: str | None = None) -> list[tuple[Any, ...]]:
        """Run a small query; text comes as ``str``, with bytes that are not UTF-8 replaced."""
        try:
            with contextlib.closing(connect(self.uri)) as connection:
                return connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as e:
            raise CorruptTraceError(f"cannot be read: {e}", path=self.path, table=table, hint=EXPORT_AGAIN) from e

    def count(self, table: str, where: Where | None = None) -> int:
        """Number of rows of a table that meet a condition; 0 if there is no such table."""
        if table not in self.columns:
            return 0
        condition, values = _condition(where)
        sql = f"SELECT count(*) FROM {quote(table)} WHERE {condition}"  # noqa: S608 - quoted
        return int(self.query(sql, values, table=table)[0][0])

    def counts(self, wanted: Sequence[tuple[str, Where | None]]) -> list[int]:
        """Numbers of rows of tables that meet conditions; 0 if there is no such table."""
        return [self.count(table, where) for table, where in wanted]

    def rowid(self, table: str, index: int, where: Where | None = None) -> int | None:
        """Number of the row at ``index`` among the rows of a table that meet a condition; None if there is none."""
        name = self._rowid(table)
        condition, values = _condition(where)
        sql = f"SELECT {name} FROM {quote(table)} WHERE {condition} ORDER BY {name} LIMIT 1 OFFSET ?"  # noqa: S608
        found = self.query(sql, (*values, index), table=table)
        return int(found[0][0]) if found else None

    def slices(
        self, table: str, columns: Sequence[str], where: Where | None, work: Callable[[pa.RecordBatch], T]
    ) -> Iterator[T]:
        """Read rows of a table in rowid order, a slice of rowids at a time, in several threads.

        Args:
            table: Name of a table of the catalogue.
            columns: Names of its columns; ``rowid`` is the number of the row.
            where: Condition for the rows.
            work: What to do with a slice, in the thread that read it.

        Yields:
            What ``work`` made of each slice.

        Raises:
            CorruptTraceError: The table is damaged.
        """
        jobs: list[Callable[[], pa.RecordBatch]] = self._decoding(table, columns, where) or [
            functools.partial(self._fetch, table, columns, where, low, high) for low, high in self._bounds(table)
        ]
        return in_order(lambda job: work(job()), jobs)

    def decodes(self, table: str, column: str) -> bool:
        """Whether a column of integers is read from the pages themselves, which pays for large tables."""
        layout = self._layout(table)
        return layout is not None and (column == ROWID or column in layout.columns)

    def at_most(self, table: str) -> int:
        """More rows than this a table cannot have."""
        return sum(min(high - low + 1, self.size // MIN_ROW_BYTES) for low, high in self._bounds(table))

    def wrong_type(self, table: str, column: str, expected: str) -> CorruptTraceError:
        """Return the error for a column in which SQLite's loose typing let a foreign type in."""
        kinds = {"integer": "'integer', 'null'", "number": "'integer', 'real', 'null'"}[expected]
        name = quote(column)
        sql = f"SELECT {self._rowid(table)}, typeof({name}) FROM {quote(table)} WHERE typeof({name}) NOT IN ({kinds}) LIMIT 1"  # noqa: E501, S608 - quoted, kinds is a constant
        found = self.query(sql, table=table)
        row, kind = found[0] if found else (None, "mixed values")
        return CorruptTraceError(
            f"column {column} holds {kind}, expected {expected}",
            path=self.path,
            table=table,
            row=row,
            hint=EXPORT_AGAIN,
        )

    def close(self) -> None:
        """Close the connections."""
        _close_all(self._idle)

    def _catalogue(self) -> dict[str, tuple[str, ...]]:
        """Return the columns of each ordinary table; views and virtual tables are nobody's data."""
        sql = """SELECT m.name, c.name FROM sqlite_schema m, pragma_table_xinfo(m.name) c
                 WHERE m.type = 'table' AND m.rootpage > 0 ORDER BY m.name, c.cid"""
        found: dict[str, tuple[str, ...]] = {}
        for table, column in self.query(sql):
            found[table] = (*found.get(table, ()), column)
        return found

    def _rowid(self, table: str) -> str:
        """Return the name of the row number: one that no column of the table takes."""
        taken = {c.lower() for c in self.columns[table]}
        return next((n for n in ("rowid", "_rowid_", "oid") if n not in taken), "rowid")

    def _bounds(self, table: str) -> list[tuple[int, int]]:
        """Cut the rowids of a table into slices; more rowids than the file has room for stay in one piece."""
        name = self._rowid(table)
        ends = (f"(SELECT {f}({name}) FROM {quote(table)})" for f in ("min", "max"))  # noqa: S608 - one at a time: no scan
        low, high = self.query(f"SELECT {', '.join(ends)}", table=table)[0]
        if low is None:
            return [(0, 0)]
        if high - low > self.size // MIN_ROW_BYTES:
            return [(low, high)]
        return [(a, min(a + SLICE_ROWS - 1, high)) for a in range(low, high + 1, SLICE_ROWS)]

    def _layout(self, table: str) -> Layout | None:
        """Return where a large table lies in the file; None if it is not to be read from there."""
        if table not in self._layouts:
            xinfo = 'SELECT cid, name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?) ORDER BY cid'
            master = "SELECT rootpage, sql FROM sqlite_schema WHERE type = 'table' AND name = ?"
            large = len(self._bounds(table)) > LARGE_SLICES
            found = self.query(master, (table,)) if large else []
            columns: list[Any] = self.query(xinfo, (table,)) if found else []
            self._layouts[table] = pages.layout(found[0][0], found[0][1] or "", columns) if columns else None
        return self._layouts[table]

    def _decoding(self, table: str, columns: Sequence[str], where: Where | None) -> list[Callable[[], pa.RecordBatch]]:
        """Return the jobs that decode the columns run by run; none if that is not how they are to be read."""
        layout = self._layout(table)
        needed = list(columns) if where is None else [*columns, where.column]
        if layout is None or (where and not where.values) or not all(self.decodes(table, c) for c in needed):
            return []
        numbers = [pages.ROWID if c == ROWID else layout.columns[c] for c in needed]
        values = None if where is None else pa.array(where.values, pa.int64())
        whole = functools.partial(self._fetch, table, columns, where)
        runs = self._pages.runs(layout.root, RUN_BYTES) or []
        return [functools.partial(self._decode, run, numbers, columns, values, whole) for run in runs]

    def _decode(
        self,
        run: Run,
        numbers: list[int],
        columns: Sequence[str],
        values: pa.Array | None,
        whole: Callable[[int, int], pa.RecordBatch],
    ) -> pa.RecordBatch:
        """Decode a run of pages; of its rows keep those whose last column is one of some values."""
        found = self._pages.decode(run, numbers)
        if found is None:
            return whole(run.low, run.high)
        arrays = [pa.array(v, mask=None if valid is None else ~valid) for v, valid in found[1]]
        batch = pa.RecordBatch.from_arrays(arrays[: len(columns)], list(columns))
        return batch if values is None else batch.filter(pc.is_in(arrays[-1], values))

    @functools.cached_property
    def _pages(self) -> pages.Pages:
        return pages.Pages(self.path, page_size(self._head), self._head[RESERVED_AT])

    def _fetch(self, table: str, columns: Sequence[str], where: Where | None, low: int, high: int) -> pa.RecordBatch:
        """Let SQLite read a range of rowids, both ends included."""
        from adbc_driver_manager import Error

        rowid = self._rowid(table)
        select = ", ".join(f"{rowid if c == 'rowid' else quote(c)} AS {quote(c)}" for c in columns)
        condition, values = _condition(where)
        limits = f"{rowid} BETWEEN {low} AND {high} AND {condition} ORDER BY {rowid}"
        sql = f"SELECT {select} FROM {quote(table)} WHERE {limits}"  # noqa: S608 - quoted
        most = min(high - low + 1, self.size // LEAST_ROW_BYTES)  # the driver sets memory aside for so many rows
        try:
            with self._connection() as connection, connection.cursor() as cursor:
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(most)})
                cursor.execute(sql, values or None)
                data = cursor.fetch_arrow_table().combine_chunks()
        except (Error, pa.ArrowException, OSError) as e:
            raise CorruptTraceError(
                f"cannot be read: {first_line(e)}", path=self.path, table=table, hint=EXPORT_AGAIN
            ) from e
        return data.to_batches()[0] if data.num_rows else pa.RecordBatch.from_pylist([], data.schema)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Any]:
        """Lend a connection that no other thread uses."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        finally:
            self._idle.append(connection)

    def _connect(self) -> Any:
        from adbc_driver_sqlite import dbapi

        connection = dbapi.connect(self.uri, autocommit=True)
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA trusted_schema = OFF")
        return connection


def _condition(where: Where | None) -> tuple[str, tuple[int, ...]]:
    """Return a condition in SQL and its parameters."""
    if where is None:
        return "TRUE", ()
    if not where.values:
        return f"{quote(where.column)} IS NOT NULL", ()
    return f"{quote(where.column)} IN ({', '.join('?' * len(where.values))})", where.values


def _close_all(connections: list[Any]) -> None:
    while connections:
        connections.pop().close()
