"""Number the strings of events, so that each of them is written once per sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.exporters.perfetto.wire import Constant, Tails, assemble, field_tag, submessage, varints
from tracekit.exporters.timeline.columns import column_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.exporters.perfetto.wire import Column, Numbers

    Codes = np.ndarray[tuple[int], np.dtype[np.int64]]

EVENT_NAMES, ANNOTATION_NAMES, STRING_VALUES = "event_names", "debug_annotation_names", "debug_annotation_string_values"
BATCH_STRINGS = 1 << 14
_TABLE_SIZE = 1 << 16
"""Size of a table of codes that is always acceptable. Larger ones must not be larger than a few times the column."""
_TABLE_FACTOR = 4
_MAX_RANGE = 1 << 62


class Numbered(NamedTuple):
    """Strings of a column by number.

    Attributes:
        codes: A code for each row.
        numbers: The number of the string of each code, or 0 for null.
    """

    codes: Codes
    numbers: Numbers

    def batch(self, start: int, stop: int) -> Numbers:
        """Return the numbers of the strings of some rows."""
        return self.numbers[self.codes[start:stop]]


class StringBatch(NamedTuple):
    """Strings of a table that are numbered from ``first``."""

    table: str
    first: int
    texts: pl.Series


class StringTable:
    """The strings of a sequence, which are numbered from 1 in each of the three tables."""

    def __init__(self) -> None:
        self._counts = {EVENT_NAMES: 0, ANNOTATION_NAMES: 0, STRING_VALUES: 0}
        self._pending: list[StringBatch] = []

    def number(self, table: str, rows: pl.DataFrame, expression: pl.Expr) -> Numbered:
        """Number the strings of an expression, which is evaluated once per combination of the columns it uses.

        Args:
            table: The table of the strings.
            rows: The rows.
            expression: The expression, which is a function of the values in the same row.
        """
        codes, examples = combinations(rows, column_names(expression))
        texts = examples.select(expression).to_series()
        present = texts.is_not_null().to_numpy()
        numbers = np.where(present, np.cumsum(present) + self._counts[table], 0).astype(np.uint64)
        self._add(table, texts.drop_nulls())
        return Numbered(codes, numbers)

    def add(self, table: str, text: str) -> int:
        """Return the number of a new string."""
        self._add(table, pl.Series([text]))
        return self._counts[table]

    def batches(self) -> list[StringBatch]:
        """Return the strings that were numbered since the last call."""
        pending, self._pending = self._pending, []
        return [
            StringBatch(batch.table, batch.first + offset, batch.texts.slice(offset, BATCH_STRINGS))
            for batch in pending
            for offset in range(0, len(batch.texts), BATCH_STRINGS)
        ]

    def _add(self, table: str, texts: pl.Series) -> None:
        self._pending.append(StringBatch(table, self._counts[table] + 1, texts))
        self._counts[table] += len(texts)


def encode_strings(batch: StringBatch) -> memoryview:
    """Return strings and their numbers as fields of the interned data."""
    array = batch.texts.cast(pl.String).to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    sizes = np.diff(ends)
    content = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    entry: list[Column] = [
        Constant(field_tag("InternedText", "iid")),
        varints(np.arange(batch.first, batch.first + len(sizes), dtype=np.uint64)),
        Constant(field_tag("InternedText", "text")),
        varints(sizes.astype(np.uint64)),
        Tails(content, sizes),
    ]
    return assemble(submessage(field_tag("InternedData", batch.table), entry), len(sizes))


def combinations(rows: pl.DataFrame, names: Sequence[str]) -> tuple[Codes, pl.DataFrame]:
    """Return a code for the combination of values in each row, and one row with the values of each code."""
    columns = rows.select(list(dict.fromkeys(names)))
    codes, count = _combination_codes(columns)
    examples = np.empty(count, np.int64)
    examples[codes] = np.arange(len(codes))
    return codes, columns[examples]


def _combination_codes(columns: pl.DataFrame) -> tuple[Codes, int]:
    """Return a code for the combination of values in each row, and the number of codes. All codes are in use."""
    codes, count = np.zeros(columns.height, np.int64), 1
    for column in columns.iter_columns():
        more, size = _column_codes(column)
        codes, count = (more, size) if count == 1 else _compact(codes * size + more, count * size)
    return codes, count


def _column_codes(column: pl.Series) -> tuple[Codes, int]:
    """Return a code for each value of a column, and the number of codes. All codes are in use."""
    physical = column.to_physical()
    low, high = (physical.min(), physical.max()) if physical.dtype.is_integer() else (None, None)
    if not isinstance(low, int) or not isinstance(high, int) or high - low > _MAX_RANGE:
        encoded = pa.chunked_array([physical.to_arrow()]).combine_chunks().dictionary_encode("encode").indices
        return _compact(encoded.to_numpy().astype(np.int64), len(column) + 1)
    shifted = (physical.cast(pl.Int64, wrap_numerical=True) - (low - 1)).fill_null(0).to_numpy()
    return _compact(shifted, high - low + 2)


def _compact(codes: Codes, count: int) -> tuple[Codes, int]:
    """Number the distinct codes from 0, and return the new codes and how many there are."""
    if count > max(_TABLE_SIZE, _TABLE_FACTOR * len(codes)):
        return _sorted_codes(codes)
    is_used = np.zeros(count, np.bool_)
    is_used[codes] = True
    numbers = np.cumsum(is_used) - 1
    return numbers[codes], int(numbers[-1]) + 1


def _sorted_codes(codes: Codes) -> tuple[Codes, int]:
    """Number the distinct codes from 0 by sorting them."""
    distinct, inverse = np.unique(codes, return_inverse=True)
    return inverse.astype(np.int64), len(distinct)
