"""From the columns of an export to declared columns: ids unpacked, numbers and string ids resolved.

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

ID_BITS = 24
ID_MASK = (1 << ID_BITS) - 1
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
        used = column.combine_chunks().dictionary_encode()
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
    whole = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
    used = whole.dictionary_encode()
    return named(used.indices, names.take(used.dictionary))


def process_id(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Unpack the process number from ids that hold machine, process and thread (``globalTid``, ``globalPid``)."""
    ids = column.combine_chunks().dictionary_encode()
    numbers = pc.bit_wise_and(pc.shift_right(ids.dictionary, ID_BITS), ID_MASK).cast(pa.int32())
    return pa.chunked_array([numbers.take(ids.indices)])


def thread_id(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Unpack the thread number from ids that hold machine, process and thread."""
    ids = column.combine_chunks().dictionary_encode()
    return pa.chunked_array([pc.bit_wise_and(ids.dictionary, ID_MASK).cast(pa.int32()).take(ids.indices)])


def narrowed(data: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a slice of numbers to a narrower type; where a value does not fit, it stays as it is."""
    if kind == pa.float64():
        return data.cast(kind, safe=False)
    try:
        return data.cast(kind)
    except pa.ArrowInvalid:
        return data.cast(pa.int64())


class Numbers:
    """A column of numbers being read: slices are put end to end in one piece of memory, which is taken as it fills.

    A slice of a wider type than the column widens it.
    """

    def __init__(self, kind: pa.DataType, at_most: int) -> None:
        self._kind = kind
        self._values = np.empty(at_most, _dtype(kind))
        self._valid: np.ndarray | None = None
        self._rows = 0

    def append(self, data: pa.Array) -> None:
        """Add a slice."""
        if data.type.bit_width > self._kind.bit_width:
            self._widen(data.type)
        data = data.cast(self._kind)
        rows = slice(self._rows, self._rows + len(data))
        if data.null_count and self._valid is None:
            self._valid = np.empty(len(self._values), np.bool_)
            self._valid[: self._rows] = True
        if self._valid is not None:
            self._valid[rows] = data.is_valid().to_numpy(zero_copy_only=False)
        start = data.offset * self._values.dtype.itemsize
        self._values[rows] = np.frombuffer(data.buffers()[1], self._values.dtype, len(data), start)
        self._rows = rows.stop

    def finish(self) -> pa.ChunkedArray:
        """Return the column."""
        valid = None if self._valid is None else self._valid[: self._rows]
        bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        values = pa.py_buffer(self._values[: self._rows])
        return pa.chunked_array([pa.Array.from_buffers(self._kind, self._rows, [bits, values])])

    def _widen(self, kind: pa.DataType) -> None:
        wider = np.empty(len(self._values), _dtype(kind))
        wider[: self._rows] = self._values[: self._rows]
        self._kind, self._values = kind, wider


def _dtype(kind: pa.DataType) -> np.dtype:
    return np.dtype(f"{'f' if pa.types.is_floating(kind) else 'i'}{kind.bit_width // 8}")


class Texts:
    """A column of texts being read, slice by slice."""

    def __init__(self) -> None:
        self._slices: list[pa.Array] = []

    def append(self, data: pa.Array) -> None:
        """Add a slice."""
        self._slices.append(data)

    def finish(self) -> pa.ChunkedArray:
        """Return the column; dictionaries become one piece."""
        column = pa.chunked_array(self._slices)
        if not pa.types.is_dictionary(column.type):
            return column
        return pa.chunked_array([column.unify_dictionaries().combine_chunks()])


def number_rows(*columns: pa.ChunkedArray) -> tuple[pa.Array, list[tuple[int | None, ...]]]:
    """Number the distinct rows of several columns: n rows in, n numbers out, and the row behind each number."""
    numbers = pa.array([0] * len(columns[0]), pa.int32())
    rows: list[tuple[int | None, ...]] = [()]
    for column in columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        values = encoded.dictionary.to_pylist()
        pairs = pc.add(pc.multiply(numbers.cast(pa.int64()), len(values)), encoded.indices)
        dense = pairs.dictionary_encode()
        split = (divmod(pair, len(values)) for pair in dense.dictionary.to_pylist())
        rows = [(*rows[row], values[value]) for row, value in split]
        numbers = dense.indices
    return numbers, rows


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
    values = pa.concat_arrays([c.dictionary for c in columns]).unique()
    codes = [pc.index_in(c.dictionary, values).take(c.indices) for c in columns]
    return compact(pc.coalesce(*codes), values)
