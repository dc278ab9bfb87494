"""Overwrite private values in CSV files. All bytes outside of the changed cells are unchanged."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.readers.redaction.escapes import edit_decoded
from tracekit.readers.redaction.kineto import find_kind_of_key
from tracekit.readers.redaction.matcher import find_environment_candidates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from tracekit.readers.redaction.matcher import PrivateValueMatcher
    from tracekit.readers.redaction.state import Redaction

    Int64Array = npt.NDArray[np.int64]

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_QUOTE, _COMMA, _LF, _CR = b'",\n\r'
_MAX_ROW_BYTES = 1 << 25
"""Maximum number of bytes that are read to find the end of a row. Longer rows are divided at a line break."""
_DOUBLED_QUOTE = re.compile(rb'""')
_CELL = re.compile(rb'"(?:[^"]|"")*+"(?=[,\r\n]|\Z)|[^,\r\n]*')
NAMES_OF_SECRETS = re.compile(
    rb"pass|pwd|secret|key|token|credential|uuid|guid|serial|mac|ether|lladdr|lid|ip|addr|host|peer|server|_id|-id",
    re.IGNORECASE,
)
"""What the name of a column or member contains if it may tell that the values of the column are private."""
_MAX_CACHED_CELLS = 1 << 15


class CellPlaces(NamedTuple):
    """The cells of a section of CSV, with their quotes.

    Attributes:
        starts: Start offset of each cell.
        ends: End offset of each cell.
        columns: Number of the column of each cell, from 0.
    """

    starts: Int64Array
    ends: Int64Array
    columns: Int64Array


def read_rows(read: Callable[[], bytes]) -> Iterator[bytes]:
    """Yield a CSV file in sections, each of which ends after a row.

    Args:
        read: Function that returns the next bytes of the file, or no bytes at its end.
    """
    pending = b""
    while block := read():
        pending += block
        end = _find_last_row_end(pending)
        if end:
            yield pending[:end]
            pending = pending[end:]
    if pending:
        yield pending


def locate_cells(data: bytes, column_count: int | None = None) -> CellPlaces:
    """Locate the cells of a section of CSV that begins at the beginning of a row.

    Args:
        data: The section.
        column_count: Number of columns. The last cell of a row contains the commas after it. None if it is not known.
    """
    array = np.frombuffer(data, np.uint8)
    is_separator = (array == _COMMA) | (array == _LF) | (array == _CR)
    quotes = np.flatnonzero(array == _QUOTE)
    if len(quotes) and not _are_regular(array, quotes, is_separator):
        ends = [match.end() for match in _CELL.finditer(data)]
        separators = np.unique(np.array(ends, np.int64))
        separators = separators[separators < len(data)]
    else:
        is_inside = np.zeros(len(array), np.bool_)
        is_inside[quotes] = True
        separators = np.flatnonzero(is_separator & ~np.logical_xor.accumulate(is_inside))
    starts, ends_of_cells = np.append(0, separators + 1), np.append(separators, len(data))
    begins_row = np.append(True, array[separators] != _COMMA)
    firsts = np.flatnonzero(begins_row)
    columns = np.arange(len(starts)) - np.repeat(firsts, np.diff(np.append(firsts, len(starts))))
    if column_count is None or not (columns >= column_count).any():
        return CellPlaces(starts, ends_of_cells, columns)
    row_ends = np.repeat(ends_of_cells[np.append(firsts[1:], len(starts)) - 1], np.diff(np.append(firsts, len(starts))))
    ends_of_cells = np.where(columns == column_count - 1, row_ends, ends_of_cells)
    is_declared = columns < column_count
    return CellPlaces(starts[is_declared], ends_of_cells[is_declared], columns[is_declared])


class CsvRedactor:
    """Redactor of the rows of tables.

    Attributes:
        redaction: The state of the redaction.
    """

    def __init__(self, redaction: Redaction) -> None:
        self.redaction = redaction
        self._matcher: PrivateValueMatcher | None = None
        self._cache: dict[tuple[bytes, bytes], tuple[bytes, frozenset[str]]] = {}
        self._searched: set[bytes] = set()

    def set_matcher(self, matcher: PrivateValueMatcher) -> None:
        """Set the matcher for the values to overwrite, after all names have been collected."""
        self._matcher = matcher

    def collect_names(self, data: bytes, columns: Sequence[bytes]) -> None:
        """Collect the private names in some rows.

        Args:
            data: The rows.
            columns: Names of the columns.
        """
        offsets = [start for start, _, _ in find_environment_candidates(data, include_homes=True)]
        private = _find_private_columns(columns)
        if not offsets and not private and b'""' not in data:
            return
        cells = locate_cells(data, len(columns))
        for column, kind in private.items():
            for nth in np.flatnonzero(cells.columns == column).tolist():
                value = _decode(data[cells.starts[nth] : cells.ends[nth]])
                if self.redaction.pseudonyms.compute_host_pseudonym(value) != value:
                    self.redaction.collect_names(kind, value)
        for nth in sorted({*_find_cells(cells, offsets, offsets), *_find_cells_with_doubled_quotes(data, cells)}):
            cell = data[cells.starts[nth] : cells.ends[nth]]
            if cell not in self._searched:
                if len(self._searched) >= _MAX_CACHED_CELLS:
                    self._searched.clear()
                self._searched.add(cell)
                self.redaction.collect_names_from_string(_decode(cell))

    def redact(self, data: bytes, columns: Sequence[bytes]) -> bytes:
        """Return rows in which private values are overwritten.

        Args:
            data: The rows.
            columns: Names of the columns.
        """
        matcher = self._get_matcher()
        candidates = matcher.find_candidates(data)
        private = _find_private_columns(columns)
        named = [nth for nth, name in enumerate(columns) if nth not in private and NAMES_OF_SECRETS.search(name)]
        if not candidates and not private and not named and b'""' not in data:
            return data
        cells = locate_cells(data, len(columns))
        chosen = set(_find_cells(cells, [start for start, _, _ in candidates], [end for _, end, _ in candidates]))
        chosen.update(_find_cells_with_doubled_quotes(data, cells))
        chosen.update(np.flatnonzero(np.isin(cells.columns, [*private, *named])).tolist())
        edits: list[tuple[int, int, bytes]] = []
        for nth in sorted(chosen):
            start, end, column = (int(numbers[nth]) for numbers in cells)
            kind, name = private.get(column), columns[column] if column < len(columns) else b""
            cell = data[start:end]
            edited = self._overwrite(cell, name) if kind is None else self._replace(cell, kind)
            if edited != cell:
                edits.append((start, end, edited))
        return _apply(data, edits)

    def _replace(self, cell: bytes, kind: str) -> bytes:
        """Return the replacement of a cell that is private because of the name of its column."""
        replacement = self.redaction.replace_value(kind, _decode(cell))
        return b'"%b"' % replacement if cell.startswith(b'"') else replacement

    def _overwrite(self, cell: bytes, column: bytes) -> bytes:
        """Return a cell in which private values are overwritten. Its column may tell that it is private."""
        cached = self._cache.get((cell, column))
        if cached is None:
            kinds: set[str] = set()

            def redact(text: bytes) -> bytes:
                redacted, kinds_of_values = self._get_matcher().redact_string(text, column + b'": ' if column else b"")
                kinds.update(kinds_of_values)
                return redacted

            is_quoted = len(cell) > 1 and cell.startswith(b'"') and cell.endswith(b'"')
            inner = cell[1:-1] if is_quoted else cell
            edited = edit_decoded(inner, redact, _DOUBLED_QUOTE) if is_quoted and b'""' in inner else redact(inner)
            cached = b'"%b"' % edited if is_quoted else edited, frozenset(kinds)
            if len(self._cache) >= _MAX_CACHED_CELLS:
                self._cache.clear()
            self._cache[cell, column] = cached
        edited, kinds_of_cell = cached
        if edited != cell:
            self.redaction.counts.update(kinds_of_cell)
        return edited

    def _get_matcher(self) -> PrivateValueMatcher:
        if self._matcher is None:
            self._matcher = self.redaction.build_matcher()
        return self._matcher


def split_header(row: bytes) -> list[bytes]:
    """Return the names of the columns in the first row of a table."""
    row = row.removeprefix(BYTE_ORDER_MARK)
    cells = locate_cells(row)
    return [_decode(row[start:end]) for start, end in zip(cells.starts, cells.ends, strict=True) if start < len(row)]


def _find_private_columns(columns: Sequence[bytes]) -> dict[int, str]:
    """Return the kind of the values in each column whose values are private because of its name."""
    kinds = ((nth, find_kind_of_key(name)) for nth, name in enumerate(columns))
    return {nth: kind for nth, kind in kinds if kind is not None}


def _find_cells(cells: CellPlaces, starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return the ascending numbers of the cells that overlap any of the given intervals."""
    firsts = np.searchsorted(cells.ends, np.array(starts, np.int64), side="right")
    stops = np.maximum(np.searchsorted(cells.starts, np.array(ends, np.int64), side="left"), firsts + 1)
    numbers: set[int] = set()
    for first, stop in zip(firsts.tolist(), np.minimum(stops, len(cells.starts)).tolist(), strict=True):
        numbers.update(range(first, stop))
    return sorted(numbers)


