"""Integer columns straight from the pages of a SQLite file: whole runs of leaf pages at once, with numpy.

A table of SQLite is a tree of pages. Its leaves hold cells, a cell holds a record: a header of one serial type a column
(kind and length of the value), then the values. Here one step of that format is done for all cells of a run of pages,
column by column. Whatever is not plain (text where an integer is wanted, a short record, a value on an overflow page,
offsets that lead nowhere) gives ``None``: the caller then lets SQLite read the same rows and judge.

Pages are read, not mapped: a file that someone truncates meanwhile gives a short read instead of a dead process.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from tracekit.errors import CorruptTraceError
from tracekit.readers.common.sqlite_files import EXPORT_AGAIN

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    Bytes: TypeAlias = npt.NDArray[np.uint8]
    Flags: TypeAlias = npt.NDArray[np.bool_]
    Ints: TypeAlias = npt.NDArray[np.int64]
    ColumnInfo: TypeAlias = tuple[int, str, str, int, str | None, int, int]
    Column: TypeAlias = tuple[Ints, Flags | None]
    """Values and which of them are not null; None if all are. A null has the value 0."""

RUN_BYTES = 1 << 21
ROWID = -1
"""Number of the column that is another name of the rowid."""

_LEAF, _INTERIOR = 13, 5
_LEAF_HEAD, _INTERIOR_HEAD = 8, 12
_FILE_HEAD = 100
_MAX_DEPTH = 20
_MAX_LENGTH = 1 << 32
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
_PAD = 64
_KEPT_BYTES = (1 << 25) - (1 << 16)
_MORE = 0x80
_FIRST_BLOB = 12
_HIGHEST_INTEGER = 9
_REAL, _ONE = 7, 9
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((t - 12) // 2 for t in range(12, _MORE))], np.int64)
_SHIFTS = np.where(_SIZES % 8 == 0, 0, 64 - 8 * _SIZES)
_KEPT = np.where(_SIZES > 0, -1, 0)
_READ = {1: ("i1", 0), 2: (">i2", 0), 3: (">i4", 8), 4: (">i4", 0), 5: (">i8", 16), 6: (">i8", 0)}
"""For each serial type, how to read it, and what to shift away."""


class Layout(NamedTuple):
    """Where a table is: its root page, and the number of each column that may be decoded."""

    root: int
    columns: dict[str, int]


class Run(NamedTuple):
    """Some leaf pages in rowid order, and the range that their rowids lie in, both ends included."""

    pages: Ints
    low: int
    high: int


class _NotPlainError(Exception):
    """SQLite itself has to read this."""


def layout(rootpage: int, sql: str, columns: Sequence[ColumnInfo]) -> Layout | None:
    """Find where a table keeps its columns.

    Args:
        rootpage: Root page, from ``sqlite_schema``.
        sql: Its statement, from ``sqlite_schema``.
        columns: Rows of ``pragma_table_xinfo``: cid, name, type, notnull, default, pk, hidden.

    Returns:
        None for a table that is virtual, without rowid, or has generated columns. Columns of real affinity, in which
        SQLite turns integers into reals, are left out.
    """
    if rootpage < 1 or re.search(r"\bwithout\b|^\s*create\s+virtual\b", sql, re.IGNORECASE):
        return None
    if any(hidden for *_, hidden in columns):
        return None
    keys = [(cid, kind) for cid, _, kind, _, _, pk, _ in columns if pk]
    alias = keys[0][0] if len(keys) == 1 and keys[0][1].upper() == "INTEGER" else None
    found = {name: cid for cid, name, kind, *_ in columns if not _is_real(kind)}
    if alias is not None:
        name = columns[alias][1]
        found[name] = ROWID
        if re.search(r"\bdesc\b", sql, re.IGNORECASE):  # by an old quirk such a key is no alias
            del found[name]
    return Layout(rootpage, found)


class Pages:
    """The pages of one SQLite file. It holds nothing open, so several threads may share it."""

    def __init__(self, path: str | os.PathLike[str], page_size: int, reserved: int = 0) -> None:
        self.path = Path(path).absolute()
        self.page_size = page_size
        self.usable = page_size - reserved
        plain = 512 <= page_size <= 1 << 16 and page_size & (page_size - 1) == 0  # noqa: PLR2004 - SQLite's own limits
        if not plain or not 0 <= reserved < 256 or self.usable < 480:  # noqa: PLR2004
            raise self._corrupt(f"pages of {page_size} bytes, {reserved} of them reserved")
        self.count = self.path.stat().st_size // page_size
        _keep_memory()

    def runs(self, root: int, size: int = RUN_BYTES) -> list[Run] | None:
        """Cut the leaves of a table into runs of about ``size`` bytes; together they cover all rowids, each once.

        Raises:
            CorruptTraceError: The tree of pages is broken.
        """
        found = self.leaves(root)
        if found is None:
            return None
        pages, keys = found
        step = max(1, size // self.page_size)
        cuts = range(0, len(pages), step)
        highs = [*keys[step - 1 : -1 : step].tolist(), _HIGHEST][: len(cuts)]
        lows = [_LOWEST, *(h + 1 for h in highs)]
        return [Run(pages[a : a + step], low, high) for a, low, high in zip(cuts, lows, highs, strict=False)]

    def leaves(self, root: int) -> tuple[Ints, Ints] | None:
        """Walk a table's tree, level by level, down to its leaves; these themselves are not read.

        Returns:
            Numbers of the leaf pages [n], in rowid order, and the highest rowid each may hold [n]; None if it is no
            table with rowids.

        Raises:
            CorruptTraceError: A page lies outside the file or has two parents, or the tree is too deep.
        """
        pages, keys = np.array([root], np.int64), np.array([_HIGHEST], np.int64)
        levels = [self._checked(pages)]
        try:
            for _ in range(_MAX_DEPTH):
                if self._read(pages[:1]).kinds[0] == _LEAF:
                    return pages, keys
                pages, keys = self._below(pages, keys)
                levels.append(pages)
                self._checked(np.concatenate(levels))
        except (_NotPlainError, OSError):
            return None
        raise self._corrupt(f"a tree of more than {_MAX_DEPTH} levels of pages, from page {root}")

    def decode(self, run: Run, columns: Sequence[int]) -> tuple[Ints, list[Column]] | None:
        """Decode the integers of some columns.

        Args:
            run: Leaf pages.
            columns: Numbers of columns, from 0; :data:`ROWID` for the rowid.

        Returns:
            Rowids [n] in rising order and, for each column, values [n] and their validity [n]; None if SQLite itself
            has to read this run.
        """
        try:
            block = self._read(run.pages)
            if (block.kinds != _LEAF).any():
                return None
            rowids, record = self._records(block)
            _check_rowids(rowids, run)
            found = record.columns({c for c in columns if c != ROWID}) if len(rowids) else {}
        except (_NotPlainError, OSError):
            return None
        empty = np.empty(0, np.int64)
        return rowids, [(rowids, None) if c == ROWID else found.get(c, (empty, None)) for c in columns]

    def _records(self, block: _Block) -> tuple[Ints, _Record]:
        """Read the head of each cell: rowids [n], and where its record lies."""
        cells = self._cells(block, _LEAF_HEAD)
        payload, at = block.varints(cells)
        rowids, start = block.varints(at)
        length, at = block.varints(start)
        if len(cells) and (_outside(payload, 1) or _outside(length, 1)):
            raise _NotPlainError
        end = start + self._local(payload)
        content = start + length
        if (end > (cells & -self.page_size) + self.usable).any() or (content > end).any():
            raise _NotPlainError
        return rowids, _Record(block, at, content, end)

    def _local(self, payload: Ints) -> Ints:
        """Count the bytes of each record [n] that lie on its leaf, the others being on overflow pages."""
        most = self.usable - 35
        if not len(payload) or payload.max() <= most:
            return payload
        least = (self.usable - 12) * 32 // 255 - 23
        kept = least + (payload - least) % (self.usable - 4)
        return np.where(payload <= most, payload, np.where(kept <= most, kept, least))

    def _below(self, pages: Ints, keys: Ints) -> tuple[Ints, Ints]:
        """Return the children of interior pages, in order, and the highest rowid each may hold."""
        step = max(1, RUN_BYTES // self.page_size)
        parts: list[tuple[Ints, Ints]] = []
        total = 0
        for a in range(0, len(pages), step):
            parts.append(self._children(pages[a : a + step], keys[a : a + step]))
            total += len(parts[-1][0])
            if total > self.count:
                raise self._corrupt(f"{total} pages in a tree, {self.count} in the file")
        below, highs = (np.concatenate(p) for p in zip(*parts, strict=True))
        if (highs[1:] <= highs[:-1]).any():
            raise _NotPlainError
        return below, highs

    def _children(self, pages: Ints, keys: Ints) -> tuple[Ints, Ints]:
        block = self._read(pages)
        if (block.kinds != _INTERIOR).any():
            raise _NotPlainError
        cells = self._cells(block, _INTERIOR_HEAD)
        left = np.ascontiguousarray(block.rows(cells, 8)[:, :4]).view(">u4")[:, 0].astype(np.int64)
        highs, _ = block.varints(cells + 4)
        last = np.ascontiguousarray(block.pages[:, block.head + 8 : block.head + 12]).view(">u4")[:, 0]
        ends = np.cumsum(block.counts)
        return np.insert(left, ends, last), np.insert(highs, ends, keys)

    def _cells(self, block: _Block, head: int) -> Ints:
        """Return where the cells of all pages begin in the block, in order."""
        counts = block.counts
        if (counts > (self.page_size - 8) // 6).any():
            raise _NotPlainError
        most = int(counts.max())
        first = block.head + head
        pointers = block.pages[:, first : first + 2 * most].view(">u2")
        at = pointers[np.arange(pointers.shape[1]) < counts[:, None]].astype(np.int64)
        lowest = np.repeat(first + 2 * counts, counts)
        if len(at) != len(lowest) or (at < lowest).any() or (at > self.usable - 4).any():
            raise _NotPlainError
        at += np.repeat(np.arange(len(counts)) * self.page_size, counts)
        return at

    def _read(self, pages: Ints) -> _Block:
        """Read pages, neighbours at once."""
        size = self.page_size
        data = np.empty(len(pages) * size + _PAD, np.uint8)
        data[-_PAD:] = 0
        view = data.data
        with self.path.open("rb", buffering=0) as f:
            for a, b in _stretches(pages):
                f.seek((int(pages[a]) - 1) * size)
                if f.readinto(view[a * size : b * size]) != (b - a) * size:
                    raise _NotPlainError
        return _Block(data, size, _FILE_HEAD if pages[0] == 1 else 0)

    def _checked(self, pages: Ints) -> Ints:
        if _outside(pages, 1, self.count + 1):
            raise self._corrupt(f"a page number outside 1 to {self.count}")
        ordered = np.sort(pages)
        if (ordered[1:] == ordered[:-1]).any():
            raise self._corrupt("a page that belongs to two places")
        return pages

    def _corrupt(self, message: str) -> CorruptTraceError:
        return CorruptTraceError(message, path=self.path, hint=EXPORT_AGAIN)


class _Block:
    """Pages one after the other in memory, followed by some zeros; positions count from their begin.

    Positions beyond the end read as some byte of it: what they lead to is checked afterwards.
    """

    def __init__(self, data: Bytes, page_size: int, head: int) -> None:
        self.data = data
        self.head = head
        self.pages = data[:-_PAD].reshape(-1, page_size)
        self.kinds = self.pages[:, head]
        self.counts: Ints = self.pages[:, head + 3].astype(np.int64) << 8 | self.pages[:, head + 4]

    def bytes(self, at: Ints) -> Bytes:
        """Return the byte at each position [n]."""
        return self.data.take(at, mode="clip")

    def varints(self, at: Ints) -> tuple[Ints, Ints]:
        """Read a number of 1 to 9 bytes at each position [n]: the numbers [n], and where they end [n]."""
        byte = self.bytes(at)
        more = byte >= _MORE
        value = (byte & 0x7F).astype(np.int64)
        end = at + 1
        rows: Ints | slice = slice(None)
        for left in range(8, 0, -1):
            if not more.all():
                kept = np.flatnonzero(more)
                rows = kept if isinstance(rows, slice) else rows[kept]
                if not len(kept):
                    break
            byte = self.bytes(end[rows])
            shift, mask = (7, 0x7F) if left > 1 else (8, 0xFF)
            value[rows] = value[rows] << shift | (byte & mask)
            end[rows] += 1
            more = byte >= _MORE
        return value, end

    def rows(self, at: Ints, width: int) -> Bytes:
        """Return the bytes [n, width] that follow each position [n]; at most 64, and none past the padding."""
        if _outside(at, 0, len(self.data) - _PAD + 1):
            raise _NotPlainError
        every = np.ndarray((len(self.data) - width + 1,), f"V{width}", self.data, strides=(1,))
        return every[at].view(np.uint8).reshape(-1, width)


class _Cursor:
    """A place in every record at once: an array [n] plus an offset that all rows share."""

    def __init__(self, block: _Block, at: Ints) -> None:
        self.block = block
        self.at = at
        self.offset = 0
        self._window: tuple[int, Bytes] | None = None

    def position(self) -> Ints:
        """Return the place in each row [n]."""
        return self.at + self.offset if self.offset else self.at

    def window(self, size: int) -> tuple[Bytes, int, bool]:
        """Return bytes of each row [n, width], where in it ``size`` bytes from here begin, and whether it is new."""
        if self._window is not None:
            index = self.offset - self._window[0]
            if index + size <= self._window[1].shape[1]:
                return self._window[1], index, False
        self._window = self.offset, self.block.rows(self.position(), _PAD)
        return self._window[1], 0, True

    def skip(self, size: int | Ints) -> None:
        """Step forward, by the same size or by one for each row [n]."""
        if isinstance(size, int):
            self.offset += size
        else:
            self.move(self.at + size, self.offset)

    def move(self, at: Ints, offset: int) -> None:
        """Step to another place."""
        self.at, self.offset, self._window = at, offset, None


class _Record:
    """The records of a block, read column by column."""

    def __init__(self, block: _Block, header: Ints, content: Ints, end: Ints) -> None:
        self._header = _Cursor(block, header)
        self._header_end = content
        self._content = _Cursor(block, content)
        self._end = end
        self._bits: tuple[Bytes, Bytes] = (np.empty(0, np.uint8), np.empty(0, np.uint8))

    def columns(self, wanted: set[int]) -> dict[int, Column]:
        """Decode the wanted columns, by number, and step over the others before the last of them."""
        found: dict[int, Column] = {}
        for column in range(max(wanted, default=-1) + 1):
            types = self._types()
            if column in wanted:
                found[column] = self._same(types) if isinstance(types, int) else self._mixed(types)
            self._content.skip(_size(types))
        if (self._header.position() > self._header_end).any() or (self._content.position() > self._end).any():
            raise _NotPlainError
        return found

    def _types(self) -> int | Ints | Bytes:
        """Read the serial type of the next column: one number if it is the same in all rows, else [n]."""
        rows, index, fresh = self._header.window(1)
        if fresh:
            self._bits = _folded(rows, np.bitwise_and), _folded(rows, np.bitwise_or)
        common, some = (int(b[index]) for b in self._bits)
        if some < _MORE:
            self._header.skip(1)
            return common if common == some else rows[:, index].copy()
        types, end = self._header.block.varints(self._header.position())
        if _outside(types, 0):
            raise _NotPlainError
        self._header.move(end, 0)
        return types

    def _same(self, kind: int) -> Column:
        """Decode a column in which all rows have the same serial type."""
        n = len(self._end)
        if kind > _HIGHEST_INTEGER or kind == _REAL:
            raise _NotPlainError
        if not _SIZES[kind]:
            return np.full(n, kind == _ONE, np.int64), None if kind else np.zeros(n, np.bool_)
        dtype, shift = _READ[kind]
        values = self._read(dtype)
        if shift:
            values >>= shift
        return values, None

    def _mixed(self, types: Ints | Bytes) -> Column:
        """Decode a column of several serial types [n]."""
        low, high = int(types.min()), int(types.max())
        if high > _HIGHEST_INTEGER or (low <= _REAL <= high and (types == _REAL).any()):
            raise _NotPlainError
        values = self._read(">i8")
        values >>= _SHIFTS.take(types)
        if low == 0 or high > _REAL:
            values &= _KEPT.take(types)
            values |= types == _ONE
        return values, types != 0 if low == 0 else None

    def _read(self, dtype: str) -> Ints:
        rows, index, _ = self._content.window(8)
        return np.ndarray((len(rows),), dtype, rows, index, (rows.shape[1],)).astype(np.int64)


def _size(types: int | Ints | Bytes) -> int | Ints:
    """Return the length of values of any serial types."""
    if isinstance(types, int):
        return int(_SIZES[types])
    if types.dtype == np.uint8:
        return _SIZES.take(types)
    return np.where(types < _MORE, _SIZES.take(types, mode="clip"), (types - _FIRST_BLOB) >> 1)


def _folded(rows: Bytes, operation: np.ufunc) -> Bytes:
    """Combine all rows [n, width] bit by bit, half with half so that each step is one long run: [width]."""
    words = rows.view(np.uint64)
    while len(words) > 1:
        half = (len(words) + 1) // 2  # of an odd number, the middle row goes into both halves
        words = operation(words[:half], words[-half:])
    found: Bytes = words.view(np.uint8)[0]
    return found


def _keep_memory() -> None:
    """Let the C library keep freed memory: by default it gives it back run by run, which doubles the time.

    Its thresholds for that follow the largest block that was freed, up to 32 MiB.
    """
    np.empty(_KEPT_BYTES, np.uint8)


def _stretches(pages: Ints) -> Iterator[tuple[int, int]]:
    """Cut page numbers where one is not the successor of the one before; yield first and end of each part."""
    cuts = (np.flatnonzero(np.diff(pages) != 1) + 1).tolist()
    yield from zip([0, *cuts], [*cuts, len(pages)], strict=True)


def _outside(values: Ints, low: int, end: int = _MAX_LENGTH) -> bool:
    return bool(len(values)) and not (low <= int(values.min()) and int(values.max()) < end)


def _check_rowids(rowids: Ints, run: Run) -> None:
    if len(rowids) and not (run.low <= rowids[0] and rowids[-1] <= run.high and (rowids[1:] > rowids[:-1]).all()):
        raise _NotPlainError


def _is_real(kind: str) -> bool:
    """Tell whether a declared type gives a column real affinity, by SQLite's rules."""
    if re.search("INT|CHAR|CLOB|TEXT|BLOB", kind, re.IGNORECASE):
        return False
    return re.search("REAL|FLOA|DOUB", kind, re.IGNORECASE) is not None
