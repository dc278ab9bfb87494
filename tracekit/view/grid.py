"""Build the tables of pages, whose rows the server filters, searches and sorts and sends in pages.

The URL of a page contains the complete state of its tables. Every control of a table is a link, or a field of the form
of the table. ``assets/table.js`` requests only the changed table instead of the whole page.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import polars as pl

from tracekit import schemas
from tracekit.errors import TracekitError
from tracekit.pages.columns import ColumnText, describe_column
from tracekit.pages.tables import build_cell_content, build_column_heading, choose_column_class
from tracekit.pages.tables import build_table as build_whole_table
from tracekit.pages.values import build_value
from tracekit.text import shorten_middle
from tracekit.text.elements import Element, tag
from tracekit.view import downloads
from tracekit.view import query as queries
from tracekit.view.components import build_error_message
from tracekit.view.datasets import find_dataset
from tracekit.view.filters import format_filter, parse_filter, write_equality_filters
from tracekit.view.missing import explain_missing_rows
from tracekit.view.sources import INDENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracekit.text.elements import Content
    from tracekit.view.captures import ShownRows, ViewedCaptures
    from tracekit.view.datasets import Dataset
    from tracekit.view.state import PageState

FRAGMENT = "/fragment/table/"
"""Start of the path that answers a table alone."""
PAGE_SIZE = 100
"""Number of rows on a page of a table."""
MAX_PAGE_NUMBER = 10**9
ROWS_WITH_CONTROLS = 8
"""Number of rows from which on a table has a search field and filters."""
SHORT_NAME = 56
"""Maximum number of characters of a text in a cell. Longer texts are shortened in the middle until they are opened."""
FORMATS = {"csv": "CSV", "json": "JSON", "parquet": "Parquet", "xlsx": "Excel", "tsv": "Copy to the clipboard"}
_EVENT_TABLES = schemas.list_tables("event")
_UNIT = re.compile(r" \((ns|bytes|%)\)$")
_NEARBY_PAGES = 2


@dataclass(frozen=True, slots=True)
class TableSettings:
    """What the URL says about a table.

    Attributes:
        filter: Filters of columns, as for ``query.filter_expr``.
        texts: Filters that a user typed, by column.
        sort: Columns to sort by, "none" for the order of the table, or "" for the default.
        search: Text that rows contain.
        condition: SQL condition.
        columns: Names of the columns that are shown.
        selected: Key of the selected row, or "".
        toggled: Keys of the rows of a tree that are expanded or collapsed individually, separated by commas.
        page: Number of the page of rows, from 1. None for the first page or the page of the selected row.
        problem: Why a part of the URL is not valid, or None.
    """

    filter: str
    texts: Mapping[str, str]
    sort: str
    search: str
    condition: str
    columns: tuple[str, ...]
    selected: str
    toggled: str
    page: int | None
    problem: TracekitError | None


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table of a page: its rows, what the URL says about it, and the page of rows that is shown."""

    captures: ViewedCaptures
    dataset: Dataset
    rows: ShownRows
    state: PageState
    arguments: Mapping[str, str]
    settings: TableSettings
    query: queries.Query
    page: queries.PageOfRows
    start: int
    problem: TracekitError | None
    heading: str = "h2"
    texts: Mapping[str, ColumnText] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.dataset.name

    @property
    def key(self) -> str:
        """Name of the table as a part of the ids of elements."""
        return make_key(self.name)

    @property
    def form(self) -> str:
        """Id of the form of the table."""
        return f"{self.key}-form"

    @property
    def has_controls(self) -> bool:
        """Whether the table has a search field and filters."""
        return self.rows.frame.height >= ROWS_WITH_CONTROLS or self.query.is_filtered

    def make_url(self, **changes: str) -> str:
        """Return the URL of the page with changed parameters of this table. Empty parameters are omitted."""
        return self.state.make_url(**self.collect_parameters(**changes))

    def collect_parameters(self, **changes: str) -> dict[str, str]:
        """Return the parameters of the URL of the page, with changed parameters of this table."""
        settings, number = self.settings, self.start // PAGE_SIZE + 1
        own = {
            "filter": settings.filter,
            "sort": "" if settings.sort == self.dataset.sort else settings.sort,
            "search": settings.search,
            "where": settings.condition,
            "columns": "" if list(settings.columns) == self.default_columns else ",".join(settings.columns),
            "select": settings.selected,
            "toggled": settings.toggled,
            "page": str(number) if number > 1 or settings.selected else "",
            **changes,
        }
        others = {n: value for n, value in self.state.parameters.items() if not n.startswith(f"{self.name}.")}
        return {**others, **{f"{self.name}.{each}": value for each, value in own.items() if value}}

    @property
    def default_columns(self) -> list[str]:
        """Names of the columns that are shown if the URL does not choose columns."""
        return [c for c in _list_columns_in_order(self.dataset, self.rows) if c not in self.dataset.hidden]


