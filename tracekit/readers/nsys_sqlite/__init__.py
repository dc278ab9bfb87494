"""Reader of SQLite exports of Nsight Systems 2020 to 2026 (``nsys export --type sqlite``), up to schema 3.25."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.common.sqlite_files import MAGIC
from tracekit.readers.nsys.versions import MARKER_TABLES
from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.registry.interface import Capture
    from tracekit.registry.source import Source


def sniff(source: Source) -> bool:
    """Return whether a file is an Nsight Systems SQLite export.

    A SQLite database with a damaged schema is also accepted, because it may be an export.
    """
    if not source.head.startswith(MAGIC):
        return False
    from tracekit.readers.common.sqlite.catalogue import read_table_names

    names = read_table_names(source.path)
    return names is None or ("StringIds" in names and any(m in names for m in MARKER_TABLES))


def open_export(source: Source) -> Capture:
    """Open an Nsight Systems SQLite export."""
    from tracekit.readers.nsys_sqlite.capture import ExportCapture

    return ExportCapture(source)


_redact = create_lazy_function("tracekit.readers.redaction.nsys_sqlite", "redact")
READER = Reader(
    "nsys-sqlite",
    "Nsight Systems SQLite export (nsys export --type sqlite)",
    (".sqlite", ".sqlite3", ".db"),
    sniff,
    open_export,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
