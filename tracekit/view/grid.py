"""Build the tables of pages. Each table is an AG Grid that requests rows from the server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import dash_ag_grid as dag
import dash_mantine_components as dmc
import polars as pl
from dash import MATCH, ClientsideFunction, Dash, Input, Output, Patch, State, dcc, html, no_update

from tracekit.errors import TracekitError
from tracekit.view import query as queries
from tracekit.view.datasets import find_dataset
from tracekit.view.missing import explain_missing_rows
from tracekit.view.state import parse_aggregation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.view.captures import ShownRows, ViewedCaptures
    from tracekit.view.datasets import Dataset
    from tracekit.view.state import CaptureAggregation, PageState

ROW_HEIGHT = 34
VISIBLE_ROWS = 15
BLOCK = 100
"""Number of rows that the browser requests at once."""
MAX_ROWS = 2**40
"""Largest row number that a request may contain."""
SAMPLE = 200
"""Number of rows from which the width of a column is computed."""
GRID_THEME = {
    "accentColor": "var(--accent)",
    "backgroundColor": "var(--panel)",
    "foregroundColor": "var(--text)",
    "borderColor": "var(--border)",
    "headerBackgroundColor": "var(--head)",
    "headerTextColor": "var(--text)",
    "textColor": "var(--text)",
    "cellTextColor": "var(--text)",
    "chromeBackgroundColor": "var(--head)",
    "menuBackgroundColor": "var(--panel)",
    "tooltipBackgroundColor": "var(--panel)",
    "tooltipTextColor": "var(--text)",
    "inputBackgroundColor": "var(--panel)",
    "inputTextColor": "var(--text)",
    "rowHoverColor": "var(--head)",
    "selectedRowBackgroundColor": "var(--current)",
    "fontSize": 13,
    "fontFamily": "inherit",
    "cellHorizontalPadding": 10,
}
"""Appearance of the grid. The file view.css defines these colors for the light and the dark scheme."""
MENU_BUTTON = {"component": "button", "type": "button", "className": "menu-button"}
"""The element that opens a menu. It must be a button, as it has the attribute aria-expanded."""
FORMATS = {"csv": "CSV", "json": "JSON", "xlsx": "Excel", "parquet": "Parquet"}


def build_table(
    captures: ViewedCaptures,
    name: str,
    state: PageState,
    arguments: Mapping[str, str] | None = None,
    *,
    heading: str = "h2",
    is_condition_field_open: bool = False,
    build_details: Callable[[Mapping[str, str]], Sequence[Any]] = lambda _: (),
) -> Any:
    """Return the component that shows a table, or a message if its rows cannot be computed.

    Args:
        captures: The captures of the server.
        name: Name of the table.
        state: State of the page, with the filters of the table.
        arguments: For a detail table, values of the selected row in the table above it.
        heading: HTML element of the heading, ``h2`` or ``h3``.
        is_condition_field_open: Whether the input field for an SQL condition is initially open.
        build_details: Function that returns the detail tables of a selected row, given the values of the row.
    """
    source = queries.Query(name, state.at, tuple(sorted((arguments or {}).items())))
    try:
        dataset = find_dataset(name)
        rows = queries.load_rows(captures, source)
    except TracekitError as error:
        return build_error_message(error)
    create_part_id = _create_part_id_function(name, state.at, arguments or {})
    title = getattr(html, heading.upper())(dataset.title, className="table-title")
    if not rows.frame.height:
        reason = explain_missing_rows(captures[state.at].trace, name, arguments or {})
        return html.Section([title, html.P(reason, className="dimmed")], className="panel")
    content = [
        html.Div([title, _build_toolbar(create_part_id, dataset, rows, state)], className="table-head"),
        html.P(dataset.note, className="dimmed") if dataset.note else None,
        _build_condition_field(create_part_id, name, rows, state, is_open=is_condition_field_open),
        html.Div(id=create_part_id("problem"), role="alert"),
        _build_grid(create_part_id("grid"), dataset, rows, state),
        html.P(id=create_part_id("status"), className="dimmed table-status", role="status"),
        dcc.Store(id=create_part_id("copied")),
        dcc.Store(id=create_part_id("toggled"), data=state.get(f"{name}.toggled")),
        html.Div(_build_selected_details(dataset, rows, state, build_details), id=create_part_id("details")),
    ]
    return html.Section([c for c in content if c is not None], className="panel", **{"aria-label": dataset.title})


def _build_selected_details(
    dataset: Dataset, rows: ShownRows, state: PageState, build_details: Callable[[Mapping[str, str]], Sequence[Any]]
) -> list[Any]:
    """Return the tables with details about the row that the URL selects."""
    selected = state.get(f"{dataset.name}.select")
    if not selected or dataset.key is None:
        return []
    row = rows.frame.filter(pl.col(dataset.key).cast(pl.String) == selected).head(1)
    return list(build_details(queries.to_browser_values(row).row(0, named=True))) if row.height else []


def build_error_message(error: TracekitError) -> Any:
    """Return a component that shows the message and the hint of an error."""
    text = [html.P(error.message)] + ([html.P(error.hint, className="dimmed")] if error.hint else [])
    return dmc.Alert(text, color="gray", variant="light", className="panel")


def _create_part_id_function(
    name: str, aggregation: CaptureAggregation, arguments: Mapping[str, str]
) -> Callable[[str], dict[str, str]]:
    """Return a function that maps the name of an element of a table, such as ``search``, to its component id."""
    common = {
        "table": name,
        "at": urlencode(aggregation.to_url_parameters()),
        "arguments": urlencode(sorted(arguments.items())),
    }
    return lambda part: {"part": part, **common}


def _build_toolbar(
    create_part_id: Callable[[str], dict[str, str]], dataset: Dataset, rows: ShownRows, state: PageState
) -> Any:
    """Return the search field and the menus of a table."""
    shown = _list_shown_columns(dataset, rows, state)
    chooser = dmc.Popover(
        [
            dmc.PopoverTarget(html.Span("Columns"), boxWrapperProps=MENU_BUTTON),
            dmc.PopoverDropdown(
                dmc.CheckboxGroup(
                    dmc.Stack(
                        [
                            dmc.Checkbox(label=title, value=name, size="xs")
                            for name, title in rows.titles.items()
                            if name in rows.frame.columns
                        ],
                        gap=4,
                    ),
                    id=create_part_id("columns"),
                    value=shown,
                    label="Columns that are shown",
                    size="xs",
                ),
                className="chooser",
            ),
        ],
        position="bottom-end",
        trapFocus=True,
        returnFocus=True,
    )
    items = [dmc.MenuItem(title, id={**create_part_id("export"), "format": name}) for name, title in FORMATS.items()]
    items.append(dmc.MenuItem("Clipboard", id={**create_part_id("export"), "format": "tsv"}))
    export = dmc.Menu(
        [dmc.MenuTarget(html.Span("Export"), boxWrapperProps=MENU_BUTTON), dmc.MenuDropdown(items)],
        position="bottom-end",
    )
    search = dmc.TextInput(
        id=create_part_id("search"),
        value=state.get(f"{dataset.name}.search"),
        placeholder="Search",
        size="xs",
        debounce=300,
        **{"aria-label": f"Search in {dataset.title}"},
    )
    clear = dmc.Button("Clear filters", id=create_part_id("clear"), variant="subtle", size="xs")
    return dmc.Group([search, clear, chooser, export], gap="xs", className="toolbar")


def _build_condition_field(
    create_part_id: Callable[[str], dict[str, str]], name: str, rows: ShownRows, state: PageState, *, is_open: bool
) -> Any:
    """Return the input field for an SQL condition."""
    value = state.get(f"{name}.where")
    number = next((c for c, kind in rows.frame.schema.items() if kind.is_numeric()), None)
    example = f"{number} > 1000" if number else f"{rows.frame.columns[0]} IS NOT NULL"
    return html.Details(
        [
            html.Summary("SQL filter"),
            dmc.TextInput(
                id=create_part_id("condition"),
                value=value,
                placeholder=example,
                size="xs",
                debounce=600,
                leftSection=html.Span("WHERE", className="where"),
                leftSectionWidth=64,
                **{"aria-label": f"Condition in SQL on {name}"},
            ),
        ],
        open=is_open or bool(value),
        className="condition",
    )


def _list_shown_columns(dataset: Dataset, rows: ShownRows, state: PageState) -> list[str]:
    """Return the names of the visible columns. The URL selects them or, by default, the declaration of the table."""
    chosen = state.get(f"{dataset.name}.columns")
    if chosen:
        names = set(chosen.split(","))
        return [c for c in rows.frame.columns if c in names]
    return [c for c in rows.frame.columns if c not in dataset.hidden]


def _build_grid(id_: Any, dataset: Dataset, rows: ShownRows, state: PageState) -> Any:
    """Return the AG Grid component of a table."""
    filter_model = state.get(f"{dataset.name}.filter")
    try:
        model = queries.parse_json(filter_model, dict)
    except TracekitError:
        model = {}
    selected = state.get(f"{dataset.name}.select")
    options: dict[str, Any] = {
        "rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True},
        "pagination": True,
        "paginationPageSize": 25,
        "paginationPageSizeSelector": [10, 25, 50, 100],
        "cacheBlockSize": BLOCK,
        "maxBlocksInCache": 50,
        "rowHeight": ROW_HEIGHT,
        "headerHeight": 38,
        "floatingFiltersHeight": 34,
        "suppressFieldDotNotation": True,
        "enableCellTextSelection": True,
        "ensureDomOrder": True,
        "tooltipShowDelay": 400,
        "multiSortKey": "ctrl",
        "animateRows": False,
        "tabToNextCell": {"function": "tracekitLeaveGrid(params)"},
        "context": {
            "selected": selected,
            "sort": dataset.sort,
            "table": {name: id_[name] for name in ("table", "at", "arguments")},
        },
        "theme": {"function": f"themeQuartz.withParams({json.dumps(GRID_THEME)})"},
    }
    height = min(max(rows.frame.height, 3), VISIBLE_ROWS) * ROW_HEIGHT + 38 + 34 + 48 + 2
    has_sums = dataset.has_sums and bool(queries.compute_summary_rows(rows.frame.head(1), rows.frame.head(1)))
    return dag.AgGrid(
        id=id_,
        rowModelType="infinite",
        columnDefs=_build_column_definitions(dataset, rows, state),
        defaultColDef={"resizable": True, "sortable": True, "minWidth": 70, "suppressHeaderMenuButton": True},
        dashGridOptions=options,
        filterModel=model,
        getRowId="params.data._id",
        eventListeners={
            "cellKeyDown": ["tracekitPressKey(params)"],
            "firstDataRendered": ["tracekitSelectRow(params)"],
        },
        style={"height": height + (2 * ROW_HEIGHT if has_sums else 0), "width": "100%"},
    )


def _build_column_definitions(dataset: Dataset, rows: ShownRows, state: PageState) -> list[dict[str, Any]]:
    """Return the column definitions of a grid."""
    shown = set(_list_shown_columns(dataset, rows, state))
    order = [each.partition(":") for each in (state.get(f"{dataset.name}.sort") or dataset.sort).split(",") if each]
    sorts = {name: (direction or "asc", index) for index, (name, _, direction) in enumerate(order)}
    definitions = []
    label = next(
        (c for c in _list_columns_in_order(dataset, rows) if c in shown and not queries.ADDITIVE.fullmatch(c)),
        None,
    )
    for name in _list_columns_in_order(dataset, rows):
        definition = _build_column_definition(name, rows)
        definition["hide"] = name not in shown
        if name in sorts:
            definition["sort"], definition["sortIndex"] = sorts[name]
        if dataset.tree and name == dataset.tree.label:
            definition |= {"cellRenderer": "TreeCell", "minWidth": 260}
        elif name == label:
            definition["valueFormatter"] = {"function": "tracekitLabel(params)"}
            definition["minWidth"] = 180
        definitions.append(definition)
    return [*definitions, *_build_link_definitions(dataset, rows, state)]


def _list_columns_in_order(dataset: Dataset, rows: ShownRows) -> list[str]:
    """Return the names of all columns in the order in which the table shows them."""
    first = [c for c in dataset.first if c in rows.frame.columns]
    return [*first, *(c for c in rows.frame.columns if c not in first)]


def _estimate_column_width(name: str, rows: ShownRows) -> int:
    """Estimate the width of a column in pixels from its title, its first values and the total of the column."""
    characters = _measure_longest_number(rows.frame[name]) if rows.frame.schema[name].is_numeric() else 0
    if not characters:
        values = queries.to_browser_values(rows.frame.select(name).head(SAMPLE))[name]
        longest = values.cast(pl.String).str.len_chars().max() if values.len() else 0
        characters = longest if isinstance(longest, int) else 0
    return min(max(len(rows.titles[name]) * 8 + 40, characters * 8 + 26, 80), 360)


def _measure_longest_number(column: pl.Series) -> int:
    """Return the number of characters of the longest number among the first values and the sum of a column."""
    shown = column.head(SAMPLE).fill_nan(None) if column.dtype.is_float() else column.head(SAMPLE)
    numbers = [each for each in (shown.min(), shown.max()) if isinstance(each, int | float) and abs(each) < MAX_ROWS**2]
    if queries.ADDITIVE.fullmatch(column.name) and numbers and column.dtype.is_integer():
        numbers.append(column.to_frame().select(queries.exact_sum_expr(column)).item())
    decimals = len(".123") if column.dtype.is_float() else 0
    return max((len(f"{int(each):,}") + decimals for each in numbers), default=0)


def _build_column_definition(name: str, rows: ShownRows) -> dict[str, Any]:
    """Return the AG Grid definition of a column."""
    kind = rows.frame.schema[name]
    definition: dict[str, Any] = {
        "field": name,
        "headerName": rows.titles[name],
        "headerTooltip": rows.descriptions.get(name) or rows.titles[name],
        "filter": "agTextColumnFilter",
        "floatingFilter": True,
        "width": _estimate_column_width(name, rows),
        "filterParams": {"buttons": ["reset"], "debounceMs": 400},
    }
    if kind.is_numeric():
        exact = kind.is_integer()
        definition |= {
            "filter": "agNumberColumnFilter",
            "type": "rightAligned",
            "valueFormatter": {"function": f"{'tracekitInteger' if exact else 'tracekitFloat'}(params)"},
            "sortingOrder": ["desc", "asc", None],
        }
    else:
        definition["valueFormatter"] = {"function": "tracekitText(params)"}
        definition["tooltipValueGetter"] = {"function": "tracekitText(params)"}
    return definition


def _build_link_definitions(dataset: Dataset, rows: ShownRows, state: PageState) -> list[dict[str, Any]]:
    """Return the definitions of the columns that link to the timeline and to another page."""
    common = {"sortable": False, "filter": False, "floatingFilter": False, "resizable": False, "pinned": "right"}
    columns = []
    start = next((c for c in ("start_ns", "first_start_ns", "timestamp_ns") if c in rows.frame.columns), None)
    if start:
        parameters = {"start": start, "url": state.make_url("timeline")}
        columns.append(
            {
                "colId": "_timeline",
                "headerName": "Timeline",
                "cellRenderer": "TimelineLink",
                "width": 90,
                "maxWidth": 90,
                "cellRendererParams": parameters,
                **common,
            }
        )
    if dataset.link:
        link = dataset.link
        target: dict[str, Any] = {
            "table": link.table,
            "label": link.label,
            "filters": dict(link.filters),
            "url": state.make_url(link.page),
        }
        columns.append(
            {
                "colId": "_link",
                "headerName": link.label,
                "cellRenderer": "PageLink",
                "width": 80,
                "maxWidth": 90,
                "cellRendererParams": target,
                **common,
            }
        )
    return columns


def parse_table_query(table_id: Mapping[str, str], capture_count: int, **query_fields: str) -> queries.Query:
    """Parse the component id of a table, which the browser sends, into a query for the rows of the table.

    ``query_fields`` are the other fields of the query, such as ``filter``.

    Raises:
        TracekitError: The id is not valid.
    """
    if not isinstance(table_id, dict) or not all(
        isinstance(each, str) for each in (*table_id.values(), *query_fields.values())
    ):
        raise TracekitError("the component id in the request is not the id of a table")
    at = parse_aggregation(dict(parse_qsl(table_id.get("at", ""))), capture_count)
    arguments = tuple(sorted(parse_qsl(table_id.get("arguments", ""), keep_blank_values=True)))
    return queries.Query(table_id.get("table", ""), at, arguments, **query_fields)


def register_callbacks(app: Dash, captures: ViewedCaptures, build_details: Any) -> None:
    """Register the callbacks of all tables.

    Args:
        app: The application.
        captures: The captures of the server.
        build_details: Function that returns the detail tables of a selected row, given the id of the grid, the row and
            the query string of the URL.
    """
    _register_rows_callback(app, captures)
    _register_details_callback(app, build_details)
    _register_browser_callbacks(app)


def _create_part_id_pattern(part: str) -> dict[str, Any]:
    """Return a pattern that matches the component ids of one element, such as ``search``, in all tables."""
    return {"part": part, "table": MATCH, "at": MATCH, "arguments": MATCH}


def _register_rows_callback(app: Dash, captures: ViewedCaptures) -> None:
    """Register the callback that answers requests for rows."""

    @app.callback(
        Output(_create_part_id_pattern("grid"), "getRowsResponse"),
        Output(_create_part_id_pattern("grid"), "dashGridOptions"),
        Output(_create_part_id_pattern("status"), "children"),
        Output(_create_part_id_pattern("problem"), "children"),
        Input(_create_part_id_pattern("grid"), "getRowsRequest"),
        State(_create_part_id_pattern("search"), "value"),
        State(_create_part_id_pattern("condition"), "value"),
        State(_create_part_id_pattern("toggled"), "data"),
        State(_create_part_id_pattern("grid"), "id"),
        prevent_initial_call=True,
    )
    def send_rows(
        request: Any, search: str | None, condition: str | None, toggled: str | None, table_id: dict[str, str]
    ) -> Any:
        """Return the requested rows, the sums, a text with the row count, and an error message or None."""
        if not isinstance(request, dict):
            return no_update, no_update, no_update, no_update
        try:
            query = parse_table_query(
                table_id,
                len(captures),
                filter=_to_compact_json(request.get("filterModel") or {}),
                sort=_to_compact_json(request.get("sortModel") or []),
                search=search or "",
                condition=condition or "",
                toggled=toggled or "",
            )
            page = queries.load_page(captures, query, *_parse_requested_row_range(request))
        except TracekitError as error:
            return {"rowData": [], "rowCount": 0}, no_update, "", build_error_message(error)
        options = Patch()
        options["pinnedBottomRowData"] = page.sums
        return {"rowData": page.rows, "rowCount": page.matching}, options, _format_row_count(page), None


def _register_details_callback(app: Dash, build_details: Any) -> None:
    """Register the callback that shows the details of a selected row."""

    @app.callback(
        Output(_create_part_id_pattern("details"), "children"),
        Input(_create_part_id_pattern("grid"), "selectedRows"),
        State(_create_part_id_pattern("grid"), "id"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def show_details(selected_rows: Any, table_id: dict[str, str], query_string: str | None) -> Any:
        """Return the tables with details about the selected row."""
        if not isinstance(selected_rows, list) or not selected_rows or not isinstance(selected_rows[0], dict):
            return no_update
        try:
            return build_details(table_id, selected_rows[0], query_string or "")
        except TracekitError as error:
            return build_error_message(error)


def _register_browser_callbacks(app: Dash) -> None:
    """Register the callbacks that update the URL, clear filters and export rows. They run in the browser."""
    remembered = [
        ("grid", "filterModel"),
        ("grid", "columnState"),
        ("search", "value"),
        ("condition", "value"),
        ("columns", "value"),
        ("grid", "selectedRows"),
        ("toggled", "data"),
    ]
    app.clientside_callback(
        ClientsideFunction("tracekit", "remember"),
        Output(_create_part_id_pattern("copied"), "data"),
        *(Input(_create_part_id_pattern(part), name) for part, name in remembered),
        State(_create_part_id_pattern("grid"), "id"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("tracekit", "clear"),
        Output(_create_part_id_pattern("search"), "value"),
        Output(_create_part_id_pattern("condition"), "value"),
        Output(_create_part_id_pattern("grid"), "filterModel"),
        Input(_create_part_id_pattern("clear"), "n_clicks"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("tracekit", "exportRows"),
        Output({**_create_part_id_pattern("export"), "format": MATCH}, "data-state"),
        Input({**_create_part_id_pattern("export"), "format": MATCH}, "n_clicks"),
        State({**_create_part_id_pattern("export"), "format": MATCH}, "id"),
        prevent_initial_call=True,
    )


def _parse_requested_row_range(request: Mapping[str, Any]) -> tuple[int, int]:
    """Return the start and the end (exclusive) of the requested range of rows."""
    start, stop = request.get("startRow"), request.get("endRow")
    if not isinstance(start, int) or not isinstance(stop, int) or max(abs(start), abs(stop)) > MAX_ROWS:
        raise TracekitError(
            f"the request must contain the integers startRow and endRow, which must not exceed {MAX_ROWS:,}"
        )
    return start, stop


def _to_compact_json(value: Any) -> str:
    """Serialize a value as JSON with sorted keys, so that equal filters become equal strings."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except RecursionError as error:
        raise TracekitError("the filter or the sort order of the table is nested too deeply") from error


