"""Read events in blocks of rows. Only one block of each column is in memory at a time."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.system import memory
from tracekit.system.sorting import choose_row_number_type, create_series, iterate_row_blocks, map_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.system.sorting import Array

_STRINGS_PER_ROW, _MIN_STRINGS = 2, 1 << 10
"""Number of consecutive strings of a dictionary per row, and in all, up to which unused strings are not left out."""
NULL_CODE = (1 << 32) - 1
"""Code of a null in a dictionary-encoded column."""


class TableRows:
    """The rows of a table that meet a condition.

    Attributes:
        height: Number of rows.
        columns: Names of the columns.
        table: The table, with all rows.
        dictionaries: The dictionaries of each column that is dictionary-encoded.
    """

    def __init__(self, table: pa.Table, condition: pl.Expr | None = None) -> None:
        """Find the rows that meet a condition.

        Args:
            table: The table that contains the rows.
            condition: The condition, or None to select all rows.
        """
        self.table = table
        self.dictionaries = {
            name: ColumnDictionaries.from_column(table[name])
            for name in table.column_names
            if pa.types.is_dictionary(table[name].type)
        }
        self._selected = None if condition is None else self._find_row_numbers(condition)
        self.columns: Sequence[str] = table.column_names
        self.height: int = table.num_rows if self._selected is None else len(self._selected)

    def read_batch(self, rows: slice | Array) -> RowBatch:
        """Return some rows, given by their row numbers."""
        if self._selected is not None:
            return RowBatch.from_row_numbers(self, self._selected[rows])
        if isinstance(rows, slice):
            return RowBatch(self, rows, None)
        return RowBatch.from_row_numbers(self, rows)

    def read_block(self, rows: slice, names: Sequence[str]) -> pl.DataFrame:
        """Return the given columns of consecutive rows. Dictionary-encoded columns are returned as String."""
        return self.read_batch(rows).read_frame(names)

    def _find_row_numbers(self, condition: pl.Expr) -> Array | None:
        """Return the row numbers of the rows that meet a condition, or None if all rows meet the condition."""
        names, rows = list(dict.fromkeys(condition.meta.root_names())), self.table.num_rows
        chosen = memory.allocate_zeros(rows, choose_row_number_type(rows))
        count = 0
        for block in iterate_row_blocks(rows):
            frame = RowBatch(self, block, None).read_frame(names)
            mask = frame.select(condition.fill_null(value=False)).to_series()
            numbers = np.flatnonzero(mask.to_numpy()) + block.start
            chosen[count : count + len(numbers)] = numbers
            count += len(numbers)
        return None if count == rows else chosen[:count]


class ColumnDictionaries(NamedTuple):
    """The dictionaries of the chunks of a column. A dictionary that chunks share is listed once.

    Codes refer to the strings of all dictionaries, one dictionary after another.

    Attributes:
        arrays: The dictionaries.
        first_codes: Code of the first string of each dictionary, followed by the number of strings.
        numbers: Number of each dictionary, by its place in memory.
    """

    arrays: list[pa.Array]
    first_codes: Array
    numbers: dict[tuple[int, ...], int]

    @classmethod
    def from_column(cls, column: pa.ChunkedArray) -> ColumnDictionaries:
        """Return the dictionaries of a column."""
        distinct = {_identify_buffers(chunk.dictionary): chunk.dictionary for chunk in column.chunks}
        first_codes = np.cumsum([0, *map(len, distinct.values())])
        return cls(list(distinct.values()), first_codes, {key: number for number, key in enumerate(distinct)})

    @property
    def string_count(self) -> int:
        """Number of strings."""
        return int(self.first_codes[-1])

    def read_codes(self, column: pa.ChunkedArray, row_numbers: Array | None = None) -> Array:
        """Return the codes of rows of the column. The code of a null is ``NULL_CODE``.

        Args:
            column: A slice of the column.
            row_numbers: Row numbers in the slice, or None for all rows.
        """

        def convert(chunk: pa.DictionaryArray) -> pl.Series:
            codes = cast("pl.Series", pl.from_arrow(chunk.indices)).cast(pl.UInt32)
            first = int(self.first_codes[self.numbers[_identify_buffers(chunk.dictionary)]])
            return (codes + first if first else codes).fill_null(NULL_CODE)

        if row_numbers is not None:
            return _gather(column, row_numbers, convert).to_numpy()
        parts = [convert(chunk).to_numpy() for chunk in column.chunks]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.uint32), *parts])

    def list_strings(self) -> pl.Series:
        """Return all strings, by code."""
        return pl.concat([pl.Series(dtype=pl.String), *map(_convert_strings, self.arrays)])

    def select(self, codes: Array) -> tuple[Array, pa.Array]:
        """Return codes of the same strings in a smaller array of strings, and this array.

        The array is part of a dictionary. Strings are copied only if few of them are used, or several dictionaries are.
        """
        is_null = codes == NULL_CODE
        used = codes[~is_null] if is_null.any() else codes
        if not len(used):
            return codes, pa.array([], pa.string())
        first, stop = int(used.min()), int(used.max()) + 1
        overlapping = [
            (array, start)
            for array, start in zip(self.arrays, self.first_codes.tolist(), strict=False)
            if start < stop and start + len(array) > first
        ]
        if stop - first <= max(_STRINGS_PER_ROW * len(codes), _MIN_STRINGS):
            strings = [array.slice(max(first - n, 0), stop - max(first, n)) for array, n in overlapping]
            selected = np.where(is_null, codes, codes - np.uint32(first))
        else:
            strings, selected, count = [], codes.copy(), 0
            for array, n in overlapping:
                rows = np.flatnonzero((codes >= n) & (codes < n + len(array)))
                strings.append(array.take(create_series(codes[rows] - np.uint32(n)).to_arrow()))
                selected[rows] = np.arange(count, count + len(rows))
                count += len(rows)
        return selected, strings[0] if len(strings) == 1 else pa.concat_arrays(strings)

    def take(self, codes: Array) -> pl.Series:
        """Return the strings with the given codes. Only these strings are copied."""
        selected, strings = self.select(codes)
        numbers = create_series(selected).set(create_series(selected == NULL_CODE), None)
        return _convert_strings(strings).gather(numbers)


def _gather(column: pa.ChunkedArray, row_numbers: Array, convert: Callable[[pa.Array], pl.Series]) -> pl.Series:
    """Return the rows of a column with the given row numbers, of which there is at least one.

    Only chunks that contain some of the rows are converted.

    Args:
        column: The column.
        row_numbers: The row numbers.
        convert: Function that converts a chunk, which should not copy it.
    """
    starts = np.cumsum([0, *map(len, column.chunks)])
    if column.num_chunks == 1:
        return convert(column.chunk(0)).gather(create_series(row_numbers))
    chunk_numbers = np.searchsorted(starts, row_numbers, side="right") - 1
    order = np.argsort(chunk_numbers, kind="stable")
    bounds = np.searchsorted(chunk_numbers[order], np.arange(len(starts))).tolist()
    parts = [
        convert(column.chunk(n)).gather(create_series(row_numbers[order[first:stop]] - starts[n]))
        for n, (first, stop) in enumerate(itertools.pairwise(bounds))
        if first < stop
    ]
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return pl.concat(parts).gather(create_series(places))


def _convert_strings(strings: pa.Array) -> pl.Series:
    return pl.Series(cast("pl.Series", pl.from_arrow(strings)), dtype=pl.String)


def _identify_buffers(values: pa.Array) -> tuple[int, ...]:
    """Return numbers that are equal for arrays with the same place in memory."""
    return (len(values), values.offset, *(0 if buffer is None else buffer.address for buffer in values.buffers()))


class RowBatch(NamedTuple):
    """Some rows of a table. Their columns are read when they are needed.

    Attributes:
        rows: The rows of the table.
        span: Consecutive rows of the table that contain the rows of the batch.
        numbers: Row numbers of the rows in the span, or None if the batch consists of all rows of the span.
    """

    rows: TableRows
    span: slice
    numbers: Array | None

    @classmethod
    def from_row_numbers(cls, rows: TableRows, numbers: Array) -> RowBatch:
        """Return the rows of a table with the given row numbers, in this order."""
        if not len(numbers):
            return cls(rows, slice(0, 0), None)
        span = slice(int(numbers.min()), int(numbers.max()) + 1)
        is_complete = span.stop - span.start == len(numbers) and bool((numbers[1:] > numbers[:-1]).all())
        return cls(rows, span, None if is_complete else numbers.astype(np.int64) - span.start)

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.span.stop - self.span.start if self.numbers is None else len(self.numbers)

    def take(self, numbers: Array) -> RowBatch:
        """Return the rows of this batch with the given row numbers."""
        return self._replace(numbers=numbers.astype(np.int64) if self.numbers is None else self.numbers[numbers])

    def read_frame(self, names: Sequence[str]) -> pl.DataFrame:
        """Return the named columns. Dictionary-encoded columns are returned as String."""
        return pl.DataFrame([self._read_column(name).alias(name) for name in names])

    def is_all_null(self, name: str) -> bool:
        """Return whether a column is null in all rows of the span."""
        whole = self.rows.table[name]
        if whole.null_count in (0, len(whole)):
            return bool(whole.null_count) or not len(whole)
        column = self._slice_column(name)
        return bool(column.null_count == len(column))

    def read_codes(self, name: str) -> Array:
        """Return the codes of a dictionary-encoded column, as explained at ``ColumnDictionaries``."""
        return self.rows.dictionaries[name].read_codes(self._slice_column(name), self.numbers)

    def read_keys(self, names: Sequence[str]) -> list[Array]:
        """Return columns of 64-bit integers that are equal in rows whose values in the named columns are equal.

        Columns of strings must be dictionary-encoded. Different codes may have the same string.
        """
        keys: list[Array] = []
        for name in names:
            if name in self.rows.dictionaries:
                keys.append(self.read_codes(name).astype(np.int64))
                continue
            column = self._read_column(name)
            column = column.cast(pl.Int64) if column.dtype == pl.Boolean else column
            if column.null_count():
                keys.append(column.is_null().to_numpy().astype(np.int64))
                column = column.fill_null(0)
            values = column.to_numpy()
            keys.append(values.view(np.int64) if values.dtype == np.float64 else values.astype(np.int64))
        return keys

    def _read_column(self, name: str) -> pl.Series:
        if name in self.rows.dictionaries:
            return self.rows.dictionaries[name].take(self.read_codes(name))
        column = self._slice_column(name)
        if self.numbers is None:
            return cast("pl.Series", pl.from_arrow(column))
        return _gather(column, self.numbers, lambda chunk: cast("pl.Series", pl.from_arrow(chunk)))

    def _slice_column(self, name: str) -> pa.ChunkedArray:
        return self.rows.table[name].slice(self.span.start, self.span.stop - self.span.start)


class DefaultString(NamedTuple):
    """The string to which an expression evaluates if all its columns are null.

    Attributes:
        text: The string, or None.
        is_plain: Whether the expression is a column in which the string replaces null.
    """

    text: str | None
    is_plain: bool

    @classmethod
    def of_expression(cls, expression: pl.Expr, columns: pl.DataFrame) -> DefaultString:
        """Return the default of an expression that uses the given columns."""
        text: str | None = columns.clear(1).select(expression.cast(pl.String)).item()
        plain = pl.col(columns.columns[0]).cast(pl.String)
        return cls(text, expression.meta.eq(plain if text is None else pl.coalesce(plain, pl.lit(text))))


def evaluate_expression(rows: TableRows, expression: pl.Expr, dtype: type) -> Array:
    """Return the values of an expression in all rows as an array. No value may be null."""
    names = list(dict.fromkeys(expression.meta.root_names()))
    return map_blocks(lambda b: rows.read_block(b, names).select(expression).to_series().to_numpy(), rows.height, dtype)


def iterate_frames(rows: TableRows, names: Sequence[str]) -> Iterator[tuple[slice, pl.DataFrame]]:
    """Yield the given columns in blocks: the slice of row numbers of a block, and a data frame."""
    for block in iterate_row_blocks(rows.height):
        yield block, rows.read_block(block, names)
