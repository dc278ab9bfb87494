"""Large graphs without what makes them large: the values of constants, and what else is not read.

A graph is walked through where it is, in memory or in a file, and what is wanted of it put together; so memory holds no
constants.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from tracekit.files import Window
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.rewriting import encoded
from tracekit.readers.common.protobuf.wire import DELIMITED, FIXED32, FIXED64, MORE, VARINT, varint

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = 1 << 28
"""Bytes of a graph that is walked through first."""
SMALL = 1 << 12
"""Bytes of a field that stays as it is."""
_WIDTHS = {VARINT: 0, DELIMITED: 0, FIXED64: 8, FIXED32: 4}


class Within(enum.Enum):
    """Messages that constants may be in."""

    SAVED_MODEL = enum.auto()
    META_GRAPH = enum.auto()
    GRAPH = enum.auto()
    LIBRARY = enum.auto()
    FUNCTION = enum.auto()
    NODE = enum.auto()
    ATTRIBUTE = enum.auto()
    VALUE = enum.auto()
    LIST = enum.auto()
    TENSOR = enum.auto()
    INFO = enum.auto()


_LEADS: dict[Within, dict[int, Within | None]] = {
    Within.SAVED_MODEL: {2: Within.META_GRAPH},
    Within.META_GRAPH: {1: Within.INFO, 2: Within.GRAPH},
    Within.INFO: {4: None, 5: None},
    Within.GRAPH: {1: Within.NODE, 2: Within.LIBRARY, 4: None},
    Within.LIBRARY: {1: Within.FUNCTION},
    Within.FUNCTION: {1: None, 3: Within.NODE},
    Within.NODE: {1: None, 2: None, 3: None, 4: None, 5: Within.ATTRIBUTE},
    Within.ATTRIBUTE: {1: None, 2: Within.VALUE},
    Within.VALUE: {1: Within.LIST, 8: Within.TENSOR, **dict.fromkeys((2, 7, 9, 10))},
    Within.LIST: {8: Within.TENSOR, **dict.fromkeys((2, 3, 4, 5, 6, 7, 9))},
    Within.TENSOR: {2: None},
}
"""Large fields that are wanted, and the message in each if constants may be in it."""


def without(octets: memoryview | Window, message: Within) -> bytes:
    """Leave out large fields that are not wanted: a message in, the same message without them out.

    Of a message in a file only what is wanted is held in memory.

    Raises:
        Damage: A field reaches beyond its message, or is of no known kind.
    """
    return b"".join(_kept(octets, message))


def _kept(octets: memoryview | Window, message: Within) -> Iterator[bytes | memoryview]:
    leads, kept = _LEADS[message], 0
    for number, begin, start, stop in _fields(octets):
        if stop - start <= SMALL:
            continue
        yield octets[kept:begin]
        kept = stop
        inside = leads.get(number)
        if inside is not None:
            inner = without(_part(octets, start, stop), inside)
            yield encoded(number << 3 | DELIMITED) + encoded(len(inner))
            yield inner
        elif number in leads:
            yield octets[begin:stop]
    yield octets[kept:]


def _part(octets: memoryview | Window, start: int, stop: int) -> memoryview | Window:
    return octets.inside(start, stop) if isinstance(octets, Window) else octets[start:stop]


def _fields(octets: memoryview | Window) -> Iterator[tuple[int, int, int, int]]:
    """Yield of each field its number, where it begins, and where its value begins and ends."""
    at, end = 0, len(octets)
    while at < end:
        begin = at
        key, at = _number(octets, at)
        kind = key & 7
        if kind not in _WIDTHS:
            raise Damage(f"a field is of no known kind (byte {begin} of {end})")
        size, start = _number(octets, at) if kind in (VARINT, DELIMITED) else (0, at)
        stop = start + (size if kind == DELIMITED else _WIDTHS[kind])
        if stop > end:
            raise Damage(f"a field reaches beyond its message (byte {begin} of {end})")
        yield key >> 3, begin, start, stop
        at = stop


def _number(octets: memoryview | Window, at: int) -> tuple[int, int]:
    """Read a number; most are of one or two bytes."""
    part = octets[at : at + 2]
    if len(part) and part[0] < MORE:
        return part[0], at + 1
    if len(part) > 1 and part[1] < MORE:
        return part[0] - MORE | part[1] << 7, at + 2
    return varint(octets, at)