def make_key(name: str) -> str:
    """Return the name of a table as a part of the ids of elements."""
    return re.sub(r"\W+", "-", name)


def build_table(
    captures: ViewedCaptures,
    name: str,
    state: PageState,
    arguments: Mapping[str, str] | None = None,
    *,
    heading: str = "h2",
    is_condition_field_open: bool = False,
    build_details: Callable[[Mapping[str, str]], Sequence[Any]] = lambda _: (),
) -> Element:
    """Return the element that shows a table, or a message if its rows cannot be computed.

    Args:
        captures: The captures of the server.
        name: Name of the table.
        state: State of the page, with the filters of the table.
        arguments: For a detail table, values of the selected row in the table above it.
        heading: HTML element of the heading, ``h2`` or ``h3``.
        is_condition_field_open: Whether the input field for an SQL condition is initially open.
        build_details: Function that returns the detail tables of a selected row, given the values of the row.
    """
    arguments = dict(arguments or {})
    try:
        dataset = find_dataset(name)
        rows = queries.load_rows(captures, queries.Query(name, state.at, tuple(sorted(arguments.items()))))
    except TracekitError as error:
        return build_error_message(error)
    if not rows.frame.height:
        reason = explain_missing_rows(captures[state.at].trace, name, arguments)
        title = Element(heading, (dataset.title,), {})
        return tag.section(title, tag.p(reason, class_="dim"), class_="panel", aria_label=dataset.title)
    table = _load_table(captures, dataset, rows, state, arguments)
    return _build_section(
        replace(table, heading=heading), build_details, is_condition_field_open=is_condition_field_open
    )


def create_query(captures: ViewedCaptures, name: str, state: PageState, arguments: Mapping[str, str]) -> queries.Query:
    """Return the query for the rows that a table shows in the state of a page."""
    source = queries.Query(name, state.at, tuple(sorted(arguments.items())))
    dataset = find_dataset(name)
    rows = queries.load_rows(captures, source)
    return _create_query(source, dataset, read_settings(dataset, rows, state))


def _create_query(source: queries.Query, dataset: Dataset, settings: TableSettings) -> queries.Query:
    sort = settings.sort or dataset.sort
    return replace(
        source,
        filter=settings.filter or "{}",
        sort="" if sort == "none" else sort,
        search=settings.search,
        condition=settings.condition,
        toggled=settings.toggled,
    )


def read_settings(dataset: Dataset, rows: ShownRows, state: PageState) -> TableSettings:
    """Return what the URL of a page says about a table.

    Besides the parameters that links contain, this accepts those of the form of the table: ``TABLE.filter.COLUMN`` is
    the filter of a column as a user typed it.
    """
    prefix = f"{dataset.name}."
    own = {n.removeprefix(prefix): value for n, value in state.parameters.items() if n.startswith(prefix)}
    texts = {n.removeprefix("filter."): value for n, value in own.items() if n.startswith("filter.")}
    names = {each for each in own.get("columns", "").split(",") if each}
    shown = [c for c in _list_columns_in_order(dataset, rows) if (c in names if names else c not in dataset.hidden)]
    filters, problem = _merge_filters(own.get("filter", ""), texts, rows)
    page = own.get("page", "")
    if page and not (page.isascii() and page.isdigit() and 0 < int(page[:12]) <= MAX_PAGE_NUMBER):
        problem = TracekitError(f"the URL parameter '{prefix}page' contains {page[:100]!r} instead of a page number")
        page = ""
    toggled = own.get("toggled", "")
    return TableSettings(
        filters,
        texts,
        own.get("sort", ""),
        own.get("search", ""),
        own.get("where", ""),
        tuple(shown or rows.frame.columns[:1]),
        own.get("select", ""),
        toggled if dataset.tree else "",
        int(page) if page else None,
        problem,
    )


