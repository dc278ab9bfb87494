"""An export as source tables: integers of large tables decoded from their pages, the rest read by SQLite."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.errors import CorruptTraceError, first_line, warn
from tracekit.readers.common import columns as col
from tracekit.readers.common.pieces import collector
from tracekit.readers.common.sqlite_files import EXPORT_AGAIN
from tracekit.readers.nsys import blobs
from tracekit.readers.nsys.tables import ROWID
from tracekit.readers.nsys_sqlite.database import Database

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.readers.nsys.tables import Made, Request, Where


class ExportTables(Database):
    """The tables of an export; each is read in one piece."""

    hint = EXPORT_AGAIN

    def pieces(self, requests: Sequence[Request[Made]]) -> Iterator[tuple[int, Made]]:
        """Read columns of tables, each in one piece."""
        for nth, wanted in enumerate(requests):
            yield nth, wanted.work(self._whole(wanted.table, wanted.types, wanted.where))

    def _whole(self, table: str, types: Mapping[str, pa.DataType], where: Where | None) -> pa.Table:
        """Read columns of a table; a column that the export lacks is null."""
        have = [c for c in types if c == ROWID or c in self.columns[table]] or [ROWID]
        kinds = {ROWID: pa.int64(), **types}
        plain = [c for c in have if kinds[c] in (pa.int64(), pa.int32()) and self.decodes(table, c)]
        other = [c for c in have if c not in plain]
        read: dict[str, pa.ChunkedArray] = {}
        for columns in filter(None, (plain, other)):
            read |= self._columns(table, {c: kinds[c] for c in columns}, where)
        rows = len(read[have[0]])
        if any(len(column) != rows for column in read.values()):
            counts = sorted({len(column) for column in read.values()})
            raise CorruptTraceError(f"holds {counts} rows at once", path=self.path, table=table, hint=self.hint)
        absent = {c: pa.chunked_array([pa.nulls(rows, kind)]) for c, kind in types.items() if c not in have}
        return pa.table(read | absent).select(list(types))

    def _columns(self, table: str, types: Mapping[str, pa.DataType], where: Where | None) -> dict[str, pa.ChunkedArray]:
        """Read columns in one pass."""
        at_most = self.at_most(table)
        made = {c: collector(t, at_most) for c, t in types.items()}
        repaired: Counter[str] = Counter()

        def typed(batch: pa.RecordBatch) -> list[tuple[pa.Array, int]]:
            return [self._typed(table, c, array, types[c]) for c, array in zip(types, batch.columns, strict=True)]

        for arrays in self.slices(table, list(types), where, typed):
            for c, (array, broken) in zip(types, arrays, strict=True):
                made[c].append(array)
                repaired[c] += broken
        for c, broken in (+repaired).items():
            warn(f"{broken} texts of {table}.{c} are not UTF-8: repaired", path=self.path)
        return {c: column.finish() for c, column in made.items()}

    def _typed(self, table: str, column: str, data: pa.Array, kind: pa.DataType) -> tuple[pa.Array, int]:
        try:
            is_payload = column == blobs.COLUMN and (pa.types.is_binary(data.type) or pa.types.is_string(data.type))
            return col.typed(blobs.texts(data) if is_payload else data, kind)
        except TypeError as e:
            raise self.wrong_type(table, column, str(e)) from None
        except ValueError as e:
            raise CorruptTraceError(first_line(e), path=self.path, table=table, hint=self.hint) from e
