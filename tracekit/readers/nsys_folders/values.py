"""Validate the values of Parquet and Arrow columns, and convert them to the types of SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col
from tracekit.readers.nsys import blobs

if TYPE_CHECKING:
    from tracekit.readers.common.budget import Budget

_AS_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


def convert_to_sqlite_values(array: pa.Array) -> pa.Array:
    """Validate values and convert them to the types of SQLite.

    Booleans become 0 and 1, strings become binary, and uint64 values become the int64 values with the same bits.

    Raises:
        pyarrow.ArrowInvalid: The values are invalid, or their strings exceed 2 GiB.
    """
    if pa.types.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(
            convert_to_sqlite_values(array.indices), convert_to_sqlite_values(array.dictionary)
        )
    kind = _AS_BYTES.get(array.type, array.type)
    array = array.view(kind)
    array.validate(full=True)
    if pa.types.is_uint64(kind):
        return array.view(pa.int64())
    if pa.types.is_boolean(kind):
        return array.cast(pa.int64())
    return array.cast(pa.binary()) if pa.types.is_large_binary(kind) else array


def convert_and_count_repaired(array: pa.Array, arrow_type: pa.DataType, budget: Budget) -> tuple[pa.Array, int]:
    """Convert values to an Arrow type, and count the strings whose invalid UTF-8 is replaced.

    Args:
        array: Values that ``convert_to_sqlite_values`` returned.
        arrow_type: Arrow type to convert the values to.
        budget: Memory budget for strings that are dictionary-encoded in the file but not in the result.

    Returns:
        The converted values, and the number of strings in which invalid UTF-8 was replaced.

    Raises:
        TypeError: The values cannot be converted. The message names the expected type.
        Damage: The strings exceed the memory budget.
    """
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), arrow_type), 0
    if not pa.types.is_dictionary(array.type):
        return _convert_array_and_count_repaired(array, arrow_type)
    values, broken = _convert_array_and_count_repaired(
        array.dictionary, pa.string() if arrow_type == col.DICTIONARY else arrow_type
    )
    if broken:
        changed = pc.not_equal(values.cast(pa.binary()), array.dictionary)
        broken = pc.sum(changed.take(array.indices)).as_py() or 0
    if arrow_type == col.DICTIONARY:
        return col.compact_dictionary(array.indices, values), broken
    if arrow_type == pa.string():
        lengths = pc.binary_length(values).cast(pa.int64())
        budget.reserve(pc.sum(lengths.take(array.indices)).as_py() or 0, 1, "bytes of strings")
    return values.take(array.indices), broken


def format_payloads(array: pa.Array) -> pa.Array:
    """Format binary NVTX payloads as strings. An array of another type is returned unchanged."""
    if pa.types.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(array.indices, format_payloads(array.dictionary))
    return blobs.format_payload_blobs(array) if pa.types.is_binary(array.type) else array


def _convert_array_and_count_repaired(array: pa.Array, arrow_type: pa.DataType) -> tuple[pa.Array, int]:
    try:
        return col.convert_column(array, arrow_type)
    except pa.ArrowNotImplementedError:
        raise TypeError("text") from None
