"""Convert the values of a protobuf field in many messages to an Arrow array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.readers.common.columns import convert_to_strings
from tracekit.readers.common.protobuf.decoding import Buffer, extract_strings

if TYPE_CHECKING:
    from tracekit.readers.common.protobuf.decoding import Field, Int64Array

MAX_GRAPH_BYTES = (1 << 31) - (1 << 23)
"""Maximum size of a graph in bytes, which is slightly less than the maximum size of a protobuf message."""


def load_buffer(data: bytes | memoryview) -> Buffer:
    """Copy an encoded message into a buffer from which its fields can be decoded."""
    buffer = Buffer(len(data))
    buffer.data[: len(data)] = np.frombuffer(data, np.uint8)
    return buffer


def slice_bytes(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> pa.Array:
    """Return a binary array with the bytes of each range of a buffer. The ranges must not overlap."""
    order = None if (starts[1:] >= stops[:-1]).all() else np.argsort(starts, kind="stable")
    edges = np.empty(2 * len(starts), np.int64)
    edges[::2], edges[1::2] = (starts, stops) if order is None else (starts[order], stops[order])
    values = extract_strings(buffer.data, edges)
    return values if order is None else values.take(pa.array(np.argsort(order)))


def slice_bytes_or_empty(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> pa.Array:
    """Return a binary array with the bytes of each range of a buffer. Only empty ranges may overlap other ranges."""
    is_filled = stops > starts
    if is_filled.all():
        return slice_bytes(buffer, starts, stops)
    indices = np.cumsum(is_filled) - 1
    return (
        slice_bytes(buffer, starts[is_filled], stops[is_filled]).take(pa.array(indices, mask=~is_filled)).fill_null(b"")
    )


def slice_strings(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> pa.Array:
    """Return a string array with the text of each range of a buffer. Invalid UTF-8 is replaced."""
    return convert_to_strings(slice_bytes(buffer, starts, stops))[0]


def build_string_column(buffer: Buffer, field: Field | None, row_count: int) -> pa.Array:
    """Return the value of a field in each message as a string array, null where the field is missing.

    Raises:
        Damage: The field contains numbers instead of strings.
    """
    if field is None:
        return pa.nulls(row_count, pa.string())
    strings = slice_strings(buffer, *field.spans())
    if field.valid is None:
        return strings
    indices = np.cumsum(field.valid) - 1
    return strings.take(pa.array(indices, mask=~field.valid))


def build_dictionary_column(buffer: Buffer, field: Field | None, row_count: int) -> pa.DictionaryArray:
    """Return a field of each message as a dictionary-encoded string, null where the field is missing."""
    if field is None or field.stops is None:
        return pa.nulls(row_count, pa.dictionary(pa.int32(), pa.string()))
    strings = slice_strings(buffer, *field.spans()).dictionary_encode()
    if field.valid is None:
        return strings
    codes = np.zeros(row_count, np.int32)
    codes[field.valid] = strings.indices.to_numpy()
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=~field.valid), strings.dictionary)


def compute_field_spans(field: Field | None, row_count: int) -> tuple[Int64Array, Int64Array]:
    """Return the start and the end offset of a field in each message. The two are equal where it is missing.

    Raises:
        Damage: The field contains numbers instead of bytes.
    """
    if field is None:
        return np.zeros(row_count, np.int64), np.zeros(row_count, np.int64)
    field.spans()
    starts, stops = field.values.view(np.int64), field.stops
    return starts, starts if stops is None else stops
