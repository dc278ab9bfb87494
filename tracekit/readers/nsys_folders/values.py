"""Values of Parquet and Arrow columns as SQLite would hold them, checked before they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col
from tracekit.readers.nsys import blobs

if TYPE_CHECKING:
    from tracekit.readers.common.budget import Budget

_AS_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


def plain(array: pa.Array) -> pa.Array:
    """Check n values and take them as SQLite holds them: integers signed, truth as 0 and 1, texts as bytes.

    Raises:
        ArrowInvalid: They are damaged, or more than 2 GiB.
    """
    if pa.types.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(plain(array.indices), plain(array.dictionary))
    kind = _AS_BYTES.get(array.type, array.type)
    array = array.view(kind)
    array.validate(full=True)
    if pa.types.is_uint64(kind):
        return array.view(pa.int64())
    if pa.types.is_boolean(kind):
        return array.cast(pa.int64())
    return array.cast(pa.binary()) if pa.types.is_large_binary(kind) else array


def typed(array: pa.Array, kind: pa.DataType, budget: Budget) -> tuple[pa.Array, int]:
    """Take plain values as numbers or texts: n in, n out, and how many texts had to be repaired.

    Args:
        array: The values.
        kind: What they are taken as.
        budget: Memory that texts may take which many rows share in the file.

    Raises:
        TypeError: They are of another kind; says of which they should be.
        Damage: They would take more memory than they may.
    """
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind), 0
    if not pa.types.is_dictionary(array.type):
        return _typed(array, kind)
    values, broken = _typed(array.dictionary, pa.string() if kind == col.DICTIONARY else kind)
    if broken:
        changed = pc.not_equal(values.cast(pa.binary()), array.dictionary)
        broken = pc.sum(changed.take(array.indices)).as_py() or 0
    if kind == col.DICTIONARY:
        return col.compact_dictionary(array.indices, values), broken
    if kind == pa.string():
        lengths = pc.binary_length(values).cast(pa.int64())
        budget.take(pc.sum(lengths.take(array.indices)).as_py() or 0, 1, "bytes of texts")
    return values.take(array.indices), broken


def payloads(array: pa.Array) -> pa.Array:
    """Tell NVTX payloads that are plain bytes: n in, n texts out; other values as they are."""
    if pa.types.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(array.indices, payloads(array.dictionary))
    return blobs.texts(array) if pa.types.is_binary(array.type) else array


def _typed(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, int]:
    try:
        return col.convert_column(array, kind)
    except pa.ArrowNotImplementedError:
        raise TypeError("text") from None
