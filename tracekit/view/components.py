"""Build components that several pages use: figures, panels, numbers, forms and links."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit import schemas
from tracekit.core.layers.notes import describe_whole_graphs
from tracekit.core.reports.steps import list_notes
from tracekit.errors import MissingTableError, TracekitError
from tracekit.plots import draw_figure
from tracekit.plots.svg import draw_svg
from tracekit.text.elements import tag
from tracekit.trace import get_trace_view
from tracekit.view.state import make_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracekit.plots.charts import Chart
    from tracekit.text.elements import Content, Element
    from tracekit.trace import Trace
    from tracekit.view.pages import Context
    from tracekit.view.state import PageState

MAX_NOTE = 40
WIDTH, COMPACT_WIDTH, COMPACT_HEIGHT = 900, 420, 290
"""Sizes of figures in pixels, before they are scaled to the width of the page."""
WITHOUT_SCRIPTS = "scripts"
"""URL parameter whose value "no" computes all panels before the page is shown, for browsers without scripts."""


def build_figure(
    trace: Trace, name: str, title: str, *, compact: bool = False, devices: Sequence[int] = (), **options: Any
) -> Element | None:
    """Return a panel with a figure of ``trace.plot``, or None if the capture has no data for the figure.

    If the figure cannot be computed for another reason, the panel states it.

    Args:
        trace: The capture.
        name: Name of the figure.
        title: Heading of the panel.
        compact: Whether to return a smaller panel, which is shown next to others.
        devices: Ids of the GPUs whose rows are drawn, if rows are about GPUs. If empty, all rows are drawn.
        options: Options of the figure.
    """
    try:
        rows = get_trace_view(trace).figure_rows(name, **options)
        if devices and "device_id" in rows.columns:  # other GPUs have rows without activities
            rows = rows.filter(rows["device_id"].is_in(devices))
        drawn = draw_figure(name, rows)
    except MissingTableError:
        return None
    except TracekitError as error:
        return build_panel(title, [build_error_message(error)])
    return build_figure_panel(drawn, title, compact=compact)


def build_deferred_panel(token: str, title: str, status: str, state: PageState) -> Element:
    """Return a panel that the browser replaces with another one, which the server computes when it is requested.

    Args:
        token: The token with which ``ViewedCaptures.compute_deferred_result`` computes the panel.
        title: Heading of the panel.
        status: Sentence that is shown until then.
        state: State of the page.
    """
    return build_panel(
        title, build_pending_notes(status, state), data_fragment=f"/fragment/later/{token}", aria_busy="true"
    )


def build_pending_notes(status: str, state: PageState) -> list[Content]:
    """Return a sentence that is shown until content arrives, and a link for browsers without scripts."""
    complete = state.make_url(**{**state.parameters, WITHOUT_SCRIPTS: "no"})
    link = build_link("Show this page with all panels", complete)
    return [tag.p(status, class_="dim pending"), tag.noscript(tag.p(link))]


def build_figure_panel(chart: Chart, title: str, *, compact: bool = False) -> Element:
    """Return a panel that shows a chart.

    Args:
        chart: The chart.
        title: Heading of the panel.
        compact: Whether to return a smaller panel, which is shown next to others.
    """
    return build_panel(title, [build_graph(chart, compact=compact)])


def build_graph(chart: Chart, *, compact: bool = False) -> Element:
    """Return a chart without its title as SVG.

    Args:
        chart: The chart.
        compact: Whether the figure is shown next to others.
    """
    size = {"width": COMPACT_WIDTH, "height": COMPACT_HEIGHT} if compact else {"width": WIDTH}
    drawn = draw_svg(chart, **size)
    label = f"Chart: {chart.title or 'Chart'}"
    shown = tag.div(
        drawn, class_="chart compact" if compact else "chart", tabindex="0", role="region", aria_label=label
    )
    return tag.figure(shown)


def build_panel(title: str, content: Sequence[Content], **attributes: Any) -> Element:
    """Return a panel that contains a heading, followed by the content."""
    return tag.section(tag.h2(title), *content, class_="panel", **attributes)


def build_number_card(label: str, value: Content, note: Content = "") -> Element:
    """Return an element that shows a number with a label and an optional note."""
    return tag.div(tag.dt(label), tag.dd(value, tag.span(note, class_="note") if note else None), class_="number-card")


def build_error_message(error: TracekitError) -> Element:
    """Return an element that shows the message and the hint of an error."""
    hint = tag.p(error.hint, class_="dim") if error.hint else None
    return tag.div(tag.p(error.message), hint, class_="panel message")


def build_step_notes(context: Context) -> list[Content]:
    """Return a paragraph that says which range delimits steps, how many there are, and how much work lies in them.

    The list is empty for a capture without ranges, GPU activities and recorded iterations.
    """
    recorded = context.capture.trace.count("iterations") > 0
    if not recorded and not context.capture.has_rows_in_any("nvtx_ranges", *schemas.list_tables("activity")):
        return []
    try:
        notes = list_notes(context.capture.trace.stats("steps") if recorded else context.read_report("steps"))
    except MissingTableError:
        return []
    except TracekitError as error:
        return [build_error_message(error)]
    return build_note_paragraphs(notes)


def build_layer_notes(context: Context) -> list[Content]:
    """Return paragraphs that say which replays of CUDA graphs are divided into layers, and why others are not.

    The list is empty for a capture without CUDA graphs.
    """
    trace, notes = context.capture.trace, []
    graphs = pl.struct("process_id", "graph_id").n_unique().alias("graphs")
    executions, graph_count = trace.frame("graph_launches").select(pl.len(), graphs).collect().row(0)
    if executions:
        notes.append(f"Warning: {describe_whole_graphs(executions, graph_count)}.")
    if context.capture.has_layers:
        try:
            known, unknown = context.read_report("graph_alignment").select(pl.col("Matched", "Abstained").sum()).row(0)
        except TracekitError as error:
            return [*build_note_paragraphs(notes), build_error_message(error)]
        if known or unknown:
            notes.append(
                "Replays of CUDA graphs are divided into the ranges of their layers: "
                f"{known:,} of {known + unknown:,} activities of graphs have a layer."
            )
    return build_note_paragraphs(notes)


def build_note_paragraphs(notes: Iterable[str]) -> list[Content]:
    """Return a paragraph for each sentence about steps. Warnings are highlighted."""
    return [tag.p(note, class_="warning" if "Warning: " in note else "steps", role="note") for note in notes]


def build_warm_up_link(state: PageState) -> Element:
    """Return a paragraph with a link to the same page that includes the warm-up or leaves it out."""
    label = "Leave out the warm-up" if state.at.include_warm_up else "Include the warm-up"
    other = replace(state.at, include_warm_up=not state.at.include_warm_up)
    return tag.p(build_link(label, make_url(state.page, other)))


def shorten(name: str) -> str:
    """Shorten a name to at most 40 characters by replacing its beginning with an ellipsis."""
    return name if len(name) <= MAX_NOTE else "…" + name[1 - MAX_NOTE :]


def build_form(action: str, parameters: Mapping[str, str], fields: Iterable[Content], button: str) -> Element:
    """Return a form that opens a page with the values of its fields.

    Args:
        action: Path of the page.
        parameters: Further URL parameters, which the form does not change.
        fields: Elements of the form.
        button: Label of the button.
    """
    hidden = [tag.input(type="hidden", name=name, value=value) for name, value in parameters.items()]
    return tag.form(*hidden, *fields, tag.button(button, type="submit"), method="get", action=action, class_="form")


def build_input(label: str, name: str, value: Content = None, **attributes: Any) -> Element:
    """Return an input field with a label. Its value is the URL parameter ``name``."""
    return tag.label(label, tag.input(name=name, value=value, **attributes), class_="field")


def build_select(label: str, name: str, choices: Iterable[tuple[str, str]], current: str) -> Element:
    """Return a drop-down list with a label. Each choice consists of a label and a value of the URL parameter."""
    options = [tag.option(text, value=value, selected=value == current) for text, value in choices]
    return tag.label(label, tag.select(*options, name=name), class_="field")


def build_navigation_select(
    state: PageState,
    label: str,
    name: str,
    choices: Iterable[tuple[str, str]],
    current: str,
    *,
    parameters: Mapping[str, str] | None = None,
) -> Element:
    """Return a form with a drop-down list, which opens the page of a state with another value of a parameter.

    Args:
        state: State of the page.
        label: Label of the list.
        name: Name of the URL parameter.
        choices: Label and value of each choice.
        current: The current value.
        parameters: Further parameters of the page.
    """
    unchanged = {**state.at.to_url_parameters(), **(parameters or {})}
    unchanged.pop(name, None)
    return build_form(f"/{state.page}", unchanged, [build_select(label, name, choices, current)], "Show")


def build_navigation_control(name: str, choices: Sequence[tuple[str, str]], current: str) -> Element:
    """Return a row of links, one of which is current. Each choice consists of a label and a URL.

    Args:
        name: Name of the parameter that the links choose.
        choices: Label and URL of each choice.
        current: URL of the current choice.
    """
    items = [tag.li(build_link(label, url, aria_current="true" if url == current else None)) for label, url in choices]
    return tag.ul(*items, class_="choices", aria_label=name.replace("_", " ").capitalize())


def build_link(text: str, href: str, **attributes: Any) -> Element:
    """Return a link to another page of the viewer."""
    return tag.a(text, href=href, **attributes)
