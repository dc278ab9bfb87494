"""Locate the records of a TFRecord file in a sandbox, whose code is ``walk.wat``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit import crc32c
from tracekit.readers.common.sandbox import Octets, Sandbox

NEED_MORE, FULL, BAD_SIZE, BAD_DATA = range(4)
MAX_RECORDS = 1 << 18
"""Maximum number of records that one call locates."""
HEADER_BYTES, FOOTER_BYTES = 12, 4
_TABLES, _STARTS, _SIZES, _OCTETS = 1024, 16384, 16384 + (1 << 20), 1 << 22
_SLACK = 64


class RecordBounds(NamedTuple):
    """The records that were located, and why the search ended.

    Attributes:
        result: Why the search ended.
        offset: Where it ended: the start of the bytes that are not part of a located record.
        starts: n offsets where the data of records starts.
        stops: n offsets where it ends.
    """

    result: int
    offset: int
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]


class RecordSandbox(Sandbox):
    """A sandbox that holds a section of a file and locates the records in it.

    Attributes:
        data: The bytes.
    """

    def __init__(self, size: int) -> None:
        """Allocate memory for a number of bytes."""
        super().__init__(__package__, _OCTETS + size + _SLACK, "a record reaches beyond its bytes")
        self.data: Octets = self.part(_OCTETS, size)
        self.part(_TABLES, 4 * crc32c.TABLES * crc32c.OCTETS).view(np.uint32)[:] = np.ravel(crc32c.tables())

    def find_records(self, offset: int, end: int) -> RecordBounds:
        """Locate the complete records between two offsets, at most ``MAX_RECORDS``."""
        frame = self.frame(_OCTETS + offset, _OCTETS + end, MAX_RECORDS)
        result = self.call("records")
        count = int(frame[4])
        starts, sizes = (self.part(p, 4 * count).view(np.uint32).astype(np.int64) for p in (_STARTS, _SIZES))
        return RecordBounds(result, int(frame[3]) - _OCTETS, starts, starts + sizes)
