"""Format a data frame as lines of text: as a grid with one line per row, or as one block of lines per row."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from dataclasses import dataclass
from itertools import repeat, zip_longest
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len, chop_cells

from tracekit.system.threads import unlocked_property
from tracekit.text import to_printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import polars as pl

    from tracekit.cli.times import Times

MIN_WIDTH_WITH_END = 24  # in cells; strings that are shortened to a smaller width lose their end, not their middle
_CONTEXT = 6  # characters before the first difference that are shown
_MAX_ROUNDS = 8
GAP = "  "
MIN_TEXT_WIDTH = 24  # in cells; if string columns would be narrower, the frame is printed as blocks
MIN_KEY_WIDTH = 12  # in cells; key columns of strings are shortened to this width before one of them is omitted
MIN_NAME_WIDTH = 36  # in cells; columns are omitted before string columns become narrower
MAX_SHORT_WIDTH = 12  # in cells; columns of longer strings that are not names are omitted before numbers
KEPT_NUMBERS = 3  # columns of numbers that are kept as long as there are other columns than names
KEPT_NAMES = 2  # columns of names that are kept as long as there are other columns
MAX_CELL_CHARS = 4096  # longer strings are shortened before the widths of columns are computed
MAX_BLOCK_LINES = 4  # maximum number of lines of a string in a block
MAX_DECIMALS = 3
_ROWS_AT_ONCE = 1 << 12
_ID = re.compile(r"(_id|Id|ID)$|^[PT]id$")
_STATISTIC = re.compile(r"\b[AKQT]?(Avg|Min|Max|Mean|Minimum|Maximum)\b|(^|_)(mean|min|max)_", re.ASCII)
_MINOR_STATISTIC = re.compile(r"\b[AKQT]?(Med|StdDev|Std|Median|Q1|Q3)\b|(^|_)(median|std|residual)_", re.ASCII)
_LAUNCH_SHAPE = re.compile(r"^(Grid|Block) ?[XYZ]\b")
_MAX_INTEGER_DIGITS = 12
_RANK = re.compile(r"rank", re.IGNORECASE)


def shorten_names(names: Sequence[str], width: int) -> list[str]:
    """Shorten strings to a width in terminal cells, so that different strings look different if possible.

    Most strings are shortened by ``shorten_to_width``. Different strings that would look the same are shortened at
    other places: the end or the part in which they differ is kept. If that is not enough, they are numbered.
    """
    shortened = {name: shorten_to_width(name, width) for name in dict.fromkeys(names)}
    if len(set(shortened.values())) < len(shortened):
        _distinguish(shortened, width)
    return [shortened[name] for name in names]


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
    return _remove_middle(text, width, (width - 1) // 3 if width >= MIN_WIDTH_WITH_END else 0)


def _distinguish(shortened: dict[str, str], width: int) -> None:
    """Replace shortened strings that look the same. The keys are the complete strings."""
    used = Counter(shortened.values())
    for shorten in (
        _keep_half_without_arguments,
        _show_first_difference_without_arguments,
        *[_show_function_and_first_difference] * _MAX_ROUNDS,
        _keep_half,
        _keep_end,
        *[_show_first_difference] * _MAX_ROUNDS,
    ):
        groups = _group_equal_strings(shortened)
        for group in groups:
            old, new = shortened[group[0]], shorten(group, width)
            if len(set(new)) > 1 and not any(used[text] for text in new if text != old):
                used[old] -= len(group)
                used.update(new)
                shortened.update(zip(group, new, strict=True))
        if not groups:
            return
    for group in _group_equal_strings(shortened):
        for number, name in enumerate(group[1:], start=2):
            end = f"…#{number}"
            candidate = (_take_cells(name, width - cell_len(end)) + end) if cell_len(end) < width else shortened[name]
            shortened[name] = shortened[name] if used[candidate] else candidate
            used[candidate] += 1


def _group_equal_strings(shortened: Mapping[str, str]) -> list[list[str]]:
    """Return groups of several different strings whose shortened strings are equal."""
    groups: dict[str, list[str]] = {}
    for name, text in shortened.items():
        groups.setdefault(text, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _keep_half_without_arguments(group: Sequence[str], width: int) -> list[str]:
    """Shorten strings without the arguments of templates and functions so that their start and their end remain."""
    return _keep_half([_collapse_arguments(name, 0) for name in group], width)


def _show_first_difference_without_arguments(group: Sequence[str], width: int) -> list[str]:
    """Shorten strings without the arguments of templates and functions so that their first difference remains."""
    return _show_first_difference([_collapse_arguments(name, 0) for name in group], width)


def _show_function_and_first_difference(group: Sequence[str], width: int) -> list[str]:
    """Shorten strings so that the end of the name of a function remains, and the part where its arguments differ."""
    start = max(_find_first_difference(group) - _CONTEXT, 0)
    texts = []
    for name in group:
        function = _collapse_arguments(name, 0)
        bracket = min((i for i in map(function.rfind, ("<…>", "(…)")) if i > 0), default=len(function))
        head = _take_cells(function[:bracket][::-1], width // 2)[::-1]
        texts.append(_remove_middle(f"{'…' * (len(head) < bracket)}{head}…{name[start:]}", width, 0))
    return texts


def _find_first_difference(group: Sequence[str]) -> int:
    """Return the position of the first character that is not the same in all strings."""
    first, last = min(group), max(group)
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def _keep_half(group: Sequence[str], width: int) -> list[str]:
    """Shorten strings so that their start and their end remain, which are equally long."""
    return [_remove_middle(name, width, width // 2) for name in group]


def _keep_end(group: Sequence[str], width: int) -> list[str]:
    """Shorten strings so that their end and a few characters of their start remain."""
    return [_remove_middle(name, width, width - 1 - width // 4) for name in group]


def _show_first_difference(group: Sequence[str], width: int) -> list[str]:
    """Shorten strings so that their start remains, and the part where they begin to differ from each other."""
    start = _find_first_difference(group) - _CONTEXT
    texts = []
    for name in group:
        head = _take_cells(name, max(width // 3, 1))
        skipped = f"{head}…{name[start:]}" if start > len(head) else name
        texts.append(_remove_middle(skipped, width, 0))
    return texts


def _remove_middle(text: str, width: int, end_width: int) -> str:
    """Shorten a string to a width by replacing the part before its end, which has the width ``end_width``, with …."""
    if cell_len(text) <= width:
        return text
    end = _take_cells(text[::-1], end_width)[::-1]
    return f"{_take_cells(text, width - 1 - end_width)}…{end}"


def _take_cells(text: str, width: int) -> str:
    """Return the longest start of a string that fits a width."""
    return chop_cells(text[: max(width, 0)], width)[0] if width > 0 and text else ""


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


@dataclass(frozen=True)
class TextColumn:
    """One column of a printed table, with its values as strings.

    Attributes:
        title: The heading.
        cells: The values as strings.
        is_number: Whether the values are numbers, which are aligned to the right and never shortened.
        is_prose: Whether the values are sentences, which are wrapped between words instead of shortened.
        is_key: Whether the column is omitted only if there is not enough space for the key columns alone.
    """

    title: str
    cells: Sequence[str]
    is_number: bool
    is_prose: bool = False
    is_key: bool = False

    @unlocked_property
    def width(self) -> int:
        """Width of the title or of the widest value, whichever is greater, in terminal cells."""
        is_ascii = all(map(str.isascii, self.cells))
        widths = map(len, self.cells) if is_ascii else map(cell_len, set(self.cells))
        return max(cell_len(self.title), max(widths, default=0))

    def split_cells(self, width: int) -> list[list[str]]:
        """Return the lines of each grid cell. Prose is wrapped to ``width``, and other text is one shortened line."""
        if self.is_prose:
            return [textwrap.wrap(text, width) or [""] for text in self.cells]
        return [[text] for text in self.shorten_cells(width)]

    def shorten_cells(self, width: int) -> Sequence[str]:
        """Return the values, shortened to a width if any of them is wider."""
        return self.cells if self.width <= width else shorten_names(self.cells, width)

    def split_block_values(self, width: int) -> list[list[str]]:
        """Return the lines of each value in a block. Values except prose are shortened to ``MAX_BLOCK_LINES`` lines."""
        if self.is_prose:
            return self.split_cells(width)
        return [chop_cells(text, width) or [""] for text in shorten_names(self.cells, MAX_BLOCK_LINES * width)]

    def pad(self, text: str, width: int) -> str:
        """Pad a string with spaces to a width. Numbers are padded on the left."""
        space = " " * (width - cell_len(text))
        return space + text if self.is_number else text + space

    def pad_all(self, texts: Sequence[str], width: int) -> Iterable[str]:
        """Pad strings with spaces to a width. Numbers are padded on the left."""
        if all(map(str.isascii, texts)):
            return map(str.rjust if self.is_number else str.ljust, texts, repeat(width))
        padded = {text: self.pad(text, width) for text in set(texts)}
        return [padded[text] for text in texts]


def format_table(
    frame: pl.DataFrame,
    width: int | None,
    *,
    prose_columns: Collection[str] = (),
    bold: bool = False,
    times: Times | None = None,
) -> Iterator[str]:
    """Return the lines of a frame as a grid with one line per row, or as one block per row if the grid does not fit.

    Args:
        frame: The frame to format.
        width: Width of the terminal in cells. If None, the width is unlimited, and only strings of more than
            ``MAX_CELL_CHARS`` characters are shortened.
        prose_columns: Names of columns that contain sentences, which are wrapped between words and never shortened.
        bold: Whether to print headings in bold.
        times: The unit in which times are printed. If None, they are printed in ns.
    """
    columns = _build_text_columns(frame, width, times, prose_columns=prose_columns)
    widths = _compute_grid_widths(columns, width)
    return (
        _format_blocks(columns, width or 0, bold=bold) if widths is None else _format_grid(columns, widths, bold=bold)
    )


def format_rows_and_list_omitted_titles(
    frame: pl.DataFrame,
    width: int,
    *,
    bold: bool = False,
    key_columns: Collection[str] = (),
    times: Times | None = None,
) -> tuple[Iterator[str], list[str]]:
    """Return the lines of a frame as a grid with one line per row, without the columns that do not fit.

    Args:
        frame: The frame to format.
        width: Width of the terminal in cells.
        bold: Whether to print the heading in bold.
        key_columns: Names of the columns that are the point of the table. They are omitted last.
        times: The unit in which times are printed. If None, they are printed in ns.

    Returns:
        The lines, and the titles of the omitted columns.
    """
    columns = shown = _build_text_columns(frame, width, times, key_columns=key_columns)
    while (widths := _compute_grid_widths(shown, width, _compute_min_text_width(shown))) is None and len(shown) > 1:
        omitted = _find_least_important_column(shown)
        shown = [column for column in shown if column is not omitted]
    missing = [column.title for column in columns if not any(column is k for k in shown)]
    return _format_grid(shown, widths or [width], bold=bold), missing


def _compute_min_text_width(columns: Sequence[TextColumn]) -> int:
    """Return the smallest width to which string columns are shortened before columns are omitted."""
    if all(column.is_key for column in columns):
        return MIN_KEY_WIDTH
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
    by standard deviations and quartiles, and by other statistics except totals. Names are the first two string columns
    whose titles end in ``name``. Key columns are omitted only after all other columns.
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
    without_keys = ([column for column in group if not column.is_key] for group in groups)
    return next(group[-1] for group in (*without_keys, *groups) if group)


def _compute_omission_priority(column: TextColumn) -> int:
    """Return how early a column of numbers is omitted: 3 for ids and launch shapes, 2 and 1 for statistics, else 0."""
    if _ID.search(column.title) or _LAUNCH_SHAPE.search(column.title):
        return 3
    return 2 if _MINOR_STATISTIC.search(column.title) else int(_STATISTIC.search(column.title) is not None)


def _build_text_columns(
    frame: pl.DataFrame,
    width: int | None,
    times: Times | None,
    *,
    prose_columns: Collection[str] = (),
    key_columns: Collection[str] = (),
) -> list[TextColumn]:
    """Return the columns of a frame with their values as strings. Columns that contain the rank are key columns."""
    from tracekit.cli.times import format_time_column

    columns, units = [], {} if times is None else times.choose_units(frame)
    for column in frame.iter_columns():
        name = title = column.name
        if units.get(name, "ns") == "ns":
            cells = _format_column(column, is_rounded=width is not None)
        else:
            title, cells = format_time_column(column, units[name])
        is_key = name in key_columns or _RANK.fullmatch(name) is not None
        is_prose = name in prose_columns
        columns.append(TextColumn(to_printable(title), cells, column.dtype.is_numeric(), is_prose, is_key))
    return columns


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
    if any(c.is_prose for c in columns):
        for fitted in zip(*(c.split_cells(w) for c, w in zip(columns, widths, strict=True)), strict=True):
            for texts in zip_longest(*fitted, fillvalue=""):
                yield join_cells(texts)
        return
    shortened = [c.shorten_cells(w) for c, w in zip(columns, widths, strict=True)]
    for start in range(0, max(map(len, shortened), default=0), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        padded = [c.pad_all(texts[rows], w) for c, texts, w in zip(columns, shortened, widths, strict=True)]
        if not columns[-1].is_number:
            padded[-1] = shortened[-1][rows]  # spaces at the end of lines would be removed
        for cells in zip(*padded, strict=True):
            yield GAP.join(cells).rstrip()


def _format_blocks(columns: Sequence[TextColumn], width: int, *, bold: bool) -> Iterator[str]:
    """Yield the lines of one block per row: a line with the row number, then the title and value of each column."""
    margin = max(cell_len(c.title) for c in columns)
    room = max(width - margin - len(GAP), MIN_TEXT_WIDTH)
    for i, row in enumerate(zip(*(c.split_block_values(room) for c in columns), strict=True), start=1):
        rule = f"── {i:,} ".ljust(width, "─")
        yield click.style(rule, bold=True) if bold else rule
        for column, lines in zip(columns, row, strict=True):
            label = column.title
            for line in lines:
                yield (label + " " * (margin - cell_len(label)) + GAP + line).rstrip()
                label = ""


def _format_column(column: pl.Series, *, is_rounded: bool) -> list[str]:
    """Format the values of a column. Numbers, except ids, have thousands separators and the same number of decimals.

    Args:
        column: The column.
        is_rounded: Whether to round numbers with many decimals.
    """
    import polars as pl

    if column.dtype in (pl.String, pl.Categorical):
        codes = column.cast(pl.Categorical)
        distinct = codes.unique()
        cells = dict(zip(distinct.to_physical().to_list(), map(_format_value, distinct.to_list()), strict=True))
        return [cells[code] for code in codes.to_physical().to_list()]  # rows with equal strings share memory
    if not column.dtype.is_numeric():
        return [_format_value(v) for v in column]
    values = column.to_list()
    if _ID.search(column.name):
        return ["" if v is None else str(v) for v in values]
    decimals = _count_decimals(column.unique().to_list()) if column.dtype.is_float() else 0
    if column.dtype.is_float() and decimals > MAX_DECIMALS and is_rounded:
        form = _choose_number_format([abs(v) for v in values if v and math.isfinite(v)])
    else:
        form = f",.{decimals}f" if column.dtype.is_float() and decimals <= MAX_DECIMALS else ","
    if not column.null_count():
        return list(map(format, values, repeat(form)))
    return ["" if v is None else format(v, form) for v in values]


def _count_decimals(values: Sequence[float | None]) -> int:
    """Return the largest number of decimals of any number. It is at most one more than ``MAX_DECIMALS``."""
    largest = 0
    for value in values:
        if value is not None and (count := len(str(value).partition(".")[2])) > largest:
            largest = count
            if largest > MAX_DECIMALS:
                return MAX_DECIMALS + 1
    return largest


def _choose_number_format(sizes: Sequence[float]) -> str:
    """Return the format of numbers with many decimals, given their absolute values without zeros.

    The smallest number has three significant digits. If the numbers are very different, each has four significant
    digits.
    """
    if not sizes:
        return ",.1f"
    smallest, largest = (math.floor(math.log10(size)) for size in (min(sizes), max(sizes)))
    if smallest < -MAX_DECIMALS or largest > _MAX_INTEGER_DIGITS:
        return ".4g"
    return f",.{max(MAX_DECIMALS - 1 - smallest, 0 if smallest > MAX_DECIMALS else 1)}f"


def _format_value(value: Any) -> str:
    """Format a value that is not a number. Null becomes an empty string, and very long strings are shortened."""
    return "" if value is None else to_printable(_limit_length(str(value)))


def _limit_length(text: str) -> str:
    """Shorten a string of more than ``MAX_CELL_CHARS`` characters to its start, a hash of all of it, and its end.

    Without this limit, every row of a table would be padded to the longest string of a column. The hash distinguishes
    strings that have the same start and end.
    """
    if len(text) <= MAX_CELL_CHARS:
        return text
    import hashlib

    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    half = (MAX_CELL_CHARS - len(digest)) // 2 - 1
    return f"{text[:half]}…{digest}…{text[-half:]}"
