"""Write a copy of a SQLite export without values that identify people and machines. All other values are unchanged.

The export is copied into a temporary SQLite database whose file has no name. Therefore, no unredacted data remains on
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
from typing import TYPE_CHECKING, NamedTuple

from tracekit.errors import CorruptTraceError, TracekitError, UnsupportedVersionError
from tracekit.readers.common.sqlite.database import Database
from tracekit.readers.common.sqlite_files import EXPORT_AGAIN, create_read_only_uri, quote_identifier
from tracekit.readers.redaction.matcher import find_environment_candidates, join_masks, search_in_batches
from tracekit.readers.redaction.patterns import ADDRESS, COMMAND, ENVIRONMENT, HOST, OUTPUT, USER, is_environment
from tracekit.readers.redaction.state import FOLDER_PROPERTIES, NETWORK_PROPERTY, PRIVATE_PROPERTIES, Redaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tracekit.readers.redaction.matcher import PrivateValueMatcher
    from tracekit.registry.source import Source

_SETTINGS = (
    (ENVIRONMENT, r"(?:^|:)ENVIRONMENT_VARIABLE$"),
    (COMMAND, r"(?:^|:)(?:COMMAND|ARGUMENT_\d+|WORKING_DIR)$|^EXPORT_(?:\w+_)?PATH(?:_ABS)?$"),
    (USER, r"(?:^|:|_)USER(?:_NAME)?$"),
    (HOST, r"(?:^|:|_)HOST(?:_?NAME)?$|^DEVICE_DISPLAY_NAME$|^DEVICE_ID$"),
)
"""Kinds of private values in settings, each with a regular expression for the names of the settings."""

_GUID = re.compile(rb'("GUID"\s*:\s*)("[^"]+"|-?\d+)')
_DEVICE_COLUMNS = {"TARGET_INFO_SYSTEM_ENV": "devStateName", "TARGET_INFO_NIC_INFO": "stateName"}
_PATH_COLUMNS = {"OSRT_FILE_ACCESS_DESCRIPTORS": "filePath", "ANALYSIS_FILE": "filename"}
_NETWORK_NAMES = ("name", "des")
"""Columns of the table of InfiniBand devices that usually hold the name of a host."""
_SWITCH_IDS = (("NET_IB_SWITCH_METRIC", "globalId"), ("NET_IB_SWITCH_CONGESTION_EVENT", "globalId"))
"""Tables about InfiniBand devices, and the column of each table that holds the globally unique ids of devices."""
_DEVICE_ID_COLUMN = re.compile(r"\w{0,40}guid|(?:\w{0,40}_)?mac(?:_?addr(?:ess)?)?", re.IGNORECASE)
"""Names of columns that hold globally unique ids or hardware addresses of devices, in any table."""
_DEVICE_ID = re.compile(rb"(?:0x)?(?:[0-9a-f]{12}|[0-9a-f]{16}|\d{12,20})", re.IGNORECASE)
_FIRST_GUID = 1 << 32
"""Smallest globally unique id. Smaller ids are numbers that an earlier redaction assigned."""
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

_UNWRITTEN = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
)


def redact(source: Source, target: Path | None = None, key: bytes | None = None) -> dict[str, int]:
    """Write a copy of a SQLite export without values that identify people and machines.

    Args:
        source: Export to copy.
        target: Path of the copy, which must not exist. If None, the private values are only counted.
        key: Key that determines the pseudonyms, or None for a random key.

    Returns:
        The number of redacted values of each kind.

    Raises:
        CorruptTraceError: The file is damaged, or its strings exceed the limits for a file of its size.
        UnsupportedVersionError: The strings of the export are not UTF-8.
        TracekitError: The export contains SQL that would run during redaction, or the file changed while it was read.
    """
    return redact_database(source, target, key, RedactedExport)


def redact_database(
    source: Source, target: Path | None, key: bytes | None, database: type[RedactedExport]
) -> dict[str, int]:
    """Write a copy of a SQLite database whose private values a class replaces, as ``redact`` does."""
    with _convert_sqlite_errors(source), _copy_to_temporary_database(source) as (db, version):
        counts = database(db, source, key).redact()
        if target is not None:
            db.execute("VACUUM INTO ?", (target.absolute().as_uri(),))
            with _open_writable_database(target.absolute().as_uri() + "?mode=rw") as copy:
                copy.execute(f"PRAGMA schema_version = {version}")
    return counts


@contextlib.contextmanager
def _copy_to_temporary_database(source: Source) -> Iterator[tuple[sqlite3.Connection, int]]:
    """Return a context manager that copies an export into a temporary database, and deletes the copy at the end.

    SQLite stores the database in its page cache. Pages that do not fit there are written to a file without a name.

    Yields:
        The connection, and the value of ``PRAGMA schema_version`` in the export, which the copy does not preserve.
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
def _convert_sqlite_errors(source: Source) -> Iterator[None]:
    """Return a context manager that converts errors of SQLite to errors of tracekit or the operating system.

    An error is converted to an ``OSError`` if the copy cannot be written. All other errors are converted to a
    ``CorruptTraceError`` about the export.
    """
    try:
        yield
    except (sqlite3.Error, MemoryError) as e:
        if getattr(e, "sqlite_errorcode", None) in _UNWRITTEN:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from e
        raise CorruptTraceError(f"the export cannot be redacted: {e}", path=source.path, hint=EXPORT_AGAIN) from e
    except UnicodeDecodeError as e:
        message = "the export cannot be redacted: the name of a table or column is not valid UTF-8"
        raise CorruptTraceError(message, path=source.path, hint=EXPORT_AGAIN) from e


