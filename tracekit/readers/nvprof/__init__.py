"""Read profiles of nvprof and of the NVIDIA Visual Profiler (``.nvvp``, ``.nvprof``).

nvprof writes a SQLite database with one table per kind of CUPTI activity. The Visual Profiler saves sessions, which are
XML files that contain such a database.

Modules, from the file to the tables:

- ``session`` unpacks the database of a session.
- ``activities`` declares which table and column of the database contains each declared column.
- ``capture`` reads the tables.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.readers.common.sqlite_files import MAGIC
from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.registry.interface import Capture
    from tracekit.registry.source import Source

PREFIX = "CUPTI_ACTIVITY_KIND_"
STRINGS = "StringTable"
_SESSION = re.compile(rb"\s{0,99}(?:<\?xml[^>]{0,200}>\s{0,99})?<session\b")


def sniff(source: Source) -> bool:
    """Return whether a file is a database of nvprof or a session of the NVIDIA Visual Profiler."""
    if not source.head.startswith(MAGIC):
        return _SESSION.match(source.head) is not None
    from tracekit.readers.common.sqlite.catalogue import read_table_names

    names = read_table_names(source.path) or ()
    return STRINGS in names and any(name.startswith(PREFIX) for name in names)


def open_capture(source: Source) -> Capture:
    """Open a database of nvprof or a session of the NVIDIA Visual Profiler."""
    from tracekit.readers.nvprof.capture import NvprofCapture
    from tracekit.readers.nvprof.session import open_session

    if source.head.startswith(MAGIC):
        return NvprofCapture(source)
    return open_session(source, lambda database: NvprofCapture(database, source.path))


_redact = create_lazy_function("tracekit.readers.redaction.nvprof", "redact")
READER = Reader(
    "nvprof",
    "Profile of nvprof or session of the NVIDIA Visual Profiler (.nvvp)",
    (".nvvp", ".nvprof", ".sqlite", ".db"),
    sniff,
    open_capture,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
