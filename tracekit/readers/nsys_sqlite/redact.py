"""A copy of an export without what identifies people and machines; every other value is the same.

The export is copied into a private database of SQLite, whose file has no name, so that nothing unredacted is left when
the process ends in whatever way. There it is changed, and what is left is written anew, row numbers kept: nothing
lingers in pages that are free or half full.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
from typing import TYPE_CHECKING

from tracekit.errors import CorruptTraceError, TracekitError, UnsupportedVersionError
from tracekit.readers.common.redaction import (
    ADDRESS,
    COMMAND,
    ENVIRONMENT,
    HOST,
    OUTPUT,
    USER,
    Redaction,
    is_environment,
    is_local,
    program_name,
)
from tracekit.readers.common.sqlite.database import Database
from tracekit.readers.common.sqlite_files import EXPORT_AGAIN, quote_identifier, read_only_uri
from tracekit.readers.nsys_sqlite.rewriting import Texts, check_expressions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tracekit.registry import Source

_SETTINGS = (
    (ENVIRONMENT, r"(?:^|:)ENVIRONMENT_VARIABLE$"),
    (COMMAND, r"(?:^|:)(?:COMMAND|ARGUMENT_\d+|WORKING_DIR)$|^EXPORT_(?:\w+_)?PATH(?:_ABS)?$"),
    (USER, r"(?:^|:|_)USER(?:_NAME)?$"),
    (HOST, r"(?:^|:|_)HOST(?:_?NAME)?$|^DEVICE_DISPLAY_NAME$|^DEVICE_ID$"),
)
"""Names of settings whose values are of a kind."""

_PROPERTIES = {610: ENVIRONMENT, 619: HOST}
"""Properties of the machine by number."""

_FOLDER_PROPERTIES = (170, 173)
_NIC_PROPERTY = 910
_GUID = re.compile(rb'("GUID"\s*:\s*)("[^"]+"|-?\d+)')
_DEVICE_COLUMNS = {"TARGET_INFO_SYSTEM_ENV": "devStateName", "TARGET_INFO_NIC_INFO": "stateName"}
_PATH_COLUMNS = {"OSRT_FILE_ACCESS_DESCRIPTORS": "filePath", "ANALYSIS_FILE": "filename"}
MAX_VALUE = 64 << 20
"""Bytes that a value may have: longer ones are in no export, and need many times their size in memory."""
_CACHE_KIB = 16 << 10

_UNWRITTEN = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
)


def redacted(source: Source, target: Path, key: bytes | None = None) -> dict[str, int]:
    """Write a copy without what identifies people and machines.

    Args:
        source: The export.
        target: Path of the copy, which does not exist yet.
        key: Makes the pseudonyms; the same key makes the same ones. None for a random key.

    Returns:
        How many values were replaced, by kind.

    Raises:
        CorruptTraceError: The file is damaged, or looking through it would cost more than a file of its size may.
        UnsupportedVersionError: Its texts are not UTF-8.
        TracekitError: It cannot be changed as it is, or it changed while it was read.
    """
    with _located(source), _private_copy(source) as (db, version):
        counts = _Export(db, source, key).redact()
        db.execute("VACUUM INTO ?", (target.absolute().as_uri(),))
        with _opened(target.absolute().as_uri() + "?mode=rw") as copy:
            copy.execute(f"PRAGMA schema_version = {version}")
    return counts


def remaining(source: Source) -> dict[str, int]:
    """Count what ``redacted`` would replace, by kind, without writing anything.

    Raises:
        CorruptTraceError: The file is damaged, or looking through it would cost more than a file of its size may.
        UnsupportedVersionError: Its texts are not UTF-8.
        TracekitError: It cannot be changed as it is, or it changed while it was read.
    """
    with _located(source), _private_copy(source) as (db, _):
        return _Export(db, source, None).redact()


@contextlib.contextmanager
def _private_copy(source: Source) -> Iterator[tuple[sqlite3.Connection, int]]:
    """Copy an export into a database that only this connection sees, and which is gone with it.

    SQLite keeps it in memory as far as its cache goes, and the rest in a file that it removes as soon as it is open.

    Yields:
        The connection, and the version of the schema, which copying changes.
    """
    Database(source).close()  # checks what SQLite would read with its first statement
    with source.open() as file, _opened("") as db:
        with contextlib.closing(sqlite3.connect(read_only_uri(source.path), uri=True)) as original:
            version = int(original.execute("PRAGMA schema_version").fetchone()[0])
            original.backup(db)
        file.state.check(source.path)
        yield db, version


@contextlib.contextmanager
def _opened(uri: str) -> Iterator[sqlite3.Connection]:
    """Open a database of our own, to be changed without a journal; text comes as bytes."""
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
def _located(source: Source) -> Iterator[None]:
    """Turn SQLite's errors into ours; a full disk is the target's."""
    try:
        yield
    except (sqlite3.Error, MemoryError) as e:
        if getattr(e, "sqlite_errorcode", None) in _UNWRITTEN:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from e
        raise CorruptTraceError(f"cannot be redacted: {e}", path=source.path, hint=EXPORT_AGAIN) from e
    except UnicodeDecodeError as e:
        said = "cannot be redacted: a table or column has a name that is not UTF-8"
        raise CorruptTraceError(said, path=source.path, hint=EXPORT_AGAIN) from e


class _Export:
    """The copy of an export, while it is redacted."""

    def __init__(self, db: sqlite3.Connection, source: Source, key: bytes | None) -> None:
        self.db = db
        self.path = source.path
        self.redaction = Redaction(source.path, key)
        self._check()
        self.texts = Texts(db, self.redaction, source.size)

    def redact(self) -> dict[str, int]:
        """Replace what is known by its place, then overwrite the names that this gave away."""
        self.db.execute("BEGIN")
        for table in ("META_DATA_CAPTURE", "EXPORT_META_DATA", "META_DATA_EXPORT"):
            self._empty_settings(table)
        self._empty_properties()
        self._empty_devices()
        self._empty_environments()
        self._empty_outputs()
        self._shorten_processes()
        self._shorten_paths()
        self.texts.learn()
        self.texts.overwrite(self.redaction.names())
        if self.db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_stat4'").fetchone():
            self.db.execute("DELETE FROM sqlite_stat4")
        self.db.execute("COMMIT")
        return dict(self.redaction.counts)

    def _check(self) -> None:
        """Refuse what is damaged, what nsys does not write, and what would run while the copy is changed."""
        self.db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        triggers = self.db.execute("SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'").fetchone()[0]
        if triggers:
            raise TracekitError(
                f"holds {triggers} triggers, which would run when it is changed",
                path=self.path,
                hint="drop them, or export it again: nsys export --type sqlite REPORT",
            )
        encoding = self.db.execute("PRAGMA encoding").fetchone()[0]
        if encoding != b"UTF-8":
            raise UnsupportedVersionError(
                f"its texts are encoded in {encoding.decode()}; only UTF-8 is redacted",
                path=self.path,
                hint=EXPORT_AGAIN,
            )
        check_expressions(self.db, self.path)
        damage = self.db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != b"ok":
            said = "cannot be redacted: its pages or rows do not hold together"
            raise CorruptTraceError(said, path=self.path, hint=EXPORT_AGAIN)

    def _has(self, table: str, *columns: str) -> bool:
        """Whether a table has some columns; they may be of numbers."""
        if table not in self.texts.columns:
            return False
        listed = {c.decode() for (c,) in self.db.execute("SELECT name FROM pragma_table_info(?)", (table,))}
        return set(columns) <= listed

    def _empty_settings(self, table: str) -> None:
        """Empty the values of the settings that are of a kind."""
        if not self._has(table, "name", "value"):
            return
        for (name,) in self.db.execute(f"SELECT DISTINCT CAST(name AS BLOB) FROM {table}").fetchall():  # noqa: S608
            named = "name = CAST(? AS TEXT)"
            if name == b"DEVICE_ID":
                self._edit(table, "value", named, self._device, (name,))
            elif kind := _kind_of_setting((name or b"").decode("utf-8", "replace")):
                self._take(kind, table, "value", named, (name,))

    def _empty_properties(self) -> None:
        """Empty properties of the machine, among them the addresses of its network devices."""
        table = "TARGET_INFO_SYSTEM_ENV"
        if self._has(table, "nameEnum", "value"):
            for number, kind in _PROPERTIES.items():
                self._take(kind, table, "value", f"nameEnum = {number}")
            for number in _FOLDER_PROPERTIES:
                self._edit(table, "value", f"nameEnum = {number}", self.redaction.folders)
            self._edit(table, "value", f"nameEnum = {_NIC_PROPERTY}", self._without_addresses)
        if self._has("TARGET_INFO_NIC_INFO", "GUID"):
            done = self.db.execute("UPDATE TARGET_INFO_NIC_INFO SET GUID = 0 WHERE GUID <> 0")
            self.redaction.counts[ADDRESS] += done.rowcount

    def _without_addresses(self, text: bytes) -> bytes:
        made, number = _GUID.subn(rb'\1""', text)
        self.redaction.counts[ADDRESS] += number
        return made

    def _empty_devices(self) -> None:
        """Empty the names of devices that are hosts."""
        for table, column in _DEVICE_COLUMNS.items():
            if self._has(table, column):
                self._edit(table, column, "TRUE", self._device)

    def _device(self, name: bytes) -> bytes:
        return name if is_local(name) else self.redaction.take(HOST, name)

    def _empty_environments(self) -> None:
        """Empty the environments of processes among the strings."""
        if self._has("StringIds", "value"):
            self._edit("StringIds", "value", "instr(value, '=')", self._environment)

    def _environment(self, text: bytes) -> bytes:
        return self.redaction.take(ENVIRONMENT, text) if is_environment(text) else text

    def _empty_outputs(self) -> None:
        """Empty what the programs printed."""
        for table in ("ProcessStreams", "ANALYSIS_FILE"):
            if self._has(table, "contentId") and self._has("StringIds", "id", "value"):
                self._take(OUTPUT, "StringIds", "value", f"id IN (SELECT contentId FROM {table})")  # noqa: S608
            if self._has(table, "content"):
                self._take(OUTPUT, table, "content", "TRUE")

    def _shorten_processes(self) -> None:
        """Leave the name of each process, without the folder of its program."""
        if self._has("PROCESSES", "name"):
            self._edit("PROCESSES", "name", "TRUE", self._shortened)

    def _shortened(self, name: bytes) -> bytes:
        made = program_name(name)
        if made != name:
            self.redaction.take(COMMAND, name)
        return made

    def _shorten_paths(self) -> None:
        """Overwrite private folders in the paths of files that were used or written."""
        for table, column in _PATH_COLUMNS.items():
            if self._has(table, column):
                self._edit(table, column, "TRUE", self.redaction.folders)

    def _take(self, kind: str, table: str, column: str, where: str, parameters: Sequence[bytes] = ()) -> None:
        """Empty the texts in a column of the rows that meet a condition."""
        self._edit(table, column, where, lambda value: self.redaction.take(kind, value), parameters)

    def _edit(
        self, table: str, column: str, where: str, change: Callable[[bytes], bytes], parameters: Sequence[bytes] = ()
    ) -> None:
        """Change the texts and bytes in a column of the rows that meet a condition."""
        name = quote_identifier(column)
        self.db.create_function("changed", 1, change)
        self.db.execute(
            f"""UPDATE {quote_identifier(table)} SET {name} = CASE typeof({name})
                WHEN 'text' THEN CAST(changed(CAST({name} AS BLOB)) AS TEXT) ELSE changed({name}) END
                WHERE typeof({name}) IN ('text', 'blob') AND ({where})""",  # noqa: S608 - quoted
            parameters,
        )


def _kind_of_setting(name: str) -> str | None:
    return next((kind for kind, pattern in _SETTINGS if re.search(pattern, name)), None)
