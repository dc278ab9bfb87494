"""CRC-32C (Castagnoli), the sum that guards records of TensorFlow, of some bytes; and its tables.

A CRC is linear, so that of many bytes is made of those of pieces that are advanced together.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.uint32]

TABLES, OCTETS = 8, 256
_POLYNOMIAL = 0x82F63B78
_MASK, _ALL = 0xA282EAD8, (1 << 32) - 1
_PIECE, _SHORT = 512, 1 << 15
_BYTE = 8


def crc32c(data: bytes) -> int:
    """Compute the CRC-32C of some bytes."""
    body = len(data) // _PIECE * _PIECE if len(data) > _SHORT else 0
    crc = _ALL
    for piece in _pieces(data[:body]) if body else ():
        crc = _advanced(crc) ^ piece
    table = tables()[0]
    for octet in data[body:]:
        crc = table[(crc ^ octet) % OCTETS] ^ crc >> _BYTE
    return crc ^ _ALL


def masked(data: bytes) -> int:
    """Compute the CRC-32C as records store it: turned by 15 bits, and a constant added."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & _ALL


@functools.cache
def tables() -> tuple[tuple[int, ...], ...]:
    """Make tables: what an octet, and 0 to 7 octets of zeros behind it, make of the sum."""
    found = [tuple(_shifted(octet) for octet in range(OCTETS))]
    for _ in range(TABLES - 1):
        found.append(tuple(found[0][crc % OCTETS] ^ crc >> _BYTE for crc in found[-1]))
    return tuple(found)


def _shifted(octet: int) -> int:
    for _ in range(_BYTE):
        octet = octet >> 1 ^ _POLYNOMIAL * (octet & 1)
    return octet


def _pieces(data: bytes) -> list[int]:
    """Compute the CRC of each piece, begun with 0, octet by octet of all pieces together."""
    import numpy as np

    lanes = np.frombuffer(data, np.uint8).reshape(-1, _PIECE)
    crcs = np.zeros(len(lanes), np.uint32)
    for column in np.ascontiguousarray(lanes.T):
        crcs = _table()[(crcs ^ column) & 0xFF] ^ (crcs >> np.uint32(_BYTE))
    found: list[int] = crcs.tolist()
    return found


@functools.cache
def _table() -> Words:
    import numpy as np

    return np.array(tables()[0], np.uint32)


@functools.cache
def _zeros() -> list[list[int]]:
    """What a piece of zeros makes of a CRC, for each value of each of its four octets."""
    import numpy as np

    words: Any = np.arange(OCTETS, dtype=np.uint32)[None, :] << np.array([[0], [8], [16], [24]], np.uint32)
    for _ in range(_PIECE):
        words = _table()[words & 0xFF] ^ (words >> np.uint32(_BYTE))
    found: list[list[int]] = words.tolist()
    return found


def _advanced(crc: int) -> int:
    zeros = _zeros()
    return zeros[0][crc & 0xFF] ^ zeros[1][crc >> 8 & 0xFF] ^ zeros[2][crc >> 16 & 0xFF] ^ zeros[3][crc >> 24]
