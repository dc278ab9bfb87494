"""Pages in a real browser: numbers equal the tables, links reproduce pages, and nothing leaves the machine."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode

import polars as pl
import pytest
import tracekit as tk
from tests import chromium
from tests.conftest import ALL
from tests.view import browser
from tests.view.browser import Tab
from tests.view.checks import check_rows
from tests.view.support import CAPTURES, FIXTURES, NAMES, frame_of, running, table

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


def filtered(some: pl.DataFrame, rows: pl.DataFrame) -> str:
    """Return what a table says about its rows."""
    return f"{some.height:,} row{'s' * (some.height != 1)} (filtered from {rows.height:,})"


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
            if browser.axe() is not None:
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


def test_numbers_are_shown_before_charts(open_tab: Callable[..., Tab]) -> None:
    with running(FIXTURES / "train_amp.sqlite") as viewer, open_tab(viewer) as tab:
        figures = viewer._captures.compute_deferred_result
        drawing, cards = threading.Event(), threading.Event()

        def draw(token: str) -> Any:
            drawing.set()
            assert cards.wait(60)
            return figures(token)

        viewer._captures.compute_deferred_result = draw  # type: ignore[method-assign]
        tab.page.goto(tab.base)
        tab.page.wait_for_selector(".number-card")
        assert drawing.wait(60)
        assert tab.page.locator(".js-plotly-plot").count() == 0
        assert tab.page.locator(".pending").count() == 7
        cards.set()
        tab.settle()
        assert tab.page.locator(".js-plotly-plot").count() == 7
        assert tab.page.locator(".pending").count() == 0


@pytest.mark.thorough
def test_the_state_of_a_table_is_in_the_url(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    """A filter, a search, a condition, an order, columns and a selected row, each as a user sets them."""
    kernels = frame_of(amp._captures.all[0].trace, "kernels")
    name = pl.col("name").cast(pl.String)
    shapes = kernels.group_by("name", "short_name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z").agg(
        n=pl.len(), time=(pl.col("end_ns") - pl.col("start_ns")).sum()
    )
    with open_tab(amp) as tab:
        tab.open("/kernels")
        table = tab.table("kernels")
        table.wait_for(f"{shapes.height:,} rows")
        floating = table.part("grid").locator(".ag-floating-filter").nth(table.columns().index("launches"))
        floating.locator("input").first.fill("8")
        some = shapes.filter(pl.col("n") == 8)
        table.wait_for(filtered(some, shapes))
        table.part("search").fill("ELEMENTWISE")
        some = some.filter(name.str.to_lowercase().str.contains("elementwise"))
        table.wait_for(filtered(some, shapes))
        tab.page.get_by_text("SQL filter").click()
        limit = int(some["time"].sort()[1])
        table.part("condition").fill(f"total_time_ns >= {limit}")
        some = some.filter(pl.col("time") >= limit).sort("time")
        table.wait_for(filtered(some, shapes))
        header = table.part("grid").locator('.ag-header-cell[col-id="total_time_ns"] .ag-header-cell-label')
        header.click()
        tab.page.wait_for_function("() => location.search.includes('total_time_ns%3Aasc')")
        tab.settle()
        first = table.rows(1)[0]
        assert first["total_time_ns"] == f"{some['time'][0]:,}"
        tab.page.get_by_role("button", name="Columns").click()
        tab.page.get_by_role("checkbox", name="Median (ns)", exact=True).uncheck()
        tab.page.keyboard.press("Escape")
        tab.page.wait_for_function("() => location.search.includes('kernels.columns')")
        assert "median_ns" not in table.columns()
        table.part("grid").locator('.ag-center-cols-container .ag-row[row-index="0"] .ag-cell').first.click()
        launches = tab.table("launches")
        launches.wait_for("8 rows")
        assert {
            "kernels.filter",
            "kernels.search",
            "kernels.where",
            "kernels.sort",
            "kernels.columns",
            "kernels.select",
        } <= set(parse_qs(tab.query()))
        rows, columns, url, status = table.rows(), table.columns(), tab.page.url, table.status()
    with open_tab(amp) as tab:
        tab.page.goto(url)
        tab.settle()
        again = tab.table("kernels")
        again.wait_for(status)
        tab.table("launches").wait_for("8 rows")
        assert (again.rows(), again.columns()) == (rows, columns)
        assert again.part("search").input_value() == "ELEMENTWISE"
        assert again.part("condition").input_value() == f"total_time_ns >= {limit}"
        assert tab.page.locator(".ag-row-selected").count() >= 1
        tab.page.wait_for_timeout(500)
        assert parse_qs(tab.query()) == parse_qs(url.partition("?")[2])
        again.part("clear").click()
        again.wait_for(f"{shapes.height:,} rows")
        assert "kernels.filter" not in parse_qs(tab.query())


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
        assert {" ".join(n.split()) for n in seen} == {" ".join(n.split()) for n in NAMES}
        with tab.page.expect_download() as download:
            tab.page.get_by_role("button", name="Export").click()
            tab.page.get_by_role("menuitem", name="CSV").click()
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
        tab.page.wait_for_function("() => location.search.includes('iterations=1%3A2')")
        tab.settle()
        tab.follow("/ops?iterations=1%3A2", "Ops and kernels")
        assert tab.table("ops").rows(1)[0]["gpu_time_ns"] == f"{ops['gpu_time_ns'][0]:,}"
        assert tab.table("ops").status() == f"{ops.height:,} rows"
        tab.open("/iterations")
        tab.page.get_by_label("First iteration").fill("3")
        tab.page.get_by_label("Last iteration").fill("2")
        tab.page.get_by_role("button", name="Aggregate", exact=True).click()
        assert "3:2" in str(tab.page.locator("#aggregation-problem p").first.text_content())


def test_the_timeline(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    """Perfetto's page shows tracks and zooms. Its requests to other addresses are blocked."""
    kernels = frame_of(amp._captures.all[0].trace, "kernels")
    start, end = kernels.select("start_ns", "end_ns").row(kernels.height // 2)
    with open_tab(amp) as tab:
        tab.page.goto(f"{tab.base}/timeline?" + urlencode({"start": start, "end": end}))
        tab.page.wait_for_selector("#perfetto[data-zoomed=yes]", state="attached")
        (frame,) = [f for f in tab.page.frames if "/perfetto/" in f.url]
        frame.wait_for_function("() => document.querySelectorAll('.pf-track').length > 0")
        tab.page.wait_for_timeout(300)
        assert not [url for url in tab.answered if not url.startswith(tab.base)]


@pytest.mark.thorough
def test_captures_are_compared(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    one, two = (frame_of(amp._captures.all[i].trace, "kernels") for i in (0, 1))
    times = [(f["end_ns"] - f["start_ns"]).sum() for f in (one, two)]
    with open_tab(amp) as tab:
        tab.open("/compare")
        assert f"{times[1] - times[0]:+,} ns" in str(tab.page.locator("main").text_content())
        tab.page.get_by_text("API calls", exact=True).last.click()
        tab.page.wait_for_function("() => location.search.includes('by=api')")
        tab.settle()
        assert {"comparison"} == check_rows(tab, amp)
        tab.open("/compare?by=ops&other_capture=0&other_iterations=1%3A1")
        assert {"comparison"} == check_rows(tab, amp)


def test_the_keyboard_alone_suffices(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    """Search, filters, menus and rows are reached with Tab, and a row is selected with Space."""
    with open_tab(amp) as tab:
        tab.open("/ops")
        keys = tab.page.keyboard
        focused = "() => document.activeElement"
        reached: list[str] = []

        def step() -> str:
            keys.press("Tab")
            text = tab.page.evaluate(
                f"""({focused})() && [document.activeElement.tagName, document.activeElement.getAttribute("aria-label"),
                document.activeElement.textContent.slice(0, 40), document.activeElement.className].join("|")"""
            )
            reached.append(text)
            return str(text)

        def reach(part: str, limit: int = 60) -> None:
            for _ in range(limit):
                if part in step():
                    return
                tab.page.wait_for_timeout(20)  # a table that is loading its rows passes the focus on
            raise AssertionError((part, reached))

        reach("Skip to content", 3)
        keys.press("Enter")
        reach("Search in Ops")
        keys.type("linear")
        tab.settle()
        tab.page.wait_for_function("() => location.search.includes('ops.search=linear')")
        reach("Columns", 4)
        keys.press("Enter")
        tab.page.wait_for_selector("text=Columns that are shown")
        keys.press("Escape")
        reach("Export", 4)
        keys.press("Enter")
        tab.page.get_by_role("menuitem", name="CSV").wait_for()
        keys.press("Escape")
        reach("ag-header-cell")
        keys.press("ArrowDown")
        keys.press("ArrowDown")
        keys.press("ArrowDown")
        keys.press("Space")
        tab.table("op_kernels").part("grid").wait_for()
        assert "ops.select" in parse_qs(tab.query())
