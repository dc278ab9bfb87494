"""A builder that writes columns to temporary files, for captures that do not fit into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns
from tracekit.readers.common.builders import has_mostly_distinct_strings, join_arrays
from tracekit.system.memory import TemporaryStream

if TYPE_CHECKING:
    from collections.abc import Mapping

BATCH_ROWS = 1 << 16
"""Number of rows that are written together. A table with fewer rows stays in memory."""


class SpillingBuilder:
    """A builder that writes batches to temporary Arrow streams and returns columns whose data is memory-mapped.

    All chunks of a column except the last one have at least ``BATCH_ROWS`` rows. The chunks of a dictionary column
    share one dictionary, unless most of its strings are distinct.
    """

    def __init__(self) -> None:
        self._pending: list[Mapping[str, pa.Array | pa.ChunkedArray]] = []
        self._pending_rows = 0
        self._rows = 0
        self._dictionaries: dict[str, SharedDictionary] = {}
        self._streams: list[TemporaryStream] = []

    def append(self, batch: Mapping[str, pa.Array | pa.ChunkedArray]) -> None:
        """Add a batch of rows. All batches must have the same columns."""
        rows = len(next(iter(batch.values())))
        if rows or not self._pending:
            self._pending.append(batch)
            self._pending_rows += rows
        if self._pending_rows >= BATCH_ROWS:
            self._write_batch(self._join_pending_batches())

    def finish(self) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Return the columns of all batches, by name."""
        tables = [table for stream in self._streams for table in stream.finish_and_map_batches()]
        if self._pending:
            tables.append(self._join_pending_batches())
        names = tables[0].column_names
        return {name: join_arrays([self._decode_column(name, table[name]) for table in tables]) for name in names}

    def _join_pending_batches(self) -> pa.RecordBatch:
        """Return one batch that joins all batches that have not been written yet.

        The batch contains codes instead of strings in columns with a shared dictionary.
        """
        batches, self._pending = self._pending, []
        self._rows += self._pending_rows
        self._pending_rows = 0
        return pa.record_batch({n: self._encode_column(n, join_arrays([b[n] for b in batches])) for n in batches[0]})

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
        """Write a batch to a temporary stream.

        A new stream is started if the type of a column differs from its type in the previous batch.
        """
        if not self._streams or self._streams[-1].schema != batch.schema:
            self._streams.append(TemporaryStream(batch.schema))
        self._streams[-1].write(batch)


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
