"""Read events in blocks of rows. Only one block of each column is in memory at a time."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.system import memory
from tracekit.system.sorting import choose_row_number_type, iterate_row_blocks, map_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.system.sorting import Array

_SELECTED_SPAN = 1 << 18
"""Minimum number of consecutive rows from which selected rows are read. Many small reads would take longer."""


class BlockRows(Protocol):
    """Rows of events whose columns can be read in blocks."""

    @property
    def height(self) -> int:
        """Number of rows."""
        ...

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns."""
        ...

    def read_block(self, rows: slice, names: Sequence[str]) -> pl.DataFrame:
        """Return the given columns of consecutive rows."""
        ...


class TableRows:
    """The rows of a table that meet a condition.

    Attributes:
        height: Number of rows.
        columns: Names of the columns.
    """

    def __init__(self, table: pa.Table, condition: pl.Expr | None = None) -> None:
        """Find the rows that meet a condition.

        Args:
            table: The table that contains the rows.
            condition: The condition, or None to select all rows.
        """
        self._table = table
        self._categories: dict[tuple[str | int, ...], pl.Series] = {}
        self._cache_dictionaries([] if condition is None else condition.meta.root_names())
        self._cache_dictionaries(table.column_names)
        self._selected = None if condition is None else self._find_row_numbers(condition)
        self.columns: Sequence[str] = table.column_names
        self.height: int = table.num_rows if self._selected is None else len(self._selected)

    def read_block(self, rows: slice, names: Sequence[str]) -> pl.DataFrame:
        """Return the given columns of consecutive rows."""
        if self._selected is None:
            return self._read_frame(rows, names)
        chosen = self._selected[rows]
        frames = [self._read_frame(slice(0, 0), names)]
        while len(chosen):
            first = int(chosen[0])
            count = int(np.searchsorted(chosen, first + max(rows.stop - rows.start, _SELECTED_SPAN)))
            numbers = pl.Series(chosen[:count] - first)
            frames.append(
                self._read_frame(slice(first, int(chosen[count - 1]) + 1), names).select(pl.all().gather(numbers))
            )
            chosen = chosen[count:]
        return pl.concat(frames)

    def is_all_null(self, name: str) -> bool:
        """Return whether a column is null in all rows."""
        nulls = self._table[name].null_count
        if self._selected is None or nulls == self._table.num_rows:
            return bool(nulls == self._table.num_rows)
        return all(
            self.read_block(b, [name]).to_series().null_count() == b.stop - b.start
            for b in iterate_row_blocks(self.height)
        )

    def _cache_dictionaries(self, names: Sequence[str]) -> None:
        """Cache the dictionaries of the named columns as Categorical series, column by column.

        The order of the columns determines the codes of categories, and thereby the order in which strings are written.
        """
        for name in names:
            if pa.types.is_dictionary(self._table[name].type):
                for chunk in self._table[name].chunks:
                    self._convert_to_categorical(name, chunk)

    def _find_row_numbers(self, condition: pl.Expr) -> Array | None:
        """Return the row numbers of the rows that meet a condition, or None if all rows meet the condition."""
        names, rows = list(dict.fromkeys(condition.meta.root_names())), self._table.num_rows
        chosen = memory.allocate_zeros(rows, choose_row_number_type(rows))
        count = 0
        for block in iterate_row_blocks(rows):
            mask = self._read_frame(block, names).select(condition.fill_null(value=False)).to_series()
            numbers = np.flatnonzero(mask.to_numpy()) + block.start
            chosen[count : count + len(numbers)] = numbers
            count += len(numbers)
        return None if count == rows else chosen[:count]

    def _read_frame(self, rows: slice, names: Sequence[str]) -> pl.DataFrame:
        """Return the given columns of consecutive rows of the table, regardless of the condition."""
        length = rows.stop - rows.start
        return pl.DataFrame([self._convert_to_series(n, self._table[n].slice(rows.start, length)) for n in names])

    def _convert_to_series(self, name: str, column: pa.ChunkedArray) -> pl.Series:
        """Convert an Arrow column to a series. The strings of each dictionary are converted only once."""
        if not pa.types.is_dictionary(column.type):
            return cast("pl.Series", pl.from_arrow(column)).alias(name)
        chunks = [self._convert_to_categorical(name, chunk) for chunk in column.chunks]
        if len(chunks) == 1:
            return chunks[0]
        return pl.concat([pl.Series(name, [], pl.Categorical), *chunks]).rechunk()

    def _convert_to_categorical(self, name: str, chunk: pa.DictionaryArray) -> pl.Series:
        """Convert a chunk of a dictionary column to a Categorical series."""
        codes = cast("pl.Series", pl.from_arrow(chunk.indices))
        values = chunk.dictionary
        addresses = (0 if buffer is None else buffer.address for buffer in values.buffers())
        key = name, len(values), values.offset, *addresses
        if key not in self._categories:
            strings = pl.Series(name, cast("pl.Series", pl.from_arrow(values)), pl.String)
            self._categories[key] = strings.cast(pl.Categorical)
        return self._categories[key].gather(codes)


