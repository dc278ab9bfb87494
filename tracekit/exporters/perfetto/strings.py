"""Number the strings of events, so that each of them is written once per sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.exporters.perfetto.wire import Constant, Tails, assemble, field_tag, submessage, varints
from tracekit.exporters.timeline.columns import column_names
from tracekit.exporters.timeline.combinations import combinations

if TYPE_CHECKING:
    from tracekit.exporters.perfetto.wire import Column, Numbers, Sizes
    from tracekit.exporters.timeline.combinations import Codes


EVENT_NAMES, ANNOTATION_NAMES, STRING_VALUES = "event_names", "debug_annotation_names", "debug_annotation_string_values"
BATCH_STRINGS = 1 << 14


class Numbered(NamedTuple):
    """Strings of a column by number.

    Attributes:
        codes: A code for each row.
        numbers: The number of the string of each code, or 0 for null.
    """

    codes: Codes
    numbers: Numbers

    def batch(self, rows: Sizes | slice) -> Numbers:
        """Return the numbers of the strings of some rows, which are chosen by row number."""
        return self.numbers[self.codes[rows]]


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
