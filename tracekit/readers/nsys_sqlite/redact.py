"""A copy of an export without environments, command lines, host and user names; every other value is the same.

The file is copied, the copy is changed, and what is left is written anew, row numbers kept: nothing lingers in pages
that are free or half full.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sqlite3
import tempfile
from pathlib import Path
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
    without_folder,
)
from tracekit.readers.common.sqlite_files import EXPORT_AGAIN, check_whole, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.readers.common.redaction import Names
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

_NIC_PROPERTY = 910
_GUID = re.compile(rb'("GUID"\s*:\s*)("[^"]+"|-?\d+)')
_DEVICE_COLUMNS = {"TARGET_INFO_SYSTEM_ENV": "devStateName", "TARGET_INFO_NIC_INFO": "stateName"}
_MOST_MARKS = 100
"""A condition may not have very many parts."""

_UNWRITTEN = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
)


def redacted(source: Source, target: Path) -> dict[str, int]:
    """Write a copy without what identifies people and machines.

    Returns:
        How many values were emptied, by kind.

    Raises:
        CorruptTraceError: The file is damaged.
        TracekitError: It cannot be changed as it is.
    """
    check_whole(source)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder, _located(source):
        copy, fresh = Path(folder) / "copy.sqlite", Path(folder) / "fresh.sqlite"
        shutil.copyfile(source.path, copy)
        with _opened(copy) as db:
            counts = _Export(db, source.path).redact()
            db.execute("VACUUM INTO ?", (fresh.as_uri(),))
            version = db.execute("PRAGMA schema_version").fetchone()[0]
        with _opened(fresh) as db:
            db.execute(f"PRAGMA schema_version = {int(version)}")
        fresh.replace(target)
    return counts


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file of our own, to be changed without a journal; text comes as bytes."""
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None)) as db:
        db.text_factory = bytes
        for setting in ("trusted_schema = OFF", "journal_mode = OFF", "synchronous = OFF"):
            db.execute(f"PRAGMA {setting}")
        yield db


@contextlib.contextmanager
def _located(source: Source) -> Iterator[None]:
    """Turn SQLite's errors into ours; a full disk is the target's."""
    try:
        yield
    except sqlite3.Error as e:
        if getattr(e, "sqlite_errorcode", None) in _UNWRITTEN:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from e
        raise CorruptTraceError(f"cannot be redacted: {e}", path=source.path, hint=EXPORT_AGAIN) from e
    except UnicodeDecodeError as e:
        said = "cannot be redacted: a table or column has a name that is not UTF-8"
        raise CorruptTraceError(said, path=source.path, hint=EXPORT_AGAIN) from e


class _Export:
    """The copy of an export, while it is redacted."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self.db = db
        self.path = path
        self.redaction = Redaction(path)
        self._check()
        self.columns = self._catalogue()

    def redact(self) -> dict[str, int]:
        """Empty what is known by its place, then overwrite the names that this gave away."""
        self.db.execute("BEGIN")
        for table in ("META_DATA_CAPTURE", "EXPORT_META_DATA", "META_DATA_EXPORT"):
            self._empty_settings(table)
        self._empty_properties()
        self._empty_devices()
        self._empty_environments()
        self._empty_outputs()
        self._shorten_processes()
        self._overwrite(self.redaction.names())
        self.db.execute("COMMIT")
        return dict(self.redaction.counts)

    def _check(self) -> None:
        """Refuse what nsys does not write, and what would run while the copy is changed."""
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

    def _catalogue(self) -> dict[str, list[str]]:
        """Return the columns of each ordinary table that can be set and may hold text, by SQLite's rule of affinity."""
        sql = """SELECT m.name, c.name, c.type FROM sqlite_schema m, pragma_table_xinfo(m.name) c
                 WHERE m.type = 'table' AND m.rootpage > 0 AND c.hidden = 0 AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
                 ORDER BY m.name, c.cid"""
        found: dict[str, list[str]] = {}
        for table, column, kind in self.db.execute(sql):
            listed = found.setdefault(table.decode(), [])
            if not re.search(rb"INT|REAL|FLOA|DOUB", kind, re.IGNORECASE):
                listed.append(column.decode())
        return found

    def _has(self, table: str, *columns: str) -> bool:
        """Whether a table has some columns; they may be of numbers."""
        if table not in self.columns:
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
        made = without_folder(name)
        if made != name:
            self.redaction.take(COMMAND, name)
        return made

    def _overwrite(self, names: Names) -> None:
        """Overwrite names wherever else they stand."""
        for table, columns in self.columns.items():
            for column in columns:
                for at in range(0, len(names.marks), _MOST_MARKS):
                    marks = names.marks[at : at + _MOST_MARKS]
                    marked = " OR ".join([f"instr({quote(column)}, CAST(? AS TEXT))"] * len(marks))
                    self._edit(table, column, marked, lambda v: self.redaction.overwrite(names, v), marks)
        if self.db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_stat4'").fetchone():
            self.db.execute("DELETE FROM sqlite_stat4")

    def _take(self, kind: str, table: str, column: str, where: str, parameters: Sequence[bytes] = ()) -> None:
        """Empty the texts in a column of the rows that meet a condition."""
        self._edit(table, column, where, lambda value: self.redaction.take(kind, value), parameters)

    def _edit(
        self, table: str, column: str, where: str, change: Callable[[bytes], bytes], parameters: Sequence[bytes] = ()
    ) -> None:
        """Change the texts and bytes in a column of the rows that meet a condition."""
        name = quote(column)
        self.db.create_function("changed", 1, change)
        self.db.execute(
            f"""UPDATE {quote(table)} SET {name} = CASE typeof({name})
                WHEN 'text' THEN CAST(changed(CAST({name} AS BLOB)) AS TEXT) ELSE changed({name}) END
                WHERE typeof({name}) IN ('text', 'blob') AND ({where})""",  # noqa: S608 - quoted
            parameters,
        )


def _kind_of_setting(name: str) -> str | None:
    return next((kind for kind, pattern in _SETTINGS if re.search(pattern, name)), None)
