"""The lines around the tables of a CSV: what ncu and the program print besides, and where each table begins and ends.

A file is taken in blocks that end with a line. In a block headers are searched for as bytes; between them the lines
that are no rows are found by their first byte and their number of quotes, all at once. Only those are looked at.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.errors import CorruptTraceError, TracekitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

Octets: TypeAlias = npt.NDArray[np.uint8]
Places: TypeAlias = npt.NDArray[np.integer]

BLOCK_BYTES = 1 << 24
WINDOW = 1 << 18
LONGEST_LINE = 1 << 26
LONGEST_RECORD_LINES = 1000
MOST_COLUMNS = 1 << 16
SHORTEST_HEADER = len('"Address","')
NEWLINE = "\x1e"
"""Stands for a newline inside a cell, so that a row is a line."""

_PRINTED_AFTER = re.compile(rb'"ID","Process ID","|"Process ID","Process Name","|"Domain","Range:')
_HEADER = re.compile(
    _PRINTED_AFTER.pattern + rb'|"(?:Launch|Session|Device) Attribute","|"Process Id","Process Name"'
    rb'|"Device(?: Id)?","|"Kernel Name","|"(?:#",")?Address","'
)
_INITIALS = np.frombuffer(b"IPDLSKA#", np.uint8)
"""Second bytes of headers; rows begin with a number, or a domain."""

_REMARK = re.compile(rb"^==(PROF|WARNING|ERROR)==([^\n]*)", re.MULTILINE)
_PROSE = re.compile(rb"^ {4}Section: \S", re.MULTILINE)
PERMISSION = "ERR_NVGPUCTRPERM"
NOTHING = "No kernels were profiled"
EXIT = "The application returned an error code"
KINDS = ("PROF", "WARNING", "ERROR")
_NOWHERE = np.zeros(0, np.int32)
_SESSION = {"Launch Attribute", "Session Attribute", "Device Attribute", "Process Id"}


@dataclass(slots=True)
class Page:
    """One table of a file, from its header on.

    Attributes:
        dialect: ``details``, ``raw``, ``per-kernel``, ``per-nvtx``, ``per-gpu``, ``session`` or ``source``.
        header: Names of the columns.
        number: How many tables of the same dialect and header came before.
        units: Printed units of the columns of a raw page, once they are read.
    """

    dialect: str
    header: list[str]
    number: int = 0
    units: list[str] | None = None

    @property
    def launches(self) -> bool:
        """Whether its rows are of single results, numbered by ncu."""
        return self.dialect in ("details", "raw")


@dataclass(slots=True)
class Remarks:
    """What was found besides tables."""

    lines: Counter[str] = field(default_factory=Counter)
    prose: bool = False
    cut: int = 0

    def note(self, text: bytes) -> None:
        """Take note of the remarks of ncu among some lines, and whether they are a page printed for people."""
        self.prose = self.prose or _PROSE.search(text) is not None
        for remark in _REMARK.finditer(text):
            self.lines[remark[1].decode()] += 1
            for known in (PERMISSION, NOTHING, EXIT):
                self.lines[known] += known.encode() in remark[2]


def classify(header: list[str]) -> str | None:
    """Return the dialect of a table by its header; None if it is no header of ncu."""
    names = set(header)
    if {"Metric Name", "Minimum", "Maximum", "Average"} <= names:
        return "per-nvtx" if header[0] == "Domain" else "per-kernel" if "Kernel Name" in names else "per-gpu"
    if {"ID", "Kernel Name", "Metric Name", "Metric Value"} <= names:
        return "details"
    if header[0] == "ID" and "Kernel Name" in names and "Metric Name" not in names:
        return "raw"
    if header[0] in _SESSION and len(header) > 1:
        return "session"
    return "source" if header[0] in ("Kernel Name", "#", "Address") else None


def cells(line: str) -> list[str]:
    """Part one line into its cells."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def blocks(path: Path) -> Iterator[bytes]:
    """Read a file as UTF-8 with plain newlines, in blocks that end with a line.

    Raises:
        CorruptTraceError: A line is longer than any of ncu.
        TracekitError: The file cannot be read.
    """
    rest = b""
    try:
        with path.open("rb") as file:
            decode = _decoder(file.read(4))
            file.seek(0)
            while data := file.read(BLOCK_BYTES):
                rest += decode(data)
                whole, newline, rest = rest.rpartition(b"\n")
                if len(rest) > LONGEST_LINE:
                    raise CorruptTraceError(
                        f"has a line of more than {LONGEST_LINE >> 20} MiB", path=path, hint="print it again with ncu"
                    )
                if newline:
                    yield _utf8(whole + newline)
    except OSError as e:
        raise TracekitError(f"cannot be read: {e.strerror or e}", path=path, hint="copy it again") from e
    if rest:
        yield _utf8(rest + b"\n")


