"""Dictionary-encode strings in a buffer, because most strings in a trace are names that occur many times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.readers.common import columns as col
from tracekit.readers.common.protobuf.decoder import SCRATCH, check_result_code
from tracekit.readers.common.protobuf.decoding import extract_strings

if TYPE_CHECKING:
    from typing import TypeAlias

    from tracekit.readers.common.protobuf.decoding import Buffer, Int64Array

    Int32Array: TypeAlias = npt.NDArray[np.int32]

MAX_ROWS, TABLE_ENTRIES = 1 << 14, 1 << 15


def encode_distinct_strings(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> tuple[Int32Array, Int64Array]:
    """Assign a number to each distinct string in a buffer, from 0 in the order in which the strings first occur.

    Args:
        buffer: Buffer that holds the strings.
        starts: Start offset of each string.
        stops: End offset of each string.

    Returns:
        An array with the number of each string, and an array with the index of the first string that has each number.
        If there are many thousands of distinct strings, equal strings may get different numbers.

    Raises:
        Damage: An offset is beyond the end of the buffer.
    """
    n = min(MAX_ROWS, len(starts))
    at = [SCRATCH, SCRATCH + 8 * n, SCRATCH + 16 * n, SCRATCH + 20 * n, SCRATCH + 24 * n]
    arrays = dict(zip(("starts", "stops", "codes", "first_rows", "table"), at, strict=True))
    buffer.bytes(at[4], 16 * TABLE_ENTRIES)[:] = 0
    codes = np.empty(len(starts), np.int32)
    first_rows: list[Int64Array] = [np.empty(0, np.int64)]
    count = table_size = 0
    for first in range(0, len(starts), MAX_ROWS):
        part = slice(first, min(first + MAX_ROWS, len(starts)))
        rows = part.stop - first
        buffer.array(at[0], rows, np.int64)[:] = starts[part]
        buffer.array(at[1], rows, np.int64)[:] = stops[part]
        table = {"mask": TABLE_ENTRIES - 1, "max_entries": TABLE_ENTRIES // 2, "entries": table_size}
        check_result_code(buffer.call("distinct", rows=rows, limit=buffer.size, next_code=count, **arrays, **table))
        codes[part] = buffer.array(at[2], rows, np.int32)
        new = buffer.parameter("distinct", "next_code") - count
        first_rows.append(first + buffer.array(at[3], new, np.int32).astype(np.int64))
        count, table_size = count + new, buffer.parameter("distinct", "entries")
    return codes, np.concatenate(first_rows)


def dictionary_encode(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> pa.DictionaryArray:
    """Return strings in a buffer as a dictionary array.

    If there are many thousands of distinct strings, the dictionary may contain some of them more than once.

    Args:
        buffer: Buffer that holds the strings.
        starts: Start offset of each string, in ascending order.
        stops: End offset of each string.

    Raises:
        Damage: An offset is beyond the end of the buffer.
    """
    codes, new_rows = encode_distinct_strings(buffer, starts, stops)
    strings = extract_strings(buffer.data, np.stack((starts[new_rows], stops[new_rows]), axis=1).reshape(-1))
    return pa.DictionaryArray.from_arrays(col.build_number_array(codes), strings)
