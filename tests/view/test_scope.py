"""Every page says whether it shows the whole capture or the aggregated iterations, and what delimits these."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import tracekit as tk
from tests.view.support import FIXTURES, get, running, show, texts
from tracekit.plan import ROLLED_UP
from tracekit.view import pages
from tracekit.view import query as queries
from tracekit.view.server import Viewer
from tracekit.view.state import CaptureAggregation

STEPS = "4 steps, delimited by the range 'Batch *'; 334 of 334 kernels and 100 % of the GPU time lie in steps"
SELECTIONS = {
    "": "the first step is warm-up and left out",
    "?warm_up=yes": "the first step is warm-up and included",
    "?iterations=2:3": "Batch 2 to Batch 3 are aggregated",
}
OF_STEPS = ("", "op_types", "groups", "ops", "iterations", "gpus", "idle")
WITHOUT_SCOPE = ("timeline", "compare", "tables", "roofline", "scalars", "graph")
"""Pages that show a time window, two captures or a table that the user chooses, or data without kernels."""


@pytest.fixture
def viewer(serve: Callable[..., Viewer]) -> Viewer:
    return serve(FIXTURES / "train_amp.sqlite")


def test_every_page_has_a_scope() -> None:
    whole = {name for name, page in pages.PAGES.items() if page.shows_whole_capture}
    assert not whole & {*OF_STEPS, *WITHOUT_SCOPE}
    assert whole | {*OF_STEPS, *WITHOUT_SCOPE, "serving"} == set(pages.PAGES)


@pytest.mark.slow
@pytest.mark.parametrize("search", SELECTIONS)
@pytest.mark.parametrize("page", OF_STEPS)
def test_pages_of_steps_say_which_they_show(viewer: Viewer, page: str, search: str) -> None:
    shown = show(viewer, f"/{page}", search)
    assert [text for text in shown if text.startswith(STEPS)] == [f"{STEPS}; {SELECTIONS[search]}."]
    assert pages.WHOLE_CAPTURE not in shown


@pytest.mark.parametrize("page", [name for name, page in pages.PAGES.items() if page.shows_whole_capture])
def test_pages_of_the_whole_capture_say_so(viewer: Viewer, page: str) -> None:
    shown = show(viewer, f"/{page}")
    assert (pages.WHOLE_CAPTURE in shown) is (page not in ("ranks", "stacks", "metrics"))
    assert not any(text.startswith(STEPS) for text in shown)


def test_every_panel_of_the_overview_has_a_scope(viewer: Viewer) -> None:
    """The panels "Why a step takes this long" and "System" need none."""
    panels = {"GPU utilization", "Time", "GPU time by kind", "Advice", "Iterations", "Top ops", "Top kernels"}
    shown = {text.partition(", ")[0]: text for text in show(viewer, "/") if text.partition(", ")[0] in panels}
    assert set(shown) >= panels - {"Iterations", "Advice"}
    assert all(text.endswith((", aggregated iterations", ", whole capture")) for text in shown.values())


def test_tables_of_a_roll_up_say_which_steps_they_show(viewer: Viewer) -> None:
    for name in (*ROLLED_UP, "kernels"):
        shown = show(viewer, "/tables", f"?table={name}")
        assert (f"{STEPS}; {SELECTIONS['']}." in shown) is (name in ROLLED_UP), name


@pytest.mark.slow
def test_everything_follows_the_selected_gpus() -> None:
    """Rows of tables and figures, cards and notes. Events on the CPU do not, which their pages say."""
    with running(FIXTURES / "ddp2.sqlite") as server:
        captures, at = server._captures, CaptureAggregation(devices=(1,))
        count = captures.all[0].trace.select(devices=[1]).count("kernels")
        names = {name for page in pages.PAGES.values() for name in page.tables} | {"table:kernels", "table:memcpys"}
        compared = 0
        for name in names - {"graph_summary"}:
            rows = queries.load_rows(captures, queries.Query(name, at)).frame
            devices = [c for c in rows.columns if c in ("device_id", "device") and rows.height]
            compared += len(devices)
            assert all(rows[c].unique().to_list() == [1] for c in devices), name
        assert compared >= 5
        overview = show(server, "/", "?devices=1")
        assert f"{count:,}" in overview
        assert "GPU 0" not in get(server, "/gpus?devices=1&scripts=no").text.partition("<svg")[2].partition("</svg>")[0]
        for name in ("api", "nvtx", "timeline", "gpus"):
            shown = show(server, f"/{name}", "?devices=1")
            assert (pages.ALL_CPU_EVENTS in shown) is pages.PAGES[name].shows_cpu_events, name
        assert pages.ALL_CPU_EVENTS not in show(server, "/api")


@pytest.mark.slow
def test_steps_that_dlprof_recorded(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        trace.rollup().export(tmp_path / "dlprof_dldb.sqlite")
    with running(tmp_path / "dlprof_dldb.sqlite") as server:
        for page in ("", "ops", "iterations"):
            assert f"{STEPS}." in show(server, f"/{page}")


def test_the_page_of_a_comparison_describes_the_steps_of_both_sides(viewer: Viewer) -> None:
    shown = show(viewer, "/compare", "?other_iterations=2:3&other_capture=0")
    assert [text for text in shown if "delimited" in text] == [
        f"steps of A: {STEPS}; {SELECTIONS['']}.",
        f"steps of B: {STEPS}; {SELECTIONS['?iterations=2:3']}.",
    ]


@pytest.mark.parametrize("page", ["", "kernels", "ops"])
def test_the_scope_is_always_visible(viewer: Viewer, page: str) -> None:
    def read(query: str) -> str:
        document = get(viewer, f"/{page}{query}{'&' if query else '?'}scripts=no").text
        return document.partition('aria-label="Scope"')[2].partition("<nav")[0]

    shown = read("")
    assert texts(shown, "a") == ["Steady", "With warm-up", "Choose", "All"]
    assert re.search(r'aria-current="true">Steady<', shown)
    assert texts(shown, "summary") == ["all 2"]
    assert ("This page shows the whole capture." in shown) is (page == "kernels")
    assert re.search(r'aria-current="true">With warm-up<', read("?warm_up=yes"))
    shown = read("?iterations=2%3A3&devices=0")
    assert re.search(r'aria-current="true">2 to 3<', shown)
    assert texts(shown, "summary") == ["0"]
    assert f'href="/{page}?devices=0&amp;scripts=no"' in shown
    assert f'href="/{page}?iterations=2%3A3&amp;scripts=no"' in shown


@pytest.mark.slow
def test_captures_without_steps_have_no_scope() -> None:
    with running(FIXTURES / "ncu" / "ncu_roofline_raw.csv") as server:
        shown = [*show(server, "/"), *show(server, "/roofline")]
        assert "Steady" not in texts(get(server, "/roofline?scripts=no").text)
    assert not any("steps" in text or text == pages.WHOLE_CAPTURE for text in shown)


@pytest.mark.slow
def test_missing_work_is_a_warning() -> None:
    with running(FIXTURES / "um.sqlite") as server:
        note = next(text for text in show(server, "/iterations") if "delimited" in text)
    assert note.startswith("Warning: 3 steps, delimited by the range 'round *'; 6 of 7 kernels and 58.6 % of the GPU")
