"""The Dash application: the layout around the pages, the navigation, and the callbacks of the controls."""

from __future__ import annotations

import logging
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dash
import dash_mantine_components as dmc
from dash import ClientsideFunction, Input, Output, State, dcc, html, no_update

from tracekit.errors import TracekitError
from tracekit.view import components, grid, pages
from tracekit.view.state import make_url, parse_aggregation, parse_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.view.captures import ViewedCaptures
    from tracekit.view.state import PageState

MAX_BOUND = 2**53
"""Iteration numbers in input fields must be less than this limit."""
THEME = {"primaryColor": "teal", "primaryShade": 9, "fontFamily": "system-ui, sans-serif"}


def create_app(captures: ViewedCaptures) -> dash.Dash:
    """Return the Dash application that shows captures."""
    app = dash.Dash(
        "tracekit.view.app",
        title="tracekit",
        update_title=None,
        serve_locally=True,
        suppress_callback_exceptions=True,
        assets_folder="assets",
        on_error=_show_failure,
    )
    app.logger.setLevel(logging.WARNING)
    app.index_string = app.index_string.replace("<html>", '<html lang="en">', 1)
    app.layout = _build_layout()
    _register_callbacks(app, captures)
    grid.register_callbacks(
        app,
        captures,
        lambda table_id, row, query_string: components.escape_directions(
            _build_detail_tables(captures, table_id, row, query_string)
        ),
    )
    return app


def _show_failure(error: Exception) -> None:
    """Show on the page that a request failed. Print the details only in the terminal, because they may be private."""
    if isinstance(error, TracekitError):
        reason = error
    else:
        reason = TracekitError(
            "the viewer could not answer the request", hint="the terminal in which tracekit view runs shows the error"
        )
        traceback.print_exception(error)
    dash.set_props("failure", {"children": grid.build_error_message(reason)})


def _build_layout() -> Any:
    """Return the layout of the application: the header, the navigation, and the element that contains the page."""
    toggle = dmc.Button("Dark or light", id="scheme-toggle", variant="subtle", size="xs")
    return dmc.MantineProvider(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="scheme", storage_type="local"),
            dcc.Store(id="document-title"),
            html.A("Skip to content", href="#page", className="skip"),
            html.Header([dcc.Link("tracekit", href="/", className="product"), html.Div(id="context"), toggle]),
            html.Div(
                [
                    html.Nav(id="navigation", **{"aria-label": "Pages"}),
                    dcc.Loading(
                        html.Main(id="page", tabIndex="-1"),
                        delay_show=400,
                        target_components={"page": "children"},
                        custom_spinner=html.Div(
                            [html.Div(className="spinner"), html.P("Reading the capture …", id="progress")],
                            className="loading",
                            role="status",
                        ),
                        overlay_style={"visibility": "visible", "opacity": 0.6},
                        parent_className="main-parent",
                    ),
                ],
                className="frame",
            ),
            html.Div(id="connection", role="alert"),
            html.Div(id="failure", role="alert"),
            html.Div(id="announcement", role="status", **{"aria-live": "polite"}),
        ],
        theme=THEME,
        id="mantine",
    )


