"""Rewrite Nsight Compute CSV that another program saved again, such as pandas or Excel, in the form that ncu prints.

ncu quotes every cell and separates cells by commas. Other programs quote only the cells that need quotes, use single
quotes, separate cells by semicolons, tabs or bars, pad cells with blanks, add columns for the row index, and turn whole
numbers in columns with empty cells into decimals.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.errors import CorruptTraceError, get_first_line_of_message
from tracekit.readers.ncu_csv.headers import RESAVED_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


_WHOLE_NUMBER_COLUMNS = ("ID", "Process ID", "Context", "Stream", "Device", "Device Id", "Invocations")
_DECIMAL_IDS = re.compile(rb'^"\d+[.,]0+","|^"\d*","\d+[.,]0+","', re.MULTILINE)
_WHOLE_NUMBER = r"^(\d+)[.,]0+$"
_CAPABILITY = "CC"
MAX_COLUMNS = 1 << 16
FREE_CELLS, CELLS_PER_BYTE = 1 << 16, 2
"""Number of cells that any block may have, and number of additional cells per byte of the block."""


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
