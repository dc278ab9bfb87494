"""Lay out a frame as text for people: a grid where it fits the width, else a part of it, or one block per row."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len, chop_cells

from tracekit.text import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import polars as pl

GAP = "  "
NARROWEST_TEXT = 24  # a long text cut shorter than this says nothing
NARROWEST_CUT_INSIDE = 24
NARROWEST_NAME = 36  # rather fewer numbers than a shorter name
MOST_LINES = 4  # of a text in a block
MOST_DECIMALS = 3
_ID = re.compile(r"(_id|Id|ID)$|^[PT]id$")


@dataclass(frozen=True, slots=True)
class Column:
    """One column as text.

    Attributes:
        title: Its heading.
        cells: Its values as text.
        number: Whether it is aligned to the right, and never cut.
        prose: Whether it is wrapped between words, not cut in the middle.
    """

    title: str
    cells: Sequence[str]
    number: bool
    prose: bool = False

    @property
    def width(self) -> int:
        """Cells of a terminal that the widest value takes."""
        return max(cell_len(self.title), max(map(cell_len, self.cells), default=0))

    def fitted(self, text: str, width: int) -> list[str]:
        """Return the lines that a text takes within a width."""
        return (textwrap.wrap(text, width) or [""]) if self.prose else [shorten(text, width)]

    def wrapped(self, text: str, width: int) -> list[str]:
        """Return the lines that a text takes in a block."""
        if self.prose:
            return self.fitted(text, width)
        return chop_cells(shorten(text, MOST_LINES * width), width) or [""]

    def padded(self, text: str, width: int) -> str:
        """Fill a text up to a width."""
        space = " " * (width - cell_len(text))
        return space + text if self.number else text + space


def lines(frame: pl.DataFrame, width: int | None, *, prose: Collection[str] = (), bold: bool = False) -> Iterator[str]:
    """Lay out a frame: a heading and one line per row, or one line per value if the width is too small for that.

    Args:
        frame: The rows.
        width: Cells of the terminal; None has no limit, and nothing is cut.
        prose: Names of columns of sentences, which are wrapped between words and never cut.
        bold: Whether headings are printed bold.
    """
    columns = _columns(frame, prose)
    widths = _fit(columns, width)
    return _blocks(columns, width or 0, bold=bold) if widths is None else _grid(columns, widths, bold=bold)


def rows(frame: pl.DataFrame, width: int, *, bold: bool = False) -> tuple[Iterator[str], list[str]]:
    """Lay out a frame with one line per row; columns that do not fit are left out, the last number first.

    Args:
        frame: The rows.
        width: Cells of the terminal.
        bold: Whether the heading is printed bold.

    Returns:
        The lines, and the titles of the columns that were left out.
    """
    columns, omitted = _columns(frame, ()), []
    while (widths := _fit(columns, width, NARROWEST_NAME)) is None and len(columns) > 1:
        numbers = [i for i, column in enumerate(columns) if column.number]
        omitted.append(columns.pop(numbers[-1] if len(numbers) > 1 else 0).title)
    return _grid(columns, widths or [width], bold=bold), omitted[::-1]


def shorten(text: str, width: int) -> str:
    """Cut a text so that it takes no more than some cells.

    The arguments of C++ templates go first, the innermost before the others, then those of functions. What is still too
    long is cut in the middle, or at its end where there is little room.
    """
    if cell_len(text) <= width:
        return text
    text = _without_arguments(text, width)
    if cell_len(text) <= width:
        return text
    tail = (width - 1) // 3 if width >= NARROWEST_CUT_INSIDE else 0
    end = chop_cells(text[::-1], tail)[0][::-1] if tail else ""
    return chop_cells(text, width - 1 - tail)[0] + "…" + end


def _columns(frame: pl.DataFrame, prose: Collection[str]) -> list[Column]:
    return [Column(printable(c.name), _cells(c), c.dtype.is_numeric(), c.name in prose) for c in frame.iter_columns()]


def _without_arguments(text: str, width: int) -> str:
    """Replace arguments by … until a text fits, or there are no more."""
    for opening, closing in ("<>", "()"):
        for level in range(_depth(text, opening, closing), 0, -1):
            text = _collapsed(text, opening, closing, level)
            if cell_len(text) <= width:
                return text
    return text


def _levels(text: str, opening: str, closing: str) -> Iterator[tuple[str, int]]:
    """Yield each character and how many brackets it lies in; a bracket lies in itself, and -> is none."""
    level, before = 0, ""
    for character in text:
        level += character == opening
        yield character, level
        level -= character == closing and before != "-" and level > 0
        before = character


def _depth(text: str, opening: str, closing: str) -> int:
    return max((level for _, level in _levels(text, opening, closing)), default=0)


def _collapsed(text: str, opening: str, closing: str, most: int) -> str:
    """Replace what lies in so many brackets or more by an ellipsis."""
    kept, inside = [], False
    for character, level in _levels(text, opening, closing):
        if level < most or (level == most and character in (opening, closing)):
            inside = False
            kept.append(character)
        elif not inside:
            inside = True
            kept.append("…")
    return "".join(kept)


def _fit(columns: Sequence[Column], width: int | None, narrowest: int = NARROWEST_TEXT) -> list[int] | None:
    """Return a width for each column so that all fit, long texts cut alike; None if texts would be too short."""
    widths = [c.width for c in columns]
    if width is None:
        return widths
    texts = [c.width for c in columns if not c.number]
    room = width - len(GAP) * (len(columns) - 1) - sum(widths) + sum(texts)
    cap = _cap(texts, room)
    if room < 0 or cap < min(narrowest, max(texts, default=0)):
        return None
    return [w if c.number else min(w, cap) for w, c in zip(widths, columns, strict=True)]


def _cap(widths: Sequence[int], room: int) -> int:
    """Return the greatest width such that all fit the room if none is wider."""
    for i, width in enumerate(sorted(widths)):
        share = room // (len(widths) - i)
        if width > share:
            return share
        room -= width
    return max(widths, default=0)


def _grid(columns: Sequence[Column], widths: Sequence[int], *, bold: bool) -> Iterator[str]:
    def line(texts: Sequence[str]) -> str:
        return GAP.join(c.padded(t, w) for c, t, w in zip(columns, texts, widths, strict=True)).rstrip()

    yield click.style(line([c.title for c in columns]), bold=True) if bold else line([c.title for c in columns])
    for row in zip(*(c.cells for c in columns), strict=True):
        fitted = [c.fitted(t, w) for c, t, w in zip(columns, row, widths, strict=True)]
        for texts in zip_longest(*fitted, fillvalue=""):
            yield line(texts)


def _blocks(columns: Sequence[Column], width: int, *, bold: bool) -> Iterator[str]:
    margin = max(cell_len(c.title) for c in columns)
    room = max(width - margin - len(GAP), NARROWEST_TEXT)
    for i, row in enumerate(zip(*(c.cells for c in columns), strict=True), start=1):
        rule = f"── {i:,} ".ljust(width, "─")
        yield click.style(rule, bold=True) if bold else rule
        for column, text in zip(columns, row, strict=True):
            label = column.title
            for part in column.wrapped(text, room):
                yield (label + " " * (margin - cell_len(label)) + GAP + part).rstrip()
                label = ""


def _cells(column: pl.Series) -> list[str]:
    if not column.dtype.is_numeric():
        return [_text(v) for v in column]
    values = column.to_list()
    if _ID.search(column.name):
        return ["" if v is None else str(v) for v in values]
    decimals = max((len(str(v).partition(".")[2]) for v in values if v is not None), default=0)
    form = f",.{decimals}f" if column.dtype.is_float() and decimals <= MOST_DECIMALS else ","
    return ["" if v is None else format(v, form) for v in values]


def _text(value: Any) -> str:
    return "" if value is None else printable(str(value))