def _merge_filters(text: str, typed: Mapping[str, str], rows: ShownRows) -> tuple[str, TracekitError | None]:
    """Return the filters of columns, of which some were typed, as JSON, and why the first invalid one is not valid."""
    if not typed:
        return ("" if text == "{}" else text), None
    problem = None
    try:
        filters = queries.parse_filter_model(text)
        for column, value in typed.items():
            kind = rows.frame.schema[queries.require_column(column, rows.frame.schema)]
            condition = None
            try:
                unit = describe_shown_column(rows, column).unit
                condition = parse_filter(value, is_number=kind.is_numeric(), unit=unit)
            except TracekitError as error:
                problem = problem or error
            filters.pop(column, None)
            if condition is not None:
                filters[column] = condition
        return (json.dumps(filters, separators=(",", ":")) if filters else ""), problem
    except RecursionError:
        return "", TracekitError("the filter in the URL is nested too deeply")
    except TracekitError as error:
        return "", error


def _load_table(
    captures: ViewedCaptures, dataset: Dataset, rows: ShownRows, state: PageState, arguments: Mapping[str, str]
) -> ShownTable:
    """Return a table with the page of rows that the URL selects. If this is not possible, it has no rows."""
    settings = read_settings(dataset, rows, state)
    source = queries.Query(dataset.name, state.at, tuple(sorted(arguments.items())))
    query, problem, start = _create_query(source, dataset, settings), settings.problem, 0
    page = queries.PageOfRows([], 0, rows.frame.height, [])
    if problem is None:
        try:
            position = None
            if settings.page is None and settings.selected:
                position = queries.find_position(captures, query, settings.selected)
            start = (
                (position or 0) // PAGE_SIZE * PAGE_SIZE if settings.page is None else (settings.page - 1) * PAGE_SIZE
            )
            page = queries.load_page(captures, query, start, start + PAGE_SIZE)
            if not page.rows and page.matching:
                start = (page.matching - 1) // PAGE_SIZE * PAGE_SIZE
                page = queries.load_page(captures, query, start, start + PAGE_SIZE)
        except TracekitError as error:
            problem = error
    texts = {c: describe_shown_column(rows, c) for c in rows.frame.columns}
    return ShownTable(captures, dataset, rows, state, arguments, settings, query, page, start, problem, "h2", texts)


def describe_shown_column(rows: ShownRows, name: str) -> ColumnText:
    """Return what a page says about a column of a table."""
    by_title, by_name = describe_column(rows.titles[name]), describe_column(name)
    return ColumnText(
        name,
        _UNIT.sub("", rows.titles[name]),
        rows.units.get(name) or by_name.unit or by_title.unit,
        rows.descriptions.get(name, ""),
        rows.formulas.get(name, ""),
    )


def _list_columns_in_order(dataset: Dataset, rows: ShownRows) -> list[str]:
    """Return the names of all columns in the order in which the table shows them."""
    first = [c for c in dataset.first if c in rows.frame.columns]
    return [*first, *(c for c in rows.frame.columns if c not in first)]


def _build_section(
    table: ShownTable, build_details: Callable[[Mapping[str, str]], Sequence[Any]], *, is_condition_field_open: bool
) -> Element:
    """Return the section of a page that shows a table."""
    parameters = {"page": table.state.page, "heading": table.heading, "arguments": urlencode(table.arguments)}
    title = Element(table.heading, (table.dataset.title,), {})
    return tag.section(
        tag.div(title, _build_toolbar(table, is_condition_field_open=is_condition_field_open), class_="table-head"),
        tag.p(table.dataset.note, class_="dim") if table.dataset.note else None,
        _build_filter_list(table),
        tag.div(build_error_message(table.problem), role="alert") if table.problem else None,
        _build_scroll_region(table),
        tag.div(
            tag.p(_format_row_range(table), class_="dim table-status", role="status"),
            _build_page_links(table),
            class_="table-foot",
        ),
        _build_selected_details(table, build_details),
        class_="panel grid",
        id=f"{table.key}-table",
        aria_label=table.dataset.title,
        data_table=table.name,
        data_url=table.make_url(),
        data_sort=table.query.sort,
        data_page=table.start // PAGE_SIZE + 1,
        data_source=f"{FRAGMENT}{table.name}?{urlencode(parameters)}",
    )


