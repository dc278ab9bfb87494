"""Intern the strings of events. Each string is written once per packet sequence, and events refer to it by an id."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.exporters.timeline.batches import list_column_names
from tracekit.exporters.timeline.blocks import DefaultString
from tracekit.native.combinations import CombinationFinder
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.exporters.perfetto.wire import Numbers
    from tracekit.exporters.timeline.blocks import ColumnDictionaries, RowBatch
    from tracekit.native.combinations import RowCombinations
    from tracekit.system.sorting import Array

EVENT_NAMES, ANNOTATION_NAMES, STRING_VALUES = "event_names", "debug_annotation_names", "debug_annotation_string_values"
LAUNCH_ARG_NAMES = "compute_arg_names"
BATCH_STRINGS = 1 << 14


class StringBatch(NamedTuple):
    """Strings of a string table with consecutive interning ids, starting with ``first``."""

    table: str
    first: int
    texts: pa.LargeStringArray


class StringPool:
    """Numbers of strings, from 1. Equal strings have equal numbers, whichever dictionary contains them. Null is 0.

    The numbers follow the categories of polars, so they depend on what the process converted before, and they tell
    only whether strings are equal.
    """

    def __init__(self) -> None:
        self._dictionaries: dict[tuple[tuple[int, ...], ...], tuple[ColumnDictionaries, Array]] = {}
        self._first = pl.Series([""], dtype=pl.Categorical)
        """A column with the categories. As long as it exists, the codes of categories remain valid."""

    def assign_numbers(self, strings: pl.Series) -> Array:
        """Return the number of each string."""
        return (strings.cast(self._first.dtype).to_physical().cast(pl.UInt32) + 1).fill_null(0).to_numpy()

    def read_numbers(self, batch: RowBatch, name: str) -> Array:
        """Return the number of the string in each row of a dictionary-encoded column."""
        dictionaries = batch.rows.dictionaries[name]
        key = tuple(dictionaries.numbers)
        if key not in self._dictionaries:
            numbers = np.append(self.assign_numbers(dictionaries.list_strings()), np.uint32(0))
            self._dictionaries[key] = dictionaries, numbers
        codes = np.minimum(batch.read_codes(name), np.uint32(dictionaries.string_count))
        numbers = self._dictionaries[key][1]
        return numbers[codes]


class BatchStrings(NamedTuple):
    """The strings of an expression in the rows of a batch.

    Attributes:
        numbers: The number of the string in each row, 0 for null.
        take: Function that returns the strings in the rows with the given row numbers.
    """

    numbers: Array
    take: Callable[[Array], pl.Series]


class StringTables:
    """The interned strings of a packet sequence: four string tables, each with interning ids from 1."""

    def __init__(self, pool: StringPool) -> None:
        self._counts = dict.fromkeys((EVENT_NAMES, ANNOTATION_NAMES, STRING_VALUES, LAUNCH_ARG_NAMES), 0)
        self._pending: list[StringBatch] = []
        self._names: dict[tuple[str, str], int] = {}
        self._pool = pool
        self._ids: dict[str, Numbers] = {name: np.zeros(1, np.uint64) for name in self._counts}
        """Interning ids by number of the string, 0 for strings that have not been interned."""
        self._defaults: dict[int, tuple[pl.Expr, DefaultString]] = {}
        self._finder = CombinationFinder()

    def intern(self, table: str, batch: RowBatch, expression: pl.Expr) -> Numbers:
        """Evaluate an expression in the rows of a batch, and return the interning ids of the resulting strings.

        New strings are numbered in the order of the first rows that contain them, so that ids depend only on the rows.

        Args:
            table: Name of the string table.
            batch: The rows in which the expression is evaluated.
            expression: The expression. Its result in a row must depend only on values in the same row.

        Returns:
            One id per row, 0 for null.
        """
        strings = self.read_strings(batch, expression)
        ids, last = self._ids[table], int(strings.numbers.max(initial=0))
        if last >= len(ids):
            ids = self._ids[table] = np.concatenate([ids, np.zeros(max(last + 1 - len(ids), len(ids)), np.uint64)])
        result: Numbers = ids[strings.numbers]
        missing = np.flatnonzero((result == 0) & (strings.numbers != 0))
        if len(missing):
            new = missing[create_series(strings.numbers[missing]).arg_unique().to_numpy()]
            ids[strings.numbers[new]] = np.arange(1, len(new) + 1, dtype=np.uint64) + np.uint64(self._counts[table])
            self._add_strings(table, strings.take(new))
            result = ids[strings.numbers]
        return result

    def intern_name(self, table: str, name: str) -> int:
        """Return the interning id of the name of an argument. New names are interned."""
        if (table, name) not in self._names:
            self._add_strings(table, pl.Series([name]))
            self._names[table, name] = self._counts[table]
        return self._names[table, name]

    def read_keys(self, batch: RowBatch, names: Sequence[str]) -> list[Array]:
        """Return columns of 64-bit integers that are equal in rows whose values in the named columns are equal.

        Columns whose values are all null are omitted.
        """
        keys: list[Array] = []
        for name in names:
            if batch.is_all_null(name):
                continue
            if name in batch.rows.dictionaries:
                keys.append(self._pool.read_numbers(batch, name).astype(np.int64))
            elif pa.types.is_primitive(batch.rows.table[name].type):
                keys += batch.read_keys([name])
            else:
                strings = batch.read_frame([name]).to_series().cast(pl.String)
                keys.append(self._pool.assign_numbers(strings).astype(np.int64))
        return keys

    def find_combinations(self, keys: Sequence[Array]) -> RowCombinations:
        """Return the combinations of the numbers in columns of 64-bit integers."""
        return self._finder.find(keys)

    def read_strings(self, batch: RowBatch, expression: pl.Expr) -> BatchStrings:
        """Evaluate an expression, once per combination of the values that it depends on."""
        names = list(dict.fromkeys(list_column_names(expression)))
        default = self._find_default(batch, expression)
        if default.is_plain and names[0] in batch.rows.dictionaries:
            numbers = self._pool.read_numbers(batch, names[0])
            if default.text is not None:
                numbers = np.where(numbers == 0, self._pool.assign_numbers(pl.Series([default.text])), numbers)
            return BatchStrings(
                numbers, lambda rows: batch.take(rows).read_frame(names).to_series().fill_null(default.text or "")
            )
        keys = self.read_keys(batch, names) or [np.zeros(batch.height, np.int64)]
        codes, first_rows = self._finder.find(keys)
        values = batch.take(first_rows).read_frame(names).select(expression.cast(pl.String)).to_series()
        return BatchStrings(
            self._pool.assign_numbers(values)[codes], lambda rows: values.gather(create_series(codes[rows]))
        )

    def _find_default(self, batch: RowBatch, expression: pl.Expr) -> DefaultString:
        """Return the string to which an expression evaluates if all its columns are null."""
        if id(expression) not in self._defaults:
            names = list(dict.fromkeys(list_column_names(expression)))
            default = DefaultString.of_expression(expression, batch.read_frame(names))
            self._defaults[id(expression)] = expression, default
        return self._defaults[id(expression)][1]

    def pop_batches(self) -> list[StringBatch]:
        """Return the strings that were added since the last call, in batches."""
        pending, self._pending = self._pending, []
        return [
            StringBatch(batch.table, batch.first + offset, batch.texts[offset : offset + BATCH_STRINGS])
            for batch in pending
            for offset in range(0, len(batch.texts), BATCH_STRINGS)
        ]

    def _add_strings(self, table: str, texts: pl.Series) -> None:
        array = texts.cast(pl.String).to_arrow(compat_level=pl.CompatLevel.oldest())
        self._pending.append(StringBatch(table, self._counts[table] + 1, array))
        self._counts[table] += len(texts)
