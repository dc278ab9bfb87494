"""Records of a TFRecord file, found in a sandbox whose code is ``walk.wat``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit import crc32c
from tracekit.readers.common.sandbox import Octets, Sandbox

MORE, FULL, BAD_SIZE, BAD_DATA = range(4)
ROOM = 1 << 18
"""Records found at a time."""
HEADER_BYTES, FOOTER_BYTES = 12, 4
_TABLES, _STARTS, _SIZES, _OCTETS = 1024, 16384, 16384 + (1 << 20), 1 << 22
_SLACK = 64


class Found(NamedTuple):
    """Records found, and how the search ended.

    Attributes:
        result: Why it ended.
        at: Where: the beginning of what is not taken.
        starts: n places where the data of records begin.
        stops: n places where they end.
    """

    result: int
    at: int
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]


class Walker(Sandbox):
    """Memory for some bytes of a file, and the code that finds records in them.

    Attributes:
        octets: The bytes.
    """

    def __init__(self, size: int) -> None:
        """Take memory for so many bytes."""
        super().__init__(__package__, _OCTETS + size + _SLACK, "a record reaches beyond its bytes")
        self.octets: Octets = self.part(_OCTETS, size)
        self.part(_TABLES, 4 * crc32c.TABLES * crc32c.OCTETS).view(np.uint32)[:] = np.ravel(crc32c.tables())

    def records(self, at: int, end: int) -> Found:
        """Find records, as many as are whole and as there is room for, from one place to another."""
        frame = self.frame(_OCTETS + at, _OCTETS + end, ROOM)
        result = self.call("records")
        count = int(frame[4])
        starts, sizes = (self.part(p, 4 * count).view(np.uint32).astype(np.int64) for p in (_STARTS, _SIZES))
        return Found(result, int(frame[3]) - _OCTETS, starts, starts + sizes)
