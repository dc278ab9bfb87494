"""Nsight Systems SQLite exports (``nsys export --type sqlite``), schema none (2020) to 3.25 (2026)."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

from tracekit.registry import Reader

if TYPE_CHECKING:
    from tracekit.registry import Capture, Source

MAGIC = b"SQLite format 3\x00"
_MARKS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "META_DATA_EXPORT", "EXPORT_META_DATA", "ProcessStreams", "ThreadNames")


def sniff(source: Source) -> bool:
    """Whether a file is a SQLite database with the tables of an export, or a damaged one that names them."""
    if not source.head.startswith(MAGIC):
        return False
    uri = f"{source.path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            names = {n for (n,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    except sqlite3.DatabaseError:
        return len(source.head) < 100 or b"StringIds" in source.head
    return "StringIds" in names and any(m in names for m in _MARKS)


def open_(source: Source) -> Capture:
    """Open an export."""
    from tracekit.readers.nsys_sqlite.capture import NsysCapture

    return NsysCapture(source)


READER = Reader(
    "nsys-sqlite", "Nsight Systems SQLite export (nsys export --type sqlite)", (".sqlite", ".sqlite3", ".db"), sniff, open_
)
