"""One table of a SQLite file: runs of leaf pages that are checked when they are first read, and counted once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.sqlite import records, trees
from tracekit.readers.common.sqlite.pages import RUN_BYTES

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from tracekit.readers.common.sqlite.catalogue import Entry
    from tracekit.readers.common.sqlite.pages import Block, Ints, PageFile
    from tracekit.readers.common.sqlite.records import Column, ColumnInfo
    from tracekit.readers.common.sqlite.trees import Cells, Facts, Run

MAX_DEFAULT = 32
"""Characters of a default value. It stands for a value of every row that was written before its column was added."""

_LEAST_ROW_BYTES = 6


class Owners:
    """Which pages of a file belong to something; no page may belong to two things."""

    def __init__(self, file: PageFile) -> None:
        self._taken = np.zeros(file.count + 1, np.bool_)
        self._lock = threading.Lock()

    def take(self, pages: Ints) -> None:
        """Give pages to a new owner.

        Raises:
            Damage: One of them has an owner, or does not exist.
        """
        if len(pages) and not 1 <= int(pages.min()) <= int(pages.max()) < len(self._taken):
            raise Damage(f"a row leads to page {int(pages.max())}, and the file has {len(self._taken) - 1}")
        ordered = np.sort(pages)
        with self._lock:
            twice = np.append(ordered[1:][ordered[1:] == ordered[:-1]], pages[self._taken[pages]])
            if len(twice):
                raise Damage(f"page {twice[0]} belongs to two places")
            self._taken[pages] = True


class Table:
    """One table. Its inner pages are checked at once, its leaf pages run by run.

    Attributes:
        name: Its name.
        columns: Its columns, by name.
        runs: Its leaf pages, in rowid order.
        decodable: Number of each column that may be decoded from the pages.
    """

    def __init__(self, file: PageFile, owners: Owners, entry: Entry, columns: Sequence[ColumnInfo]) -> None:
        """Check the inner pages.

        Raises:
            Damage: They are no tree, or one of them belongs to another table.
        """
        self.name = entry.name
        self.columns = {c.name: c for c in columns}
        self.decodable = records.layout(entry.sql, columns)
        self._file = file
        self._owners = owners
        tree = trees.walk(file, entry.root)
        owners.take(np.append(tree.inner, tree.leaves))
        self.runs: list[Run] = trees.runs(tree, file.page_size, RUN_BYTES)
        self._facts: list[Facts | None] = [None] * len(self.runs)
        self._matches: dict[tuple[int, Hashable], int] = {}
        self._overflowing = 0
        self._lock = threading.Lock()

    @property
    def rowid(self) -> str:
        """Name of the row number in SQL.

        Raises:
            Damage: All of its names are those of columns.
        """
        taken = {c.lower() for c in self.columns}
        name = next((n for n in ("rowid", "_rowid_", "oid") if n not in taken), None)
        if name is None:
            raise Damage("has columns rowid, _rowid_ and oid")
        return name

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse columns whose values are not stored row by row.

        Raises:
            Damage: A column is generated, or has a long default (a small file could hold any amount of text), or is
                missing.
        """
        for name in names:
            column = self.columns.get(name)
            if column is None:
                raise Damage(f"has no column {name}")
            if column.hidden:
                raise Damage(f"column {column.name} is generated, not stored")
            if column.default is not None and len(column.default) > MAX_DEFAULT:
                raise Damage(f"column {column.name} has a default of {len(column.default)} characters")

    def facts(self, nth: int) -> Facts:
        """Return what a run holds, and check it first.

        Raises:
            Damage: It is damaged.
        """
        known = self._facts[nth]
        if known is None:
            known, _, _ = self._read(nth)
        return known

    def decode(self, nth: int, columns: Sequence[int]) -> list[Column] | None:
        """Check a run and decode columns of it, by number; None if SQLite has to read them.

        Raises:
            Damage: It is damaged.
        """
        _, block, cells = self._read(nth)
        return records.decode(block, cells, columns)

    def match(self, nth: int, condition: Hashable, rows: int) -> None:
        """Note how many rows of a run meet a condition.

        Raises:
            Damage: Another number was noted before.
        """
        known = self._matches.setdefault((nth, condition), rows)
        if known != rows:
            low, high = self.runs[nth].low, self.runs[nth].high
            raise Damage(f"of rows {low} to {high}, {known} at one time and {rows} at another meet a condition")

    def matches(self, nth: int, condition: Hashable) -> int | None:
        """Return how many rows of a run meet a condition; None if that is not known yet."""
        return self._matches.get((nth, condition))

    def most_rows(self) -> int:
        """Return a number of rows that the table does not exceed; at most its first and last page are read."""
        if len(self.runs) == 1:
            return self.facts(0).rows
        first, last = self.runs[0], self.runs[-1]
        low = self._ends(first._replace(pages=first.pages[:1], highs=first.highs[:1]))[0]
        start = int(last.highs[-2]) + 1 if len(last.highs) > 1 else last.low
        high = self._ends(last._replace(pages=last.pages[-1:], highs=last.highs[-1:], low=start))[-1]
        fitting = sum(len(r.pages) for r in self.runs) * (self._file.page_size // _LEAST_ROW_BYTES)
        return max(0, min(high - low + 1, fitting))

    def _ends(self, run: Run) -> tuple[int, int]:
        """Return the first and last rowid of a run; what is between no rows, if it is empty."""
        rowids = trees.cells(self._file, self._file.read(run.pages), run).rowids
        return (int(rowids[0]), int(rowids[-1])) if len(rowids) else (0, -1)

    def _read(self, nth: int) -> tuple[Facts, Block, Cells]:
        run = self.runs[nth]
        block = self._file.read(run.pages)
        cells = trees.cells(self._file, block, run)
        known = self._facts[nth] or self._keep(nth, trees.facts(self._file, block, cells, run))
        return known, block, cells

    def _keep(self, nth: int, facts: Facts) -> Facts:
        """Keep what a run holds, once; its overflow pages belong to this table from then on."""
        with self._lock:
            known = self._facts[nth]
            if known is not None:
                return known
            total = self._overflowing + facts.overflowing
            if total > self._file.count * self._file.page_size:
                raise Damage(f"its rows claim to hold {total} bytes on overflow pages, more than the file has")
            self._owners.take(facts.overflow_pages)
            self._overflowing = total
            self._facts[nth] = facts._replace(overflow_pages=facts.overflow_pages[:0])
            return facts
