"""The source tables of a JSON export, which are in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import CorruptTraceError
from tracekit.readers.common.columns import DICTIONARY, cast_numbers
from tracekit.readers.nsys.tables import ROWID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tracekit.readers.nsys.tables import ColumnsRequest, Result, Where


class LineTables:
    """The source tables of a JSON export.

    Attributes:
        path: Path of the file.
        hint: Hint in error messages about damaged files.
        columns: Names of the columns of each table.
        undecoded: Number of events that are in no table, by kind.
    """

    def __init__(self, path: Path, hint: str, tables: Mapping[str, pa.Table], undecoded: Mapping[str, int]) -> None:
        self.path = path
        self.hint = hint
        self.undecoded = undecoded
        self.columns: Mapping[str, tuple[str, ...]] = {n: tuple(t.column_names) for n, t in tables.items()}
        self._tables = tables

    def count_rows(self, conditions: Sequence[tuple[str, Where | None]]) -> list[int]:
        """Return the number of matching rows for each pair of a table and a filter, or 0 for a missing table."""
        return [self._select(table, where).num_rows if table in self._tables else 0 for table, where in conditions]

    def find_rowid(self, table: str, index: int, where: Where | None = None) -> int | None:
        """Return the row number of the row at an index among the rows that match a filter, or None."""
        rows = self._select(table, where)
        return int(rows[ROWID][index].as_py()) if index < rows.num_rows else None

    def read_batches(self, requests: Sequence[ColumnsRequest[Result]]) -> Iterator[tuple[int, Result]]:
        """Read columns of several tables, each in one batch. All values of a missing column are null."""
        for number, request in enumerate(requests):
            rows = self._select(request.table, request.where)
            columns = {name: self._convert(request.table, name, rows, kind) for name, kind in request.types.items()}
            yield number, request.convert(pa.table(columns))

    def compute_max_rows(self, table: str) -> int:
        """Return the number of rows of a table."""
        return self._tables[table].num_rows if table in self._tables else 0

    def close(self) -> None:
        """Do nothing, because the file is closed already."""

    def _select(self, table: str, where: Where | None) -> pa.Table:
        """Return the rows that match a filter, with their numbers."""
        rows = self._tables[table]
        numbered = rows.append_column(ROWID, pa.array(np.arange(1, rows.num_rows + 1)))
        if where is None:
            return numbered
        column = numbered[where.column]
        return numbered.filter(
            pc.is_in(column, pa.array(where.values, column.type)) if where.values else column.is_valid()
        )

    def _convert(self, table: str, name: str, rows: pa.Table, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
        if name not in rows.column_names:
            return pa.nulls(rows.num_rows, kind)
        try:
            if kind == DICTIONARY:
                return rows[name].cast(pa.string()).combine_chunks().dictionary_encode()
            return rows[name].cast(kind) if kind == pa.string() else cast_numbers(rows[name], kind)
        except pa.ArrowInvalid as e:
            what = f"column {name}: {str(e).partition(chr(10))[0]}"
            raise CorruptTraceError(what, path=self.path, table=table, hint=self.hint) from e
