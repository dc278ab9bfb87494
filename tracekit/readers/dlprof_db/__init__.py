"""Databases of DLProf (``dlprof_dldb.sqlite``), version 1.8 as it is, older and newer ones as far as they are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.common.sqlite_files import MAGIC
from tracekit.registry import Reader

if TYPE_CHECKING:
    from tracekit.registry import Capture, Source

_MARKS = {"read_only_ops", "read_only_op_instances", "dictionary"}


def sniff(source: Source) -> bool:
    """Whether a file is a SQLite database with the ops of DLProf; one too damaged to tell is not claimed."""
    if not source.head.startswith(MAGIC):
        return False
    from tracekit.readers.common.sqlite.catalogue import table_names

    names = table_names(source.path)
    return names is not None and names >= _MARKS


def open_(source: Source) -> Capture:
    """Open a database."""
    from tracekit.readers.dlprof_db.capture import DlprofCapture

    return DlprofCapture(source)


READER = Reader("dlprof-db", "DLProf database (dlprof_dldb.sqlite)", (".sqlite",), sniff, open_)
