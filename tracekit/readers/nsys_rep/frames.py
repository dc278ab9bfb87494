"""Decode the call stacks of events: repeated messages, of which equal ones are decoded once.

Most events have the call stack of another event. Therefore the bytes of all frames of an event are dictionary-encoded
first, and then the bytes of each frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.readers.common import columns as col
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.common.protobuf.distinct import encode_distinct
from tracekit.readers.common.protobuf.occurrences import find_occurrences
from tracekit.readers.nsys_rep.fields import fields_of, snake_case

if TYPE_CHECKING:
    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Int64Array

COLUMNS = ("symbol", "module", "kernelMode", "thumbCode", "unresolved", "specialEntry", "originalIP", "unwindMethod")
FRAME_BYTES = 48
"""Bytes of memory per frame of a distinct stack while a batch is decoded."""
_NUMBERS = {c: getattr(fields_of("Frame"), "original_ip" if c == "originalIP" else snake_case(c)) for c in COLUMNS}
_FRAME = pa.struct([(c, pa.int64()) for c in COLUMNS])
TYPE = pa.dictionary(pa.int32(), pa.list_(pa.dictionary(pa.int32(), _FRAME)))


def decode_stacks(buffer: Buffer, field: Field | None, total: int, number: int, budget: Budget) -> pa.DictionaryArray:
    """Decode the call stack of each of n messages.

    Args:
        buffer: Buffer that holds the messages.
        field: Byte ranges of the frames of each message, or None if no message has frames.
        total: Number of messages.
        number: Number of the repeated field that contains the frames.
        budget: Memory budget, of which nothing is reserved.

    Returns:
        The stacks, as ``tables.FRAMES`` describes. The stack of a message without frames is null.

    Raises:
        Damage: A message is invalid, or the frames take more memory than the budget allows.
    """
    valid = np.zeros(total, np.bool_) if field is None else field.valid
    first, last = (np.zeros(total, np.int64),) * 2 if field is None else field.byte_ranges()
    rows = np.arange(total) if valid is None else np.flatnonzero(valid)
    codes, distinct = encode_distinct(buffer, first[rows], last[rows])
    distinct = rows[distinct]
    (frames,) = find_occurrences(buffer, first[distinct], last[distinct], (number,), budget.limit // FRAME_BYTES)
    frame_codes, new = encode_distinct(buffer, frames.starts, frames.stops)
    values = _decode_frames(buffer, frames.starts[new], frames.stops[new])
    edges = np.searchsorted(frames.rows, np.arange(len(distinct) + 1)).astype(np.int32)
    stacks = pa.ListArray.from_arrays(
        col.numbers(edges), pa.DictionaryArray.from_arrays(col.numbers(frame_codes), values)
    )
    if valid is None:
        return pa.DictionaryArray.from_arrays(col.numbers(codes), stacks)
    of_rows = np.zeros(total, np.int32)
    of_rows[rows] = codes
    return pa.DictionaryArray.from_arrays(col.numbers(of_rows, valid), stacks)


def _decode_frames(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> pa.StructArray:
    """Decode frames into a struct of integers, which are null where a frame lacks the field."""
    fields = decode(buffer, starts, stops, _NUMBERS.values())
    columns = []
    for number in _NUMBERS.values():
        field = fields.get(number)
        if field is None:
            columns.append(pa.nulls(len(starts), pa.int64()))
            continue
        if field.stops is not None:
            raise Damage(f"field {number} of a frame holds bytes instead of a number")
        columns.append(col.numbers(field.values.view(np.int64), field.valid))
    return pa.StructArray.from_arrays(columns, fields=list(_FRAME))
