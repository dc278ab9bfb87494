"""Encode the records of event files in the TFRecord format."""

from __future__ import annotations

import struct

from tracekit.crc32c import masked_crc32c


def frame_record(record: bytes) -> bytes:
    """Return the data of a record with its length and the checksums of both, which take 16 bytes."""
    length = struct.pack("<Q", len(record))
    return b"".join(
        [length, struct.pack("<I", masked_crc32c(length)), record, struct.pack("<I", masked_crc32c(record))]
    )
