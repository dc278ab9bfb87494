"""Split an Nsight Compute CSV file into tables, and separate their rows from other output of ncu and the program.

The file is read in blocks of complete lines, and the bytes of each block are searched for headers. Between headers,
the first byte and the number of quotes of each line show which lines may not be rows. This check is vectorized, and
only the lines that fail it are examined individually.

Rewrite Nsight Compute CSV that another program saved again, such as pandas or Excel, in the form that ncu prints.

ncu quotes every cell and separates cells by commas. Other programs quote only the cells that need quotes, use single
quotes, separate cells by semicolons, tabs or bars, pad cells with blanks, add columns for the row index, and turn whole
numbers in columns with empty cells into decimals.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.errors import CorruptTraceError, TracekitError, get_first_line_of_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_BEFORE, _AFTER = rb" {0,256}[\"']?", rb"[\"']? {0,256}"
_INDEX_CELL = _BEFORE + rb"(?:index|Unnamed: \d{1,3}(?:\.\d{1,3})?)?" + _AFTER + rb"(?P=separator)"
_LEADING_CELLS = (
    (rb"ID", rb"Process ID"),
    (rb"Process ID", rb"Process Name"),
    (rb"Domain", rb"Range:[^,;|\t\r\n]*"),
)
RESAVED_HEADER = re.compile(
    rb"^(?:\xef\xbb\xbf|\xff\xfe|\xfe\xff)?"
    rb"(?=[^,;|\t\r\n]{0,768}(?P<separator>[,;|\t]))(?P<index>(?:"
    + _INDEX_CELL
    + rb"){0,8})(?:"
    + b"|".join(
        _BEFORE + first + _AFTER + rb"(?P=separator)" + _BEFORE + second + _AFTER for first, second in _LEADING_CELLS
    )
    + rb")(?P=separator)",
    re.MULTILINE,
)
"""The beginning of the header of a table: columns with row numbers, and the first two columns of ncu.

