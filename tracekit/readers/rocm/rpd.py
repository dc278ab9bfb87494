"""Read databases of rocmProfileData (``*.rpd``), also gzipped ones (``*.rpd.gz``).

The views in a database are not used, because a view of an untrusted file can contain any query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.rocm import DATABASE_MAGICS
from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.registry.interface import Capture
    from tracekit.registry.source import Source

_TABLES = {"rocpd_api", "rocpd_op", "rocpd_string"}


def sniff(source: Source) -> bool:
    """Return whether a file is a SQLite database, possibly gzipped, that has the tables of rocmProfileData."""
    if not source.head.startswith(DATABASE_MAGICS):
        return False
    from tracekit.readers.common.sqlite.compressed import find_table_names

    return find_table_names(source) >= _TABLES


def open_capture(source: Source) -> Capture:
    """Open a database of rocmProfileData."""
    from tracekit.readers.rocm.rpd_tables import RpdCapture

    return RpdCapture(source)


_redact = create_lazy_function("tracekit.readers.redaction.rocm", "redact")
READER = Reader(
    "rpd",
    "Database of rocmProfileData (AMD GPUs)",
    (".rpd", ".gz"),
    sniff,
    open_capture,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
