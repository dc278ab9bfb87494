"""Pages in a real browser: numbers equal the tables, links reproduce pages, and nothing leaves the machine."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import polars as pl
import pytest
import tracekit as tk
from tests import chromium
from tests.conftest import ALL
from tests.view import browser as browsers
from tests.view.browser import Tab
from tests.view.checks import check_rows, check_table
from tests.view.support import CAPTURES, FIXTURES, NAMES, running, table
from tracekit.text import to_printable
from tracekit.text.elements import render
from tracekit.view.comparison import compare
from tracekit.view.state import CaptureAggregation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.view.server import Viewer

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(chromium.missing()), reason=str(chromium.missing())),
]
SOME = {"light": ("Ops and kernels", "Iterations", "Tables"), "dark": ("Compare",)}
"""Pages that are opened without TRACEKIT_TESTS=all."""
EXPECTED = {
    "train_amp.sqlite": {
        "ops",
        "op_types",
        "groups",
        "iterations",
        "kernels",
        "gpus",
        "copies",
        "api",
        "nvtx",
        "idle_gaps",
    },
    "ddp2.sqlite": {"collectives", "collective_launches"},
    "jax_mlp.sqlite": {"iterations", "gpus", "api"},
    "ncu/ncu_roofline_raw.csv": {"roofline", "limiters", "ncu_launches"},
    "osrt_libs.sqlite": {"stack_functions", "stack_events"},
    "gpu_metrics.sqlite": {"metrics"},
    "tensorflow/runs": {"scalars"},
}
"""Tables that the pages of some captures show."""


@pytest.mark.many(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", (*CAPTURES, "tensorflow/runs") if ALL else CAPTURES[:1])
def test_every_page_of_a_capture(name: str, scheme: str, open_tab: Callable[..., Tab]) -> None:
    """Numbers are those of the tables, and axe-core finds no serious fault."""
    compared = set()
    with running(FIXTURES / name) as viewer, open_tab(viewer, scheme) as tab:
        tab.open("/")
        links = tab.links()
        assert {"Overview", "Compare", "Tables"} <= set(links.values())
        for href, title in links.items():
            if not (ALL or title in SOME[scheme]):
                continue
            tab.follow(href, title)
            assert tab.page.title().startswith(f"{title} · ")
            compared |= check_rows(tab, viewer)
            if browsers.axe() is not None:
                assert tab.faults() == [], title
    assert not ALL or compared >= EXPECTED.get(name, set())


def test_a_lost_server_and_a_replaced_file_are_reported(tmp_path: Path, open_tab: Callable[..., Tab]) -> None:
    """The page that is shown reports both within seconds, without a click."""
    path = tmp_path / "empty.sqlite"
    path.write_bytes((FIXTURES / "empty.sqlite").read_bytes())
    reported = "(text) => document.getElementById('connection').textContent.includes(text)"
    with running(path) as viewer:
        tab = open_tab(viewer)
        tab.open("/")
        assert tab.page.locator("#connection").text_content() == ""
        (tmp_path / "new").write_bytes(path.read_bytes())
        (tmp_path / "new").replace(path)
        tab.page.get_by_text("A capture was read again, because its file changed.").wait_for()
        tab.page.locator("#captures").get_by_role("link", name="Show").click()
        tab.page.wait_for_selector("#captures:empty", state="attached")
        path.unlink()
        tab.page.wait_for_function(reported, arg="empty.sqlite: the file has changed")
        tab.open("/tables")
        tab.page.wait_for_selector(".replaced")
    tab.page.wait_for_function(reported, arg="The server of this page does not answer.")
    tab.page.close()


@pytest.mark.filterwarnings("ignore:.*kernels cannot be found:tracekit.TracekitWarning")
def test_marks_of_direction_are_shown_as_escapes(tmp_path: Path, open_tab: Callable[..., Tab]) -> None:
    name = "cod\u202egnp.exe"
    times = {"start_ns": 5, "end_ns": 9, "process_id": 1, "correlation_id": 3, "name": name}
    tables = {
        "kernels": table("kernels", [{"kernel_id": 1, "short_name": name, **times}]),
        "api_calls": table("api_calls", [{"api_call_id": 1, "thread_id": 1, **times}]),
    }
    tk.Trace.from_tables(tables).export(tmp_path / "marks", format="parquet")
    with running(tmp_path / "marks") as viewer, open_tab(viewer) as tab:
        tab.open("/kernels")
        (row,) = tab.table("kernels").rows()
        assert row["short_name"] == "cod\\u202egnp.exe"
        assert "\u202e" not in tab.page.locator("body").inner_text()


def test_the_answer_and_numbers_are_shown_before_charts(open_tab: Callable[..., Tab]) -> None:
    with running(FIXTURES / "train_amp.sqlite") as viewer, open_tab(viewer) as tab:
        figures = viewer._captures.compute_deferred_result
        drawing, cards = threading.Event(), threading.Event()

        def draw(token: str) -> Any:
            content = figures(token)
            if not re.search('class="(?:sentence|number-card)"', render(content)):
                drawing.set()
                assert cards.wait(60)
            return content

        viewer._captures.compute_deferred_result = draw  # type: ignore[method-assign]
        tab.page.goto(tab.base)
        tab.page.wait_for_selector(".number-card")
        assert drawing.wait(60)
        assert tab.page.locator(".sentence").count() == 1
        assert tab.page.locator(".chart svg").count() == 0
        waiting = tab.page.locator(".pending").count()
        assert waiting >= 5
        cards.set()
        tab.settle()
        assert tab.page.locator(".chart svg").count() >= 5
        assert tab.page.locator(".pending").count() == 0


@pytest.mark.thorough
def test_the_state_of_a_table_is_in_the_url(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    """A filter, a search, a condition, an order, columns and a selected row, each as a user sets them."""
    with open_tab(amp) as tab:
        tab.open("/kernels")
        table = tab.table("kernels")
        table.entry("filter.launches").fill("= 8")
        tab.wait_for_url("kernels.filter")
        check_table(tab, amp, "kernels")
        table.entry("search").fill("ELEMENTWISE")
        tab.wait_for_url("kernels.search=ELEMENTWISE")
        check_table(tab, amp, "kernels")
        table.panel.get_by_text("SQL filter").click()
        table.entry("where").fill("total_time_ns >= 5000")
        tab.wait_for_url("kernels.where=")
        check_table(tab, amp, "kernels")
        table.sort_link("total_time_ns").click()
        tab.wait_for_url("total_time_ns%3Aasc")
        table.panel.get_by_text("Columns", exact=True).click()
        table.panel.get_by_role("checkbox", name="Median", exact=True).uncheck()
        tab.wait_for_url("kernels.columns=")
        assert "median_ns" not in table.columns()
        tab.page.keyboard.press("Escape")
        table.select(0)
        tab.wait_for_url("kernels.select=")
        assert check_rows(tab, amp) == {"kernels", "launches"}
        assert tab.table("launches").status() == "8 rows"
        rows, columns, url, status = table.rows(), table.columns(), tab.page.url, table.status()
    with open_tab(amp) as tab:
        tab.page.goto(url)
        tab.settle()
        again = tab.table("kernels")
        assert (again.rows(), again.columns(), again.status()) == (rows, columns, status)
        assert tab.table("launches").status() == "8 rows"
        assert again.entry("search").input_value() == "ELEMENTWISE"
        assert again.entry("where").input_value() == "total_time_ns >= 5000"
        assert again.panel.locator("tr[aria-current=true]").count() == 1
        assert parse_qs(tab.query()) == parse_qs(url.partition("?")[2])
        again.panel.get_by_role("link", name="Clear filters").click()
        tab.page.wait_for_function("() => !location.search.includes('kernels.filter')")
        check_table(tab, amp, "kernels")


@pytest.mark.filterwarnings("ignore:.*kernels cannot be found:tracekit.TracekitWarning")
def test_names_are_text(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    with open_tab(amp) as tab:
        tab.page.on("dialog", lambda dialog: tab.problems.append(f"dialog: {dialog.message}"))
        for url in (
            "/tables?capture=2&table=nvtx_ranges",
            *(["/kernels?capture=2", "/nvtx?capture=2", "/?capture=2"] if ALL else []),
        ):
            tab.open(url)
            assert not tab.page.locator("main script, main img[src=x]").count()
        tab.open("/tables?capture=2&table=kernels&table%3Akernels.columns=kernel_id,name,grid_id")
        seen = {row["name"] for row in tab.table("table:kernels").rows(len(NAMES))}
        assert seen == set(map(to_printable, NAMES))
        with tab.page.expect_download() as download:
            tab.page.get_by_text("Export", exact=True).click()
            tab.page.get_by_role("link", name="CSV").click()
        text = download.value.path().read_text()
        assert text.splitlines()[0] == "kernel_id,name,grid_id"
        assert "'=HYPERLINK" in text


@pytest.mark.thorough
def test_iterations_are_aggregated_again(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    part = amp._captures.all[0].trace.correlate().rollup(iterations=(1, 2))
    ops = part.frame("ops").sort("gpu_time_ns", descending=True).collect()
    with open_tab(amp) as tab:
        tab.open("/iterations")
        tab.page.get_by_label("First iteration").fill("1")
        tab.page.get_by_label("Last iteration").fill("2")
        tab.page.get_by_role("button", name="Aggregate", exact=True).click()
        tab.wait_for_url("iterations=1%3A2")
        tab.follow("/ops?iterations=1%3A2", "Ops and kernels")
        assert tab.table("ops").rows(1)[0]["gpu_time_ns"] == str(ops["gpu_time_ns"][0])
        assert tab.table("ops").status() == f"{ops.height:,} rows"
        tab.open("/iterations")
        tab.page.get_by_label("First iteration").fill("3")
        tab.page.get_by_label("Last iteration").fill("2")
        tab.page.get_by_role("button", name="Aggregate", exact=True).click()
        tab.wait_for_url("iterations=3%3A2")
        assert "3:2" in str(tab.page.locator("main .message").first.text_content())


@pytest.mark.thorough
def test_the_scope_is_changed_on_any_page(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    """Warm-up and GPUs. Parameters of the page stay, and links of the navigation keep the scope."""
    with open_tab(amp) as tab:
        tab.open("/groups?capture=1&metric=cpu_time_ns")
        scope = tab.page.get_by_role("region", name="Scope")
        scope.get_by_role("link", name="With warm-up").click()
        tab.wait_for_url("warm_up=yes")
        assert tab.parameters() == {"capture": "1", "warm_up": "yes", "metric": "cpu_time_ns"}
        scope.get_by_text("all 2", exact=True).click()
        scope.get_by_label("GPU 1").check()
        scope.get_by_role("button", name="Show").click()
        tab.wait_for_url("devices=1")
        assert tab.parameters()["metric"] == "cpu_time_ns"
        tab.follow("/kernels?capture=1&warm_up=yes&devices=1", "Kernels")
        selected = amp._captures.all[1].trace.select(devices=[1]).frame("kernels")
        sums = selected.select(pl.col("end_ns") - pl.col("start_ns")).sum().collect().item()
        tab.open("/tables?table=kernels&capture=1&devices=1")
        assert tab.table("table:kernels").status().endswith(f"of {selected.select(pl.len()).collect().item():,}")
        assert sums > 0
        check_rows(tab, amp)
        scope.locator("summary").click()
        tab.page.keyboard.press("Escape")
        assert not scope.get_by_label("GPU 1").is_visible()


@pytest.mark.thorough
def test_captures_are_compared(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    sides = [amp._captures.all[n].get_aggregated_trace(CaptureAggregation(n)) for n in (0, 1)]
    before, after = compare(None, sides[0], sides[1], "kernels").compute_totals("kernels") or (0, 0)
    with open_tab(amp) as tab:
        tab.open("/compare")
        assert f"{after - before:+,} ns" in str(tab.page.locator("main").text_content())
        tab.page.locator(".choices").get_by_text("API calls", exact=True).click()
        tab.wait_for_url("by=api")
        assert {"comparison"} == check_rows(tab, amp)
        tab.open("/compare?by=ops&other_capture=0&other_iterations=1%3A1")
        assert {"comparison"} == check_rows(tab, amp)


def test_the_keyboard_alone_suffices(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    """Search, menus, headings and rows are reached with Tab, and a row is selected with Enter."""
    with open_tab(amp) as tab:
        tab.open("/ops")
        keys = tab.page.keyboard
        reached: list[str] = []

        def reach(part: str, limit: int = 60) -> None:
            for _ in range(limit):
                keys.press("Tab")
                reached.append(
                    str(
                        tab.page.evaluate(
                            """() => document.activeElement && [document.activeElement.tagName,
                            document.activeElement.getAttribute("aria-label"), document.activeElement.className,
                            document.activeElement.textContent.slice(0, 40)].join("|")"""
                        )
                    )
                )
                if part in reached[-1]:
                    return
            raise AssertionError((part, reached))

        reach("Skip to content", 3)
        keys.press("Enter")
        reach("Search in Ops")
        keys.type("linear")
        tab.wait_for_url("ops.search=linear")
        reach("Columns", 5)
        keys.press("Enter")
        assert tab.table("ops").panel.get_by_text("Columns that are shown").is_visible()
        keys.press("Enter")
        reach("Export", 4)
        keys.press("Enter")
        assert tab.table("ops").panel.get_by_role("link", name="CSV").is_visible()
        keys.press("Enter")
        reach("sort", 6)
        reach("select")
        keys.press("Enter")
        tab.wait_for_url("ops.select=")
        assert {"ops", "op_kernels", "op_instances"} == check_rows(tab, amp)


@pytest.mark.thorough
def test_without_scripts_every_page_shows_the_same(amp: Viewer, browser: Any) -> None:
    """Links and buttons replace the script."""
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        base = amp.url.rstrip("/")
        page.goto(f"{base}/gpus?iterations=0%3A1")
        page.get_by_role("link", name="Show this page with all panels").click()
        assert page.locator("svg").count() == 1
        page.get_by_role("link", name="Kernels", exact=True).click()
        page.get_by_role("searchbox").fill("gemm")
        page.get_by_role("button", name="Apply").click()
        assert "kernels.search=gemm" in page.url
        assert "filtered from" in page.locator(".table-status").text_content()
        page.get_by_role("link", name="Tables", exact=True).click()
        page.get_by_role("combobox", name="Table", exact=True).select_option("nvtx_ranges")
        page.locator("main form").filter(has=page.get_by_role("combobox", name="Table", exact=True)).get_by_role(
            "button"
        ).click()
        assert "table=nvtx_ranges" in page.url
        page.get_by_role("combobox", name="Capture", exact=True).select_option("1")
        page.locator("header form").get_by_role("button").click()
        assert "capture=1" in page.url
        assert page.locator("h1").text_content() == "Tables"
    finally:
        context.close()


@pytest.mark.parametrize("size", [(1440, 900), (1024, 768), (390, 844)])
def test_the_answer_is_above_the_fold(amp: Viewer, browser: Any, size: tuple[int, int]) -> None:
    """In large windows with all its parts; in small ones, the parts follow one another."""
    width, height = size
    context = browser.new_context(viewport={"width": width, "height": height})
    with Tab(context.new_page(), amp) as tab:
        tab.open("/")
        parts = [".sentence", ".scope-of-answer", ".waterfall tfoot", ".causes-frame > ol > li:last-child .saving"]
        ends = [
            tab.page.locator(f".answer {part}").first.evaluate("(e) => e.getBoundingClientRect().bottom")
            for part in parts
        ]
        assert ends[:3] == sorted(ends[:3])
        assert ends[1] < height
        assert width < 800 or max(ends) < height
        assert width > 800 or ends == sorted(ends)
        assert tab.page.evaluate("() => document.documentElement.scrollWidth") <= width
    context.close()
