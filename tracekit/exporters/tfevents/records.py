"""Frame the records of event files in the TFRecord format."""

from __future__ import annotations

import struct

from tracekit.crc32c import masked_crc32c


def frame_record(record: bytes) -> bytes:
    """Return a record with its length and the checksums of both: n bytes in, n + 16 bytes out."""
    length = struct.pack("<Q", len(record))
    return b"".join(
        [length, struct.pack("<I", masked_crc32c(length)), record, struct.pack("<I", masked_crc32c(record))]
    )
