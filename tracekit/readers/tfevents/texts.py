"""Texts cut out of the bytes of messages, as Arrow columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.readers.common.columns import text
from tracekit.readers.common.protobuf.decoding import cut

if TYPE_CHECKING:
    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Places


def at(buffer: Buffer, starts: Places, stops: Places) -> pa.Array:
    """Return n texts that begin and end at ascending places; what is not UTF-8 is replaced."""
    edges = np.empty(2 * len(starts), np.int64)
    edges[::2], edges[1::2] = starts, stops
    found: pa.Array = text(cut(buffer.octets, edges))[0]
    return found


def named(buffer: Buffer, field: Field | None, rows: int) -> pa.DictionaryArray:
    """Return the texts of a field of n messages as a dictionary; null where it is absent."""
    if field is None or field.stops is None:
        return pa.nulls(rows, pa.dictionary(pa.int32(), pa.string()))
    texts = at(buffer, *field.spans()).dictionary_encode()
    if field.valid is None:
        return texts
    codes = np.zeros(rows, np.int32)
    codes[field.valid] = texts.indices.to_numpy()
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=~field.valid), texts.dictionary)
