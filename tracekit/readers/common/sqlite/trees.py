"""Check the tree of pages that a table is kept in, and where its rows lie.

A table with rowids is a tree: inner pages hold page numbers and, between two of them, the highest rowid of the first;
leaf pages hold the rows in rowid order. SQLite believes all of that. A tree in which a page has two parents makes it
visit pages without end, one whose keys are out of order makes it find other rows than it counts, and cells that overlap
make a small file large. So nothing of a table is used before its inner pages are checked, and nothing of a leaf page
before that page is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.sqlite.pages import LOCK_BYTE, RUN_BYTES

if TYPE_CHECKING:
    from tracekit.readers.common.sqlite.pages import Block, Flags, Ints, PageFile

LEAF, INNER = 13, 5
HEAD_BYTES = {LEAF: 8, INNER: 12}
INDEX_PAGES = (2, 10)
BATCH_BYTES = 1 << 26
"""Bytes of records that SQLite is asked for at a time."""

MAX_DEPTH = 20
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
_SHORTEST_CELL = 4
_PAGE_NUMBER_BYTES = 4
_LONGEST = (1 << 31) - 1


class Tree(NamedTuple):
    """The pages of a table.

    Attributes:
        leaves: Numbers of the leaf pages [n], in rowid order.
        highs: Highest rowid that each leaf page may hold [n], in rising order.
        inner: Numbers of the other pages.
    """

    leaves: Ints
    highs: Ints
    inner: Ints


class Run(NamedTuple):
    """Some leaf pages in rowid order.

    Attributes:
        pages: Their numbers [n].
        low: Lowest rowid that the first may hold.
        highs: Highest rowid that each may hold [n].
        is_root: Whether this is the only page of the table, which may hold no rows.
    """

    pages: Ints
    low: int
    highs: Ints
    is_root: bool

    @property
    def high(self) -> int:
        """Highest rowid that the last page may hold."""
        return int(self.highs[-1])


class Cells(NamedTuple):
    """The rows of some leaf pages.

    Attributes:
        rowids: Rowids [n], in rising order.
        payload: Bytes of each record [n].
        on_leaf: Bytes of it that are on the leaf page [n]; the others are on overflow pages.
        starts: Position of each record [n].
        ends: Where its part on the leaf page ends [n].
    """

    rowids: Ints
    payload: Ints
    on_leaf: Ints
    starts: Ints
    ends: Ints


class Facts(NamedTuple):
    """What a checked run holds.

    Attributes:
        rows: Number of rows.
        payload: Bytes of their records.
        overflowing: Bytes of them that are not on leaf pages.
        overflow_pages: First overflow page of each record that has one.
        ranges: Ranges of rowids, both ends included, that cover the run, with not many more than ``BATCH_BYTES`` each.
    """

    rows: int
    payload: int
    overflowing: int
    overflow_pages: Ints
    ranges: tuple[tuple[int, int], ...]


def walk(file: PageFile, root: int) -> Tree:
    """Walk a table's tree, level by level, down to its leaves; these themselves are not read.

    Raises:
        Damage: A page lies outside the file or has two parents, keys are not in order, or the tree is too deep.
    """
    pages, highs = np.array([root], np.int64), np.array([HIGHEST], np.int64)
    levels = [_checked_numbers(file, pages, lowest=1)]
    for _ in range(MAX_DEPTH):
        first = file.read(pages[:1])
        if first.kinds[0] == LEAF:
            return Tree(pages, highs, np.concatenate(levels[:-1]) if len(levels) > 1 else pages[:0])
        if first.kinds[0] in INDEX_PAGES:
            raise Damage(f"page {pages[0]} belongs to an index or a table without rowids")
        pages, highs = _below(file, pages, highs)
        levels.append(pages)
        _checked_numbers(file, np.concatenate(levels), lowest=1 if root == 1 else 2)
    raise Damage(f"a tree of more than {MAX_DEPTH} levels of pages, from page {root}")


def runs(tree: Tree, page_size: int, size: int = RUN_BYTES) -> list[Run]:
    """Cut the leaves of a table into runs of about ``size`` bytes; together they cover all rowids, each once."""
    step = max(1, size // page_size)
    cuts = range(0, len(tree.leaves), step)
    lows = [LOWEST, *(int(h) + 1 for h in tree.highs[step - 1 : -1 : step])]
    return [
        Run(tree.leaves[a : a + step], low, tree.highs[a : a + step], len(tree.leaves) == 1)
        for a, low in zip(cuts, lows, strict=True)
    ]


def cells(file: PageFile, block: Block, run: Run) -> Cells:
    """Find the rows on the pages of a run.

    Raises:
        Damage: A page is no leaf, rows overlap or lie outside their page, or their rowids are not in order.
    """
    _require(block, block.kinds != LEAF, "is not a leaf page of a table")
    if not run.is_root:
        _require(block, block.counts == 0, "holds no rows")
    at = _positions(file, block, HEAD_BYTES[LEAF])
    payload, middle = block.varints(at)
    rowids, starts = block.varints(middle)
    limit = min(file.count * file.page_size, _LONGEST)
    if len(payload) and not 1 <= int(payload.min()) <= int(payload.max()) <= limit:
        _require_cells(block, (payload < 1) | (payload > limit), "holds a record of an impossible size")
    on_leaf = _on_leaf(file, payload)
    found = Cells(rowids, payload, on_leaf, starts, starts + on_leaf)
    _check_places(file, block, at, found)
    _check_order(block, rowids, run)
    return found


def facts(file: PageFile, block: Block, found: Cells, run: Run) -> Facts:
    """Sum up what a run holds.

    Raises:
        Damage: Its records claim to be larger than the file.
    """
    total = int(found.payload.sum())
    if total > file.count * file.page_size:
        raise Damage(f"page {run.pages[0]} and those after it claim to hold {total} bytes, more than the file has")
    overflowing = np.flatnonzero(found.payload > found.on_leaf)
    return Facts(
        rows=len(found.rowids),
        payload=total,
        overflowing=total - int(found.on_leaf.sum()) if len(overflowing) else 0,
        overflow_pages=block.numbers_at(found.ends[overflowing]),
        ranges=_ranges(found, run) if total > BATCH_BYTES else ((run.low, run.high),),
    )


def _ranges(found: Cells, run: Run) -> tuple[tuple[int, int], ...]:
    """Cut a run where its records reach another multiple of ``BATCH_BYTES``."""
    before = np.cumsum(found.payload) - found.payload
    cuts = np.flatnonzero(np.diff(before // BATCH_BYTES))
    highs = [*found.rowids[cuts].tolist(), run.high]
    return tuple(zip([run.low, *(h + 1 for h in highs[:-1])], highs, strict=True))


def _below(file: PageFile, pages: Ints, highs: Ints) -> tuple[Ints, Ints]:
    """Return the children of inner pages, in order, and the highest rowid each may hold."""
    step = max(1, RUN_BYTES // file.page_size)
    parts: list[tuple[Ints, Ints]] = []
    total = 0
    for a in range(0, len(pages), step):
        parts.append(_children(file, pages[a : a + step], highs[a : a + step]))
        total += len(parts[-1][0])
        if total > file.count:
            raise Damage(f"{total} pages in a tree, {file.count} in the file")
    children, keys = (np.concatenate(p) for p in zip(*parts, strict=True))
    if (keys[1:] <= keys[:-1]).any():
        child = children[1:][keys[1:] <= keys[:-1]][0]
        raise Damage(f"page {child}: the keys of the inner pages that lead to it are not in order")
    return children, keys


def _children(file: PageFile, pages: Ints, highs: Ints) -> tuple[Ints, Ints]:
    block = file.read(pages)
    _require(block, block.kinds != INNER, "is not an inner page of a table")
    _require(block, (block.counts == 0) & (pages != 1), "holds no keys")
    at = _positions(file, block, HEAD_BYTES[INNER])
    left = block.numbers_at(at)
    keys, ends = block.varints(at + 4)
    _require_cells(block, ends > (at & -file.page_size) + file.usable, "holds a key that does not fit")
    last = block.numbers_at(block.starts + block.head + 8)
    after = np.cumsum(block.counts)
    return np.insert(left, after, last), np.insert(keys, after, highs)


def _positions(file: PageFile, block: Block, head_bytes: int) -> Ints:
    """Return where the cells of all pages begin [n], in order."""
    counts = block.counts
    _require(block, counts > (file.page_size - 8) // 6, "holds more rows than fit")
    most = int(counts.max())
    first = block.head + head_bytes
    _require(block, first + 2 * counts > file.usable, "holds more rows than fit")
    pointers = block.pages[:, first : first + 2 * most].view(">u2")
    at = pointers[np.arange(most) < counts[:, None]].astype(np.int64)
    lowest = np.repeat(first + 2 * counts, counts)
    at += (starts := np.repeat(block.starts, counts))
    _require_cells(block, (at - starts < lowest) | (at - starts > file.usable - _SHORTEST_CELL), "leads outside itself")
    return at


def _on_leaf(file: PageFile, payload: Ints) -> Ints:
    """Count the bytes of each record [n] that lie on its leaf, the others being on overflow pages."""
    most = file.usable - 35
    if not len(payload) or payload.max() <= most:
        return payload
    least = (file.usable - 12) * 32 // 255 - 23
    kept = least + (payload - least) % (file.usable - 4)
    return np.where(payload <= most, payload, np.where(kept <= most, kept, least))


def _check_places(file: PageFile, block: Block, at: Ints, found: Cells) -> None:
    """Check that no row reaches beyond its page or into another row."""
    ends = found.ends
    if found.on_leaf is not found.payload:
        ends = ends + _PAGE_NUMBER_BYTES * (found.payload > found.on_leaf)
    _require_cells(block, ends > (at & -file.page_size) + file.usable, "holds a row that does not fit")
    overlapping = ends[1:] > at[:-1]  # rows are written from the end of a page towards its beginning
    overlapping[np.cumsum(block.counts)[:-1] - 1] = False  # the next page
    if overlapping.any():
        order = np.argsort(at, kind="stable")
        _require_cells(block, np.append(ends[order][:-1] > at[order][1:], False), "holds rows that overlap")


def _check_order(block: Block, rowids: Ints, run: Run) -> None:
    """Check that rowids rise, and that those of each page are within the keys that lead to it."""
    if not len(rowids):
        return
    ends = np.cumsum(block.counts)
    lows = np.append(run.low, run.highs[:-1] + 1)
    outside = (rowids[ends - 1] > run.highs) | (rowids[ends - block.counts] < lows)
    _require(block, outside, "holds rowids other than the pages that lead to it say")
    _require_cells(block, np.append(rowids[1:] <= rowids[:-1], False), "holds rowids that are not in order")


def _checked_numbers(file: PageFile, pages: Ints, lowest: int) -> Ints:
    low, high = int(pages.min()), int(pages.max())
    if not lowest <= low <= high <= file.count:
        number = low if low < lowest else high
        raise Damage(f"a tree of pages leads to page {number}, and its pages are those from {lowest} to {file.count}")
    lock = LOCK_BYTE // file.page_size + 1
    if high >= lock and (pages == lock).any():
        raise Damage(f"a tree of pages leads to page {lock}, which SQLite never uses")
    ordered = np.sort(pages)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise Damage(f"page {twice[0]} belongs to two places")
    return pages


def _require(block: Block, bad: Flags, what: str) -> None:
    """Raise an error that names the first page [n] that is bad."""
    if bad.any():
        raise Damage(f"page {block.numbers[int(np.argmax(bad))]} {what}")


def _require_cells(block: Block, bad: Flags, what: str) -> None:
    """Raise an error that names the page of the first cell [n] that is bad."""
    if bad.any():
        page = np.repeat(block.numbers, block.counts)[int(np.argmax(bad))]
        raise Damage(f"page {page} {what}")
