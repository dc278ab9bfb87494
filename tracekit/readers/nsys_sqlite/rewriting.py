"""Every text of a database, read in batches and overwritten where it has to be; and what that may cost."""

from __future__ import annotations

import re
import sqlite3
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from tracekit.errors import CorruptTraceError, TracekitError
from tracekit.readers.common.redaction import (
    ENVIRONMENT,
    PATH,
    environment_candidates,
    environment_start,
)
from tracekit.readers.common.sqlite_files import EXPORT_AGAIN, quote_identifier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tracekit.readers.common.redaction import Names, Redaction

BATCH = 4 << 20
"""Bytes of texts that are searched together."""
MAX_EXPRESSIONS, MAX_DEFAULT = 4096, 64
"""Bytes of SQL that tables with generated columns and indexes by expressions may have, and the default of a column."""
LEAST_VALUES, VALUES_PER_BYTE = 10_000_000, 4
LEAST_TEXT, TEXT_PER_BYTE = 64 << 20, 4
"""Values, and bytes of texts, that are looked at in any file, and for each of its bytes."""
_CHEAP = frozenset(
    b"as key check unique default references varchar char character nchar nvarchar decimal numeric number float in and "
    b"or not abs length typeof coalesce ifnull nullif iif round min max lower upper instr unicode sign then else when "
    b"on using".split()
)
"""Words before a parenthesis in SQL that creates tables: of the language, types, functions that make no long texts."""
_DROP = "drop them, or export it again: nsys export --type sqlite REPORT"


class _Table(NamedTuple):
    """A table with columns that hold texts.

    Attributes:
        name: Its name.
        rowid: What the number of a row is called; None if rows have none.
        columns: Columns that can be set and hold texts.
    """

    name: str
    rowid: str | None
    columns: list[str]


_Value = tuple[int, bytes]
"""The number of a row, and a text or blob in it."""


