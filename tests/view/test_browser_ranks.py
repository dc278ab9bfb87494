"""The pages of the ranks of a job in a real browser: "Ranks", "Utilization over time" and "Pace"."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import tracekit as tk
from tests import chromium
from tests.view import browser
from tests.view.browser import Tab
from tests.view.checks import check_rows
from tests.view.support import FIXTURES
from tracekit.plots.recipes import MAPS, PACES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.sets.trace_set import TraceSet
    from tracekit.view.server import Viewer

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(chromium.missing()), reason=str(chromium.missing())),
]
RANKS = sorted((FIXTURES / "ranks").glob("*.nsys-rep"))
PAGES = {"/ranks": "Ranks", "/maps": "Utilization over time", "/pace": "Pace"}
BIN_COUNTS = (30, 100, 300)


@pytest.fixture
def viewer(serve: Callable[..., Viewer]) -> Viewer:
    """A server for the two ranks of a job."""
    return serve(FIXTURES / "ranks")


@pytest.fixture(scope="module")
def job() -> TraceSet:
    """The same ranks as a set, from which the expected numbers are computed."""
    return tk.load_many(RANKS)


def figures(tab: Tab) -> dict[str, str]:
    """Return the texts of the figures of a page, with those of their marks, by their headings."""
    texts: list[tuple[str, str]] = tab.page.locator("main section:has(> figure)").evaluate_all(
        "(all) => all.map((e) => [e.querySelector('h2').textContent, e.querySelector('svg').textContent])"
    )
    return dict(texts)


def reopen(tab: Tab, viewer: Viewer) -> None:
    """Load the URL of the page again, and check that it shows the same figures, choices and tables."""
    url, drawn, choices, tables = tab.page.url, figures(tab), tab.choices(), check_rows(tab, viewer)
    rows = {name: tab.table(name).rows() for name in tables}
    tab.page.goto("about:blank")
    tab.page.goto(url)
    tab.settle()
    assert (figures(tab), tab.choices(), check_rows(tab, viewer)) == (drawn, choices, tables)
    assert {name: tab.table(name).rows() for name in tables} == rows


@pytest.mark.thorough
def test_heat_maps_in_the_browser(viewer: Viewer, job: TraceSet, open_tab: Callable[..., Tab]) -> None:
    """The kind of the heat map and the number of bins are chosen, and the link reproduces the page."""
    with open_tab(viewer) as tab:
        tab.open("/")
        tab.follow("/maps", PAGES["/maps"])
        recipes = [recipe for recipe in MAPS if any(recipe in url for url in tab.choices()["Map"])]
        assert recipes == ["cuda_gpu_time_util_map", "mpi_gpu_time_util_map"]
        for recipe in recipes:
            tab.choose("Map", next(url for url in tab.choices()["Map"] if recipe in url))
            for number, bins in enumerate(BIN_COUNTS):
                tab.choose("Bins", tab.choices()["Bins"][number])
                columns = job.recipe(recipe, bins=bins)["analysis"].columns
                assert len(figures(tab)) == len([c for c in columns if c in ("Kernel", "MPI", "Overlap")])
                assert tab.table("utilization").status().endswith(f"{2 * bins} rows" if bins < 100 else f"{2 * bins}")
                reopen(tab, viewer)
        assert tab.parameters() == {"map": "mpi_gpu_time_util_map", "bins": "300"}


@pytest.mark.thorough
def test_ranks_side_by_side(viewer: Viewer, job: TraceSet, open_tab: Callable[..., Tab]) -> None:
    """The figures show the numbers of the tables below them, whichever capture is selected."""
    with open_tab(viewer) as tab:
        tab.open("/")
        tab.follow("/ranks", PAGES["/ranks"])
        assert check_rows(tab, viewer) == {"gpu_time", "ranks_iterations", "ranks_step_parts"}
        times = job.recipe("gpu_time_sum")["gpu_time"]
        drawn = figures(tab)
        for part in ("compute_ns", "hidden_ns", "exposed_ns", "memory_ns", "idle_ns"):
            for time in times[part]:
                assert f"{time:,} ns" in drawn["Time of the GPUs of each rank"] or not time
        seen = tab.table("gpu_time").rows()
        assert [row["capture"] for row in seen] == [path.name for path in RANKS]
        assert [row["total_ns"] for row in seen] == [str(time) for time in times["total_ns"]]
        tab.pick("Capture", f"1: {RANKS[1].name}")
        tab.wait_for_url("capture=1")
        assert (figures(tab), tab.table("gpu_time").rows()) == (drawn, seen)
        tab.table("ranks_iterations").sort_link("iteration").click()
        tab.wait_for_url("ranks_iterations.sort=")
        reopen(tab, viewer)


@pytest.mark.thorough
def test_ranks_are_selected(viewer: Viewer, open_tab: Callable[..., Tab]) -> None:
    """Figures and tables of ranks follow the scope."""
    with open_tab(viewer) as tab:
        tab.open("/ranks")
        scope = tab.page.get_by_role("region", name="Scope")
        scope.locator("details", has_text="Rank 1").locator("summary").click()
        scope.get_by_label("Rank 1").check()
        scope.locator("form", has_text="Rank 1").get_by_role("button", name="Show").click()
        tab.wait_for_url("ranks=1")
        assert [row["rank"] for row in tab.table("gpu_time").rows()] == ["1"]
        check_rows(tab, viewer)
        tab.follow("/maps?ranks=1", PAGES["/maps"])
        assert {row["rank"] for row in tab.table("utilization").rows(30)} == {"1"}


@pytest.mark.thorough
def test_paces_in_the_browser(viewer: Viewer, job: TraceSet, open_tab: Callable[..., Tab]) -> None:
    """Every kind of occurrence and every name."""
    with open_tab(viewer) as tab:
        tab.open("/")
        tab.follow("/pace", PAGES["/pace"])
        assert len(tab.choices()["Kind"]) == len(PACES)
        for number, recipe in enumerate(PACES):
            tab.choose("Kind", tab.choices()["Kind"][number])
            chooser = tab.page.get_by_role("combobox", name="Name", exact=True)
            for option in chooser.locator("option").all_text_contents():
                tab.pick("Name", option)
                name = option.rpartition(" (")[0]
                assert tab.parameters().get("name", name) == name
                tables, drawn = job.recipe(recipe, name=name), figures(tab)
                for table, title in {"pace_start": "Start", "pace_duration": "Duration"}.items():
                    for values in tables[table]:
                        assert f"{int(values[0]):,} ns" in drawn[title]
                check_rows(tab, viewer)
            reopen(tab, viewer)


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


@pytest.mark.thorough
def test_the_pages_of_ranks_by_keyboard(viewer: Viewer, open_tab: Callable[..., Tab]) -> None:
    """Tab reaches every control, and Enter opens links."""
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
        tab.page.get_by_role("link", name="100 bins").focus()
        keys.press("Enter")
        tab.wait_for_url("bins=100")
        check_rows(tab, viewer)
        tab.open("/pace")
        name = tab.page.get_by_role("combobox", name="Name", exact=True)
        name.focus()
        keys.press("ArrowDown")
        keys.press("Tab")
        keys.press("Enter")
        tab.wait_for_url("name=")
        assert check_rows(tab, viewer) == {"pace"}