class RedactedExport:
    """A temporary copy of an export that is being redacted."""

    def __init__(self, db: sqlite3.Connection, source: Source, key: bytes | None) -> None:
        self.db = db
        self.path = source.path
        self.redaction = Redaction(source.path, key)
        self._check_copy()
        self.strings = _StringColumns(db, self.redaction, source.size)

    def redact(self) -> dict[str, int]:
        """Replace private values, and overwrite names from these values in all other strings.

        Returns:
            The number of redacted values of each kind.
        """
        self.db.execute("BEGIN")
        self.replace_private_fields()
        self.strings.collect_private_names()
        self.strings.overwrite_private_values(self.redaction.build_matcher())
        if self.db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_stat4'").fetchone():
            self.db.execute("DELETE FROM sqlite_stat4")
        self.db.execute("COMMIT")
        return dict(self.redaction.counts)

    def replace_private_fields(self) -> None:
        """Replace the values of columns and rows that hold only private values."""
        for table in ("META_DATA_CAPTURE", "EXPORT_META_DATA", "META_DATA_EXPORT"):
            self._redact_settings(table)
        self._redact_properties()
        self._redact_devices()
        self._redact_infiniband_devices()
        self._redact_environments()
        self._redact_outputs()
        self._redact_processes()
        self._redact_paths()

    def _check_copy(self) -> None:
        """Raise an error if the copy is damaged, is not UTF-8, or has SQL that would run during redaction."""
        self.db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        triggers = self.db.execute("SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'").fetchone()[0]
        if triggers:
            raise TracekitError(
                f"the database has SQL triggers (count: {triggers}), which SQLite would run during redaction",
                path=self.path,
                hint=EXPORT_AGAIN,
            )
        encoding = self.db.execute("PRAGMA encoding").fetchone()[0]
        if encoding != b"UTF-8":
            raise UnsupportedVersionError(
                f"the strings of the export are encoded in {encoding.decode()}, but redaction supports only UTF-8",
                path=self.path,
                hint=EXPORT_AGAIN,
            )
        _check_expressions(self.db, self.path)
        damage = self.db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != b"ok":
            message = "the export cannot be redacted: SQLite reports that its pages or rows are damaged"
            raise CorruptTraceError(message, path=self.path, hint=EXPORT_AGAIN)

    def _has_columns(self, table: str, *columns: str) -> bool:
        """Return whether an ordinary table, which is not a view or virtual table, exists and has all given columns."""
        if table not in self.strings.columns:
            return False
        listed = {c.decode() for (c,) in self.db.execute("SELECT name FROM pragma_table_info(?)", (table,))}
        return set(columns) <= listed

    def _redact_settings(self, table: str) -> None:
        """Replace the private values in a table of settings, which has the columns ``name`` and ``value``."""
        if not self._has_columns(table, "name", "value"):
            return
        for (name,) in self.db.execute(f"SELECT DISTINCT CAST(name AS BLOB) FROM {table}").fetchall():  # noqa: S608
            named = "name = CAST(? AS TEXT)"
            if name == b"DEVICE_ID":
                self._update_column(table, "value", named, self.redaction.replace_device_name, (name,))
            elif kind := _find_private_kind_of_setting((name or b"").decode("utf-8", "replace")):
                self._redact_column(kind, table, "value", named, (name,))

    def _redact_properties(self) -> None:
        """Redact the private properties of machines, including paths and the addresses of network devices."""
        table = "TARGET_INFO_SYSTEM_ENV"
        if self._has_columns(table, "nameEnum", "value"):
            for number, kind in PRIVATE_PROPERTIES.items():
                self._redact_column(kind, table, "value", f"nameEnum = {number}")
            for number in FOLDER_PROPERTIES:
                self._update_column(table, "value", f"nameEnum = {number}", self.redaction.redact_folders)
            self._update_column(table, "value", f"nameEnum = {NETWORK_PROPERTY}", self._redact_addresses)
        if self._has_columns("TARGET_INFO_NIC_INFO", "GUID"):
            done = self.db.execute("UPDATE TARGET_INFO_NIC_INFO SET GUID = 0 WHERE GUID <> 0")
            self.redaction.counts[ADDRESS] += done.rowcount

    def _redact_addresses(self, text: bytes) -> bytes:
        cleared, number = _GUID.subn(rb'\1""', text)
        self.redaction.counts[ADDRESS] += number
        return cleared

    def _redact_devices(self) -> None:
        """Replace all device names that do not denote the local machine, because they contain a host name."""
        for table, column in _DEVICE_COLUMNS.items():
            if self._has_columns(table, column):
                self._update_column(table, column, "TRUE", self.redaction.replace_device_name)

    def _redact_infiniband_devices(self) -> None:
        """Replace the names of InfiniBand devices, and the unique ids of devices in all tables.

        Equal ids are replaced by equal numbers.
        """
        for column in _NETWORK_NAMES:
            if self._has_columns("NET_IB_DEVICE_INFO", column):
                self._redact_column(HOST, "NET_IB_DEVICE_INFO", column, "TRUE")
        listed = [(table, column) for table, column in _SWITCH_IDS if self._has_columns(table, column)]
        for table in self.strings.columns:
            names = [c.decode() for (c,) in self.db.execute("SELECT name FROM pragma_table_info(?)", (table,))]
            listed += [(table, name) for name in names if _DEVICE_ID_COLUMN.fullmatch(name)]
        for table, column in listed:
            self._update_column(table, column, "TRUE", self._overwrite_device_id)
        listed = [(quote_identifier(table), quote_identifier(column)) for table, column in listed]
        numbers: dict[int, int] = {}
        last = 0
        for table, column in listed:
            query = f"SELECT DISTINCT {column} FROM {table} WHERE typeof({column}) = 'integer'"  # noqa: S608 - constants
            for (number,) in self.db.execute(query):
                if 0 <= number < _FIRST_GUID:
                    last = max(last, number)
                else:
                    numbers.setdefault(number, len(numbers) + 1)
        self.db.create_function("numbered", 1, lambda number: last + numbers[number])
        for table, column in listed:
            is_guid = f"typeof({column}) = 'integer' AND ({column} < 0 OR {column} >= {_FIRST_GUID})"
            done = self.db.execute(f"UPDATE {table} SET {column} = numbered({column}) WHERE {is_guid}")  # noqa: S608 - constants
            self.redaction.counts[ADDRESS] += done.rowcount

    def _overwrite_device_id(self, text: bytes) -> bytes:
        if not _DEVICE_ID.fullmatch(text):
            return text
        self.redaction.counts[ADDRESS] += 1
        return b"x" * len(text)

    def _redact_environments(self) -> None:
        """Replace the strings that contain the environment variables of processes with empty strings."""
        if self._has_columns("StringIds", "value"):
            self._update_column("StringIds", "value", "instr(value, '=')", self._redact_environment)

    def _redact_environment(self, text: bytes) -> bytes:
        return self.redaction.replace_value(ENVIRONMENT, text) if is_environment(text) else text

    def _redact_outputs(self) -> None:
        """Replace the recorded output of the profiled programs with empty strings."""
        for table in ("ProcessStreams", "ANALYSIS_FILE"):
            if self._has_columns(table, "contentId") and self._has_columns("StringIds", "id", "value"):
                self._redact_column(OUTPUT, "StringIds", "value", f"id IN (SELECT contentId FROM {table})")  # noqa: S608
            if self._has_columns(table, "content"):
                self._redact_column(OUTPUT, table, "content", "TRUE")

    def _redact_processes(self) -> None:
        """Remove the folders from process names that are paths of programs."""
        if self._has_columns("PROCESSES", "name"):
            self._update_column("PROCESSES", "name", "TRUE", self.redaction.shorten_program_name)

    def _redact_paths(self) -> None:
        """Overwrite private folder names in file paths."""
        for table, column in _PATH_COLUMNS.items():
            if self._has_columns(table, column):
                self._update_column(table, column, "TRUE", self.redaction.redact_folders)

    def _redact_column(
        self, kind: str, table: str, column: str, condition: str, parameters: Sequence[bytes] = ()
    ) -> None:
        """Replace the private values of one kind in a column, in the rows that match a SQL condition."""
        self._update_column(
            table, column, condition, lambda value: self.redaction.replace_value(kind, value), parameters
        )

    def _update_column(
        self,
        table: str,
        column: str,
        condition: str,
        function: Callable[[bytes], bytes],
        parameters: Sequence[bytes] = (),
    ) -> None:
        """Apply a function to each string and blob of a column, in the rows that match a SQL condition."""
        name = quote_identifier(column)
        self.db.create_function("changed", 1, function)
        self.db.execute(
            f"""UPDATE {quote_identifier(table)} SET {name} = CASE typeof({name})
                WHEN 'text' THEN CAST(changed(CAST({name} AS BLOB)) AS TEXT) ELSE changed({name}) END
                WHERE typeof({name}) IN ('text', 'blob') AND ({condition})""",  # noqa: S608 - quoted
            parameters,
        )


def _find_private_kind_of_setting(name: str) -> str | None:
    """Return the kind of the private values of a setting, or None if its values are not private."""
    return next((kind for kind, pattern in _SETTINGS if re.search(pattern, name)), None)


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
                    self._update_column(table, column, [(row, after) for row, text, after in changed if after != text])

    def _update_column(self, table: _SearchedTable, column: str, values: list[tuple[int, bytes]]) -> None:
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
                    f"the export cannot be redacted: its strings have more than {self._max_bytes} bytes in total, "
                    f"which is too many for a file of {self._size} bytes",
                    path=self.redaction.path,
                    hint=EXPORT_AGAIN,
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
                f"the export cannot be redacted: its string columns have more than {self._max_values} values in total, "
                f"which is too many for a file of {self._size} bytes",
                path=self.redaction.path,
                hint=EXPORT_AGAIN,
            )


def _check_expressions(db: sqlite3.Connection, path: Path) -> None:
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