def parse_fragment(state: PageState) -> tuple[PageState, dict[str, str], str]:
    """Return the state of the page, the arguments and the heading of the table that a URL below ``FRAGMENT`` requests.

    Args:
        state: State with the name of the page and all parameters of the URL.
    """
    own = ("page", "heading", "arguments")
    parameters = {name: value for name, value in state.parameters.items() if name not in own}
    arguments = dict(parse_qsl(state.get("arguments"), keep_blank_values=True))
    heading = "h3" if state.get("heading") == "h3" else "h2"
    return replace(state, parameters=parameters), arguments, heading


def _build_toolbar(table: ShownTable, *, is_condition_field_open: bool) -> Element:
    """Return the form with the search field, the menus of columns and formats, and the SQL condition."""
    name, settings = table.name, table.settings
    parameters = table.collect_parameters(search="", where="", columns="", page="1" if settings.selected else "")
    hidden = {**table.state.at.to_url_parameters(), **parameters}
    search = tag.input(
        type="search",
        name=f"{name}.search",
        value=settings.search,
        id=f"{table.key}-search",
        placeholder="Search",
        aria_label=f"Search in {table.dataset.title}",
        autocomplete="off",
    )
    cleared = dict.fromkeys(("filter", "search", "where"), "")
    is_changed = table.query.is_filtered or any(settings.texts.values())
    clear = _build_change_link(table, "Clear filters", f"{table.key}-clear", **cleared) if is_changed else None
    return tag.form(
        *(tag.input(type="hidden", name=each, value=value) for each, value in hidden.items()),
        search if table.has_controls else None,
        tag.button("Apply", type="submit", class_="apply"),
        clear,
        _build_column_menu(table),
        _build_export_menu(table),
        _build_condition_field(table, is_open=is_condition_field_open) if table.has_controls else None,
        id=table.form,
        method="get",
        action=f"/{table.state.page}",
        class_="table-form",
        role="search",
    )


def _build_change_link(table: ShownTable, content: Content, key: str, /, **changes: Any) -> Element:
    """Return a link that changes parameters of a table. ``table.js`` follows it without loading the whole page.

    Args:
        table: The table.
        content: Content of the link.
        key: Id of the link, which then gets the focus again.
        changes: The changed parameters. The others (``class_``, ``title`` and ``aria_…``) are attributes of the link.
    """
    attributes = {n: changes.pop(n) for n in list(changes) if n.startswith(("aria_", "class_", "title"))}
    if "page" not in changes:
        changes["page"] = "1" if table.settings.selected else ""
    return tag.a(content, href=table.make_url(**changes), id=key, data_change="", **attributes)


def _build_column_menu(table: ShownTable) -> Element:
    """Return the menu that chooses the columns, which also explains them."""
    items = []
    for name in _list_columns_in_order(table.dataset, table.rows):
        text = table.texts[name]
        is_shown = name in table.settings.columns
        field_ = tag.input(type="checkbox", name=f"{table.name}.columns", value=name, checked=is_shown)
        about = " ".join(filter(None, (text.doc, f"Formula: {text.formula}" if text.formula else "")))
        items.append(tag.li(tag.label(field_, " ", text.title), tag.span(about, class_="dim") if about else None))
    legend = tag.legend("Columns that are shown")
    show = tag.button("Show", type="submit", class_="apply")
    return tag.details(
        tag.summary("Columns"), tag.fieldset(legend, tag.ul(*items), show), class_="menu", id=f"{table.key}-columns"
    )


