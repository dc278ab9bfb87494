"""The timeline in a real browser: what is at a pixel is what plain SQL finds there, by pointer and by keyboard."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

import pytest
import tracekit as tk
from tests import chromium
from tests.view import browser as browsers
from tests.view.support import FIXTURES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.view.browser import Tab
    from tracekit.view.server import Viewer

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(chromium.missing()), reason=str(chromium.missing())),
]
CAPTURE = FIXTURES / "train_amp.sqlite"
LABELS = ".tl-labels button"


@pytest.fixture
def train(serve: Callable[..., Viewer]) -> Viewer:
    return serve(CAPTURE)


def query(sql: str) -> list[tuple[int, int, str]]:
    with contextlib.closing(sqlite3.connect(f"file:{CAPTURE}?mode=ro", uri=True)) as database:
        return database.execute(sql).fetchall()


def place(tab: Tab, track: str, start: int, end: int) -> tuple[float, float]:
    """Return the place on the page of the middle of an event on the first lane of a track."""
    label = tab.page.locator(LABELS, has_text=track).first
    label.scroll_into_view_if_needed()
    row, pane = label.bounding_box(), tab.page.locator(".tl-pane").bounding_box()
    assert row
    assert pane
    first, last = (int(tab.parameters()[name]) for name in ("start", "end"))
    return pane["x"] + pane["width"] * ((start + end) / 2 - first) / (last - first), row["y"] + 8


def detail(tab: Tab, name: str) -> str:
    return str(tab.page.locator(".event-details").get_attribute(f"data-{name}"))


@pytest.mark.slow
def test_the_events_at_pixels_are_those_of_plain_sql(train: Viewer, open_tab: Callable[..., Tab]) -> None:
    kernels = query(
        "SELECT k.start, k.end, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName "
        "ORDER BY k.start"
    )
    calls = query(
        "SELECT r.start, r.end, s.value FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId "
        "WHERE s.value LIKE 'cudaLaunchKernel%' AND r.globalTid % 0x1000000 = 600 ORDER BY r.start"
    )
    for scheme, rows, track in (("light", kernels, "stream 7"), ("dark", calls, "CUDA API · python3 600")):
        with open_tab(train, scheme) as tab:
            for index in (len(rows) // 2, len(rows) - 3):
                start, end, name = rows[index]
                shown = (start - 40_000, end + 60_000)
                tab.open(f"/timeline?start={shown[0]}&end={shown[1]}")
                tab.page.mouse.move(*place(tab, track, start, end))
                text = str(tab.page.locator(".tl-tip").text_content())
                assert text.startswith(name.partition("_v")[0])
                assert f"{end - start:,} ns" in text
                assert f"({start:,} ns)" in text
                tab.page.mouse.click(*place(tab, track, start, end))
                tab.page.locator(".event-details").wait_for()
                assert (detail(tab, "start"), detail(tab, "end")) == (str(start), str(end))
                assert tab.parameters()["event"] == detail(tab, "event").partition("@")[0]
            if browsers.axe() is not None:
                assert tab.faults() == []


@pytest.mark.slow
def test_show_selects_the_longest_occurrence_of_a_cause(train: Viewer, open_tab: Callable[..., Tab]) -> None:
    with tk.load(CAPTURE) as trace:
        cause = next(c for c in trace.why().causes if c.evidence.table)
        evidence = cause.evidence
    url = f"/timeline?start={evidence.start_ns}&end={evidence.end_ns}&event={evidence.table}:{evidence.row_id}"
    with open_tab(train) as tab:
        tab.open(f"{url}&cause={cause.cause}")
        assert detail(tab, "event") == f"{evidence.table}:{evidence.row_id}@0"
        start, end = (int(tab.parameters()[name]) for name in ("start", "end"))
        middle = (int(detail(tab, "start")) + int(detail(tab, "end"))) / 2
        assert abs((start + end) / 2 - middle) < 2
        assert 4 * (int(detail(tab, "end")) - int(detail(tab, "start"))) < end - start
        work = tab.page.locator(".event-details li a").first
        tab.page.evaluate("() => scrollTo(0, 0)")
        key = work.get_attribute("data-show-event")
        work.click()
        tab.page.locator(f".event-details[data-event='{key}']").wait_for()
        tab.open(f"/timeline?start={start}&end={end}&cause={cause.cause}")
        first, last = (int(tab.parameters()[name]) for name in ("start", "end"))
        assert first < start < end < last
        shown = tab.query()
        assert "window=exact" in shown
        tab.page.reload()
        tab.settle()
        assert tab.query() == shown
        assert tab.problems == []


@pytest.mark.slow
def test_the_keyboard_reaches_tracks_and_events(train: Viewer, open_tab: Callable[..., Tab]) -> None:
    kernels = query(
        "SELECT start, end, '' FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start > 490000000 ORDER BY start LIMIT 3"
    )
    low, high = kernels[0][0] - 1000, kernels[2][1] + 1000
    with open_tab(train) as tab:
        tab.open(f"/timeline?start={low}&end={high}")
        press, spoken = tab.page.keyboard.press, tab.page.locator(".tl-spoken")
        tab.page.locator(".tl-pane canvas").focus()
        for _ in range(20):
            press("ArrowDown")
            if spoken.text_content() == "stream 7":
                break
        press("]")
        assert f"({kernels[0][0]:,} ns)" in str(spoken.text_content())
        press("]")
        press("Enter")
        tab.page.locator(".event-details").wait_for()
        assert detail(tab, "start") == str(kernels[1][0])
        press("Escape")
        tab.page.locator(".event-details").wait_for(state="detached")
        press("Home")
        tab.wait_for_url("start=19012963&end=497328045")
        press("+")
        tab.page.wait_for_function("() => !location.search.includes('start=19012963&')")
        assert int(tab.parameters()["end"]) - int(tab.parameters()["start"]) == pytest.approx(0.7 * 478_315_082, abs=2)
        label = tab.page.locator(LABELS, has_text="Ranges on the GPU")
        label.focus()
        press("Enter")
        tab.page.locator(LABELS, has_text="NVTX · stream 7").wait_for()
        assert tab.page.locator(LABELS, has_text="NVTX · stream 7").get_attribute("aria-expanded") == "false"
        tab.page.get_by_role("searchbox").fill("softmax")
        press("Enter")
        tab.page.locator(".event-details h2", has_text="softmax").wait_for()


@pytest.mark.slow
def test_the_page_without_scripts_lists_the_events(train: Viewer, open_tab: Callable[..., Tab]) -> None:
    (start, end, _), *_ = query("SELECT start, end, '' FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start DESC")
    with open_tab(train, java_script_enabled=False) as tab:
        tab.page.goto(f"{tab.base}/timeline?start={start}&end={end + 1000}&scripts=no")
        assert not tab.page.locator("#timeline").is_visible()
        links = tab.page.locator("#timeline-events tbody a")
        assert links.count() > 1
        assert tab.page.get_by_role("link", name="Zoom out").is_visible()
        key = links.last.get_attribute("data-show-event")
        links.last.click()
        assert tab.page.locator(".event-details").get_attribute("data-event") == key
