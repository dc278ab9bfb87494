"""Build the HTML documents of pages: the header, the scope, the navigation, and the content."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from tracekit.errors import TracekitError
from tracekit.pages.document import build_switches
from tracekit.text.elements import tag
from tracekit.view import components, pages, ranks
from tracekit.view.state import CAPTURE, make_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.text.elements import Content, Element
    from tracekit.view.captures import ViewedCaptures
    from tracekit.view.state import CaptureAggregation, PageState

_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript"}
_FILES = {
    "page.css": ("tracekit.pages", "page.css"),
    "svg.css": ("tracekit.plots", "svg.css"),
    "view.css": ("tracekit.view", "assets/view.css"),
    "table.css": ("tracekit.view", "assets/table.css"),
    "page.js": ("tracekit.pages", "page.js"),
    "view.js": ("tracekit.view", "assets/view.js"),
    "table.js": ("tracekit.view", "assets/table.js"),
    "timeline.js": ("tracekit.view", "assets/timeline.js"),
}
"""Package and path in the package of each file that pages load."""
STYLES = tuple(name for name in _FILES if name.endswith(".css"))
SCRIPTS = ("page.js", "view.js", "table.js")
PATIENCE_S = 0.5
"""Time after which a page is shown without its content, which the browser requests then."""
MAX_LISTED = 64
"""Maximum number of GPUs or ranks that the scope offers as check boxes. More are chosen in the URL."""


class Asset(NamedTuple):
    """The content of a file that pages load, its media type and the hash of the content."""

    content: bytes
    media_type: str
    hash: str


@functools.cache
def read_asset(name: str) -> Asset | None:
    """Return a file that pages load, or None if there is no such file."""
    if name not in _FILES:
        return None
    package, path = _FILES[name]
    content = (resources.files(package) / path).read_bytes()
    suffix = name[name.rindex(".") :]
    return Asset(content, _MEDIA_TYPES[suffix], hashlib.sha256(content).hexdigest()[:16])


def make_asset_url(name: str) -> str:
    """Return the URL of a file that pages load."""
    asset = read_asset(name)
    return f"/assets/{name}?v={asset.hash}" if asset else f"/assets/{name}"


def build_page_document(captures: ViewedCaptures, state: PageState) -> Element:
    """Return the document of a page. If the page cannot be computed, it contains the reason.

    Args:
        captures: The captures of the server.
        state: State of the page.
    """
    draws_later = state.get(components.WITHOUT_SCRIPTS) != "no"
    title, page = format_page_title(state), pages.PAGES.get(state.page)
    content, token = captures.compute_within(
        PATIENCE_S if draws_later and not (page and page.scripts) else None,
        f"computing the page {title}",
        lambda: _build_content(captures, state, draws_later=draws_later),
    )
    if token:
        notes = components.build_pending_notes("The capture is being read …", state)
        content = [tag.section(tag.h1(title), *notes, data_fragment=f"/fragment/later/{token}", aria_busy="true")]
    messages = [_build_progress(captures), *_build_change_message(captures), *_build_unreadable_list(captures)]
    return build_document(
        f"{title} · {captures[state.at].name} · tracekit",
        [*messages, *content],
        scripts=page.scripts if page else (),
        header=_build_capture_header(captures, state),
        scope=_build_later_scope(state) if token else build_scope(captures, state),
        navigation=build_navigation(captures, state, computes_later=draws_later),
    )


def _build_content(captures: ViewedCaptures, state: PageState, *, draws_later: bool) -> list[Content]:
    """Return the content of a page, or the reason why it cannot be computed."""
    try:
        return pages.build_page(pages.Context(captures, state, draws_later=draws_later))
    except TracekitError as error:
        return [tag.h1(format_page_title(state)), components.build_error_message(error)]


def build_error_document(error: TracekitError) -> Element:
    """Return the document of a page that cannot be shown, with the reason."""
    link = tag.p(components.build_link("Open the first page", "/"))
    return build_document("Error · tracekit", [tag.h1("Error"), components.build_error_message(error), link])


def build_document(
    title: str,
    content: Sequence[Content],
    *,
    header: Content = None,
    scope: Content = None,
    navigation: Content = None,
    scripts: Sequence[str] = (),
) -> Element:
    """Return an HTML document.

    Args:
        title: Title of the document.
        content: Content of the page.
        header: Content of the header, after the name of the program.
        scope: What the page shows: steps, ranks and GPUs.
        navigation: Links to the pages.
        scripts: Names of the scripts that only this page needs.
    """
    head = [
        tag.meta(charset="utf-8"),
        tag.meta(name="viewport", content="width=device-width, initial-scale=1"),
        tag.title(title),
        tag.link(rel="icon", href="data:,"),
        *(tag.link(rel="stylesheet", href=make_asset_url(name)) for name in STYLES),
        *(tag.script(src=make_asset_url(name), defer=name != "page.js") for name in (*SCRIPTS, *scripts)),
    ]
    top = tag.header(
        components.build_link("tracekit", "/", class_="product"),
        tag.div(header, class_="capture"),
        build_switches(),
        class_="top",
    )
    body = [
        tag.a("Skip to content", href="#page", class_="skip"),
        top,
        scope,
        tag.div(navigation, tag.main(*content, id="page", tabindex="-1"), class_="frame"),
        tag.div(id="connection", role="alert"),
        tag.div(tag.div(class_="spinner"), tag.p("Reading the capture …"), id="progress", role="status", hidden=True),
        tag.div(id="announcement", role="status", aria_live="polite"),
    ]
    return tag.html(tag.head(*head), tag.body(*body), lang="en")


def format_page_title(state: PageState) -> str:
    """Return the title of a page, or "Error" if the page does not exist."""
    page = pages.PAGES.get(state.page)
    return page.title if page else "Error"


def build_navigation(captures: ViewedCaptures, state: PageState, *, computes_later: bool = False) -> Element:
    """Return links to the pages in five groups. Pages without data are dimmed, and say why.

    Args:
        captures: The captures of the server.
        state: State of the page.
        computes_later: Whether to return links that the browser replaces, unless it is already known which pages have
            data.
    """
    later = computes_later and not pages.is_absence_known(captures, captures[state.at])
    absences = {} if later else pages.explain_absent_pages(captures, captures[state.at])
    groups = [
        tag.div(
            tag.h2(group),
            tag.ul(
                *(
                    _build_page_link(page, state, absences.get(page.name))
                    for page in pages.PAGES.values()
                    if page.group == group
                )
            ),
        )
        for group in pages.GROUPS
    ]
    url = make_url("fragment/navigation", state.at, {"page": state.page}) if later else None
    return tag.nav(*groups, aria_label="Pages", data_fragment=url)


def _build_page_link(page: pages.Page, state: PageState, reason: str | None) -> Element:
    """Return a list item with a link to a page. If there is a reason why it has no data, the link is dimmed."""
    current = "page" if page.name == state.page else None
    url = state.make_url(page.name)
    if reason is None:
        return tag.li(components.build_link(page.title, url, class_="nav-link", aria_current=current))
    hidden = tag.span(f": no data, {reason}", class_="hidden")
    title = f"No data: {reason}"
    return tag.li(tag.a(page.title, hidden, href=url, class_="nav-link absent", title=title, aria_current=current))


def _build_capture_header(captures: ViewedCaptures, state: PageState) -> Content:
    """Return the capture selector or the name of the only capture."""
    if len(captures) == 1:
        return tag.span(captures[state.at].name, class_="capture-name")
    choices = [(f"{each.index}: {each.name}", str(each.index)) for each in captures.all]
    at = state.select_capture(0).at.to_url_parameters()
    select = components.build_select("Capture", "capture", choices, str(state.at.capture))
    return components.build_form(f"/{state.page}", at, [select], "Show")


def _build_later_scope(state: PageState) -> Element:
    """Return the bar with the steps. The browser replaces it with the complete one, for which the capture is read."""
    url = make_url("fragment/scope", state.at, {**state.parameters, "page": state.page})
    return tag.div(
        _build_steps_scope(state),
        role="region",
        aria_label="Scope",
        class_="scope",
        data_fragment=url,
        aria_busy="true",
    )


def build_scope(captures: ViewedCaptures, state: PageState) -> Element:
    """Return the bar that shows and changes which steps, GPUs and ranks the page shows."""
    has_steps = captures[state.at].has_rows_in_any(*pages.WITH_ITERATIONS)
    steps = _build_steps_scope(state) if has_steps else None
    others = (_build_layers_scope, _build_devices_scope, _build_ranks_scope)
    parts = [steps, *(build(captures, state) for build in others)]
    return tag.div(*parts, role="region", aria_label="Scope", class_="scope")


def _make_scope_url(state: PageState, at: CaptureAggregation) -> str:
    """Return the URL of the same page with another scope. A selected row may not exist there."""
    unchanged = {name: value for name, value in state.parameters.items() if not name.endswith((".select", ".page"))}
    return make_url(state.page, at, unchanged)


def _build_steps_scope(state: PageState) -> Element:
    """Return which steps are shown, with links to other steps."""
    at = state.at
    steady = replace(at, first=None, last=None, include_warm_up=False)
    choices = [("Steady", steady), ("With warm-up", replace(steady, include_warm_up=True))]
    if at.first is not None or at.last is not None:
        bounds = " to ".join("…" if bound is None else str(bound) for bound in (at.first, at.last))
        choices.append((bounds, at))
    links = [(label, _make_scope_url(state, each)) for label, each in choices]
    key = tag.span(f"key op {components.shorten(at.key_op)}", class_="dim") if at.key_op is not None else None
    more = components.build_link("Choose", make_url("iterations", at), aria_label="Choose steps")
    page = pages.PAGES.get(state.page)
    is_whole = page is not None and page.shows_whole_capture
    note = tag.span("This page shows the whole capture.", class_="dim") if is_whole else None
    control = components.build_navigation_control("steps", links, _make_scope_url(state, at))
    return tag.div(tag.span("Steps", class_="scope-name"), control, key, more, note, class_="scope-part")


def _build_layers_scope(captures: ViewedCaptures, state: PageState) -> Element | None:
    """Return where the ranges inside the replays of CUDA graphs come from, or None if the capture has no layers.

    The links choose the layers of the capture itself. Layers that the command line chose apply to all pages.
    """
    capture = captures.get_capture(state.at.capture)
    name = tag.span("Layers", class_="scope-name")
    if capture.has_layers:
        return tag.div(name, "as chosen with --layers", class_="scope-part")
    if not capture.can_have_layers and not state.at.layers:
        return None
    choices = {"Replay": replace(state.at, layers=""), "Capture": replace(state.at, layers=CAPTURE)}
    links = [(label, _make_scope_url(state, each)) for label, each in choices.items()]
    control = components.build_navigation_control("layers", links, _make_scope_url(state, state.at))
    return tag.div(name, control, class_="scope-part")


def _build_devices_scope(captures: ViewedCaptures, state: PageState) -> Element | None:
    """Return which GPUs are shown, with a form to choose them, or None if the capture has no GPUs."""
    try:
        devices = captures[state.at].devices
    except TracekitError:
        return None
    names = [(str(device), f"GPU {device}") for device in devices]
    return _build_number_scope(state, "devices", "GPUs", names, state.at.devices)


def _build_ranks_scope(captures: ViewedCaptures, state: PageState) -> Element | None:
    """Return which ranks are compared, with a form to choose them, or None if the captures are not those of a job."""
    job = ranks.get_rank_set(captures)
    if job is None:
        return None
    names = [(str(member.rank), f"Rank {member.rank}") for member in job.members]
    return _build_number_scope(state, "ranks", "Ranks", names, state.at.ranks)


def _build_number_scope(
    state: PageState, name: str, title: str, choices: Sequence[tuple[str, str]], chosen: Sequence[int]
) -> Element | None:
    """Return a part of the scope that is a list of numbers, with a form to choose some of them if there are several.

    Args:
        state: State of the page.
        name: Name of the URL parameter.
        title: Name of the part.
        choices: Value and label of each number.
        chosen: The chosen numbers. If empty, all of them.
    """
    if not choices:
        return None
    if len(choices) == 1 and not chosen:
        return tag.div(choices[0][1], class_="scope-part")
    heading = tag.span(title, class_="scope-name")
    label = ", ".join(map(str, chosen)) if chosen else f"all {len(choices)}"
    boxes = [
        tag.label(tag.input(type="checkbox", name=name, value=value, checked=int(value) in chosen), f" {text}")
        for value, text in choices[:MAX_LISTED]
    ]
    without = replace(state.at, devices=()) if name == "devices" else replace(state.at, ranks=())
    unchanged = {**without.to_url_parameters(), **state.parameters}
    everything = components.build_link("All", _make_scope_url(state, without))
    rest = f"{len(choices) - MAX_LISTED:,} more can be chosen in the URL" if len(choices) > MAX_LISTED else None
    form = components.build_form(f"/{state.page}", unchanged, [*boxes, rest, everything], "Show")
    return tag.div(heading, tag.details(tag.summary(label), form, class_="menu"), class_="scope-part")


def _build_progress(captures: ViewedCaptures) -> Content:
    """Return how many captures are read if some are not, in an element that the script compares with later states."""
    opened, waiting = len(captures), captures.waiting
    items = [f"{name} is not read yet" for name in waiting[:MAX_LISTED]]
    items += [f"{name} is being written" for name in captures.growing[:MAX_LISTED]]
    shown = None
    if items:
        counts = f"{opened} of {opened + len(waiting)} captures are read" if waiting else "Captures are being written"
        shown = tag.details(tag.summary(counts), tag.ul(tag.li(item) for item in items))
    state = {"data_opened": opened, "data_waiting": len(waiting), "data_version": captures.version}
    return tag.div(shown, id="captures", class_="captures", **state)


def _build_change_message(captures: ViewedCaptures) -> list[Content]:
    """Return a message that names the captures whose files have changed since they were opened."""
    names = captures.list_changed()
    if not names:
        return []
    text = (
        f"{', '.join(names)}: the file was changed, replaced or removed after it was opened. Pages may show old data."
    )
    hint = tag.p("The viewer opens the new content when the file does not change any more.", class_="dim")
    return [tag.div(tag.p(text), hint, class_="panel message replaced")]


def _build_unreadable_list(captures: ViewedCaptures) -> list[Content]:
    """Return a list of the captures that cannot be read, with the reasons, or nothing if there are none."""
    if not captures.unreadable:
        return []
    count = len(captures.unreadable)
    summary = "1 capture cannot be read" if count == 1 else f"{count} captures cannot be read"
    items = [tag.li(tag.strong(name), f": {reason}") for name, reason in captures.unreadable]
    return [tag.details(tag.summary(summary), tag.ul(*items), open=True, class_="unreadable")]
