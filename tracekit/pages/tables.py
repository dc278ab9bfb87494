"""Build accessible tables. ``page.js`` sorts and searches the rows of those that are complete on the page."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tracekit.pages.columns import ColumnText, describe_columns
from tracekit.pages.values import build_value
from tracekit.text.elements import Element, tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import polars as pl

    from tracekit.schemas import Column
    from tracekit.text.elements import Content

FOLDED_LENGTH = 90
"""Maximum length of a text that is not collapsed."""
MAX_TEXT_LENGTH = 6000
"""Maximum length of a text that is not shortened, which limits the size of pages."""
_SHORT_LENGTH = 24
_SEARCHED_ROWS = 8
"""Number of rows from which on a table has a search box."""
_WIDE_COLUMNS = 10
"""Number of columns above which the letters of a table are smaller on paper."""
_UNIT_NAMES = {
    "ns": "Unit: nanoseconds, shown in a larger unit",
    "ns since the start": "Unit: nanoseconds since the start of the capture",
    "bytes": "Unit: bytes, shown in a larger unit",
    "%": "Unit: percent",
}


def build_frame_table(
    caption: str,
    frame: pl.DataFrame,
    columns: Sequence[str | ColumnText],
    *,
    max_rows: int,
    total: int | None = None,
    header: str | None = None,
    declared: Iterable[Column] = (),
) -> Element:
    """Return a table of the first rows of a data frame.

    Args:
        caption: Caption of the table.
        frame: The data frame.
        columns: The columns to show: their names, or what the page says about them.
        max_rows: Maximum number of rows to show.
        total: Number of all rows, if ``frame`` has only the first ones.
        header: Name of the column that contains the row headers. None for the first one.
        declared: Declarations of the columns, which explain those that are given by name.
    """
    declared = list(declared)
    texts = [c if isinstance(c, ColumnText) else describe_columns([c], declared)[0] for c in columns]
    names = [text.name for text in texts]
    rows = frame.head(max_rows).select(names).rows()
    return build_table(caption, texts, rows, total=total or frame.height, header=names.index(header) if header else 0)


def build_table(
    caption: str,
    columns: Sequence[ColumnText],
    rows: Sequence[Sequence[Any]],
    *,
    total: int | None = None,
    header: int = 0,
) -> Element:
    """Return a table that can be sorted and, if it has many rows, searched.

    Args:
        caption: Caption of the table.
        columns: What the page says about the columns.
        rows: Values of the cells, by row. Cells may also be elements.
        total: Number of all rows, if ``rows`` are only the first ones.
        header: Index of the column that contains the row headers.
    """
    count = "" if total is None or total == len(rows) else f" (first {len(rows):,} of {total:,} rows)"
    classes = [choose_column_class([row[n] for row in rows], column.unit) for n, column in enumerate(columns)]
    key = re.sub(r"\W+", "-", caption.lower()).strip("-")
    heads = [
        build_column_heading(
            column, tag.button(column.title, type="button", class_="sort"), f"{key}-{n}", class_=class_
        )
        for n, (column, class_) in enumerate(zip(columns, classes, strict=True))
    ]
    body = [tag.tr(_build_cells(row, columns, classes, header)) for row in rows]
    table = tag.table(
        tag.caption(caption, count),
        tag.thead(tag.tr(heads)),
        tag.tbody(body),
        class_="static wide" if len(columns) > _WIDE_COLUMNS else "static",
    )
    scroll = tag.div(table, class_="scroll", role="region", tabindex=0, aria_label=f"Table: {caption}")
    return tag.div(build_search(caption) if len(rows) >= _SEARCHED_ROWS else None, scroll, class_="table")


def build_search(caption: str) -> Element:
    """Return the search box of a table whose rows are all on the page. It is visible only if scripts run."""
    field = tag.input(type="search", placeholder="Search", aria_label=f"Search: {caption}", autocomplete="off")
    return tag.p(field, tag.span(role="status", class_="dim"), class_="search scripted")


def build_column_heading(
    column: ColumnText, control: Element, key: str, *, class_: str | None = None, **attributes: Any
) -> Element:
    """Return the header cell of a column, with an explanation that appears on hover and on focus.

    Args:
        column: What the page says about the column.
        control: The title, as a button or link that sorts the rows.
        key: Identifies the column among all columns of the page.
        class_: CSS class of the cells of the column.
        attributes: Further attributes of the cell.
    """
    if not column.doc:
        return tag.th(control, scope="col", class_=class_, **attributes)
    formula = column.formula and f"Formula: {column.formula}"
    lines = (column.doc, formula, _UNIT_NAMES.get(column.unit, ""), f"Column: {column.name}")
    explanation = tag.span([tag.span(line) for line in lines if line], class_="help", role="tooltip", id=f"help-{key}")
    described = replace(control, attributes=control.attributes | {"aria-describedby": f"help-{key}"})
    return tag.th(described, explanation, scope="col", class_=class_, **attributes)


def choose_column_class(values: Iterable[Any], unit: str = "") -> str | None:
    """Return the CSS class of the cells of a column: ``number``, ``long`` for long texts, or None.

    Args:
        values: The values of the column.
        unit: Unit of the values. A column with a unit contains numbers even if all values are missing.
    """
    texts = list(values)
    if (unit and all(value is None for value in texts)) or any(
        isinstance(value, int | float) and not isinstance(value, bool) for value in texts
    ):
        return "number"
    return "long" if any(len(str(value)) > _SHORT_LENGTH for value in texts) else None


def build_cell_content(value: Any, unit: str = "") -> Content:
    """Return the content of a cell. Long texts are collapsed, and None becomes an empty cell.

    Args:
        value: A number, a text, an element or None.
        unit: Unit of a number, as in ``pages.values``.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return build_value(value, unit)
    if not isinstance(value, str):
        return value if value is None or isinstance(value, Element) else build_cell_content(str(value))
    if len(value) <= FOLDED_LENGTH:
        return value
    shown = value if len(value) <= MAX_TEXT_LENGTH else f"{value[:MAX_TEXT_LENGTH]}… ({len(value):,} characters)"
    return tag.details(tag.summary(f"{value[: FOLDED_LENGTH - 1]}…"), shown)


def _build_cells(
    row: Sequence[Any], columns: Sequence[ColumnText], classes: Sequence[str | None], header: int
) -> Iterable[Element]:
    for n, (value, column, class_) in enumerate(zip(row, columns, classes, strict=True)):
        content = build_cell_content(value, column.unit)
        yield tag.th(content, scope="row", class_=class_) if n == header else tag.td(content, class_=class_)
