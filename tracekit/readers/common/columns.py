"""Convert columns of a file to their declared types: cast numbers, look up strings by id, and repair invalid UTF-8.

All functions work on whole Arrow columns. The dictionary of a resulting column holds only values that occur in its
rows, because the string table of an export also holds private strings, such as environments and command lines.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Mapping

DICTIONARY = pa.dictionary(pa.int32(), pa.string())
MAX_TEXT_BYTES = (1 << 31) - 1
"""Maximum number of bytes of strings in one Arrow array."""

SPARE_TEXT_BYTES, MAX_TEXT_BYTES_PER_ROW = 1 << 26, 1 << 12
"""Limit for the size of the strings of a decoded dictionary column: a fixed number of bytes, plus bytes per row.

Without this limit, a small file could store one long string that many rows refer to.
"""
_NUMBERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_DTYPES = {pa.from_numpy_dtype(name): np.dtype(name) for name in _NUMBERS}


class RepairedColumn(NamedTuple):
    """A converted column in which invalid UTF-8 was replaced.

    Attributes:
        values: The column.
        repaired_rows: Number of rows in which invalid UTF-8 was replaced.
    """

    values: pa.Array
    repaired_rows: int


class LookUpResult(NamedTuple):
    """The strings of a column of string ids.

    Attributes:
        strings: The strings as a dictionary column, in which null and unknown ids are null.
        unknown_rows: Number of rows with unknown ids.
    """

    strings: pa.DictionaryArray
    unknown_rows: int


class StringTable(NamedTuple):
    """A table of strings with unique ids. The string with the id ``ids[i]`` is ``values[i]``."""

    ids: pa.Array
    values: pa.Array

    @classmethod
    def from_mapping(cls, strings_by_id: Mapping[int, str | None]) -> StringTable:
        """Create a string table from a mapping of ids to strings."""
        return cls(pa.array(strings_by_id.keys(), pa.int64()), pa.array(strings_by_id.values(), pa.string()))

    def look_up_strings_of_ids(self, column: pa.ChunkedArray) -> LookUpResult:
        """Look up the string of each id in a column."""
        if is_all_null(column):
            return LookUpResult(build_null_array(len(column), DICTIONARY), 0)
        used = concatenate_chunks(column).dictionary_encode()
        indices = pc.index_in(used.dictionary.cast(pa.int64()), self.ids)
        missing = 0
        if indices.null_count:
            missing = pc.sum(indices.is_null().take(used.indices)).as_py()
        return LookUpResult(build_dictionary_array(used.indices, self.values.take(indices)), missing)


def build_dictionary_array(codes: pa.Array, names: pa.Array) -> pa.DictionaryArray:
    """Build a dictionary column. Codes whose names are equal are replaced with a single code.

    Args:
        codes: Code of each row, which is an index into ``names``. The codes must be numbered in the order in which they
            first occur.
        names: Name of each code. Rows with a null name become null.
    """
    values = names.unique().drop_null()
    if len(values) != len(names):
        codes = pc.index_in(names, values).take(codes)
    return pa.DictionaryArray.from_arrays(codes.cast(pa.int32()), values)


def compact_dictionary(codes: pa.Array | pa.ChunkedArray, names: pa.Array) -> pa.DictionaryArray:
    """Build a dictionary column whose dictionary holds only names that occur in its rows.

    Args:
        codes: Code of each row, which is an index into ``names``.
        names: Name of each code. Names that no row refers to are dropped.
    """
    used = concatenate_chunks(codes).dictionary_encode()
    return build_dictionary_array(used.indices, names.take(used.dictionary))


def decode_dictionary(column: pa.DictionaryArray) -> pa.Array:
    """Convert a dictionary column to a string column.

    Raises:
        ValueError: The strings of all rows together exceed 2 GiB, or 64 MiB plus 4 KiB per row if that is less.
    """
    size = pc.sum(pc.binary_length(column.dictionary).cast(pa.int64()).take(column.indices)).as_py() or 0
    limit = min(SPARE_TEXT_BYTES + MAX_TEXT_BYTES_PER_ROW * len(column), MAX_TEXT_BYTES)
    if size > limit:
        raise ValueError(
            f"the strings of {len(column)} rows have {size} bytes, but tracekit supports at most {limit} bytes"
        )
    return column.dictionary_decode()


def cast_numbers(data: pa.Array | pa.ChunkedArray, arrow_type: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Cast a numeric column to another numeric type, or to int64 if a value does not fit that type.

    If the column or the type is not numeric, the column is returned unchanged.
    """
    if data.type == arrow_type or not is_numeric_type(arrow_type) or not is_numeric_type(data.type):
        return data
    if arrow_type == pa.float64():
        return data.cast(arrow_type, safe=False)
    try:
        return data.cast(arrow_type)
    except pa.ArrowInvalid:
        return data.cast(pa.int64())


def is_numeric_type(arrow_type: pa.DataType) -> bool:
    """Return whether an Arrow type is an integer or floating-point type."""
    return bool(pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type))


def convert_to_numpy_dtype(arrow_type: pa.DataType) -> np.dtype[np.integer | np.floating]:
    """Return the numpy type of a numeric Arrow type. Unlike ``to_pandas_dtype``, this does not import pandas."""
    return _DTYPES[arrow_type]


