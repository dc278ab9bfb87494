"""Locate the records of a TFRecord file in a sandbox that runs the program ``native/records.c``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.native.program import Program
from tracekit.native.sandbox import Bytes, Sandbox
from tracekit.readers.common.damage import Damage

NEED_MORE, FULL, BAD_SIZE, BAD_DATA = range(4)
"""Why a search for records ended.

The next record is incomplete, ``MAX_RECORDS`` were located, or the checksum of the size or of the data is wrong.
"""
MAX_RECORDS = 1 << 18
"""Maximum number of records that one call locates."""
HEADER_BYTES, FOOTER_BYTES = 12, 4
_CRC_TABLES = 1024
_STARTS = 16384
_SIZES = _STARTS + 4 * MAX_RECORDS
_BUFFER = 1 << 22
"""Offsets of the CRC-32C tables, of the starts and sizes of records (32 bits each), and of the section of the file."""
_SLACK = 64

PROGRAM = Program(
    "records",
    {"records": ("offset", "end", "capacity", "next", "count"), "fill_tables": ()},
    {
        "CRC_TABLES": _CRC_TABLES,
        "STARTS": _STARTS,
        "SIZES": _SIZES,
        "BUFFER": _BUFFER,
        "HEADER_BYTES": HEADER_BYTES,
        "FOOTER_BYTES": FOOTER_BYTES,
        "MORE": NEED_MORE,
        "FULL": FULL,
        "BAD_SIZE": BAD_SIZE,
        "BAD_DATA": BAD_DATA,
    },
)


class RecordBounds(NamedTuple):
    """The locations of records, and why the search for more records ended.

    Attributes:
        result: ``NEED_MORE`` if the next record is incomplete, ``FULL`` if the maximum number of records was located,
            ``BAD_SIZE`` if the checksum of the size of a record is wrong, or ``BAD_DATA`` if the checksum of its data
            is wrong.
        offset: Offset at which the search ended, which is the end of the last located record.
        starts: Offset at which the data of each record starts.
        stops: Offset at which the data of each record ends.
    """

    result: int
    offset: int
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]


class RecordSandbox(Sandbox):
    """A sandbox that contains a section of a file and locates the records in this section.

    Attributes:
        data: The memory for the section of the file.
    """

    def __init__(self, size: int) -> None:
        """Allocate memory for a section of the given size in bytes."""
        super().__init__(
            PROGRAM, _BUFFER + size + _SLACK, lambda: Damage("a record extends beyond the end of the file")
        )
        self.data: Bytes = self.bytes(_BUFFER, size)
        self.call("fill_tables")

    def find_records(self, offset: int, end: int) -> RecordBounds:
        """Locate up to ``MAX_RECORDS`` complete records between two offsets in the section of the file."""
        result = self.call("records", offset=_BUFFER + offset, end=_BUFFER + end, capacity=MAX_RECORDS)
        count = self.parameter("records", "count")
        starts, sizes = (self.array(array, count, np.uint32).astype(np.int64) for array in (_STARTS, _SIZES))
        return RecordBounds(result, self.parameter("records", "next") - _BUFFER, starts, starts + sizes)
