"""Read declared tables from an Arrow IPC file, or from a folder with one Arrow IPC file per table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.common.table_files import TableFiles, find_single_table_file, find_table_files
from tracekit.registry.interface import Reader

if TYPE_CHECKING:
    from tracekit.registry.source import Source

MAGIC = b"ARROW1"


def sniff(source: Source) -> bool:
    """Return whether the source is an Arrow IPC file, or a folder with Arrow IPC files named after declared tables."""
    return source.head.startswith(MAGIC) or bool(find_table_files(source, ".arrow"))


def open_tables(source: Source) -> TableFiles:
    """Open an Arrow IPC file with one declared table, or a folder with one Arrow IPC file per table."""
    from tracekit.readers.common.arrow_ipc import IpcFile

    return TableFiles(find_table_files(source, ".arrow") or find_single_table_file(source, IpcFile), IpcFile)


READER = Reader(
    "arrow", "Arrow IPC files of tracekit's tables: one file, or a folder of files", (".arrow",), sniff, open_tables
)