A header that is exactly as ncu prints it also matches.
"""


_WHOLE_NUMBER_COLUMNS = ("ID", "Process ID", "Context", "Stream", "Device", "Device Id", "Invocations")
_DECIMAL_IDS = re.compile(rb'^"\d+[.,]0+","|^"\d*","\d+[.,]0+","', re.MULTILINE)
_WHOLE_NUMBER = r"^(\d+)[.,]0+$"
_CAPABILITY = "CC"
MAX_COLUMNS = 1 << 16
FREE_CELLS, CELLS_PER_BYTE = 1 << 16, 2
"""Number of cells that any block may have, and number of additional cells per byte of the block."""
ByteArray: TypeAlias = npt.NDArray[np.uint8]
Offsets: TypeAlias = npt.NDArray[np.integer]
BLOCK_BYTES = 1 << 24
WINDOW = 1 << 18
MAX_LINE_BYTES = 1 << 26
MAX_RECORD_LINES = 1000
_TAIL_BYTES, _MIN_SEPARATORS = 1 << 16, 4
MIN_HEADER_BYTES = len('"Address","')
NEWLINE = "\x1e"
"""The character that replaces newlines inside cells, so that each row is one line."""
_PRINTED_AFTER = re.compile(rb'"ID","Process ID","|"Process ID","Process Name","|"Domain","Range:')
_HEADER = re.compile(
    _PRINTED_AFTER.pattern + rb'|"(?:Launch|Session|Device) Attribute","|"Process Id","Process Name"'
    rb'|"Device(?: Id)?","|"Kernel Name","|"(?:#",")?Address","'
)
_HEADER_INITIALS = np.frombuffer(b"IPDLSKA#", np.uint8)
"""The bytes that can follow the opening quote of a header. Rows begin with a number or a domain instead."""
_MESSAGE = re.compile(rb"^==(PROF|WARNING|ERROR)==([^\n]*)", re.MULTILINE)
_PRINTED_PAGE = re.compile(rb"^ {4}Section: \S", re.MULTILINE)
PERMISSION = "ERR_NVGPUCTRPERM"
NO_KERNELS = "No kernels were profiled"
PROGRAM_FAILED = "The application returned an error code"
MESSAGE_KINDS = ("PROF", "WARNING", "ERROR")
_NO_OFFSETS = np.zeros(0, np.int32)
_SESSION = {"Launch Attribute", "Session Attribute", "Device Attribute", "Process Id"}


class ResavedForm(NamedTuple):
    """The form in which another program saved the CSV of ncu again.

    Attributes:
        offset: Offset of the header in the first block.
        separator: The character that separates cells.
        quote: The character that encloses cells.
        is_padded: Whether blanks before and after cells are not part of the cells.
        has_backslashes: Whether quotes in cells follow a backslash, and are not doubled.
        index_columns: Number of columns with row numbers before the columns of ncu.
        header: Names of the columns of ncu.
    """

    offset: int
    separator: str
    quote: str
    is_padded: bool
    has_backslashes: bool
    index_columns: int
    header: list[str]


def find_resaved_form(text: bytes) -> ResavedForm | None:
    """Return the form of CSV of ncu that another program saved again, or None if the text contains no such header.

    A header that is exactly as ncu prints it is only considered if the ids in the rows are decimals, or if quotes in
    cells follow a backslash.
    """
    match = RESAVED_HEADER.search(text)
    if match is None:
        return None
    end = text.find(b"\n", match.start())
    line = text[match.start() : end if end >= 0 else len(text)]
    separator = match["separator"]
    is_as_printed = not match["index"] and line.startswith(b'"') and b'","' in line
    quote = _find_quote(text, line, separator)
    has_backslashes = _has_backslashes(text, separator, quote.encode())
    if is_as_printed and not has_backslashes and not _DECIMAL_IDS.search(text, match.start()):
        return None
    if line.count(separator) > MAX_COLUMNS:
        return None
    quoted = line.rstrip(b"\r").decode("utf-8", "replace").split(separator.decode())
    cells = [cell.strip().strip(quote) for cell in quoted]
    is_padded = any(cell.strip(" ") != cell for cell in quoted)
    index_columns = match["index"].count(separator)
    header = cells[index_columns:]
    while header and not header[-1]:
        header.pop()
    return ResavedForm(match.start(), separator.decode(), quote, is_padded, has_backslashes, index_columns, header)


def _has_backslashes(text: bytes, separator: bytes, quote: bytes) -> bool:
    """Return whether quotes in cells follow a backslash, as in files of Spark, and are not doubled."""
    if b"\\" + quote not in text:
        return False
    escaped = re.search(rb"\\" + quote + rb"(?![\r\n" + re.escape(separator) + rb"])", text)
    doubled = re.search(rb"[^\r\n\\" + re.escape(separator) + quote + rb"]" + quote + quote, text)
    return escaped is not None and doubled is None


def _find_quote(text: bytes, header: bytes, separator: bytes) -> str:
    """Return the character that encloses the cells of a header or, if it is not quoted, those of the rows."""
    first = header.removeprefix(b"\xef\xbb\xbf").lstrip(b" ")[:1]
    if first in (b'"', b"'"):
        return first.decode()
    double, single = (len(re.findall(re.escape(separator) + b" *" + quote, text)) for quote in (b'"', b"'"))
    return "'" if single > double else '"'


def restore_printed_form(
    blocks: Iterable[bytes], path: Path, count_incomplete: Callable[[int], None]
) -> Iterator[bytes]:
    """Yield the blocks of a file in the form that ncu prints. Blocks that are already in this form are not changed.

    Args:
        blocks: Blocks of complete lines, in UTF-8.
        path: Path of the file.
        count_incomplete: Function that receives numbers of rows with too many cells.

    Raises:
        CorruptTraceError: The rows are not valid CSV, or they have far fewer cells than the header.
    """
    form, rest = None, b""
    for number, block in enumerate(blocks):
        form = find_resaved_form(block) if number == 0 else form
        if form is None:
            yield block
            continue
        start = form.offset if number == 0 else 0
        if start:
            yield block[:start]
        text = rest + _double_quotes(block[start:], form)
        end = _find_end_of_last_record(text, form.quote)
        rest = text[end:]
        yield _rewrite_records(text[:end], form, path, count_incomplete)
    if form is not None and rest:
        yield _rewrite_records(rest, form, path, count_incomplete)


def _double_quotes(text: bytes, form: ResavedForm) -> bytes:
    """Double the quotes that follow a backslash, and remove backslashes before other characters."""
    if not form.has_backslashes:
        return text
    quote = form.quote.encode()
    return re.sub(rb"\\(.)", lambda match: 2 * quote if match[1] == quote else match[1], text)


def _find_end_of_last_record(text: bytes, quote: str) -> int:
    """Return the offset after the last newline that is not inside quotes, or 0 if there is none."""
    data = np.frombuffer(text, np.uint8)
    newlines = np.flatnonzero(data == ord("\n"))
    quotes = np.flatnonzero(data == ord(quote))
    outside = newlines[np.searchsorted(quotes, newlines) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def _remove_padding(text: bytes, form: ResavedForm) -> bytes:
    """Remove the blanks before and after cells. Blanks between quotes are kept."""
    data = np.frombuffer(b"\n" + text + b"\n", np.uint8)
    quotes = np.flatnonzero(data == ord(form.quote))
    edges = np.flatnonzero(np.diff(data == ord(" ")))
    first, last = edges[::2] + 1, edges[1::2]
    borders = np.frombuffer(f"{form.separator}{form.quote}\r\n".encode(), np.uint8)
    is_outside = np.searchsorted(quotes, first) % 2 == 0
    is_padding = is_outside & (np.isin(data[first - 1], borders) | np.isin(data[last + 1], borders))
    change = np.zeros(len(data) + 1, np.int8)
    change[first[is_padding]] += 1
    change[last[is_padding] + 1] -= 1
    content = data[np.cumsum(change, dtype=np.int8)[:-1] == 0]
    return bytes(content[1:-1])


def _rewrite_records(text: bytes, form: ResavedForm, path: Path, count_incomplete: Callable[[int], None]) -> bytes:
    """Return records in the form that ncu prints, without index columns. Records with too many cells are left out."""
    import io

    if form.is_padded:
        text = _remove_padding(text, form)
    width = form.index_columns + len(form.header) + 1
    if text.count(b"\n") * width > FREE_CELLS + CELLS_PER_BYTE * len(text) + width:
        what = f"the header has {len(form.header)} columns, but the rows have far fewer"
        raise CorruptTraceError(what, path=path, hint="run ncu --csv again")
    names = [str(column) for column in range(width)]
    try:
        header = form.separator.join(names).encode() + b"\n"
        table = pl.read_csv(
            header + text,
            separator=form.separator,
            quote_char=form.quote,
            infer_schema=False,
            truncate_ragged_lines=True,
        )
    except pl.exceptions.PolarsError as e:
        what = f"the rows are not valid CSV: {get_first_line_of_message(e)}"
        raise CorruptTraceError(what, path=path, hint="run ncu --csv again") from e
    table = table.with_columns(pl.all().fill_null("").str.strip_chars_end("\r"))
    fits = table[names[-1]] == ""
    count_incomplete(int((~fits).sum()))
    columns = dict(zip(names[form.index_columns : -1], form.header, strict=True))
    whole = [name for name, header in columns.items() if header in _WHOLE_NUMBER_COLUMNS]
    capability = [name for name, header in columns.items() if header == _CAPABILITY]
    restored = (
        table.filter(fits)
        .select(list(columns))
        .filter(~pl.all_horizontal(pl.col(list(columns)) == ""))
        .with_columns(
            pl.col(whole).str.replace(_WHOLE_NUMBER, "${1}"),
            pl.col(capability).str.replace(r"^(\d+)$", "${1}.0"),
        )
    )
    sink = io.BytesIO()
    restored.write_csv(sink, include_header=False, quote_style="always")
    return sink.getvalue()


@dataclass(slots=True)
class NcuPage:
    """One table of an Nsight Compute CSV file.

    Attributes:
        layout: Layout of the table, which is ``details``, ``raw``, ``per-kernel``, ``per-nvtx``, ``per-gpu``,
            ``session`` or ``source``.
        header: Names of the columns.
        number: Index of the table, counted from 0, among the tables with the same layout in the file. Always 0 for the
            layout ``session``.
        units: Printed units of the columns of a raw page, or None before they have been read.
    """

    layout: str
    header: list[str]
    number: int = 0
    units: list[str] | None = None

    @property
    def is_per_launch(self) -> bool:
        """Whether each row describes a single launch, whose number is in the column ``ID``."""
        return self.layout in ("details", "raw")


@dataclass(slots=True)
class NcuMessages:
    """Statistics of the output outside of tables: messages of ncu, plain-text pages and incomplete rows.

    Attributes:
        counts: Number of messages of ncu by kind, and number of messages that mention each known cause of failure.
        has_printed_page: Whether the file has a page that ncu printed as plain text instead of CSV.
        incomplete: Number of rows that were skipped because they are incomplete.
    """

    counts: Counter[str] = field(default_factory=Counter)
    has_printed_page: bool = False
    incomplete: int = 0

    def count_incomplete(self, rows: int) -> None:
        """Add to the number of incomplete rows."""
        self.incomplete += rows

    def add_lines(self, text: bytes) -> None:
        """Count the messages of ncu in the given lines, and detect pages that are not printed as CSV."""
        self.has_printed_page = self.has_printed_page or _PRINTED_PAGE.search(text) is not None
        for message in _MESSAGE.finditer(text):
            self.counts[message[1].decode()] += 1
            for cause in (PERMISSION, NO_KERNELS, PROGRAM_FAILED):
                self.counts[cause] += cause.encode() in message[2]


def find_layout(header: list[str]) -> str | None:
    """Return the layout of the table with a given header, or None if the header is not one that ncu prints."""
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


def parse_csv_line(line: str) -> list[str]:
    """Split one line of CSV into cells. A line that is not valid CSV has no cells."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def iterate_blocks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in blocks of complete lines, converted to UTF-8 with LF line endings.

    Raises:
        CorruptTraceError: A line is longer than ``MAX_LINE_BYTES``.
        TracekitError: The file cannot be read.
    """
    rest = b""
    try:
        with path.open("rb") as file:
            decode = _create_utf8_converter(file.read(4))
            file.seek(0)
            while data := file.read(BLOCK_BYTES):
                rest += decode(data)
                complete, newline, rest = rest.rpartition(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    raise CorruptTraceError(
                        f"the file has a line longer than {MAX_LINE_BYTES >> 20} MiB, the most that tracekit supports, "
                        "so the file is probably damaged",
                        path=path,
                        hint="run ncu --csv again",
                    )
                if newline:
                    yield _normalize_block(complete + newline)
    except OSError as e:
        raise TracekitError(f"the file cannot be read: {e.strerror or e}", path=path, hint="copy the file again") from e
    if rest:
        yield _normalize_block(rest + b"\n")


def describe_damaged_end(path: Path) -> str | None:
    """Return why the end of a file shows that it is truncated, or None if it is not.

    ncu ends each row with a quote and a line break. A row without both, whose cells another program saved without
    quotes, may end anywhere in its last cell.

    Raises:
        TracekitError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            is_utf16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            line = file.read(_TAIL_BYTES).replace(b"\r", b"\n").rpartition(b"\n")[2]
    except OSError as e:
        raise TracekitError(f"the file cannot be read: {e.strerror or e}", path=path, hint="copy the file again") from e
    if is_utf16 or not line:
        return None
    if line.endswith(b"\0"):
        return "the file ends with zeros, as after an interrupted copy, so rows may be missing"
    is_row = max(line.count(separator) for separator in (b",", b";", b"\t", b"|")) >= _MIN_SEPARATORS
    if is_row and not line.rstrip().endswith((b'"', b"'")):
        return "the last row does not end with a line break, so its last value may be truncated"
    return None


