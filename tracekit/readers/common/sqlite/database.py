"""Read tables of an untrusted SQLite file into Arrow.

The file is opened as read-only and immutable, so that neither the file nor its folder changes. The leaf pages of a
table are split into runs of consecutive pages, which several threads read. Integers of large tables are decoded from
the pages, and the SQLite driver of ADBC reads all other values. It is an error if the driver does not return as many
rows as the pages hold.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sqlite3
import threading
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import CorruptTraceError, TracekitError, get_first_line_of_message
from tracekit.readers.common import columns as col
from tracekit.readers.common.builders import TableBuilder, concatenate
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.sqlite import catalogue, records
from tracekit.readers.common.sqlite.connections import ConnectionPool
from tracekit.readers.common.sqlite.pages import PageFile
from tracekit.readers.common.sqlite.records import ColumnInfo
from tracekit.readers.common.sqlite.tables import SqliteTable, UsedPages
from tracekit.readers.common.sqlite_files import EXPORT_AGAIN, HEADER_BYTES, check_file_is_complete, quote_identifier
from tracekit.system.files import CHANGED_HINT
from tracekit.system.threads import map_in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from tracekit.registry.source import Source

T = TypeVar("T")

ROWID = "rowid"
"""Name by which callers request the rowid of each row as a column."""

LARGE_RUNS = 1
"""Maximum number of runs of a small table. Integers are decoded from the pages only in larger tables."""

_RUNS_PER_BATCH = 4
"""Number of runs that are converted together, so that the converted columns take a few megabytes."""

_EXPECTED = {"integer": "'integer', 'null'", "number": "'integer', 'real', 'null'"}


class RowFilter(Protocol):
    """A filter that keeps the rows in which a column has one of several values.

    If no values are given, it keeps the rows in which the column is not null.
    """

    @property
    def column(self) -> str:
        """The name of the filtered column."""
        ...

    @property
    def values(self) -> tuple[int, ...]:
        """The values of the column for which the filter keeps a row.

        If the tuple is empty, the filter keeps the rows in which the column is not null.
        """
        ...


class Database:
    """An open SQLite file whose tables are read into Arrow.

    Attributes:
        path: Path of the file.
        hint: Hint for errors if the file is damaged.
        size: Size of the file in bytes.
        columns: Names of the columns of each ordinary table.
        chunked_columns: Names of string columns that are never combined into one array. Their strings may exceed
            2 GiB.
    """

    chunked_columns: frozenset[str] = frozenset()

    def __init__(self, source: Source, hint: str = EXPORT_AGAIN) -> None:
        """Open a SQLite file and read its schema.

        Raises:
            CorruptTraceError: The file is not a SQLite file, or it is truncated or damaged.
            TracekitError: The file cannot be read, or it changes while it is being opened.
        """
        self.path = source.path
        self.hint = hint
        check_file_is_complete(source, hint=hint)
        self._lock = threading.RLock()
        self._tables: dict[str, SqliteTable | Damage] = {}
        try:
            self._file = PageFile(self.path)
        except Damage as e:
            raise self._create_corruption_error(e) from e
        self.size = self._file.state.size
        if (self._file.head, self.size) != (source.head[:HEADER_BYTES], source.size):
            raise TracekitError("the file changed while tracekit opened it", path=self.path, hint=CHANGED_HINT)
        self._connections = ConnectionPool(self.path, self.size)
        self._finalizer = weakref.finalize(self, self._connections.close)
        with self._convert_read_errors():
            self._used_pages = UsedPages(self._file)
            self._entries = self._read_schema()
            self._infos = self._read_column_infos()
        self.columns: Mapping[str, tuple[str, ...]] = {t: tuple(c.name for c in cs) for t, cs in self._infos.items()}

    def count_table_rows(self, table: str, where: RowFilter | None = None) -> int:
        """Return the number of rows of a table that match a filter. The result is 0 if the table is missing.

        Raises:
            CorruptTraceError: The table is damaged.
        """
        return self.count_rows([(table, where)])[0]

    def count_rows(self, requests: Sequence[tuple[str, RowFilter | None]]) -> list[int]:
        """Return the number of matching rows for each pair of a table and a filter. Missing tables have 0 rows.

        Raises:
            CorruptTraceError: A table is damaged.
        """
        totals = dict.fromkeys(range(len(requests)), 0)
        for table in dict.fromkeys(t for t, _ in requests if t in self.columns):
            numbers = [n for n, (t, _) in enumerate(requests) if t == table]
            totals |= zip(numbers, self._count_rows(table, [requests[n][1] for n in numbers]), strict=True)
        return list(totals.values())

    def find_rowid(self, table: str, index: int, where: RowFilter | None = None) -> int | None:
        """Return the rowid of the row with a given index, counted from 0, among the rows that match a filter.

        Return None if fewer rows match.
        """
        for batch in self.map_batches(table, [ROWID], where, lambda batch: batch):
            if index < batch.num_rows:
                return int(batch.column(0)[index].as_py())
            index -= batch.num_rows
        return None

    def read_first_row(self, table: str, columns: Sequence[str]) -> dict[str, Any]:
        """Return the values of the given columns in the row with the lowest rowid, by column name.

        The mapping is empty if the table has no rows.
        """
        with self._convert_read_errors(table):
            opened = self._get_checked_table(table)
            opened.check_columns(columns)
            select = ", ".join(map(quote_identifier, columns))
            sql = f"SELECT {select} FROM {quote_identifier(table)} NOT INDEXED ORDER BY {opened.rowid_name} LIMIT 1"  # noqa: S608 - quoted
            rows = self._query_checked_table(opened, sql)
        return dict(zip(columns, rows[0], strict=True)) if rows else {}

    def read_columns(
        self, table: str, types: Mapping[str, pa.DataType], where: RowFilter | None = None
    ) -> tuple[dict[str, pa.Array | pa.ChunkedArray], Counter[str]]:
        """Read the given columns of a table into Arrow arrays with few chunks.

        Args:
            table: Name of the table.
            types: Arrow type of each column in the result, by name: an integer type, double or string.
            where: Filter applied to the rows.

        Returns:
            The columns by name, and the number of strings with repaired UTF-8 by column name.

        Raises:
            CorruptTraceError: The table is damaged, or a value does not have the requested type.
        """
        builder, repaired = TableBuilder(self.compute_max_rows(table)), Counter[str]()
        for columns, broken in self.map_column_batches(table, types, where, lambda columns: columns):
            builder.append(columns)
            repaired += broken
        try:
            read = builder.finish()
        except pa.ArrowInvalid as e:  # a dictionary cannot have more than 2 GiB of strings
            raise CorruptTraceError(get_first_line_of_message(e), path=self.path, table=table, hint=self.hint) from e
        self._check_string_sizes(table, read)
        return read, repaired

    def map_column_batches(
        self,
        table: str,
        types: Mapping[str, pa.DataType],
        where: RowFilter | None,
        convert: Callable[[dict[str, pa.Array | pa.ChunkedArray]], T],
    ) -> Iterator[tuple[T, Counter[str]]]:
        """Read columns of a table in several threads, and yield the result of a function for each batch of rows.

        The batches are in rowid order, and there is at least one.

        Args:
            table: Name of the table.
            types: Arrow type of each column, by name: an integer type, double or string.
            where: Filter applied to the rows.
            convert: Function that is called with the columns of each batch, in the thread that read the batch.

        Yields:
            The result of ``convert``, and the number of strings with repaired UTF-8 by column name.

        Raises:
            CorruptTraceError: The table is damaged, or a value does not have the requested type.
        """
        opened = self._open_table_for_reading(table, list(types), where)
        decoded = [c for c, kind in types.items() if pa.types.is_integer(kind) and _is_decodable(opened, c)]
        parts = [names for names in (decoded, [c for c in types if c not in decoded]) if names]

        def read_batch(first_run: int) -> tuple[T, Counter[str]]:
            columns: dict[str, pa.Array | pa.ChunkedArray] = {}
            repaired: Counter[str] = Counter()
            with self._convert_read_errors(table):
                for names in parts:
                    runs = range(first_run, min(first_run + _RUNS_PER_BATCH, len(opened.runs)))
                    batches = [batch for nth in runs for batch in self._read_page_run(opened, nth, names, where)]
                    for name, arrays in zip(names, zip(*batches, strict=True), strict=True):
                        chunks = [self._convert_column(table, name, array, types[name]) for array in arrays]
                        columns[name] = concatenate([chunk.values for chunk in chunks], types[name])
                        repaired[name] += sum(chunk.repaired_rows for chunk in chunks)
            self._check_string_sizes(table, columns)
            if len(counts := {len(column) for column in columns.values()}) > 1:
                what = f"the columns have different lengths: {sorted(counts)} rows"
                raise CorruptTraceError(what, path=self.path, table=table, hint=self.hint)
            return convert(columns), repaired

        return map_in_order(read_batch, range(0, len(opened.runs), _RUNS_PER_BATCH))

    def format_blob_column(self, column: str, data: pa.Array) -> pa.Array:  # noqa: ARG002 - subclasses use it
        """Return a binary column unchanged. Subclasses override this method to convert columns of blobs to strings."""
        return data

    def map_batches(
        self, table: str, columns: Sequence[str], where: RowFilter | None, convert: Callable[[pa.RecordBatch], T]
    ) -> Iterator[T]:
        """Read the rows of a table in several threads, and yield the result of a function for each record batch.

        The batches are in rowid order.

        Args:
            table: Name of the table.
            columns: Names of the columns to read. The name ``rowid`` selects the rowid.
            where: Filter applied to the rows.
            convert: Function that is called with each record batch, in the thread that read the batch.

        Yields:
            The result of ``convert`` for each record batch.

        Raises:
            CorruptTraceError: The table is damaged.
        """
        opened = self._open_table_for_reading(table, columns, where)

        def read_and_convert_run(run_index: int) -> list[T]:
            with (
                self._convert_read_errors(table),
                contextlib.closing(self._read_page_run(opened, run_index, columns, where)) as batches,
            ):
                return [convert(batch) for batch in batches]

        return itertools.chain.from_iterable(map_in_order(read_and_convert_run, range(len(opened.runs))))

    def _open_table_for_reading(self, table: str, columns: Sequence[str], where: RowFilter | None) -> SqliteTable:
        """Return a SQLite table after checking its inner pages, and the columns that are read from it."""
        with self._convert_read_errors(table):
            opened = self._get_checked_table(table)
            opened.check_columns([c for c in columns if c != ROWID] + ([] if where is None else [where.column]))
            return opened

    def compute_max_rows(self, table: str) -> int:
        """Return an upper limit for the number of rows of a table."""
        with self._convert_read_errors(table):
            return self._get_checked_table(table).compute_max_rows()

    def create_wrong_type_error(self, table: str, column: str, expected: str) -> CorruptTraceError:
        """Return the error for a column that holds a value of an unexpected type.

        Such a value is possible because SQLite does not enforce column types.

        Args:
            table: Name of the table.
            column: Name of the column.
            expected: The expected type, ``integer`` or ``number``.
        """
        with self._convert_read_errors(table):
            opened, name, kinds = self._get_checked_table(table), quote_identifier(column), _EXPECTED[expected]
            condition = f"typeof({name}) NOT IN ({kinds}) ORDER BY {opened.rowid_name} LIMIT 1"
            source = f"{quote_identifier(table)} NOT INDEXED WHERE {condition}"
            rows = self._query_checked_table(opened, f"SELECT {opened.rowid_name}, typeof({name}) FROM {source}")  # noqa: S608 - quoted
        row, kind = rows[0] if rows else (None, "mixed values")
        what = f"column {column} must hold values of type {expected}, but holds {kind}"
        return CorruptTraceError(what, path=self.path, table=table, row=row, hint=self.hint)

    def delete_finally(self, temporary: contextlib.ExitStack) -> None:
        """Close a stack that deletes the file when this object is garbage-collected.

        The connections are closed before, because Windows does not delete open files.
        """
        temporary.callback(self._connections.close)
        weakref.finalize(self, temporary.pop_all().close)

    def close(self) -> None:
        """Close all connections to the file. A later read opens new connections."""
        self._connections.close()

    def _convert_column(self, table: str, column: str, data: pa.Array, arrow_type: pa.DataType) -> col.RepairedColumn:
        try:
            return col.convert_column(
                self.format_blob_column(column, data) if pa.types.is_binary(data.type) else data, arrow_type
            )
        except TypeError as e:
            raise self.create_wrong_type_error(table, column, str(e)) from None
        except ValueError as e:
            raise CorruptTraceError(get_first_line_of_message(e), path=self.path, table=table, hint=self.hint) from e

    def _check_string_sizes(self, table: str, columns: Mapping[str, pa.ChunkedArray]) -> None:
        """Check that the strings of each column fit into one Arrow array, except for ``chunked_columns``."""
        for name, column in columns.items():
            if column.type == pa.string() and name not in self.chunked_columns and column.nbytes > col.MAX_TEXT_BYTES:
                what = (
                    f"column {name} holds {column.nbytes} bytes of text, "
                    f"but tracekit supports at most {col.MAX_TEXT_BYTES} bytes"
                )
                raise CorruptTraceError(what, path=self.path, table=table, hint=self.hint)

    def _query_checked_table(self, table: SqliteTable, sql: str) -> list[tuple[Any, ...]]:
        """Run a query with a small result on a table, after checking all pages of the table."""
        for nth in range(len(table.runs)):
            table.get_run_summary(nth)
        return self._connections.query(sql)

    def _create_corruption_error(self, error: Exception, table: str | None = None) -> CorruptTraceError:
        what = "the schema is damaged" if isinstance(error, UnicodeError) else get_first_line_of_message(error)
        return CorruptTraceError(f"cannot be read: {what}", path=self.path, table=table, hint=self.hint)

    @contextlib.contextmanager
    def _convert_read_errors(self, table: str | None = None) -> Iterator[None]:
        """Return a context manager that converts errors to public errors, and checks that the file has not changed."""
        self._file.check_unchanged()
        try:
            yield
        except (
            Damage,
            sqlite3.Error,
            UnicodeError,
        ) as e:  # SQLite quotes bytes of a damaged schema in its errors
            self._file.check_unchanged()
            raise self._create_corruption_error(e, table) from e
        self._file.check_unchanged()

    def _read_schema(self) -> dict[str, catalogue.CatalogueEntry]:
        """Return the schema entry of each ordinary table by name, after checking the schema.

        The statistics tables (``sqlite_stat1`` and so on) are checked as well, because SQLite reads them at its first
        statement, however large they are.
        """
        schema = catalogue.read_schema(self._file)
        self._used_pages.mark_used(np.concatenate([schema.tree.inner, schema.tree.leaves, schema.overflow_pages]))
        entries = schema.find_tables()
        for name in (n for n in entries if n.lower() in catalogue.STATISTICS):
            statistics = SqliteTable(self._file, self._used_pages, entries[name], [])
            size = sum(statistics.get_run_summary(nth).payload for nth in range(len(statistics.runs)))
            if size > catalogue.MAX_STATISTICS_BYTES:
                raise Damage(
                    f"table {name} has {size} bytes, "
                    f"but tracekit supports at most {catalogue.MAX_STATISTICS_BYTES} bytes"
                )
        return entries

    def _read_column_infos(self) -> dict[str, list[ColumnInfo]]:
        """Return SQLite's description of the columns of each ordinary table, by table name."""
        sql = """SELECT m.name, c.cid, c.name, c.type, c."notnull", c.dflt_value, c.pk, c.hidden
                 FROM sqlite_schema m, pragma_table_xinfo(m.name) c
                 WHERE m.type = 'table' AND m.rootpage > 0 AND m.sql NOT LIKE 'create virtual%'
                 ORDER BY m.name, c.cid"""
        infos: dict[str, list[ColumnInfo]] = {}
        for table, *info in self._connections.query(sql):
            if table in self._entries:
                infos.setdefault(table, []).append(ColumnInfo(*info))
        return infos

    def _get_checked_table(self, name: str) -> SqliteTable:
        """Return the SQLite table with the given name, whose inner pages are valid.

        The first call checks the inner pages of the table. If the pages are damaged, every call raises the error.
        """
        with self._lock:
            if name not in self._tables:
                try:
                    self._tables[name] = SqliteTable(
                        self._file, self._used_pages, self._entries[name], self._infos[name]
                    )
                except Damage as e:
                    self._tables[name] = e
            table = self._tables[name]
        if isinstance(table, Damage):
            raise Damage(str(table))
        return table

    def _count_rows(self, table: str, conditions: Sequence[RowFilter | None]) -> list[int]:
        """For each filter, return the number of rows of a table that match it."""
        with self._convert_read_errors(table):
            opened = self._get_checked_table(table)
            opened.check_columns([w.column for w in conditions if w is not None])
            count = functools.partial(self._count_matching_rows, opened, conditions=conditions)
            return [sum(runs) for runs in zip(*map_in_order(count, range(len(opened.runs))), strict=True)]

    def _count_matching_rows(
        self, table: SqliteTable, run_index: int, conditions: Sequence[RowFilter | None]
    ) -> list[int]:
        """For each filter, return the number of rows of one run of leaf pages that match it."""
        unknown = [
            w
            for w in conditions
            if w is not None and table.get_recorded_match_count(run_index, _create_filter_key(w)) is None
        ]
        columns = list(dict.fromkeys(w.column for w in unknown))
        values = self._decode_columns(table, run_index, columns) if unknown else None
        for w in unknown:
            if values is None:
                rows = self._count_rows_of_page_run(table, run_index, w)
            else:
                rows = pc.sum(_compute_filter_mask(values[columns.index(w.column)], w)).as_py() or 0
            table.record_match_count(run_index, _create_filter_key(w), rows)
        all_rows = table.get_run_summary(run_index).rows
        return [
            all_rows if w is None else table.get_recorded_match_count(run_index, _create_filter_key(w)) or 0
            for w in conditions
        ]

    def _count_rows_of_page_run(self, table: SqliteTable, run_index: int, where: RowFilter) -> int:
        """Return the number of rows of one run of leaf pages that match a filter, counted by SQLite."""
        table.get_run_summary(run_index)
        run, (condition, values) = table.runs[run_index], _format_sql_condition(where)
        rowids = f"{table.rowid_name} BETWEEN {run.min_rowid} AND {run.max_rowid}"
        source = f"{quote_identifier(table.name)} NOT INDEXED WHERE {rowids}"
        return int(self._connections.query(f"SELECT count(*) FROM {source} AND {condition}", values)[0][0])  # noqa: S608

    def _decode_columns(self, table: SqliteTable, run_index: int, columns: Sequence[str]) -> list[pa.Array] | None:
        """Decode columns from one run of leaf pages. Return None if SQLite has to read the columns."""
        numbers = [records.ROWID if c == ROWID else table.decodable.get(c) for c in columns]
        if None in numbers:
            return None
        values = table.decode_columns(run_index, [n for n in numbers if n is not None])
        return None if values is None else [pa.array(v, mask=None if valid is None else ~valid) for v, valid in values]

    def _read_page_run(
        self, table: SqliteTable, run_index: int, columns: Sequence[str], where: RowFilter | None
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows of one run of leaf pages as record batches.

        The rows are decoded from the pages if possible. Otherwise, SQLite reads them.
        """
        needed = list(columns) if where is None else [*columns, where.column]
        arrays = self._decode_columns(table, run_index, needed) if len(table.runs) > LARGE_RUNS else None
        if arrays is None:
            yield from self._fetch_page_run(table, run_index, columns, where)
            return
        batch = pa.RecordBatch.from_arrays(arrays[: len(columns)], list(columns))
        if where is not None:
            batch = batch.filter(_compute_filter_mask(arrays[-1], where))
            table.record_match_count(run_index, _create_filter_key(where), batch.num_rows)
        yield batch

    def _fetch_page_run(
        self, table: SqliteTable, run_index: int, columns: Sequence[str], where: RowFilter | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one run of leaf pages as record batches that SQLite reads.

        Raises:
            Damage: SQLite does not return as many rows as the pages hold.
        """
        (expected,), rows = self._count_matching_rows(table, run_index, [where]), 0
        if not expected:
            yield pa.RecordBatch.from_arrays([pa.nulls(0, pa.int64()) for _ in columns], list(columns))
            return
        condition, values = _format_sql_condition(where)
        select = ", ".join(
            f"{table.rowid_name if c == ROWID else quote_identifier(c)} AS {quote_identifier(c)}" for c in columns
        )
        for low, high in table.get_run_summary(run_index).ranges:
            limits = f"{table.rowid_name} BETWEEN {low} AND {high} AND {condition} ORDER BY {table.rowid_name}"
            sql = f"SELECT {select} FROM {quote_identifier(table.name)} NOT INDEXED WHERE {limits} LIMIT {expected + 1}"  # noqa: S608
            for batch in self._connections.fetch(sql, values, expected):
                rows += batch.num_rows
                yield batch
        if rows != expected:
            run = table.runs[run_index]
            raise Damage(
                f"SQLite returned {rows} rows with rowids from {run.min_rowid} to {run.max_rowid}, "
                f"but the pages hold {expected} rows"
            )


def _is_decodable(table: SqliteTable, column: str) -> bool:
    """Return whether the integers of a column are decoded from the pages of its table rather than read by SQLite.

    Columns of small tables are never decoded from pages.
    """
    return len(table.runs) > LARGE_RUNS and (column == ROWID or column in table.decodable)


def _format_sql_condition(where: RowFilter | None) -> tuple[str, tuple[int, ...]]:
    """Return the SQL expression for a filter, and the values of its parameters."""
    if where is None:
        return "TRUE", ()
    if not where.values:
        return f"{quote_identifier(where.column)} IS NOT NULL", ()
    return f"{quote_identifier(where.column)} IN ({', '.join('?' * len(where.values))})", where.values


def _compute_filter_mask(values: pa.Array, where: RowFilter) -> pa.Array:
    """Return an array of booleans that are true for the values that match a filter."""
    return pc.is_in(values, pa.array(where.values, pa.int64())) if where.values else values.is_valid()


def _create_filter_key(where: RowFilter) -> tuple[str, tuple[int, ...]]:
    """Return the key under which the number of rows that match a filter is recorded."""
    return where.column, where.values
