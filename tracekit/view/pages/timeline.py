"""The page "Timeline": the events of a time window on tracks, and a table of the first events for every browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import polars as pl

from tracekit import schemas
from tracekit.errors import TracekitError
from tracekit.pages.values import NANOSECONDS, POINT, build_value
from tracekit.text import shorten_end
from tracekit.text.elements import tag
from tracekit.view import components, selection, timeline, tracks, windows
from tracekit.view.state import make_url
from tracekit.view.windows import TimeWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.text.elements import Content, Element
    from tracekit.view.captures import ViewedCaptures
    from tracekit.view.pages import Context
    from tracekit.view.state import PageState
    from tracekit.view.timeline import ShownCapture

EXACT = "exact"
"""Value of the URL parameter ``window`` if the window is not one of an occurrence of a cause, which gets margins."""
MAX_QUICK_KERNELS = 300_000
"""Maximum number of kernels of captures whose timeline begins with the steady steps instead of the whole capture."""
LISTED = (tracks.GPU, tracks.CPU)
"""Parts whose events the table lists."""
KEYS = (
    "Arrow keys move and choose tracks, + and − zoom, and Home shows everything. [ and ] go from event to event of a "
    "track, and Enter selects one. Drag to move. Drag with Shift, or on the axis, to zoom to a window. Ctrl and the "
    "wheel zoom, too."
)
_TOOLS = (
    ("earlier", "←", "Earlier"),
    ("later", "→", "Later"),
    ("in", "+", "Zoom in"),
    ("out", "−", "Zoom out"),
    ("steps", "Steps", "Show the steps without the warm-up"),
    ("all", "All", "Show the whole capture"),
)


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Timeline"."""
    captures, state = context.captures, context.state
    members = timeline.get_timelines(captures).list_members(state)
    span = timeline.find_common_span(captures, members)
    key = selection.parse_event(state.get("event"), state, captures) if state.get("event") else None
    chosen = selection.find_event(captures, key) if key else None
    window = _choose_window(context, members, span, chosen)
    parts = timeline.list_parts(captures, members)
    details = build_details(state, members, chosen) if chosen else None
    panel = tag.div(details, id="timeline-details", role="region", aria_label="Selected event", aria_live="polite")
    return [
        _build_links(state, window, span),
        tag.div(_build_canvas(state, window, span, parts), panel, class_="tl-frame"),
        tag.details(
            tag.summary(f"Events in this window as a table (at most {selection.MAX_ROWS})"),
            tag.div(None if context.draws_later else build_event_table(captures, state, window), class_="tl-list"),
            id="timeline-events",
            class_="panel",
            open=not context.draws_later,
        ),
    ]


def _choose_window(
    context: Context, members: Sequence[ShownCapture], span: TimeWindow, chosen: selection.Selection | None
) -> TimeWindow:
    """Return the window of the URL, or one around the selected event, or that of the chosen steps, or everything."""
    state = context.state
    times = (state.get("start"), state.get("end"))
    if any(times) and not (chosen and times == (str(chosen.start), str(chosen.end))):
        window = windows.parse_window(*times, span)
        if times[0] == times[1]:
            return windows.center_window(int(times[0]), int(times[0]))
        is_occurrence = bool(state.get("cause")) and state.get("window") != EXACT
        margin = window.duration * 3 // 4 if is_occurrence else 0
        return TimeWindow(window.start - margin, window.end + margin)
    if chosen:
        return windows.center_window(*find_member(members, chosen.key.capture).place(chosen.start, chosen.end))
    return _find_steps_window(context, span) or span


def _find_steps_window(context: Context, span: TimeWindow) -> TimeWindow | None:
    """Return the window of the aggregated steps, or None without steps.

    Unless steps are chosen, it is only returned for small captures, because finding steps takes longer than showing
    everything.
    """
    at = timeline.get_aggregation(context.state, context.capture)
    if at.is_default and not any(map(context.capture.trace.count, schemas.list_tables("activity"))):
        return None  # the timeline of other data, such as memory, would be cut off
    if at.include_warm_up or (at.is_default and context.capture.trace.count("kernels") > MAX_QUICK_KERNELS):
        return None
    steps = context.capture.get_aggregated_trace(at).frame("iterations").filter("is_aggregated")
    low, high = (
        steps.select(pl.col("start_ns").min(), pl.max_horizontal("end_ns", "window_end_ns").max()).collect().row(0)
    )
    if low is None or high is None or low >= high:
        return None
    margin = (high - low) // 50
    return TimeWindow(max(low - margin, span.start), min(high + margin, span.end))


def find_member(members: Sequence[ShownCapture], capture: int) -> ShownCapture:
    """Return the capture with an index.

    Raises:
        TracekitError: The URL selects other ranks.
    """
    for member in members:
        if member.capture.index == capture:
            return member
    raise TracekitError(
        f"the selected event is in capture {capture}, which is not shown", hint="choose its rank in the scope"
    )


