"""Read databases of DLProf 1.8 (``dlprof_dldb.sqlite``) and of other DLProf versions with the same tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.common.sqlite_files import MAGIC
from tracekit.registry.interface import Reader

if TYPE_CHECKING:
    from tracekit.registry.interface import Capture
    from tracekit.registry.source import Source

_DLPROF_TABLES = {"read_only_ops", "read_only_op_instances", "dictionary"}


def sniff(source: Source) -> bool:
    """Return whether a file is a SQLite database that has the op tables of DLProf and an intact schema."""
    if not source.head.startswith(MAGIC):
        return False
    from tracekit.readers.common.sqlite.catalogue import read_table_names

    names = read_table_names(source.path)
    return names is not None and names >= _DLPROF_TABLES


def open_capture(source: Source) -> Capture:
    """Open a DLProf database."""
    from tracekit.readers.dlprof_db.capture import DlprofCapture

    return DlprofCapture(source)


READER = Reader("dlprof-db", "DLProf database (dlprof_dldb.sqlite)", (".sqlite",), sniff, open_capture)
