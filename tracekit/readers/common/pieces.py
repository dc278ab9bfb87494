"""Columns that are read piece by piece, put together as the pieces come: numbers, names, texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns

if TYPE_CHECKING:
    from collections.abc import Mapping

MANY_TEXTS = 1 << 16


def collector(kind: pa.DataType, at_most: int) -> Numbers | Names | Texts:
    """Return what puts the slices of a column of some type together.

    Args:
        kind: The type.
        at_most: Rows to set memory aside for; it is taken as they come.
    """
    if pa.types.is_dictionary(kind):
        return Names(kind, at_most)
    return Numbers(kind, at_most) if columns.is_number(kind) else Texts(kind)


class Joined:
    """Columns being read piece by piece: numbers in one piece of memory, dictionaries with one dictionary."""

    def __init__(self, at_most: int) -> None:
        """Begin without a piece.

        Args:
            at_most: Rows to set memory aside for, should there be several pieces; it is taken as they come.
        """
        self._at_most = at_most
        self._first: Mapping[str, pa.Array | pa.ChunkedArray] | None = None
        self._made: dict[str, Numbers | Names | Texts] = {}

    def append(self, piece: Mapping[str, pa.Array | pa.ChunkedArray]) -> None:
        """Add a piece: the same columns each time. A single one is kept as it is."""
        if self._first is None:
            self._first = piece
            return
        if not self._made:
            self._made = {name: collector(data.type, self._at_most) for name, data in self._first.items()}
            self._put(self._first)
            self._first = {}
        self._put(piece)

    def finish(self) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Return the columns; what they were made of is let go one by one."""
        if not self._made:
            return dict(self._first or {})
        return {name: self._made.pop(name).finish() for name in list(self._made)}

    def _put(self, piece: Mapping[str, pa.Array | pa.ChunkedArray]) -> None:
        for name, data in piece.items():
            for array in data.chunks if isinstance(data, pa.ChunkedArray) else (data,):
                self._made[name].append(array)


class Numbers:
    """A column of numbers being read: slices are put end to end in one piece of memory, which is taken as it fills.

    A slice of a wider type than the column widens it. What is null takes no memory until a value comes.

    Attributes:
        rows: How many were added.
    """

    def __init__(self, kind: pa.DataType, at_most: int) -> None:
        self._kind = kind
        self._values = np.zeros(at_most, columns.dtype(kind))
        self._valid: np.ndarray | None = None
        self.rows = 0

    def append(self, data: pa.Array) -> None:
        """Add a slice."""
        if data.type.bit_width > self._kind.bit_width:
            self._widen(data.type)
        rows = slice(self.rows, self.rows + len(data))
        if rows.stop > len(self._values):
            self._grow(2 * rows.stop)
        if data.null_count and self._valid is None:
            self._valid = np.zeros(len(self._values), np.bool_)
            self._valid[: self.rows] = True
        self.rows = rows.stop
        if data.null_count == len(data):
            return
        if data.type != self._kind:
            data = data.cast(self._kind)
        if self._valid is not None:
            self._valid[rows] = data.is_valid().to_numpy(zero_copy_only=False) if data.null_count else True
        start = data.offset * self._values.dtype.itemsize
        self._values[rows] = np.frombuffer(data.buffers()[1], self._values.dtype, len(data), start)

    def renumber(self, rows: slice, table: np.ndarray) -> None:
        """Replace numbers by what stands at their place in a table; where a row is null, by anything."""
        np.take(table, self._values[rows], mode="clip", out=self._values[rows])

    def finish(self) -> pa.ChunkedArray:
        """Return the column."""
        valid = None if self._valid is None else self._valid[: self.rows]
        return pa.chunked_array([columns.numbers(self._values[: self.rows], valid)])

    def _grow(self, size: int) -> None:
        values, valid, self._values = self._values, self._valid, np.zeros(size, self._values.dtype)
        self._values[: self.rows] = values[: self.rows]
        if valid is not None:
            self._valid = np.zeros(size, np.bool_)
            self._valid[: self.rows] = valid[: self.rows]

    def _widen(self, kind: pa.DataType) -> None:
        wider = np.zeros(len(self._values), columns.dtype(kind))
        wider[: self.rows] = self._values[: self.rows]
        self._kind, self._values = kind, wider


class Names:
    """A column of texts by number being read: the numbers are put end to end, each slice's dictionary is kept."""

    def __init__(self, kind: pa.DataType, at_most: int) -> None:
        self._numbers = Numbers(kind.index_type, at_most)
        self._dictionaries = [pa.array([], kind.value_type)]
        self._slices: list[tuple[slice, int]] = []

    def append(self, data: pa.DictionaryArray) -> None:
        """Add a slice."""
        if not data.dictionary.equals(self._dictionaries[-1]):
            self._dictionaries.append(data.dictionary)
        rows = slice(self._numbers.rows, self._numbers.rows + len(data))
        self._slices.append((rows, len(self._dictionaries) - 1))
        self._numbers.append(data.indices)

    def finish(self) -> pa.ChunkedArray:
        """Return the column: in one piece, unless there are so many texts that few can be alike."""
        if few_alike(sum(map(len, self._dictionaries)), self._numbers.rows):
            codes = self._numbers.finish().chunk(0)
            return pa.chunked_array([_names(codes[rows], self._dictionaries[n]) for rows, n in self._slices])
        values = pa.concat_arrays(self._dictionaries).unique()
        places = [pc.index_in(d, values).to_numpy() for d in self._dictionaries]
        moved = [bool((p != np.arange(len(p))).any()) for p in places]
        for rows, n in self._slices:
            if moved[n]:
                self._numbers.renumber(rows, places[n])
        return pa.chunked_array([_names(self._numbers.finish().chunk(0), values)])


def few_alike(texts: int, rows: int) -> bool:
    """Whether a column of so many rows has so many texts that few of them can be alike."""
    return texts > max(MANY_TEXTS, rows // 2)


def _names(codes: pa.Array, values: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(codes, values, safe=False)


class Texts:
    """A column of texts being read, slice by slice."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._slices: list[pa.Array] = []

    def append(self, data: pa.Array) -> None:
        """Add a slice."""
        self._slices.append(data)

    def finish(self) -> pa.ChunkedArray:
        """Return the column."""
        return pa.chunked_array(self._slices, self._kind)
