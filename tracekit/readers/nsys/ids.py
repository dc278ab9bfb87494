"""Extract process and thread ids from global ids, which combine a machine, a process and a thread in one integer."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

ID_BITS = 24
ID_MASK = (1 << ID_BITS) - 1


def extract_process_ids(global_ids: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the process id in each global id of a process or thread."""
    return pc.bit_wise_and(pc.shift_right(global_ids, ID_BITS), ID_MASK)


def extract_thread_ids(global_ids: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the thread id in each global id of a thread."""
    return pc.bit_wise_and(global_ids, ID_MASK)
