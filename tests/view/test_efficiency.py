"""The page "Efficiency": its numbers are those of the reports, and it says what is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import tracekit as tk
from tests.view.markup import TableMarkup
from tests.view.support import FIXTURES, get, running, show
from tracekit.pages.values import NANOSECONDS, PERCENT, format_value
from tracekit.view.pages.efficiency import _build_limits

if TYPE_CHECKING:
    from tracekit.view.server import Viewer

GPT = FIXTURES / "steps" / "gpt.pt.trace.json.gz"


def open_page(viewer: Viewer, query: str = "") -> str:
    return get(viewer, f"/efficiency?scripts=no{query}").text


def test_numbers_are_those_of_the_reports_and_a_selected_op_has_its_kernels() -> None:
    with tk.load(GPT) as trace:
        ops, steps = trace.stats("op_roofline"), trace.stats("step_mfu")
    known = ops.filter(pl.col("Op").is_not_null())
    with running(GPT) as viewer:
        shown = show(viewer, "/efficiency")
        rows = TableMarkup(open_page(viewer), "op_roofline").rows()
        kernels = TableMarkup(open_page(viewer, "&op_roofline.select=1"), "op_roofline_kernels").rows()
    covered = format_value(100.0 * known["GPU Time (ns)"].sum() / ops["GPU Time (ns)"].sum(), PERCENT)
    note = f"The work of ops is known for {covered} of the time of kernels."
    assert [text for text in shown if text.startswith(note)]
    assert format_value(int(known["Savable (ns)"].sum()), NANOSECONDS) in shown
    for text in ("Roofline of the ops", "What limits the ops", "Ops by shapes and types", "Utilization of each step"):
        assert text in shown
    assert format_value(steps.filter(pl.col("Step").is_null())["MFU (%)"][0], PERCENT) in shown
    listed = ops.sort("GPU Time (ns)", descending=True, maintain_order=True)
    assert [int(row["gpu_time_ns"]) for row in rows] == listed["GPU Time (ns)"].to_list()[: len(rows)]
    assert len(kernels) == ops["Kernels"][1]
    assert sum(int(row["duration_ns"]) for row in kernels) == ops["GPU Time (ns)"][1]


def test_collective_operations_have_a_row_of_their_own_without_a_time_above_the_roofline() -> None:
    rows = [("collective", None, 30, None), ("pointwise", None, 8, 3), ("pointwise", None, 2, None)]
    known = pl.DataFrame(rows, schema=["Kind", "Limited By", "GPU Time (ns)", "Savable (ns)"], orient="row")
    other, collective = str(_build_limits(known)).split("<tr>")[2:]
    assert ["10 ns" in other, "3 ns" in other] == [True, True]
    assert ["Collective operations" in collective, "30 ns" in collective] == [True, True]
    assert '<td class="number"></td></tr>' in collective


def test_without_shapes_the_page_says_how_to_record_them() -> None:
    with running(FIXTURES / "ddp2.sqlite") as viewer:
        navigation = get(viewer, "/fragment/navigation").text
        assert "No data: the shapes of ops were not recorded" in navigation
        assert any(
            "on NVIDIA GPUs, with torch.autograd.profiler.emit_nvtx" in text for text in show(viewer, "/efficiency")
        )
