"""Every control of every page in a real browser: tables, choices, lists, forms, exports, links and the keyboard."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

import openpyxl
import polars as pl
import pytest
from tests import chromium
from tests.view.browser import Tab, Table
from tests.view.checks import asked, check_rows, check_table
from tests.view.support import CAPTURES, FIXTURES, running
from tracekit.view import downloads, windows
from tracekit.view import query as queries
from tracekit.view.datasets import find_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.view.server import Viewer

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(chromium.missing()), reason=str(chromium.missing())),
    pytest.mark.thorough,
]


def drive_table(tab: Tab, viewer: Viewer, id_: Mapping[str, str]) -> None:
    """Sort, search, filter, page and select in a table as a user does, and compare its rows each time."""
    name, table = id_["table"], tab.table(id_["table"])
    page = queries.load_page(viewer._captures, asked(tab, viewer, id_), 0, 1)
    schema = queries.load_rows(viewer._captures, asked(tab, viewer, id_)).frame.schema
    if not page.total:
        return
    columns = [c for c in table.columns() if not c.startswith("_")]
    number = next((c for c in columns if schema[c].is_numeric() and page.rows[0][c] is not None), None)
    text = next((c for c in columns if schema[c] in (pl.String, pl.Categorical) and page.rows[0][c]), None)
    before = tab.parameters().get(f"{name}.sort")
    table.header(columns[0]).click()
    tab.page.wait_for_function(
        "([name, before]) => new URLSearchParams(location.search).get(name) !== before", arg=[f"{name}.sort", before]
    )
    check_table(tab, viewer, id_)
    if text is not None:
        part = str(page.rows[0][text]).strip("\u2007")[:12].strip()
        table.part("search").fill(part)
        tab.page.wait_for_function(
            "([name, part]) => new URLSearchParams(location.search).get(name) === part", arg=[f"{name}.search", part]
        )
        check_table(tab, viewer, id_)
    if number is not None:
        table.filter(number, str(page.rows[0][number]))
        tab.page.wait_for_function("(name) => new URLSearchParams(location.search).get(name)", arg=f"{name}.filter")
        check_table(tab, viewer, id_)
        if not table.part("condition").is_visible():
            table.panel.locator("summary").first.click()
        table.part("condition").fill(f"{number} IS NOT NULL AND NOT {number} < 0")
        tab.page.wait_for_function("(name) => new URLSearchParams(location.search).get(name)", arg=f"{name}.where")
        check_table(tab, viewer, id_)
    table.part("clear").click()
    tab.page.wait_for_function(
        "(names) => names.every((name) => !new URLSearchParams(location.search).get(name))",
        arg=[f"{name}.{each}" for each in ("filter", "search", "where")],
    )
    check_table(tab, viewer, id_)
    if find_dataset(name).key is not None and table.rows(1):
        table.part("grid").locator('.ag-center-cols-container .ag-row[row-index="0"] .ag-cell').first.click()
        tab.page.wait_for_function("(name) => new URLSearchParams(location.search).get(name)", arg=f"{name}.select")


@pytest.mark.parametrize("name", CAPTURES)
def test_every_table_of_every_page(name: str, open_tab: Callable[..., Tab]) -> None:
    """The rows of each table, also of those below a selected row, and a link that reproduces them."""
    with running(FIXTURES / name) as viewer, open_tab(viewer) as tab:
        tab.open("/")
        for href, title in tab.links().items():
            tab.follow(href, title)
            driven: list[str] = []
            while rest := [id_ for id_ in Table.names(tab.page) if id_["table"] not in driven]:
                drive_table(tab, viewer, rest[0])
                driven.append(rest[0]["table"])
                tab.settle()
            if driven:
                names, url = check_rows(tab, viewer), tab.page.url
                tab.page.goto(url)
                tab.settle()
                assert check_rows(tab, viewer) == names
                assert {n: v for n, v in tab.parameters().items() if v} == _parameters(url)


def _parameters(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))


@pytest.mark.parametrize("name", CAPTURES)
def test_every_choice_of_every_page(name: str, open_tab: Callable[..., Tab]) -> None:
    """Rows of choices, lists of tables and threads, columns and pages of rows."""
    with running(FIXTURES / name) as viewer, open_tab(viewer) as tab:
        tab.open("/")
        for href, title in tab.links().items():
            tab.follow(href, title)
            for control in tab.choices():
                for number in range(len(tab.choices()[control])):
                    tab.choose(control, tab.choices()[control][number])
                    check_rows(tab, viewer)
            for label in ("Table", "Thread"):
                chooser = tab.page.get_by_label(label, exact=True)
                if not chooser.count():
                    continue
                chooser.first.click()
                options = tab.page.get_by_role("option").all_text_contents()
                tab.page.keyboard.press("Escape")
                for option in options if name == CAPTURES[0] else options[:5]:
                    if option == chooser.first.input_value():
                        continue
                    url = tab.page.url
                    tab.pick(label, option)
                    tab.page.wait_for_function("(url) => location.href !== url", arg=url)
                    tab.settle()
                    check_rows(tab, viewer)


def test_columns_and_pages_of_rows(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    with open_tab(amp) as tab:
        tab.open("/tables?table=api_calls")
        table = tab.table("table:api_calls")
        (id_,) = Table.names(tab.page)
        frame = amp._captures.all[0].trace.frame("api_calls").collect()
        for button, first in (("Next Page", 25), ("Last Page", frame.height // 25 * 25), ("First Page", 0)):
            table.part("grid").get_by_role("button", name=button).click()
            row = f'.ag-center-cols-container .ag-row[row-index="{first}"] .ag-cell'
            tab.page.wait_for_function(
                "([row, text]) => document.querySelector(row)?.textContent === text", arg=[row, f"{first + 1:,}"]
            )
        assert "1 to 25 of" in str(table.part("grid").locator(".ag-paging-row-summary-panel").text_content())
        for column in table.columns()[1:4]:
            tab.page.get_by_role("button", name="Columns").click()
            tab.page.get_by_role("checkbox", name=column, exact=True).uncheck()
            tab.page.keyboard.press("Escape")
            tab.page.wait_for_function("(c) => !document.querySelector(`.ag-header-cell[col-id=${c}]`)", arg=column)
        assert len(table.columns()) == len(tab.parameters()["table:api_calls.columns"].split(","))
        check_table(tab, amp, id_)
        tab.page.get_by_role("button", name="Columns").click()
        tab.page.get_by_role("checkbox", name="thread_id", exact=True).check()
        tab.page.keyboard.press("Escape")
        table.part("grid").locator('.ag-header-cell[col-id="thread_id"]').first.wait_for()
        assert "columns" not in tab.query() or "thread_id" in unquote(tab.query())


def test_exports_and_the_clipboard(amp: Viewer, open_tab: Callable[..., Tab], monkeypatch: pytest.MonkeyPatch) -> None:
    """The filtered rows and shown columns in each format, and why a format cannot hold them."""
    with open_tab(amp) as tab:
        tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        tab.open(
            "/tables?table=kernels&table%3Akernels.columns=kernel_id,name,grid_x&table%3Akernels.sort=grid_x%3Adesc"
        )
        kernels = amp._captures.all[0].trace.frame("kernels").collect()
        wanted = kernels.sort("grid_x", descending=True, maintain_order=True).select("kernel_id", "name", "grid_x")

        def choose(item: str) -> None:
            tab.page.get_by_role("button", name="Export").click()
            tab.page.get_by_role("menuitem", name=item, exact=True).click()

        def content(item: str) -> bytes:
            with tab.page.expect_download() as download:
                choose(item)
            return bytes(download.value.path().read_bytes())

        text = wanted.with_columns(pl.col("name").cast(pl.String))
        assert pl.read_csv(io.BytesIO(content("CSV"))).rows() == text.rows()
        assert [tuple(row.values()) for row in json.loads(content("JSON"))] == text.rows()
        assert pl.read_parquet(io.BytesIO(content("Parquet"))).with_columns(pl.col("name").cast(pl.String)).equals(text)
        sheet = openpyxl.load_workbook(io.BytesIO(content("Excel")))["rows"]
        assert list(sheet.iter_rows(values_only=True))[1:] == text.rows()
        choose("Clipboard")
        tab.page.get_by_text("Copied the rows to the clipboard.").wait_for()
        copied = tab.page.evaluate("() => navigator.clipboard.readText()")
        assert len(copied.splitlines()) == text.height + 1
        assert copied.splitlines()[1].split("\t")[0] == str(text["kernel_id"][0])
        cell = tab.table("table:kernels").part("grid").locator('.ag-row[row-index="0"] .ag-cell[col-id="name"]')
        cell.click()
        tab.page.keyboard.press("Control+c")
        tab.page.wait_for_timeout(200)
        assert tab.page.evaluate("() => navigator.clipboard.readText()") == text["name"][0]
        monkeypatch.setattr(downloads, "MAX_SHEET_ROWS", 5)
        choose("Excel")
        tab.page.get_by_text(f"{text.height:,} rows match, but an Excel sheet has at most 5 rows").wait_for()
        tab.problems = [problem for problem in tab.problems if "/download/check" not in problem]


def test_links_lead_to_what_they_name(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    """Every link of the overview, and the links of rows to ops and to the timeline."""
    with open_tab(amp) as tab:
        tab.open("/")
        links = {str(a.get_attribute("href")) for a in tab.page.locator("main a").all()}
        assert {urlsplit(href).path for href in links} >= {"/ops", "/kernels"}
        for href in sorted(links):
            tab.page.locator(f"main a[href={json.dumps(href)}]").first.click()
            tab.wait_for_url(urlsplit(href).path)
            assert _parameters(href).keys() <= tab.parameters().keys()
            if urlsplit(href).path == "/ops":
                tab.table("op_instances").part("grid").wait_for()
            check_rows(tab, amp)
            tab.follow("/", "Overview")
            tab.page.locator(f"main a[href={json.dumps(href)}]").first.wait_for()
        tab.open("/op_types")
        op_type = tab.table("op_types").rows(1)[0]["op_type"]
        tab.page.get_by_role("link", name="Ops", exact=True).first.click()
        tab.wait_for_url("/ops")
        check_rows(tab, amp)
        assert {row["op_type"] for row in tab.table("ops").rows(5)} == {op_type}
        tab.open("/memory")
        start = amp._captures.all[0].trace.frame("memcpys").select(pl.col("start_ns").min()).collect().item()
        grid = tab.table("memcpys").part("grid")
        grid.scroll_into_view_if_needed()
        grid.get_by_role("link", name="Show in timeline").first.click()
        tab.wait_for_url(f"/timeline?start={start}&")
        tab.page.wait_for_selector("#perfetto[data-zoomed=yes]", state="attached")


@pytest.mark.parametrize("name", [n for n in CAPTURES if not n.startswith(("ncu", "empty"))])
def test_the_timeline_of_every_capture(
    name: str, open_tab: Callable[..., Tab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Perfetto's page shows tracks. A large capture is shown in windows, which the links move."""
    with running(FIXTURES / name) as viewer, open_tab(viewer) as tab:
        tab.page.goto(f"{tab.base}/timeline")
        tab.page.wait_for_selector("#perfetto[data-zoomed=yes]", state="attached")
        (frame,) = [f for f in tab.page.frames if "/perfetto/" in f.url]
        assert frame.locator(".pf-track").count() > 0
        monkeypatch.setattr(windows, "MAX_EVENTS", 20)
        span = viewer._captures.all[0].trace.span()
        assert span is not None
        tab.page.goto(f"{tab.base}/timeline?start={span[0]}&end={span[0] + 1000}")
        tab.page.get_by_role("link", name="Later").click()
        tab.page.get_by_role("link", name="Earlier").wait_for()
        assert "of" in str(tab.page.locator("main p.dimmed").first.text_content())
        tab.page.wait_for_selector("#perfetto[data-zoomed=yes]", state="attached")


