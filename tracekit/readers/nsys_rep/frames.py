"""Decode the call stacks of events. Equal stacks and equal frames are decoded only once.

Most call stacks occur in several events. Therefore, the bytes of the stacks are dictionary-encoded first. Later, each
distinct stack is split into frames. The frames are dictionary-encoded in the same way, and each distinct frame is
decoded once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.readers.common import columns as col
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import Buffer, decode
from tracekit.readers.common.protobuf.distinct import dictionary_encode, encode_distinct_strings
from tracekit.readers.common.protobuf.occurrences import find_occurrences
from tracekit.readers.nsys_rep.fields import convert_to_snake_case, load_fields

if TYPE_CHECKING:
    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Field, Int64Array

COLUMNS = ("symbol", "module", "kernelMode", "thumbCode", "unresolved", "specialEntry", "originalIP", "unwindMethod")
FRAME_BYTES = 48
"""Bytes of memory per frame of a distinct stack while a batch is decoded."""
_NUMBERS = {
    c: getattr(load_fields("Frame"), "original_ip" if c == "originalIP" else convert_to_snake_case(c)) for c in COLUMNS
}
_FRAME = pa.struct([(c, pa.int64()) for c in COLUMNS])
TYPE = pa.dictionary(pa.int32(), pa.binary())


def encode_stacks(buffer: Buffer, field: Field | None, message_count: int) -> pa.DictionaryArray:
    """Dictionary-encode the call stacks of messages without decoding their frames.

    Args:
        buffer: Buffer that holds the messages.
        field: Byte ranges of the frames of each message, or None if no message has frames.
        message_count: Number of messages.

    Returns:
        The encoded stack of each message, as described for ``tables.FRAMES``, or null for a message without frames.
    """
    if field is None:
        return col.build_null_array(message_count, TYPE)
    array = dictionary_encode(buffer, *field.spans())
    if field.valid is None:
        return array
    codes = np.zeros(message_count, np.int32)
    codes[field.valid] = array.indices
    return pa.DictionaryArray.from_arrays(col.build_number_array(codes, field.valid), array.dictionary)


def decode_stacks(stacks: pa.BinaryArray, frames_field: int, budget: Budget) -> pa.ListArray:
    """Decode encoded call stacks into lists of frames.

    Args:
        stacks: Encoded stacks, none of which is null.
        frames_field: Number of the repeated field that contains the frames.
        budget: Memory budget that the frames must not exceed. The frames are not deducted from the budget.

    Returns:
        The frames of each stack, as described for ``StackTables.decode_stacks``.

    Raises:
        Damage: A stack is invalid, or the frames take more memory than the budget allows.
    """
    edges = np.frombuffer(stacks.buffers()[1], np.int32)[stacks.offset :][: len(stacks) + 1].astype(np.int64)
    size = int(edges[-1] - edges[0])
    buffer = Buffer(size)
    buffer.data[:size] = np.frombuffer(stacks.buffers()[2] or b"", np.uint8)[edges[0] : edges[-1]]
    edges -= edges[0]
    (frames,) = find_occurrences(buffer, edges[:-1], edges[1:], (frames_field,), budget.limit // FRAME_BYTES)
    frame_codes, new = encode_distinct_strings(buffer, frames.starts, frames.stops)
    values = _decode_frames(buffer, frames.starts[new], frames.stops[new])
    offsets = np.searchsorted(frames.rows, np.arange(len(stacks) + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(
        col.build_number_array(offsets), pa.DictionaryArray.from_arrays(col.build_number_array(frame_codes), values)
    )


def _decode_frames(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> pa.StructArray:
    """Decode frames into a struct array of integers. A field that a frame lacks is null."""
    fields = decode(buffer, starts, stops, _NUMBERS.values())
    columns = []
    for number in _NUMBERS.values():
        field = fields.get(number)
        if field is None:
            columns.append(pa.nulls(len(starts), pa.int64()))
            continue
        if field.stops is not None:
            raise Damage(f"field {number} of a frame holds bytes instead of a number")
        columns.append(col.build_number_array(field.values.view(np.int64), field.valid))
    return pa.StructArray.from_arrays(columns, fields=list(_FRAME))
