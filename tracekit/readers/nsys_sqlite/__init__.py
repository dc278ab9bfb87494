"""Nsight Systems SQLite exports (``nsys export --type sqlite``), schema none (2020) to 3.25 (2026)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.common.sqlite_files import MAGIC
from tracekit.readers.nsys.versions import MARKS
from tracekit.registry import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry import Capture, Source


def sniff(source: Source) -> bool:
    """Whether a file is a SQLite database with the tables of an export, or one too damaged to tell."""
    if not source.head.startswith(MAGIC):
        return False
    from tracekit.readers.common.sqlite.catalogue import table_names

    names = table_names(source.path)
    return names is None or ("StringIds" in names and any(m in names for m in MARKS))


def open_(source: Source) -> Capture:
    """Open an export."""
    from tracekit.readers.nsys_sqlite.capture import ExportCapture

    return ExportCapture(source)


def redact_(source: Source, target: Path, key: bytes | None = None) -> dict[str, int]:
    """Write a copy without what identifies people and machines; the same key makes the same pseudonyms."""
    from tracekit.readers.nsys_sqlite.redact import redacted

    return redacted(source, target, key)


def unredacted_(source: Source) -> dict[str, int]:
    """Count what identifies people and machines, by kind."""
    from tracekit.readers.nsys_sqlite.redact import remaining

    return remaining(source)


READER = Reader(
    "nsys-sqlite",
    "Nsight Systems SQLite export (nsys export --type sqlite)",
    (".sqlite", ".sqlite3", ".db"),
    sniff,
    open_,
    redact_,
    redact_,
    unredacted_,
)
