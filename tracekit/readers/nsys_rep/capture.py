"""One report as declared tables: the report gives source tables, the rest is shared with exports of nsys."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.errors import warn
from tracekit.readers.nsys_rep.arrays import ROWID
from tracekit.readers.nsys_rep.report import Report
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
        have = [c for c in wanted if c == ROWID or c in self.db.columns[table]] or [ROWID]
        types = {c: kind_of(table, c) for c in (*wanted, *have)} | dict(kinds or {})
        chunks: dict[str, list[pa.Array]] = {c: [pa.array([], types[c])] for c in have}
        repaired: Counter[str] = Counter()
        for made in self.db.slices(table, have, parsed(where), lambda c, a: self._typed(table, c, types[c], a)):
            for c, (array, broken) in zip(have, made, strict=True):
                chunks[c].append(array)
                repaired[c] += broken
        for c, broken in (+repaired).items():
            warn(f"{broken} texts of {table}.{c} are not UTF-8: repaired", path=self.path)
        rows = sum(map(len, chunks[have[0]]))
        columns = {c: joined(chunks[c]) for c in have}
        absent = {c: pa.chunked_array([pa.nulls(rows, types[c])]) for c in wanted if c not in have}
        return pa.table(columns | absent).select(list(wanted))


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


def joined(chunks: list[pa.Array]) -> pa.ChunkedArray:
    """Join the slices of a column, without a copy of numbers; all become as wide as the widest."""
    widest = max((c.type for c in chunks[1:]), key=lambda t: t.bit_width if pa.types.is_integer(t) else 0, default=None)
    if widest is not None and pa.types.is_integer(widest):
        return pa.chunked_array([c.cast(widest) for c in chunks])
    column = pa.chunked_array(chunks)
    return column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column
