"""Read CSV files that nvprof printed (``nvprof --csv``): traces of GPUs, traces of API calls, and summaries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.readers.common.encodings import convert_to_utf8
from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.readers.nvprof_csv.capture import PrintedCapture
    from tracekit.registry.source import Source

HEADER = re.compile(
    rb'^"?(?:Start"?,"?Duration"?,(?:"?Grid X"?,"?Grid Y"?,|"?(?:Size|Name)"?(?=[,\r\n]|\Z))'
    rb'|(?:Type"?,"?)?Time\(%\)"?,"?Time"?,"?Calls"?,)[^\n]{0,600}$',
    re.MULTILINE,
)
"""The header of a table."""


def sniff(source: Source) -> bool:
    """Return whether the beginning of a file contains the header of a table that nvprof prints."""
    return HEADER.search(convert_to_utf8(source.head)) is not None


def open_capture(source: Source) -> PrintedCapture:
    """Open a CSV file of nvprof."""
    from tracekit.readers.nvprof_csv.capture import read_file

    return read_file(source)


_redact = create_lazy_function("tracekit.readers.redaction.nvprof_csv", "redact")
READER = Reader(
    "nvprof-csv",
    "CSV output of nvprof (nvprof --csv)",
    (".csv", ".log", ".txt"),
    sniff,
    open_capture,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
