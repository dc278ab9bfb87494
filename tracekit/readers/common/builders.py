"""Builders that collect record batches while a file is read, and join them into whole columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MANY_STRINGS = 1 << 16


def create_column_builder(arrow_type: pa.DataType, capacity: int) -> NumberBuilder | DictionaryBuilder | StringBuilder:
    """Return a builder for a column of a given Arrow type.

    Args:
        arrow_type: Arrow type of the column.
        capacity: Number of rows to reserve address space for. The operating system allocates the memory only when rows
            are added.
    """
    if pa.types.is_dictionary(arrow_type):
        return DictionaryBuilder(arrow_type, capacity)
    return NumberBuilder(arrow_type, capacity) if columns.is_numeric_type(arrow_type) else StringBuilder(arrow_type)


class Builder(Protocol):
    """The interface of builders, which collect batches of rows and join them into whole columns."""

    def append(self, batch: Mapping[str, pa.Array | pa.ChunkedArray]) -> None:
        """Add a batch of rows. All batches must have the same columns."""
        ...

    def finish(self) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Return the columns of all batches, by name."""
        ...


class RowCounter:
    """A builder that only counts the rows of its batches.

    Attributes:
        rows: Number of rows of all batches so far.
    """

    def __init__(self) -> None:
        self.rows = 0

    def append(self, batch: Mapping[str, pa.Array | pa.ChunkedArray]) -> None:
        """Count the rows of a batch."""
        self.rows += len(next(iter(batch.values())))

    def finish(self) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Return an empty mapping, because only rows are counted."""
        return {}


class TableBuilder:
    """A builder that joins batches into columns with few chunks.

    The batches of a numeric column become one chunk. The dictionaries of a dictionary column become one dictionary,
    unless most of its strings are distinct. A string column has one chunk per batch.
    """

    def __init__(self, capacity: int) -> None:
        """Create an empty builder.

        Args:
            capacity: Number of rows to reserve memory for if there is more than one batch.
        """
        self._capacity = capacity
        self._first_batch: Mapping[str, pa.Array | pa.ChunkedArray] | None = None
        self._builders: dict[str, NumberBuilder | DictionaryBuilder | StringBuilder] = {}

    def append(self, batch: Mapping[str, pa.Array | pa.ChunkedArray]) -> None:
        """Add a batch of rows. All batches must have the same columns."""
        if self._first_batch is None:
            self._first_batch = batch
            return
        if not self._builders:
            self._builders = {
                name: create_column_builder(data.type, self._capacity) for name, data in self._first_batch.items()
            }
            self._append_chunks(self._first_batch)
            self._first_batch = {}
        self._append_chunks(batch)

    def finish(self) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Return the columns of all batches, by name.

        If only one batch was added, its columns are returned unchanged.
        """
        if not self._builders:
            return dict(self._first_batch or {})
        return {name: self._builders.pop(name).finish() for name in list(self._builders)}

    def _append_chunks(self, batch: Mapping[str, pa.Array | pa.ChunkedArray]) -> None:
        for name, data in batch.items():
            for array in data.chunks if isinstance(data, pa.ChunkedArray) else (data,):
                self._builders[name].append(array)


class ChunkBuilder:
    """A builder that leaves the arrays of each batch as separate chunks, for columns that are concatenated later."""

    def __init__(self) -> None:
        self._batches: list[Mapping[str, pa.Array | pa.ChunkedArray]] = []

    def append(self, batch: Mapping[str, pa.Array | pa.ChunkedArray]) -> None:
        """Add a batch of rows. All batches must have the same columns."""
        if not self._batches or len(next(iter(batch.values()))):
            self._batches.append(batch)

    def finish(self) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Return the columns of all batches, by name. Each batch becomes one or more chunks of each column."""
        batches, self._batches = self._batches, []
        return {name: join_arrays([batch[name] for batch in batches]) for name in batches[0]}


def join_arrays(arrays: Sequence[pa.Array | pa.ChunkedArray]) -> pa.ChunkedArray:
    """Join the arrays of a column into one chunked array. All chunks are cast to the widest type of the arrays."""
    kinds = {array.type for array in arrays}
    kind = arrays[0].type if len(kinds) == 1 else max(kinds, key=lambda k: k.bit_width)
    chunks = (array.chunks if isinstance(array, pa.ChunkedArray) else [array] for array in arrays)
    return pa.chunked_array([chunk.cast(kind) for listed in chunks for chunk in listed], kind)


def concatenate(chunks: Sequence[pa.Array], arrow_type: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Concatenate the chunks of a numeric or dictionary column. The chunks of other columns remain separate.

    The chunks of a dictionary column remain separate as well if most of its strings are distinct. If all values are
    null, the result shares its memory with other columns of nulls.
    """
    rows = sum(map(len, chunks))
    if sum(chunk.null_count for chunk in chunks) == rows:
        return columns.build_null_array(rows, arrow_type)
    builder = create_column_builder(arrow_type, rows)
    for chunk in chunks:
        builder.append(chunk)
    return builder.finish()


