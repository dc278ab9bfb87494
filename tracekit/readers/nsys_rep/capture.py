"""One report as declared tables: the report gives source tables, the rest is shared with exports of nsys."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.errors import warn
from tracekit.readers.nsys_rep.report import Report
from tracekit.readers.nsys_sqlite import columns as col
from tracekit.readers.nsys_sqlite.capture import NsysCapture, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.readers.nsys_rep.report import Where
    from tracekit.registry import Source


class RepCapture(NsysCapture):
    """An opened report: declared tables on demand, only the columns asked for."""

    db: SqlReport  # type: ignore[assignment]

    def __init__(self, source: Source) -> None:
        self.path = source.path
        self.db = SqlReport(source)
        self._labels = {}
        self._small = {}

    @property
    def undecoded(self) -> dict[str, int]:
        """What is recorded and in no declared table: number of events by name."""
        return self.db.undecoded

    def fetch(
        self, table: str, wanted: Sequence[str], where: str = "", kinds: Mapping[str, pa.DataType] | None = None
    ) -> pa.Table:
        """Read columns of a source table as numbers or text; a column that the report lacks is all null."""
        types = {c: kind_of(table, c) for c in wanted} | dict(kinds or {})
        have = [c for c in wanted if c == "rowid" or c in self.db.columns[table]] or ["rowid"]
        made = list(
            self.db.slices(table, have, parsed(where), lambda c, a: self._typed(table, c, types.get(c, pa.int64()), a))
        )
        arrays = {}
        for i, c in enumerate(have):
            if broken := sum(columns[i][1] for columns in made):
                warn(f"{broken} texts of {table}.{c} are not UTF-8: repaired", path=self.path)
            empty = pa.array([], types.get(c, pa.int64()))
            arrays[c] = col.joined([columns[i][0] for columns in made] or [empty])
            for columns in made:
                columns[i] = (empty, 0)
        rows = len(next(iter(arrays.values())))
        absent = {c: pa.chunked_array([pa.nulls(rows, types[c])]) for c in wanted if c not in have}
        return pa.table(arrays | absent).select(list(wanted))


class SqlReport(Report):
    """A report asked as the database is: conditions in SQL. Goes when the shared code asks with ``Where``."""

    def count(self, table: str, where: Where | str | None = None) -> int:
        """Number of rows of a table that meet a condition."""
        return super().count(table, parsed(where))

    def rowid(self, table: str, index: int, where: Where | str | None = None) -> int | None:
        """Number of a row in its table."""
        return super().rowid(table, index, parsed(where))


def parsed(where: Where | str | None) -> Where | None:
    """Understand a condition in SQL: a column in a list of numbers, or not null."""
    if not isinstance(where, str):
        return where
    column = re.match(r'"(\w+)" (?:IN|IS NOT NULL)', where)
    return (column[1], tuple(int(n) for n in re.findall(r"\d+", where))) if column else None
