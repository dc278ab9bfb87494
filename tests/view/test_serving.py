"""The page "Serving": its rows are those of the reports, and it says what to record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tracekit as tk
from tests.view.markup import TableMarkup
from tests.view.support import FIXTURES, get, show

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.view.server import Viewer

STEPS = FIXTURES / "serving" / "steps.nsys-rep"


def test_phases_steps_and_categories_are_those_of_the_reports(serve: Callable[..., Viewer]) -> None:
    viewer = serve(STEPS)
    html = get(viewer, "/serving?scripts=no").text
    with tk.load(STEPS).rollup(include_warm_up=False) as trace:
        phases, steps, batches = (
            trace.stats(name) for name in ("serving_phases", "serving_steps", "serving_phases:batch")
        )
        categories, layers = trace.stats("kernel_categories"), trace.stats("kernel_categories:layer")
    rows = TableMarkup(html, "serving_phases").rows()
    assert [(row["phase"], int(row["total_time_ns"])) for row in rows] == phases["Phase", "Total Time (ns)"].rows()
    rows = TableMarkup(html, "serving_steps").rows()
    assert [int(row["time_ns"]) for row in rows] == steps["Time (ns)"].to_list()
    assert sum(int(row["total_time_ns"]) for row in TableMarkup(html, "category_layers").rows()) == int(
        layers["Total Time (ns)"].sum()
    )
    by_batch = TableMarkup(get(viewer, "/serving?scripts=no&by=batch").text, "serving_phases").rows()
    assert {int(row["batch"]) for row in by_batch} == set(batches["Batch"])
    listed = TableMarkup(get(viewer, "/gpus?scripts=no").text, "kernel_categories").rows()
    assert [row["category"] for row in listed] == categories["Category"].to_list()


def test_without_steps_the_page_says_what_to_record(serve: Callable[..., Viewer]) -> None:
    viewer = serve(FIXTURES / "ddp2.sqlite")
    assert "No data: no range tells the phase of a step" in get(viewer, "/fragment/navigation").text
    assert any("TLLM_LLMAPI_ENABLE_NVTX=1" in text for text in show(viewer, "/serving"))