def build_details(state: PageState, members: Sequence[ShownCapture], chosen: selection.Selection) -> Element:
    """Return what is known about the selected event."""
    return selection.build_details(state, chosen, find_member(members, chosen.key.capture))


def _build_links(state: PageState, window: TimeWindow, span: TimeWindow) -> Element:
    """Return links to the windows before and after a window, and to a file with its events for Perfetto."""
    length = window.duration
    others = [
        ("Earlier", window.start - length, window.start),
        ("Later", window.end, window.end + length),
        ("Zoom in", window.start + length // 4, window.end - length // 4),
        ("Zoom out", window.start - length // 2, window.end + length // 2),
    ]
    links = [
        components.build_link(label, state.make_url("timeline", start=str(start), end=str(end)))
        for label, start, end in others
        if start < span.end and end > span.start
    ]
    times = {"start": str(window.start), "end": str(window.end)}
    download = tag.a(
        "Download this window for Perfetto",
        href=make_url("trace.pftrace", state.at, times),
        download=True,
        data_window=True,
    )
    return tag.p(
        tag.span(([link, " · "] for link in links), class_="tl-plain"),
        download,
        class_="tl-links",
    )


def _build_canvas(state: PageState, window: TimeWindow, span: TimeWindow, parts: Sequence[str]) -> Element:
    """Return the elements in which the script draws the timeline. They are hidden without scripts."""
    opened = [part for part in parts if part in (tracks.STEPS, tracks.CAUSES, tracks.GPU, tracks.CPU)]
    if tracks.GPU not in parts:
        opened += [part for part in parts if part in (tracks.COUNTERS, tracks.OTHER)]
    buttons = [
        tag.button(sign, type="button", data_do=name, title=label, aria_label=label) for name, sign, label in _TOOLS
    ]
    search = tag.form(
        tag.input(
            name="q", type="search", maxlength="200", placeholder="Find an event by name", aria_label="Name of an event"
        ),
        tag.button("Next", type="submit", aria_label="Next event with this name"),
        class_="tl-search form",
        role="search",
    )
    view = tag.div(
        tag.div(class_="tl-corner"),
        tag.canvas(class_="tl-axis", aria_hidden="true"),
        tag.div(
            tag.div(class_="tl-labels", role="group", aria_label="Tracks"),
            tag.div(
                tag.canvas(
                    tabindex="0",
                    role="application",
                    aria_label="Timeline",
                    aria_roledescription="timeline",
                    aria_describedby="timeline-keys",
                ),
                class_="tl-pane",
            ),
            class_="tl-scroll",
        ),
        tag.div(class_="tl-window", hidden=True),
        tag.div(class_="tl-tip", hidden=True),
        class_="tl-view",
    )
    return tag.div(
        tag.div(tag.div(*buttons, class_="tl-buttons", role="group", aria_label="Window"), search, class_="tl-tools"),
        view,
        tag.p(class_="tl-message", role="status"),
        tag.p(KEYS, id="timeline-keys", class_="dim"),
        tag.div(class_="tl-spoken hidden", aria_live="polite"),
        id="timeline",
        class_="scripted timeline",
        data_first=str(span.start),
        data_last=str(span.end),
        data_start=str(window.start),
        data_end=str(window.end),
        data_parts=",".join(parts),
        data_opened=",".join(opened),
        data_cause=state.get("cause"),
        data_parameters=urlencode(state.at.to_url_parameters()),
    )


def build_event_table(captures: ViewedCaptures, state: PageState, window: TimeWindow) -> Content:
    """Return a table of the first events in a window, each with a link that selects it."""
    listed = selection.list_events(captures, state, window, LISTED)
    if not listed:
        return tag.p("There are no events in this window.")
    rows = [
        tag.tr(
            tag.td(build_value(event.start, POINT), class_="number"),
            tag.td(build_value(event.duration, NANOSECONDS), class_="number"),
            tag.th(
                tag.a(
                    shorten_end(event.name, timeline.MAX_NAME) or "(no name)",
                    href=selection.make_event_url(state, selection.parse_event(event.key, state, captures)),
                    data_show_event=event.key,
                ),
                scope="row",
                class_="long",
            ),
            tag.td(event.track),
        )
        for event in listed
    ]
    heads = [tag.th(title, scope="col") for title in ("Start", "Duration", "Event", "Track")]
    count = len(listed)
    caption = f"The first {count} events in this window" if count == selection.MAX_ROWS else f"{count} events"
    table = tag.table(tag.caption(caption), tag.thead(tag.tr(*heads)), tag.tbody(*rows))
    return tag.div(table, class_="scroll", tabindex="0", role="region", aria_label="Events in this window")