def _build_export_menu(table: ShownTable) -> Element:
    """Return the menu of links that download the rows that the filters show."""
    parameters = {
        "table": table.name,
        "at": urlencode(table.state.at.to_url_parameters()),
        "arguments": urlencode(table.arguments),
        "filter": table.settings.filter,
        "sort": table.query.sort,
        "search": table.settings.search,
        "condition": table.settings.condition,
        "columns": ",".join(table.settings.columns),
    }
    items: list[Content] = []
    for name, title in FORMATS.items():
        url = "/download?" + urlencode({**{n: value for n, value in parameters.items() if value}, "format": name})
        if name == "xlsx" and table.page.matching > downloads.MAX_SHEET_ROWS:
            reason = f"{title}: an Excel sheet has at most {downloads.MAX_SHEET_ROWS:,} rows"
            items.append(tag.li(tag.span(reason, class_="dim")))
        elif name == "tsv":
            items.append(tag.li(tag.a(title, href=url, class_="copy")))
        else:
            items.append(tag.li(tag.a(title, href=url, download=True)))
    return tag.details(tag.summary("Export"), tag.ul(*items), class_="menu", id=f"{table.key}-export")


def _build_condition_field(table: ShownTable, *, is_open: bool) -> Element:
    """Return the input field for an SQL condition."""
    schema = table.rows.frame.schema
    number = next((c for c, kind in schema.items() if kind.is_numeric()), None)
    example = f"{number} > 1000" if number else f"{next(iter(schema))} IS NOT NULL"
    condition = table.settings.condition
    entry = tag.input(
        name=f"{table.name}.where",
        value=condition,
        id=f"{table.key}-where",
        placeholder=example,
        aria_label=f"Condition in SQL on {table.dataset.title}",
        autocomplete="off",
        spellcheck="false",
    )
    return tag.details(
        tag.summary("SQL filter"),
        tag.label("WHERE ", entry),
        open=is_open or bool(condition),
        class_="condition",
        id=f"{table.key}-condition",
    )


def _build_filter_list(table: ShownTable) -> Element | None:
    """Return the filters of columns in words, each with a link that removes it, or None if there are none."""
    try:
        filters = queries.parse_filter_model(table.settings.filter)
    except TracekitError:
        return None
    items = []
    for number, (name, condition) in enumerate(filters.items()):
        text = table.texts.get(name)
        title = text.title if text else name[:SHORT_NAME]
        rest = {each: value for each, value in filters.items() if each != name}
        label = f"Remove the filter of {title}"
        changed = json.dumps(rest, separators=(",", ":")) if rest else ""
        remove = _build_change_link(table, "×", f"{table.key}-remove-{number}", filter=changed, aria_label=label)
        shown = shorten_middle(_format_column_filter(table, name, condition) or "not valid", SHORT_NAME)
        items.append(tag.li(tag.span(title), " ", tag.code(shown), " ", remove))
    return tag.ul(*items, class_="filters", aria_label="Filters") if items else None


def _format_column_filter(table: ShownTable, name: str, condition: Any) -> str:
    kind = table.rows.frame.schema.get(name)
    if kind is None:
        return ""
    return format_filter(condition, is_number=kind.is_numeric(), unit=table.texts[name].unit)


def _build_scroll_region(table: ShownTable) -> Element:
    """Return the table of the page of rows, in a region that scrolls."""
    names = table.settings.columns
    label = next((c for c in names if not queries.ADDITIVE.fullmatch(c)), names[0])
    classes = {c: _choose_class(table, c) for c in names}
    links = [*_list_row_links(table)]
    caption = f"{table.dataset.title}: {_format_row_range(table)}"
    filters = _build_filter_row(table, links) if table.has_controls else None
    return tag.div(
        tag.table(
            tag.caption(caption, class_="hidden"),
            tag.thead(_build_heading_row(table, classes, links), filters),
            tag.tbody(*_build_rows(table, label, classes, links)),
            tag.tfoot(*_build_sum_rows(table, label, classes, links)) if table.page.sums else None,
        ),
        class_="scroll",
        role="region",
        tabindex=0,
        aria_label=f"Table: {table.dataset.title}",
    )


def _choose_class(table: ShownTable, name: str) -> str | None:
    if table.rows.frame.schema[name].is_numeric():
        return "number"
    return choose_column_class(str(row[name] or "") for row in table.page.rows)