class Texts:
    """The texts of a database in its own private copy.

    Attributes:
        columns: Columns of each ordinary table that can be set and may hold text, by SQLite's rule of affinity.
    """

    def __init__(self, db: sqlite3.Connection, redaction: Redaction, size: int) -> None:
        self.db = db
        self.redaction = redaction
        self.columns = self._catalogue()
        self._text_left = LEAST_TEXT + TEXT_PER_BYTE * size
        self._size = size
        self._most_values = self._values_left = LEAST_VALUES + VALUES_PER_BYTE * size
        self.tables = [self._table(name) for name in self.columns]

    def learn(self) -> None:
        """Learn names and values from environments that stand among other texts, and from paths into home folders."""
        for table in self.tables:
            for column in table.columns:
                for batch in self._batches(table, column):
                    places = environment_candidates(_joined(batch), homes=True)
                    for _, text, _ in _holding(batch, ((place, 0) for place in places)):
                        self.redaction.learn(PATH, text)
                        start = environment_start(text)
                        if start is not None:
                            self.redaction.learn(ENVIRONMENT, text[start:])

    def overwrite(self, names: Names) -> None:
        """Overwrite names, and what is known by its form, wherever they stand."""
        for table in self.tables:
            for column in table.columns:
                if table.rowid is None:
                    self._overwrite_each(table, column, names)
                    continue
                for batch in self._batches(table, column):
                    spans = names.candidates(_joined(batch))
                    chosen = _holding(batch, ((start, bits) for start, _, bits in spans))
                    changed = ((row, text, self.redaction.overwrite(names, text, bits)) for row, text, bits in chosen)
                    self._update(table, column, [(row, after) for row, text, after in changed if after != text])

    def _update(self, table: _Table, column: str, values: list[_Value]) -> None:
        name = quote_identifier(column)
        self.db.executemany(
            f"""UPDATE {quote_identifier(table.name)}
                SET {name} = CASE typeof({name}) WHEN 'text' THEN CAST(?1 AS TEXT) ELSE ?1 END
                WHERE {table.rowid} = ?2""",  # noqa: S608 - quoted
            ((text, row) for row, text in values),
        )

    def _overwrite_each(self, table: _Table, column: str, names: Names) -> None:
        """Overwrite the texts of a table without row numbers, one at a time."""
        self.db.create_function("changed", 1, lambda value: self.redaction.overwrite(names, value))
        name = quote_identifier(column)
        self.db.execute(
            f"""UPDATE {quote_identifier(table.name)} SET {name} = CASE typeof({name})
                WHEN 'text' THEN CAST(changed(CAST({name} AS BLOB)) AS TEXT) ELSE changed({name}) END
                WHERE typeof({name}) IN ('text', 'blob')"""  # noqa: S608 - quoted
        )

    def _batches(self, table: _Table, column: str) -> Iterator[list[_Value]]:
        """Yield the texts and blobs in a column that are not empty, some megabytes at a time.

        They are read in the order of the table itself, so rows may be changed in between.
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
                self._spend(size)
                yield batch
                batch, size = [], 0
        self._spend(size)
        if batch:
            yield batch

    def _catalogue(self) -> dict[str, list[str]]:
        sql = """SELECT m.name, c.name, c.type FROM sqlite_schema m, pragma_table_xinfo(m.name) c
                 WHERE m.type = 'table' AND m.rootpage > 0 AND c.hidden = 0 AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
                 ORDER BY m.name, c.cid"""
        found: dict[str, list[str]] = {}
        for table, column, kind in self.db.execute(sql):
            listed = found.setdefault(table.decode(), [])
            if not re.search(rb"INT|REAL|FLOA|DOUB", kind, re.IGNORECASE):
                listed.append(column.decode())
        return found

    def _table(self, name: str) -> _Table:
        """Look through a table once: how many rows it has, and which of its columns hold anything to be looked at."""
        held = "".join(f", max(+{quote_identifier(c)} COLLATE BINARY > '')" for c in self.columns[name])
        rows, *marks = self.db.execute(f"SELECT count(*){held} FROM {quote_identifier(name)} NOT INDEXED").fetchone()  # noqa: S608 - quoted
        self._check_cost(rows * len(marks))
        listed = self.db.execute("SELECT name FROM pragma_table_xinfo(?)", (name,))
        taken = {c.decode().lower() for (c,) in listed}
        free = (n for n in ("rowid", "_rowid_", "oid") if n not in taken)
        rowid = next((n for n in free if self._has_rowid(name, n)), None)
        return _Table(name, rowid, [c for c, mark in zip(self.columns[name], marks, strict=True) if mark])

    def _has_rowid(self, table: str, name: str) -> bool:
        try:
            self.db.execute(f"SELECT {name} FROM {quote_identifier(table)} LIMIT 0")  # noqa: S608 - quoted
        except sqlite3.OperationalError:
            return False
        return True

    def _check_cost(self, values: int) -> None:
        """Refuse more values than a file of its size may have: a row can lack all its columns and take four bytes."""
        self._values_left -= values
        if self._values_left < 0:
            raise CorruptTraceError(
                f"cannot be redacted: {self._size} bytes hold more than {self._most_values} values that may be texts",
                path=self.redaction.path,
                hint=EXPORT_AGAIN,
            )

    def _spend(self, size: int) -> None:
        self._text_left -= size
        if self._text_left < 0:
            raise CorruptTraceError(
                f"cannot be redacted: its texts are more than {TEXT_PER_BYTE} times as long as the file",
                path=self.redaction.path,
                hint=EXPORT_AGAIN,
            )


def check_expressions(db: sqlite3.Connection, path: Path) -> None:
    """Refuse SQL of the file that would run when it is changed, and may cost anything: nsys writes none.

    Generated columns and indexes by short expressions may stay, if they call only functions that make no long texts.

    Raises:
        TracekitError: There is such SQL.
    """
    generated = """SELECT DISTINCT m.sql FROM sqlite_schema m, pragma_table_xinfo(m.name) c
                   WHERE m.type = 'table' AND c.hidden > 1"""
    computed = """SELECT DISTINCT m.sql FROM sqlite_schema m, pragma_index_xinfo(m.name) c
                  WHERE m.type = 'index' AND m.sql IS NOT NULL AND (c.cid = -2 OR instr(lower(m.sql), ' where '))"""
    statements = [sql for query in (generated, computed) for (sql,) in db.execute(query)]
    if sum(map(len, statements)) > MAX_EXPRESSIONS or not all(map(_is_cheap, statements)):
        raise TracekitError(
            f"holds {len(statements)} tables or indexes with expressions, which would run when it is changed",
            path=path,
            hint=_DROP,
        )
    defaults = """SELECT count(*) FROM sqlite_schema m, pragma_table_xinfo(m.name) c
                  WHERE m.type = 'table' AND m.rootpage > 0 AND length(c.dflt_value) > ?"""
    number = db.execute(defaults, (MAX_DEFAULT,)).fetchone()[0]
    if number:
        raise TracekitError(
            f"holds {number} columns with a default of more than {MAX_DEFAULT} bytes", path=path, hint=_DROP
        )


def _is_cheap(sql: bytes) -> bool:
    """Whether the expressions in a statement that creates a table or an index make no long texts."""
    _, _, body = sql.partition(b"(")
    calls = {name.lower() for name in re.findall(rb"(\w+)[\s\"'`\]]*\(", body)}
    return b"||" not in body and b"->" not in body and calls <= _CHEAP


def _joined(batch: list[_Value]) -> bytes:
    return b"\0".join([text for _, text in batch])


def _holding(batch: list[_Value], places: Iterable[tuple[int, int]]) -> list[tuple[int, bytes, int]]:
    """Return the values of a batch that places of the joined batch lie in, each with the bits of all these places."""
    held: dict[int, int] = {}
    ends: list[int] = []
    for start, bits in places:
        ends = ends or list(accumulate(len(text) + 1 for _, text in batch))
        nth = bisect_right(ends, start)
        held[nth] = held.get(nth, 0) | bits
    return [(*batch[nth], bits) for nth, bits in sorted(held.items())]
