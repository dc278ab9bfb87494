"""Convert the decoded fields of many protobuf messages to arrays with one element per message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import build_number_array, convert_to_strings
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import extract_strings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Int64Array, Mask

JOIN_BATCH_ROWS = 1 << 16


def read_integers(fields: Mapping[int, Field], number: int, rows: int) -> tuple[Int64Array, Mask]:
    """Return an integer field of many messages, and a mask of the messages that have it. Missing values are 0.

    Raises:
        Damage: The field contains bytes instead of numbers.
    """
    field = fields.get(number)
    if field is None:
        return np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    if field.stops is not None:
        raise Damage(f"field {number} holds bytes instead of a number")
    valid = np.ones(rows, np.bool_) if field.valid is None else field.valid
    return np.where(valid, field.values, np.uint64(0)).view(np.int64), valid


def read_strings(buffer: Buffer, field: Field | None, rows: int) -> pa.Array:
    """Return a string field of many messages, null where it is missing. Invalid UTF-8 is replaced.

    Raises:
        Damage: The field contains numbers instead of bytes.
    """
    if field is None:
        return pa.nulls(rows, pa.string())
    starts, stops = field.spans()
    strings = convert_to_strings(extract_strings(buffer.data, np.stack((starts, stops), axis=1).reshape(-1)))[0]
    if field.valid is None:
        return strings
    positions = np.cumsum(field.valid) - 1
    return strings.take(build_number_array(np.maximum(positions, 0), field.valid))


def read_spans(fields: Mapping[int, Field], number: int, rows: int) -> tuple[Int64Array, Int64Array, Mask]:
    """Return the start and end offsets of a field of many messages, and a mask of the messages that have it.

    Raises:
        Damage: The field contains numbers instead of bytes.
    """
    field = fields.get(number)
    if field is None:
        return np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    starts, stops = field.compute_byte_ranges()
    return starts, stops, np.ones(rows, np.bool_) if field.valid is None else field.valid


def join_strings_by_row(row_count: int, owners: Int64Array, strings: pa.Array, brackets: str) -> pa.ChunkedArray:
    """Join the strings of each row with commas, and enclose the result in brackets. Rows without strings become null.

    Args:
        row_count: Number of rows.
        owners: Row number of each string, in ascending order.
        strings: The strings to join.
        brackets: The opening and the closing bracket.

    Raises:
        Damage: The result is too large for an Arrow array.
    """
    batches = [pa.array([], pa.string())]
    for first in range(0, row_count, JOIN_BATCH_ROWS):
        edges = np.searchsorted(owners, np.arange(first, min(row_count, first + JOIN_BATCH_ROWS) + 1))
        empty = np.append(edges[1:] == edges[:-1], False)
        offsets = pa.array((edges - edges[0]).astype(np.int32), mask=empty)
        lists = pa.ListArray.from_arrays(offsets, strings.slice(edges[0], edges[-1] - edges[0]))
        try:
            batches.append(pc.binary_join_element_wise(brackets[0], pc.binary_join(lists, ","), brackets[1], ""))
        except pa.ArrowInvalid as e:
            raise Damage("the joined strings exceed 2 GiB, the maximum size of an Arrow string array") from e
    return pa.chunked_array(batches, pa.string())