def _build_heading_row(table: ShownTable, classes: Mapping[str, str | None], links: Sequence[RowLink]) -> Element:
    """Return the row of headings. Each heading is a link that sorts."""
    order = [part.rpartition(":") for part in table.query.sort.split(",") if part]
    directions = {name: (direction, place) for place, (name, _, direction) in enumerate(order)}
    cells = []
    for name, class_ in classes.items():
        direction, place = directions.get(name, ("", 0))
        first, second = ("desc", "asc") if table.rows.frame.schema[name].is_numeric() else ("asc", "desc")
        next_direction = {"": first, first: second}.get(direction, "")
        changed = f"{name}:{next_direction}" if next_direction else ""
        if changed == "" and len(order) == 1 and table.dataset.sort.startswith(f"{name}:{second}"):
            changed = f"{name}:{first}"
        unit = table.texts[name].unit
        content = [table.texts[name].title, tag.span(f" ({unit})", class_="exact") if unit in ("ns", "bytes") else None]
        rank = tag.span(str(place + 1), class_="rank") if direction and len(order) > 1 else None
        control = _build_change_link(table, [*content, rank], f"{table.key}-sort-{name}", sort=changed, class_="sort")
        sorting = {"asc": "ascending", "desc": "descending"}.get(direction)
        key = f"{table.key}-{name}"
        cells.append(
            build_column_heading(table.texts[name], control, key, class_=class_, aria_sort=sorting, data_column=name)
        )
    return tag.tr(*cells, *(tag.th(link.heading, scope="col") for link in links))


def _build_filter_row(table: ShownTable, links: Sequence[RowLink]) -> Element:
    """Return the row with a field for the filter of each column."""
    try:
        filters = queries.parse_filter_model(table.settings.filter)
    except TracekitError:
        filters = {}
    cells = []
    for name in table.settings.columns:
        text = table.settings.texts.get(name, "")
        if name in filters:
            text = _format_column_filter(table, name, filters[name])
        field_ = tag.input(
            name=f"{table.name}.filter.{name}",
            value=text,
            form=table.form,
            id=f"{table.key}-filter-{name}",
            aria_label=f"Filter of {table.texts[name].title}",
            placeholder=_choose_example(table, name),
            autocomplete="off",
            spellcheck="false",
        )
        cells.append(tag.td(field_))
    return tag.tr(*cells, tag.td(colspan=len(links)) if links else None, class_="filter-row")


def _choose_example(table: ShownTable, name: str) -> str:
    """Return an example of a filter, which the field of a column shows while it is empty."""
    if not table.rows.frame.schema[name].is_numeric():
        return "contains"
    return {"ns": "> 1 ms", "ns since the start": "> 1 s", "bytes": "> 1 MiB", "id": "= 1"}.get(
        table.texts[name].unit, "> 10"
    )


def _build_rows(
    table: ShownTable, label: str, classes: Mapping[str, str | None], links: Sequence[RowLink]
) -> Iterator[Element]:
    """Yield the rows of the body of a table."""
    selected, tree = table.settings.selected, table.dataset.tree
    for number, row in enumerate(table.page.rows):
        cells = []
        for name, class_ in classes.items():
            content = _build_cell(row[name], table.texts[name].unit)
            if tree is not None and name == tree.label:
                content = _build_tree_cell(table, row, number)
            if name == label and table.dataset.key is not None:
                content = _build_selection_link(table, row, content, number)
            cells.append(
                tag.th(content, scope="row", class_=class_) if name == label else tag.td(content, class_=class_)
            )
        cells += [tag.td(link.build(row, _describe_row(row[label])), class_="row-link") for link in links]
        is_selected = bool(selected) and row["_id"] == selected
        yield tag.tr(*cells, aria_current="true" if is_selected else None)


def _build_cell(value: Any, unit: str) -> Content:
    """Return the content of a cell. A long text is shortened and can be opened."""
    if not isinstance(value, str) or len(value) <= SHORT_NAME:
        return build_cell_content(value, unit)
    return tag.details(tag.summary(shorten_middle(value, SHORT_NAME)), value)


def _describe_row(value: Any) -> str:
    return shorten_middle(str(value).strip(INDENT), SHORT_NAME)


