"""An export as source tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.errors import CorruptTraceError, warn
from tracekit.readers.common.sqlite.database import Database
from tracekit.readers.nsys import blobs
from tracekit.readers.nsys.tables import ROWID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.readers.nsys.tables import Made, Request, Where


class ExportTables(Database):
    """The tables of an export; each is read in one piece."""

    kept_apart = frozenset({"jsonText", blobs.COLUMN})

    def pieces(self, requests: Sequence[Request[Made]]) -> Iterator[tuple[int, Made]]:
        """Read columns of tables, each in one piece."""
        for nth, wanted in enumerate(requests):
            yield nth, wanted.work(self._whole(wanted.table, wanted.types, wanted.where))

    def as_text(self, column: str, data: pa.Array) -> pa.Array:
        """Return bytes of a column as text: payloads are binary, and shown as hexadecimal numbers."""
        return blobs.texts(data) if column == blobs.COLUMN else data

    def _whole(self, table: str, types: Mapping[str, pa.DataType], where: Where | None) -> pa.Table:
        """Read columns of a table; a column that the export lacks is null."""
        have = [c for c in types if c == ROWID or c in self.columns[table]] or [ROWID]
        kinds = {ROWID: pa.int64(), **types}
        plain = [c for c in have if kinds[c] in (pa.int64(), pa.int32()) and self.decodes(table, c)]
        other = [c for c in have if c not in plain]
        read: dict[str, pa.ChunkedArray] = {}
        for columns in filter(None, (plain, other)):
            found, repaired = self.read_columns(table, {c: kinds[c] for c in columns}, where)
            read |= found
            for c, broken in (+repaired).items():
                warn(f"{broken} texts of {table}.{c} are not UTF-8: repaired", path=self.path)
        rows = len(read[have[0]])
        if any(len(column) != rows for column in read.values()):
            counts = sorted({len(column) for column in read.values()})
            raise CorruptTraceError(f"holds {counts} rows at once", path=self.path, table=table, hint=self.hint)
        absent = {c: pa.chunked_array([pa.nulls(rows, kind)]) for c, kind in types.items() if c not in have}
        return pa.table(read | absent).select(list(types))
