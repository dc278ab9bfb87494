"""How frames are laid out for people."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.conftest import ALL
from tracekit.cli.layout import (
    MAX_CELL_CHARS,
    format_rows_and_list_omitted_titles,
    format_table,
    shorten_names,
    shorten_to_width,
)
from tracekit.cli.times import Times, format_time

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


@pytest.mark.parametrize("width", [None, 80])
def test_rows_are_not_padded_to_a_very_long_string(width: int | None) -> None:
    long = "a" * 50_000
    frame = pl.DataFrame({"name": [f"{long}b{long}", f"{long}c{long}", "d" * MAX_CELL_CHARS], "count": [1, 2, 3]})
    _, first, second, short = shown(frame, width)
    assert first != second
    if width is None:
        assert len(first) == len(second) == len(short) == MAX_CELL_CHARS + len("  count")
        assert first.startswith("a" * 2000)
        assert short.startswith("d" * MAX_CELL_CHARS + "  ")


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
    assert shown(pl.DataFrame({"x": [0.1234567, 2.0]}), 80) == ["    x", "0.123", "2.000"]
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


@pytest.mark.slow
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


NAMES = st.one_of(
    st.text("ab<>(), :漢", max_size=120),
    st.builds("void ns::{}<(int){}, T<{}>>(T1 *, {})".format, st.text("ab", max_size=60), *[st.integers(0, 99)] * 3),
    st.builds("/very/long/path/of/groups/{}/name {}".format, st.text("ab", max_size=60), st.integers(0, 99)),
)


@given(st.lists(NAMES, max_size=12), st.integers(12, 100))
def test_different_names_look_different(names: list[str], width: int) -> None:
    shown = shorten_names(names, width)
    assert all(cell_len(text) <= width for text in shown)
    assert len(set(shown)) == len(set(names))
    assert all(text == name for text, name in zip(shown, names, strict=True) if cell_len(name) <= width)


@given(st.lists(NAMES, max_size=12), st.integers(1, 11))
def test_very_short_names_fit(names: list[str], width: int) -> None:
    assert all(cell_len(text) <= width for text in shorten_names(names, width))


def test_what_distinguishes_kernels_is_kept() -> None:
    kernel = "void cudnn::bn_bw_1C11_kernel_new<__half, float, float2, (int)512, (bool)1, (int){}>(T2, T2, const T1 *)"
    names = [kernel.format(1), kernel.format(2), "void at::native::reduce_kernel<(int)512>(T3)"]
    assert shorten_names(names, 44) == [
        "…:bn_bw_1C11_kernel_new… (int)1>(T2, T2, co…",
        "…:bn_bw_1C11_kernel_new… (int)2>(T2, T2, co…",
        "void at::native::reduce_kernel<(int)512>(T3)",
    ]
    layers = [f"module/encoder/{'layer/' * 20}{i}/attention/{'self/' * 20}matmul" for i in (1, 2)]
    assert shorten_names(layers, 40) == [f"module/encode…layer/{i}/attention/self/se…" for i in (1, 2)]


@pytest.mark.slow
def test_many_similar_names_take_little_time() -> None:
    count = 5000 if ALL else 1000
    names = [f"{'x' * 300}{i:06}{'y' * 300}" for i in range(count)]
    assert len(set(shorten_names(names, 40))) == count


TIMES = pl.DataFrame(
    {
        "Total Time (ns)": [264_478, 0],
        "Avg (ns)": [33_059.8, None],
        "Max (ns)": [80_192, 7],
        "Start (ns)": [1_234_567_890, -5],
        "Time (%)": [87.0, 13.0],
        "total_ns": [5_000_000_000, -1],
    }
)


def test_times_have_a_unit_of_their_kind() -> None:
    assert shown_with_times(TIMES, Times()) == [
        "Total Time (ms)  Avg (ns)  Max (ns)     Start (µs)  Time (%)   total_ms",
        "          0.264  33,059.8    80,192  1,234,567.890      87.0  5,000.000",
        "          0.000                   7         -0.005      13.0      0.000",
    ]


@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s"])
def test_a_unit_of_all_times(unit: str) -> None:
    heading, first, _ = shown_with_times(TIMES, Times(unit))
    assert heading.split()[-1] == f"total_{unit}"
    assert ("Avg (ns)" in heading) == (unit == "ns")
    assert first.split()[0] == {"ns": "264,478", "us": "264.478", "ms": "0.264", "s": "0.000"}[unit]
    assert shown_with_times(TIMES, Times("ns")) == shown(TIMES, None)


def test_columns_without_a_unit_in_their_names() -> None:
    frame = pl.DataFrame({"Sum": [123_456_789], "Count": [3]})
    assert shown_with_times(frame, Times(others=("Sum",))) == ["Sum (ms)  Count", " 123.457      3"]
    assert shown_with_times(frame, Times()) == ["        Sum  Count", "123,456,789      3"]


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from(["us", "ms", "s"]))
def test_times_are_rounded_from_integers(time_ns: int, unit: str) -> None:
    factor = {"us": 1, "ms": 10**3, "s": 10**6}[unit]
    thousandths = int(format_time(time_ns, unit).replace(",", "").replace(".", ""))
    assert abs(thousandths * factor - time_ns) * 2 <= factor


def shown_with_times(frame: pl.DataFrame, times: Times) -> list[str]:
    return list(format_table(frame, None, times=times))


@pytest.mark.parametrize(
    ("values", "cells"),
    [
        ([0.1 + 0.2, 1.0], ["0.300", "1.000"]),
        ([0.0001234567, 0.9], ["0.0001235", "0.9"]),
        ([1e-9, 123.456789], ["1e-09", "123.5"]),
        ([123456.789012345, 0.0], ["123,457", "0"]),
        ([95.123456789, 12.3], ["95.1", "12.3"]),
        ([float("nan"), 1 / 3], ["nan", "0.333"]),
    ],
)
def test_floats_have_few_digits_on_a_terminal(values: list[float], cells: list[str]) -> None:
    assert [line.strip() for line in shown(pl.DataFrame({"x": values}), 80)[1:]] == cells
    exact = [line.strip().replace(",", "") for line in shown(pl.DataFrame({"x": values}), None)[1:]]
    assert [float(text) for text in exact] == pytest.approx(values, nan_ok=True)
