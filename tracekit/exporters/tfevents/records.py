"""Records of event files, as TFRecord frames them."""

from __future__ import annotations

import struct

from tracekit.crc32c import masked_crc32c


def framed(record: bytes) -> bytes:
    """Put a record into its frame, length and sums of both: n bytes in, n + 16 out."""
    length = struct.pack("<Q", len(record))
    return b"".join(
        [length, struct.pack("<I", masked_crc32c(length)), record, struct.pack("<I", masked_crc32c(record))]
    )
