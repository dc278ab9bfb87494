"""Whole columns of a DLProf database, read by SQLite into Arrow.

The file is opened read-only and immutable, so that neither it nor its folder changes. A database is the report of one
run: tables of some million rows at most, which are read one at a time and whole.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tracekit.errors import CorruptTraceError, first_line
from tracekit.readers.common import columns as col
from tracekit.readers.common.sqlite_files import check_whole, connect, read_only_uri
from tracekit.readers.dlprof_db.tables import FIRST_ROWS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.registry import Source

AGAIN = "copy the database again from where DLProf wrote it"
_WHOLE = str(1 << 30)


class Database:
    """One opened database."""

    def __init__(self, source: Source) -> None:
        self.path = source.path
        check_whole(source, hint=AGAIN)
        self._uri = read_only_uri(source)

    @functools.cached_property
    def columns(self) -> Mapping[str, frozenset[str]]:
        """Columns of each ordinary table; views and virtual tables are nobody's data."""
        sql = """SELECT m.name, c.name FROM sqlite_schema m, pragma_table_xinfo(m.name) c
                 WHERE m.type = 'table' AND m.rootpage > 0"""
        found: dict[str, set[str]] = {}
        for table, column in self.query(sql):
            found.setdefault(table, set()).add(column)
        return {t: frozenset(c) for t, c in found.items()}

    def query(self, sql: str, *, table: str | None = None) -> list[tuple[Any, ...]]:
        """Run a small query; text comes as ``str``, with bytes that are not UTF-8 replaced."""
        try:
            with contextlib.closing(connect(self._uri)) as connection:
                return connection.execute(sql).fetchall()
        except (sqlite3.Error, UnicodeError) as e:  # what SQLite says of a damaged schema may quote bytes of it
            what = "its schema is damaged" if isinstance(e, UnicodeError) else str(e)
            raise CorruptTraceError(f"cannot be read: {what}", path=self.path, table=table, hint=AGAIN) from e

    def count(self, table: str) -> int:
        """Number of rows of a table; 0 if there is none of that name."""
        known = table in self.columns
        return int(self.query(f"SELECT count(*) FROM {table}", table=table)[0][0]) if known else 0  # noqa: S608 - ours

    def calls(self, table: str) -> int:
        """Number of calls of CUDA that a table tells of; 0 if there is none of that name."""
        sql = f"SELECT count(*) FROM ({FIRST_ROWS.format(table)})"  # noqa: S608 - ours
        return int(self.query(sql, table=table)[0][0]) if table in self.columns else 0

    def read(self, sql: str, kinds: Mapping[str, pa.DataType], *, table: str) -> dict[str, pa.Array]:
        """Run a query of ours and return its columns: integers and texts as wanted.

        Args:
            sql: The query; it names its columns as ``kinds`` does.
            kinds: Wanted columns: ``int64`` or ``string``.
            table: Table to be named if something is wrong.

        Raises:
            CorruptTraceError: The table is damaged, or a column holds something else.
        """
        data = self._fetch(sql, table)
        made = {}
        for name, kind in kinds.items():
            try:
                made[name], _ = col.typed(_untyped(col.whole(data[name]), kind), kind)
            except TypeError as e:
                what = f"column {name} holds something else than {e} values"
                raise CorruptTraceError(what, path=self.path, table=table, hint=AGAIN) from e
        return made

    @functools.cached_property
    def strings(self) -> col.Strings:
        """The dictionary of the database."""
        kinds = {"id": pa.int64(), "string": pa.string()}
        found = self.read("SELECT id, string FROM dictionary ORDER BY id", kinds, table="dictionary")
        return col.Strings(found["id"], found["string"])

    def _fetch(self, sql: str, table: str) -> pa.Table:
        from adbc_driver_manager import Error
        from adbc_driver_sqlite import dbapi

        try:
            with dbapi.connect(self._uri, autocommit=True) as connection, connection.cursor() as cursor:
                cursor.execute("PRAGMA trusted_schema = OFF")
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": _WHOLE})
                cursor.execute(sql)
                return cursor.fetch_arrow_table()
        except (Error, pa.ArrowException, OSError) as e:
            what = f"cannot be read: {first_line(e)}"
            raise CorruptTraceError(what, path=self.path, table=table, hint=AGAIN) from e


def _untyped(data: pa.Array, kind: pa.DataType) -> pa.Array:
    """Give a column without any value the type it is wanted in: SQLite has none for it."""
    return pa.nulls(len(data), kind) if data.null_count == len(data) else data
