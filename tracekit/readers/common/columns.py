"""From source columns to declared columns: numbers fitted, ids of strings resolved, texts made valid.

Everything works on whole Arrow columns. A string or label column becomes a dictionary of the values that occur in it
and of no other: the string table of an export holds environments and command lines.
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
"""Bytes of text that one Arrow array can hold."""

SPARE_TEXT_BYTES, MAX_TEXT_BYTES_PER_ROW = 1 << 26, 1 << 12
"""What the texts of a column may take that are stored once and named by many rows."""
_NUMBERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_DTYPES = {pa.from_numpy_dtype(name): np.dtype(name) for name in _NUMBERS}


@dataclass(frozen=True, slots=True)
class Strings:
    """A table of strings by id: ``ids`` unique, ``values`` beside them."""

    ids: pa.Array
    values: pa.Array

    @classmethod
    def of(cls, labels: Mapping[int, str | None]) -> Strings:
        """Make one from a mapping."""
        return cls(pa.array(labels.keys(), pa.int64()), pa.array(labels.values(), pa.string()))

    def look_up(self, column: pa.ChunkedArray) -> tuple[pa.DictionaryArray, int]:
        """Resolve ids: n ids in, n texts out (null where the id is null or unknown), and how many are unknown."""
        if is_empty(column):
            return pa.nulls(len(column), DICTIONARY), 0
        used = whole(column).dictionary_encode()
        known = pc.index_in(used.dictionary.cast(pa.int64()), self.ids)
        missing = 0
        if known.null_count:
            missing = pc.sum(known.is_null().take(used.indices)).as_py()
        return named(used.indices, self.values.take(known)), missing


def named(numbers: pa.Array, names: pa.Array) -> pa.DictionaryArray:
    """Name numbered rows, numbered by first use: a dictionary of the names that occur, in that order, each once."""
    values = names.unique().drop_null()
    if len(values) != len(names):
        numbers = pc.index_in(names, values).take(numbers)
    return pa.DictionaryArray.from_arrays(numbers.cast(pa.int32()), values)


def compact(codes: pa.Array | pa.ChunkedArray, names: pa.Array) -> pa.DictionaryArray:
    """Name codes, whatever their order: a dictionary of the names that occur, in order of first use, each once."""
    used = whole(codes).dictionary_encode()
    return named(used.indices, names.take(used.dictionary))


def spelled_out(names: pa.DictionaryArray) -> pa.Array:
    """Return the text of each row: n in, n out.

    Raises:
        ValueError: A long text stands on so many rows that they would take far more memory than the file has bytes.
    """
    size = pc.sum(pc.binary_length(names.dictionary).cast(pa.int64()).take(names.indices)).as_py() or 0
    if size > min(SPARE_TEXT_BYTES + MAX_TEXT_BYTES_PER_ROW * len(names), MAX_TEXT_BYTES):
        raise ValueError(f"{len(names)} rows name {size} bytes of text")
    return names.dictionary_decode()


def fitted(data: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Cast numbers to the type they are wanted in; where a value does not fit, integers stay as they are."""
    if data.type == kind or not is_number(kind) or not is_number(data.type):
        return data
    if kind == pa.float64():
        return data.cast(kind, safe=False)
    try:
        return data.cast(kind)
    except pa.ArrowInvalid:
        return data.cast(pa.int64())


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def dtype(kind: pa.DataType) -> np.dtype[np.integer | np.floating]:
    """Return the numpy type that holds the numbers of an Arrow type; ``to_pandas_dtype`` would import pandas."""
    return _DTYPES[kind]


def numbers(
    values: np.ndarray[tuple[int], np.dtype[np.integer | np.floating]],
    valid: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None,
) -> pa.Array:
    """Wrap n numbers, without a copy; null where they are not valid."""
    marks = None if valid is None else bits(valid)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [marks, pa.py_buffer(values)])


def bits(marks: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Buffer:
    """Pack n marks as Arrow has them."""
    return pa.py_buffer(np.packbits(marks, bitorder="little"))


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def number_rows(*columns: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, list[tuple[int | None, ...]]]:
    """Number the distinct rows of one column or several: n rows in, n numbers out, and the row behind each number."""
    first, *others = columns
    numbers, values = _numbered(first)
    rows: list[tuple[int | None, ...]] = [(value,) for value in values]
    for column in others:
        inner, values = _numbered(column)
        pairs = pc.add(pc.multiply(numbers.cast(pa.int64()), len(values)), inner).dictionary_encode()
        split = (divmod(pair, len(values)) for pair in pairs.dictionary.to_pylist())
        rows = [(*rows[row], values[value]) for row, value in split]
        numbers = pairs.indices
    return numbers, rows


def _numbered(column: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, list[int | None]]:
    """Number the distinct values of a column, null among them: n values in, n numbers out, and what they stand for."""
    encoded = whole(column).dictionary_encode(null_encoding="encode")
    return encoded.indices, encoded.dictionary.to_pylist()


def typed(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, int]:
    """Take a slice of a source column as numbers or texts: n values in, n out, and how many texts had to be repaired.

    Raises:
        TypeError: The slice holds no numbers, but numbers are wanted.
    """
    if pa.types.is_dictionary(column.type):
        return _typed_names(column)
    if kind in (pa.string(), DICTIONARY):
        made, broken = text(column)
        return (made.dictionary_encode() if kind == DICTIONARY else made), broken
    if not pa.types.is_integer(column.type) and not (kind == pa.float64() and pa.types.is_floating(column.type)):
        raise TypeError("number" if kind == pa.float64() else "integer")
    return fitted(column, kind), 0


def _typed_names(column: pa.DictionaryArray) -> tuple[pa.DictionaryArray, int]:
    """Turn a slice of names, numbered by first use, into valid UTF-8, and say how many had to be repaired."""
    names, broken = text(column.dictionary)
    if broken:
        repaired = pc.not_equal(names.cast(pa.binary()), column.dictionary.cast(pa.binary()))
        broken = pc.sum(repaired.take(column.indices)).as_py()
    return named(column.indices, names), broken


def text(column: pa.Array) -> tuple[pa.Array, int]:
    """Turn what SQLite kept as text into valid UTF-8: n values in, n out, and how many had to be repaired."""
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


def first_of(*columns: pa.DictionaryArray) -> pa.DictionaryArray:
    """Take, row by row, the first column that is not null; all of them dictionaries of n rows."""
    filled = [c for c in columns if not is_empty(c)] or list(columns[:1])
    if len(filled) == 1:
        return filled[0]
    values = pa.concat_arrays([c.dictionary for c in filled]).unique()
    codes = [pc.index_in(c.dictionary, values).take(c.indices) for c in filled]
    return compact(pc.coalesce(*codes), values)


def coalesced(*columns: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Take, row by row, the first column that is not null; most are often empty, and then cost nothing."""
    filled = [c for c in columns if not is_empty(c)] or list(columns[:1])
    return filled[0] if len(filled) == 1 else pc.coalesce(*filled)


def is_empty(column: pa.Array | pa.ChunkedArray) -> bool:
    """Whether all values are null."""
    return bool(column.null_count == len(column))