def _decoder(head: bytes) -> Callable[[bytes], bytes]:
    """Return what makes the bytes of a file that begins so UTF-8, without a byte order mark."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
        return lambda data: decoder.decode(data).encode("utf-8", "replace")
    marks = iter([len(codecs.BOM_UTF8)] if head.startswith(codecs.BOM_UTF8) else [])
    return lambda data: data[next(marks, 0) :]


def _utf8(block: bytes) -> bytes:
    """Give text as UTF-8 with plain newlines; what is not UTF-8 comes from a Windows console."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        return block.decode("cp1252", "replace").encode("utf-8")
    return block


def strays(text: bytes) -> list[int]:
    """Return the rows with quotes inside cells that are not doubled: ncu prints texts of NVTX ranges as they are.

    A quote is one of a cell's own, or doubled, where a comma, a quote or the end of the row is beside it.
    """
    data = np.frombuffer(text, np.uint8)
    stray = np.concatenate([_NOWHERE, *(first + _strays(data[first : first + WINDOW + 2]) for first in _windows(data))])
    if not len(stray):
        return []
    found: list[int] = np.unique(np.searchsorted(np.flatnonzero(data == ord("\n")), stray)).tolist()
    return found


def _strays(data: Octets) -> Places:
    quotes = data == ord('"')
    edges = quotes | (data == ord("\n")) | (data == ord(","))
    return np.flatnonzero(quotes[1:-1] & ~(edges[:-2] | edges[2:])) + 1


def _windows(data: Octets) -> range:
    """Where parts of some bytes begin that fit into the processor's cache."""
    return range(0, len(data), WINDOW)


def requoted(text: bytes, numbers: Iterable[int] | None = None) -> bytes:
    """Double the quotes inside the cells of some rows, all if None: cells are what stands between ``","``."""
    rows = text.split(b"\n")
    for row in range(len(rows)) if numbers is None else numbers:
        whole = rows[row].rstrip(b",")
        parts = whole.removeprefix(b'"').removesuffix(b'"').split(b'","')
        doubled = (part.replace(b'""', b'"').replace(b'"', b'""') for part in parts)
        rows[row] = b'"' + b'","'.join(doubled) + b'"' + rows[row][len(whole) :] if whole else b""
    return b"\n".join(rows)


def tables(path: Path, remarks: Remarks) -> Iterator[tuple[Page, bytes]]:
    """Give the tables of a file piece by piece, each piece some whole rows, a line each.

    Args:
        path: The file.
        remarks: Takes what is found besides.

    Raises:
        CorruptTraceError: A table has more columns than ncu can print, or a line is longer.
        TracekitError: The file cannot be read.
    """
    seen: Counter[str] = Counter()
    page: Page | None = None
    rest = b""
    for block in blocks(path):
        text, start = rest + block, 0
        for at, header, dialect in _headers(text):
            rows, _ = _rows(text[start:at], page, remarks, final=True)
            if page is not None and rows:
                yield page, rows
            if len(header) > MOST_COLUMNS:
                what = f"{dialect} page: a header of more than {MOST_COLUMNS} columns"
                raise CorruptTraceError(what, path=path, hint="print it again with ncu, and fewer metrics")
            same = page is not None and page.header == header  # one list for all of them
            columns = page.header if page is not None and same else header
            page, start = Page(dialect, columns, seen[dialect]), text.find(b"\n", at) + 1
            seen[dialect] += dialect != "session"
            yield page, b""
        rows, rest = _rows(text[start:], page, remarks, final=False)
        if page is not None and rows:
            yield page, rows
    rows, _ = _rows(rest, page, remarks, final=True)
    if page is not None and rows:
        yield page, rows


