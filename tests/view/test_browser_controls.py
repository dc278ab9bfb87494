"""Every control of every page in a real browser: tables, choices, lists, forms, exports, links and the keyboard."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import openpyxl
import polars as pl
import pytest
from tests import chromium
from tests.view import browser as browsers
from tests.view.browser import Tab, Table
from tests.view.checks import check_rows, check_table, requested_rows
from tests.view.support import CAPTURES, FIXTURES, running
from tracekit.view import downloads
from tracekit.view.datasets import find_dataset

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.view.server import Viewer

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(chromium.missing()), reason=str(chromium.missing())),
    pytest.mark.thorough,
]
SIZES = ((1440, 900), (1024, 768), (390, 844))


def drive_table(tab: Tab, viewer: Viewer, name: str) -> None:
    """Sort, search, filter, page and select in a table as a user does, and compare its rows each time."""
    table, page = tab.table(name), requested_rows(tab, viewer, name, 1)
    if not page.total:
        return
    columns = table.columns()
    number = next((c for c in columns if isinstance(page.rows[0][c], int | float)), None)
    before = tab.page.url
    table.sort_link(columns[0]).click()
    tab.page.wait_for_function("(url) => location.href !== url", arg=before)
    check_table(tab, viewer, name)
    if table.entry("search").count():
        text = next((c for c in columns if isinstance(page.rows[0][c], str)), None)
        if text is not None:
            table.entry("search").fill(page.rows[0][text].strip("\u2007")[:12].strip())
            tab.wait_for_url(f"{name}.search=".replace(":", "%3A"))
            check_table(tab, viewer, name)
        if number is not None:
            table.entry(f"filter.{number}").fill(f">= {page.rows[0][number]!r}")
            tab.wait_for_url(f"{name}.filter".replace(":", "%3A"))
            check_table(tab, viewer, name)
            if not table.entry("where").is_visible():
                table.panel.locator("details.condition > summary").first.click()
            table.entry("where").fill(f"{number} IS NOT NULL AND NOT {number} < 0")
            tab.wait_for_url(f"{name}.where=".replace(":", "%3A"))
            check_table(tab, viewer, name)
        if table.panel.get_by_role("link", name="Clear filters").count():
            table.panel.get_by_role("link", name="Clear filters").click()
        tab.page.wait_for_function(
            "(names) => names.every((name) => !new URLSearchParams(location.search).get(name))",
            arg=[f"{name}.{each}" for each in ("filter", "search", "where")],
        )
        check_table(tab, viewer, name)
    if find_dataset(name).key is not None and table.rows(1):
        table.select(0)
        tab.page.wait_for_function("(name) => new URLSearchParams(location.search).get(name)", arg=f"{name}.select")


@pytest.mark.parametrize("name", CAPTURES)
def test_every_table_of_every_page(name: str, open_tab: Callable[..., Tab]) -> None:
    """The rows of each table, also of those below a selected row, and a link that reproduces them."""
    with running(FIXTURES / name) as viewer, open_tab(viewer) as tab:
        tab.open("/")
        for href, title in tab.links().items():
            tab.follow(href, title)
            driven: list[str] = []
            while rest := [each for each in Table.names(tab.page) if each not in driven]:
                drive_table(tab, viewer, rest[0])
                driven.append(rest[0])
                tab.settle()
            if driven:
                names, url = check_rows(tab, viewer), tab.page.url
                tab.page.goto(url)
                tab.settle()
                assert check_rows(tab, viewer) == names
                assert tab.parameters() == _parameters(url)


def _parameters(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))


@pytest.mark.parametrize("name", CAPTURES)
def test_every_choice_of_every_page(name: str, open_tab: Callable[..., Tab]) -> None:
    """Rows of choices, and lists of tables, threads and names."""
    with running(FIXTURES / name) as viewer, open_tab(viewer) as tab:
        tab.open("/")
        for href, title in tab.links().items():
            tab.follow(href, title)
            for control in tab.choices():
                for number in range(len(tab.choices()[control])):
                    tab.choose(control, tab.choices()[control][number])
                    check_rows(tab, viewer)
            for label in ("Table", "Thread", "Name"):
                chooser = tab.page.get_by_role("combobox", name=label, exact=True)
                if not chooser.count():
                    continue
                options = [str(o.get_attribute("label") or o.text_content()) for o in chooser.locator("option").all()]
                for option in options[:5]:
                    tab.pick(label, option)
                    check_rows(tab, viewer)


def test_columns_and_pages_of_rows(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    with open_tab(amp) as tab:
        tab.open("/tables?table=api_calls")
        table = tab.table("table:api_calls")
        height = amp._captures.all[0].trace.count("api_calls")
        for link, first in (("Next", 100), ("Last", height // 100 * 100), ("First", 0)):
            table.panel.get_by_role("link", name=link, exact=True).click()
            tab.page.wait_for_function(
                "(text) => document.querySelector('.table-status').textContent.startsWith(text)",
                arg=f"Rows {first + 1:,} to ",
            )
            assert table.rows(1)[0]["api_call_id"] == str(first + 1)
        for column in table.columns()[1:4]:
            if not table.panel.locator("details.menu[open]").count():
                table.panel.get_by_text("Columns", exact=True).click()
            table.panel.locator(f"input[type=checkbox][value={column}]").uncheck()
            tab.page.wait_for_function("(c) => !document.querySelector(`th[data-column=${c}]`)", arg=column)
        assert len(table.columns()) == len(tab.parameters()["table:api_calls.columns"].split(","))
        check_table(tab, amp, "table:api_calls")


def test_exports_and_the_clipboard(amp: Viewer, open_tab: Callable[..., Tab], monkeypatch: pytest.MonkeyPatch) -> None:
    """The filtered rows and shown columns in each format, and why a format cannot hold them."""
    url = "/tables?table=kernels&table%3Akernels.columns=kernel_id,name,grid_x&table%3Akernels.sort=grid_x%3Adesc"
    with open_tab(amp) as tab:
        tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        tab.open(url)
        kernels = amp._captures.all[0].trace.frame("kernels").collect()
        wanted = kernels.sort("grid_x", descending=True, maintain_order=True).select("kernel_id", "name", "grid_x")
        tab.page.get_by_text("Export", exact=True).click()

        def content(item: str) -> bytes:
            with tab.page.expect_download() as download:
                tab.page.get_by_role("link", name=item, exact=True).click()
            return bytes(download.value.path().read_bytes())

        text = wanted.with_columns(pl.col("name").cast(pl.String))
        assert pl.read_csv(io.BytesIO(content("CSV"))).rows() == text.rows()
        assert [tuple(row.values()) for row in json.loads(content("JSON"))] == text.rows()
        assert pl.read_parquet(io.BytesIO(content("Parquet"))).with_columns(pl.col("name").cast(pl.String)).equals(text)
        sheet = openpyxl.load_workbook(io.BytesIO(content("Excel")))["rows"]
        assert list(sheet.iter_rows(values_only=True))[1:] == text.rows()
        tab.page.get_by_role("link", name="Copy to the clipboard").click()
        tab.page.get_by_text("Copied the rows to the clipboard.").wait_for()
        copied = tab.page.evaluate("() => navigator.clipboard.readText()")
        assert len(copied.splitlines()) == text.height + 1
        assert copied.splitlines()[1].split("\t")[0] == str(text["kernel_id"][0])
        monkeypatch.setattr(downloads, "MAX_SHEET_ROWS", 5)
        tab.open(url)
        tab.page.get_by_text("Export", exact=True).click()
        assert tab.page.get_by_text("an Excel sheet has at most 5 rows").is_visible()


def test_links_lead_to_what_they_name(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    """Every link of the overview, and the links of rows to ops."""
    with open_tab(amp) as tab:
        tab.open("/")
        links = {str(a.get_attribute("href")) for a in tab.page.locator("main a[href^='/']").all()}
        assert links
        for href in sorted(links):
            tab.open(href)
            wanted, shown = _parameters(href), tab.parameters()
            if href.startswith("/timeline"):  # short events are shown with what surrounds them
                assert int(shown["start"]) <= int(wanted.pop("start"))
                assert int(wanted.pop("end")) <= int(shown["end"])
            assert wanted.items() <= shown.items()
            check_rows(tab, amp)
        tab.open("/op_types")
        op_type = tab.table("op_types").rows(1)[0]["op_type"]
        tab.page.get_by_role("link", name=f"Ops: {op_type}").first.click()
        tab.wait_for_url("/ops")
        check_rows(tab, amp)
        assert {row["op_type"] for row in tab.table("ops").rows(5)} == {op_type}


def test_groups_are_expanded(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    with open_tab(amp) as tab:
        tab.open("/groups?depth=1")
        check_table(tab, amp, "groups")
        table = tab.table("groups")
        before = table.status()
        table.panel.locator("a.toggle").first.focus()
        tab.page.keyboard.press("Enter")
        tab.wait_for_url("groups.toggled=")
        check_table(tab, amp, "groups")
        assert table.status() != before
        assert "groups.select" not in tab.query()
        url = tab.page.url
        table.panel.locator("a.toggle").first.click()
        tab.page.wait_for_function("() => !location.search.includes('toggled')")
        check_table(tab, amp, "groups")
        assert table.status() == before
        tab.page.goto(url)
        tab.settle()
        check_table(tab, amp, "groups")


def test_lists_and_forms(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    """The list of captures, the key op, what is compared, the theme and the units."""
    with open_tab(amp) as tab:
        tab.open("/kernels")
        tab.pick("Capture", "1: ddp2.sqlite")
        assert tab.parameters() == {"capture": "1"}
        check_rows(tab, amp)
        tab.open("/iterations")
        chooser = tab.page.get_by_role("combobox", name="Key op", exact=True)
        chooser.select_option(index=1)
        tab.page.get_by_role("button", name="Aggregate", exact=True).click()
        tab.wait_for_url("key_op=")
        tab.open("/compare")
        tab.page.get_by_text("Other captures and iterations").click()
        tab.page.locator("select[name=other_capture]").select_option(label="0: train_amp.sqlite")
        tab.page.get_by_label("First iteration").fill("1")
        tab.page.get_by_label("Last iteration").fill("2")
        tab.page.get_by_role("button", name="Compare", exact=True).click()
        tab.wait_for_url("other_iterations=1%3A2")
        check_rows(tab, amp)
        ground = "() => getComputedStyle(document.body).backgroundColor"
        light = tab.page.evaluate(ground)
        tab.page.get_by_role("button", name="Dark").click()
        assert tab.page.evaluate(ground) != light
        tab.page.get_by_role("button", name="Exact values").click()
        tab.open("/kernels")
        assert tab.page.evaluate(ground) != light
        cell = tab.page.locator("section[data-table=kernels] td data[title]").first
        assert str(cell.text_content()).endswith((" ns", "%"))
        assert not str(cell.get_attribute("title")).endswith(" ns")


def test_the_scope_keeps_the_state_of_tables(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    with open_tab(amp) as tab:
        tab.open("/kernels?capture=1")
        tab.table("kernels").entry("search").fill("gemm")
        tab.wait_for_url("kernels.search=gemm")
        tab.page.get_by_role("link", name="With warm-up").click()
        tab.wait_for_url("warm_up=yes")
        assert tab.parameters()["kernels.search"] == "gemm"
        tab.table("kernels").entry("search").fill("elem")
        tab.wait_for_url("kernels.search=elem")
        scope = tab.page.get_by_role("region", name="Scope")
        scope.locator("summary").click()
        scope.get_by_label("GPU 0").check()
        scope.get_by_role("button", name="Show").click()
        tab.wait_for_url("devices=0")
        assert tab.parameters()["kernels.search"] == "elem"
        check_rows(tab, amp)


@pytest.mark.parametrize("name", CAPTURES)
def test_the_keyboard_reaches_everything(name: str, open_tab: Callable[..., Tab]) -> None:
    with running(FIXTURES / name) as viewer, open_tab(viewer) as tab:
        tab.open("/")
        for href, title in tab.links().items():
            tab.page.locator(f'nav a[href="{href}"]').focus()
            tab.page.keyboard.press("Enter")
            tab.page.wait_for_function("(t) => document.querySelector('main h1')?.textContent === t", arg=title)
            tab.settle()
            assert not (left := tab.unreachable()), (title, left)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_the_window(amp: Viewer, open_tab: Callable[..., Tab], size: tuple[int, int], scheme: str) -> None:
    """Only tables, charts and the navigation scroll sideways, and axe-core finds no fault."""
    with open_tab(amp, scheme) as tab:
        tab.page.set_viewport_size({"width": size[0], "height": size[1]})
        tab.open("/")
        for href in tab.page.locator("nav[aria-label=Pages] a").evaluate_all("(all) => all.map((a) => a.href)"):
            tab.page.goto(href)
            tab.settle()
            assert tab.page.evaluate("() => document.documentElement.scrollWidth") <= size[0], href
            if browsers.axe() is not None:
                assert tab.faults() == [], href
