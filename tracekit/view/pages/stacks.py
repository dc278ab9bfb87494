"""The page "Call stacks": an icicle chart and tables of call stacks, for the selected events, thread and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.errors import TracekitError
from tracekit.exporters.stacks.profile import EVENTS
from tracekit.text.elements import tag
from tracekit.view import components, stacks

if TYPE_CHECKING:
    from tracekit.view.pages import Context

MAX_THREADS = 200
"""Maximum number of threads that the control offers. The threads with the most events are offered."""


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Call stacks"."""
    trace = context.capture.get_aggregated_trace(context.state.at)
    values = {name: context.state.get(name) for name in stacks.PARAMETERS if context.state.get(name)}
    values |= {name: values[name].replace(",", "").strip() for name in ("start", "end") if name in values}
    selection = stacks.parse_selection(
        trace, {name: text for name, text in values.items() if name in ("events", "weight")}
    )
    try:
        selection = stacks.parse_selection(trace, values)
        parts = _build_figure_and_tables(context, selection, values)
    except TracekitError as error:
        parts = [components.build_error_message(error)]
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
    threads = [("All threads", "")]
    for each in _list_busiest_threads(selection):
        label = f"{each.name or 'thread'} ({each.thread_id}): {each.event_count:,}"
        threads.append((label, f"{each.process_id}:{each.thread_id}"))
    fields = [
        components.build_select("Thread", "thread", threads, values.get("thread", "")),
        components.build_input("From (ns)", "start", values.get("start"), inputmode="numeric"),
        components.build_input("To (ns)", "end", values.get("end"), inputmode="numeric"),
    ]
    unchanged = {name: text for name, text in values.items() if name in ("events", "weight")}
    form = components.build_form("/stacks", {**context.state.at.to_url_parameters(), **unchanged}, fields, "Show")
    is_limited = "start" in values or "end" in values
    whole = components.build_link("Whole capture", build_url(start="", end="")) if is_limited else None
    return tag.div(tag.div(controls, class_="controls"), components.build_panel("Selection", [form, whole]))


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