def _find_cells_with_doubled_quotes(data: bytes, cells: CellPlaces) -> list[int]:
    """Return the numbers of the cells with doubled quotes, which must be decoded before they can be searched."""
    is_quote = np.frombuffer(data, np.uint8) == _QUOTE
    doubled = np.flatnonzero(is_quote[:-1] & is_quote[1:])
    numbers = np.unique(np.searchsorted(cells.ends, doubled, side="right"))
    numbers = numbers[numbers < len(cells.ends)]
    listed: list[int] = numbers[cells.ends[numbers] - cells.starts[numbers] > len(b'""')].tolist()
    return listed


def _are_regular(array: npt.NDArray[np.uint8], quotes: Int64Array, is_separator: npt.NDArray[np.bool_]) -> bool:
    """Return whether quotes only enclose cells, or are doubled in quoted cells."""
    if len(quotes) % 2:
        return False
    opening, closing = quotes[0::2], quotes[1::2]
    before, after = opening - 1, closing + 1
    starts = (opening == 0) | is_separator[before] | (array[before] == _QUOTE)
    after = np.minimum(after, len(array) - 1)
    ends = (closing == len(array) - 1) | is_separator[after] | (array[after] == _QUOTE)
    return bool(starts.all() and ends.all())


def _find_last_row_end(data: bytes) -> int:
    """Return the offset after the last line break outside of quotes, or 0 if more bytes must be read to find it."""
    end = len(data)
    is_even = data.count(b'"') % 2 == 0
    while end := data.rfind(b"\n", 0, end) + 1:
        if is_even == (data.count(b'"', end) % 2 == 0):
            return end
        end -= 1
    return data.rfind(b"\n") + 1 if len(data) >= _MAX_ROW_BYTES else 0


def _decode(cell: bytes) -> bytes:
    """Return the value of a cell."""
    is_quoted = len(cell) > 1 and cell.startswith(b'"') and cell.endswith(b'"')
    return cell[1:-1].replace(b'""', b'"') if is_quoted else cell


def _apply(data: bytes, edits: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Return data in which the bytes of ascending intervals are replaced."""
    pieces: list[bytes] = []
    copied = 0
    for start, end, replacement in edits:
        pieces += (data[copied:start], replacement)
        copied = end
    return b"".join((*pieces, data[copied:]))