def _headers(text: bytes) -> Iterator[tuple[int, list[str], str]]:
    """Find the headers among some lines, also after a program's print: where, the columns, the dialect.

    Of a header with more columns than ``MOST_COLUMNS`` one more than these is given.
    """
    data, starts = lines_of(text)
    starts = starts[np.diff(starts, append=len(data)) > SHORTEST_HEADER]
    quoted = data[starts] == ord('"')
    maybe = ~quoted | np.isin(data[np.minimum(starts + 1, len(data) - 1)], _INITIALS)
    for at in starts[maybe].tolist():
        end = text.find(b"\n", at)
        match = _HEADER.match(text, at, end) or (text[at] != ord('"') and _PRINTED_AFTER.search(text, at, end))
        header = _first_cells(text, match.start(), end) if match else []
        dialect = classify(header) if header else None
        if match and dialect is not None:
            yield match.start(), header, dialect


def _first_cells(text: bytes, start: int, end: int) -> list[str]:
    """Part a line into its cells, as many as a header may have and one more."""
    many = text.count(b",", start, end) > MOST_COLUMNS
    row = text[start:end].split(b",", MOST_COLUMNS + 1)[:-1] if many else [text[start:end]]
    return cells(b",".join(row).decode("utf-8", "replace"))


def lines_of(text: bytes) -> tuple[Octets, Places]:
    """Return the bytes of a text and where its lines start."""
    data = np.frombuffer(text, np.uint8)
    ends = [first + np.flatnonzero(data[first : first + WINDOW] == ord("\n")) for first in _windows(data)]
    starts = np.empty(1 + sum(map(len, ends)), np.int32)
    starts[0] = 0
    np.concatenate([_NOWHERE, *ends], out=starts[1:], casting="same_kind")
    starts[1:] += 1
    return data, starts[: np.searchsorted(starts, len(data))]


def _rows(text: bytes, page: Page | None, remarks: Remarks, *, final: bool) -> tuple[bytes, bytes]:
    """Leave of some lines the rows of a table; return them and, unless it is final, a last row that goes on."""
    if page is None:
        remarks.note(text)
        return b"", b""
    if not text:
        return b"", b""
    data, starts = lines_of(text)
    odd = np.bitwise_xor.reduceat((data == ord('"')).view(np.uint8), starts).astype(bool)
    strange = np.flatnonzero(odd | (data[starts] != ord('"')))
    if not len(strange) and (final or _is_row(text[starts[-1] :], page)):
        return text, b""
    return _Sieve(text, starts, odd, page, remarks).sift(strange, final=final)


