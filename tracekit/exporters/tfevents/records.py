"""Records of event files: length, data, and of both a masked CRC-32C (Castagnoli).

A CRC is linear, so that of a long record is made of those of many pieces that are advanced together; a short one is
done before they are laid out.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
_MASK, _ALL = 0xA282EAD8, 0xFFFFFFFF
_PIECE, _SHORT = 512, 1 << 15
_BYTE = 8


def framed(record: bytes) -> bytes:
    """Put a record into its frame: n bytes in, n + 16 out."""
    length = struct.pack("<Q", len(record))
    return b"".join([length, _masked(length), record, _masked(record)])


def crc32c(data: bytes) -> int:
    """Compute the CRC-32C of some bytes."""
    body = len(data) // _PIECE * _PIECE if len(data) > _SHORT else 0
    crc = _ALL
    for piece in _pieces(data[:body]) if body else ():
        crc = _advanced(crc) ^ piece
    table = _numbers()
    for byte in data[body:]:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> _BYTE)
    return crc ^ _ALL


def _pieces(data: bytes) -> list[int]:
    """Compute the CRC of each piece, begun with 0, byte by byte of all pieces together."""
    import numpy as np

    lanes = np.frombuffer(data, np.uint8).reshape(-1, _PIECE)
    crcs = np.zeros(len(lanes), np.uint32)
    for column in np.ascontiguousarray(lanes.T):
        crcs = _table()[(crcs ^ column) & 0xFF] ^ (crcs >> np.uint32(_BYTE))
    found: list[int] = crcs.tolist()
    return found


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & _ALL)


@functools.cache
def _table() -> Words:
    """What each byte makes of a CRC of 0."""
    import numpy as np

    words = np.arange(256, dtype=np.uint32)
    for _ in range(_BYTE):
        words = np.where(words & 1, (words >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), words >> np.uint32(1))
    return words


@functools.cache
def _numbers() -> list[int]:
    found: list[int] = _table().tolist()
    return found


@functools.cache
def _zeros() -> list[list[int]]:
    """What a piece of zeros makes of a CRC, for each value of each of its four bytes."""
    import numpy as np

    words: Any = np.arange(256, dtype=np.uint32)[None, :] << np.array([[0], [8], [16], [24]], np.uint32)
    for _ in range(_PIECE):
        words = _table()[words & 0xFF] ^ (words >> np.uint32(_BYTE))
    found: list[list[int]] = words.tolist()
    return found


def _advanced(crc: int) -> int:
    zeros = _zeros()
    return zeros[0][crc & 0xFF] ^ zeros[1][crc >> 8 & 0xFF] ^ zeros[2][crc >> 16 & 0xFF] ^ zeros[3][crc >> 24]
