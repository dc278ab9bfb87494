"""Tables in a browser: typing, slow answers, the focus, and several columns to sort by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests import chromium
from tests.view.browser import Tab
from tests.view.checks import check_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Route
    from tracekit.view.server import Viewer

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(chromium.missing()), reason=str(chromium.missing())),
]
FOCUS = "() => [document.activeElement.name, document.activeElement.value, document.activeElement.selectionStart]"


def test_typing_and_sorting(amp: Viewer, open_tab: Callable[..., Tab]) -> None:
    """The last answer wins, the focus and the text stay, and Shift and a click sort by a further column."""
    with open_tab(amp) as tab:
        tab.open("/kernels?kernels.select=3&x=y")
        table, field = tab.table("kernels"), "kernels.filter.total_time_ns"
        assert tab.table("launches").status()
        delayed: list[Route] = []

        def delay(route: Route) -> None:
            delayed.append(route)
            if len(delayed) > 1:
                route.continue_()

        tab.page.route("**/fragment/table/**", delay)
        table.entry("filter.total_time_ns").press_sequentially("> 100 us")
        tab.page.wait_for_timeout(450)
        table.entry("filter.total_time_ns").press("Backspace")
        table.entry("filter.total_time_ns").press("Backspace")
        table.entry("filter.total_time_ns").press_sequentially("us AND <1 ms")
        tab.wait_for_url("kernels.filter=")
        delayed[0].continue_()
        check_table(tab, amp, "kernels")
        assert "AND" in str(tab.parameters()["kernels.filter"])
        assert tab.page.evaluate(FOCUS) == [field, "> 100 us AND <1 ms", 18]
        assert tab.parameters().keys() == {"kernels.filter", "kernels.select", "kernels.page", "x"}
        tab.page.unroute("**/fragment/table/**")
        table.sort_link("launches").press("Enter")
        tab.wait_for_url("kernels.sort=launches%3Adesc")
        assert tab.page.evaluate("() => document.activeElement.id") == "kernels-sort-launches"
        table.sort_link("grid").click(modifiers=["Shift"])
        tab.wait_for_url("kernels.sort=launches%3Adesc%2Cgrid%3Aasc")
        table.sort_link("launches").click(modifiers=["Shift"])
        tab.wait_for_url("kernels.sort=launches%3Aasc%2Cgrid%3Aasc")
        check_table(tab, amp, "kernels")
        table.entry("filter.total_time_ns").fill("> x")
        table.panel.get_by_text("is not a filter of numbers").wait_for()
        assert table.entry("filter.total_time_ns").input_value() == "> x"
        table.panel.get_by_role("link", name="Clear filters").click()
        tab.page.wait_for_function("() => !location.search.includes('filter')")
        check_table(tab, amp, "kernels")
        check_table(tab, amp, "launches")