class FrameRows(NamedTuple):
    """The rows of a data frame, with the interface of ``BlockRows``."""

    frame: pl.DataFrame

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.frame.height

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns."""
        return self.frame.columns

    def read_block(self, rows: slice, names: Sequence[str]) -> pl.DataFrame:
        """Return the given columns of consecutive rows."""
        return self.frame.select(names)[rows]

    def is_all_null(self, name: str) -> bool:
        """Return whether a column is null in all rows."""
        return self.frame[name].null_count() == self.height


class RowsWithColumn(NamedTuple):
    """Rows of a table with an additional column.

    Attributes:
        rows: The rows without the column.
        name: Name of the additional column.
        values: Values of the additional column.
    """

    rows: TableRows
    name: str
    values: pl.Series

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.rows.height

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns."""
        return [*self.rows.columns, self.name]

    def read_block(self, rows: slice, names: Sequence[str]) -> pl.DataFrame:
        """Return the given columns of consecutive rows."""
        frame = self.rows.read_block(rows, [n for n in names if n != self.name])
        if self.name in names:
            frame = pl.DataFrame([*frame, self.values[rows].alias(self.name)])
        return frame if frame.columns == names else frame.select(names)

    def is_all_null(self, name: str) -> bool:
        """Return whether a column is null in all rows."""
        return name != self.name and self.rows.is_all_null(name)


class JoinedRows(NamedTuple):
    """The concatenated rows of several tables."""

    parts: list[TableRows]

    @property
    def height(self) -> int:
        """Number of rows."""
        return sum(part.height for part in self.parts)

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns that all tables have."""
        return [n for n in self.parts[0].columns if all(n in part.columns for part in self.parts)]

    def read_block(self, rows: slice, names: Sequence[str]) -> pl.DataFrame:
        """Return the given columns of consecutive rows."""
        frames = []
        for start, part in zip(self.compute_table_offsets(), self.parts, strict=False):
            first, stop = max(rows.start - start, 0), min(rows.stop - start, part.height)
            if first < stop:
                frames.append(part.read_block(slice(first, stop), names))
        return pl.concat(frames) if frames else self.parts[0].read_block(slice(0, 0), names)

    def compute_table_offsets(self) -> list[int]:
        """Return the row number of the first row of each table, followed by the total number of rows."""
        return list(itertools.accumulate((part.height for part in self.parts), initial=0))


def evaluate_expression(rows: BlockRows, expression: pl.Expr, dtype: type) -> Array:
    """Return the values of an expression in all rows as an array. No value may be null."""
    names = list(dict.fromkeys(expression.meta.root_names()))
    return map_blocks(lambda b: rows.read_block(b, names).select(expression).to_series().to_numpy(), rows.height, dtype)


def iterate_frames(rows: BlockRows, names: Sequence[str]) -> Iterator[tuple[slice, pl.DataFrame]]:
    """Yield the given columns in blocks: the slice of row numbers of a block, and a data frame."""
    for block in iterate_row_blocks(rows.height):
        yield block, rows.read_block(block, names)
