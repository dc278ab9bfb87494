"""Build the tables of pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.errors import TracekitError
from tracekit.text.elements import tag
from tracekit.view import components
from tracekit.view import query as queries
from tracekit.view.datasets import find_dataset
from tracekit.view.missing import explain_missing_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import polars as pl

    from tracekit.text.elements import Content, Element
    from tracekit.view.captures import ViewedCaptures
    from tracekit.view.state import PageState

SHOWN = 25


def build_table(
    captures: ViewedCaptures,
    name: str,
    state: PageState,
    arguments: Mapping[str, str] | None = None,
    *,
    heading: str = "h2",
    is_condition_field_open: bool = False,  # noqa: ARG001
    build_details: Callable[[Mapping[str, str]], Sequence[Content]] = lambda _: (),  # noqa: ARG001
) -> Element:
    """Return the panel of a table, or a message if its rows cannot be computed.

    Args:
        captures: The captures of the server.
        name: Name of the table.
        state: State of the page, with the filters of the table.
        arguments: For a detail table, values of the selected row in the table above it.
        heading: HTML element of the heading, ``h2`` or ``h3``.
        is_condition_field_open: Whether the input field for an SQL condition is initially open.
        build_details: Function that returns the detail tables of a selected row, given the values of the row.
    """
    try:
        dataset = find_dataset(name)
        rows = queries.load_rows(captures, queries.Query(name, state.at, tuple(sorted((arguments or {}).items()))))
    except TracekitError as error:
        return components.build_error_message(error)
    title = getattr(tag, heading)(dataset.title, class_="table-title")
    if not rows.frame.height:
        reason = explain_missing_rows(captures[state.at].trace, name, arguments or {})
        return tag.section(title, tag.p(reason, class_="dimmed"), class_="panel", aria_label=dataset.title)
    shown = build_plain_table(rows.frame.head(SHOWN), rows.titles, dataset.title)
    return tag.section(title, shown, class_="panel", aria_label=dataset.title)


def build_plain_table(frame: pl.DataFrame, titles: Mapping[str, str], caption: str, links: Sequence[Any] = ()) -> Any:
    """Return an HTML table without controls that shows a frame. Numbers are right-aligned.

    Args:
        frame: The rows, all of which are shown.
        titles: Heading of each column to show, by column name.
        caption: Caption of the table.
        links: Components of an additional last column, one per row. If empty, this column is omitted.
    """
    names = [c for c in titles if c in frame.columns]
    head = tag.tr(
        [tag.th(titles[c], scope="col", class_=_choose_alignment_css_class(frame, c)) for c in names],
        [tag.td()] * bool(links),
    )
    body = []
    for index, row in enumerate(frame.select(names).iter_rows(named=True)):
        cells = [
            tag.td(format_value(row[c]), class_=_choose_alignment_css_class(frame, c), title=str(row[c] or ""))
            for c in names
        ]
        body.append(tag.tr(cells, tag.td(links[index]) if links else None))
    table = tag.table(tag.caption(caption), tag.thead(head), tag.tbody(body), class_="plain")
    return tag.div(table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _choose_alignment_css_class(frame: pl.DataFrame, column: str) -> str:
    """Return the CSS class that aligns the cells of a column."""
    return "number" if frame.schema[column].is_numeric() else "text"


def format_value(value: object) -> str:
    """Format a value for display.

    Numbers have thousands separators and at most two decimals, booleans are "yes" or "no", and null is empty.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
