"""Read the source tables of an Nsight Systems SQLite export."""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.errors import format_count, warn
from tracekit.readers.common import columns as col
from tracekit.readers.common.sqlite.database import Database
from tracekit.readers.nsys import blobs
from tracekit.readers.nsys.tables import ROWID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.readers.nsys.tables import ColumnsRequest, Result


class ExportTables(Database):
    """The source tables of an Nsight Systems SQLite export."""

    chunked_columns = frozenset({"jsonText", blobs.COLUMN})

    def read_batches(self, requests: Sequence[ColumnsRequest[Result]]) -> Iterator[tuple[int, Result]]:
        """Read columns of several tables in batches. All values of a column that the export lacks are null.

        Yields:
            For each batch, the index of its request and the result of ``ColumnsRequest.convert``.
        """
        for index, request in enumerate(requests):
            table, types = request.table, {ROWID: pa.int64(), **request.types}
            have = [c for c in request.types if c == ROWID or c in self.columns[table]] or [ROWID]
            convert = functools.partial(_convert_batch, request)
            repaired: Counter[str] = Counter()
            for result, broken in self.map_column_batches(table, {c: types[c] for c in have}, request.where, convert):
                repaired += broken
                yield index, result
            for c, count in repaired.items():
                strings, verb = format_count(count, "string"), "is" if count == 1 else "are"
                warn(f"{strings} of {table}.{c} {verb} not UTF-8: invalid bytes are replaced", path=self.path)

    def format_blob_column(self, column: str, data: pa.Array) -> pa.Array:
        """Format a column of binary NVTX payloads as strings, and return any other column unchanged."""
        return blobs.format_payload_blobs(data) if column == blobs.COLUMN else data


def _convert_batch(request: ColumnsRequest[Result], columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> Result:
    """Convert a batch of columns. All values of a column that the export lacks are null."""
    rows = len(next(iter(columns.values())))
    absent = {c: col.build_null_array(rows, kind) for c, kind in request.types.items() if c not in columns}
    return request.convert(pa.table({**columns, **absent}).select(list(request.types)))
