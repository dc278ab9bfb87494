"""Tables of pages as HTML: the rows, links, forms and explanations that a browser gets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.view.markup import TableMarkup, parse
from tests.view.support import BIG, FIXTURES, NAMES, captures_of, frame_of, get, hostile_tables, running
from tests.view.test_filters import BLANK, TEXT_COMPARISONS, compared, grouped
from tracekit.errors import TracekitError
from tracekit.text import to_printable
from tracekit.view import downloads, grid
from tracekit.view import query as queries
from tracekit.view.captures import ViewedCaptures
from tracekit.view.datasets import DATASETS, find_dataset
from tracekit.view.filters import format_filter, parse_filter
from tracekit.view.pages import PAGES, Context
from tracekit.view.query import Query
from tracekit.view.state import CaptureAggregation, PageState, parse_url

KERNELS = "table:kernels"
ODD = ["=x", "! a", '"', '"a" AND "b"', "(blank)", " a ", "a\nb", "\\", "a AND b", "\u202ex", "^", "$", "!=", "ü"]
TEXT_FILTER = st.fixed_dictionaries(
    {"type": st.sampled_from(TEXT_COMPARISONS), "filter": st.text(max_size=6) | st.sampled_from(ODD)}
)
NUMBER = st.integers(1 - 2**63, 2**63 - 1) | st.floats(-(2.0**52), 2.0**52) | st.sampled_from([1_500_000, 1024, 0.1])


@pytest.fixture(scope="module")
def amp() -> Iterator[ViewedCaptures]:
    captures = captures_of(tk.load(FIXTURES / "train_amp.sqlite"))
    yield captures
    captures.close()


@pytest.fixture(scope="module")
def hostile() -> Iterator[ViewedCaptures]:
    captures = captures_of(tk.Trace.from_tables(hostile_tables()))
    yield captures
    captures.close()


def show(captures: ViewedCaptures, name: str, on: str = "tables", **values: str) -> TableMarkup:
    """Return a table in the state of a page."""
    state = PageState(on, CaptureAggregation(), {f"{name}.{key}": value for key, value in values.items()})
    return TableMarkup(Context(captures, state).build_table(name), name)


def follow(captures: ViewedCaptures, name: str, url: str) -> TableMarkup:
    """Return the table of the page to which a link leads."""
    parts = urlsplit(url)
    return TableMarkup(Context(captures, parse_url(parts.path, parts.query, len(captures))).build_table(name), name)


def expected(captures: ViewedCaptures, columns: list[str], query: Query, start: int = 0) -> list[dict[str, str]]:
    """Return the texts of the cells of the rows that match a query, without their long form."""
    page = queries.load_page(captures, query, start, start + grid.PAGE_SIZE)

    def write(value: Any) -> str:
        return "" if value is None else repr(value) if isinstance(value, int | float) else to_printable(value)

    return [{name: write(row[name]) for name in columns} for row in page.rows]


@settings(max_examples=examples(400))
@given(grouped(TEXT_FILTER | BLANK), grouped(compared(NUMBER)), st.sampled_from(["", "ns", "bytes", "%", "MB"]))
def test_filters_are_typed_as_they_are_shown(text: dict[str, Any], number: dict[str, Any], unit: str) -> None:
    for condition, options in ((text, {"is_number": False}), (number, {"is_number": True, "unit": unit})):
        shown = format_filter(condition, **options)
        conditions = condition.get("conditions", [condition])
        assert shown == to_printable(shown)
        assert parse_filter(shown, **options) == (conditions[0] if len(conditions) == 1 else condition)


@pytest.mark.parametrize(
    ("text", "unit", "condition"),
    [
        ("> 1.5 ms", "ns", {"type": "greaterThan", "filter": 1_500_000}),
        ("2us..1,000 µs", "ns", {"type": "inRange", "filter": 2000, "filterTo": 1_000_000}),
        ("<=2 MiB", "bytes", {"type": "lessThanOrEqual", "filter": 2**21}),
        ("-.5e1", "", {"type": "equals", "filter": -5}),
        ("!= 9223372036854775807", "", {"type": "notEqual", "filter": 2**63 - 1}),
        ("> 90 %", "%", {"type": "greaterThan", "filter": 90}),
        (" > ", "", None),
        ("(blank) or 3", "", {"operator": "OR", "conditions": [{"type": "blank"}, {"type": "equals", "filter": 3}]}),
    ],
)  # fmt: skip
def test_filters_of_numbers_have_units(text: str, unit: str, condition: dict[str, Any] | None) -> None:
    assert parse_filter(text, is_number=True, unit=unit) == condition


@pytest.mark.parametrize(
    "text", ["x", "> x", "1 parsec", "1..", "1 2", "1e9999", "9" * 50, "> 1 AND < 2 OR 5", "²", "1 ms"]
)
def test_filters_of_numbers_that_are_not_valid(text: str) -> None:
    with pytest.raises(TracekitError) as error:
        parse_filter(text, is_number=True)
    assert error.value.hint


@pytest.mark.parametrize("condition", [5, {}, {"type": 1}, {"type": "equals", "filter": []}, {"conditions": 5}, None])
@pytest.mark.parametrize("is_number", [True, False])
def test_filters_that_cannot_be_shown(condition: Any, is_number: bool) -> None:
    assert format_filter(condition, is_number=is_number) == ""


def test_the_rows_are_those_of_the_query(amp: ViewedCaptures) -> None:
    """Typed filters, the search, the condition and the order select the rows; sums are below filtered rows only."""
    typed = {"filter.grid_x": "1..500", "filter.short_name": "e", "search": "gemm", "where": "stream_id > 0"}
    shown = show(amp, KERNELS, **typed, sort="grid_x:desc,kernel_id:asc")
    filters = {
        "grid_x": {"type": "inRange", "filter": 1, "filterTo": 500},
        "short_name": {"type": "contains", "filter": "e"},
    }
    query = Query(KERNELS, CaptureAggregation(), filter=json.dumps(filters), search="gemm", condition="stream_id > 0",
                  sort="grid_x:desc,kernel_id:asc")  # fmt: skip
    assert shown.rows() == expected(amp, shown.columns, query)
    assert 0 < len(shown.rows()) < grid.PAGE_SIZE
    page = queries.load_page(amp, query, 0, 0)
    assert shown.status() == f"{page.matching:,} rows (filtered from {page.total:,})"
    memcpys = show(amp, "memcpys", "memory", **{"filter.bytes": "> 0"})
    frame = frame_of(amp.all[0].trace, "memcpys").filter(pl.col("bytes") > 0)
    assert memcpys.sums()[0]["bytes"] == str(frame["bytes"].sum())
    assert show(amp, "memcpys", "memory", sort="bytes:desc").sums() == []


def test_links_lead_through_all_rows(amp: ViewedCaptures) -> None:
    shown = show(amp, KERNELS, sort="end_ns:desc")
    frame = frame_of(amp.all[0].trace, "kernels").sort("end_ns", descending=True)
    ids = [row["kernel_id"] for row in shown.rows()]
    assert shown.status() == f"Rows 1 to 100 of {frame.height:,}"
    while any(a.text == "Next" for a in shown.section.all("a")):
        shown = follow(amp, KERNELS, shown.link("Next"))
        ids += [row["kernel_id"] for row in shown.rows()]
    assert ids == [str(each) for each in frame["kernel_id"]]
    last = show(amp, KERNELS, sort="end_ns:desc", page="999999")
    assert last.status() == shown.status()
    assert follow(amp, KERNELS, last.link("First")).status() == f"Rows 1 to 100 of {frame.height:,}"


def test_headings_sort(amp: ViewedCaptures) -> None:
    """A heading sorts by its column, then in the other direction, then not; numbers descending first."""
    shown = show(amp, KERNELS)
    for name, first, second in (("grid_x", "descending", "ascending"), ("short_name", "ascending", "descending")):
        for sorting in (first, second, None):
            (heading,) = shown.table.all("th", data_column=name)
            (link,) = heading.all("a")
            shown = follow(amp, KERNELS, str(link.attributes["href"]))
            (heading,) = shown.table.all("th", data_column=name)
            assert heading.attributes.get("aria-sort") == sorting
            order = "" if sorting is None else f"{name}:{sorting.removesuffix('ending')}"
            assert shown.rows() == expected(amp, shown.columns, Query(KERNELS, CaptureAggregation(), sort=order))
    (heading,) = show(amp, "memcpys", "memory").table.all("th", data_column="start_ns")
    assert heading.attributes["aria-sort"] == "ascending"
    assert "memcpys.sort=start_ns%3Adesc" in str(next(heading.all("a")).attributes["href"])


def test_the_form_keeps_what_it_does_not_change(amp: ViewedCaptures) -> None:
    """Without scripts, the form sends the complete state of the page, with other tables and hidden columns."""
    name = "memcpys"
    hidden = {"copy_kind": {"type": "equals", "filter": "HtoD"}}
    values = {
        "memcpys.filter": json.dumps({**hidden, "bytes": {"type": "greaterThan", "filter": 1536}}),
        "memcpys.sort": "bytes:desc",
        "memcpys.columns": "memcpy_id,bytes",
        "memsets.search": "x",
        "by": "y",
    }
    state = PageState("memory", CaptureAggregation(0, 1, 2), values)
    shown = TableMarkup(Context(amp, state).build_table(name))
    form = shown.form()
    assert form["memcpys.filter.bytes"] == "> 1.5 KiB"
    sent = parse_url("/memory", urlencode({**form, "memcpys.filter.bytes": "> 2 KiB", "memcpys.search": "pageable"}), 1)
    again = TableMarkup(Context(amp, sent).build_table(name))
    url = str(again.section.attributes["data-url"])
    assert url.startswith("/memory?")
    parameters = dict(parse_qsl(urlsplit(url).query))
    changed = {**hidden, "bytes": {"type": "greaterThan", "filter": 2048}}
    assert json.loads(parameters.pop("memcpys.filter")) == changed
    del values["memcpys.filter"]
    assert parameters == {**values, "memcpys.search": "pageable", "iterations": "1:2"}
    assert again.columns == ["memcpy_id", "bytes"]
    labels = [a.attributes["aria-label"] for a in again.section.all("a", aria_label=True) if a.text == "×"]
    assert labels == ["Remove the filter of Copy kind", "Remove the filter of Bytes"]
    cleared = follow(amp, name, again.link("Clear filters"))
    assert cleared.status() == f"{amp.all[0].trace.count('memcpys')} rows"


def test_hostile_names_are_only_texts(hostile: ViewedCaptures) -> None:
    shown = show(hostile, KERNELS)
    assert [row["name"] for row in shown.rows()] == [to_printable(name) for name in NAMES]
    assert [row["grid_id"] for row in shown.rows()] == [str(BIG + 2 * i) for i in range(len(NAMES))]
    assert not list(shown.section.all("script")) + list(shown.section.all("img"))
    for name in NAMES:
        condition = json.dumps({"name": {"type": "equals", "filter": name}})
        one = show(hostile, KERNELS, filter=condition)
        assert [row["name"] for row in one.rows()] == [to_printable(name)]
        typed = one.form()[f"{KERNELS}.filter.name"]
        assert [r["name"] for r in show(hostile, KERNELS, **{"filter.name": typed}).rows()] == [to_printable(name)]
    for link in list(one.section.all("a", data_change=True))[:4]:
        follow(hostile, KERNELS, str(link.attributes["href"]))


def test_a_download_has_the_rows_that_are_shown(amp: ViewedCaptures) -> None:
    shown = show(
        amp,
        KERNELS,
        **{"filter.grid_x": "< 500", "search": "gemm", "columns": "kernel_id,grid_x", "sort": "grid_x:asc"},
    )
    query = dict(parse_qsl(urlsplit(shown.link("JSON")).query))
    rows = json.loads(downloads.export_rows(amp, query).content)
    assert [{name: str(value) for name, value in row.items()} for row in rows] == shown.rows()
    assert {name for name, _ in grid.FORMATS.items()} == set(downloads.FORMATS)


def test_excel_is_not_offered_for_too_many_rows(amp: ViewedCaptures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "MAX_SHEET_ROWS", 5)
    assert "an Excel sheet has at most 5 rows" in show(amp, KERNELS).section.text
    assert show(amp, KERNELS, where="kernel_id < 5").link("Excel").startswith("/download?")


def test_a_selected_row_has_details(amp: ViewedCaptures) -> None:
    """A link selects a row, shows its details, and opens the page of rows that contains it."""
    shown = show(amp, "kernels", "kernels")
    (link, *_) = shown.table.all("a", class_="select")
    selected = TableMarkup(_page_table(amp, str(link.attributes["href"])), "kernels")
    (row,) = selected.table.all("tr", aria_current=True)
    assert shown.rows()[0]["short_name"] in row.text
    (details,) = selected.section.all("section", data_table="launches")
    launches = TableMarkup(_page_table(amp, str(link.attributes["href"])), "launches")
    assert len(launches.rows()) == int(shown.rows()[0]["launches"])
    assert {row["short_name"] for row in launches.rows()} == {shown.rows()[0]["short_name"]}
    assert "Timeline" in details.text
    event = launches.rows()[0]["kernel_id"]
    assert any(f"event=kernels%3A{event}" in str(a.attributes["href"]) for a in details.all("a"))
    assert not list(follow(amp, "kernels", selected.link("Close")).section.all("section", data_table="launches"))
    last = frame_of(amp.all[0].trace, "ops")["op_id"][-1]
    found = show(amp, "ops", "ops", sort="op_id:asc", select=str(last))
    assert found.section.attributes["data-page"] == str(
        (len(set(frame_of(amp.all[0].trace, "ops")["op_id"])) - 1) // 100 + 1
    )


def _page_table(captures: ViewedCaptures, url: str) -> Any:
    parts = urlsplit(url)
    return Context(captures, parse_url(parts.path, parts.query, 1)).build_table("kernels")


def test_rows_of_a_tree_are_expanded_by_links(amp: ViewedCaptures) -> None:
    shown = show(amp, "groups", "groups")
    first = next(shown.table.all("a", class_="toggle"))
    assert first.attributes["aria-expanded"] == "true"
    collapsed = follow(amp, "groups", str(first.attributes["href"]))
    assert len(collapsed.rows()) == 1
    assert collapsed.status().endswith("are collapsed)")
    again = next(collapsed.table.all("a", class_="toggle"))
    assert again.attributes["aria-expanded"] == "false"
    assert follow(amp, "groups", str(again.attributes["href"])).rows() == shown.rows()


@pytest.mark.parametrize(
    "values",
    [
        {"filter": "["},
        {"filter": "5"},
        {"filter": '{"nope":{"type":"blank"}}'},
        {"filter": "[" * 60_000},
        {"filter.grid_x": "gemm"},
        {"filter.nope": "1"},
        {"sort": "nope:asc"},
        {"sort": "grid_x"},
        {"where": "read_csv('x')"},
        {"page": "x"},
        {"page": "0"},
        {"page": "9" * 4000},
    ],
)
def test_urls_that_are_not_valid(amp: ViewedCaptures, values: dict[str, str]) -> None:
    """The table says what is wrong and can still be used."""
    shown = show(amp, KERNELS, **values)
    (alert,) = shown.section.all("div", role="alert")
    assert alert.text
    assert shown.rows() == []
    assert shown.form()[f"{KERNELS}.filter.grid_x"] == values.get("filter.grid_x", "")
    assert len(shown.columns) > 5


def test_parts_of_pages_are_those_of_the_page(amp: ViewedCaptures) -> None:
    state = parse_url("/kernels", "launches.sort=end_ns:desc&x=y&kernels.select=0&kernels.page=1", 1)
    (section, detail) = parse(Context(amp, state).build_table("kernels")).all("section", data_table=True)
    for node, heading in ((section, "h2"), (detail, "h3")):
        source, url = (urlsplit(str(node.attributes[each])) for each in ("data-source", "data-url"))
        requested = parse_url(dict(parse_qsl(source.query))["page"], f"{source.query}&{url.query}", 1)
        same, arguments, chosen = grid.parse_fragment(requested)
        assert (same.page, same.parameters, chosen) == (state.page, state.parameters, heading)
        name = source.path.removeprefix(grid.FRAGMENT)
        (answer, *_) = parse(Context(amp, same).build_table(name, arguments, heading=chosen)).children
        assert answer == node
    assert grid.parse_fragment(PageState(parameters={"heading": "script"}))[2] == "h2"


def test_requests_of_parts_that_are_not_valid(tmp_path: Path) -> None:
    """The answer is an error or says what is wrong. No link leads to a page that does not exist."""
    tk.Trace.from_tables(hostile_tables()).export(tmp_path / "capture", format="parquet")
    with running(tmp_path / "capture") as viewer:
        for page in ("nope", "\\example.org", "<script>"):
            assert get(viewer, f"{grid.FRAGMENT}kernels?page={page}").status_code == 400
        for name in ("nope", "report:<script>", "iteration_kernels?arguments=iteration%3Dx", "%00"):
            answer = get(viewer, f"{grid.FRAGMENT}{name}")
            assert answer.status_code == 200
            assert "<script" not in answer.text
            assert 'class="panel' in answer.text


@pytest.mark.slow
def test_every_column_explains_itself(amp: ViewedCaptures) -> None:
    """Each column of each table of each page has a title without a name of a program, and says what it contains."""
    unexplained = {}
    for name in DATASETS:
        try:
            rows = queries.load_rows(amp, Query(name, CaptureAggregation()))
        except TracekitError:
            continue
        texts = [grid.describe_shown_column(rows, c) for c in rows.frame.columns]
        assert len({text.title for text in texts}) == len(texts), name
        assert not [text.title for text in texts if "_" in text.title or "(ns)" in text.title], name
        if missing := [text.name for text in texts if not text.doc]:
            unexplained[name] = missing
    assert unexplained == {}


def test_the_pages_of_rows_need_no_other_page() -> None:
    """Details are tables of the page itself."""
    for page in PAGES.values():
        for name in page.details:
            assert find_dataset(name).key is not None
