"""Arrow IPC files of declared tables, one file or a folder of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.common.table_files import TableFiles, find, one_file
from tracekit.registry import Reader

if TYPE_CHECKING:
    from tracekit.registry import Source

MAGIC = b"ARROW1"


def sniff(source: Source) -> bool:
    """Whether this is an Arrow IPC file, or a folder with some that are named as tables."""
    return source.head.startswith(MAGIC) or bool(find(source, ".arrow"))


def open_(source: Source) -> TableFiles:
    """Open a file or a folder."""
    from tracekit.readers.common.arrow_ipc import IpcFile

    return TableFiles(find(source, ".arrow") or one_file(source, IpcFile), IpcFile)


READER = Reader("arrow", "Arrow IPC files of tracekit's tables, one or a folder", (".arrow",), sniff, open_)