def _register_callbacks(app: dash.Dash, captures: ViewedCaptures) -> None:
    """Register the callbacks of the layout, the forms and the tables."""

    @app.callback(
        Output("page", "children"),
        Output("navigation", "children"),
        Output("context", "children"),
        Output("document-title", "data"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("mantine", "forceColorScheme"),
    )
    def show_page(path: str | None, query_string: str | None, color_scheme: str | None) -> Any:
        """Return the content, the navigation, the header and the title of the page at a URL."""
        if color_scheme is None:
            return no_update, no_update, no_update, no_update
        try:
            state = parse_url(path or "/", query_string or "", len(captures))
        except TracekitError as error:
            return [html.H1("Error"), grid.build_error_message(error)], [], [], "Error"
        try:
            with captures.report_activity(f"computing the page {_format_page_title(state)}"):
                content = pages.build_page(pages.Context(captures, state, color_scheme == "dark", draws_later=True))
        except TracekitError as error:
            content = [html.H1(_format_page_title(state)), grid.build_error_message(error)]
        messages = [*_build_change_message(captures), *_build_unreadable_list(captures)]
        shown = (
            [*messages, *(c for c in content if c is not None)],
            _build_page_links(captures, state),
            _build_capture_header(captures, state),
            _format_document_title(captures, state),
        )
        return tuple(map(components.escape_directions, shown))

    @app.callback(
        Output({"part": "deferred", "token": dash.MATCH}, "children"),
        Input({"part": "deferred", "token": dash.MATCH}, "id"),
    )
    def draw_figure(id_: Mapping[str, str]) -> Any:
        """Return a figure that is drawn after its page is shown, or None if the capture has no data for it."""
        try:
            return components.escape_directions(captures.compute_deferred_result(id_.get("token", "")))
        except TracekitError as error:
            return grid.build_error_message(error)

    _register_browser_callbacks(app)
    _register_form_callbacks(app, captures)
    _register_stack_callback(app, captures)


def _register_browser_callbacks(app: dash.Dash) -> None:
    """Register the browser callbacks of the color scheme, the document title, the timeline zoom and the controls."""
    app.clientside_callback(
        ClientsideFunction("tracekit", "scheme"),
        Output("mantine", "forceColorScheme"),
        Output("scheme", "data"),
        Input("scheme-toggle", "n_clicks"),
        State("scheme", "data"),
    )
    app.clientside_callback(
        ClientsideFunction("tracekit", "title"),
        Output("document-title", "modified_timestamp"),
        Input("document-title", "data"),
    )
    app.clientside_callback(
        ClientsideFunction("tracekit", "zoom"), Output("perfetto", "data-state"), Input("perfetto", "src")
    )
    app.clientside_callback(
        ClientsideFunction("tracekit", "navigate"),
        Output("url", "href", allow_duplicate=True),
        Input({"part": "navigate", "name": dash.ALL}, "value"),
        State({"part": "navigate", "name": dash.ALL}, "data-initial"),
        prevent_initial_call=True,
    )


def _register_form_callbacks(app: dash.Dash, captures: ViewedCaptures) -> None:
    """Register the callbacks of the forms that select the iterations to aggregate and the captures to compare."""

    @app.callback(
        Output("url", "href", allow_duplicate=True),
        Output("aggregation-problem", "children"),
        Input("aggregate", "n_clicks"),
        State("first-iteration", "value"),
        State("last-iteration", "value"),
        State("key-op", "value"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def open_iterations_page(clicks: Any, first: Any, last: Any, key_op: Any, query_string: str | None) -> Any:
        """Open the page "Iterations" for the selected iterations, or report that these iterations do not exist."""
        if not clicks:  # Dash also calls this when the button appears
            return no_update, no_update
        try:
            state = parse_url("/iterations", query_string or "", len(captures))
            bounds = f"{_format_iteration(first)}:{_format_iteration(last)}"
            values = {"capture": str(state.at.capture), "iterations": bounds, "key_op": str(key_op or "")}
            at = parse_aggregation(values, len(captures))
            captures[at].get_aggregated_trace(at).count("iterations")
        except TracekitError as error:
            return no_update, grid.build_error_message(error)
        return make_url("iterations", at), None

    @app.callback(
        Output("url", "href", allow_duplicate=True),
        Input("compare", "n_clicks"),
        State("other-capture", "value"),
        State("other-first", "value"),
        State("other-last", "value"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def open_comparison_page(clicks: Any, capture: Any, first: Any, last: Any, query_string: str | None) -> Any:
        """Open the comparison with the selected capture and iterations."""
        if not clicks:
            return no_update
        try:
            state = parse_url("/compare", query_string or "", len(captures))
        except TracekitError:
            return no_update
        other = {
            "other_capture": str(capture),
            "other_iterations": f"{_format_iteration(first)}:{_format_iteration(last)}",
        }
        if other["other_iterations"] == ":":
            del other["other_iterations"]
        return state.make_url("compare", **other, **({"by": state.get("by")} if state.get("by") else {}))


def _register_stack_callback(app: dash.Dash, captures: ViewedCaptures) -> None:
    """Register the callback of the form that restricts call stacks to a time window."""

    @app.callback(
        Output("url", "href", allow_duplicate=True),
        Input("limit-stacks", "n_clicks"),
        State("stacks-start", "value"),
        State("stacks-end", "value"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def open_stacks_page(clicks: Any, start: Any, end: Any, query_string: str | None) -> Any:
        """Open the page "Call stacks" for the selected time window."""
        if not clicks:
            return no_update
        try:
            state = parse_url("/stacks", query_string or "", len(captures))
        except TracekitError:
            return no_update
        times = {name: str(text).replace(",", "").strip() for name, text in (("start", start), ("end", end)) if text}
        return state.make_url(**{n: state.get(n) for n in ("events", "weight", "thread") if state.get(n)}, **times)


def _format_iteration(value: Any) -> str:
    """Return the iteration number in an input field as a string, or an empty string if the field is empty."""
    return str(int(value)) if isinstance(value, int | float) and abs(value) < MAX_BOUND else ""


def _build_page_links(captures: ViewedCaptures, state: PageState) -> list[Any]:
    """Return links to the pages that have data in the current capture."""
    links = []
    for page in pages.list_available_pages(captures, captures[state.at]):
        current: dict[str, str] = {"aria-current": "page"} if page.name == state.page else {}
        style = "nav-link current" if current else "nav-link"
        links.append(html.Li(dcc.Link(page.title, href=state.make_url(page.name), className=style), **current))
    return [html.Ul(links)]


def _build_capture_header(captures: ViewedCaptures, state: PageState) -> list[Any]:
    """Return the capture selector or the name of the only capture, and a description of a non-default aggregation."""
    parts: list[Any] = []
    if len(captures) > 1:
        parts.append(
            components.build_navigation_select(
                "capture",
                [(f"{each.index}: {each.name}", state.select_capture(each.index).make_url()) for each in captures.all],
                state.select_capture(state.at.capture).make_url(),
                w=300,
                **{"aria-label": "Capture"},
            )
        )
    else:
        parts.append(html.Span(captures[state.at].name, className="capture-name"))
    if not state.at.is_default:
        text = " ".join(f"{name} {value}" for name, value in state.at.to_url_parameters().items() if name != "capture")
        parts.append(dmc.Badge(text, variant="light", tt="none"))
    return parts


def _build_change_message(captures: ViewedCaptures) -> list[Any]:
    """Return a message that names the captures whose files have changed since they were opened."""
    names = captures.list_changed()
    if not names:
        return []
    text = (
        f"{', '.join(names)}: the file was changed, replaced or removed after it was opened. Pages may show old data."
    )
    hint = html.P("Start tracekit view again to show the current content.", className="dimmed")
    return [dmc.Alert([html.P(text), hint], color="orange", variant="light", className="panel replaced")]


def _build_unreadable_list(captures: ViewedCaptures) -> list[Any]:
    """Return a list of the captures that cannot be read, with the reasons, or nothing if there are none."""
    if not captures.unreadable:
        return []
    count = len(captures.unreadable)
    summary = "1 capture cannot be read" if count == 1 else f"{count} captures cannot be read"
    items = [html.Li([html.Strong(name), f": {reason}"]) for name, reason in captures.unreadable]
    return [html.Details([html.Summary(summary), html.Ul(items)], open=True, className="unreadable")]


def _format_document_title(captures: ViewedCaptures, state: PageState) -> str:
    """Return the title of the HTML document."""
    return f"{_format_page_title(state)} · {captures[state.at].name} · tracekit"


def _format_page_title(state: PageState) -> str:
    """Return the title of a page, or "Error" if the page does not exist."""
    page = pages.PAGES.get(state.page)
    return page.title if page else "Error"


def _build_detail_tables(
    captures: ViewedCaptures, table_id: Mapping[str, str], row: Mapping[str, Any], query_string: str
) -> list[Any]:
    """Return the tables with details about a selected row."""
    query = grid.parse_table_query(table_id, len(captures))
    page = next((p.name for p in pages.PAGES.values() if query.table in p.details), "")
    state = replace(parse_url(f"/{page}", query_string, len(captures)), at=query.at)
    arguments = pages.collect_detail_arguments(query.table, dict(query.arguments), row)
    return pages.build_detail_tables(pages.Context(captures, state, dark=False), query.table, arguments)
