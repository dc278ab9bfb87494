"""Write a copy of a SQLite export without values that identify people and machines. All other values are unchanged.

The export is copied into a temporary SQLite database whose file has no name. Therefore, no unredacted data remains on
disk if the process is killed. The copy is changed in place and then written with ``VACUUM INTO``, which preserves
rowids but does not copy deleted values that remain in unused space of pages.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
from typing import TYPE_CHECKING

from tracekit.errors import CorruptTraceError, TracekitError, UnsupportedVersionError
from tracekit.readers.common.sqlite.database import Database
from tracekit.readers.common.sqlite_files import EXPORT_AGAIN, create_read_only_uri, quote_identifier
from tracekit.readers.nsys_sqlite.rewriting import StringColumns, check_expressions
from tracekit.readers.redaction import (
    ADDRESS,
    COMMAND,
    ENVIRONMENT,
    HOST,
    OUTPUT,
    USER,
    Redaction,
    extract_program_name,
    is_environment,
    is_local_device,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tracekit.registry.source import Source

_SETTINGS = (
    (ENVIRONMENT, r"(?:^|:)ENVIRONMENT_VARIABLE$"),
    (COMMAND, r"(?:^|:)(?:COMMAND|ARGUMENT_\d+|WORKING_DIR)$|^EXPORT_(?:\w+_)?PATH(?:_ABS)?$"),
    (USER, r"(?:^|:|_)USER(?:_NAME)?$"),
    (HOST, r"(?:^|:|_)HOST(?:_?NAME)?$|^DEVICE_DISPLAY_NAME$|^DEVICE_ID$"),
)
"""Kinds of private values in settings, each with a regular expression for the names of the settings."""

_PROPERTIES = {610: ENVIRONMENT, 619: HOST}
"""Numbers of the private properties of a machine, and the kind of the value of each property."""

_FOLDER_PROPERTIES = (170, 173)
_NIC_PROPERTY = 910
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

_UNWRITTEN = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
)


def write_redacted(source: Source, target: Path, key: bytes | None = None) -> dict[str, int]:
    """Write a copy of a SQLite export without values that identify people and machines.

    Args:
        source: Export to copy.
        target: Path of the copy, which must not exist.
        key: Key that determines the pseudonyms, or None for a random key.

    Returns:
        The number of redacted values of each kind.

    Raises:
        CorruptTraceError: The file is damaged, or its strings exceed the limits for a file of its size.
        UnsupportedVersionError: The strings of the export are not UTF-8.
        TracekitError: The export contains SQL that would run during redaction, or the file changed while it was read.
    """
    with _convert_sqlite_errors(source), _copy_to_temporary_database(source) as (db, version):
        counts = _RedactedExport(db, source, key).redact()
        db.execute("VACUUM INTO ?", (target.absolute().as_uri(),))
        with _open_writable_database(target.absolute().as_uri() + "?mode=rw") as copy:
            copy.execute(f"PRAGMA schema_version = {version}")
    return counts


def count_private_values(source: Source) -> dict[str, int]:
    """Return the number of values of each kind that ``write_redacted`` would redact, without writing a file.

    Raises:
        CorruptTraceError: The file is damaged, or its strings exceed the limits for a file of its size.
        UnsupportedVersionError: The strings of the export are not UTF-8.
        TracekitError: The export contains SQL that would run during redaction, or the file changed while it was read.
    """
    with _convert_sqlite_errors(source), _copy_to_temporary_database(source) as (db, _):
        return _RedactedExport(db, source, None).redact()


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


class _RedactedExport:
    """A temporary copy of an export that is being redacted."""

    def __init__(self, db: sqlite3.Connection, source: Source, key: bytes | None) -> None:
        self.db = db
        self.path = source.path
        self.redaction = Redaction(source.path, key)
        self._check_copy()
        self.strings = StringColumns(db, self.redaction, source.size)

    def redact(self) -> dict[str, int]:
        """Replace private values, and overwrite names from these values in all other strings.

        Returns:
            The number of redacted values of each kind.
        """
        self.db.execute("BEGIN")
        for table in ("META_DATA_CAPTURE", "EXPORT_META_DATA", "META_DATA_EXPORT"):
            self._redact_settings(table)
        self._redact_properties()
        self._redact_devices()
        self._redact_infiniband_devices()
        self._redact_environments()
        self._redact_outputs()
        self._redact_processes()
        self._redact_paths()
        self.strings.collect_private_names()
        self.strings.overwrite_private_values(self.redaction.build_matcher())
        if self.db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_stat4'").fetchone():
            self.db.execute("DELETE FROM sqlite_stat4")
        self.db.execute("COMMIT")
        return dict(self.redaction.counts)

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
        check_expressions(self.db, self.path)
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
                self._update_column(table, "value", named, self._redact_device_name, (name,))
            elif kind := _find_private_kind_of_setting((name or b"").decode("utf-8", "replace")):
                self._redact_column(kind, table, "value", named, (name,))

    def _redact_properties(self) -> None:
        """Redact the private properties of machines, including paths and the addresses of network devices."""
        table = "TARGET_INFO_SYSTEM_ENV"
        if self._has_columns(table, "nameEnum", "value"):
            for number, kind in _PROPERTIES.items():
                self._redact_column(kind, table, "value", f"nameEnum = {number}")
            for number in _FOLDER_PROPERTIES:
                self._update_column(table, "value", f"nameEnum = {number}", self.redaction.redact_folders)
            self._update_column(table, "value", f"nameEnum = {_NIC_PROPERTY}", self._redact_addresses)
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
                self._update_column(table, column, "TRUE", self._redact_device_name)

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

    def _redact_device_name(self, name: bytes) -> bytes:
        return name if is_local_device(name) else self.redaction.replace_value(HOST, name)

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
            self._update_column("PROCESSES", "name", "TRUE", self._remove_folder_from_name)

    def _remove_folder_from_name(self, name: bytes) -> bytes:
        shortened = extract_program_name(name)
        if shortened != name:
            self.redaction.replace_value(COMMAND, name)
        return shortened

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
