"""What ``walk.wat`` is given and what it answers: where things stand in its memory, and what its results mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.sandbox import Sandbox

if TYPE_CHECKING:
    from tracekit.readers.common.sandbox import Octets

SLACK = 32
SLOTS, COUNTS, KINDS, SCRATCH, OCTETS = 4096, 8192, 12288, 16384, 1 << 22
ROOM = OCTETS - SCRATCH
"""Bytes of scratch: what a call is given, and what it finds."""
MAX_SLOTS, FIELDS = 255, 2048
BEYOND, UNKNOWN_FIELD, UNKNOWN_KIND, BROKEN, LONG_EVENT, MANY, AGAIN = range(1, 8)
_SAID = {
    BEYOND: "a field reaches beyond its message",
    UNKNOWN_FIELD: "a field has a number beyond all known ones",
    UNKNOWN_KIND: "a field is of no known kind",
    LONG_EVENT: "an event reaches beyond its end",
}


class Walk(Sandbox):
    """Memory for some bytes, and the code that walks through them.

    Attributes:
        octets: The bytes; zeros follow the last.
    """

    def __init__(self, size: int) -> None:
        super().__init__(__package__, OCTETS + size + SLACK, _SAID[BEYOND])
        self.octets: Octets = self.part(OCTETS, size + SLACK)


def complain(result: int) -> None:
    """Say what the result of a call means.

    Raises:
        Damage: It is not 0.
    """
    if result:
        raise Damage(said(result))


def said(result: int) -> str:
    """Say what a result that is not 0 means."""
    return _SAID[result]
