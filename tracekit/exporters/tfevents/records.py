"""Records of event files, as TFRecord frames them."""

from __future__ import annotations

import struct

from tracekit.crc32c import masked


def framed(record: bytes) -> bytes:
    """Put a record into its frame, length and sums of both: n bytes in, n + 16 out."""
    length = struct.pack("<Q", len(record))
    return b"".join([length, struct.pack("<I", masked(length)), record, struct.pack("<I", masked(record))])
