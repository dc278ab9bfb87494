"""Tables of pages: their titles, explanations and cells, and hostile texts in all of them."""

from __future__ import annotations

import re

import polars as pl
import pytest
from tracekit import schemas
from tracekit.pages.columns import ColumnText, describe_column, describe_columns, write_title
from tracekit.pages.tables import build_cell_content, build_frame_table, build_table
from tracekit.registry.analyses import FIGURE, KINDS, REPORT, get_analysis, list_analyses
from tracekit.text.elements import render

EVIL = "<img src=x onerror=alert(1)>\u202e"


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("gpu_time", "GPU time"),
        ("Total GPU Time", "Total GPU time"),
        ("Num Calls", "Calls"),
        ("op_id", "Op ID"),
        ("kernel_count", "Kernels"),
        ("copy_count", "Copies"),
        ("Warm-Up Steps", "Warm-up steps"),
        ("is_aggregated", "Aggregated"),
        ("grid_x", "Grid X"),
        ("FP16 FLOP", "FP16 FLOP"),
        ("#", "#"),
    ],
)
def test_titles_have_one_style(name: str, title: str) -> None:
    assert write_title(name) == title


def test_the_unit_is_shown_once() -> None:
    kernels = schemas.table("kernels")
    assert describe_column("start_ns", kernels["start_ns"])[1:3] == ("Start", "ns since the start")
    assert describe_column("Total Time (ns)")[1:3] == ("Total time", "ns")
    assert describe_column("Throughput (MB/s)")[1:3] == ("Throughput (MB/s)", "MB/s")
    assert describe_column("stream_id", kernels["stream_id"])[1:3] == ("Stream ID", "id")


def test_declared_columns_have_titles_in_this_style() -> None:
    columns = [c for kind in KINDS for a in list_analyses(kind).values() for t in a.results for c in t.columns]
    columns += [c for name in schemas.table_names() for c in schemas.table(name).columns]
    for text in (describe_column(column.name, column) for column in columns):
        title = text.title.removesuffix(f" ({text.unit})")
        assert not re.search(r"_|\((?:ns|bytes|%)\)", title), text


def test_a_table_explains_its_columns_and_escapes_names() -> None:
    columns = get_analysis("cuda_gpu_kern_sum", REPORT).columns
    frame = pl.DataFrame({"Name": [EVIL, "b"], "Total Time (ns)": [1_234_567, None], "Instances": [1, 2]})
    text = str(build_frame_table(EVIL, frame, frame.columns, max_rows=1, declared=columns))
    assert "(first 1 of 2 rows)" in text
    assert '<th scope="row" class="long">&lt;img src=x onerror=alert(1)&gt;\\u202e</th>' in text
    assert '<td class="number"><data value="1234567" title="1,234,567 ns">1.235 ms</data></td>' in text
    assert "<img" not in text
    described = re.findall(r'aria-describedby="([^"]+)"', text)
    assert described == re.findall(r'role="tooltip" id="([^"]+)"', text)
    assert len(described) == 3
    assert "<span>Sum of the durations.</span>" in text
    assert 'type="search"' not in text


def test_long_texts_are_folded() -> None:
    assert build_cell_content("x" * 90) == "x" * 90
    folded = render(build_cell_content("x" * 7000))
    assert folded.startswith("<details><summary>")
    assert folded.endswith("… (7,000 characters)</details>")
    assert [render(build_cell_content(v)) for v in (None, True, [1])] == ["", "yes", "[1]"]


def test_rows_can_be_searched_if_there_are_many() -> None:
    columns = describe_columns(["a", "b"], get_analysis("top_kernels", FIGURE).columns)
    text = str(build_table("Rows", columns, [(n, None) for n in range(8)]))
    assert '<input type="search"' in text
    assert str(ColumnText("a", "A")) in str(columns)
