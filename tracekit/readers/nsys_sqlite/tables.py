"""Read the source tables of an Nsight Systems SQLite export."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.errors import CorruptTraceError, warn
from tracekit.readers.common.sqlite.database import Database
from tracekit.readers.nsys import blobs
from tracekit.readers.nsys.tables import ROWID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.readers.nsys.tables import ColumnsRequest, Result, Where


class ExportTables(Database):
    """The source tables of an Nsight Systems SQLite export. Each request is read as one batch."""

    chunked_columns = frozenset({"jsonText", blobs.COLUMN})

    def read_batches(self, requests: Sequence[ColumnsRequest[Result]]) -> Iterator[tuple[int, Result]]:
        """Read columns of several tables, with one batch per request.

        Yields:
            The index of each request, and the result of ``ColumnsRequest.convert``.
        """
        for index, request in enumerate(requests):
            yield index, request.convert(self._read_table(request.table, request.types, request.where))

    def format_blob_column(self, column: str, data: pa.Array) -> pa.Array:
        """Format a column of binary NVTX payloads as strings, and return any other column unchanged."""
        return blobs.format_payload_blobs(data) if column == blobs.COLUMN else data

    def _read_table(self, table: str, types: Mapping[str, pa.DataType], where: Where | None) -> pa.Table:
        """Return columns of a table. All values of a column that the export lacks are null."""
        have = [c for c in types if c == ROWID or c in self.columns[table]] or [ROWID]
        kinds = {ROWID: pa.int64(), **types}
        plain = [c for c in have if kinds[c] in (pa.int64(), pa.int32()) and self.can_decode(table, c)]
        other = [c for c in have if c not in plain]
        read: dict[str, pa.ChunkedArray] = {}
        for columns in filter(None, (plain, other)):
            arrays, repaired = self.read_columns(table, {c: kinds[c] for c in columns}, where)
            read |= arrays
            for c, broken in (+repaired).items():
                warn(f"{broken} strings of {table}.{c} are not UTF-8: invalid bytes are replaced", path=self.path)
        rows = len(read[have[0]])
        if any(len(column) != rows for column in read.values()):
            counts = sorted({len(column) for column in read.values()})
            raise CorruptTraceError(
                f"the columns have different lengths: {counts} rows", path=self.path, table=table, hint=self.hint
            )
        absent = {c: pa.chunked_array([pa.nulls(rows, kind)]) for c, kind in types.items() if c not in have}
        return pa.table(read | absent).select(list(types))