def _least(page: Page) -> int:
    """Cells that a row has at least, without the first."""
    return max(len(page.header) // 2, 1) if page.dialect != "session" else 1


def _is_row(text: bytes, page: Page) -> bool:
    """Whether some lines have as many cells as a row, and end as one."""
    return text.rstrip(b"\n").endswith((b'"', b",")) and text.count(b'","') >= _least(page)


class _Sieve:
    """Takes rows out of lines where some are none, or part of a row."""

    def __init__(self, text: bytes, starts: Places, odd: np.ndarray, page: Page, remarks: Remarks) -> None:
        self._text = text
        self._ends = np.append(starts[1:], np.int32(len(text))).data
        self._starts = starts.data
        self._lines = starts
        self._odd = odd.data
        self._count = len(starts)
        self._kept: list[bytes] = []
        self._remarks = remarks
        self._fresh = re.compile(rb'"[^"\n]+","' if page.dialect in ("per-nvtx", "session") else rb'"\d*","')
        self._least = _least(page)
        self._page = page

    def sift(self, strange: np.ndarray, *, final: bool) -> tuple[bytes, bytes]:
        """Return the rows, and what is to be read with the next block unless this is the final one."""
        line = 0
        for k in strange.data:
            if k < line:
                continue
            line, waits = self._past(line, k, final=final)
            if waits:
                return b"".join(self._kept), self._text[self._starts[line] :]
        last = self._count - 1
        if not final and line <= last and self._begins(last) and not self._is_whole(last, last):
            self._keep(line, last)
            return b"".join(self._kept), self._text[self._starts[last] :]
        self._keep(line, self._count)
        return b"".join(self._kept), b""

    def _past(self, line: int, k: int, *, final: bool) -> tuple[int, bool]:
        """Take lines up to a strange line ``k`` and what belongs to that one.

        Returns:
            The line after them, and whether that line begins a row that goes on in the next block.
        """
        after = self._rest_of(k) if k > line else None
        if after == self._count and not self._may_wait(k - 1, final=final):
            after = None
        if after is not None:
            self._keep(line, k - 1)
            return self._row(k - 1, after)
        self._keep(line, k)
        if not self._odd[k] or self._text[self._starts[k]] != ord('"'):
            return self._beside(k), False
        after = self._closing(k)
        if after == self._count and not self._may_wait(k, final=final):
            after = None
        if after is not None:
            return self._row(k, after)
        whole = self._is_whole(k, k)  # with a quote inside that is not doubled
        self._remarks.cut += not whole
        return self._row(k, k) if whole else (k + 1, False)

    def _keep(self, first: int, end: int) -> None:
        """Keep the lines from ``first`` up to, but not including, ``end``."""
        if first < end:
            self._kept.append(self._text[self._starts[first] : self._ends[end - 1]])

    def _row(self, first: int, last: int) -> tuple[int, bool]:
        """Keep some lines as one row, unless the last one is yet to come."""
        if last == self._count:
            return first, True
        self._kept.append(self._joined(first, last))
        return last + 1, False

    def _may_wait(self, line: int, *, final: bool) -> bool:
        """Whether a row that begins with a line may go on in the next block."""
        return not final and len(self._text) - self._starts[line] <= LONGEST_LINE

    def _beside(self, line: int) -> int:
        """Take what is printed beside rows: all lines up to the next quote together; return the line after it."""
        start = self._starts[line]
        quote = self._text.find(b'"', start)
        after = int(np.searchsorted(self._lines, quote, "right")) - 1 if quote >= 0 else self._count
        if after > line:
            self._remarks.note(self._text[start : self._ends[after - 1]])
            return after
        self._kept.append(self._row_after(line))
        return line + 1

    def _begins(self, line: int) -> bool:
        """Whether a row begins with a line."""
        return self._fresh.match(self._text, self._starts[line]) is not None

    def _joined(self, first: int, last: int) -> bytes:
        """Return some lines as one."""
        record = self._text[self._starts[first] : self._ends[last] - 1]
        return record.replace(b"\n", NEWLINE.encode()) + b"\n"

    def _is_whole(self, first: int, last: int) -> bool:
        """Whether some lines have as many cells as a row, and end as one."""
        return _is_row(self._text[self._starts[first] : self._ends[last]], self._page)

    def _rest_of(self, line: int) -> int | None:
        """Return the line that ends the row that the line before begins, if this one goes on with it.

        A newline and a quote in a text may leave the row before with an even number of quotes. None if it does not;
        one past the last line if that may come yet.
        """
        if self._text[self._starts[line]] == ord('"') or self._is_whole(line - 1, line - 1):
            return None
        if not self._begins(line - 1):
            return None
        cells = self._text.count(b'","', self._starts[line - 1], self._ends[line - 1])
        for k in range(line, min(line + LONGEST_RECORD_LINES, self._count)):
            if k > line and self._begins(k):
                return None
            cells += self._text.count(b'","', self._starts[k], self._ends[k])
            if cells >= self._least and self._text[self._ends[k] - 2] in b'",':
                return k
        return self._count if line + LONGEST_RECORD_LINES > self._count else None

    def _closing(self, line: int) -> int | None:
        """Return the line that closes the quote that a line leaves open.

        None if a row begins before, or none is near; one past the last line if that may come yet.
        """
        for k in range(line + 1, min(line + LONGEST_RECORD_LINES, self._count)):
            if self._fresh.match(self._text, self._starts[k]):
                return None
            if self._odd[k]:
                return k
        return self._count if line + LONGEST_RECORD_LINES > self._count else None

    def _row_after(self, line: int) -> bytes:
        """Return the row that follows a program's print on the same line; nothing if none does."""
        text = self._text[self._starts[line] : self._ends[line]]
        fresh = self._fresh.search(text)
        row = text[fresh.start() :] if fresh is not None and not text.startswith(b"==") else b""
        if row.count(b'","') >= self._least and row.count(b'"') % 2 == 0:
            return row
        self._remarks.note(text)
        return b""
