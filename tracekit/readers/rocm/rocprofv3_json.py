"""Read JSON files of rocprofv3 (``*_results.json``), also gzipped ones.

A file contains one object per profiled process, with its agents, kernels and names, and the records of its events.
"""

from __future__ import annotations

import re
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

from tracekit.readers.rocm import DATABASE_MAGICS
from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.registry.interface import Capture
    from tracekit.registry.source import Source

_START = re.compile(rb'(?:\xef\xbb\xbf)?\s{0,4096}\{\s{0,4096}"rocprofiler-sdk-tool"\s{0,4096}:')
_MAX_START_BYTES = 1 << 14


def sniff(source: Source) -> bool:
    """Return whether the first member of a JSON file, possibly gzipped, is the one that rocprofv3 writes."""
    head = source.head
    if head.startswith(DATABASE_MAGICS[1]):
        with suppress(zlib.error):
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _MAX_START_BYTES)
    return _START.match(head) is not None


def open_capture(source: Source) -> Capture:
    """Open a JSON file of rocprofv3."""
    from tracekit.readers.rocm.json_tables import read_records

    return read_records(source)


_redact = create_lazy_function("tracekit.readers.redaction.rocm", "redact_json")
READER = Reader(
    "rocprofv3-json",
    "JSON file of rocprofv3 (AMD GPUs)",
    (".json", ".gz"),
    sniff,
    open_capture,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
