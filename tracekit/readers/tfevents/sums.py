"""CRC32C, the sum that guards records: its tables, and the sum of a few bytes."""

from __future__ import annotations

import functools

_POLYNOMIAL = 0x82F63B78
_ALL = (1 << 32) - 1
_MASK = 0xA282EAD8
TABLES, OCTETS = 8, 256


@functools.cache
def tables() -> tuple[tuple[int, ...], ...]:
    """Make tables: what an octet, and 0 to 7 octets of zeros behind it, make of the sum."""
    found = [tuple(_shifted(octet) for octet in range(OCTETS))]
    for _ in range(TABLES - 1):
        found.append(tuple(found[0][sum_ % OCTETS] ^ sum_ >> 8 for sum_ in found[-1]))
    return tuple(found)


def masked(data: bytes) -> int:
    """Return the sum of some bytes as it is stored: turned by 15 bits, and a constant added."""
    found, table = _ALL, tables()[0]
    for octet in data:
        found = table[(found ^ octet) % OCTETS] ^ found >> 8
    found ^= _ALL
    return ((found >> 15 | found << 17) + _MASK) & _ALL


def _shifted(octet: int) -> int:
    for _ in range(8):
        octet = octet >> 1 ^ _POLYNOMIAL * (octet & 1)
    return octet
