"""Convert source columns to declared columns: numeric types, strings by id, and valid UTF-8.

All functions work on whole Arrow columns. The dictionary of a result holds only values that occur in its rows,
because the string table of an export also holds environments and command lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Mapping

DICTIONARY = pa.dictionary(pa.int32(), pa.string())
MAX_TEXT_BYTES = (1 << 31) - 1
"""Maximum number of bytes of strings in one Arrow array."""

SPARE_TEXT_BYTES, MAX_TEXT_BYTES_PER_ROW = 1 << 26, 1 << 12
"""Limits for the decoded strings of a column: a fixed number of bytes, and additional bytes per row.

They limit strings that the file stores once and that many rows reference.
"""
_NUMBERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_DTYPES = {pa.from_numpy_dtype(name): np.dtype(name) for name in _NUMBERS}


@dataclass(frozen=True, slots=True)
class StringTable:
    """A table of strings by id: unique ``ids``, and their ``values`` in the same order."""

    ids: pa.Array
    values: pa.Array

    @classmethod
    def of(cls, labels: Mapping[int, str | None]) -> StringTable:
        """Create a string table from a mapping of ids to strings."""
        return cls(pa.array(labels.keys(), pa.int64()), pa.array(labels.values(), pa.string()))

    def look_up(self, column: pa.ChunkedArray) -> tuple[pa.DictionaryArray, int]:
        """Return the string of each id, which is null for a null or unknown id, and the number of unknown ids."""
        if is_empty(column):
            return pa.nulls(len(column), DICTIONARY), 0
        used = single_array(column).dictionary_encode()
        indices = pc.index_in(used.dictionary.cast(pa.int64()), self.ids)
        missing = 0
        if indices.null_count:
            missing = pc.sum(indices.is_null().take(used.indices)).as_py()
        return dictionary_array(used.indices, self.values.take(indices)), missing


def dictionary_array(numbers: pa.Array, names: pa.Array) -> pa.DictionaryArray:
    """Build a dictionary column from codes in order of first use and the name of each code. Equal names are merged."""
    values = names.unique().drop_null()
    if len(values) != len(names):
        numbers = pc.index_in(names, values).take(numbers)
    return pa.DictionaryArray.from_arrays(numbers.cast(pa.int32()), values)


def compact_dictionary(codes: pa.Array | pa.ChunkedArray, names: pa.Array) -> pa.DictionaryArray:
    """Build a dictionary column from codes and names. It has only the names that occur, in order of first use."""
    used = single_array(codes).dictionary_encode()
    return dictionary_array(used.indices, names.take(used.dictionary))


def decode_dictionary(names: pa.DictionaryArray) -> pa.Array:
    """Return the string of each row of a dictionary column.

    Raises:
        ValueError: So many rows repeat long strings that the result would take far more memory than the file.
    """
    size = pc.sum(pc.binary_length(names.dictionary).cast(pa.int64()).take(names.indices)).as_py() or 0
    if size > min(SPARE_TEXT_BYTES + MAX_TEXT_BYTES_PER_ROW * len(names), MAX_TEXT_BYTES):
        raise ValueError(f"{len(names)} rows refer to {size} bytes of strings")
    return names.dictionary_decode()


def cast_numbers(data: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Cast numbers to a type. Integers become 64-bit integers if any value does not fit that type."""
    if data.type == kind or not is_number(kind) or not is_number(data.type):
        return data
    if kind == pa.float64():
        return data.cast(kind, safe=False)
    try:
        return data.cast(kind)
    except pa.ArrowInvalid:
        return data.cast(pa.int64())


def is_number(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is an integer or floating-point type."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def numpy_dtype(kind: pa.DataType) -> np.dtype[np.integer | np.floating]:
    """Return the numpy type of a numeric Arrow type, without the import of pandas that ``to_pandas_dtype`` needs."""
    return _DTYPES[kind]


def numbers(
    values: np.ndarray[tuple[int], np.dtype[np.integer | np.floating]],
    valid: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None,
) -> pa.Array:
    """Wrap numpy numbers as an Arrow array without copying them. Rows that are not valid become null."""
    marks = None if valid is None else pack_bits(valid)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [marks, pa.py_buffer(values)])


