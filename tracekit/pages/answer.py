"""Build the answer of ``why`` for pages: one sentence, the time of a step as a waterfall, the causes, and the ranks.

Everything is text or a table. The drawings in it repeat the numbers beside them, so that they are hidden from screen
readers.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from tracekit.text import format_duration, shorten_end
from tracekit.text.elements import tag
from tracekit.text.explanations import KERNELS_TITLE, REST, LedgerRow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.text.elements import Content, Element
    from tracekit.text.explanations import CauseText, Explanation, RankRow, RowsOfCause

    MakeUrl = Callable[[str, int | None, Mapping[str, str]], str | None]
    """Function that returns the URL of a page, given its name, a rank or None, and parameters, or None if there is no
    such page."""

TITLE, TITLE_OF_KERNELS = "Why a step takes this long", "What limits the measured kernels"
TITLE_OF_RANKS = "Why a step of the job takes this long"
MAX_CAUSES = 3
"""Number of causes that are shown at once. The others are collapsed."""
_STATUS_TEXTS = {
    "answered": "",
    "nothing_found": "Nothing to gain",
    "unsure": "Cannot tell",
    "not_recorded": "Not recorded",
    "not_applicable": "Nothing to explain",
}
_GROUP_TITLES = {
    "compute": "computing",
    "opaque": "unknown graphs",
    "communication": "communication",
    "copy": "copies",
    "idle": "idle",
    REST: "other",
}
_WIDTH = 1000
_HEIGHT = 12
_MAX_NAME, _MAX_NAMES_LENGTH, _MAX_IDS = 48, 4000, 50
_MAX_OPEN_RANKS, _MAX_LINKED_RANKS = 4, 8


class _RowsPage(NamedTuple):
    """Where a page shows the rows of a table.

    Attributes:
        page: Name of the page.
        table: Name of the table on the page.
        noun: What the rows are, in singular and plural.
        name: Column with the names of the rows, or "" if they have none.
        start: Column with their start, or "" if the table has none.
        key: Column with their ids, or "" if the table groups them.
    """

    page: str
    table: str
    noun: tuple[str, str]
    name: str = ""
    start: str = "start_ns"
    key: str = ""


_ROWS_PAGES = {
    "kernels": _RowsPage("kernels", "kernels", ("kernel", "kernels"), "name", ""),
    "memcpys": _RowsPage("memory", "memcpys", ("copy", "copies"), "copy_kind", key="memcpy_id"),
    "memsets": _RowsPage("memory", "memsets", ("memory set", "memory sets"), key="memset_id"),
    "graph_launches": _RowsPage("tables", "table:graph_launches", ("graph launch", "graph launches")),
    "api_calls": _RowsPage("api", "api_calls", ("API call", "API calls"), "name", key="api_call_id"),
    "nvtx_ranges": _RowsPage("nvtx", "nvtx_ranges", ("range", "ranges"), "name"),
    "ncu_launches": _RowsPage(
        "roofline", "ncu_launches", ("measured kernel", "measured kernels"), "name", "", "launch_id"
    ),
}


def build_answer(explanation: Explanation, make_url: MakeUrl | None = None, *, beside: Content = None) -> Element:
    """Return the section that states why steps take as long as they do.

    Args:
        explanation: The answer of ``why``.
        make_url: Function that returns the URLs of links, or None for no links.
        beside: Content below the waterfall, beside the causes.
    """
    link = make_url or _make_no_url
    causes = [_build_cause(i, cause, link) for i, cause in enumerate(explanation.causes)]
    body = [
        build_waterfall(explanation.ledger, explanation.step_ns, explanation.ledger_title),
        _build_causes(explanation, causes),
        tag.div(beside) if beside else None,
    ]
    title = tag.h2(choose_title(explanation), id="answer-title")
    parts = [
        title,
        _build_sentence(explanation),
        tag.p(explanation.scope, class_="dim scope-of-answer") if explanation.scope else None,
        _build_skew(explanation, link),
        tag.div(*body, class_="answer-parts") if explanation.ledger else None,
        _build_ranks(explanation, link),
        _build_warm_up(explanation, link),
        _build_notes(explanation),
    ]
    return tag.section(*parts, class_="panel answer", aria_labelledby="answer-title")


def choose_title(explanation: Explanation) -> str:
    """Return the heading of an answer."""
    if explanation.ledger_title == KERNELS_TITLE:
        return TITLE_OF_KERNELS
    return TITLE_OF_RANKS if explanation.rank_rows else TITLE


def _make_no_url(_page: str, _rank: int | None, _parameters: Mapping[str, str]) -> None:
    return None


def _build_sentence(explanation: Explanation) -> Element:
    status = _STATUS_TEXTS.get(explanation.status, "")
    badge = tag.strong(status, class_=f"badge status-{explanation.status.replace('_', '-')}") if status else None
    return tag.p(badge, " " if badge else None, explanation.sentence, class_="sentence")


def build_waterfall(rows: Sequence[LedgerRow], total_ns: int, title: str) -> Element:
    """Return the parts of a time as a table with bars, each of which starts where the one before ends.

    Args:
        rows: The parts. Their times add up to the total.
        total_ns: The total.
        title: What the total is.
    """
    body, start = [], 0
    for row in rows:
        shown = shorten_end(row.label, _MAX_NAME)
        body.append(
            tag.tr(
                tag.th(shown, scope="row", title=None if shown == row.label else row.label),
                tag.td(_draw_bar(start, row.ns, total_ns, row.group), class_="bar"),
                tag.td(_build_time(row.ns), class_="number"),
                tag.td(_format_percentage(row.ns, total_ns), class_="number"),
            )
        )
        start += row.ns
    sum_row = tag.tr(
        tag.th("Sum of all parts", scope="row"),
        tag.td(class_="bar"),
        tag.td(_build_time(start), class_="number"),
        tag.td(_format_percentage(start, total_ns), class_="number"),
    )
    columns = (("Part", None), ("Start to end", "bar"), ("Time", "number"), ("Share", "number"))
    head = tag.tr([tag.th(text, scope="col", class_=class_) for text, class_ in columns])
    table = tag.table(tag.caption(title), tag.thead(head), tag.tbody(body), tag.tfoot(sum_row), class_="waterfall")
    return tag.div(table, _build_legend(rows, total_ns))


def _build_time(ns: int) -> Element:
    """Return a time with as many digits as in the sentence, and the exact time in the background."""
    return tag.data(format_duration(ns), value=ns, title=f"{ns:,} ns")


def _format_percentage(ns: int, total_ns: int) -> str:
    return f"{ns / max(1, total_ns):.1%}"


def _draw_bar(start_ns: int, ns: int, total_ns: int, group: str) -> Element:
    """Return the bar of one part on the scale of all parts, which is at least so wide that it is visible."""
    x, width = (_WIDTH * value / max(1, total_ns) for value in (start_ns, ns))
    shown = max(width, 3.0)
    rect = tag.rect(
        x=f"{min(x, _WIDTH - shown):.2f}", width=f"{shown:.2f}", y=0, height=_HEIGHT, class_=f"part-{group}"
    )
    return _draw([rect], data_start=start_ns, data_ns=ns)


def _draw(shapes: Sequence[Element], **attributes: int) -> Element:
    return tag.svg(
        shapes,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        aria_hidden="true",
        class_="strip",
        **attributes,
    )


def _build_legend(rows: Sequence[LedgerRow], total_ns: int) -> Element:
    """Return the share of each class of parts, with its color."""
    totals: dict[str, int] = {}
    for row in rows:
        totals[row.group] = totals.get(row.group, 0) + row.ns
    items = [
        tag.span(
            tag.svg(tag.rect(width=10, height=10, class_=f"part-{group}"), width=10, height=10, aria_hidden="true"),
            f" {_GROUP_TITLES.get(group, group)} {_format_percentage(ns, total_ns)}",
            class_="key",
        )
        for group, ns in totals.items()
    ]
    return tag.p(*items, class_="legend")


def _build_causes(explanation: Explanation, causes: Sequence[Element]) -> Element | None:
    if not causes:
        return None
    others = causes[MAX_CAUSES:]
    noun = "cause" if len(others) == 1 else "causes"
    more = (
        tag.details(
            tag.summary(f"{len(others)} more {noun}"),
            tag.ol(*others, class_="causes", start=MAX_CAUSES + 1),
        )
        if others
        else None
    )
    together = f"{explanation.together[:1].upper()}{explanation.together[1:]}" if explanation.together else ""
    return tag.div(
        tag.h3("Causes, by what their cure saves"),
        tag.ol(*causes[:MAX_CAUSES], class_="causes"),
        more,
        tag.p(together, class_="dim") if together else None,
        class_="causes-frame",
    )


def _build_cause(index: int, cause: CauseText, make_url: MakeUrl) -> Element:
    """Return a list item with a cause: its saving, its change, links, and its evidence."""
    shown, _, rest = cause.evidence.partition("; ")
    is_first = index == 0
    details = [rest if is_first else cause.evidence, cause.functions, cause.check]
    shows_missing = is_first and cause.is_unsure
    details += [] if shows_missing else [cause.missing]
    paragraphs = [tag.p(text) for text in details if text]
    links = list(_list_links(cause, make_url))
    return tag.li(
        tag.h4(cause.title, " ", _build_saving(cause)),
        tag.p(shown, class_="evidence") if is_first else None,
        tag.p(_capitalize_label(cause.change)) if cause.change else None,
        tag.p(_capitalize_label(cause.missing)) if shows_missing and cause.missing else None,
        tag.p([[" · " if i else "", each] for i, each in enumerate(links)], class_="links") if links else None,
        tag.details(tag.summary("Evidence and check"), paragraphs) if paragraphs else None,
        class_="cause",
    )


def _capitalize_label(text: str) -> Content:
    """Return a text such as ``change: use pinned memory`` with its label in bold."""
    label, _, rest = text.partition(": ")
    return [tag.strong(f"{label[:1].upper()}{label[1:]}:"), f" {rest}"]


def _build_saving(cause: CauseText) -> Element:
    """Return the predicted saving of a cause with its interval."""
    low, likely, high = cause.interval
    if high == 0:
        return tag.span(cause.saving, class_="saving")
    shapes = [
        tag.rect(x=0, y=4, width=_WIDTH, height=4, class_="track"),
        tag.rect(
            x=f"{_WIDTH * low:.1f}", y=2, width=f"{_WIDTH * max(high - low, 0.004):.1f}", height=8, class_="range"
        ),
    ]
    if cause.is_unsure:
        return tag.span(cause.saving, " ", _draw(shapes), class_="saving unsure")
    shapes.append(
        tag.rect(x=f"{min(_WIDTH * likely, _WIDTH - 12):.1f}", y=0, width=12, height=_HEIGHT, class_="likely")
    )
    value = _build_time(cause.saving_ns)
    text = cause.saving.removeprefix("saves ")
    return tag.span("saves ", value, f", {text} ", _draw(shapes), class_="saving")


def _list_links(cause: CauseText, make_url: MakeUrl) -> list[Element]:
    """Return links to the longest occurrence of a cause in the timeline, and to its rows in tables."""
    links = []
    if cause.start_ns is not None and cause.end_ns is not None:
        parameters = {"start": str(cause.start_ns), "end": str(cause.end_ns)}
        parameters |= {"event": cause.event} if cause.event else {}
        url = make_url("timeline", cause.rank, {**parameters, "cause": cause.cause})
        links += [tag.a("Show the longest in the timeline", href=url)] if url else []
    for rows in cause.rows:
        page = _ROWS_PAGES.get(rows.table)
        names = _select_names(rows) if page and page.name else []
        url = make_url(page.page, cause.rank, _make_parameters(page, rows, names)) if page else None
        if page and url:
            part = _describe_filter(page, rows, names)
            links.append(tag.a(f"{rows.count:,} {page.noun[rows.count != 1]}{part}", href=url))
    return links


def _select_names(rows: RowsOfCause) -> list[str]:
    """Return the most frequent names of rows, as many as fit into a URL."""
    lengths = itertools.accumulate(len(quote(name)) for name in rows.names)
    return [name for name, length in zip(rows.names, lengths, strict=True) if length <= _MAX_NAMES_LENGTH]


def _has_ids(page: _RowsPage, rows: RowsOfCause) -> bool:
    """Return whether a page can select rows by their ids, and a URL has room for these."""
    return bool(page.key) and 0 < len(rows.ids) <= _MAX_IDS


def _describe_filter(page: _RowsPage, rows: RowsOfCause, names: Sequence[str]) -> str:
    """Return by what the page selects the rows of a cause if it may show others too, or else not all of them."""
    if _has_ids(page, rows):
        return ""
    if page.name and len(names) < rows.name_count:
        return f" ({len(names)} of {rows.name_count:,} names)"
    by = ["name"] if names else []
    by += ["time"] if page.start and rows.start_ns is not None else []
    return f" (by {' and '.join(by)})" if by else ""


def _make_parameters(page: _RowsPage, rows: RowsOfCause, names: Sequence[str]) -> dict[str, str]:
    """Return the URL parameters with which a page shows only the rows of a cause, or those with its names and times."""
    filters: dict[str, object] = {}
    by_id = _has_ids(page, rows)
    column, values = (page.key, rows.ids) if by_id else (page.name, names)
    if values:
        conditions = [{"type": "equals", "filter": value} for value in values]
        filters[column] = conditions[0] if len(conditions) == 1 else {"operator": "OR", "conditions": conditions}
    if not by_id and page.start and rows.start_ns is not None and rows.end_ns is not None:
        filters[page.start] = {"type": "inRange", "filter": rows.start_ns, "filterTo": rows.end_ns}
    parameters = {f"{page.table}.filter": json.dumps(filters)} if filters else {}
    chosen = {"table": page.table.removeprefix("table:")} if page.page == "tables" else {}
    return chosen | parameters


def _build_skew(explanation: Explanation, make_url: MakeUrl) -> Element | None:
    """Return how the ranks differ, with links to them."""
    if not explanation.skew:
        return None
    urls = {row.rank: make_url("", row.rank, {}) for row in explanation.rank_rows[:_MAX_LINKED_RANKS]}
    links = [
        [" · " if i else " ", tag.a(f"rank {rank}", href=url)] for i, (rank, url) in enumerate(urls.items()) if url
    ]
    return tag.p(explanation.skew, ". Show only" if links else ".", links, class_="skew")


def _build_ranks(explanation: Explanation, make_url: MakeUrl) -> Element | None:
    """Return a table of the ranks: their steps, and the shares in which they compute and wait for others."""
    if not explanation.rank_rows:
        return None
    head = tag.tr(
        [
            tag.th(text, scope="col", class_=class_)
            for text, class_ in (
                ("Rank", None),
                ("Computing, waiting for others, other", "bar"),
                ("Step", "number"),
                ("Waits for others", "number"),
            )
        ]
    )
    body = [_build_rank(row, explanation.step_ns, make_url) for row in explanation.rank_rows]
    count = len(explanation.rank_rows)
    table = tag.table(tag.caption("Ranks"), tag.thead(head), tag.tbody(body), class_="waterfall ranks")
    return tag.details(tag.summary(f"{count} ranks"), table, open=count <= _MAX_OPEN_RANKS)


def _build_rank(row: RankRow, step_ns: int, make_url: MakeUrl) -> Element:
    url = make_url("", row.rank, {})
    name = f"rank {row.rank}"
    label = tag.a(name, href=url) if url else name
    if row.step_ns is None:
        return tag.tr(tag.th(label, scope="row"), tag.td("no GPU work", colspan=3))
    longest = max(step_ns, row.step_ns)
    scale = row.step_ns / max(1, longest)
    edges = (0.0, row.busy, row.busy + row.waits, 1.0)
    shapes = [
        tag.rect(
            x=f"{_WIDTH * scale * a:.2f}", y=0, width=f"{_WIDTH * scale * max(0, b - a):.2f}", height=_HEIGHT, class_=c
        )
        for a, b, c in zip(edges, edges[1:], ("part-compute", "part-communication", "part-idle"), strict=False)
    ]
    return tag.tr(
        tag.th(label, " (slowest)" if row.is_slowest else None, scope="row"),
        tag.td(_draw(shapes), class_="bar"),
        tag.td(_build_time(row.step_ns), class_="number"),
        tag.td(_build_time(row.waits_ns), f" ({row.waits:.0%})", class_="number"),
    )


def _build_warm_up(explanation: Explanation, make_url: MakeUrl) -> Element | None:
    if not explanation.cold:
        return None
    url = None
    if explanation.cold_span:
        first, last = explanation.cold_span
        url = make_url("timeline", None, {"start": str(first), "end": str(last)})
    return tag.details(
        tag.summary(f"Warm-up: {explanation.cold}"),
        build_waterfall(explanation.cold_ledger, explanation.cold_ns, "Time of the warm-up"),
        tag.p(tag.a("Show the warm-up in the timeline", href=url), class_="links") if url else None,
    )


def _build_notes(explanation: Explanation) -> Element | None:
    if not explanation.notes:
        return None
    return tag.ul([tag.li(note) for note in explanation.notes], class_="dim notes", aria_label="Notes")
