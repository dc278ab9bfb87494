"""Intern the strings of events. Each string is written once per packet sequence, and events refer to it by an id."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.exporters.timeline.batches import list_column_names
from tracekit.exporters.timeline.combinations import find_distinct_combinations
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.exporters.perfetto.wire import Numbers
    from tracekit.exporters.timeline.blocks import BlockRows
    from tracekit.exporters.timeline.combinations import Codes
    from tracekit.system.sorting import Array


EVENT_NAMES, ANNOTATION_NAMES, STRING_VALUES = "event_names", "debug_annotation_names", "debug_annotation_string_values"
BATCH_STRINGS = 1 << 14


class InternedStrings(NamedTuple):
    """The interned strings of the rows of a table.

    Attributes:
        codes: Index of the string of each row in ``numbers``.
        numbers: Interning ids of the strings. The id of null is 0.
    """

    codes: Codes
    numbers: Numbers

    def get_ids(self, rows: Array | slice) -> Numbers:
        """Return the interning ids of the strings in the given rows."""
        return self.numbers[self.codes[rows]]


class StringBatch(NamedTuple):
    """Strings of a string table with consecutive interning ids, starting with ``first``."""

    table: str
    first: int
    texts: pa.LargeStringArray


class _CategoryIds(NamedTuple):
    """Interning ids of the strings that an expression returns for the categories of a Categorical column.

    Attributes:
        numbers: The interning id for null, followed by the interning id for each category code. The id is -1 for
            categories whose string has not been interned.
        column: An empty column with the same categories. As long as it exists, the category codes remain valid.
    """

    numbers: Codes
    column: pl.Series


class StringTables:
    """The interned strings of a packet sequence: three string tables, each with interning ids from 1."""

    def __init__(self) -> None:
        self._counts = {EVENT_NAMES: 0, ANNOTATION_NAMES: 0, STRING_VALUES: 0}
        self._pending: list[StringBatch] = []
        self._keys: dict[str, int] = {}
        self._categories: dict[tuple[str, bytes], _CategoryIds] = {}

    def intern(self, table: str, rows: BlockRows, expression: pl.Expr) -> InternedStrings:
        """Evaluate an expression in the given rows, intern the resulting strings, and return them.

        The expression is evaluated once per combination of the values that it depends on. If it depends on a single
        Categorical column, strings of earlier calls with the same expression are not interned again.

        Args:
            table: Name of the string table.
            rows: The rows in which the expression is evaluated.
            expression: The expression. Its result in a row must depend only on values in the same row.
        """
        names = list(dict.fromkeys(list_column_names(expression)))
        codes, examples, order = find_distinct_combinations(rows, names)
        if len(names) == 1 and examples[names[0]].dtype == pl.Categorical:
            return InternedStrings(codes, self._intern_categories(table, examples, order, expression))
        numbers = np.zeros(len(order), np.uint64)
        numbers[order] = self._intern_new_strings(table, examples[create_series(order)].select(expression).to_series())
        return InternedStrings(codes, numbers)

    def intern_annotation_name(self, key: str) -> int:
        """Return the interning id of the name of an argument. New names are interned."""
        if key not in self._keys:
            self._add_strings(ANNOTATION_NAMES, pl.Series([key]))
            self._keys[key] = self._counts[ANNOTATION_NAMES]
        return self._keys[key]

    def _intern_new_strings(self, table: str, texts: pl.Series) -> Numbers:
        """Add strings to a string table, and return their interning ids. The id of null is 0."""
        present = texts.is_not_null().to_numpy()
        numbers = np.where(present, np.cumsum(present) + self._counts[table], 0).astype(np.uint64)
        self._add_strings(table, texts.drop_nulls())
        return numbers

    def _intern_categories(self, table: str, examples: pl.DataFrame, order: Codes, expression: pl.Expr) -> Numbers:
        """Evaluate an expression for distinct values, intern the resulting strings, and return one interning id each.

        Strings that were interned by earlier calls with the same expression are not interned again.

        Args:
            table: Name of the string table.
            examples: The distinct values, in one Categorical column.
            order: Row numbers of ``examples``, in the order in which to intern new strings.
            expression: The expression, which converts a value to a string.
        """
        name = examples.columns[0]
        category = examples[name].to_physical().cast(pl.Int64).fill_null(-1).to_numpy() + 1
        key = table, expression.meta.serialize()
        known = self._categories[key].numbers if key in self._categories else np.zeros(0, np.int64)
        missing = int(category.max(initial=0)) + 1 - len(known)
        known = np.concatenate([known, np.full(max(missing, 0), -1, np.int64)])
        new = order[known[category[order]] < 0]
        known[category[new]] = self._intern_new_strings(
            table, examples[create_series(new)].select(expression).to_series()
        )
        self._categories[key] = _CategoryIds(known, examples[name].head(0))
        numbers: Numbers = known[category].astype(np.uint64)
        return numbers

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
