"""Ids of nsys that hold machine, process and thread in one number."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

ID_BITS = 24
ID_MASK = (1 << ID_BITS) - 1


def process_id(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Unpack the process number from ids that hold machine, process and thread (``globalTid``, ``globalPid``)."""
    return pc.bit_wise_and(pc.shift_right(column, ID_BITS), ID_MASK)


def thread_id(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Unpack the thread number from ids that hold machine, process and thread."""
    return pc.bit_wise_and(column, ID_MASK)