def pack_bits(marks: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Buffer:
    """Pack booleans into an Arrow bitmap."""
    return pa.py_buffer(np.packbits(marks, bitorder="little"))


def single_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, concatenating its chunks."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def encode_rows(*columns: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, list[tuple[int | None, ...]]]:
    """Encode the rows of integer columns.

    Return the code of each row, and the distinct row that each code stands for.
    """
    first, *others = columns
    numbers, values = _encode_column(first)
    rows: list[tuple[int | None, ...]] = [(value,) for value in values]
    for column in others:
        inner, values = _encode_column(column)
        pairs = pc.add(pc.multiply(numbers.cast(pa.int64()), len(values)), inner).dictionary_encode()
        split = (divmod(pair, len(values)) for pair in pairs.dictionary.to_pylist())
        rows = [(*rows[row], values[value]) for row, value in split]
        numbers = pairs.indices
    return numbers, rows


def _encode_column(column: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, list[int | None]]:
    """Encode the values of a column, including null. Return the code of each row, and the distinct values by code."""
    encoded = single_array(column).dictionary_encode(null_encoding="encode")
    return encoded.indices, encoded.dictionary.to_pylist()


def convert_column(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, int]:
    """Convert a source column to numbers or strings. Return the converted column and the number of repaired strings.

    Raises:
        TypeError: A numeric type is requested for a column that is not numeric. The message is the expected type.
    """
    if pa.types.is_dictionary(column.type):
        return _convert_dictionary(column)
    if kind in (pa.string(), DICTIONARY):
        strings, broken = to_valid_utf8(column)
        return (strings.dictionary_encode() if kind == DICTIONARY else strings), broken
    if not pa.types.is_integer(column.type) and not (kind == pa.float64() and pa.types.is_floating(column.type)):
        raise TypeError("number" if kind == pa.float64() else "integer")
    return cast_numbers(column, kind), 0


def _convert_dictionary(column: pa.DictionaryArray) -> tuple[pa.DictionaryArray, int]:
    """Convert the dictionary of a column to valid UTF-8.

    Return the column and the number of rows with repaired strings.
    """
    names, broken = to_valid_utf8(column.dictionary)
    if broken:
        repaired = pc.not_equal(names.cast(pa.binary()), column.dictionary.cast(pa.binary()))
        broken = pc.sum(repaired.take(column.indices)).as_py()
    return dictionary_array(column.indices, names), broken


def to_valid_utf8(column: pa.Array) -> tuple[pa.Array, int]:
    """Convert bytes or numbers to valid UTF-8 strings. Return the strings and the number of repaired strings."""
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return column.cast(pa.string()), 0
    raw = column.cast(pa.binary())
    try:
        return raw.cast(pa.string()), 0
    except pa.ArrowInvalid:
        pass
    values = raw.to_pylist()
    repaired = [None if b is None else b.decode("utf-8", "replace") for b in values]
    broken = sum(r is not None and r.encode() != b for b, r in zip(values, repaired, strict=True))
    return pa.array(repaired, pa.string()), broken


def coalesce_dictionaries(*columns: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return the first value that is not null in each row of several dictionary columns."""
    filled = [c for c in columns if not is_empty(c)] or list(columns[:1])
    if len(filled) == 1:
        return filled[0]
    values = pa.concat_arrays([c.dictionary for c in filled]).unique()
    codes = [pc.index_in(c.dictionary, values).take(c.indices) for c in filled]
    return compact_dictionary(pc.coalesce(*codes), values)


def coalesce(*columns: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the first value that is not null in each row of several columns. Columns without values are skipped."""
    filled = [c for c in columns if not is_empty(c)] or list(columns[:1])
    return filled[0] if len(filled) == 1 else pc.coalesce(*filled)


def is_empty(column: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether every value of a column is null."""
    return bool(column.null_count == len(column))
