"""Search all strings of a database for private values, and overwrite these values.

The number and total size of the searched values are limited in proportion to the size of the file.
"""

from __future__ import annotations

import re
import sqlite3
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from tracekit.errors import CorruptTraceError, TracekitError
from tracekit.readers.common.sqlite_files import EXPORT_AGAIN, quote_identifier
from tracekit.readers.redaction import find_environment_candidate_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tracekit.readers.redaction import PrivateValueMatcher, Redaction

BATCH = 4 << 20
"""Number of bytes of strings to search at once."""
MAX_EXPRESSIONS, MAX_DEFAULT = 4096, 64
"""Limits in bytes: for all statements that create generated columns or indexes with expressions, and for the SQL of one
default value."""
MIN_VALUES, VALUES_PER_BYTE = 10_000_000, 4
MIN_STRING_BYTES, STRING_BYTES_PER_BYTE = 64 << 20, 4
"""Limits for the number of searched values and of their bytes: a fixed number, and a number per byte of the file."""
_ALLOWED_WORDS = frozenset(
    b"as key check unique default references varchar char character nchar nvarchar decimal numeric number float in and "
    b"or not abs length typeof coalesce ifnull nullif iif round min max lower upper instr unicode sign then else when "
    b"on using".split()
)
"""Words that are allowed before a parenthesis in SQL: keywords, types, and functions whose results are short."""


class _SearchedTable(NamedTuple):
    """A table whose string columns are searched.

    Attributes:
        name: Name of the table.
        rowid: Name of the rowid in SQL, or None if the table has no rowid or if columns hide all names of the rowid.
        columns: Names of the columns that hold at least one value to search.
    """

    name: str
    rowid: str | None
    columns: list[str]


_Value = tuple[int, bytes]
"""A rowid, and a string or blob in that row."""


class _LocatedValue(NamedTuple):
    """A string or blob that contains offsets found by a search.

    Attributes:
        rowid: Rowid of the row that holds the value.
        text: Bytes of the value.
        mask: Bitwise OR of the bit masks of all offsets in the value.
    """

    rowid: int
    text: bytes
    mask: int


