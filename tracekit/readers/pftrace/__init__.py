"""Read Perfetto traces (``.pftrace``), which Perfetto's tracing service and SDK, Chrome, Android and tracekit write.

A trace consists of packets. Most of them contain events of tracks, such as the beginnings and ends of slices and the
values of counters. Strings are stored once per packet sequence (interned data).

Modules, from the file to the tables:

- ``packets`` reads packets in batches, with the state of their sequences, and ``clocks`` converts their times.
- ``strings`` and ``interning`` collect strings, interned data and descriptors.
- ``events`` and ``annotations`` decode the events of tracks, and ``gpu`` those of GPUs.
- ``tracks`` finds the thread of each track and matches the ends of slices.
- ``exported`` restores the tables of traces that tracekit wrote, and ``ranges`` builds those of other traces.
- ``capture`` combines the tables.

Sources: the messages in ``protos/perfetto/trace`` of Perfetto, and the behavior of its trace processor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.common.json.heads import decompress_head
from tracekit.registry.interface import Reader
from tracekit.system.lazy import create_lazy_function

if TYPE_CHECKING:
    from tracekit.readers.pftrace.capture import PerfettoCapture
    from tracekit.registry.source import Source

_PACKET_TAG, _MAX_FIELD, _CHECKED_PACKETS = 0x0A, 1000, 8
_FIELDS = frozenset((3, 5, 6, 8, 10, 11, 12, 33, 36, 41, 42, 43, 44, 45, 50, 52, 53, 54, 58, 59, 60, 61, 79, 87, 89))
"""Numbers of common fields of packets."""


def sniff(source: Source) -> bool:
    """Return whether a plain or gzipped file begins with packets of a Perfetto trace."""
    head = memoryview(decompress_head(source.head))
    if not head or head[0] != _PACKET_TAG:
        return False
    from tracekit.readers.common.damage import Damage
    from tracekit.readers.common.protobuf.decoding import read_varint

    at, fields = 0, list[int]()
    try:
        while len(fields) < _CHECKED_PACKETS and at < len(head):
            if head[at] != _PACKET_TAG:
                return False
            size, at = read_varint(head, at + 1)
            key, _ = read_varint(head, at)
            if not size or key & 7 not in (0, 2) or not 0 < key >> 3 < _MAX_FIELD:
                return False
            fields.append(key >> 3)
            at += size
    except Damage:
        pass
    return bool(fields) and fields[0] in _FIELDS and sum(number in _FIELDS for number in fields) * 2 >= len(fields)


def open_capture(source: Source) -> PerfettoCapture:
    """Open a Perfetto trace."""
    from tracekit.readers.pftrace.capture import read_trace

    return read_trace(source)


_redact = create_lazy_function("tracekit.readers.redaction.perfetto", "redact")
READER = Reader(
    "perfetto",
    "Perfetto trace: slices, counters and GPU render stages",
    (".pftrace", ".gz"),
    sniff,
    open_capture,
    redact=_redact,
    redact_with_key=_redact,
    unredacted=_redact,
)
