"""Read one SQLite file safely and fast: counts, and slices of columns straight into Arrow.

The file is opened read-only and immutable, so that neither it nor its folder changes. Tables are read a run of leaf
pages at a time, in several threads. Integers of large tables are decoded from the pages; for everything else ADBC's
SQLite driver fills Arrow arrays without Python objects. It has to return the rows that the check of the pages counted.
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

from tracekit.errors import CorruptTraceError, TracekitError, first_line
from tracekit.files import CHANGED_HINT
from tracekit.readers.common import columns as col
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.pieces import collector
from tracekit.readers.common.sqlite import catalogue, records
from tracekit.readers.common.sqlite.connections import Connections
from tracekit.readers.common.sqlite.pages import PageFile
from tracekit.readers.common.sqlite.records import ColumnInfo
from tracekit.readers.common.sqlite.tables import Owners, Table
from tracekit.readers.common.sqlite_files import EXPORT_AGAIN, HEADER_BYTES, check_whole, quote
from tracekit.threads import in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from tracekit.registry import Source

T = TypeVar("T")

ROWID = "rowid"
"""The number of a row."""

LARGE_RUNS = 1
"""Tables with more runs of pages than this have their integers decoded from the pages."""

_EXPECTED = {"integer": "'integer', 'null'", "number": "'integer', 'real', 'null'"}


class Condition(Protocol):
    """Rows in which a column has one of some values; with no values, rows in which it is not null."""

    @property
    def column(self) -> str:
        """Name of the column."""
        ...

    @property
    def values(self) -> tuple[int, ...]:
        """The values."""
        ...


class Database:
    """One SQLite file: its tables, their columns, and slices of them as Arrow arrays.

    Attributes:
        path: The file.
        hint: What to do about a damaged file.
        size: Its size in bytes.
        columns: Names of the columns of each ordinary table.
        kept_apart: Names of columns of texts that stay in several Arrow arrays, and so may be of any size.
    """

    kept_apart: frozenset[str] = frozenset()

    def __init__(self, source: Source, hint: str = EXPORT_AGAIN) -> None:
        """Open a file and read its schema.

        Raises:
            CorruptTraceError: It is not SQLite, cut short or damaged.
            TracekitError: It may not be read, or changes meanwhile.
        """
        self.path = source.path
        self.hint = hint
        check_whole(source, hint=hint)
        self._lock = threading.RLock()
        self._tables: dict[str, Table | Damage] = {}
        try:
            self._file = PageFile(self.path)
        except Damage as e:
            raise self._corrupt(e) from e
        self.size = self._file.state.size
        if (self._file.head, self.size) != (source.head[:HEADER_BYTES], source.size):
            raise TracekitError("changed while it was being opened", path=self.path, hint=CHANGED_HINT)
        self._connections = Connections(self.path, self.size)
        self._finalizer = weakref.finalize(self, self._connections.close)
        with self._reading():
            self._owners = Owners(self._file)
            self._entries = self._schema()
            self._infos = self._column_infos()
        self.columns: Mapping[str, tuple[str, ...]] = {t: tuple(c.name for c in cs) for t, cs in self._infos.items()}

    def count(self, table: str, where: Condition | None = None) -> int:
        """Return the number of rows of a table that meet a condition; 0 if there is no such table.

        Raises:
            CorruptTraceError: The table is damaged.
        """
        return self.counts([(table, where)])[0]

    def counts(self, wanted: Sequence[tuple[str, Condition | None]]) -> list[int]:
        """Return the numbers of rows of tables that meet conditions; 0 if there is no such table.

        Raises:
            CorruptTraceError: A table is damaged.
        """
        totals = dict.fromkeys(range(len(wanted)), 0)
        for table in dict.fromkeys(t for t, _ in wanted if t in self.columns):
            numbers = [n for n, (t, _) in enumerate(wanted) if t == table]
            totals |= zip(numbers, self._count(table, [wanted[n][1] for n in numbers]), strict=True)
        return list(totals.values())

    def rowid(self, table: str, index: int, where: Condition | None = None) -> int | None:
        """Return the number of the row at ``index`` among those that meet a condition; None if there is none."""
        for batch in self.slices(table, [ROWID], where, lambda batch: batch):
            if index < batch.num_rows:
                return int(batch.column(0)[index].as_py())
            index -= batch.num_rows
        return None

    def first_row(self, table: str, columns: Sequence[str]) -> dict[str, Any]:
        """Return columns of the first row of a table as Python objects; nothing if it has no rows."""
        with self._reading(table):
            opened = self._table(table)
            opened.check_columns(columns)
            select = ", ".join(map(quote, columns))
            sql = f"SELECT {select} FROM {quote(table)} NOT INDEXED ORDER BY {opened.rowid} LIMIT 1"  # noqa: S608 - quoted
            rows = self._query(opened, sql)
        return dict(zip(columns, rows[0], strict=True)) if rows else {}

    def read_columns(
        self, table: str, types: Mapping[str, pa.DataType], where: Condition | None = None
    ) -> tuple[dict[str, pa.ChunkedArray], Counter[str]]:
        """Read columns of a table in one pass.

        Args:
            table: Name of the table.
            types: Columns and what they are read as: integers, reals, texts.
            where: Condition for the rows.

        Returns:
            The columns, and how many texts of which of them were not UTF-8 and had to be repaired.

        Raises:
            CorruptTraceError: The table is damaged, or holds values of another type.
        """
        at_most = self.at_most(table)
        builders = {c: collector(t, at_most) for c, t in types.items()}
        repaired: Counter[str] = Counter()

        def typed(batch: pa.RecordBatch) -> list[tuple[pa.Array, int]]:
            return [self._typed(table, c, array, types[c]) for c, array in zip(types, batch.columns, strict=True)]

        for arrays in self.slices(table, list(types), where, typed):
            for c, (array, broken) in zip(types, arrays, strict=True):
                builders[c].append(array)
                repaired[c] += broken
        try:
            read = {c: builder.finish() for c, builder in builders.items()}
        except pa.ArrowInvalid as e:  # a dictionary cannot have more than 2 GiB of texts
            raise CorruptTraceError(first_line(e), path=self.path, table=table, hint=self.hint) from e
        self._check_texts(table, read)
        return read, repaired

    def as_text(self, column: str, data: pa.Array) -> pa.Array:  # noqa: ARG002 - for others to override
        """Return bytes of a column, n values in and n out, as the text that they stand for."""
        return data

    def slices(
        self, table: str, columns: Sequence[str], where: Condition | None, work: Callable[[pa.RecordBatch], T]
    ) -> Iterator[T]:
        """Read rows of a table in rowid order, a run of pages at a time, in several threads.

        Args:
            table: Name of a table.
            columns: Names of its columns; ``rowid`` is the number of the row.
            where: Condition for the rows.
            work: What to do with a slice, in the thread that read it.

        Yields:
            What ``work`` returned for each slice.

        Raises:
            CorruptTraceError: The table is damaged.
        """
        with self._reading(table):
            opened = self._table(table)
            opened.check_columns([c for c in columns if c != ROWID] + ([] if where is None else [where.column]))

        def job(nth: int) -> list[T]:
            with self._reading(table), contextlib.closing(self._read(opened, nth, columns, where)) as batches:
                return [work(batch) for batch in batches]

        return itertools.chain.from_iterable(in_order(job, range(len(opened.runs))))

    def decodes(self, table: str, column: str) -> bool:
        """Whether a column of integers is read from the pages themselves, which pays for large tables."""
        with self._reading(table):
            opened = self._table(table)
            return len(opened.runs) > LARGE_RUNS and (column == ROWID or column in opened.decodable)

    def at_most(self, table: str) -> int:
        """Return a number of rows that a table does not exceed."""
        with self._reading(table):
            return self._table(table).most_rows()

    def wrong_type(self, table: str, column: str, expected: str) -> CorruptTraceError:
        """Return the error for a column in which SQLite's loose typing let a foreign type in.

        Args:
            table: Name of the table.
            column: Name of the column.
            expected: ``integer`` or ``number``.
        """
        with self._reading(table):
            opened, name, kinds = self._table(table), quote(column), _EXPECTED[expected]
            condition = f"typeof({name}) NOT IN ({kinds}) ORDER BY {opened.rowid} LIMIT 1"
            source = f"{quote(table)} NOT INDEXED WHERE {condition}"
            rows = self._query(opened, f"SELECT {opened.rowid}, typeof({name}) FROM {source}")  # noqa: S608 - quoted
        row, kind = rows[0] if rows else (None, "mixed values")
        what = f"column {column} holds {kind}, expected {expected}"
        return CorruptTraceError(what, path=self.path, table=table, row=row, hint=self.hint)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def _typed(self, table: str, column: str, data: pa.Array, kind: pa.DataType) -> tuple[pa.Array, int]:
        try:
            return col.typed(self.as_text(column, data) if pa.types.is_binary(data.type) else data, kind)
        except TypeError as e:
            raise self.wrong_type(table, column, str(e)) from None
        except ValueError as e:
            raise CorruptTraceError(first_line(e), path=self.path, table=table, hint=self.hint) from e

    def _check_texts(self, table: str, columns: Mapping[str, pa.ChunkedArray]) -> None:
        """Refuse texts that do not fit into one Arrow array, in columns where that is what they become."""
        for name, column in columns.items():
            if column.type == pa.string() and name not in self.kept_apart and column.nbytes > col.MAX_TEXT_BYTES:
                what = f"column {name} holds {column.nbytes} bytes of text, more than {col.MAX_TEXT_BYTES}"
                raise CorruptTraceError(what, path=self.path, table=table, hint=self.hint)

    def _query(self, table: Table, sql: str) -> list[tuple[Any, ...]]:
        """Run a small query on a table, after a check of all of it."""
        for nth in range(len(table.runs)):
            table.facts(nth)
        return self._connections.query(sql)

    def _corrupt(self, error: Exception, table: str | None = None) -> CorruptTraceError:
        what = "its schema is damaged" if isinstance(error, UnicodeError) else first_line(error)
        return CorruptTraceError(f"cannot be read: {what}", path=self.path, table=table, hint=self.hint)

    @contextlib.contextmanager
    def _reading(self, table: str | None = None) -> Iterator[None]:
        """Turn damage into the error that names the file, unless the file changed meanwhile, which is another error."""
        self._file.check()
        try:
            yield
        except (Damage, sqlite3.Error, UnicodeError) as e:  # what SQLite says of a damaged schema may quote bytes of it
            self._file.check()
            raise self._corrupt(e, table) from e
        self._file.check()

    def _schema(self) -> dict[str, catalogue.Entry]:
        """Read and check what SQLite reads with its first statement: the schema, and rows of statistics."""
        schema = catalogue.read(self._file)
        self._owners.take(np.concatenate([schema.tree.inner, schema.tree.leaves, schema.overflow_pages]))
        entries = schema.tables()
        for name in (n for n in entries if n.lower() in catalogue.STATISTICS):
            statistics = Table(self._file, self._owners, entries[name], [])
            size = sum(statistics.facts(nth).payload for nth in range(len(statistics.runs)))
            if size > catalogue.MAX_STATISTICS_BYTES:
                raise Damage(f"table {name} has {size} bytes, more than {catalogue.MAX_STATISTICS_BYTES}")
        return entries

    def _column_infos(self) -> dict[str, list[ColumnInfo]]:
        """Let SQLite parse the statements of the ordinary tables; views and virtual tables hold no rows themselves."""
        sql = """SELECT m.name, c.cid, c.name, c.type, c."notnull", c.dflt_value, c.pk, c.hidden
                 FROM sqlite_schema m, pragma_table_xinfo(m.name) c
                 WHERE m.type = 'table' AND m.rootpage > 0 AND m.sql NOT LIKE 'create virtual%'
                 ORDER BY m.name, c.cid"""
        infos: dict[str, list[ColumnInfo]] = {}
        for table, *info in self._connections.query(sql):
            if table in self._entries:
                infos.setdefault(table, []).append(ColumnInfo(*info))
        return infos

    def _table(self, name: str) -> Table:
        """Return a table; damage to its inner pages is looked for once, and raised each time."""
        with self._lock:
            if name not in self._tables:
                try:
                    self._tables[name] = Table(self._file, self._owners, self._entries[name], self._infos[name])
                except Damage as e:
                    self._tables[name] = e
            table = self._tables[name]
        if isinstance(table, Damage):
            raise Damage(str(table))
        return table

    def _count(self, table: str, conditions: Sequence[Condition | None]) -> list[int]:
        """Count the rows of a table that meet each of several conditions."""
        with self._reading(table):
            opened = self._table(table)
            opened.check_columns([w.column for w in conditions if w is not None])
            count = functools.partial(self._matching, opened, conditions=conditions)
            return [sum(runs) for runs in zip(*in_order(count, range(len(opened.runs))), strict=True)]

    def _matching(self, table: Table, nth: int, conditions: Sequence[Condition | None]) -> list[int]:
        """Count the rows of a run that meet each of several conditions."""
        unknown = [w for w in conditions if w is not None and table.matches(nth, _key(w)) is None]
        columns = list(dict.fromkeys(w.column for w in unknown))
        values = self._columns_of(table, nth, columns) if unknown else None
        for w in unknown:
            if values is None:
                rows = self._count_run(table, nth, w)
            else:
                rows = pc.sum(_mask(values[columns.index(w.column)], w)).as_py() or 0
            table.match(nth, _key(w), rows)
        all_rows = table.facts(nth).rows
        return [all_rows if w is None else table.matches(nth, _key(w)) or 0 for w in conditions]

    def _count_run(self, table: Table, nth: int, where: Condition) -> int:
        """Let SQLite count the rows of a run that meet a condition."""
        table.facts(nth)
        run, (condition, values) = table.runs[nth], _condition(where)
        source = f"{quote(table.name)} NOT INDEXED WHERE {table.rowid} BETWEEN {run.low} AND {run.high}"
        return int(self._connections.query(f"SELECT count(*) FROM {source} AND {condition}", values)[0][0])  # noqa: S608

    def _columns_of(self, table: Table, nth: int, columns: Sequence[str]) -> list[pa.Array] | None:
        """Decode columns from the pages of a run; None if SQLite has to read them."""
        numbers = [records.ROWID if c == ROWID else table.decodable.get(c) for c in columns]
        if None in numbers:
            return None
        values = table.decode(nth, [n for n in numbers if n is not None])
        return None if values is None else [pa.array(v, mask=None if valid is None else ~valid) for v, valid in values]

    def _read(
        self, table: Table, nth: int, columns: Sequence[str], where: Condition | None
    ) -> Generator[pa.RecordBatch, None, None]:
        """Read a run: decode it, or let SQLite read it."""
        needed = list(columns) if where is None else [*columns, where.column]
        arrays = self._columns_of(table, nth, needed) if len(table.runs) > LARGE_RUNS else None
        if arrays is None:
            yield from self._fetch(table, nth, columns, where)
            return
        batch = pa.RecordBatch.from_arrays(arrays[: len(columns)], list(columns))
        if where is not None:
            batch = batch.filter(_mask(arrays[-1], where))
            table.match(nth, _key(where), batch.num_rows)
        yield batch

    def _fetch(
        self, table: Table, nth: int, columns: Sequence[str], where: Condition | None
    ) -> Iterator[pa.RecordBatch]:
        """Let SQLite read a run; it has to give as many rows as the pages hold."""
        (expected,), rows = self._matching(table, nth, [where]), 0
        if not expected:
            yield pa.RecordBatch.from_arrays([pa.nulls(0, pa.int64()) for _ in columns], list(columns))
            return
        condition, values = _condition(where)
        select = ", ".join(f"{table.rowid if c == ROWID else quote(c)} AS {quote(c)}" for c in columns)
        for low, high in table.facts(nth).ranges:
            limits = f"{table.rowid} BETWEEN {low} AND {high} AND {condition} ORDER BY {table.rowid}"
            sql = f"SELECT {select} FROM {quote(table.name)} NOT INDEXED WHERE {limits} LIMIT {expected + 1}"  # noqa: S608
            for batch in self._connections.fetch(sql, values, expected):
                rows += batch.num_rows
                yield batch
        if rows != expected:
            run = table.runs[nth]
            raise Damage(f"SQLite reads {rows} rows from {run.low} to {run.high}, its pages hold {expected}")


def _condition(where: Condition | None) -> tuple[str, tuple[int, ...]]:
    """Return a condition in SQL and its parameters."""
    if where is None:
        return "TRUE", ()
    if not where.values:
        return f"{quote(where.column)} IS NOT NULL", ()
    return f"{quote(where.column)} IN ({', '.join('?' * len(where.values))})", where.values


def _mask(values: pa.Array, where: Condition) -> pa.Array:
    """Return which values [n] meet a condition."""
    return pc.is_in(values, pa.array(where.values, pa.int64())) if where.values else values.is_valid()


def _key(where: Condition) -> tuple[str, tuple[int, ...]]:
    return where.column, where.values
