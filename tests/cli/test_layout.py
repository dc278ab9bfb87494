"""How frames are laid out for people."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tracekit.cli.layout import format_rows_and_list_omitted_titles, format_table, shorten_to_width

LONG = "void cudnn::bn_bw_1C11_kernel_new<__half, float, float2>(T2, T2, cudnnTensorStruct, const T1 *)"
FRAME = pl.DataFrame({"name": [LONG, "memset"], "total_ns": [1_533_628, 960], "kernel_id": [12345, None]})


def shown(frame: pl.DataFrame, width: int | None, prose: tuple[str, ...] = ()) -> list[str]:
    return list(format_table(frame, width, prose_columns=prose))


def test_without_a_terminal_nothing_is_cut() -> None:
    assert shown(FRAME, None) == [
        "name" + " " * (len(LONG) - 4) + "   total_ns  kernel_id",
        f"{LONG}  1,533,628      12345",
        "memset" + " " * (len(LONG) - 6) + "        960",
    ]


def test_numbers_are_aligned_with_separators_and_ids_are_copyable() -> None:
    rows = shown(FRAME.select("total_ns", "kernel_id"), 80)
    assert rows == [" total_ns  kernel_id", "1,533,628      12345", "      960"]


def test_a_long_text_is_cut_in_the_middle() -> None:
    rows = shown(FRAME, 80)
    assert rows[1] == "void cudnn::bn_bw_1C11_kernel_new<…>(…)                     1,533,628      12345"
    assert all(len(r) <= 80 for r in rows)
    path = pl.DataFrame({"path": ["/very/long" * 10 + "/name"], "rows": [1]})
    assert shown(path, 60)[1] == "/very/long/very/long/very/long/very/…ng/very/long/name     1"


def test_in_little_room_a_text_is_cut_at_its_end() -> None:
    assert shorten_to_width(LONG, 20) == "void cudnn::bn_bw_1…"


def test_too_narrow_for_a_grid_each_row_is_a_block() -> None:
    assert shown(FRAME, 40) == [
        "── 1 " + "─" * 35,
        "name       void cudnn::bn_bw_1C11_kernel",
        "           _new<__half, float, float2>(T",
        "           2, T2, cudnnTensorStruct, con",
        "           st T1 *)",
        "total_ns   1,533,628",
        "kernel_id  12345",
        "── 2 " + "─" * 35,
        "name       memset",
        "total_ns   960",
        "kernel_id",
    ]


def test_numbers_too_wide_for_a_grid_make_blocks() -> None:
    wide = pl.DataFrame({f"column_number_{i}": [10**12] for i in range(8)})
    assert shown(wide, 80)[1] == "column_number_0  1,000,000,000,000"


def test_a_text_in_a_block_takes_a_few_lines_at_most() -> None:
    block = shown(pl.DataFrame({"name": ["x" * 4000], "value_a": [1]}), 20)
    assert len(block) == 1 + 4 + 1


def test_sentences_are_wrapped_between_words() -> None:
    frame = pl.DataFrame({"table": ["kernels", "syncs"], "doc": ["One execution of a kernel on a GPU.", ""]})
    assert shown(frame, 35, prose=("doc",)) == [
        "table    doc",
        "kernels  One execution of a kernel",
        "         on a GPU.",
        "syncs",
    ]


def test_floats_have_the_same_decimals_in_a_column() -> None:
    assert shown(pl.DataFrame({"x": [1.5, 1234.125]}), 80) == ["        x", "    1.500", "1,234.125"]
    assert shown(pl.DataFrame({"x": [0.1234567, 2.0]}), 80) == ["        x", "0.1234567", "      2.0"]
    assert shown(pl.DataFrame({"x": [float("nan"), float("inf")]}), 80) == ["  x", "nan", "inf"]


def test_control_characters_do_not_reach_the_terminal() -> None:
    frame = pl.DataFrame({"name": ["a\nb\t\x1b[31mred\x9b"]})
    assert shown(frame, 80) == ["name", "a\\nb\\t\\x1b[31mred\\x9b"]


def test_headings_can_be_bold() -> None:
    assert next(format_table(FRAME, 200, bold=True)).startswith("\x1b[1mname")
    assert next(format_table(FRAME, 40, bold=True)).startswith("\x1b[1m── 1 ")


@pytest.mark.parametrize("width", [None, 80])
def test_no_rows_are_a_heading_alone(width: int | None) -> None:
    assert shown(FRAME.clear(), width) == ["name  total_ns  kernel_id"]


def test_no_columns_are_an_empty_line() -> None:
    assert shown(pl.DataFrame(), 80) == [""]


@given(st.text(max_size=80), st.integers(10, 60))
def test_a_cut_text_fits(text: str, width: int) -> None:
    assert cell_len(shorten_to_width(text, width)) <= max(width, 0)


@given(
    st.lists(
        st.tuples(st.text("ab漢字é ", max_size=90), st.integers(-(10**15), 10**15), st.text("xyz", max_size=50)),
        max_size=4,
    ),
    st.integers(60, 140),
)
def test_a_grid_fits_the_terminal(rows: list[tuple[str, int, str]], width: int) -> None:
    frame = pl.DataFrame(rows, schema={"a": pl.String, "n": pl.Int64, "b": pl.String}, orient="row")
    assert all(cell_len(line) <= width for line in shown(frame, width))


OPS = pl.DataFrame(
    {
        "Op ID": ["MAX_POOL2D_1"],
        "Op Name": ["Batch */Forward pass/layer1/aten::max_pool2d_with_indices"],
        "Direction": ["fprop"],
        "No. Calls": [4],
        "Device ID": [0],
        "Total CPU Time (ns)": [173_999],
        "Avg. CPU Time (ns)": [43_499.8],
        "Total GPU Time (ns)": [4_320],
        "Grid X": [12],
        "Data Type": [None],
        "Stack Trace": ["module.py:12 forward;train.py:80 main"],
    }
)
ORDER = [
    *("Data Type", "Stack Trace", "Grid X", "Device ID", "Avg. CPU Time (ns)", "Direction"),
    *("Total GPU Time (ns)", "Total CPU Time (ns)", "No. Calls", "Op ID"),
]


def test_unimportant_columns_are_omitted_first() -> None:
    for width in range(10, 260):
        lines, omitted = format_rows_and_list_omitted_titles(OPS, width)
        assert omitted == [title for title in OPS.columns if title in ORDER[: len(omitted)]]
        assert max(map(cell_len, lines)) <= width
    assert format_rows_and_list_omitted_titles(OPS, 260)[1] == []
    assert len(format_rows_and_list_omitted_titles(OPS, 100)[1]) == len(ORDER) - 4
    assert len(format_rows_and_list_omitted_titles(OPS, 10)[1]) == len(ORDER)


def test_names_of_ranges_and_kernels_are_kept() -> None:
    names = {"NVTX Range": ["r" * 60], "Style": ["PushPop"], "PID": [600], "Kernel Name": ["k" * 60]}
    frame = pl.DataFrame({**names, "Instances": [1], "Total Time (ns)": [6_080], "Max (ns)": [6_080]})
    assert format_rows_and_list_omitted_titles(frame, 90)[1] == ["Style", "PID"]
    assert format_rows_and_list_omitted_titles(frame, 60)[1] == [
        "Style",
        "PID",
        "Instances",
        "Total Time (ns)",
        "Max (ns)",
    ]
    long = frame.select(pl.lit("r" * 60).alias("Range"), *(pl.lit("k" * 60).alias(f"{i} Name") for i in range(3)))
    assert format_rows_and_list_omitted_titles(long, 60)[1] == ["1 Name", "2 Name"]
