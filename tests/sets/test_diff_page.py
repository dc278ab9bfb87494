"""The page of a comparison: its numbers, hostile names, and what it may load."""

from __future__ import annotations

import polars as pl
import pytest
import tracekit as tk
from tests.builders import training_runs
from tests.core.compare.test_diff import summary_of
from tests.exporters.test_html import Page
from tracekit.core import compare
from tracekit.pages.document import read_script
from tracekit.sets.diff_page import build_diff_page


@pytest.mark.slow
def test_the_tables_of_a_page() -> None:
    diff = tk.diff(training_runs.summary(1), training_runs.summary(2, slow=(("kernel_f<(int)4>", 2.0),)))
    text = build_diff_page(diff, ("a.nsys-rep", "b.nsys-rep"))
    page = Page(text)
    assert page.scripts == [read_script()]
    assert any(value.startswith("default-src 'none'; script-src 'sha256-") for _, _, value in page.attributes)
    kernels = page.tables["Kernels"]
    assert kernels[0][:5] == ["name", "status", "evidence", "time_a_ns", "time_b_ns"]
    assert page.titles["Kernels"][:6] == ["Name", "Status", "Evidence", "Time A", "Time B", "Change"]
    first = diff.frame("kernels").row(0, named=True)
    assert kernels[1][:4] == [first["name"], "slower", "significant", str(first["time_a_ns"])]
    assert len(kernels) == 1 + 12
    assert [row[0] for row in page.tables["Sides"][1:]] == [
        *("Name", "Iterations", "GPUs", "Key op", "Steps", "Recorded"),
    ]
    assert page.tables["Sides"][1] == ["Name", "a.nsys-rep", "b.nsys-rep"]
    significant = [caption for caption in page.tables if caption.startswith("Significant changes")]
    assert len(page.tables[significant[0]]) == 1 + diff.significant().height
    assert len(Page(build_diff_page(diff, ("a", "b"), 3)).tables["Kernels (first 3 of 12 rows)"]) == 4


def test_times_per_iteration_and_notes() -> None:
    diff = tk.diff(training_runs.summary(1), training_runs.summary(2, iterations=20), by=["kernels"])
    text = build_diff_page(diff, ("a", "b"), 0)
    page = Page(text)
    caption = "Kernels, times per iteration"
    assert "Time A" in page.titles[caption]
    assert [row[3] for row in page.tables[caption][1:]] == [str(t) for t in diff.frame("kernels")["iteration_a_ns"]]
    assert "Time per iteration in A." in page.plain().splitlines()
    assert any("the numbers of iterations differ" in words for _, words in page.texts)
    same = tk.diff(training_runs.summary(1), training_runs.summary(1), by=["kernels"])
    assert "Kernels" not in Page(build_diff_page(same, ("a", "b"))).tables


def test_hostile_names() -> None:
    name = "<script>alert(1)</script>\u202e"
    diff = compare.compare(summary_of([(name, 0, 1, 5)]), summary_of([(name, 0, 1, 9)]), ["kernels"])
    text = build_diff_page(diff, ("<b>", "node7_4711.168.pt.trace.json"))
    assert "node7" not in text
    assert Page(text).scripts == [read_script()]
    assert "<script>alert" not in text
    assert "<b>" not in text
    assert "\u202e" not in text
    assert diff.frame("kernels").select(pl.col("name").first()).item() == name
