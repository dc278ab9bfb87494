"""Decode columns of integers from records: those of many rows at once, column by column, with numpy.

A record is a header of one serial type per column (kind and length of the value), then the values. Whatever is not
plain (text where an integer is wanted, a short record, a value on an overflow page, lengths that lead nowhere) is not
decoded: SQLite then reads the same rows and judges.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from tracekit.readers.common.sqlite.pages import PAD, OutsideError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.readers.common.sqlite.pages import Block, Bytes, Flags, Ints
    from tracekit.readers.common.sqlite.trees import Cells

    Column: TypeAlias = tuple[Ints, Flags | None]
    """Values and which of them are not null; None if all are. A null has the value 0."""

ROWID = -1
"""Number of the column that is another name of the rowid."""

_MORE = 0x80
_FIRST_BLOB = 12
_HIGHEST_INTEGER = 9
_REAL, _ONE = 7, 9
_MAX_LENGTH = 1 << 32
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((t - 12) // 2 for t in range(12, _MORE))], np.int64)
_SHIFTS = np.where(_SIZES % 8 == 0, 0, 64 - 8 * _SIZES)
_KEPT = np.where(_SIZES > 0, -1, 0)
_READ = {1: ("i1", 0), 2: (">i2", 0), 3: (">i4", 8), 4: (">i4", 0), 5: (">i8", 16), 6: (">i8", 0)}
"""For each serial type, how to read it, and what to shift away."""


class ColumnInfo(NamedTuple):
    """A column as ``pragma_table_xinfo`` describes it."""

    cid: int
    name: str
    type: str
    notnull: int
    default: str | None
    pk: int
    hidden: int


class NotPlainError(Exception):
    """SQLite itself has to read this."""


def layout(sql: str, columns: Sequence[ColumnInfo]) -> dict[str, int]:
    """Find the columns of a table that may be decoded.

    Args:
        sql: Its statement, from ``sqlite_schema``.
        columns: Its columns.

    Returns:
        The number of each, :data:`ROWID` for another name of the rowid; nothing for a table without rowids or with
        generated columns. Columns of real affinity, in which SQLite turns integers into reals, are left out.
    """
    if re.search(r"\bwithout\b", sql, re.IGNORECASE) or any(c.hidden for c in columns):
        return {}
    keys = [c for c in columns if c.pk]
    decodable = {c.name: c.cid for c in columns if not _is_real(c.type)}
    if len(keys) == 1 and keys[0].type.upper() == "INTEGER":
        decodable[keys[0].name] = ROWID
        if re.search(r"\bdesc\b", sql, re.IGNORECASE):  # by an old quirk such a key is no other name of the rowid
            del decodable[keys[0].name]
    return decodable


def decode(block: Block, cells: Cells, columns: Sequence[int]) -> list[Column] | None:
    """Decode the integers of some columns.

    Args:
        block: Leaf pages.
        cells: The rows on them.
        columns: Numbers of columns, from 0; :data:`ROWID` for the rowid.

    Returns:
        For each column, values [n] and their validity [n]; None if SQLite itself has to read these rows.
    """
    wanted = {c for c in columns if c != ROWID}
    try:
        values = _Record.of(block, cells, max(wanted)).columns(wanted) if wanted and len(cells.rowids) else {}
    except (NotPlainError, OutsideError):
        return None
    empty = np.empty(0, np.int64)
    return [(cells.rowids, None) if c == ROWID else values.get(c, (empty, None)) for c in columns]


class _Cursor:
    """A place in every record at once: an array [n] plus an offset that all rows share."""

    def __init__(self, block: Block, at: Ints) -> None:
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
        self._window = self.offset, self.block.rows(self.position(), PAD)
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

    def __init__(self, block: Block, header: Ints, content: Ints, end: Ints) -> None:
        self._header = _Cursor(block, header)
        self._header_end = content
        self._content = _Cursor(block, content)
        self._end = end
        self._bits: tuple[Bytes, Bytes] = (np.empty(0, np.uint8), np.empty(0, np.uint8))

    @classmethod
    def of(cls, block: Block, cells: Cells, last: int) -> _Record:
        """Read the length of each record's header, which is to have a type for the last column that is wanted."""
        length, at = block.varints(cells.starts)
        if _outside(length, last + 2):
            raise NotPlainError
        content = cells.starts + length
        if (content > cells.ends).any():
            raise NotPlainError
        return cls(block, at, content, cells.ends)

    def columns(self, wanted: set[int]) -> dict[int, Column]:
        """Decode the wanted columns, by number, and step over the others before the last of them."""
        decoded: dict[int, Column] = {}
        for column in range(max(wanted) + 1):
            types = self._types()
            if column in wanted:
                decoded[column] = self._same(types) if isinstance(types, int) else self._mixed(types)
            self._content.skip(_size(types))
        if (self._header.position() > self._header_end).any() or (self._content.position() > self._end).any():
            raise NotPlainError
        return decoded

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
            raise NotPlainError
        self._header.move(end, 0)
        return types

    def _same(self, kind: int) -> Column:
        """Decode a column in which all rows have the same serial type."""
        n = len(self._end)
        if kind > _HIGHEST_INTEGER or kind == _REAL:
            raise NotPlainError
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
            raise NotPlainError
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
    folded: Bytes = words.view(np.uint8)[0]
    return folded


def _outside(values: Ints, low: int) -> bool:
    return bool(len(values)) and not (low <= int(values.min()) and int(values.max()) < _MAX_LENGTH)


def _is_real(kind: str) -> bool:
    """Whether a declared type gives a column real affinity, by SQLite's rules."""
    if re.search("INT|CHAR|CLOB|TEXT|BLOB", kind, re.IGNORECASE):
        return False
    return re.search("REAL|FLOA|DOUB", kind, re.IGNORECASE) is not None
