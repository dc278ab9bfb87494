"""From source columns to declared columns: numbers fitted, ids of strings resolved, pieces joined.

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


MANY_TEXTS = 1 << 16


class Joined:
    """Columns being read piece by piece: numbers in one piece of memory, dictionaries with one dictionary."""

    def __init__(self, at_most: int) -> None:
        """Begin without a piece.

        Args:
            at_most: Rows to set memory aside for, should there be several pieces; it is taken as they come.
        """
        self._at_most = at_most
        self._first: Mapping[str, pa.Array | pa.ChunkedArray] | None = None
        self._made: dict[str, Numbers | Texts] = {}

    def append(self, piece: Mapping[str, pa.Array | pa.ChunkedArray]) -> None:
        """Add a piece: the same columns each time. A single one is kept as it is."""
        if self._first is None:
            self._first = piece
            return
        if not self._made:
            self._made = {name: self._column(data.type) for name, data in self._first.items()}
            self._put(self._first)
            self._first = {}
        self._put(piece)

    def finish(self) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Return the columns; what they were made of is let go one by one."""
        if not self._made:
            return dict(self._first or {})
        return {name: self._made.pop(name).finish() for name in list(self._made)}

    def _column(self, kind: pa.DataType) -> Numbers | Texts:
        return Numbers(kind, self._at_most) if is_number(kind) else Texts(kind)

    def _put(self, piece: Mapping[str, pa.Array | pa.ChunkedArray]) -> None:
        for name, data in piece.items():
            for array in data.chunks if isinstance(data, pa.ChunkedArray) else (data,):
                self._made[name].append(array)


class Numbers:
    """A column of numbers being read: slices are put end to end in one piece of memory, which is taken as it fills.

    A slice of a wider type than the column widens it. What is null takes no memory until a value comes.
    """

    def __init__(self, kind: pa.DataType, at_most: int) -> None:
        self._kind = kind
        self._values = np.zeros(at_most, _dtype(kind))
        self._valid: np.ndarray | None = None
        self._rows = 0

    def append(self, data: pa.Array) -> None:
        """Add a slice."""
        if data.type.bit_width > self._kind.bit_width:
            self._widen(data.type)
        rows = slice(self._rows, self._rows + len(data))
        if rows.stop > len(self._values):
            self._grow(2 * rows.stop)
        if data.null_count and self._valid is None:
            self._valid = np.zeros(len(self._values), np.bool_)
            self._valid[: self._rows] = True
        self._rows = rows.stop
        if data.null_count == len(data):
            return
        data = data.cast(self._kind)
        if self._valid is not None:
            self._valid[rows] = data.is_valid().to_numpy(zero_copy_only=False) if data.null_count else True
        start = data.offset * self._values.dtype.itemsize
        self._values[rows] = np.frombuffer(data.buffers()[1], self._values.dtype, len(data), start)

    def finish(self) -> pa.ChunkedArray:
        """Return the column."""
        valid = None if self._valid is None else self._valid[: self._rows]
        bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        values = pa.py_buffer(self._values[: self._rows])
        return pa.chunked_array([pa.Array.from_buffers(self._kind, self._rows, [bits, values])])

    def _grow(self, size: int) -> None:
        values, valid, self._values = self._values, self._valid, np.zeros(size, self._values.dtype)
        self._values[: self._rows] = values[: self._rows]
        if valid is not None:
            self._valid = np.zeros(size, np.bool_)
            self._valid[: self._rows] = valid[: self._rows]

    def _widen(self, kind: pa.DataType) -> None:
        wider = np.zeros(len(self._values), _dtype(kind))
        wider[: self._rows] = self._values[: self._rows]
        self._kind, self._values = kind, wider


def _dtype(kind: pa.DataType) -> np.dtype:
    return np.dtype(f"{'f' if pa.types.is_floating(kind) else 'i'}{kind.bit_width // 8}")


class Texts:
    """A column of texts being read, slice by slice."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._slices: list[pa.Array] = []

    def append(self, data: pa.Array) -> None:
        """Add a slice."""
        self._slices.append(data)

    def finish(self) -> pa.ChunkedArray:
        """Return the column; dictionaries become one piece, unless they hold so many texts that few can be alike."""
        column = pa.chunked_array(self._slices, self._kind)
        if not pa.types.is_dictionary(column.type):
            return column
        texts = sum(len(c.dictionary) for c in column.chunks)
        if texts > max(MANY_TEXTS, len(column) // 2):
            return column
        return pa.chunked_array([column.unify_dictionaries().combine_chunks()])


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def number_rows(*columns: pa.ChunkedArray) -> tuple[pa.Array, list[tuple[int | None, ...]]]:
    """Number the distinct rows of several columns: n rows in, n numbers out, and the row behind each number."""
    numbers = pa.array([0] * len(columns[0]), pa.int32())
    rows: list[tuple[int | None, ...]] = [()]
    for column in columns:
        encoded = whole(column).dictionary_encode(null_encoding="encode")
        values = encoded.dictionary.to_pylist()
        pairs = pc.add(pc.multiply(numbers.cast(pa.int64()), len(values)), encoded.indices)
        dense = pairs.dictionary_encode()
        split = (divmod(pair, len(values)) for pair in dense.dictionary.to_pylist())
        rows = [(*rows[row], values[value]) for row, value in split]
        numbers = dense.indices
    return numbers, rows


def typed(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, int]:
    """Take a slice of a source column as numbers or texts: n values in, n out, and how many texts had to be repaired.

    Raises:
        TypeError: The slice holds no numbers, but numbers are wanted.
    """
    if kind in (pa.string(), DICTIONARY):
        made, broken = text(column)
        return (made.dictionary_encode() if kind == DICTIONARY else made), broken
    if not pa.types.is_integer(column.type) and not (kind == pa.float64() and pa.types.is_floating(column.type)):
        raise TypeError("number" if kind == pa.float64() else "integer")
    return fitted(column, kind), 0


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