class NumberBuilder:
    """A builder that collects a column of numbers in one chunk.

    If a batch has a wider type, the column is converted to that type. Nulls take no memory until the first value is
    added.

    Attributes:
        rows: Number of rows added so far.
    """

    def __init__(self, kind: pa.DataType, capacity: int) -> None:
        self._kind = kind
        self._values = np.zeros(capacity, columns.convert_to_numpy_dtype(kind))
        self._valid: np.ndarray | None = None
        self._has_values = False
        self.rows = 0

    def append(self, data: pa.Array) -> None:
        """Add a batch of rows to the column."""
        if data.type.bit_width > self._kind.bit_width:
            self._widen_type(data.type)
        rows = slice(self.rows, self.rows + len(data))
        if rows.stop > len(self._values):
            self._grow_buffer(2 * rows.stop)
        if data.null_count and self._valid is None:
            self._valid = np.zeros(len(self._values), np.bool_)
            self._valid[: self.rows] = True
        self.rows = rows.stop
        if data.null_count == len(data):
            return
        self._has_values = True
        if data.type != self._kind:
            data = data.cast(self._kind)
        if self._valid is not None:
            self._valid[rows] = data.is_valid().to_numpy(zero_copy_only=False) if data.null_count else True
        start = data.offset * self._values.dtype.itemsize
        self._values[rows] = np.frombuffer(data.buffers()[1], self._values.dtype, len(data), start)

    def replace_codes(self, rows: slice, new_codes: np.ndarray) -> None:
        """Replace each dictionary code ``c`` in the given rows with ``new_codes[c]``.

        The resulting codes of null rows are arbitrary.
        """
        np.take(new_codes, self._values[rows], mode="clip", out=self._values[rows])

    def finish(self) -> pa.ChunkedArray:
        """Return the complete column."""
        valid = None if self._valid is None else self._valid[: self.rows]
        return pa.chunked_array([columns.build_number_array(self._values[: self.rows], valid)])

    def _grow_buffer(self, size: int) -> None:
        """Move the values to a larger buffer, which has room for ``size`` values."""
        values, valid, self._values = self._values, self._valid, np.zeros(size, self._values.dtype)
        if valid is not None:
            self._valid = np.zeros(size, np.bool_)
        if self._has_values:
            self._values[: self.rows] = values[: self.rows]
            if self._valid is not None and valid is not None:
                self._valid[: self.rows] = valid[: self.rows]

    def _widen_type(self, arrow_type: pa.DataType) -> None:
        """Convert the values to a wider numeric type."""
        wider = np.zeros(len(self._values), columns.convert_to_numpy_dtype(arrow_type))
        wider[: self.rows] = self._values[: self.rows]
        self._kind, self._values = arrow_type, wider


class DictionaryBuilder:
    """A builder that collects the codes of a dictionary column in one chunk, and merges the dictionaries at the end."""

    def __init__(self, kind: pa.DataType, capacity: int) -> None:
        self._numbers = NumberBuilder(kind.index_type, capacity)
        self._dictionaries = [pa.array([], kind.value_type)]
        self._chunks: list[tuple[slice, int]] = []

    def append(self, data: pa.DictionaryArray) -> None:
        """Add a batch of rows to the column."""
        if not data.dictionary.equals(self._dictionaries[-1]):
            self._dictionaries.append(data.dictionary)
        rows = slice(self._numbers.rows, self._numbers.rows + len(data))
        self._chunks.append((rows, len(self._dictionaries) - 1))
        self._numbers.append(data.indices)

    def finish(self) -> pa.ChunkedArray:
        """Return the complete column, in one chunk with the merged dictionary.

        If most strings are distinct, the dictionaries are not merged, and the result has one chunk per batch.
        """
        if has_mostly_distinct_strings(sum(map(len, self._dictionaries)), self._numbers.rows):
            codes = self._numbers.finish().chunk(0)
            return pa.chunked_array(
                [_build_dictionary_array(codes[rows], self._dictionaries[n]) for rows, n in self._chunks]
            )
        values = pa.concat_arrays(self._dictionaries).unique()
        places = [pc.index_in(d, values).to_numpy() for d in self._dictionaries]
        moved = [bool((p != np.arange(len(p))).any()) for p in places]
        for rows, n in self._chunks:
            if moved[n]:
                self._numbers.replace_codes(rows, places[n])
        return pa.chunked_array([_build_dictionary_array(self._numbers.finish().chunk(0), values)])


def has_mostly_distinct_strings(string_count: int, row_count: int) -> bool:
    """Return whether a column has so many distinct strings that merging its dictionaries is not worthwhile.

    Args:
        string_count: Number of strings in all dictionaries of the column together.
        row_count: Number of rows of the column.
    """
    return string_count > max(MANY_STRINGS, row_count // 2)


def _build_dictionary_array(codes: pa.Array, values: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(codes, values, safe=False)


class StringBuilder:
    """A builder of a string column, which has one chunk per batch."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._chunks: list[pa.Array] = []

    def append(self, data: pa.Array) -> None:
        """Add a batch of rows to the column."""
        self._chunks.append(data)

    def finish(self) -> pa.ChunkedArray:
        """Return the complete column."""
        return pa.chunked_array(self._chunks, self._kind)
