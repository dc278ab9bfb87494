"""Encode the records of event files in the TFRecord format."""

from __future__ import annotations

import struct

from tracekit.crc32c import masked_crc32c


def frame_record(data: bytes) -> bytes:
    """Return a record with the given data: its length, the checksum of the length, the data, and their checksum."""
    length = struct.pack("<Q", len(data))
    return b"".join([length, struct.pack("<I", masked_crc32c(length)), data, struct.pack("<I", masked_crc32c(data))])