class StringColumns:
    """The columns that may hold strings in a temporary copy of a database.

    Attributes:
        columns: For each ordinary table, names of the columns that may hold strings. Generated columns and columns
            whose declared type is numeric are excluded.
        tables: The ordinary tables, each with the columns to search. A column is searched if it is in ``columns`` and
            has a non-empty string or blob.
    """

    def __init__(self, db: sqlite3.Connection, redaction: Redaction, size: int) -> None:
        self.db = db
        self.redaction = redaction
        self.columns = self._list_string_columns()
        self._max_bytes = self._bytes_left = MIN_STRING_BYTES + STRING_BYTES_PER_BYTE * size
        self._size = size
        self._max_values = self._values_left = MIN_VALUES + VALUES_PER_BYTE * size
        self.tables = [self._create_searched_table(name) for name in self.columns]

    def collect_private_names(self) -> None:
        """Collect private names from environment variables and paths of home folders in all strings."""
        for table in self.tables:
            for column in table.columns:
                for batch in self._read_string_batches(table, column):
                    offsets = find_environment_candidate_offsets(_join_values_of_batch(batch), include_homes=True)
                    for _, text, _ in _find_values_at_offsets(batch, ((offset, 0) for offset in offsets)):
                        self.redaction.collect_names_from_string(text)

    def overwrite_private_values(self, matcher: PrivateValueMatcher) -> None:
        """Overwrite private names in all strings, as well as values with a private format such as UUIDs."""
        for table in self.tables:
            for column in table.columns:
                if table.rowid is None:
                    self._overwrite_row_by_row(table, column, matcher)
                    continue
                for batch in self._read_string_batches(table, column):
                    spans = matcher.find_candidates(_join_values_of_batch(batch))
                    chosen = _find_values_at_offsets(batch, ((start, bits) for start, _, bits in spans))
                    changed = (
                        (row, text, self.redaction.overwrite_private_values(matcher, text, bits))
                        for row, text, bits in chosen
                    )
                    self._update_column(table, column, [(row, after) for row, text, after in changed if after != text])

    def _update_column(self, table: _SearchedTable, column: str, values: list[_Value]) -> None:
        name = quote_identifier(column)
        self.db.executemany(
            f"""UPDATE {quote_identifier(table.name)}
                SET {name} = CASE typeof({name}) WHEN 'text' THEN CAST(:text AS TEXT) ELSE :text END
                WHERE {table.rowid} = :row""",  # noqa: S608 - quoted
            ({"text": text, "row": row} for row, text in values),
        )

    def _overwrite_row_by_row(self, table: _SearchedTable, column: str, matcher: PrivateValueMatcher) -> None:
        """Overwrite the private values in a column of a table without rowids, one string at a time."""
        self.db.create_function("changed", 1, lambda value: self.redaction.overwrite_private_values(matcher, value))
        name = quote_identifier(column)
        self.db.execute(
            f"""UPDATE {quote_identifier(table.name)} SET {name} = CASE typeof({name})
                WHEN 'text' THEN CAST(changed(CAST({name} AS BLOB)) AS TEXT) ELSE changed({name}) END
                WHERE typeof({name}) IN ('text', 'blob')"""  # noqa: S608 - quoted
        )

    def _read_string_batches(self, table: _SearchedTable, column: str) -> Iterator[list[_Value]]:
        """Yield the non-empty strings and blobs of a column in batches, each value with its rowid.

        The number 0 replaces the rowid if the table has no rowids. The query scans the table instead of an index.
        Therefore, the caller may update rows between batches.
        """
        name = quote_identifier(column)
        rows = self.db.execute(
            f"""SELECT {table.rowid or 0}, {name} FROM {quote_identifier(table.name)} NOT INDEXED
                WHERE +{name} COLLATE BINARY > ''"""  # noqa: S608 - quoted
        )
        batch: list[_Value] = []
        size = 0
        for row in rows:
            batch.append(row)
            size += len(row[1])
            if size >= BATCH:
                self._deduct_searched_bytes(size)
                yield batch
                batch, size = [], 0
        self._deduct_searched_bytes(size)
        if batch:
            yield batch

    def _list_string_columns(self) -> dict[str, list[str]]:
        sql = """SELECT m.name, c.name, c.type FROM sqlite_schema m, pragma_table_xinfo(m.name) c
                 WHERE m.type = 'table' AND m.rootpage > 0 AND c.hidden = 0 AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
                 ORDER BY m.name, c.cid"""
        columns: dict[str, list[str]] = {}
        for table, column, kind in self.db.execute(sql):
            listed = columns.setdefault(table.decode(), [])
            if not re.search(rb"INT|REAL|FLOA|DOUB", kind, re.IGNORECASE):
                listed.append(column.decode())
        return columns

    def _create_searched_table(self, name: str) -> _SearchedTable:
        """Return the table with the given name, together with the name of its rowid and the columns to search.

        The number of values in all string columns of the table is subtracted from the number of values that may still
        be searched.
        """
        has_value_columns = "".join(f", max(+{quote_identifier(c)} COLLATE BINARY > '')" for c in self.columns[name])
        sql = f"SELECT count(*){has_value_columns} FROM {quote_identifier(name)} NOT INDEXED"  # noqa: S608 - quoted
        rows, *has_values = self.db.execute(sql).fetchone()
        self._deduct_searched_values(rows * len(has_values))
        listed = self.db.execute("SELECT name FROM pragma_table_xinfo(?)", (name,))
        used_names = {c.decode().lower() for (c,) in listed}
        free = (n for n in ("rowid", "_rowid_", "oid") if n not in used_names)
        rowid = next((n for n in free if self._has_rowid(name, n)), None)
        return _SearchedTable(
            name, rowid, [c for c, has_value in zip(self.columns[name], has_values, strict=True) if has_value]
        )

    def _has_rowid(self, table: str, name: str) -> bool:
        """Return whether SQL statements can refer to the rowid of a table by the given name."""
        try:
            self.db.execute(f"SELECT {name} FROM {quote_identifier(table)} LIMIT 0")  # noqa: S608 - quoted
        except sqlite3.OperationalError:
            return False
        return True

    def _deduct_searched_values(self, count: int) -> None:
        """Subtract ``count`` from the number of values that may still be searched.

        This number is limited because a row of many nulls takes only a few bytes of the file.

        Raises:
            CorruptTraceError: The limit is exceeded.
        """
        self._values_left -= count
        if self._values_left < 0:
            raise CorruptTraceError(
                f"the export cannot be redacted: its string columns have more than {self._max_values} values in total, "
                f"which is too many for a file of {self._size} bytes",
                path=self.redaction.path,
                hint=EXPORT_AGAIN,
            )

    def _deduct_searched_bytes(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise CorruptTraceError(
                f"the export cannot be redacted: its strings have more than {self._max_bytes} bytes in total, which is "
                f"too many for a file of {self._size} bytes",
                path=self.redaction.path,
                hint=EXPORT_AGAIN,
            )


def check_expressions(db: sqlite3.Connection, path: Path) -> None:
    """Raise an error if SQLite would evaluate forbidden SQL while a database is redacted.

    SQLite evaluates the expressions of generated columns, of indexes on expressions, and of partial indexes. The
    statements that create these tables and indexes may have at most ``MAX_EXPRESSIONS`` bytes in total. They may call
    only functions in ``_ALLOWED_WORDS``, and must not contain the operators ``||`` and ``->``. The SQL of a default
    value may have at most ``MAX_DEFAULT`` bytes. Exports of nsys contain no such expressions.

    Raises:
        TracekitError: The database has an expression or a default value that is not allowed.
    """
    generated = """SELECT DISTINCT m.sql FROM sqlite_schema m, pragma_table_xinfo(m.name) c
                   WHERE m.type = 'table' AND c.hidden > 1"""
    computed = """SELECT DISTINCT m.sql FROM sqlite_schema m, pragma_index_xinfo(m.name) c
                  WHERE m.type = 'index' AND m.sql IS NOT NULL AND (c.cid = -2 OR instr(lower(m.sql), ' where '))"""
    statements = [sql for query in (generated, computed) for (sql,) in db.execute(query)]
    if sum(map(len, statements)) > MAX_EXPRESSIONS or not all(map(_is_allowed_statement, statements)):
        raise TracekitError(
            f"the database has tables or indexes with SQL expressions (count: {len(statements)}), "
            "which SQLite would evaluate during redaction",
            path=path,
            hint=EXPORT_AGAIN,
        )
    defaults = """SELECT count(*) FROM sqlite_schema m, pragma_table_xinfo(m.name) c
                  WHERE m.type = 'table' AND m.rootpage > 0 AND length(c.dflt_value) > ?"""
    number = db.execute(defaults, (MAX_DEFAULT,)).fetchone()[0]
    if number:
        raise TracekitError(
            f"the database has {number} columns with a default value of more than {MAX_DEFAULT} bytes, which tracekit "
            "does not support",
            path=path,
            hint=EXPORT_AGAIN,
        )


def _is_allowed_statement(sql: bytes) -> bool:
    """Return whether a ``CREATE`` statement calls only allowed functions, and does not contain ``||`` or ``->``."""
    _, _, body = sql.partition(b"(")
    calls = {name.lower() for name in re.findall(rb"(\w+)[\s\"'`\]]*\(", body)}
    return b"||" not in body and b"->" not in body and calls <= _ALLOWED_WORDS


def _join_values_of_batch(batch: list[_Value]) -> bytes:
    """Return all strings and blobs of a batch in one byte string, separated by zero bytes."""
    return b"\0".join([text for _, text in batch])


def _find_values_at_offsets(batch: list[_Value], offsets: Iterable[tuple[int, int]]) -> list[_LocatedValue]:
    """Return the values of a batch that contain at least one of the given offsets.

    Args:
        batch: The values, each with its rowid.
        offsets: Ascending offsets in the result of ``_join_values_of_batch``, each with a bit mask.
    """
    bits_by_value: dict[int, int] = {}
    ends: list[int] = []
    for start, bits in offsets:
        ends = ends or list(accumulate(len(text) + 1 for _, text in batch))
        nth = bisect_right(ends, start)
        bits_by_value[nth] = bits_by_value.get(nth, 0) | bits
    return [_LocatedValue(*batch[nth], bits) for nth, bits in sorted(bits_by_value.items())]
