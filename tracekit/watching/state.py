"""Store the state of a watch in a SQLite file, so that a killed watch continues without loss or double counting.

Everything that one capture or one window changes is one transaction, so the file always contains all or nothing of it.
The state is locked as long as the watch runs. Its size depends on the number of ranks and of files that still exist,
not on how many captures there were: the summaries of a few windows are kept, and the contents of a million captures.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tracekit.core.watch import Alarm, CapturePlace, CaptureSummary, WatchWindow, identify
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

VERSION = 1
MAX_CONTENTS = 1 << 20
"""Number of captures whose contents are remembered, so that a copy of one is not counted again."""
READ, DUPLICATE, OTHER, REPLACED, RETRY, BROKEN = "read", "duplicate", "other", "replaced", "retry", "broken"
FINAL = (READ, DUPLICATE, OTHER, BROKEN)
"""The states of files that are not read again unless they change."""
_APPLICATION_ID = 0x746B7761
_HEAD, _HEAD_BYTES, _APPLICATION_OFFSET = b"SQLite format 3\0", 100, 68
"""Start of a database, the size of its header, and where it states the application (sqlite.org/fileformat2.html)."""
_COLUMNS = {
    "facts": "(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "files": "(path BLOB PRIMARY KEY, fingerprint TEXT NOT NULL, status TEXT NOT NULL, attempts INTEGER NOT NULL) "
    "WITHOUT ROWID",
    "contents": "(number INTEGER PRIMARY KEY, content TEXT NOT NULL UNIQUE)",
    "windows": "(number INTEGER PRIMARY KEY, is_closed INTEGER NOT NULL, opened_utc_ns INTEGER NOT NULL, "
    "place TEXT NOT NULL, world_size INTEGER)",
    "members": "(window INTEGER NOT NULL, rank INTEGER NOT NULL, file TEXT NOT NULL, is_compared INTEGER NOT NULL, "
    "PRIMARY KEY (window, rank)) WITHOUT ROWID",
    "summaries": "(number INTEGER PRIMARY KEY, window INTEGER NOT NULL, file TEXT NOT NULL, json TEXT NOT NULL)",
    "ranks": "(rank INTEGER PRIMARY KEY)",
    "alarms": "(id INTEGER PRIMARY KEY, json TEXT NOT NULL)",
    "ongoing": "(alarm TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID",
}
_SCHEMA = {name: f"CREATE TABLE {name} {columns}" for name, columns in _COLUMNS.items()}
_NEW_NAME = "move it away to start anew, which reads all captures again"
_ATTEMPTS_TO_LOCK, _PAUSE_S = 3, 0.1


class FileRecord(NamedTuple):
    """What is known about a file.

    Attributes:
        fingerprint: Shows whether the file changed.
        status: ``read``, ``duplicate`` (the content of another file), ``other`` (no capture of a timeline),
            ``replaced`` (another file contains the same run), ``retry`` (it could not be read so far) or ``broken``.
        attempts: How often it could not be read.
    """

    fingerprint: str
    status: str
    attempts: int = 0


class StoredWindow(NamedTuple):
    """A stored window.

    Attributes:
        window: The window.
        is_closed: Whether its ranks were compared. Captures may still be added.
        opened_utc_ns: When its first capture was read, in UTC.
        world_size: Number of ranks of the job according to its captures. None if it is unknown.
    """

    window: WatchWindow
    is_closed: bool
    opened_utc_ns: int
    world_size: int | None


class WatchState:
    """The state of a watch. Close it, or use it in a ``with`` statement.

    Attributes:
        watch: Random text that identifies the state.
    """

    def __init__(self, path: str | os.PathLike[str] | None, source: str) -> None:
        """Open a state file, which is created if it does not exist, and lock it.

        Args:
            path: The file. None for a state that is lost when the process ends.
            source: Folder or URL that is watched.

        Raises:
            TracekitError: The file is no state, is damaged, of another version or of another folder, or is in use.
        """
        self.path = None if path is None else Path(path)
        if self.path is not None:
            _check_head(self.path)
        with self._convert_errors():
            self._connection = sqlite3.connect(
                ":memory:" if self.path is None else os.fspath(self.path), isolation_level=None, timeout=0
            )
        try:
            with self._convert_errors():
                self._prepare(source)
        except BaseException:
            self._connection.close()
            raise
        self.watch = str(self.get_fact("watch"))

    def _prepare(self, source: str) -> None:
        """Lock the file, and check its content or create it."""
        query = self._connection.execute
        query("PRAGMA trusted_schema = OFF")
        query("PRAGMA locking_mode = EXCLUSIVE")
        self._lock()
        try:
            tables = query("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!'").fetchall()
            if not tables:
                self._create(source)
            else:
                self._check(tables, source)
            query("COMMIT")
        except BaseException:
            query("ROLLBACK")
            raise

    def _lock(self) -> None:
        for attempt in range(_ATTEMPTS_TO_LOCK):
            try:
                self._connection.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as e:
                if "locked" not in str(e) or attempt == _ATTEMPTS_TO_LOCK - 1:
                    raise
                time.sleep(_PAUSE_S)
            else:
                return

    def _create(self, source: str) -> None:
        for statement in _SCHEMA.values():
            self._connection.execute(statement)
        self._connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        self._connection.execute(f"PRAGMA user_version = {VERSION}")
        self.set_fact("source", source)
        self.set_fact("watch", os.urandom(8).hex())

    def _check(self, tables: Sequence[tuple[str, str]], source: str) -> None:
        """Check that the database is a state of this version and of this folder."""
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version != VERSION:
            message = f"this state has version {version}, but this version of tracekit reads version {VERSION}"
            raise TracekitError(message, path=self.path, hint=_NEW_NAME)
        problem = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok" or dict(tables) != _SCHEMA:
            raise self._create_damage_error(problem)
        known = self.get_fact("source")
        if known != source:
            message = f"this state belongs to another folder: {known}"
            raise TracekitError(message, path=self.path, hint="choose another state file")

    def _create_damage_error(self, reason: object) -> TracekitError:
        return TracekitError(f"the state is damaged: {reason}", path=self.path, hint=_NEW_NAME)

    @contextlib.contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Return a context manager that converts errors of SQLite to ``TracekitError``."""
        try:
            yield
        except sqlite3.OperationalError as e:
            if "locked" in str(e):
                message = "another watch uses this state"
                raise TracekitError(message, path=self.path, hint="end it, or choose another state file") from e
            raise TracekitError(f"the state cannot be used: {e}", path=self.path, hint="check the file and disk") from e
        except (sqlite3.DatabaseError, UnicodeError) as e:  # a damaged schema is part of messages of SQLite
            raise self._create_damage_error(e if isinstance(e, sqlite3.Error) else "its schema is no text") from e

    @contextlib.contextmanager
    def _convert_damage(self, what: str) -> Iterator[None]:
        """Return a context manager that converts errors of values that a state cannot contain to ``TracekitError``."""
        try:
            yield
        except TracekitError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
            raise self._create_damage_error(f"it contains {what} that cannot be read") from e

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Return a context manager for changes that are stored all at once, or not at all if there is an error."""
        with self._convert_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self._convert_errors():
            return self._connection.execute(statement, parameters).fetchall()

    def _read_json(self, text: object, what: str) -> Any:
        """Return the value of a stored JSON text."""
        with self._convert_damage(what):
            return json.loads(str(text))

    # Facts and counters

    def get_fact(self, name: str) -> str | None:
        """Return a stored text, or None if there is none."""
        rows = self._query("SELECT value FROM facts WHERE name = ?", name)
        return str(rows[0][0]) if rows else None

    def get_json_fact(self, name: str) -> Any:
        """Return a stored JSON value, or None if there is none."""
        text = self.get_fact(name)
        return None if text is None else self._read_json(text, f"a fact {name!r}")

    def get_number(self, name: str) -> int:
        """Return a stored number, or 0 if there is none."""
        with self._convert_damage(f"a number {name!r}"):
            return int(self.get_fact(name) or 0)

    def set_fact(self, name: str, value: str) -> None:
        """Store a text."""
        self._query("INSERT OR REPLACE INTO facts VALUES (?, ?)", name, value)

    def get_count(self, name: str) -> int:
        """Return a counter."""
        return self.get_number(f"count {name}")

    def count(self, name: str, number: int = 1) -> None:
        """Increase a counter."""
        self.set_fact(f"count {name}", str(self.get_count(name) + number))

    # Files

    def get_file(self, path: str) -> FileRecord | None:
        """Return what is known about a file."""
        rows = self._query("SELECT fingerprint, status, attempts FROM files WHERE path = ?", os.fsencode(path))
        return FileRecord(*rows[0]) if rows else None

    def set_file(self, path: str, record: FileRecord) -> None:
        """Store what is known about a file."""
        self._query("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", os.fsencode(path), *record)

    def count_files(self) -> int:
        """Return the number of files about which something is known."""
        return int(self._query("SELECT count(*) FROM files")[0][0])

    def forget_files(self, exists: Any, *, batch: int = 1000) -> None:
        """Forget files for whose path a function returns False. Their contents are still remembered."""
        last = b""
        while rows := self._query("SELECT path FROM files WHERE path > ? ORDER BY path LIMIT ?", last, batch):
            last = rows[-1][0]
            absent = [path for (path,) in rows if not exists(os.fsdecode(path))]
            if absent:
                with self.change():
                    for path in absent:
                        self._query("DELETE FROM files WHERE path = ?", path)

    def add_content(self, content: str) -> bool:
        """Remember the content of a capture, and return whether it is new."""
        if self._query("SELECT 1 FROM contents WHERE content = ?", content):
            return False
        self._query("INSERT INTO contents (content) VALUES (?)", content)
        self._query("DELETE FROM contents WHERE number <= (SELECT max(number) FROM contents) - ?", MAX_CONTENTS)
        return True

    # Windows

    def list_windows(self) -> list[StoredWindow]:
        """Return the windows whose summaries are stored, in order of their numbers."""
        ranks: dict[int, set[int]] = {}
        for number, rank in self._query("SELECT window, rank FROM members"):
            ranks.setdefault(number, set()).add(rank)
        rows = self._query("SELECT number, place, is_closed, opened_utc_ns, world_size FROM windows ORDER BY number")
        windows = []
        for number, text, is_closed, opened_utc_ns, world_size in rows:
            with self._convert_damage("a window"):
                place = CapturePlace(*(None if v is None else int(v) for v in json.loads(text)))
                window = WatchWindow(int(number), place, ranks.get(number, set()))
                size = None if world_size is None else int(world_size)
                windows.append(StoredWindow(window, bool(is_closed), int(opened_utc_ns), size))
        return windows

    def add_window(self, place: CapturePlace) -> int:
        """Create a window, and return its number."""
        number = self.get_number("last window") + 1
        self.set_fact("last window", str(number))
        self._query("INSERT INTO windows VALUES (?, 0, ?, ?, NULL)", number, time.time_ns(), json.dumps(place))
        return number

    def add_summary(self, window: int, summary: CaptureSummary, file: str) -> None:
        """Add the summary of a capture to a window."""
        self._query("INSERT INTO summaries (window, file, json) VALUES (?, ?, ?)", window, file, summary.to_json())
        for rank in summary.ranks["rank"]:
            self._query("INSERT INTO members VALUES (?, ?, ?, 0)", window, rank, file)
            self._query("INSERT OR IGNORE INTO ranks VALUES (?)", rank)
        size = summary.ranks["world_size"].max()
        if size is not None:
            update = "UPDATE windows SET world_size = max(coalesce(world_size, 0), ?) WHERE number = ?"
            self._query(update, size, window)

    def remove_summary(self, file: str) -> None:
        """Remove the summary of a file that is read again because it has changed."""
        self._query("DELETE FROM summaries WHERE file = ?", file)
        self._query("DELETE FROM members WHERE file = ?", file)

    def list_ranks(self) -> set[int]:
        """Return all ranks that any window has contained."""
        return {rank for (rank,) in self._query("SELECT rank FROM ranks")}

    def read_summaries(self, window: int) -> Iterator[CaptureSummary]:
        """Yield the summaries of a window."""
        for (text,) in self._query("SELECT json FROM summaries WHERE window = ? ORDER BY number", window):
            yield CaptureSummary.from_json(text)

    def list_members(self, window: int) -> dict[int, tuple[str, bool]]:
        """Return the file of each rank of a window, and whether the rank was compared, by rank."""
        rows = self._query("SELECT rank, file, is_compared FROM members WHERE window = ? ORDER BY rank", window)
        return {rank: (file, bool(compared)) for rank, file, compared in rows}

    def close_window(self, window: int) -> None:
        """Mark a window as closed, and its ranks as compared."""
        self._query("UPDATE windows SET is_closed = 1 WHERE number = ?", window)
        self._query("UPDATE members SET is_compared = 1 WHERE window = ?", window)

    def delete_window(self, window: int) -> None:
        """Delete a window with its summaries."""
        for table, column in (("windows", "number"), ("members", "window"), ("summaries", "window")):
            self._query(f"DELETE FROM {table} WHERE {column} = ?", window)  # noqa: S608 - constant names

    # Alarms

    def add_alarms(self, alarms: Iterable[Alarm], *, is_new_window: bool) -> list[Alarm]:
        """Store alarms until they are delivered, and return them with their numbers.

        Args:
            alarms: The alarms.
            is_new_window: Whether they are all alarms of a window that follows the last one.
        """
        before = dict(self._query("SELECT alarm, count FROM ongoing"))
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        number = self.get_number("last alarm")
        numbered, counts = [], {}
        for number, alarm in enumerate(alarms, number + 1):  # noqa: B020 - the last number is stored
            key = json.dumps(alarm.key)
            counts[key] = before.get(key, 0) + 1 if is_new_window else before.get(key, 1)
            alarm = identify(alarm, id=number, time_utc=now, watch=self.watch, consecutive=counts[key])  # noqa: PLW2901
            self._query("INSERT INTO alarms VALUES (?, ?)", number, alarm.to_json())
            self.count(f"alarms {alarm.kind}")
            numbered.append(alarm)
        self.set_fact("last alarm", str(number))
        if is_new_window:
            self._query("DELETE FROM ongoing")
            for key, count in counts.items():
                self._query("INSERT INTO ongoing VALUES (?, ?)", key, count)
        return numbered

    def read_alarms(self) -> list[Alarm]:
        """Return the alarms that were not delivered yet."""
        rows = self._query("SELECT json FROM alarms ORDER BY id")
        with self._convert_damage("an alarm"):
            return [Alarm.from_json(text) for (text,) in rows]

    def delete_alarm(self, number: int) -> None:
        """Delete an alarm, because it was delivered."""
        with self.change():
            self._query("DELETE FROM alarms WHERE id = ?", number)


def _check_head(path: Path) -> None:
    """Check that a file is a database, if it exists and has content.

    Raises:
        TracekitError: The file is something else, which must not be changed, or its folder does not exist.
    """
    if path.is_dir():
        raise TracekitError("this is a folder, not a state file", path=path, hint="choose the name of a file")
    if not path.exists():
        if not path.parent.is_dir():
            message = "the folder of the state file does not exist"
            raise TracekitError(message, path=path, hint=f"create {path.parent}")
        return
    if not path.is_file():
        raise TracekitError("this is not a regular file", path=path, hint="choose another file")
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as e:
        message = f"the state file cannot be read: {e.strerror}"
        raise TracekitError(message, path=path, hint="check its permissions") from e
    identity = head[_APPLICATION_OFFSET : _APPLICATION_OFFSET + 4]
    if head.strip(b"\0") and (not head.startswith(_HEAD) or int.from_bytes(identity, "big") != _APPLICATION_ID):
        raise TracekitError("this is not a state of tracekit watch", path=path, hint="choose another file")
