"""Read logs of collectives: flight recorders of PyTorch, NCCL Inspector, and event logs of profiler plug-ins of NCCL.

A flight recorder is a ring of the last collectives of a process, which PyTorch dumps as a pickle or as JSON, for
example after a timeout. The other two are logs with one JSON object per line. All calls are in the table
``communication_calls``.

Modules, from the file to the tables:

- ``names`` converts the names of collectives and data types.
- ``flight_recorder``, ``inspector`` and ``events`` read one kind of file each.
- ``capture`` opens a file and builds the tables.

Sources: PyTorch, ``FlightRecorder.hpp`` (names of the fields); NCCL, ``ext-profiler/inspector/README.md`` and
``inspector.cc``; logs of a profiler plug-in for NCCL's profiler interface.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.readers.nccl.capture import CallLogCapture
    from tracekit.registry.source import Source

GZIP, PICKLE = b"\x1f\x8b", b"\x80"
FLIGHT_RECORDER_PICKLE, FLIGHT_RECORDER, INSPECTOR, EVENTS = (
    *("flight recorder (pickle)", "flight recorder"),
    *("NCCL Inspector", "NCCL profiler plug-in"),
)
_RECORDED = rb"pg_config|pg_status|collective_seq_id|comm_lib_version|nccl_version|time_discovered_completed_ns"
_PATTERNS = {
    FLIGHT_RECORDER: re.compile(rb'(?:\xef\xbb\xbf)?\s*[\[{].*?"(?:' + _RECORDED + rb')"\s*:', re.DOTALL),
    INSPECTOR: re.compile(
        rb'(?:\xef\xbb\xbf)?\s*\{.{0,1000}?"(?:inspector_output_format_version|coll_perf)"\s*:', re.DOTALL
    ),
    EVENTS: re.compile(
        rb'(?:\xef\xbb\xbf)?\s*\{\s*"(?:type"\s*:\s*"ProfilerLifecycle"|recordType"\s*:\s*"(?:event|state|cuptiActivity)")',
        re.DOTALL,
    ),
}
_PICKLED = re.compile(rb"X.\x00\x00\x00(?:" + _RECORDED + rb")|\x8c.(?:" + _RECORDED + rb")", re.DOTALL)
_HEAD_BYTES = 1 << 16


def find_kind(source: Source) -> str | None:
    """Return the kind of log that a file begins like, or None."""
    head = source.head
    if head.startswith(PICKLE):
        return FLIGHT_RECORDER_PICKLE if _PICKLED.search(head) else None
    if head.startswith(GZIP):
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _HEAD_BYTES)
        except zlib.error:
            return None
    return next((kind for kind, pattern in reversed(_PATTERNS.items()) if pattern.match(head)), None)


def sniff(source: Source) -> bool:
    """Return whether a file begins like a log of collectives."""
    return find_kind(source) is not None


def open_capture(source: Source) -> CallLogCapture:
    """Open a log of collectives."""
    from tracekit.readers.nccl.capture import read_log

    return read_log(source)


_redact = create_lazy_function("tracekit.readers.redaction.nccl", "redact")
READER = Reader(
    "nccl",
    "Log of collectives: PyTorch flight recorder, NCCL Inspector, NCCL profiler plug-in (.pickle, .json, .jsonl)",
    (".pickle", ".pkl", ".jsonl", ".log", ".json", ".gz"),
    sniff,
    open_capture,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
