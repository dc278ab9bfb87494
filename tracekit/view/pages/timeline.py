"""The page "Timeline": the events of a time window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.text.elements import tag
from tracekit.view import components, windows
from tracekit.view.state import make_url

if TYPE_CHECKING:
    from tracekit.view.pages import Context


def build_page(context: Context) -> list[Any]:
    """Return the components of the page "Timeline"."""
    window = windows.choose_window(
        context.capture.get_aggregated_trace(context.state.at), context.state.get("start"), context.state.get("end")
    )
    start, end = window.converted
    parameters = {"start": str(start), "end": str(end)}
    download = components.build_link(
        "Download this window for Perfetto", make_url("trace.pftrace", context.state.at, parameters), download=True
    )
    note = tag.p(
        [
            f"Events from {start:,} ns to {end:,} ns"
            + (
                "."
                if window.contains_all_events
                else f", of {window.span[0]:,} ns to {window.span[1]:,} ns in the capture. "
            ),
            *([] if window.contains_all_events else _build_window_links(context, window)),
        ],
        class_="dimmed",
    )
    return [note, tag.p(download)]


def _build_window_links(context: Context, window: windows.TimeWindow) -> list[Any]:
    """Return links to the previous and the next time window."""
    links: list[Any] = []
    for label, part in (("Earlier", window.compute_preceding_window()), ("Later", window.compute_following_window())):
        if part:
            url = context.state.make_url("timeline", start=str(part[0]), end=str(part[1]))
            links += [components.build_link(label, url), " "]
    return links
