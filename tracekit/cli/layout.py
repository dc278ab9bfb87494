"""Format a data frame as lines of text: as a grid with one line per row, or as one block of lines per row."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len, chop_cells

from tracekit.text import to_printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import polars as pl

GAP = "  "
MIN_TEXT_WIDTH = 24  # in cells; if string columns would be narrower, the frame is printed as blocks
MIN_WIDTH_WITH_END = 24  # in cells; strings that are shortened to a smaller width lose their end, not their middle
MIN_NAME_WIDTH = 36  # in cells; columns are omitted before string columns become narrower
MAX_SHORT_WIDTH = 12  # in cells; columns of longer strings that are not names are omitted before numbers
KEPT_NUMBERS = 3  # columns of numbers that are kept as long as there are other columns than names
KEPT_NAMES = 2  # columns of names that are kept as long as there are other columns
MAX_BLOCK_LINES = 4  # maximum number of lines of a string in a block
MAX_DECIMALS = 3
_ID = re.compile(r"(_id|Id|ID)$|^[PT]id$")
_STATISTIC = re.compile(r"\b[AKQT]?(Avg|Med|Min|Max|StdDev|Mean|Median|Minimum|Maximum)\b")
_LAUNCH_SHAPE = re.compile(r"^(Grid|Block) ?[XYZ]\b")


@dataclass(frozen=True, slots=True)
class TextColumn:
    """One column of a printed table, with its values as strings.

    Attributes:
        title: The heading.
        cells: The values as strings.
        is_number: Whether the values are numbers, which are aligned to the right and never shortened.
        is_prose: Whether the values are sentences, which are wrapped between words instead of shortened.
    """

    title: str
    cells: Sequence[str]
    is_number: bool
    is_prose: bool = False

    @property
    def width(self) -> int:
        """Width of the title or of the widest value, whichever is greater, in terminal cells."""
        return max(cell_len(self.title), max(map(cell_len, self.cells), default=0))

    def split_cell(self, text: str, width: int) -> list[str]:
        """Return the lines of a grid cell. Prose is wrapped to ``width``, and other text is shortened to one line."""
        return (textwrap.wrap(text, width) or [""]) if self.is_prose else [shorten_to_width(text, width)]

    def split_block_value(self, text: str, width: int) -> list[str]:
        """Return the lines of a value in a block. Values except prose are shortened to ``MAX_BLOCK_LINES`` lines."""
        if self.is_prose:
            return self.split_cell(text, width)
        return chop_cells(shorten_to_width(text, MAX_BLOCK_LINES * width), width) or [""]

    def pad(self, text: str, width: int) -> str:
        """Pad a string with spaces to a width. Numbers are padded on the left."""
        space = " " * (width - cell_len(text))
        return space + text if self.is_number else text + space


def format_table(
    frame: pl.DataFrame, width: int | None, *, prose_columns: Collection[str] = (), bold: bool = False
) -> Iterator[str]:
    """Return the lines of a frame as a grid with one line per row, or as one block per row if the grid does not fit.

    Args:
        frame: The frame to format.
        width: Width of the terminal in cells. If None, the width is unlimited and no value is shortened.
        prose_columns: Names of columns that contain sentences, which are wrapped between words and never shortened.
        bold: Whether to print headings in bold.
    """
    columns = _build_text_columns(frame, prose_columns)
    widths = _compute_grid_widths(columns, width)
    return (
        _format_blocks(columns, width or 0, bold=bold) if widths is None else _format_grid(columns, widths, bold=bold)
    )


def format_rows_and_list_omitted_titles(
    frame: pl.DataFrame, width: int, *, bold: bool = False
) -> tuple[Iterator[str], list[str]]:
    """Return the lines of a frame as a grid with one line per row, without the columns that do not fit.

    Args:
        frame: The frame to format.
        width: Width of the terminal in cells.
        bold: Whether to print the heading in bold.

    Returns:
        The lines, and the titles of the omitted columns.
    """
    columns = shown = _build_text_columns(frame, ())
    while (widths := _compute_grid_widths(shown, width, _compute_min_text_width(shown))) is None and len(shown) > 1:
        omitted = _find_least_important_column(shown)
        shown = [column for column in shown if column is not omitted]
    missing = [column.title for column in columns if not any(column is k for k in shown)]
    return _format_grid(shown, widths or [width], bold=bold), missing


def _compute_min_text_width(columns: Sequence[TextColumn]) -> int:
    """Return the smallest width to which string columns are shortened before columns are omitted."""
    has_many_numbers = sum(column.is_number for column in columns) > KEPT_NUMBERS
    return MIN_NAME_WIDTH if has_many_numbers else MIN_TEXT_WIDTH


def _find_least_important_column(columns: Sequence[TextColumn]) -> TextColumn:
    """Return the column that is omitted first if a grid is too wide.

    Columns are omitted in the following order:

    1. Columns without values.
    2. Columns of long strings, except the first string column and names.
    3. Columns of numbers, until three of them are left.
    4. Columns of other strings, with the same exceptions.
    5. Columns of numbers, until one of them is left.
    6. Columns of names, until one of them is left.
    7. All other columns.

    In each step, the last column is omitted first. Among the numbers, ids and launch shapes are omitted first, followed
    by statistics other than totals. Names are the first two string columns whose titles end in ``name``.
    """
    numbers = sorted((column for column in columns if column.is_number), key=_compute_omission_priority)
    strings = [column for column in columns if not column.is_number]
    names = [column for column in strings if column.title.lower().endswith("name")][:KEPT_NAMES]
    others = [column for column in strings[1:] if column not in names]
    groups = (
        [column for column in columns if not any(column.cells)],
        [column for column in others if column.width > MAX_SHORT_WIDTH],
        numbers[KEPT_NUMBERS:],
        others,
        numbers[1:],
        names[1:],
        [column for column in columns if column not in names],
        columns,
    )
    return next(group[-1] for group in groups if group)


def _compute_omission_priority(column: TextColumn) -> int:
    """Return how early a column of numbers is omitted: 2 for ids and launch shapes, 1 for statistics, 0 for others."""
    if _ID.search(column.title) or _LAUNCH_SHAPE.search(column.title):
        return 2
    return int(_STATISTIC.search(column.title) is not None)


def shorten_to_width(text: str, width: int) -> str:
    """Shorten a string to a width in terminal cells.

    The arguments of C++ templates are removed first, starting with the innermost arguments. Then the arguments of
    functions are removed. If the string is still too long, its middle is removed, or its end if the width is small.
    """
    if cell_len(text) <= width:
        return text
    text = _collapse_arguments(text, width)
    if cell_len(text) <= width:
        return text
    tail = (width - 1) // 3 if width >= MIN_WIDTH_WITH_END else 0
    end = chop_cells(text[::-1], tail)[0][::-1] if tail else ""
    return chop_cells(text, width - 1 - tail)[0] + "…" + end


def _build_text_columns(frame: pl.DataFrame, prose_columns: Collection[str]) -> list[TextColumn]:
    """Return the columns of a frame with their values as strings."""
    return [
        TextColumn(to_printable(c.name), _format_column(c), c.dtype.is_numeric(), c.name in prose_columns)
        for c in frame.iter_columns()
    ]


def _collapse_arguments(text: str, width: int) -> str:
    """Replace template and function arguments with … until the string fits the width or has no more arguments."""
    for opening, closing in ("<>", "()"):
        for level in range(_find_max_bracket_level(text, opening, closing), 0, -1):
            text = _collapse_brackets(text, opening, closing, level)
            if cell_len(text) <= width:
                return text
    return text


def _iterate_bracket_levels(text: str, opening: str, closing: str) -> Iterator[tuple[str, int]]:
    """Yield each character of a string with its bracket level. A bracket has the level of the characters in it.

    The ``>`` of ``->`` is not a bracket.
    """
    level, before = 0, ""
    for character in text:
        level += character == opening
        yield character, level
        level -= character == closing and before != "-" and level > 0
        before = character


def _find_max_bracket_level(text: str, opening: str, closing: str) -> int:
    """Return the greatest bracket level in a string."""
    return max((level for _, level in _iterate_bracket_levels(text, opening, closing)), default=0)


def _collapse_brackets(text: str, opening: str, closing: str, collapsed_level: int) -> str:
    """Replace everything inside the brackets of one level with an ellipsis, but keep the brackets themselves."""
    characters, inside = [], False
    for character, level in _iterate_bracket_levels(text, opening, closing):
        if level < collapsed_level or (level == collapsed_level and character in (opening, closing)):
            inside = False
            characters.append(character)
        elif not inside:
            inside = True
            characters.append("…")
    return "".join(characters)


def _compute_grid_widths(
    columns: Sequence[TextColumn], width: int | None, min_text_width: int = MIN_TEXT_WIDTH
) -> list[int] | None:
    """Return the width of each column of a grid that fits the total width ``width``.

    All string columns have the same maximum width. Return None if this maximum would be less than ``min_text_width``.
    """
    widths = [c.width for c in columns]
    if width is None:
        return widths
    string_widths = [c.width for c in columns if not c.is_number]
    room = width - len(GAP) * (len(columns) - 1) - sum(widths) + sum(string_widths)
    cap = _compute_max_column_width(string_widths, room)
    if room < 0 or cap < min(min_text_width, max(string_widths, default=0)):
        return None
    return [w if c.is_number else min(w, cap) for w, c in zip(widths, columns, strict=True)]


def _compute_max_column_width(widths: Sequence[int], total_width: int) -> int:
    """Return the width to which columns must be limited so that together they fit ``total_width``.

    Narrower columns keep their widths.
    """
    for i, width in enumerate(sorted(widths)):
        share = total_width // (len(widths) - i)
        if width > share:
            return share
        total_width -= width
    return max(widths, default=0)


def _format_grid(columns: Sequence[TextColumn], widths: Sequence[int], *, bold: bool) -> Iterator[str]:
    """Yield the heading and the rows of a grid. Each cell is padded or shortened to the width of its column."""

    def join_cells(cells: Sequence[str]) -> str:
        return GAP.join(c.pad(t, w) for c, t, w in zip(columns, cells, widths, strict=True)).rstrip()

    yield (
        click.style(join_cells([c.title for c in columns]), bold=True)
        if bold
        else join_cells([c.title for c in columns])
    )
    for row in zip(*(c.cells for c in columns), strict=True):
        fitted = [c.split_cell(t, w) for c, t, w in zip(columns, row, widths, strict=True)]
        for texts in zip_longest(*fitted, fillvalue=""):
            yield join_cells(texts)


def _format_blocks(columns: Sequence[TextColumn], width: int, *, bold: bool) -> Iterator[str]:
    """Yield the lines of one block per row: a line with the row number, then the title and value of each column."""
    margin = max(cell_len(c.title) for c in columns)
    room = max(width - margin - len(GAP), MIN_TEXT_WIDTH)
    for i, row in enumerate(zip(*(c.cells for c in columns), strict=True), start=1):
        rule = f"── {i:,} ".ljust(width, "─")
        yield click.style(rule, bold=True) if bold else rule
        for column, text in zip(columns, row, strict=True):
            label = column.title
            for line in column.split_block_value(text, room):
                yield (label + " " * (margin - cell_len(label)) + GAP + line).rstrip()
                label = ""


def _format_column(column: pl.Series) -> list[str]:
    """Format the values of a column. Numbers, except ids, have thousands separators and the same number of decimals."""
    if not column.dtype.is_numeric():
        return [_format_value(v) for v in column]
    values = column.to_list()
    if _ID.search(column.name):
        return ["" if v is None else str(v) for v in values]
    decimals = max((len(str(v).partition(".")[2]) for v in values if v is not None), default=0)
    form = f",.{decimals}f" if column.dtype.is_float() and decimals <= MAX_DECIMALS else ","
    return ["" if v is None else format(v, form) for v in values]


def _format_value(value: Any) -> str:
    """Format a value that is not a number. Null becomes an empty string."""
    return "" if value is None else to_printable(str(value))