def _build_selection_link(table: ShownTable, row: Mapping[str, Any], content: Content, number: int) -> Content:
    """Return the first cell of a row as a link that selects the row, and shows its details below the table."""
    key = f"{table.key}-row-{number}"
    changes = {"select": row["_id"], "page": str(table.start // PAGE_SIZE + 1)}
    if table.dataset.tree is not None and isinstance(content, list):
        *before, text = content
        return [*before, _build_change_link(table, text, key, class_="select", **changes)]
    value = row[next(c for c in table.settings.columns if not queries.ADDITIVE.fullmatch(c))]
    if isinstance(value, str) and len(value) > SHORT_NAME:
        shown = shorten_middle(value, SHORT_NAME)
        return _build_change_link(table, shown, key, class_="select", title=value, **changes)
    return _build_change_link(table, content or "(empty)", key, class_="select", **changes)


def _build_tree_cell(table: ShownTable, row: Mapping[str, Any], number: int) -> list[Content]:
    """Return the label of a row of a tree: the indentation, a link that expands or collapses the row, and the name."""
    text = str(row[table.dataset.tree.label] if table.dataset.tree else "")
    name = text.lstrip(INDENT)
    indent = text[: len(text) - len(name)]
    is_expanded = row.get("_expanded")
    if is_expanded is None:
        return [f"{indent}{INDENT}", name]
    toggled = {each for each in table.settings.toggled.split(",") if each} ^ {row["_id"]}
    toggle = _build_change_link(
        table,
        "▾" if is_expanded else "▸",
        f"{table.key}-toggle-{number}",
        class_="toggle",
        aria_label=f"{'Collapse' if is_expanded else 'Expand'} {name}",
        aria_expanded="true" if is_expanded else "false",
        toggled=",".join(sorted(toggled)),
        page=str(table.start // PAGE_SIZE + 1),
    )
    return [indent, toggle, name]


def _build_sum_rows(
    table: ShownTable, label: str, classes: Mapping[str, str | None], links: Sequence[RowLink]
) -> Iterator[Element]:
    """Yield the rows below a filtered table: the sums of the matching rows, and their shares of all rows."""
    for sums in table.page.sums:
        cells = []
        for name, class_ in classes.items():
            value = sums.get(name)
            content = build_value(value, table.texts[name].unit) if isinstance(value, int | float) else value
            cells.append(tag.th(sums["_label"], scope="row") if name == label else tag.td(content, class_=class_))
        yield tag.tr(*cells, tag.td(colspan=len(links)) if links else None)


@dataclass(frozen=True, slots=True)
class RowLink:
    """A column of links, each of which leads from a row to another page.

    Attributes:
        heading: Heading of the column.
        label: Text of the links.
        make_url: Function that returns the URL for the values of a row, or None if the row has no link.
    """

    heading: str
    label: str
    make_url: Callable[[Mapping[str, Any]], str | None]

    def build(self, row: Mapping[str, Any], name: str) -> Element | None:
        """Return the link of a row, which is called ``name``."""
        url = self.make_url(row)
        return tag.a(self.label, href=url, aria_label=f"{self.label}: {name}") if url else None


def _list_row_links(table: ShownTable) -> Iterator[RowLink]:
    """Yield the columns of links of a table: to the timeline, and to the rows of another table."""
    columns, link = table.rows.frame.columns, table.dataset.link
    start = next((c for c in ("start_ns", "first_start_ns", "timestamp_ns") if c in columns), None)
    if start is not None:
        yield RowLink("Timeline", "Show", lambda row: _make_timeline_url(table, row, start))
    if link is not None:

        def make_url(row: Mapping[str, Any]) -> str:
            filters = write_equality_filters({column: row[source] for column, source in link.filters.items()})
            return table.state.make_url(link.page, **{f"{link.table}.filter": filters})

        yield RowLink(link.label, link.label, make_url)
    if table.dataset.rows_of is not None:
        yield RowLink("Rows", "Show", lambda row: _make_rows_url(table, row))


def _make_rows_url(table: ShownTable, row: Mapping[str, Any]) -> str | None:
    """Return the URL of the rows that a row is about, in the table that it names; None if it names none."""
    name, column, value = (row.get(each) for each in table.dataset.rows_of or ())
    if name is None:
        return None
    equal = write_equality_filters({column: value}) if column is not None else ""
    return table.state.make_url("tables", table=name, **({f"table:{name}.filter": equal} if equal else {}))


def _make_timeline_url(table: ShownTable, row: Mapping[str, Any], start: str) -> str | None:
    """Return the URL of the timeline at the time of a row, on which its event is selected; None without a time."""
    time = row[start]
    if time is None:
        return None
    end = row.get("end_ns")
    end = time + (row.get("duration_ns") or 0) if end is None else end
    shows = table.dataset.shows
    key = schemas.table(shows).key[0] if shows in _EVENT_TABLES else ""
    event = {"event": f"{shows}:{row[key]}"} if row.get(key) is not None else {}
    return table.state.make_url("timeline", start=str(time), end=str(end), **event)


def _build_page_links(table: ShownTable) -> Element | None:
    """Return the links to the pages of rows, or None if there is only one page."""
    last = max((table.page.matching - 1) // PAGE_SIZE + 1, 1)
    current = table.start // PAGE_SIZE + 1
    if last == 1:
        return None
    near = range(max(1, current - _NEARBY_PAGES), min(last, current + _NEARBY_PAGES) + 1)
    steps = {"First": 1, "Previous": current - 1, **{f"{n:,}": n for n in near}, "Next": current + 1, "Last": last}
    items = []
    for text, number in steps.items():
        key = f"{table.key}-page-{text.lower()}"
        if number == current and text.replace(",", "").isdigit():
            items.append(tag.li(tag.span(text, aria_current="page")))
        elif number == current or not 1 <= number <= last:
            items.append(tag.li(tag.span(text, class_="dim")))
        else:
            items.append(tag.li(_build_change_link(table, text, key, page=str(number))))
    return tag.nav(tag.ul(*items), class_="page-links", aria_label=f"Pages of {table.dataset.title}")


def _format_row_range(table: ShownTable) -> str:
    """Return a text with the shown rows, the number of rows that match the filters, and the number of all rows."""
    page = table.page
    shown = f"{page.matching:,} row{'s' * (page.matching != 1)}"
    if len(page.rows) < page.matching:
        shown = f"Rows {table.start + 1:,} to {table.start + len(page.rows):,} of {page.matching:,}"
    if page.matching == page.total:
        return shown
    if page.is_tree:
        return f"{shown} ({page.total - page.matching:,} of {page.total:,} are collapsed)"
    return f"{shown} (filtered from {page.total:,})"


def _build_selected_details(
    table: ShownTable, build_details: Callable[[Mapping[str, str]], Sequence[Any]]
) -> Element | None:
    """Return the tables with details about the row that the URL selects, or None if there are none."""
    selected, key = table.settings.selected, table.dataset.key
    if not selected or key is None:
        return None
    frame = table.rows.frame
    numbers = (frame[key].cast(pl.String) == selected).arg_true()
    if not numbers.len():
        return None
    row = queries.to_cell_values(frame[numbers[:1]]).row(0, named=True)
    label = next((c for c in table.settings.columns if not queries.ADDITIVE.fullmatch(c)), key)
    close = _build_change_link(table, "Close", f"{table.key}-close", select="", page=str(table.start // PAGE_SIZE + 1))
    short, long = (str(row.get(c) or "").strip(INDENT) for c in (label, "name"))
    about = tag.span(f"{long} ", class_="dim") if long != short else None
    title = tag.p("Selected: ", tag.strong(short), " ", about, close, class_="selected")
    return tag.div(title, *build_details(row), class_="details")


def build_plain_table(
    frame: pl.DataFrame, titles: Mapping[str, str], caption: str, links: Sequence[Content] = ()
) -> Element:
    """Return a table of all rows of a frame, which the browser sorts.

    Args:
        frame: The rows, all of which are shown.
        titles: Heading of each column to show, by column name. Columns that the frame does not have are omitted.
        caption: Caption of the table.
        links: Components of an additional last column, one per row. If empty, this column is omitted.
    """
    names = [c for c in titles if c in frame.columns]
    columns = [ColumnText(c, _UNIT.sub("", titles[c]), describe_column(c).unit) for c in names]
    rows: list[tuple[Any, ...]] = frame.select(names).rows()
    if links:
        columns.append(ColumnText("link", "Link"))
        rows = [(*row, link) for row, link in zip(rows, links, strict=True)]
    return build_whole_table(caption, columns, rows)
