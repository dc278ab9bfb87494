"""Compare what a page in the browser shows with the tables of the capture."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.view.browser import Tab, Table
from tracekit.text import to_printable
from tracekit.view import query as queries
from tracekit.view.grid import create_query
from tracekit.view.sources import INDENT
from tracekit.view.state import parse_url

if TYPE_CHECKING:
    from tracekit.view.server import Viewer

PATIENCE = 20
"""Seconds in which a table must show the rows that the URL describes."""


def requested_rows(tab: Tab, viewer: Viewer, name: str, count: int = 3) -> queries.PageOfRows:
    """Return the first rows that the URL describes for a table of the page."""
    url = urlsplit(tab.page.url)
    state = parse_url(url.path, url.query, len(viewer._captures))
    query = create_query(viewer._captures, name, state, tab.table(name).arguments())
    return queries.load_page(viewer._captures, query, 0, count)


def difference(tab: Tab, viewer: Viewer, name: str) -> Any:
    """Return how the first rows, the sums and the status of a table differ from those of the capture; None if not."""
    table, page = tab.table(name), requested_rows(tab, viewer, name)
    words = {word.strip(",()") for word in table.status().split()}
    if not {f"{page.matching:,}", f"{page.total:,}"} <= words:
        return table.status(), page.matching, page.total
    rows, sums = table.rows() if page.matching else [], table.sums()
    if (len(rows), len(sums)) != (len(page.rows), len(page.sums)):
        return len(rows), len(page.rows), len(sums), len(page.sums)
    for seen, wanted in zip([*rows, *sums], [*page.rows, *page.sums], strict=True):
        for column, text in seen.items():
            expected = wanted.get(column, wanted.get("_label") if "_label" in wanted else None)
            if "_label" in wanted and column not in wanted:
                continue
            if _normalize(text) != _normalize(_write(expected)):
                return column, text, expected
    return None


def _write(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return to_printable(value) if isinstance(value, str) else repr(value)


def _normalize(text: str) -> str:
    return text.strip(f"▾▸{INDENT} ")


def check_table(tab: Tab, viewer: Viewer, name: str) -> None:
    """Wait until a table shows the rows that the URL describes."""
    deadline = time.monotonic() + PATIENCE
    while (wrong := difference(tab, viewer, name)) is not None:
        assert time.monotonic() < deadline, (name, tab.page.url, wrong)
        tab.page.wait_for_timeout(50)


def check_rows(tab: Tab, viewer: Viewer) -> set[str]:
    """Compare the first rows of all tables of a page with those of the capture, and return the names of the tables."""
    names = Table.names(tab.page)
    for name in names:
        check_table(tab, viewer, name)
    return set(names)
