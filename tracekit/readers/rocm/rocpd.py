"""Read rocpd databases, which rocprofv3 writes by default (``*_results.db``).

A database has one set of tables per profiled process, whose names end in an id of the process. ``rocpd merge`` joins
databases of several processes into one. The views in a database are not used, because a view of an untrusted file can
contain any query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.rocm import DATABASE_MAGICS, ROCPD_TABLE
from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.registry.interface import Capture
    from tracekit.registry.source import Source

_KINDS = {"info_process", "info_agent", "kernel_dispatch"}


def sniff(source: Source) -> bool:
    """Return whether a file is a SQLite database, possibly gzipped, that has tables of rocpd and an intact schema."""
    if not source.head.startswith(DATABASE_MAGICS):
        return False
    from tracekit.readers.common.sqlite.compressed import find_table_names

    matches = (ROCPD_TABLE.fullmatch(name) for name in find_table_names(source))
    return {match[1] for match in matches if match} >= _KINDS


def open_capture(source: Source) -> Capture:
    """Open a rocpd database."""
    from tracekit.readers.rocm.rocpd_tables import RocpdCapture

    return RocpdCapture(source)


_redact = create_lazy_function("tracekit.readers.redaction.rocm", "redact")
READER = Reader(
    "rocpd",
    "rocpd database of rocprofv3 (AMD GPUs)",
    (".db",),
    sniff,
    open_capture,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
