"""Check the B-tree of a SQLite table, and the rows on its leaf pages.

Inner pages hold the numbers of their child pages. Between two child pages, they hold a key, which is the highest rowid
allowed in the first of them. Leaf pages hold the rows in rowid order. SQLite does not check this structure. If pages
have two parents, SQLite may visit them almost endlessly. If keys are out of order, a search does not find rows that a
scan counts. If cells overlap, a small file can hold any number of rows. Therefore the inner pages of a table are
checked first, and each leaf page is checked before its rows are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.sqlite.pages import LOCK_BYTE, RUN_BYTES

if TYPE_CHECKING:
    from tracekit.readers.common.sqlite.pages import Flags, Ints, PageBlock, PageFile

LEAF, INNER = 13, 5
HEAD_BYTES = {LEAF: 8, INNER: 12}
INDEX_PAGES = (2, 10)
BATCH_BYTES = 1 << 26
"""Number of bytes of records to request from SQLite with one query."""

MAX_DEPTH = 20
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
_SHORTEST_CELL = 4
_PAGE_NUMBER_BYTES = 4
_LONGEST = (1 << 31) - 1


class TableTree(NamedTuple):
    """The pages of the B-tree of a table.

    Attributes:
        leaves: Numbers of the leaf pages, in rowid order.
        max_rowids: Highest allowed rowid of each leaf page, ascending.
        inner: Numbers of the inner pages.
    """

    leaves: Ints
    max_rowids: Ints
    inner: Ints


class LeafRun(NamedTuple):
    """Consecutive leaf pages of a table, in rowid order, that are read together.

    Attributes:
        pages: Page numbers.
        min_rowid: Lowest allowed rowid of the first page.
        max_rowids: Highest allowed rowid of each page.
        is_root: Whether the table has only one page. Only in this case may a page have no rows.
    """

    pages: Ints
    min_rowid: int
    max_rowids: Ints
    is_root: bool

    @property
    def max_rowid(self) -> int:
        """Highest allowed rowid of the last page of the run."""
        return int(self.max_rowids[-1])


class Cells(NamedTuple):
    """The rows on some leaf pages, with one element per row in each array.

    Attributes:
        rowids: Rowid of each row, ascending.
        payload: Size of each record in bytes.
        on_leaf: Number of bytes of each record that are on its leaf page. The remaining bytes are on overflow pages.
        starts: Position in the block at which each record starts.
        ends: Position in the block at which the part of each record on its leaf page ends.
    """

    rowids: Ints
    payload: Ints
    on_leaf: Ints
    starts: Ints
    ends: Ints


class RunSummary(NamedTuple):
    """Totals of one run of leaf pages.

    Attributes:
        rows: Number of rows.
        payload: Size of all records in bytes.
        overflowing: Number of bytes of all records that are on overflow pages.
        overflow_pages: Page number of the first overflow page of each record that has overflow pages.
        ranges: First and last rowid of consecutive ranges that cover the run. SQLite reads one range at a time, so that
            the records of a batch have at most about ``BATCH_BYTES`` bytes.
    """

    rows: int
    payload: int
    overflowing: int
    overflow_pages: Ints
    ranges: tuple[tuple[int, int], ...]


def read_tree(file: PageFile, root_page: int) -> TableTree:
    """Read and check the inner pages of the B-tree of a table, level by level.

    Raises:
        Damage: A page is outside the file or has two parents, keys are not in order, or the tree has too many levels.
    """
    pages, highs = np.array([root_page], np.int64), np.array([HIGHEST], np.int64)
    levels = [pages]
    _check_page_numbers(file, pages, min_page=1)
    for _ in range(MAX_DEPTH):
        first = file.read(pages[:1])
        if first.kinds[0] == LEAF:
            return TableTree(pages, highs, np.concatenate(levels[:-1]) if len(levels) > 1 else pages[:0])
        if first.kinds[0] in INDEX_PAGES:
            raise Damage(f"page {pages[0]} belongs to an index or a WITHOUT ROWID table")
        pages, highs = _read_pages_of_next_level(file, pages, highs)
        levels.append(pages)
        _check_page_numbers(file, np.concatenate(levels), min_page=1 if root_page == 1 else 2)
    raise Damage(f"the B-tree with the root page {root_page} has more than {MAX_DEPTH} levels")


def split_into_page_runs(tree: TableTree, page_size: int, run_bytes: int = RUN_BYTES) -> list[LeafRun]:
    """Split the leaf pages of a table into runs of about ``run_bytes`` bytes with adjacent rowid ranges."""
    step = max(1, run_bytes // page_size)
    cuts = range(0, len(tree.leaves), step)
    lows = [LOWEST, *(int(h) + 1 for h in tree.max_rowids[step - 1 : -1 : step])]
    return [
        LeafRun(tree.leaves[a : a + step], low, tree.max_rowids[a : a + step], len(tree.leaves) == 1)
        for a, low in zip(cuts, lows, strict=True)
    ]


def find_cells(file: PageFile, block: PageBlock, run: LeafRun) -> Cells:
    """Locate and check the rows of one run of leaf pages.

    Raises:
        Damage: A page is not a leaf, rows overlap or extend beyond their page, or rowids are not in order.
    """
    _raise_for_invalid_page(block, block.kinds != LEAF, "is not a leaf page of a table")
    if not run.is_root:
        _raise_for_invalid_page(block, block.counts == 0, "has no rows")
    at = _read_cell_offsets(file, block, HEAD_BYTES[LEAF])
    payload, middle = block.decode_varints_at(at)
    rowids, starts = block.decode_varints_at(middle)
    limit = min(file.count * file.page_size, _LONGEST)
    if len(payload) and not 1 <= int(payload.min()) <= int(payload.max()) <= limit:
        _raise_for_invalid_cell(
            block, (payload < 1) | (payload > limit), "has a record that is empty or larger than the file"
        )
    on_leaf = _compute_bytes_on_leaf(file, payload)
    cells = Cells(rowids, payload, on_leaf, starts, starts + on_leaf)
    _check_row_extents(file, block, at, cells)
    _check_rowid_order(block, rowids, run)
    return cells


def summarize_page_run(file: PageFile, block: PageBlock, cells: Cells, run: LeafRun) -> RunSummary:
    """Return the totals of one run of leaf pages.

    Raises:
        Damage: The declared size of the records exceeds the size of the file.
    """
    total = int(cells.payload.sum())
    if total > file.count * file.page_size:
        raise Damage(
            f"page {run.pages[0]} and the pages after it declare {total} bytes of records, "
            "which is more than the file has"
        )
    overflowing = np.flatnonzero(cells.payload > cells.on_leaf)
    return RunSummary(
        rows=len(cells.rowids),
        payload=total,
        overflowing=total - int(cells.on_leaf.sum()) if len(overflowing) else 0,
        overflow_pages=block.read_page_numbers(cells.ends[overflowing]),
        ranges=_split_into_rowid_ranges(cells, run) if total > BATCH_BYTES else ((run.min_rowid, run.max_rowid),),
    )


def _split_into_rowid_ranges(cells: Cells, run: LeafRun) -> tuple[tuple[int, int], ...]:
    """Split a run of leaf pages into rowid ranges with about ``BATCH_BYTES`` bytes of records each."""
    before = np.cumsum(cells.payload) - cells.payload
    cuts = np.flatnonzero(np.diff(before // BATCH_BYTES))
    highs = [*cells.rowids[cuts].tolist(), run.max_rowid]
    return tuple(zip([run.min_rowid, *(h + 1 for h in highs[:-1])], highs, strict=True))


def _read_pages_of_next_level(file: PageFile, pages: Ints, max_rowids: Ints) -> tuple[Ints, Ints]:
    """Return the child pages of inner pages in rowid order, and the highest allowed rowid of each child page."""
    step = max(1, RUN_BYTES // file.page_size)
    parts: list[tuple[Ints, Ints]] = []
    total = 0
    for a in range(0, len(pages), step):
        parts.append(_read_child_pages(file, pages[a : a + step], max_rowids[a : a + step]))
        total += len(parts[-1][0])
        if total > file.count:
            raise Damage(f"a B-tree has at least {total} pages, but the file has only {file.count} pages")
    children, keys = (np.concatenate(p) for p in zip(*parts, strict=True))
    if (keys[1:] <= keys[:-1]).any():
        child = children[1:][keys[1:] <= keys[:-1]][0]
        raise Damage(f"page {child} has parent pages whose keys are not in order")
    return children, keys


def _read_child_pages(file: PageFile, pages: Ints, max_rowids: Ints) -> tuple[Ints, Ints]:
    """Return the child pages of one batch of inner pages, and the highest allowed rowid of each child page."""
    block = file.read(pages)
    _raise_for_invalid_page(block, block.kinds != INNER, "is not an inner page of a table")
    _raise_for_invalid_page(block, (block.counts == 0) & (pages != 1), "has no keys")
    at = _read_cell_offsets(file, block, HEAD_BYTES[INNER])
    left = block.read_page_numbers(at)
    keys, ends = block.decode_varints_at(at + 4)
    _raise_for_invalid_cell(
        block, ends > (at & -file.page_size) + file.usable, "has a key that extends beyond the end of the page"
    )
    last = block.read_page_numbers(block.starts + block.head + 8)
    after = np.cumsum(block.counts)
    return np.insert(left, after, last), np.insert(keys, after, max_rowids)


def _read_cell_offsets(file: PageFile, block: PageBlock, head_bytes: int) -> Ints:
    """Return the positions of the cells of all pages, in the order of the pages."""
    counts = block.counts
    _raise_for_invalid_page(block, counts > (file.page_size - 8) // 6, "declares more cells than fit on it")
    most = int(counts.max())
    first = block.head + head_bytes
    _raise_for_invalid_page(block, first + 2 * counts > file.usable, "declares more cells than fit on it")
    pointers = block.pages[:, first : first + 2 * most].view(">u2")
    at = pointers[np.arange(most) < counts[:, None]].astype(np.int64)
    lowest = np.repeat(first + 2 * counts, counts)
    at += (starts := np.repeat(block.starts, counts))
    _raise_for_invalid_cell(
        block,
        (at - starts < lowest) | (at - starts > file.usable - _SHORTEST_CELL),
        "has a pointer to a cell outside the page",
    )
    return at


def _compute_bytes_on_leaf(file: PageFile, record_sizes: Ints) -> Ints:
    """Return the number of bytes of each record that are on its leaf page rather than on overflow pages."""
    most = file.usable - 35
    if not len(record_sizes) or record_sizes.max() <= most:
        return record_sizes
    least = (file.usable - 12) * 32 // 255 - 23
    remainder = least + (record_sizes - least) % (file.usable - 4)
    return np.where(record_sizes <= most, record_sizes, np.where(remainder <= most, remainder, least))


def _check_row_extents(file: PageFile, block: PageBlock, cell_offsets: Ints, cells: Cells) -> None:
    """Check that no row extends beyond its page or overlaps another row."""
    ends = cells.ends
    if cells.on_leaf is not cells.payload:
        ends = ends + _PAGE_NUMBER_BYTES * (cells.payload > cells.on_leaf)
    _raise_for_invalid_cell(
        block,
        ends > (cell_offsets & -file.page_size) + file.usable,
        "has a row that extends beyond the end of the page",
    )
    overlapping = ends[1:] > cell_offsets[:-1]  # rows are written from the end of a page towards its beginning
    overlapping[np.cumsum(block.counts)[:-1] - 1] = False  # the following row is on the next page
    if overlapping.any():
        order = np.argsort(cell_offsets, kind="stable")
        _raise_for_invalid_cell(
            block, np.append(ends[order][:-1] > cell_offsets[order][1:], False), "has rows that overlap"
        )


def _check_rowid_order(block: PageBlock, rowids: Ints, run: LeafRun) -> None:
    """Check that rowids ascend, and that each page holds only rowids in the range that its parent pages declare."""
    if not len(rowids):
        return
    ends = np.cumsum(block.counts)
    lows = np.append(run.min_rowid, run.max_rowids[:-1] + 1)
    outside = (rowids[ends - 1] > run.max_rowids) | (rowids[ends - block.counts] < lows)
    _raise_for_invalid_page(block, outside, "has rowids outside the range that its parent pages declare")
    _raise_for_invalid_cell(block, np.append(rowids[1:] <= rowids[:-1], False), "has rowids that are not in order")


def _check_page_numbers(file: PageFile, pages: Ints, min_page: int) -> None:
    """Check that all pages exist and can hold data, and that no page number occurs twice."""
    low, high = int(pages.min()), int(pages.max())
    if not min_page <= low <= high <= file.count:
        number = low if low < min_page else high
        raise Damage(f"a B-tree refers to page {number}, but only the pages {min_page} to {file.count} are allowed")
    lock = LOCK_BYTE // file.page_size + 1
    if high >= lock and (pages == lock).any():
        raise Damage(f"a B-tree refers to page {lock}, the lock-byte page, which SQLite never uses")
    ordered = np.sort(pages)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise Damage(f"page {twice[0]} is used twice")


def _raise_for_invalid_page(block: PageBlock, is_invalid: Flags, problem: str) -> None:
    """Raise an error for the first invalid page, if there is one.

    Args:
        block: The pages.
        is_invalid: For each page, whether it is invalid.
        problem: The error message without the page number at its beginning, such as "has no rows".

    Raises:
        Damage: A page is invalid.
    """
    if is_invalid.any():
        raise Damage(f"page {block.numbers[int(np.argmax(is_invalid))]} {problem}")


def _raise_for_invalid_cell(block: PageBlock, is_invalid: Flags, problem: str) -> None:
    """Raise an error for the page of the first invalid cell, if there is one.

    Args:
        block: The pages.
        is_invalid: For each cell of all pages, whether it is invalid.
        problem: The error message without the page number at its beginning, such as "has rows that overlap".

    Raises:
        Damage: A cell is invalid.
    """
    if is_invalid.any():
        page = np.repeat(block.numbers, block.counts)[int(np.argmax(is_invalid))]
        raise Damage(f"page {page} {problem}")
