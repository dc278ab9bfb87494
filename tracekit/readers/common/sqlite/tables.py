"""Tables of a SQLite file. When leaf pages are first read, they are checked and their rows are counted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.sqlite import records, trees
from tracekit.readers.common.sqlite.pages import RUN_BYTES

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from tracekit.readers.common.sqlite.catalogue import CatalogueEntry
    from tracekit.readers.common.sqlite.pages import Ints, PageBlock, PageFile
    from tracekit.readers.common.sqlite.records import ColumnInfo, DecodedColumn
    from tracekit.readers.common.sqlite.trees import Cells, LeafRun, RunSummary

MAX_DEFAULT = 32
"""Maximum length of a default value. SQLite repeats it in each row that was written before the column was added."""

_LEAST_ROW_BYTES = 6


class UsedPages:
    """The set of pages that the tables of a file use. Using a page twice is an error."""

    def __init__(self, file: PageFile) -> None:
        self._used = np.zeros(file.count + 1, np.bool_)
        self._lock = threading.Lock()

    def mark_used(self, pages: Ints) -> None:
        """Mark pages as used by a table.

        Raises:
            Damage: A page is already used or does not exist.
        """
        if len(pages) and not 1 <= int(pages.min()) <= int(pages.max()) < len(self._used):
            number = int(pages.min() if pages.min() < 1 else pages.max())
            raise Damage(
                f"a row refers to page {number}, but only the pages 1 to {len(self._used) - 1} are in the file"
            )
        ordered = np.sort(pages)
        with self._lock:
            twice = np.append(ordered[1:][ordered[1:] == ordered[:-1]], pages[self._used[pages]])
            if len(twice):
                raise Damage(f"page {twice[0]} is used twice")
            self._used[pages] = True


class SqliteTable:
    """A table of a SQLite file.

    Its inner pages are checked when the object is created, and its leaf pages when they are first read.

    Attributes:
        name: Name of the table.
        columns: Columns of the table by name.
        runs: Runs of leaf pages, in rowid order.
        decodable: Numbers of the columns that can be decoded from the pages, by name.
    """

    def __init__(
        self, file: PageFile, used_pages: UsedPages, entry: CatalogueEntry, columns: Sequence[ColumnInfo]
    ) -> None:
        """Create a table and check its inner pages.

        Raises:
            Damage: The pages are not a valid tree, or a page is already used.
        """
        self.name = entry.name
        self.columns = {c.name: c for c in columns}
        self.decodable = records.find_decodable_columns(entry.sql, columns)
        self._file = file
        self._used_pages = used_pages
        tree = trees.read_tree(file, entry.root)
        used_pages.mark_used(np.append(tree.inner, tree.leaves))
        self.runs: list[LeafRun] = trees.split_into_page_runs(tree, file.page_size, RUN_BYTES)
        self._summaries: list[RunSummary | None] = [None] * len(self.runs)
        self._matches: dict[tuple[int, Hashable], int] = {}
        self._overflowing = 0
        self._lock = threading.Lock()

    @property
    def rowid_name(self) -> str:
        """The name by which SQL statements can refer to the rowid: ``rowid``, ``_rowid_`` or ``oid``.

        It is the first of these names that is not the name of a column.

        Raises:
            Damage: The table has columns with all three names.
        """
        column_names = {c.lower() for c in self.columns}
        name = next((n for n in ("rowid", "_rowid_", "oid") if n not in column_names), None)
        if name is None:
            raise Damage("the table has columns named rowid, _rowid_ and oid, which hide the rowid")
        return name

    def check_columns(self, names: Sequence[str]) -> None:
        """Check that columns exist, and that tracekit supports their definitions.

        Raises:
            Damage: A column is missing or generated, or has a long default value, which a small file could repeat in
                any number of rows.
        """
        for name in names:
            column = self.columns.get(name)
            if column is None:
                raise Damage(f"the table has no column {name}")
            if column.hidden:
                raise Damage(f"column {column.name} is a generated column, which tracekit does not support")
            if column.default is not None and len(column.default) > MAX_DEFAULT:
                raise Damage(
                    f"column {column.name} has a default value of {len(column.default)} characters, but "
                    f"tracekit supports at most {MAX_DEFAULT} characters"
                )

    def get_run_summary(self, run_index: int) -> RunSummary:
        """Return the totals of one run of leaf pages. The first call for a run checks its pages.

        Raises:
            Damage: A page is damaged.
        """
        summary = self._summaries[run_index]
        if summary is None:
            summary, _, _ = self._read_page_run(run_index)
        return summary

    def decode_columns(self, run_index: int, column_numbers: Sequence[int]) -> list[DecodedColumn] | None:
        """Decode columns from one run of leaf pages, after checking the pages.

        Args:
            run_index: Index of the run.
            column_numbers: Numbers of the columns, counted from 0. ``records.ROWID`` selects the rowid.

        Returns:
            The decoded columns, or None if SQLite has to read them.

        Raises:
            Damage: A page is damaged.
        """
        _, block, cells = self._read_page_run(run_index)
        return records.decode_integers(block, cells, column_numbers)

    def record_match_count(self, run_index: int, condition: Hashable, rows: int) -> None:
        """Record the number of rows of one run of leaf pages that match a condition.

        Raises:
            Damage: A different number was recorded earlier for the run and the condition.
        """
        recorded = self._matches.setdefault((run_index, condition), rows)
        if recorded != rows:
            low, high = self.runs[run_index].min_rowid, self.runs[run_index].max_rowid
            raise Damage(
                f"two reads of the rows with rowids {low} to {high} disagree: {recorded} rows matched a condition at "
                f"first, but {rows} matched it later"
            )

    def get_recorded_match_count(self, run_index: int, condition: Hashable) -> int | None:
        """Return the recorded number of matching rows of a run of leaf pages, or None if no number was recorded."""
        return self._matches.get((run_index, condition))

    def compute_max_rows(self) -> int:
        """Return an upper limit for the number of rows, computed from the first and last rowid of the table.

        The number is exact if the table has only one run of leaf pages.
        """
        if len(self.runs) == 1:
            return self.get_run_summary(0).rows
        first, last = self.runs[0], self.runs[-1]
        low = self._read_first_and_last_rowid(first._replace(pages=first.pages[:1], max_rowids=first.max_rowids[:1]))[0]
        start = int(last.max_rowids[-2]) + 1 if len(last.max_rowids) > 1 else last.min_rowid
        high = self._read_first_and_last_rowid(
            last._replace(pages=last.pages[-1:], max_rowids=last.max_rowids[-1:], min_rowid=start)
        )[-1]
        fitting = sum(len(r.pages) for r in self.runs) * (self._file.page_size // _LEAST_ROW_BYTES)
        return max(0, min(high - low + 1, fitting))

    def _read_first_and_last_rowid(self, run: LeafRun) -> tuple[int, int]:
        """Return the first and last rowid of a run of leaf pages, or 0 and -1 if it has no rows."""
        rowids = trees.find_cells(self._file, self._file.read(run.pages), run).rowids
        return (int(rowids[0]), int(rowids[-1])) if len(rowids) else (0, -1)

    def _read_page_run(self, run_index: int) -> tuple[RunSummary, PageBlock, Cells]:
        run = self.runs[run_index]
        block = self._file.read(run.pages)
        cells = trees.find_cells(self._file, block, run)
        summary = self._summaries[run_index] or self._store_summary(
            run_index, trees.summarize_page_run(self._file, block, cells, run)
        )
        return summary, block, cells

    def _store_summary(self, run_index: int, summary: RunSummary) -> RunSummary:
        """Store the totals of one run of leaf pages, mark its overflow pages as used, and return the totals.

        If another thread has already stored the totals of the run, return these instead and change nothing.
        """
        with self._lock:
            stored = self._summaries[run_index]
            if stored is not None:
                return stored
            total = self._overflowing + summary.overflowing
            if total > self._file.count * self._file.page_size:
                raise Damage(
                    f"the rows of the table declare {total} bytes on overflow pages, which is more than the file has"
                )
            self._used_pages.mark_used(summary.overflow_pages)
            self._overflowing = total
            self._summaries[run_index] = summary._replace(overflow_pages=summary.overflow_pages[:0])
            return summary
