"""A builder that writes columns to temporary files, for captures that do not fit into memory."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns
from tracekit.readers.common.builders import has_mostly_distinct_strings, join_arrays
from tracekit.system.memory import ROW_UNIT, TemporaryColumns, TemporaryStream

if TYPE_CHECKING:
    from collections.abc import Mapping

BATCH_ROWS = 1 << 16
"""Number of rows that are written together. A table with fewer rows stays in memory."""


class SpillingBuilder:
    """A builder that writes batches to temporary files and returns columns whose data is memory-mapped.

    Columns of numbers have one chunk, unless a later batch has wider numbers. The chunks of a dictionary column share
    one dictionary, unless most of its strings are distinct.
    """

    def __init__(self, capacity: int) -> None:
        """Create an empty builder.

        Args:
            capacity: Upper limit for the number of rows.
        """
        self._capacity = capacity
        self._pending: list[Mapping[str, pa.Array | pa.ChunkedArray]] = []
        self._pending_rows = 0
        self._rows = 0
        self._dictionaries: dict[str, SharedDictionary] = {}
        self._numbers: list[TemporaryColumns] = []
        self._others: list[TemporaryStream] = []

    def append(self, batch: Mapping[str, pa.Array | pa.ChunkedArray]) -> None:
        """Add a batch of rows. All batches must have the same columns."""
        rows = len(next(iter(batch.values())))
        if rows or not self._pending:
            self._pending.append(batch)
            self._pending_rows += rows
        if self._pending_rows >= max(BATCH_ROWS, ROW_UNIT):
            self._write_batch(self._take_pending_rows(self._pending_rows // ROW_UNIT * ROW_UNIT))

    def finish(self) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Return the columns of all batches, by name."""
        last = self._take_pending_rows(self._pending_rows)
        if not self._rows - last.num_rows:
            return {name: join_arrays([self._decode_column(name, last[name])]) for name in last.column_names}
        if last.num_rows:
            self._write_batch(last)
        chunks: dict[str, list[pa.Array]] = {name: [] for name in last.column_names}
        for file in self._numbers:
            for name, column in zip(file.schema.names, file.finish_and_map_columns(), strict=True):
                chunks[name].append(self._decode_column(name, column))
        for stream in self._others:
            for batch in stream.finish_and_map_batches():
                for name in batch.column_names:
                    chunks[name].append(batch[name])
        return {name: join_arrays(arrays) for name, arrays in chunks.items()}

    def _take_pending_rows(self, count: int) -> pa.RecordBatch:
        """Return the first ``count`` rows that have not been written yet as one batch.

        The batch contains codes instead of strings in columns with a shared dictionary.
        """
        joined = {name: join_arrays([batch[name] for batch in self._pending]) for name in self._pending[0]}
        self._pending = [{name: column.slice(count) for name, column in joined.items()}]
        self._pending_rows -= count
        self._rows += count
        return pa.record_batch({name: self._encode_column(name, c.slice(0, count)) for name, c in joined.items()})

    def _encode_column(self, name: str, column: pa.ChunkedArray) -> pa.Array:
        """Return a column as one array.

        The array of a dictionary column holds codes of the shared dictionary, unless that dictionary is full.
        """
        array = columns.concatenate_chunks(column)
        if not pa.types.is_dictionary(array.type):
            return array
        shared = self._dictionaries.setdefault(name, SharedDictionary(array.type.value_type))
        if shared.is_full or has_mostly_distinct_strings(len(shared.values) + len(array.dictionary), self._rows):
            shared.is_full = True
            return array
        return shared.encode_values(array)

    def _decode_column(self, name: str, column: pa.Array) -> pa.Array:
        """Convert codes of the shared dictionary of a column to a dictionary array. Return other arrays unchanged."""
        shared = self._dictionaries.get(name)
        if shared is None or pa.types.is_dictionary(column.type):
            return column
        return pa.DictionaryArray.from_arrays(column, shared.values, safe=False)

    def _write_batch(self, batch: pa.RecordBatch) -> None:
        """Write a batch to temporary files, one for columns of numbers and codes, and one for other columns.

        A new file is started if the type of a column differs from its type in the previous batch.
        """
        is_number = [columns.is_numeric_type(kind) for kind in batch.schema.types]
        numbers, others = (
            batch.select([name for name, is_chosen in zip(batch.schema.names, chosen, strict=True) if is_chosen])
            for chosen in (is_number, map(operator.not_, is_number))
        )
        if numbers.num_columns:
            if (
                not self._numbers
                or self._numbers[-1].schema != numbers.schema
                or self._numbers[-1].is_full(batch.num_rows)
            ):
                self._numbers.append(TemporaryColumns(numbers.schema, max(self._capacity, batch.num_rows)))
            self._numbers[-1].write(numbers)
        if others.num_columns:
            if not self._others or self._others[-1].schema != others.schema:
                self._others.append(TemporaryStream(others.schema))
            self._others[-1].write(others)


class SharedDictionary:
    """A dictionary that grows with each batch of a column.

    Attributes:
        values: The values so far, in the order in which they first occurred.
        is_full: Whether the dictionary no longer grows, so that later batches have their own dictionaries.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self.values = pa.array([], kind)
        self.is_full = False

    def encode_values(self, array: pa.DictionaryArray) -> pa.Array:
        """Add the new values of a batch to this dictionary, and return the code of each row of the batch."""
        if array.dictionary.equals(self.values):
            return array.indices
        known = pc.is_in(array.dictionary, self.values)
        self.values = pa.concat_arrays([self.values, array.dictionary.filter(pc.invert(known)).unique()])
        codes = pc.index_in(array.dictionary, self.values)
        return codes.take(array.indices)
