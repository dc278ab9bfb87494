"""Read the categories of events, of which an event may have several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import build_number_array
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import DELIMITED, FIXED32, FIXED64, VARINT, decode_varints
from tracekit.readers.pftrace.strings import NO_STRING

if TYPE_CHECKING:
    from tracekit.readers.common.protobuf.decoding import Buffer, Int64Array, Mask
    from tracekit.readers.pftrace.strings import TextPool

MAX_FIELDS = 1 << 12
"""Maximum number of fields of an event that may have several categories."""


def find_repeated_integers(
    buffer: Buffer, starts: Int64Array, stops: Int64Array, number: int, last: tuple[Int64Array, Mask]
) -> tuple[Int64Array, Int64Array]:
    """Find the values of a repeated field of integers in messages that were decoded before.

    Only messages that contain the key of the field in several places are decoded again.

    Args:
        buffer: Buffer that holds the messages.
        starts: Start offset of each message.
        stops: End offset of each message.
        number: Number of the field, at most 15.
        last: Last value of the field in each message, and a mask of the messages that have one.

    Returns:
        The index of the message of each value, in ascending order, and the values.

    Raises:
        Damage: A message that may have several values has too many fields.
    """
    key = number << 3 | VARINT
    ends = np.append(0, np.cumsum(buffer.data[: int(stops.max(initial=0))] == key, dtype=np.int32))
    may_repeat = ends[stops] - ends[starts] > 1
    pending = np.flatnonzero(may_repeat)
    single = np.flatnonzero(last[1] & ~may_repeat)
    offsets, rows, values = starts.copy(), [single], [last[0][single]]
    for _ in range(MAX_FIELDS):
        if not len(pending):
            break
        keys, sizes = decode_varints(buffer, offsets[pending])
        kinds, at = (keys & 7).astype(np.int64), offsets[pending] + sizes
        has_number = np.flatnonzero((kinds == VARINT) | (kinds == DELIMITED))
        numbers, lengths = decode_varints(buffer, at[has_number])
        is_value = keys[has_number] == key
        rows.append(pending[has_number[is_value]])
        values.append(numbers[is_value].view(np.int64))
        at[has_number] += lengths + np.where(kinds[has_number] == DELIMITED, numbers, 0).astype(np.int64)
        at += np.select([kinds == FIXED64, kinds == FIXED32], [8, 4], 0)
        offsets[pending] = at
        pending = pending[at < stops[pending]]
    if len(pending):
        raise Damage(f"an event has more than {MAX_FIELDS:,} fields")
    all_rows, all_values = np.concatenate(rows), np.concatenate(values)
    order = np.argsort(all_rows, kind="stable")
    return all_rows[order], all_values[order]


def join_texts(pool: TextPool, rows: Int64Array, codes: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Join the strings of each row with commas. Return the rows with several strings, and the code of the result.

    Args:
        pool: The strings.
        rows: Row of each string, in ascending order.
        codes: Code of each string, or ``NO_STRING`` for strings to leave out.
    """
    rows, codes = rows[codes != NO_STRING], codes[codes != NO_STRING]
    firsts = np.flatnonzero(np.append(True, rows[1:] != rows[:-1])[: len(rows)])
    counts = np.diff(np.append(firsts, len(rows)))
    several = np.flatnonzero(counts > 1)
    if not len(several):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    is_chosen = np.repeat(counts > 1, counts)
    distinct, inverse = np.unique(codes[is_chosen], return_inverse=True)
    texts = pa.array(pool.get_texts(distinct.tolist()), pa.string()).take(build_number_array(inverse.reshape(-1)))
    offsets = np.append(0, np.cumsum(counts[several])).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(build_number_array(offsets), texts), ",")
    return rows[firsts[several]], pool.add_array(joined)
