"""Read tables of a database of nvprof, in which tables and columns may be missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from tracekit.readers.common.columns import StringTable, build_null_array, concatenate_chunks
from tracekit.readers.common.sqlite.database import ROWID, Database
from tracekit.readers.nvprof import PREFIX, STRINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.readers.nvprof.activities import KindFilter

RECORD_AGAIN = "copy the file again from its source, or record the profile again"
BLOBS = frozenset({"objectId", "payload", "uuid"})
_MAX_BLOB_BYTES = 16


class NvprofDatabase(Database):
    """An open database of nvprof, whose blobs are read as hexadecimal strings."""

    def format_blob_column(self, column: str, data: pa.Array) -> pa.Array:
        """Return a column of blobs as hexadecimal strings of at most 16 bytes, and any other column unchanged."""
        if column not in BLOBS:
            return data
        encoded = data.dictionary_encode()
        texts = [None if b is None else bytes(b)[:_MAX_BLOB_BYTES].hex() for b in encoded.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(encoded.indices)

    def read(self, kind: str, names: Sequence[str], where: KindFilter | None = None) -> dict[str, pa.ChunkedArray]:
        """Return columns of the table of a kind of activities.

        A missing table has no rows, and a missing column is null.
        """
        table = PREFIX + kind
        types = {n: pa.string() if n in BLOBS else pa.int64() for n in names}
        if table not in self.columns:
            return {n: pa.chunked_array([], t) for n, t in types.items()}
        present = {n: t for n, t in types.items() if n in self.columns[table]} or {ROWID: pa.int64()}
        columns, _ = self.read_columns(table, present, where)
        rows = len(next(iter(columns.values())))
        return {
            n: pa.chunked_array([columns[n]] if isinstance(columns[n], pa.Array) else columns[n].chunks, t)
            if n in columns
            else pa.chunked_array([build_null_array(rows, t)])
            for n, t in types.items()
        }

    def read_frame(self, kind: str, names: Sequence[str]) -> pl.DataFrame:
        """Return columns of the table of a kind of activities as a frame."""
        types = {n: pl.String if n in BLOBS else pl.Int64 for n in names}
        return pl.DataFrame(pa.table(self.read(kind, names)), types)

    def read_strings(self) -> StringTable:
        """Return the table of strings. Each id occurs once."""
        columns, _ = self.read_columns(STRINGS, {"_id_": pa.int64(), "value": pa.string()})
        return StringTable(*(concatenate_chunks(columns[c]) for c in ("_id_", "value")))
