"""Decode integer columns from SQLite records, for many rows at once with numpy.

A record is a header followed by the values. The header holds one serial type per column, which is a code for the type
and the length of the value. If any record has invalid lengths or too few columns, nothing is decoded, and SQLite has to
read the rows. The same applies if any requested value is neither an integer nor null, or is on an overflow page.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from tracekit.readers.common.sqlite.pages import PAD, OutsideError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.readers.common.sqlite.pages import Bytes, Flags, Ints, PageBlock
    from tracekit.readers.common.sqlite.trees import Cells

    DecodedColumn: TypeAlias = tuple[Ints, Flags | None]
    """The values of a column (0 for null), and a mask of the non-null values, or None if there are no nulls."""

ROWID = -1
"""Column number of the rowid, and of a column that is an alias of the rowid."""

_MORE = 0x80
_FIRST_BLOB = 12
_HIGHEST_INTEGER = 9
_REAL, _ONE = 7, 9
_MAX_LENGTH = 1 << 32
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((t - 12) // 2 for t in range(12, _MORE))], np.int64)
_SHIFTS = np.where(_SIZES % 8 == 0, 0, 64 - 8 * _SIZES)
_MASKS = np.where(_SIZES > 0, -1, 0)
_READ = {1: ("i1", 0), 2: (">i2", 0), 3: (">i4", 8), 4: (">i4", 0), 5: (">i8", 16), 6: (">i8", 0)}
"""For each serial type, the numpy type of the bytes to read, and the number of bits to shift the result right."""


class ColumnInfo(NamedTuple):
    """A row of ``pragma_table_xinfo``, which describes a column."""

    cid: int
    name: str
    type: str
    notnull: int
    default: str | None
    pk: int
    hidden: int


class UnsupportedRecordError(Exception):
    """Raised if a record has values or a structure that only SQLite can decode."""


def find_decodable_columns(sql: str, columns: Sequence[ColumnInfo]) -> dict[str, int]:
    """Return the numbers of the columns whose integers can be decoded from the pages of a table.

    Args:
        sql: The statement that creates the table, from ``sqlite_schema``.
        columns: All columns of the table.

    Returns:
        The column numbers by name. The number of an alias of the rowid is :data:`ROWID`. Columns with real affinity
        are not included, because SQLite converts their integers to doubles. The mapping is empty if the table has no
        rowids or has generated columns.
    """
    if re.search(r"\bwithout\b", sql, re.IGNORECASE) or any(c.hidden for c in columns):
        return {}
    keys = [c for c in columns if c.pk]
    decodable = {c.name: c.cid for c in columns if not _has_real_affinity(c.type)}
    if len(keys) == 1 and keys[0].type.upper() == "INTEGER":
        decodable[keys[0].name] = ROWID
        if re.search(r"\bdesc\b", sql, re.IGNORECASE):  # due to an old bug of SQLite, such a key is no alias
            del decodable[keys[0].name]
    return decodable


def decode_integers(block: PageBlock, cells: Cells, column_numbers: Sequence[int]) -> list[DecodedColumn] | None:
    """Decode the integers of the given columns from leaf pages.

    Args:
        block: The leaf pages.
        cells: The rows on the pages.
        column_numbers: Column numbers, counted from 0. :data:`ROWID` selects the rowid.

    Returns:
        The decoded columns in the order of ``column_numbers``, or None if SQLite has to read these rows.
    """
    numbers = {c for c in column_numbers if c != ROWID}
    try:
        has_values = numbers and len(cells.rowids)
        values = (
            _RecordDecoder.create_for_columns_up_to(block, cells, max(numbers)).decode_columns(numbers)
            if has_values
            else {}
        )
    except (UnsupportedRecordError, OutsideError):
        return None
    empty = np.empty(0, np.int64)
    return [(cells.rowids, None) if c == ROWID else values.get(c, (empty, None)) for c in column_numbers]


class _ByteWindow(NamedTuple):
    """A two-dimensional array that contains the next bytes of many records.

    Attributes:
        rows: The array, with one row of bytes per record.
        start: Index of the array column at which the next bytes begin.
        is_new: Whether the array was read by the call that returned this object, rather than by an earlier call.
    """

    rows: Bytes
    start: int
    is_new: bool


class _Cursor:
    """A position in each of many records, stored as an array plus one offset that is added to all its elements."""

    def __init__(self, block: PageBlock, at: Ints) -> None:
        self.block = block
        self.at = at
        self.offset = 0
        self._window: tuple[int, Bytes] | None = None

    def get_current_positions(self) -> Ints:
        """Return an array with the current position in each record."""
        return self.at + self.offset if self.offset else self.at

    def read_next_bytes(self, size: int) -> _ByteWindow:
        """Return an array that contains the next ``size`` bytes of each record.

        If the array that an earlier call read contains these bytes, it is returned again.
        """
        if self._window is not None:
            index = self.offset - self._window[0]
            if index + size <= self._window[1].shape[1]:
                return _ByteWindow(self._window[1], index, is_new=False)
        self._window = self.offset, self.block.gather_bytes(self.get_current_positions(), PAD)
        return _ByteWindow(self._window[1], 0, is_new=True)

    def skip_bytes(self, size: int | Ints) -> None:
        """Advance the position in each record by ``size`` bytes: one size for all records, or an array of sizes."""
        if isinstance(size, int):
            self.offset += size
        else:
            self.set_positions(self.at + size, self.offset)

    def set_positions(self, positions: Ints, offset: int) -> None:
        """Set the position in each record ``i`` to ``positions[i] + offset``."""
        self.at, self.offset, self._window = positions, offset, None


class _RecordDecoder:
    """A decoder of integer columns that reads many records at once, column by column."""

    def __init__(self, block: PageBlock, header: Ints, content: Ints, end: Ints) -> None:
        self._header = _Cursor(block, header)
        self._header_end = content
        self._content = _Cursor(block, content)
        self._end = end
        self._bits: tuple[Bytes, Bytes] = (np.empty(0, np.uint8), np.empty(0, np.uint8))

    @classmethod
    def create_for_columns_up_to(cls, block: PageBlock, cells: Cells, last_column: int) -> _RecordDecoder:
        """Create a decoder for the columns from number 0 to number ``last_column``.

        Raises:
            UnsupportedRecordError: The header of a record cannot hold the serial types of these columns.
        """
        length, at = block.decode_varints_at(cells.starts)
        if _is_any_length_invalid(length, last_column + 2):
            raise UnsupportedRecordError
        content = cells.starts + length
        if (content > cells.ends).any():
            raise UnsupportedRecordError
        return cls(block, at, content, cells.ends)

    def decode_columns(self, column_numbers: set[int]) -> dict[int, DecodedColumn]:
        """Decode the columns with the given numbers. Return the decoded columns by number.

        Raises:
            UnsupportedRecordError: A column has values other than integers and nulls, or a length is invalid.
        """
        decoded: dict[int, DecodedColumn] = {}
        for column in range(max(column_numbers) + 1):
            types = self._read_next_types()
            if column in column_numbers:
                decoded[column] = (
                    self._decode_uniform_column(types) if isinstance(types, int) else self._decode_mixed_column(types)
                )
            self._content.skip_bytes(_compute_value_sizes(types))
        if (self._header.get_current_positions() > self._header_end).any() or (
            self._content.get_current_positions() > self._end
        ).any():
            raise UnsupportedRecordError
        return decoded

    def _read_next_types(self) -> int | Ints | Bytes:
        """Return the serial types of the next column in all records.

        If all records have the same serial type of one byte, the result is one number. Otherwise, it is an array of
        numbers.
        """
        rows, index, is_new = self._header.read_next_bytes(1)
        if is_new:
            self._bits = _combine_byte_rows(rows, np.bitwise_and), _combine_byte_rows(rows, np.bitwise_or)
        common, some = (int(b[index]) for b in self._bits)
        if some < _MORE:
            self._header.skip_bytes(1)
            return common if common == some else rows[:, index].copy()
        types, end = self._header.block.decode_varints_at(self._header.get_current_positions())
        if _is_any_length_invalid(types, 0):
            raise UnsupportedRecordError
        self._header.set_positions(end, 0)
        return types

    def _decode_uniform_column(self, serial_type: int) -> DecodedColumn:
        """Decode a column whose rows all have the same serial type."""
        n = len(self._end)
        if serial_type > _HIGHEST_INTEGER or serial_type == _REAL:
            raise UnsupportedRecordError
        if not _SIZES[serial_type]:
            return np.full(n, serial_type == _ONE, np.int64), None if serial_type else np.zeros(n, np.bool_)
        dtype, shift = _READ[serial_type]
        values = self._read_values(dtype)
        if shift:
            values >>= shift
        return values, None

    def _decode_mixed_column(self, serial_types: Ints | Bytes) -> DecodedColumn:
        """Decode a column whose rows have different serial types."""
        low, high = int(serial_types.min()), int(serial_types.max())
        if high > _HIGHEST_INTEGER or (low <= _REAL <= high and (serial_types == _REAL).any()):
            raise UnsupportedRecordError
        values = self._read_values(">i8")
        values >>= _SHIFTS.take(serial_types)
        if low == 0 or high > _REAL:
            values &= _MASKS.take(serial_types)
            values |= serial_types == _ONE
        return values, serial_types != 0 if low == 0 else None

    def _read_values(self, dtype: str) -> Ints:
        """Read the next value of each record as an array of the given numpy type."""
        rows, index, _ = self._content.read_next_bytes(8)
        return np.ndarray((len(rows),), dtype, rows, index, (rows.shape[1],)).astype(np.int64)


def _compute_value_sizes(serial_types: int | Ints | Bytes) -> int | Ints:
    """Return the size in bytes of a value with a given serial type, or an array of sizes for an array of types."""
    if isinstance(serial_types, int):
        return int(_SIZES[serial_types])
    if serial_types.dtype == np.uint8:
        return _SIZES.take(serial_types)
    return np.where(serial_types < _MORE, _SIZES.take(serial_types, mode="clip"), (serial_types - _FIRST_BLOB) >> 1)


def _combine_byte_rows(rows: Bytes, bitwise_operation: np.ufunc) -> Bytes:
    """Combine all rows of a two-dimensional array of bytes into one row with a bitwise operation."""
    words = rows.view(np.uint64)
    while len(words) > 1:
        half = (len(words) + 1) // 2  # the middle row of an odd number is in both halves
        words = bitwise_operation(words[:half], words[-half:])
    folded: Bytes = words.view(np.uint8)[0]
    return folded


def _is_any_length_invalid(lengths: Ints, minimum: int) -> bool:
    """Return whether any length is less than a minimum, or so large that it cannot be valid."""
    return bool(len(lengths)) and not (minimum <= int(lengths.min()) and int(lengths.max()) < _MAX_LENGTH)


def _has_real_affinity(declared_type: str) -> bool:
    """Return whether a column with a given declared type has real affinity in SQLite."""
    if re.search("INT|CHAR|CLOB|TEXT|BLOB", declared_type, re.IGNORECASE):
        return False
    return re.search("REAL|FLOA|DOUB", declared_type, re.IGNORECASE) is not None
