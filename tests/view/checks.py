"""Compare what a page in the browser shows with the tables of the capture."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from tests.view.browser import Tab, Table, shown
from tracekit.view import query as queries
from tracekit.view.datasets import find_dataset
from tracekit.view.grid import parse_table_query
from tracekit.view.sources import INDENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.view.server import Viewer

PATIENCE = 20
"""Seconds in which a table must show the rows that the URL describes."""


def asked(tab: Tab, viewer: Viewer, id_: Mapping[str, str]) -> queries.Query:
    """Return the query that the URL describes for a table of the page."""
    name, values = id_["table"], tab.parameters()
    order = values.get(f"{name}.sort", find_dataset(name).sort)
    columns = [each.partition(":") for each in order.split(",") if each not in ("", "none")]
    return parse_table_query(
        dict(id_),
        len(viewer._captures),
        filter=values.get(f"{name}.filter") or "{}",
        sort=json.dumps([{"colId": column, "sort": direction} for column, _, direction in columns]),
        search=values.get(f"{name}.search", ""),
        condition=values.get(f"{name}.where", ""),
        toggled=values.get(f"{name}.toggled", ""),
    )


def difference(tab: Tab, viewer: Viewer, id_: Mapping[str, str]) -> Any:
    """Return how the first rows, the sums and the status of a table differ from those of the capture; None if not."""
    table, page = tab.table(id_["table"]), queries.load_page(viewer._captures, asked(tab, viewer, id_), 0, 3)
    words = {word.strip(",()") for word in table.status().split()}
    if not {f"{page.matching:,}", f"{page.total:,}"} <= words:
        return table.status(), page.matching, page.total
    rows = table.rows() if page.matching else []
    schema = queries.load_rows(viewer._captures, asked(tab, viewer, id_)).frame.schema
    for seen, wanted in zip(rows, page.rows, strict=False):
        cells = {name: text.strip(f"▾▸{INDENT}") for name, text in seen.items() if not name.startswith("_")}
        numbers = {name: _number(wanted[name]) for name in cells if schema[name].is_integer()}
        expected = {name: shown({**wanted, **numbers}[name]).strip(INDENT) for name in cells}
        if not cells or cells != expected:
            return cells, expected
    sums = {name: text for name, text in table.sums().items() if page.sums and text and name in page.sums[0]}
    expected = {name: shown(_number(page.sums[0][name])) for name in sums}
    return None if len(rows) == len(page.rows) and sums == expected else (len(rows), len(page.rows), sums, expected)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) else value


def check_table(tab: Tab, viewer: Viewer, id_: Mapping[str, str]) -> None:
    """Wait until a table shows the rows that the URL describes."""
    deadline = time.monotonic() + PATIENCE
    while (wrong := difference(tab, viewer, id_)) is not None:
        assert time.monotonic() < deadline, (id_, tab.page.url, wrong)
        tab.page.wait_for_timeout(50)


def check_rows(tab: Tab, viewer: Viewer) -> set[str]:
    """Compare the first rows of all tables of a page with those of the capture, and return the names of the tables."""
    ids = Table.names(tab.page)
    for id_ in ids:
        check_table(tab, viewer, id_)
    return {id_["table"] for id_ in ids}
