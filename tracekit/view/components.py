"""Build components that several pages use: figures, panels, numbers and links."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from tracekit import schemas
from tracekit.core.reports.steps import list_notes
from tracekit.errors import TracekitError
from tracekit.plots import draw_figure
from tracekit.trace import get_trace_view
from tracekit.view.state import make_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from plotly.graph_objects import Figure

    from tracekit.trace import Trace
    from tracekit.view.pages import Context
    from tracekit.view.state import PageState

CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "showSendToCloud": False,
    "modeBarButtonsToRemove": ["lasso2d", "select2d"],
}
DIRECTIONS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that change the direction of text. The file view.js escapes the same characters in tables."""
_TEXT_PROPERTIES = ("children", "label", "title", "aria-label")
MAX_NOTE = 40
HEIGHT, COMPACT_HEIGHT = 380, 290
"""Heights of figures in pixels."""
UNITS = ((86_400 * 10**9, "d"), (3600 * 10**9, "h"), (60 * 10**9, "min"), (10**9, "s"), (10**6, "ms"), (10**3, "µs"))


def build_figure(trace: Trace, name: str, title: str, *, dark: bool, compact: bool = False, **options: Any) -> Any:
    """Return a panel with a figure of ``trace.plot``, or None if the capture has no data for the figure.

    Args:
        trace: The capture.
        name: Name of the figure.
        title: Heading of the panel.
        dark: Whether to use the dark template.
        compact: Whether to return a smaller panel, which is shown next to others.
        options: Options of the figure.
    """
    try:
        drawn = draw_figure(name, get_trace_view(trace).figure_rows(name, **options), dark=dark)
    except TracekitError:
        return None
    return build_figure_panel(drawn, title, compact=compact)


def build_deferred_panel(token: str, title: str, status: str) -> Any:
    """Return a component that is replaced with a panel when the panel is computed.

    Args:
        token: The token with which ``Captures.compute_deferred_result`` computes the panel.
        title: Heading of the panel.
        status: Sentence that is shown until then.
    """
    panel = build_panel(title, [html.P(status, className="dimmed pending")])
    return html.Div(panel, id={"part": "deferred", "token": token}, className="deferred")


def build_figure_panel(figure: Figure, title: str, *, compact: bool = False) -> Any:
    """Return a panel that shows a plotly figure.

    Args:
        figure: The figure.
        title: Heading of the panel.
        compact: Whether to return a smaller panel, which is shown next to others.
    """
    return build_panel(title, [build_graph(figure, COMPACT_HEIGHT if compact else None)])


def build_graph(figure: Figure, height: int | None = None) -> Any:
    """Return a component that shows a plotly figure without its title.

    Args:
        figure: The figure.
        height: Height in pixels. If None, it is the height of the figure.
    """
    figure.update_layout(title=None, paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", margin={"t": 16})
    shown = int(figure.layout.height or HEIGHT) if height is None else height
    figure.update_layout(height=None, autosize=True)
    return dcc.Graph(figure=figure, config=CONFIG, responsive=True, style={"height": shown})


def build_panel(title: str, content: Sequence[Any], **attributes: Any) -> Any:
    """Return a panel that contains a heading, followed by the components in ``content``."""
    return html.Section([html.H2(title), *content], className="panel", **{"aria-label": title}, **attributes)


def build_number_card(label: str, value: str, note: str = "") -> Any:
    """Return a component that shows a number with a label and an optional note."""
    parts = [html.Dt(label), html.Dd([value, html.Span(note, className="note") if note else ""])]
    return html.Div(parts, className="number-card")


def escape_directions(content: Any) -> Any:
    """Escape the characters in texts of components that change the direction of the following text.

    A name from a capture could otherwise show other text in another order than it contains. Links and values, which
    identify rows and pages, are not changed.

    Args:
        content: A component, a text, or a list of them, which is changed in place.
    """
    if isinstance(content, str):
        return DIRECTIONS.sub(lambda match: f"\\u{ord(match[0]):04x}", content)
    if isinstance(content, list | tuple):
        return [escape_directions(each) for each in content]
    if isinstance(content, Component):
        for name in _TEXT_PROPERTIES:
            if getattr(content, name, None) is not None:
                setattr(content, name, escape_directions(getattr(content, name)))
        if isinstance(getattr(content, "data", None), list):
            content.data = [
                {**each, "label": escape_directions(each["label"])}
                if isinstance(each, dict) and isinstance(each.get("label"), str)
                else each
                for each in content.data
            ]
    return content


def build_step_notes(context: Context) -> list[Any]:
    """Return a paragraph that says which range delimits steps, how many there are, and how much work lies in them.

    The list is empty for a capture without ranges, GPU activities and recorded iterations.
    """
    recorded = context.capture.trace.count("iterations") > 0
    if not recorded and not context.capture.has_rows_in_any("nvtx_ranges", *schemas.list_tables("activity")):
        return []
    try:
        notes = list_notes(context.capture.trace.stats("steps") if recorded else context.read_report("steps"))
    except TracekitError:
        return []
    return build_note_paragraphs(notes)


def build_note_paragraphs(notes: Iterable[str]) -> list[Any]:
    """Return a paragraph for each sentence about steps. Warnings are highlighted."""
    return [html.P(note, className="warning" if "Warning: " in note else "steps", role="note") for note in notes]


def build_warm_up_link(state: PageState) -> Any:
    """Return a paragraph with a link to the same page that includes the warm-up or leaves it out."""
    label = "Leave out the warm-up" if state.at.include_warm_up else "Include the warm-up"
    other = replace(state.at, include_warm_up=not state.at.include_warm_up)
    return html.P(build_link(label, make_url(state.page, other)))


def shorten(name: str) -> str:
    """Shorten a name to at most 40 characters by replacing its beginning with an ellipsis."""
    return name if len(name) <= MAX_NOTE else "…" + name[1 - MAX_NOTE :]


def format_duration(nanoseconds: int) -> str:
    """Format a duration or a difference of durations in the largest unit that does not exceed its absolute value.

    Nanoseconds have no decimals, and other units have three decimals.
    """
    for factor, unit in UNITS:
        if abs(nanoseconds) >= factor:
            return f"{nanoseconds / factor:,.3f} {unit}"
    return f"{nanoseconds:,} ns"


def build_navigation_select(name: str, choices: Sequence[tuple[str, str]], current: str, **attributes: Any) -> Any:
    """Return a drop-down list of links. Each choice consists of a label and a URL."""
    data = [{"label": label, "value": url} for label, url in choices]
    id_ = {"part": "navigate", "name": name}
    options = {"allowDeselect": False, "size": "xs", "searchable": True, "data-initial": current, **attributes}
    return dmc.Select(id=id_, data=data, value=current, **options)


def build_navigation_control(name: str, choices: Sequence[tuple[str, str]], current: str) -> Any:
    """Return a segmented control of links. Each choice consists of a label and a URL."""
    data = [{"label": label, "value": url} for label, url in choices]
    id_ = {"part": "navigate", "name": name}
    return dmc.SegmentedControl(id=id_, data=data, value=current, size="xs", **{"data-initial": current})


def build_link(text: str, href: str, **attributes: Any) -> Any:
    """Return a link to another page of the viewer."""
    return dcc.Link(text, href=href, **attributes)
