"""Ids of nsys that hold machine, process and thread in one number."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import whole

ID_BITS = 24
ID_MASK = (1 << ID_BITS) - 1


def process_id(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Unpack the process number from ids that hold machine, process and thread (``globalTid``, ``globalPid``)."""
    ids = whole(column).dictionary_encode()
    numbers = pc.bit_wise_and(pc.shift_right(ids.dictionary, ID_BITS), ID_MASK).cast(pa.int32())
    return pa.chunked_array([numbers.take(ids.indices)])


def thread_id(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Unpack the thread number from ids that hold machine, process and thread."""
    ids = whole(column).dictionary_encode()
    return pa.chunked_array([pc.bit_wise_and(ids.dictionary, ID_MASK).cast(pa.int32()).take(ids.indices)])