def build_number_array(
    values: np.ndarray[tuple[int], np.dtype[np.integer | np.floating]],
    valid: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None,
) -> pa.Array:
    """Convert a numpy array to an Arrow array without copying its values. Values are null where ``valid`` is False."""
    bitmap = None if valid is None else pack_bits(valid)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [bitmap, pa.py_buffer(values)])


def build_null_array(rows: int, arrow_type: pa.DataType) -> pa.Array:
    """Return a column of nulls.

    Columns of similar length share one buffer of zeros, because a file often has many columns that hold only nulls.
    """
    if pa.types.is_dictionary(arrow_type):
        dictionary = pa.array([], arrow_type.value_type)
        return pa.DictionaryArray.from_arrays(build_null_array(rows, arrow_type.index_type), dictionary, safe=False)
    zeros = _allocate_zero_buffer(max(rows, 1).bit_length())
    if arrow_type in (pa.binary(), pa.string()):
        return pa.Array.from_buffers(arrow_type, rows, [zeros] * 3, null_count=rows)
    if is_numeric_type(arrow_type) or pa.types.is_boolean(arrow_type):
        return pa.Array.from_buffers(arrow_type, rows, [zeros] * 2, null_count=rows)
    return pa.nulls(rows, arrow_type)


@functools.lru_cache(maxsize=4)
def _allocate_zero_buffer(size_exponent: int) -> pa.Buffer:
    """Return a buffer of ``8 * 2**size_exponent`` zero bytes."""
    return pa.py_buffer(np.zeros(8 << size_exponent, np.uint8))


def pack_bits(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Buffer:
    """Pack booleans into an Arrow bitmap."""
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def concatenate_chunks(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, concatenating its chunks."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def encode_rows(*columns: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, list[tuple[int | None, ...]]]:
    """Dictionary-encode the rows of integer columns, so that equal rows have the same code.

    Returns:
        The code of each row, and the list of the distinct rows as tuples of values. A code is an index into this list.
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
    """Return the dictionary code of each row of an integer column, and the distinct values, which may include null."""
    encoded = concatenate_chunks(column).dictionary_encode(null_encoding="encode")
    return encoded.indices, encoded.dictionary.to_pylist()


def convert_column(column: pa.Array, arrow_type: pa.DataType) -> RepairedColumn:
    """Convert a column of a file to an Arrow type for numbers or strings, and repair invalid UTF-8.

    A dictionary column remains a dictionary column.

    Raises:
        TypeError: The column does not have the requested numeric type. The error message is the name of the
            expected type, ``integer`` or ``number``.
    """
    if pa.types.is_dictionary(column.type):
        return RepairedColumn(column, 0) if column.type == arrow_type else _convert_dictionary(column)
    if arrow_type in (pa.string(), DICTIONARY):
        strings, broken = convert_to_strings(column)
        return RepairedColumn(strings.dictionary_encode() if arrow_type == DICTIONARY else strings, broken)
    if not pa.types.is_integer(column.type) and not (arrow_type == pa.float64() and pa.types.is_floating(column.type)):
        raise TypeError("number" if arrow_type == pa.float64() else "integer")
    return RepairedColumn(cast_numbers(column, arrow_type), 0)


def _convert_dictionary(column: pa.DictionaryArray) -> RepairedColumn:
    """Convert the dictionary of a column to strings, and replace invalid UTF-8 in it."""
    names, broken = convert_to_strings(column.dictionary)
    if broken:
        repaired = pc.not_equal(names.cast(pa.binary()), column.dictionary.cast(pa.binary()))
        broken = pc.sum(repaired.take(column.indices)).as_py()
    return RepairedColumn(build_dictionary_array(column.indices, names), broken)


def convert_to_strings(column: pa.Array) -> RepairedColumn:
    """Convert a column of bytes, strings or numbers to strings.

    Bytes are decoded as UTF-8, and invalid bytes are replaced with U+FFFD. Numbers are written in decimal.
    """
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return RepairedColumn(column.cast(pa.string()), 0)
    raw = column.cast(pa.binary())
    try:
        return RepairedColumn(raw.cast(pa.string()), 0)
    except pa.ArrowInvalid:
        pass
    values = raw.to_pylist()
    repaired = [None if b is None else b.decode("utf-8", "replace") for b in values]
    broken = sum(r is not None and r.encode() != b for b, r in zip(values, repaired, strict=True))
    return RepairedColumn(pa.array(repaired, pa.string()), broken)


def coalesce_dictionaries(*columns: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return the first non-null value of each row among several dictionary columns."""
    filled = [c for c in columns if not is_all_null(c)] or list(columns[:1])
    if len(filled) == 1:
        return filled[0]
    values = pa.concat_arrays([c.dictionary for c in filled]).unique()
    codes = [pc.index_in(c.dictionary, values).take(c.indices) for c in filled]
    return compact_dictionary(pc.coalesce(*codes), values)


def coalesce(*columns: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the first non-null value of each row among several columns."""
    filled = [c for c in columns if not is_all_null(c)] or list(columns[:1])
    return filled[0] if len(filled) == 1 else pc.coalesce(*filled)


def is_all_null(column: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether every value of a column is null."""
    return bool(column.null_count == len(column))