def _create_utf8_converter(head: bytes) -> Callable[[bytes], bytes]:
    """Return a function that converts consecutive blocks of a file from UTF-16 to UTF-8, and removes a byte order mark.

    If the file does not begin with a byte order mark of UTF-16, blocks are assumed not to be UTF-16.
    """
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
        return lambda data: decoder.decode(data).encode("utf-8", "replace")
    bom_sizes = iter([len(codecs.BOM_UTF8)] if head.startswith(codecs.BOM_UTF8) else [])
    return lambda data: data[next(bom_sizes, 0) :]


def _normalize_block(block: bytes) -> bytes:
    """Return a block as UTF-8 with LF line endings. A block that is not valid UTF-8 is decoded as Windows-1252."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
        if b"\n" not in block[:-1]:
            block = block.replace(b"\r", b"\n")
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        return block.decode("cp1252", "replace").encode("utf-8")
    return block


def find_row_numbers_with_stray_quotes(text: bytes) -> list[int]:
    """Return the numbers of the rows in which a cell contains a quote that is not doubled.

    Such quotes occur because ncu prints NVTX names without escaping them. A quote next to a comma, another quote or the
    end of the row is assumed to delimit a cell or to be doubled.
    """
    data = np.frombuffer(text, np.uint8)
    offsets = np.concatenate(
        [
            _NO_OFFSETS,
            *(first + _find_stray_quotes(data[first : first + WINDOW + 2]) for first in _list_window_offsets(data)),
        ]
    )
    if not len(offsets):
        return []
    rows: list[int] = np.unique(np.searchsorted(np.flatnonzero(data == ord("\n")), offsets)).tolist()
    return rows


def _find_stray_quotes(data: ByteArray) -> Offsets:
    quotes = data == ord('"')
    edges = quotes | (data == ord("\n")) | (data == ord(","))
    return np.flatnonzero(quotes[1:-1] & ~(edges[:-2] | edges[2:])) + 1


def _list_window_offsets(data: ByteArray) -> range:
    """Return the start offset of each window of an array. A window fits into the cache of the processor."""
    return range(0, len(data), WINDOW)


def double_inner_quotes(text: bytes, row_numbers: Iterable[int] | None = None) -> bytes:
    """Escape the quotes inside the cells of CSV rows by doubling them. Cells are separated by ``","``.

    Args:
        text: Rows, each in one line.
        row_numbers: Numbers of the rows to change, or None for all rows.
    """
    rows = text.split(b"\n")
    for row in range(len(rows)) if row_numbers is None else row_numbers:
        complete = rows[row].rstrip(b",")
        cells = complete.removeprefix(b'"').removesuffix(b'"').split(b'","')
        doubled = (part.replace(b'""', b'"').replace(b'"', b'""') for part in cells)
        rows[row] = b'"' + b'","'.join(doubled) + b'"' + rows[row][len(complete) :] if complete else b""
    return b"\n".join(rows)


class _Header(NamedTuple):
    """A header in a block.

    Attributes:
        offset: Offset of the header in the block.
        columns: Names of the columns.
        layout: Layout of the table.
    """

    offset: int
    columns: list[str]
    layout: str


def iterate_table_rows(path: Path, messages: NcuMessages) -> Iterator[tuple[NcuPage, bytes]]:
    """Yield the rows of all tables of an Nsight Compute CSV file in batches, each with the table that contains it.

    Rows are complete, and each row is one line. The first batch of each table is empty. Therefore, tables without rows
    are also yielded.

    Args:
        path: Path of the file.
        messages: Statistics that are updated with the output of ncu that is not part of a table.

    Raises:
        CorruptTraceError: A table has more than ``MAX_COLUMNS`` columns, or a line is longer than ``MAX_LINE_BYTES``.
        TracekitError: The file cannot be read.
    """
    seen: Counter[str] = Counter()
    page: NcuPage | None = None
    rest = b""
    for block in restore_printed_form(iterate_blocks(path), path, messages.count_incomplete):
        text, start = rest + block, 0
        for offset, header, layout in _iterate_headers(text):
            rows, _ = _extract_rows(text[start:offset], page, messages, ends_table=True)
            if page is not None and rows:
                yield page, rows
            if len(header) > MAX_COLUMNS:
                what = f"the header of the {layout} page has more than {MAX_COLUMNS} columns, tracekit's limit"
                raise CorruptTraceError(what, path=path, hint="run ncu --csv again with fewer metrics")
            is_repeated = page is not None and page.header == header  # pages with equal headers share one list
            columns = page.header if page is not None and is_repeated else header
            page, start = NcuPage(layout, columns, seen[layout]), text.find(b"\n", offset) + 1
            seen[layout] += layout != "session"
            yield page, b""
        rows, rest = _extract_rows(text[start:], page, messages, ends_table=False)
        if page is not None and rows:
            yield page, rows
    rows, _ = _extract_rows(rest, page, messages, ends_table=True)
    if page is not None and rows:
        yield page, rows


def _iterate_headers(text: bytes) -> Iterator[_Header]:
    """Yield the headers in a block.

    A header may follow other output on the same line. A header with more than ``MAX_COLUMNS`` columns is truncated to
    ``MAX_COLUMNS`` + 1 columns, so that the caller can detect that the header is too long.
    """
    data, starts = build_byte_array_and_line_starts(text)
    starts = starts[np.diff(starts, append=len(data)) > MIN_HEADER_BYTES]
    quoted = data[starts] == ord('"')
    candidates = ~quoted | np.isin(data[np.minimum(starts + 1, len(data) - 1)], _HEADER_INITIALS)
    for offset in starts[candidates].tolist():
        end = text.find(b"\n", offset)
        match = _HEADER.match(text, offset, end) or (
            text[offset] != ord('"') and _PRINTED_AFTER.search(text, offset, end)
        )
        header = _parse_header(text, match.start(), end) if match else []
        layout = find_layout(header) if header else None
        if match and layout is not None:
            yield _Header(match.start(), header, layout)


def _parse_header(text: bytes, start: int, end: int) -> list[str]:
    """Return the cells of the header between two offsets of a block, but at most ``MAX_COLUMNS`` + 1 cells."""
    too_many = text.count(b",", start, end) > MAX_COLUMNS
    row = text[start:end].split(b",", MAX_COLUMNS + 1)[:-1] if too_many else [text[start:end]]
    return parse_csv_line(b",".join(row).decode("utf-8", "replace"))


def build_byte_array_and_line_starts(text: bytes) -> tuple[ByteArray, Offsets]:
    """Return the bytes of a block as an array, and the start offset of each line in the block."""
    data = np.frombuffer(text, np.uint8)
    ends = [first + np.flatnonzero(data[first : first + WINDOW] == ord("\n")) for first in _list_window_offsets(data)]
    starts = np.empty(1 + sum(map(len, ends)), np.int32)
    starts[0] = 0
    np.concatenate([_NO_OFFSETS, *ends], out=starts[1:], casting="same_kind")
    starts[1:] += 1
    return data, starts[: np.searchsorted(starts, len(data))]


def _extract_rows(text: bytes, page: NcuPage | None, messages: NcuMessages, *, ends_table: bool) -> tuple[bytes, bytes]:
    """Return the table rows in the given lines, and the beginning of a row that continues in the next block.

    Args:
        text: The lines.
        page: The table that the rows belong to, or None if the lines precede the first table.
        messages: Statistics that are updated with the output that is not part of the table.
        ends_table: Whether the table ends with these lines. If so, no row continues in the next block.
    """
    if page is None:
        messages.add_lines(text)
        return b"", b""
    if not text:
        return b"", b""
    data, starts = build_byte_array_and_line_starts(text)
    has_odd_quotes = np.bitwise_xor.reduceat((data == ord('"')).view(np.uint8), starts).astype(bool)
    irregular = np.flatnonzero(has_odd_quotes | (data[starts] != ord('"')))
    if not len(irregular) and (ends_table or _is_complete_row(text[starts[-1] :], page)):
        return text, b""
    return _RowExtractor(text, starts, has_odd_quotes, page, messages).extract_rows(irregular, ends_table=ends_table)


def _get_min_cell_separator_count(page: NcuPage) -> int:
    """Return the minimum number of cell separators (``","``) in a complete row of a table."""
    return max(len(page.header) // 2, 1) if page.layout != "session" else 1


def _is_complete_row(text: bytes, page: NcuPage) -> bool:
    """Return whether the given lines contain enough cells for a row and end like a row."""
    return text.rstrip(b"\n").endswith((b'"', b",")) and text.count(b'","') >= _get_min_cell_separator_count(page)


class _NextLine(NamedTuple):
    """The next line to process.

    Attributes:
        number: Number of the line.
        continues: Whether this line begins a row that continues in the next block.
    """

    number: int
    continues: bool


class _RowExtractor:
    """Extractor of table rows from lines that also contain other output or rows that span several lines."""

    def __init__(
        self, text: bytes, starts: Offsets, has_odd_quotes: np.ndarray, page: NcuPage, messages: NcuMessages
    ) -> None:
        self._text = text
        self._ends = np.append(starts[1:], np.int32(len(text))).data
        self._starts = starts.data
        self._line_starts = starts
        self._has_odd_quotes = has_odd_quotes.data
        self._count = len(starts)
        self._rows: list[bytes] = []
        self._messages = messages
        self._row_start = re.compile(rb'"[^"\n]+","' if page.layout in ("per-nvtx", "session") else rb'"\d*","')
        self._min_cell_separators = _get_min_cell_separator_count(page)
        self._page = page

    def extract_rows(self, irregular_lines: np.ndarray, *, ends_table: bool) -> tuple[bytes, bytes]:
        """Return the table rows, and the trailing lines that must be read together with the next block."""
        line = 0
        for k in irregular_lines.data:
            if k < line:
                continue
            line, continues = self._append_up_to_irregular_line(line, k, ends_table=ends_table)
            if continues:
                return b"".join(self._rows), self._text[self._starts[line] :]
        last = self._count - 1
        if not ends_table and line <= last and self._is_start_of_row(last) and not self._is_complete_row(last, last):
            self._append_lines(line, last)
            return b"".join(self._rows), self._text[self._starts[last] :]
        self._append_lines(line, self._count)
        return b"".join(self._rows), b""

    def _append_up_to_irregular_line(self, line: int, irregular_line: int, *, ends_table: bool) -> _NextLine:
        """Append the lines before an irregular line. If the irregular line belongs to a row, append that row, too.

        A line is irregular if it contains an odd number of quotes or does not begin with a quote.
        """
        after = self._find_end_of_continued_row(irregular_line) if irregular_line > line else None
        if after == self._count and not self._may_continue_in_next_block(irregular_line - 1, ends_table=ends_table):
            after = None
        if after is not None:
            self._append_lines(line, irregular_line - 1)
            return self._append_row(irregular_line - 1, after)
        self._append_lines(line, irregular_line)
        if not self._has_odd_quotes[irregular_line] or self._text[self._starts[irregular_line]] != ord('"'):
            return _NextLine(self._skip_other_output(irregular_line), continues=False)
        after = self._find_line_of_closing_quote(irregular_line)
        if after == self._count and not self._may_continue_in_next_block(irregular_line, ends_table=ends_table):
            after = None
        if after is not None:
            return self._append_row(irregular_line, after)
        complete = self._is_complete_row(
            irregular_line, irregular_line
        )  # a single row with a quote inside that is not doubled
        self._messages.incomplete += not complete
        return (
            self._append_row(irregular_line, irregular_line)
            if complete
            else _NextLine(irregular_line + 1, continues=False)
        )

    def _append_lines(self, first_line: int, end_line: int) -> None:
        """Append the lines from ``first_line`` (inclusive) to ``end_line`` (exclusive) to the extracted rows."""
        if first_line < end_line:
            self._rows.append(self._text[self._starts[first_line] : self._ends[end_line - 1]])

    def _append_row(self, first_line: int, last_line: int) -> _NextLine:
        """Append the lines from ``first_line`` to ``last_line`` as one row.

        Nothing is appended if the last line is in the next block.
        """
        if last_line == self._count:
            return _NextLine(first_line, continues=True)
        self._rows.append(self._join_lines(first_line, last_line))
        return _NextLine(last_line + 1, continues=False)

    def _may_continue_in_next_block(self, line: int, *, ends_table: bool) -> bool:
        """Return whether a row that begins at a line may continue in the next block."""
        return not ends_table and len(self._text) - self._starts[line] <= MAX_LINE_BYTES

    def _skip_other_output(self, line: int) -> int:
        """Skip output outside of table rows that begins at a line, and return the next line to process.

        If the line contains no quote, all lines before the next line with a quote are added to the messages. Otherwise,
        only this line is skipped. If a row follows the other output on the line, the row is appended.
        """
        start = self._starts[line]
        quote = self._text.find(b'"', start)
        after = int(np.searchsorted(self._line_starts, quote, "right")) - 1 if quote >= 0 else self._count
        if after > line:
            self._messages.add_lines(self._text[start : self._ends[after - 1]])
            return after
        self._rows.append(self._extract_row_after_other_output(line))
        return line + 1

    def _is_start_of_row(self, line: int) -> bool:
        """Return whether a line is the first line of a row."""
        return self._row_start.match(self._text, self._starts[line]) is not None

    def _join_lines(self, first_line: int, last_line: int) -> bytes:
        """Join consecutive lines of a block into one row, and replace the newlines between them with ``NEWLINE``."""
        record = self._text[self._starts[first_line] : self._ends[last_line] - 1]
        return record.replace(b"\n", NEWLINE.encode()) + b"\n"

    def _is_complete_row(self, first_line: int, last_line: int) -> bool:
        """Return whether consecutive lines of a block contain enough cells for a row and end like a row."""
        return _is_complete_row(self._text[self._starts[first_line] : self._ends[last_line]], self._page)

    def _find_end_of_continued_row(self, line: int) -> int | None:
        """Return the last line of the row that begins on the preceding line and continues on the given line.

        Usually, an odd number of quotes in a line shows that a row continues. However, a name that contains both a
        newline and a quote can leave an even number of quotes in the first line of the row.

        Returns:
            The number of the last line, or the number of lines in the block if the row may end in the next block. None
            if the given line does not continue a row.
        """
        if self._text[self._starts[line]] == ord('"') or self._is_complete_row(line - 1, line - 1):
            return None
        if not self._is_start_of_row(line - 1):
            return None
        separators = self._text.count(b'","', self._starts[line - 1], self._ends[line - 1])
        for k in range(line, min(line + MAX_RECORD_LINES, self._count)):
            if k > line and self._is_start_of_row(k):
                return None
            separators += self._text.count(b'","', self._starts[k], self._ends[k])
            if separators >= self._min_cell_separators and self._text[self._ends[k] - 2] in b'",':
                return k
        return self._count if line + MAX_RECORD_LINES > self._count else None

    def _find_line_of_closing_quote(self, line: int) -> int | None:
        """Return the number of the line that contains the closing quote of a cell that begins in the given line.

        Returns:
            The number of the line, or the number of lines in the block if the closing quote may be in the next block.
            None if another row begins before the closing quote, or if the closing quote is not within the next
            ``MAX_RECORD_LINES`` lines.
        """
        for k in range(line + 1, min(line + MAX_RECORD_LINES, self._count)):
            if self._row_start.match(self._text, self._starts[k]):
                return None
            if self._has_odd_quotes[k]:
                return k
        return self._count if line + MAX_RECORD_LINES > self._count else None

    def _extract_row_after_other_output(self, line: int) -> bytes:
        """Return the row that follows other output on the same line, or no bytes if there is no such row."""
        text = self._text[self._starts[line] : self._ends[line]]
        match = self._row_start.search(text)
        row = text[match.start() :] if match is not None and not text.startswith(b"==") else b""
        if row.count(b'","') >= self._min_cell_separators and row.count(b'"') % 2 == 0:
            return row
        self._messages.add_lines(text)
        return b""
