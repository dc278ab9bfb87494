"""The page "Call stacks": an icicle chart and tables of call stacks, for the selected events, thread and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import dash_mantine_components as dmc
from dash import html

from tracekit.errors import TracekitError
from tracekit.exporters.stacks.profile import EVENTS
from tracekit.view import components, grid, stacks

if TYPE_CHECKING:
    from tracekit.view.pages import Context

MAX_THREADS = 200
"""Maximum number of threads that the control offers. The threads with the most events are offered."""


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Call stacks"."""
    trace = context.capture.get_aggregated_trace(context.state.at)
    values = {name: context.state.get(name) for name in stacks.PARAMETERS if context.state.get(name)}
    selection = stacks.parse_selection(
        trace, {name: text for name, text in values.items() if name in ("events", "weight")}
    )
    try:
        selection = stacks.parse_selection(trace, values)
        parts = _build_figure_and_tables(context, selection, values)
    except TracekitError as error:
        parts = [grid.build_error_message(error)]
    return [_build_selection_controls(context, selection, values), *(part for part in parts if part is not None)]


def _build_figure_and_tables(context: Context, selection: stacks.EventsWithStacks, values: dict[str, str]) -> list[Any]:
    """Return the figure and the tables for the selected call stacks."""
    window = (values.get("start", ""), values.get("end", ""))
    title = f"{EVENTS[selection.events]} by call stack"
    figure = context.build_figure(
        "stacks", title, trace=selection.trace, cache_key=window, **selection.create_plot_options()
    )
    return [figure, context.build_table("stack_functions", values), context.build_table("stack_events", values)]


def _build_selection_controls(context: Context, selection: stacks.EventsWithStacks, values: dict[str, str]) -> Any:
    """Return the controls that select the events, the weight, the thread and the time window."""

    def build_url(**changed: str) -> str:
        """Return the URL of the page with some parameters changed. If the events change, the thread is reset."""
        unchanged = {name: text for name, text in values.items() if "events" not in changed or name != "thread"}
        return context.state.make_url(**{name: text for name, text in {**unchanged, **changed}.items() if text})

    known = context.capture.get_aggregated_trace(context.state.at).plot.stack_events()
    events = [(EVENTS[name], build_url(events=name)) for name in known]
    weights = [(label, build_url(weight=name)) for name, label in stacks.WEIGHTS.items()]
    controls = [
        components.build_navigation_control("events", events, build_url(events=selection.events)),
        components.build_navigation_control("weight", weights, build_url(weight=selection.weight)),
    ]
    threads = [("All threads", build_url(thread=""))]
    for each in _list_busiest_threads(selection):
        label = f"{each.name or 'thread'} ({each.thread_id}): {each.event_count:,}"
        threads.append((label, build_url(thread=f"{each.process_id}:{each.thread_id}")))
    current = build_url(thread=values.get("thread", ""))
    choose = components.build_navigation_select("thread", threads, current, w=300, label="Thread")
    form = dmc.Group([choose, *_build_time_window_fields(values, build_url(start="", end=""))], align="end", gap="sm")
    return html.Div([dmc.Group(controls, className="controls"), components.build_panel("Selection", [form])])


class Thread(NamedTuple):
    """A thread with the number of its selected events that have a call stack."""

    process_id: int
    thread_id: int
    name: str | None
    event_count: int


def _list_busiest_threads(selection: stacks.EventsWithStacks) -> list[Thread]:
    """Return the threads with the most events, at most ``MAX_THREADS``."""
    rows = (
        selection.count_events_by_thread().head(MAX_THREADS).select("process_id", "thread_id", "thread_name", "count")
    )
    return list(map(Thread._make, rows.iter_rows()))


def _build_time_window_fields(values: dict[str, str], whole_capture_url: str) -> list[Any]:
    """Return the input fields and the button that select a time window."""
    fields = [
        dmc.TextInput(id=f"stacks-{name}", label=label, value=values.get(name, ""), size="xs", w=160)
        for name, label in (("start", "From (ns)"), ("end", "To (ns)"))
    ]
    button = dmc.Button("Limit the time", id="limit-stacks", size="xs")
    links = [components.build_link("Whole capture", whole_capture_url)] if "start" in values or "end" in values else []
    return [*fields, button, *links]
