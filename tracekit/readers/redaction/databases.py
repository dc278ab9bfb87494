"""Write copies of SQLite databases without values that identify people and machines. All other values are unchanged.

The database is copied into a temporary SQLite database whose file has no name. Therefore, no unredacted data remains on
disk if the process is killed. The copy is changed in place and then written with ``VACUUM INTO``, which preserves
rowids but does not copy deleted values that remain in unused space of pages.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import sqlite3
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from tracekit.errors import CorruptTraceError, TracekitError, UnsupportedVersionError
from tracekit.readers.common.sqlite.database import Database
from tracekit.readers.common.sqlite_files import EXPORT_AGAIN, create_read_only_uri, quote_identifier
from tracekit.readers.redaction.matcher import (
    ALL_PATTERNS,
    LITERAL,
    MIN_BINARY_LENGTH,
    find_environment_candidates,
    join_masks,
    search_in_batches,
)
from tracekit.readers.redaction.state import Redaction
from tracekit.system.platform.file_names import build_sqlite_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from tracekit.readers.redaction.matcher import PrivateValueMatcher
    from tracekit.registry.source import Source

MAX_VALUE = 64 << 20
"""Maximum size of a value in bytes. Real exports have no larger values, and SQLite needs many times this size."""
_CACHE_KIB = 16 << 10
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
_SQL_TOKEN = re.compile(
    rb"--[^\n]*|/\*.*?(?:\*/|\Z)|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\[[^\]]*\]|`[^`]*`"
    rb"|[\w$\x80-\xff]+",
    re.DOTALL,
)
"""A comment, a string, a quoted name or another word in SQL."""
_COLUMNS_OF_NAMES = {"sqlite_sequence": ("name",), "sqlite_stat1": ("tbl", "idx")}
"""Tables of SQLite that contain names of tables and indexes, and the columns of these names."""
_MAX_EQUAL_VALUES = 1 << 16
"""Maximum number of values of a unique column that are equal after redaction."""
_GZIP = b"\x1f\x8b"
_UNWRITTEN = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
)


class Wording(NamedTuple):
    """How messages name the files of a format.

    Attributes:
        noun: What a file is, such as ``export``.
        hint: What to do if a file is damaged.
    """

    noun: str
    hint: str


def create_redactor(
    database: type[RedactedDatabase],
) -> Callable[[Source, Path | None, bytes | None], dict[str, int]]:
    """Return the function that copies the databases of a format.

    Args:
        database: Class that replaces the values that are private in this format.
    """

    def redact(source: Source, target: Path | None = None, key: bytes | None = None) -> dict[str, int]:
        """Write a copy of a database without values that identify people and machines.

        Args:
            source: Database to copy.
            target: Path of the copy, which must not exist. If None, the private values are only counted.
            key: Key that determines the pseudonyms, or None for a random key.

        Returns:
            The number of redacted values of each kind.

        Raises:
            CorruptTraceError: The file is damaged, or its strings exceed the limits for a file of its size.
            UnsupportedVersionError: The strings of the database are not UTF-8.
            TracekitError: The file is gzipped, contains SQL that would run during redaction, or changed while it was
                read.
        """
        if source.head.startswith(_GZIP):
            hint = "decompress it first: gunzip FILE"
            raise TracekitError("a gzipped database cannot be redacted", path=source.path, hint=hint)
        redaction = Redaction(source.path, key)
        with copy_database(source, redaction, database) as db:
            if target is not None:
                write_database(db, target)
        return dict(redaction.counts)

    return redact


@contextlib.contextmanager
def copy_database(source: Source, redaction: Redaction, database: type[RedactedDatabase]) -> Iterator[RedactedDatabase]:
    """Return a context manager that copies a database into a temporary one, redacts it, and deletes it at the end.

    Errors of SQLite in the ``with`` block are converted to errors about the database.
    """
    with _convert_sqlite_errors(source, database.wording), _copy_to_temporary_database(source) as (db, version):
        copy = database(db, source, redaction, version)
        copy.redact()
        yield copy


def write_database(database: RedactedDatabase, target: Path) -> None:
    """Write a redacted database to a path that does not exist."""
    database.db.execute("VACUUM INTO ?", (build_sqlite_uri(target),))
    with _open_writable_database(build_sqlite_uri(target) + "?mode=rw") as copy:
        copy.execute(f"PRAGMA schema_version = {database.version}")


@contextlib.contextmanager
def _copy_to_temporary_database(source: Source) -> Iterator[tuple[sqlite3.Connection, int]]:
    """Return a context manager that copies a database into a temporary database, and deletes the copy at the end.

    SQLite stores the database in its page cache. Pages that do not fit there are written to a file without a name.

    Yields:
        The connection, and the value of ``PRAGMA schema_version`` in the original, which the copy does not preserve.
    """
    Database(source).close()  # checks what SQLite reads at its first statement
    with source.open() as file, _open_writable_database("") as db:
        with contextlib.closing(sqlite3.connect(create_read_only_uri(source.path), uri=True)) as original:
            version = int(original.execute("PRAGMA schema_version").fetchone()[0])
            original.backup(db)
        file.state.check_unchanged(source.path)
        yield db, version


@contextlib.contextmanager
def _open_writable_database(uri: str) -> Iterator[sqlite3.Connection]:
    """Return a context manager that opens a writable database without a journal. Queries return strings as bytes."""
    with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
        db.text_factory = bytes
        for setting in (
            "trusted_schema = OFF",
            "ignore_check_constraints = ON",
            "journal_mode = OFF",
            "synchronous = OFF",
            f"cache_size = -{_CACHE_KIB}",
        ):
            db.execute(f"PRAGMA {setting}")
        yield db


@contextlib.contextmanager
def _convert_sqlite_errors(source: Source, wording: Wording) -> Iterator[None]:
    """Return a context manager that converts errors of SQLite to errors of tracekit or the operating system.

    An error is converted to an ``OSError`` if the copy cannot be written. All other errors are converted to a
    ``CorruptTraceError`` about the database.
    """
    try:
        yield
    except (sqlite3.Error, MemoryError) as e:
        if getattr(e, "sqlite_errorcode", None) in _UNWRITTEN:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from e
        message = f"the {wording.noun} cannot be redacted: {e}"
        raise CorruptTraceError(message, path=source.path, hint=wording.hint) from e
    except UnicodeDecodeError as e:
        message = f"the {wording.noun} cannot be redacted: the name of a table or column is not valid UTF-8"
        raise CorruptTraceError(message, path=source.path, hint=wording.hint) from e


class RedactedDatabase:
    """A temporary copy of a database that is being redacted.

    Attributes:
        wording: How messages name the files of the format.
        db: Connection to the copy.
        version: Value of ``PRAGMA schema_version`` in the original.
    """

    wording: ClassVar[Wording] = Wording("export", EXPORT_AGAIN)

    def __init__(self, db: sqlite3.Connection, source: Source, redaction: Redaction, version: int) -> None:
        self.db = db
        self.path = source.path
        self.redaction = redaction
        self.version = version
        self._check_copy()
        self.strings = _StringColumns(db, redaction, source.size, self.wording)

    def replace_private_fields(self) -> None:
        """Replace the values of columns and rows that hold only private values."""
        raise NotImplementedError

    def redact(self) -> None:
        """Replace private values, and overwrite names from these values in all other strings."""
        self.db.execute("BEGIN")
        self.replace_private_fields()
        self.strings.collect_private_names()
        matcher = self.redaction.build_matcher()
        self.strings.overwrite_private_values(matcher)
        for table in ("sqlite_stat3", "sqlite_stat4"):
            if self._exists(table):
                self.db.execute(f"DELETE FROM {table}")  # noqa: S608 - constant
        self.db.execute("COMMIT")
        self._overwrite_schema(matcher)

    def _overwrite_schema(self, matcher: PrivateValueMatcher) -> None:
        """Overwrite private values in the names of tables, and in the SQL that created tables, indexes and views.

        Raises:
            TracekitError: Two tables or indexes have the same name afterwards.
        """
        rows = self.db.execute("SELECT rowid, name, tbl_name, coalesce(sql, '') FROM sqlite_schema").fetchall()
        edited = [
            (
                row,
                self._overwrite_name(matcher, name),
                self._overwrite_name(matcher, table),
                self._overwrite_sql(matcher, sql),
            )
            for row, name, table, sql in rows
        ]
        if edited == rows:
            return
        if len({name for _, name, *_ in edited}) < len({name for _, name, *_ in rows}):
            message = "two tables or indexes have the same name after private values in their names are overwritten"
            raise TracekitError(message, path=self.path, hint=self.wording.hint)
        self.db.execute("PRAGMA writable_schema = ON")
        self.db.executemany(
            """UPDATE sqlite_schema SET name = CAST(?2 AS TEXT), tbl_name = CAST(?3 AS TEXT),
               sql = nullif(CAST(?4 AS TEXT), '') WHERE rowid = ?1""",
            edited,
        )
        self.db.execute("PRAGMA writable_schema = RESET")
        renamed = {old[1]: new[1] for old, new in zip(rows, edited, strict=True)}
        self.db.create_function("renamed", 1, lambda name: renamed.get(name, name))
        for table, columns in _COLUMNS_OF_NAMES.items():
            for column in columns if self._exists(table) else ():
                self.db.execute(f"UPDATE {table} SET {column} = CAST(renamed(CAST({column} AS BLOB)) AS TEXT)")  # noqa: S608 - constants

    def _overwrite_sql(self, matcher: PrivateValueMatcher, sql: bytes) -> bytes:
        """Overwrite the private values in SQL or in a name, so that the SQL is still valid.

        Names of hosts and users are overwritten only in comments and literals, because they may be equal to the name of
        a column that tracekit reads. Short names are not overwritten in comments, which explain columns.
        """
        candidates = matcher.find_candidates(sql)
        ends = list(accumulate((end for _, end, _ in candidates), max))

        def overwrite(token: re.Match[bytes]) -> bytes:
            nth = bisect_right(ends, token.start())
            if nth == len(ends) or candidates[nth][0] >= token.end():
                return token[0]
            is_comment = token[0].startswith((b"--", b"/*"))
            if is_comment or token[0].startswith(b"'"):
                min_length = MIN_BINARY_LENGTH * is_comment
                return self.redaction.overwrite_private_values(matcher, token[0], min_length=min_length)
            if token[0][:1] not in b'"`[':
                return self._overwrite_name(matcher, token[0])
            return token[0][:1] + self._overwrite_name(matcher, token[0][1:-1]) + token[0][-1:]

        return _SQL_TOKEN.sub(overwrite, sql) if candidates else sql

    def _overwrite_name(self, matcher: PrivateValueMatcher, name: bytes) -> bytes:
        """Overwrite the private values in the name of a table, index or column, except for names of hosts and users."""
        return self.redaction.overwrite_private_values(matcher, name, ALL_PATTERNS & ~LITERAL)

    def _exists(self, table: str) -> bool:
        return self.db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone() is not None

    def replace_ids_with_numbers(self, kind: str, columns: Sequence[tuple[str, str]], first: int) -> None:
        """Replace private ids in columns with the numbers 1, 2, and so on. Equal ids are replaced by equal numbers.

        Args:
            kind: Kind of the ids.
            columns: Table and name of each column.
            first: Smallest private id. Smaller numbers, except for negative ones, are not changed.
        """
        listed = [(quote_identifier(table), quote_identifier(column)) for table, column in columns]
        numbers: dict[int, int] = {}
        last = 0
        for table, column in listed:
            query = f"SELECT DISTINCT {column} FROM {table} WHERE typeof({column}) = 'integer'"  # noqa: S608 - quoted
            for (number,) in self.db.execute(query):
                if 0 <= number < first:
                    last = max(last, number)
                else:
                    numbers.setdefault(number, len(numbers) + 1)
        self.db.create_function("numbered", 1, lambda number: last + numbers[number])
        for table, column in listed:
            is_private = f"typeof({column}) = 'integer' AND ({column} < 0 OR {column} >= {first})"
            done = self.db.execute(f"UPDATE {table} SET {column} = numbered({column}) WHERE {is_private}")  # noqa: S608 - quoted
            self.redaction.counts[kind] += done.rowcount

    def _check_copy(self) -> None:
        """Raise an error if the copy is damaged, is not UTF-8, or has SQL that would run during redaction."""
        self.db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        triggers = self.db.execute("SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'").fetchone()[0]
        if triggers:
            raise TracekitError(
                f"the database has SQL triggers (count: {triggers}), which SQLite would run during redaction",
                path=self.path,
                hint=self.wording.hint,
            )
        encoding = self.db.execute("PRAGMA encoding").fetchone()[0]
        if encoding != b"UTF-8":
            raise UnsupportedVersionError(
                f"the strings of the {self.wording.noun} are encoded in {encoding.decode()}, but redaction supports "
                "only UTF-8",
                path=self.path,
                hint=self.wording.hint,
            )
        _check_expressions(self.db, self.path, self.wording.hint)
        damage = self.db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != b"ok":
            message = f"the {self.wording.noun} cannot be redacted: SQLite reports that its pages or rows are damaged"
            raise CorruptTraceError(message, path=self.path, hint=self.wording.hint)

    def has_columns(self, table: str, *columns: str) -> bool:
        """Return whether an ordinary table, which is not a view or virtual table, exists and has all given columns."""
        if table not in self.strings.columns:
            return False
        listed = {c.decode() for (c,) in self.db.execute("SELECT name FROM pragma_table_info(?)", (table,))}
        return set(columns) <= listed

    def redact_column(
        self, kind: str, table: str, column: str, condition: str, parameters: Sequence[bytes] = ()
    ) -> None:
        """Replace the private values of one kind in a column, in the rows that match a SQL condition."""
        self.update_column(
            table, column, condition, lambda value: self.redaction.replace_value(kind, value), parameters
        )

    def update_column(
        self,
        table: str,
        column: str,
        condition: str,
        function: Callable[[bytes], bytes],
        parameters: Sequence[bytes] = (),
    ) -> None:
        """Apply a function to each string and blob of a column, in the rows that match a SQL condition."""
        name = quote_identifier(column)
        is_chosen = f"typeof({name}) IN ('text', 'blob') AND ({condition})"
        rowid = self.strings.find_rowid(table)
        if rowid is not None:
            query = f"SELECT {rowid}, CAST({name} AS BLOB) FROM {quote_identifier(table)} NOT INDEXED WHERE {is_chosen}"  # noqa: S608 - quoted
            rows = self.db.execute(query, parameters)
            changed = [(row, after) for row, value in rows if (after := function(value)) != value]
            self.strings.update_rows(table, rowid, column, changed)
            return
        self.db.create_function("changed", 1, function)
        self.db.execute(
            f"""UPDATE {quote_identifier(table)} SET {name} = CASE typeof({name})
                WHEN 'text' THEN CAST(changed(CAST({name} AS BLOB)) AS TEXT) ELSE changed({name}) END
                WHERE {is_chosen}""",  # noqa: S608 - quoted
            parameters,
        )


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


class _StringColumns:
    """The columns that may hold strings in a temporary copy of a database.

    Attributes:
        columns: For each ordinary table, names of the columns that may hold strings. Generated columns and columns
            whose declared type is numeric are excluded.
        tables: The ordinary tables, each with the columns to search. A column is searched if it is in ``columns`` and
            has a non-empty string or blob.
    """

    def __init__(self, db: sqlite3.Connection, redaction: Redaction, size: int, wording: Wording) -> None:
        self.db = db
        self.redaction = redaction
        self._wording = wording
        self.columns = self._list_string_columns()
        self._max_bytes = self._bytes_left = MIN_STRING_BYTES + STRING_BYTES_PER_BYTE * size
        self._size = size
        self._max_values = self._values_left = MIN_VALUES + VALUES_PER_BYTE * size
        self.tables = [self._create_searched_table(name) for name in self.columns]

    def collect_private_names(self) -> None:
        """Collect private names from environment variables and paths of home folders in all strings."""
        find_candidates = functools.partial(find_environment_candidates, include_homes=True)
        for table in self.tables:
            for column in table.columns:
                for items, candidates in search_in_batches(self._read_values(table, column), find_candidates):
                    for nth in candidates:
                        self.redaction.collect_names_from_string(items[nth][1])

    def overwrite_private_values(self, matcher: PrivateValueMatcher) -> None:
        """Overwrite private names in all strings, as well as values with a private format such as UUIDs."""
        for table in self.tables:
            for column in table.columns:
                if table.rowid is None:
                    self._overwrite_row_by_row(table, column, matcher)
                    continue
                for items, candidates in search_in_batches(self._read_values(table, column), matcher.find_candidates):
                    masks = {nth: join_masks(ranges) for nth, ranges in candidates.items()}
                    changed = (
                        (row, text, self.redaction.overwrite_private_values(matcher, text, masks[nth]))
                        for nth, (row, text) in ((nth, items[nth]) for nth in masks)
                    )
                    if table.rowid is not None:
                        values = [(row, after) for row, text, after in changed if after != text]
                        self.update_rows(table.name, table.rowid, column, values)

    def update_rows(self, table: str, rowid: str, column: str, values: Iterable[tuple[int, bytes]]) -> None:
        """Write new values of a column, each with the rowid of its row.

        A number is appended to a value that the column already contains if its values have to be unique.

        Raises:
            CorruptTraceError: The database does not accept a value.
        """
        name = quote_identifier(column)
        statement = f"""UPDATE OR IGNORE {quote_identifier(table)}
            SET {name} = CASE typeof({name}) WHEN 'text' THEN CAST(:text AS TEXT) ELSE :text END
            WHERE {rowid} = :row"""  # noqa: S608 - quoted
        last: dict[bytes, int] = {}
        for row, value in values:
            text = value
            while not self.db.execute(statement, {"text": text, "row": row}).rowcount:
                last[value] = last.get(value, 1) + 1
                text = b"%b (%d)" % (value, last[value])
                if last[value] > _MAX_EQUAL_VALUES:
                    message = f"the {self._wording.noun} cannot be redacted: a table does not accept a redacted value"
                    raise CorruptTraceError(message, path=self.redaction.path, hint=self._wording.hint)

    def find_rowid(self, table: str) -> str | None:
        """Return the name of the rowid of a table in SQL, or None if it has none."""
        return next((searched.rowid for searched in self.tables if searched.name == table), None)

    def _overwrite_row_by_row(self, table: _SearchedTable, column: str, matcher: PrivateValueMatcher) -> None:
        """Overwrite the private values in a column of a table without rowids, one string at a time."""
        self.db.create_function("changed", 1, lambda value: self.redaction.overwrite_private_values(matcher, value))
        name = quote_identifier(column)
        self.db.execute(
            f"""UPDATE {quote_identifier(table.name)} SET {name} = CASE typeof({name})
                WHEN 'text' THEN CAST(changed(CAST({name} AS BLOB)) AS TEXT) ELSE changed({name}) END
                WHERE typeof({name}) IN ('text', 'blob')"""  # noqa: S608 - quoted
        )

    def _read_values(self, table: _SearchedTable, column: str) -> Iterator[tuple[int, bytes]]:
        """Yield the non-empty strings and blobs of a column, each value with its rowid.

        The number 0 replaces the rowid if the table has no rowids. The query scans the table instead of an index.
        Therefore, the caller may update rows while it reads them.

        Raises:
            CorruptTraceError: The values have more bytes in total than the limit for the size of the file.
        """
        name = quote_identifier(column)
        rows = self.db.execute(
            f"""SELECT {table.rowid or 0}, {name} FROM {quote_identifier(table.name)} NOT INDEXED
                WHERE +{name} COLLATE BINARY > ''"""  # noqa: S608 - quoted
        )
        for row in rows:
            self._bytes_left -= len(row[1])
            if self._bytes_left < 0:
                raise CorruptTraceError(
                    f"the {self._wording.noun} cannot be redacted: its strings have more than {self._max_bytes} "
                    f"bytes in total, which is too many for a file of {self._size} bytes",
                    path=self.redaction.path,
                    hint=self._wording.hint,
                )
            yield row

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
                f"the {self._wording.noun} cannot be redacted: its string columns have more than {self._max_values} "
                f"values in total, which is too many for a file of {self._size} bytes",
                path=self.redaction.path,
                hint=self._wording.hint,
            )


def _check_expressions(db: sqlite3.Connection, path: Path, hint: str) -> None:
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
            hint=hint,
        )
    defaults = """SELECT count(*) FROM sqlite_schema m, pragma_table_xinfo(m.name) c
                  WHERE m.type = 'table' AND m.rootpage > 0 AND length(c.dflt_value) > ?"""
    number = db.execute(defaults, (MAX_DEFAULT,)).fetchone()[0]
    if number:
        raise TracekitError(
            f"the database has {number} columns with a default value of more than {MAX_DEFAULT} bytes, which tracekit "
            "does not support",
            path=path,
            hint=hint,
        )


def _is_allowed_statement(sql: bytes) -> bool:
    """Return whether a ``CREATE`` statement calls only allowed functions, and does not contain ``||`` or ``->``."""
    _, _, body = sql.partition(b"(")
    calls = {name.lower() for name in re.findall(rb"(\w+)[\s\"'`\]]*\(", body)}
    return b"||" not in body and b"->" not in body and calls <= _ALLOWED_WORDS
