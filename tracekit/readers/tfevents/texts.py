"""Convert the strings in encoded messages to Arrow arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.readers.common.columns import convert_to_strings
from tracekit.readers.common.protobuf.decoding import extract_strings

if TYPE_CHECKING:
    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Int64Array


def slice_strings(buffer: Buffer, starts: Int64Array, stops: Int64Array) -> pa.Array:
    """Return the strings in ranges of a buffer. The ranges must be in ascending order. Invalid UTF-8 is replaced."""
    edges = np.empty(2 * len(starts), np.int64)
    edges[::2], edges[1::2] = starts, stops
    strings: pa.Array = convert_to_strings(extract_strings(buffer.data, edges))[0]
    return strings


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
