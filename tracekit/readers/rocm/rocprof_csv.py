"""Read CSV files of rocprofv3, one or a folder of them, and the kernels that rocprof (version 1) writes.

rocprofv3 writes one file per kind of events. The files of a process have the same name up to the kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.rocm.csv_files import list_files
from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.registry.interface import Capture
    from tracekit.registry.source import Source


def sniff(source: Source) -> bool:
    """Return whether a file is a CSV file of rocprofv3 or rocprof, or a folder contains one."""
    return next(list_files(source), None) is not None


def open_capture(source: Source) -> Capture:
    """Open one or several CSV files of rocprofv3."""
    from tracekit.readers.rocm.csv_tables import read_files

    return read_files(source)


_redact = create_lazy_function("tracekit.readers.redaction.rocm", "redact_csv")
READER = Reader(
    "rocprof-csv",
    "CSV files of rocprofv3 (AMD GPUs), one or a folder",
    (".csv",),
    sniff,
    open_capture,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
