"""Write SQLite databases with ADBC, which inserts Arrow data without converting it to Python objects."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, Any, Self

from tracekit.errors import ExportError
from tracekit.system.files import LONGEST_SQLITE_PATH
from tracekit.system.platform.file_names import build_sqlite_uri

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class DatabaseWriter(contextlib.AbstractContextManager["DatabaseWriter"]):
    """A SQLite database to which Arrow tables are written.

    The database has no journal, so a failed write may damage it. Create it at a temporary path.
    """

    def __init__(self, path: Path) -> None:
        """Create a database file and connect to it.

        Raises:
            ExportError: The path is too long for SQLite, or the database cannot be created.
        """
        from adbc_driver_sqlite import dbapi

        self.path = path
        length = len(os.fsencode(os.path.realpath(path)))
        if length > LONGEST_SQLITE_PATH:
            limit = f"SQLite paths have at most {LONGEST_SQLITE_PATH} bytes"
            message = f"the output cannot be written: the path has {length} bytes, but {limit}"
            raise ExportError(message, path=path, hint="choose a shorter path")
        with translate_errors(path):
            self.connection = dbapi.connect(build_sqlite_uri(path), autocommit=True)

    def __enter__(self) -> Self:
        self.execute("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", "PRAGMA cache_size = -65536")
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def execute(self, *statements: str) -> None:
        """Run SQL statements.

        Raises:
            ExportError: The database cannot be written.
        """
        with translate_errors(self.path), self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def insert(self, table: str, rows: Any) -> None:
        """Insert the rows of an Arrow table into a database table with the same columns.

        Raises:
            ExportError: The database cannot be written.
        """
        with translate_errors(self.path), self.connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.adbc_ingest(table, rows, mode="append")
            cursor.execute("COMMIT")


@contextlib.contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise ``ExportError`` instead of errors of SQLite and its ADBC driver in the body of a ``with`` statement."""
    from adbc_driver_manager import dbapi

    try:
        yield
    except (dbapi.Error, sqlite3.Error) as e:
        text = str(e).splitlines()[0]
        is_full = "disk is full" in text or "I/O error" in text
        hint = "free space on the disk, or choose another folder" if is_full else "choose another folder"
        raise ExportError(f"the output cannot be written: {text}", path=path, hint=hint) from e
