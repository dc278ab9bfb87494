"""Encode the records of event files in the TFRecord format of TensorFlow."""

from __future__ import annotations

import struct

from tracekit.native.crc32c import compute_masked_crc32c


def encode_record(data: bytes) -> bytes:
    """Encode data as a TFRecord: the data length, the checksum of the length, the data, and the data checksum."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        [length, struct.pack("<I", compute_masked_crc32c(length)), data, struct.pack("<I", compute_masked_crc32c(data))]
    )
