"""The pages of the ranks of a job in a real browser: "Ranks", "Utilization over time" and "Pace"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tracekit as tk
from tests import chromium
from tests.view import browser
from tests.view.browser import Tab, Table, shown
from tests.view.checks import check_rows
from tests.view.support import FIXTURES, running
from tracekit.plots.recipes import MAPS, PACES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import polars as pl
    from tracekit.sets.trace_set import TraceSet
    from tracekit.view.server import Viewer

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(chromium.missing()), reason=str(chromium.missing())),
]
RANKS = sorted((FIXTURES / "ranks").glob("*.nsys-rep"))
PAGES = {"/ranks": "Ranks", "/maps": "Utilization over time", "/pace": "Pace"}
BIN_COUNTS = (30, 100, 300)
_FIGURES = """() => Object.fromEntries([...document.querySelectorAll("main .js-plotly-plot")].map((plot) => [
  plot.closest("section").getAttribute("aria-label"),
  plot.data.map(({name, x, y, z, customdata}) => ({name, x, y, z, hover: customdata})),
]))"""
_VISIBLE = """() => [...document.querySelectorAll("main .js-plotly-plot .legend .traces")].map((e) =>
  [e.textContent, getComputedStyle(e).opacity])"""


@pytest.fixture(scope="module")
def viewer() -> Iterator[Viewer]:
    """A server for the two ranks of a job."""
    with running(*RANKS) as started:
        yield started


@pytest.fixture(scope="module")
def job() -> TraceSet:
    """The same ranks as a set, from which the expected numbers are computed."""
    return tk.load_many(RANKS)


def figures(tab: Tab) -> dict[str, list[dict[str, Any]]]:
    """Return the data of the figures of a page, by their headings."""
    found: dict[str, list[dict[str, Any]]] = tab.page.evaluate(_FIGURES)
    return found


def check_heat_maps(tab: Tab, job: TraceSet, recipe: str, bins: int) -> None:
    """Compare the heat maps with the percentages of a recipe."""
    analysis = job.recipe(recipe, bins=bins)["analysis"]
    columns = [c for c in analysis.columns if c in ("Kernel", "MPI", "Overlap")]
    by_rank = analysis.partition_by("Rank", maintain_order=True)
    drawn = figures(tab)
    assert len(drawn) == len(columns)
    for column, (trace,) in zip(columns, drawn.values(), strict=True):
        assert trace["z"] == [rank[column].to_list() for rank in by_rank]
        assert len(trace["x"]) == bins + 1


def check_paces(tab: Tab, job: TraceSet, recipe: str, name: str) -> None:
    """Compare the charts of the pace with the occurrences of a recipe."""
    tables = job.recipe(recipe, name=name)
    drawn = figures(tab)
    titles = {"pace_start": "Start", "pace_duration": "Duration", "pace_delta": "Time since the previous end"}
    for table, title in titles.items():
        assert [trace["name"] for trace in drawn[title]] == ["rank 0", "rank 1"]
        for trace, values in zip(drawn[title], tables[table], strict=True):
            _check_times(trace["y"], values)
            assert f"<br>{int(values[0]):,} ns" in trace["hover"][0]
    for trace, values in zip(drawn["Duration over time"], tables["pace_duration"], strict=True):
        _check_times(trace["y"], values)


def _check_times(seen: list[float], expected: pl.Series) -> None:
    """Check that numbers are times in ns in another unit."""
    factor = next((n / y for y, n in zip(seen, expected, strict=True) if y), 1)
    assert round(factor) in (1, 10**3, 10**6, 10**9)
    assert [y * round(factor) for y in seen] == pytest.approx(expected.to_list())


def reopen(tab: Tab, viewer: Viewer) -> None:
    """Load the URL of the page again, and check that it shows the same figures, choices and tables."""
    url, drawn, choices, tables = tab.page.url, figures(tab), tab.choices(), check_rows(tab, viewer)
    rows = {name: tab.table(name).rows() for name in tables}
    chosen = tab.page.locator("main input[type=radio]:checked").evaluate_all("(all) => all.map((e) => e.value)")
    tab.page.goto("about:blank")
    tab.page.goto(url)
    tab.page.wait_for_function(
        "(number) => document.querySelectorAll('main .js-plotly-plot').length === number", arg=len(drawn)
    )
    tab.settle()
    assert (figures(tab), tab.choices(), check_rows(tab, viewer)) == (drawn, choices, tables)
    assert {name: tab.table(name).rows() for name in tables} == rows
    again = tab.page.locator("main input[type=radio]:checked").evaluate_all("(all) => all.map((e) => e.value)")
    assert again == chosen


@pytest.mark.thorough
def test_heat_maps_in_the_browser(viewer: Viewer, job: TraceSet, open_tab: Callable[..., Tab]) -> None:
    """The kind of the heat map and the number of bins are chosen, and the link reproduces the page."""
    with open_tab(viewer) as tab:
        tab.open("/")
        tab.follow("/maps", PAGES["/maps"])
        recipes = [recipe for recipe in MAPS if any(recipe in url for url in tab.choices()["map"])]
        assert recipes == ["cuda_gpu_time_util_map", "mpi_gpu_time_util_map"]
        check_heat_maps(tab, job, recipes[0], BIN_COUNTS[0])
        for recipe in recipes:
            tab.choose("map", next(url for url in tab.choices()["map"] if recipe in url))
            for number, bins in enumerate(BIN_COUNTS):
                tab.choose("bins", tab.choices()["bins"][number])
                check_heat_maps(tab, job, recipe, bins)
                assert tab.table("utilization").status() == f"{2 * bins} rows"
                reopen(tab, viewer)
        assert tab.parameters() == {"map": "mpi_gpu_time_util_map", "bins": "300"}


@pytest.mark.thorough
def test_ranks_side_by_side(viewer: Viewer, job: TraceSet, open_tab: Callable[..., Tab]) -> None:
    """The figures show the numbers of the tables below them, whichever capture is selected."""
    with open_tab(viewer) as tab:
        tab.open("/")
        tab.follow("/ranks", PAGES["/ranks"])
        assert check_rows(tab, viewer) == {"gpu_time", "ranks_stragglers", "ranks_iterations"}
        times = job.recipe("gpu_time_sum")["gpu_time"]
        drawn = figures(tab)
        parts = ("compute_ns", "hidden_ns", "exposed_ns", "memory_ns", "idle_ns")
        for trace, part in zip(drawn["Time of the GPUs of each rank"], parts, strict=True):
            assert trace["x"] == pytest.approx((100 * times[part] / times["total_ns"]).to_list())
            for time, text in zip(times[part], trace["hover"], strict=True):
                assert f"{time:,} ns" in text
        spread = job.recipe("iteration_spread")["iterations"]
        for trace, column in zip(drawn["Iterations over all ranks"], ("min_ns", "max_ns", "median_ns"), strict=False):
            _check_times(trace["y"], spread[column])
        seen = tab.table("gpu_time").rows()
        assert [row["capture"] for row in seen] == [path.name for path in RANKS]
        assert [row["total_ns"] for row in seen] == [shown(time) for time in times["total_ns"]]
        tab.pick("Capture", f"1: {RANKS[1].name}")
        tab.wait_for_url("capture=1")
        assert (figures(tab), tab.table("gpu_time").rows()) == (drawn, seen)
        tab.table("gpu_time").filter("rank", "1")
        tab.table("gpu_time").wait_for("1 row (filtered from 2)")
        tab.page.wait_for_function("() => location.search.includes('gpu_time.filter')")
        reopen(tab, viewer)
        assert [row["rank"] for row in tab.table("gpu_time").rows()] == ["1"]
        tab.table("ranks_iterations").header("iteration").click()
        tab.wait_for_url("ranks_iterations.sort=")
        reopen(tab, viewer)


@pytest.mark.thorough
def test_paces_in_the_browser(viewer: Viewer, job: TraceSet, open_tab: Callable[..., Tab]) -> None:
    """Every kind of occurrence and every name, a rank in the table and in the legend, and links."""
    with open_tab(viewer) as tab:
        tab.open("/")
        tab.follow("/pace", PAGES["/pace"])
        assert len(tab.choices()["kind"]) == len(PACES)
        for number, recipe in enumerate(PACES):
            tab.choose("kind", tab.choices()["kind"][number])
            chooser = tab.page.get_by_label("Name", exact=True).first
            chooser.click()
            options = tab.page.get_by_role("option").all_text_contents()
            tab.page.keyboard.press("Escape")
            assert options
            for option in options:
                if option != chooser.input_value():
                    url = tab.page.url
                    tab.pick("Name", option)
                    tab.page.wait_for_function("(url) => location.href !== url", arg=url)
                    tab.settle()
                name = option.rpartition(" (")[0]
                assert tab.parameters().get("name", name) == name
                check_paces(tab, job, recipe, name)
                check_rows(tab, viewer)
            reopen(tab, viewer)
        table = tab.table("pace")
        before = len(job.recipe(recipe, name=name)["pace_start"]["1"].drop_nulls())
        table.filter("rank", "1")
        tab.wait_for_url("pace.filter=")
        check_rows(tab, viewer)
        assert table.status().startswith(f"{before} row")
        reopen(tab, viewer)
        visible = tab.page.evaluate(_VISIBLE)
        assert {opacity for _, opacity in visible} == {"1"}
        tab.page.locator("main .js-plotly-plot .legendtoggle").first.click()
        tab.page.wait_for_function(f"() => ({_VISIBLE})()[0][1] !== '1'")


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_of_ranks_are_accessible(viewer: Viewer, open_tab: Callable[..., Tab], scheme: str) -> None:
    if browser.axe() is None:
        pytest.skip("npm cannot install axe-core")
    with open_tab(viewer, scheme) as tab:
        tab.open("/")
        for href, title in PAGES.items():
            tab.follow(href, title)
            assert tab.faults() == [], title
            for control in tab.choices():
                tab.choose(control, tab.choices()[control][-1])
                assert tab.faults() == [], (title, control)
        chooser = tab.page.get_by_label("Name", exact=True).first
        chooser.click()
        tab.page.get_by_role("option").first.wait_for()
        assert tab.faults() == []


@pytest.mark.thorough
def test_the_pages_of_ranks_by_keyboard(viewer: Viewer, open_tab: Callable[..., Tab]) -> None:
    """Tab reaches every control, arrow keys choose, and Enter opens and selects."""
    with open_tab(viewer) as tab:
        tab.open("/")
        keys = tab.page.keyboard
        for href, title in PAGES.items():
            tab.page.locator(f'nav a[href="{href}"]').focus()
            keys.press("Enter")
            tab.wait_for_url(href)
            tab.page.get_by_role("heading", name=title, level=1).wait_for()
            tab.settle()
            assert not (left := tab.unreachable()), (title, left)
        tab.open("/maps")
        for position, part in enumerate(("map=mpi_gpu_time_util_map&bins=30", "map=mpi_gpu_time_util_map&bins=100")):
            tab.page.locator("main input[type=radio]:checked").nth(position).focus()
            keys.press("ArrowRight")
            tab.wait_for_url(part)
            check_rows(tab, viewer)
        tab.open("/pace")
        name = tab.page.get_by_label("Name", exact=True).first
        before = name.input_value()
        name.focus()
        keys.press("Enter")
        keys.press("ArrowDown")
        keys.press("ArrowDown")
        keys.press("Enter")
        tab.wait_for_url("name=")
        assert tab.page.get_by_label("Name", exact=True).first.input_value() != before
        assert {id_["table"] for id_ in Table.names(tab.page)} == check_rows(tab, viewer) == {"pace"}