def _format_row_count(page: queries.SentRows) -> str:
    """Return a text with the number of rows that match the filters and the number of all rows."""
    rows = "row" if page.matching == 1 else "rows"
    if page.matching == page.total:
        return f"{page.total:,} {rows}"
    if page.is_tree:
        return f"{page.matching:,} of {page.total:,} rows, the others are collapsed"
    return f"{page.matching:,} {rows} (filtered from {page.total:,})"


def build_plain_table(frame: pl.DataFrame, titles: Mapping[str, str], caption: str, links: Sequence[Any] = ()) -> Any:
    """Return an HTML table without controls that shows a frame. Numbers are right-aligned.

    Args:
        frame: The rows, all of which are shown.
        titles: Heading of each column to show, by column name.
        caption: Caption of the table.
        links: Components of an additional last column, one per row. If empty, this column is omitted.
    """
    names = list(titles)
    head = html.Tr(
        [html.Th(titles[c], scope="col", className=_choose_alignment_css_class(frame, c)) for c in names]
        + [html.Th("")] * bool(links)
    )
    body = []
    for index, row in enumerate(frame.select(names).iter_rows(named=True)):
        cells = [
            html.Td(format_value(row[c]), className=_choose_alignment_css_class(frame, c), title=str(row[c] or ""))
            for c in names
        ]
        body.append(html.Tr([*cells, *([html.Td(links[index])] if links else [])]))
    return html.Div(
        html.Table([html.Caption(caption), html.Thead(head), html.Tbody(body)], className="plain"), className="scroll"
    )


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