def test_groups_are_expanded_with_the_mouse_and_the_keyboard(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    with open_tab(amp) as tab:
        tab.open("/groups?depth=1")
        (id_,) = Table.names(tab.page)
        check_table(tab, amp, id_)
        before = tab.table("groups").status()
        grid = tab.table("groups").part("grid")
        grid.get_by_role("button", name="Expand").first.click()
        tab.wait_for_url("groups.toggled=")
        check_table(tab, amp, id_)
        assert tab.table("groups").status() != before
        assert "groups.select" not in tab.query()
        toggled = tab.parameters()["groups.toggled"]
        grid.locator('.ag-row[row-index="1"] .ag-cell').nth(1).click()
        tab.wait_for_url("groups.select=")
        grid.locator('.ag-row[row-index="1"] .ag-cell').first.focus()
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_function("() => !location.search.includes('toggled')")
        check_table(tab, amp, id_)
        assert tab.table("groups").status() == before
        tab.open(f"/groups?depth=1&groups.toggled={toggled}")
        check_table(tab, amp, Table.names(tab.page)[0])


def test_lists_and_forms(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    """The list of captures, the key op, what is compared, and the scheme."""
    with open_tab(amp) as tab:
        tab.open("/kernels")
        tab.page.get_by_label("Capture", exact=True).first.click()
        tab.page.get_by_role("option", name="1: ddp2.sqlite").click()
        tab.wait_for_url("capture=1")
        check_rows(tab, amp)
        tab.open("/iterations")
        tab.page.get_by_label("Key op", exact=True).first.click()
        tab.page.get_by_role("option").nth(1).click()
        tab.page.get_by_role("button", name="Aggregate", exact=True).click()
        tab.page.wait_for_function(
            "() => location.search.includes('key_op=') || document.querySelector('#aggregation-problem p')"
        )
        assert "key_op=" in tab.query()
        tab.open("/compare")
        tab.page.locator("#other-capture").click()
        tab.page.get_by_role("option", name="0: train_amp.sqlite").click()
        tab.page.locator("#other-first").fill("1")
        tab.page.locator("#other-last").fill("2")
        tab.page.get_by_role("button", name="Compare", exact=True).click()
        tab.wait_for_url("other_iterations=1%3A2")
        check_rows(tab, amp)
        scheme = tab.page.evaluate("() => document.documentElement.dataset.mantineColorScheme")
        tab.page.get_by_role("button", name="Dark or light").click()
        tab.page.wait_for_function("(s) => document.documentElement.dataset.mantineColorScheme !== s", arg=scheme)
        tab.open("/kernels")
        assert tab.page.evaluate("() => document.documentElement.dataset.mantineColorScheme") != scheme
        assert (
            tab.page.evaluate("() => document.querySelector('.js-plotly-plot .points path').style.fill")
            == "rgb(61, 143, 214)"
        )


def test_the_time_of_call_stacks_is_limited(open_tab: Callable[..., Tab]) -> None:
    with running(FIXTURES / "osrt_libs.sqlite") as viewer, open_tab(viewer) as tab:
        times = viewer._captures.all[0].trace.frame("cpu_samples").collect()["timestamp_ns"].sort()
        low, high = times[10], times[20]
        tab.open("/stacks")
        tab.page.get_by_label("From (ns)").fill(f"{low:,}")
        tab.page.get_by_label("To (ns)").fill(str(high))
        tab.page.get_by_role("button", name="Limit the time").click()
        tab.wait_for_url(f"start={low}&end={high}")
        check_rows(tab, viewer)
        assert tab.table("stack_events").status().startswith(f"{times.is_between(low, high, closed='left').sum()} row")
        tab.page.get_by_role("link", name="Whole capture").click()
        tab.page.wait_for_function("() => !location.search.includes('start')")
        tab.settle()
        tab.table("stack_events").part("grid").locator('.ag-row[row-index="0"] .ag-cell').first.click()
        tab.table("stack_frames").part("grid").wait_for()
        check_rows(tab, viewer)


@pytest.mark.parametrize("name", ["train_amp.sqlite", "ncu/ncu_roofline_raw.csv", "osrt_libs.sqlite"])
def test_tab_reaches_every_control(name: str, open_tab: Callable[..., Tab]) -> None:
    with running(FIXTURES / name, FIXTURES / "empty.sqlite") as viewer, open_tab(viewer) as tab:
        tab.open("/")
        for href, title in tab.links().items():
            tab.follow(href, title)
            if title != "Timeline":  # whose frame contains many controls of Perfetto
                assert not (left := tab.unreachable()), (title, left)


def test_the_keyboard_opens_pages_links_and_lists(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    with open_tab(amp) as tab:
        tab.open("/")
        keys = tab.page.keyboard
        tab.page.locator('nav a[href="/kernels"]').focus()
        keys.press("Enter")
        tab.page.wait_for_function("() => document.querySelector('main h1')?.textContent === 'Kernels'")
        tab.settle()
        tab.page.locator('nav a[href="/memory"]').focus()
        keys.press("Enter")
        tab.page.wait_for_function("() => document.querySelector('main h1')?.textContent === 'Copies and memory'")
        tab.settle()
        row = tab.table("memcpys").part("grid").locator('.ag-row[row-index="1"]')
        row.locator(".ag-cell").first.focus()
        keys.press("End")
        keys.press("Enter")
        tab.page.wait_for_function("() => location.pathname === '/timeline'")
        tab.page.wait_for_selector("#perfetto[data-zoomed=yes]", state="attached")
        tab.open("/groups")
        tab.page.locator("main input[type=radio]:checked").first.focus()
        keys.press("ArrowRight")
        tab.wait_for_url("metric=cpu_time_ns")
        tab.open("/tables")
        tab.page.get_by_label("Table", exact=True).first.focus()
        keys.press("ArrowDown")
        keys.press("ArrowDown")
        keys.press("Enter")
        tab.wait_for_url("table=")
        check_rows(tab, amp)
        tab.open("/iterations")
        tab.page.get_by_label("First iteration").focus()
        keys.press("Control+a")
        keys.type("1")
        for _ in range(6):
            keys.press("Tab")
            if tab.page.evaluate("() => document.activeElement.id") == "aggregate":
                break
        keys.press("Enter")
        tab.wait_for_url("iterations=1%3A")
        tab.open("/kernels")
        header = tab.table("kernels").part("grid").locator('.ag-header-row-column .ag-header-cell[col-id="launches"]')
        header.focus()
        keys.press("Enter")
        tab.wait_for_url("kernels.sort=launches")
        check_rows(tab, amp)
