"""Digits of reports: rounding against Python's decimal and SQLite, and the CSV dialect."""

from __future__ import annotations

import csv
import io
import sqlite3
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tracekit.core.reports import numbers, table
from tracekit.core.reports.table import ReportTable
from tracekit.registry.analyses import ResultColumn

quotients = st.builds(lambda a, b: a / b, st.integers(-(10**13), 10**13), st.sampled_from([1, 3, 4, 20, 40, 60, 1000]))
doubles = st.floats(-1e12, 1e12, allow_subnormal=False) | quotients
columns = st.lists(doubles, min_size=1, max_size=30)


def of(values: list[float], make: object) -> list[float]:
    return pl.DataFrame({"x": pl.Series(values, dtype=pl.Float64)}).select(make(pl.col("x"))).to_series().to_list()


@given(columns)
@example([0.05, 0.15, 0.25, 1236.05, 0.95, 0.9999999, -0.25, 2.5, 0.0, -0.0, 8e14])
def test_tenths_round_the_exact_value_half_away_from_zero(values: list[float]) -> None:
    want = [int(Decimal(v).quantize(Decimal("0.1"), ROUND_HALF_UP).scaleb(1)) for v in values]
    assert of(values, numbers.round_to_tenths_expr) == want


@given(columns)
@example([1236.05, 0.15, 0.35, -0.15])
def test_legacy_tenths_add_before_they_round(values: list[float]) -> None:
    want = [int(Decimal(v + v * 3e-16).quantize(Decimal("0.1"), ROUND_HALF_UP).scaleb(1)) for v in values]
    assert of(values, lambda x: numbers.round_to_tenths_expr(x, legacy_rounding=True)) == want


@given(columns)
def test_tenths_are_those_of_sqlite(values: list[float]) -> None:
    legacy = sqlite3.sqlite_version_info < (3, 43)
    with sqlite3.connect(":memory:") as db:
        want = [db.execute("SELECT round(?, 1)", [v]).fetchone()[0] for v in values]
    db.close()
    assert (
        of(
            of(values, lambda x: numbers.round_to_tenths_expr(x, legacy_rounding=legacy)),
            lambda x: numbers.quotient_expr(x, 10.0),
        )
        == want
    )


@given(columns)
@example([0.0005, 0.0015, 0.0625, 1.0005, 2.5, 0.9995])
def test_thousandths_are_those_of_printf(values: list[float]) -> None:
    want = [int(Decimal(v).quantize(Decimal("0.001"), ROUND_HALF_EVEN).scaleb(3)) for v in values]
    assert of(values, numbers.round_to_thousandths_expr) == want
    assert want == [int(Decimal(f"{v:.3f}").scaleb(3)) for v in values]


@given(columns, st.sampled_from([3.0, 10.0, 1e6, 7.5e11]))
def test_quotient_is_correctly_rounded(values: list[float], divisor: float) -> None:
    assert of(values, lambda x: numbers.quotient_expr(x, divisor)) == [v / divisor for v in values]


@given(st.lists(st.integers(0, 10**13), max_size=9))
def test_percent(parts: list[int]) -> None:
    got = (
        pl.DataFrame({"x": pl.Series(parts, dtype=pl.Int64)})
        .select(numbers.percent_of_sum_expr(pl.col("x")))
        .to_series()
    )
    whole = sum(parts)
    assert got.to_list() == [p * 100.0 / whole if whole else None for p in parts]


SAMPLE = pl.DataFrame(
    {
        "ns": [1, None, -3],
        "avg": [0.25, None, -1236.05],
        "size": [1_234_500, 500, None],
        "label": pl.Series(["a,b", 'say "x", y', None], dtype=pl.Categorical),
        "line": ["two\nlines", "", "plain\r"],
    },
    schema_overrides={"ns": pl.Int32},
)
COLUMNS = (
    ResultColumn("Start (ns)", "int64", "", "ns", field="ns"),
    ResultColumn("Avg (ns)", "float64", "", "ns", field="avg"),
    ResultColumn("Lvl", "float64", "", field="avg"),
    ResultColumn("Time (%)", "float64", "", "%", field="avg"),
    ResultColumn("Bytes (MB)", "float64", "", "MB", field="size"),
    ResultColumn("Speed (MB/s)", "float64", "", "MB/s", field="size"),
    ResultColumn("Name", "string", "", field="label"),
    ResultColumn("Line", "string", "", field="line"),
    ResultColumn("Count", "int64", "", field="ns"),
)
HEADER = "Start (ns),Avg (ns),Lvl,Time (%),Bytes (MB),Speed (MB/s),Name,Line,Count\n"


def printed(report: ReportTable) -> str:
    sink = io.BytesIO()
    report.csv(sink)
    return sink.getvalue().decode()


@pytest.mark.parametrize("rows_at_once", [1, 2, 1000])
def test_dialect(monkeypatch: pytest.MonkeyPatch, rows_at_once: int) -> None:
    monkeypatch.setattr(table, "_BATCH_ROWS", rows_at_once)
    assert printed(ReportTable("sample", COLUMNS, SAMPLE)) == (
        HEADER
        + '1,0.3,0.3,0.3,1.234,1.234,"a,b",two\nlines,1\n'
        + ',,,,0.001,0.001,"say "x", y",,\n'
        + "-3,-1236.0,-1236.0,-1236.0,,,,plain\r,-3\n"
    ).replace("0.001,0.001", f"{500 / 1e6:.3f},{500 / 1e6:.3f}").replace("1.234,1.234", f"{1.2345:.3f},{1.2345:.3f}")


def test_quotes_of_reports_that_nsys_does_not_have() -> None:
    rows = list(csv.reader(io.StringIO(printed(ReportTable("own", COLUMNS, SAMPLE, "tracekit")), newline="")))
    assert [row[6:8] for row in rows[1:]] == [["a,b", "two\nlines"], ['say "x", y', ""], ["", "plain\r"]]


def test_legacy_rounding_reaches_the_cells() -> None:
    legacy = ReportTable("sample", COLUMNS, SAMPLE, legacy_rounding=True)
    assert "-1236.1,-1236.1,-1236.1" in printed(legacy)
    assert legacy.frame()["Avg (ns)"].to_list() == [0.3, None, -1236.1]


def test_frame_has_the_printed_numbers() -> None:
    got = ReportTable("sample", COLUMNS, SAMPLE).frame()
    assert got.columns == HEADER.strip().split(",")
    assert got["Start (ns)"].dtype == got["Count"].dtype == pl.Int64
    assert got["Avg (ns)"].to_list() == [0.3, None, -1236.0]
    assert got["Bytes (MB)"].to_list() == [float(f"{1.2345:.3f}"), float(f"{0.0005:.3f}"), None]
    assert got["Name"].cast(pl.String).to_list() == ["a,b", 'say "x", y', None]


def test_no_rows_no_bytes() -> None:
    report = ReportTable("sample", COLUMNS, SAMPLE.clear())
    assert printed(report) == ""
    assert report.rows == 0
    assert report.frame().schema["Avg (ns)"] == pl.Float64


def test_values_are_numbers_with_the_digits_that_are_printed() -> None:
    data = pl.DataFrame({"x": [1.23456, 2.0], "n": [1, None]})
    report = ReportTable(
        "r",
        (ResultColumn("X", "float64", "", field="x", style="thousandths"), ResultColumn("N", "int64", "", field="n")),
        data,
    )
    assert report.frame().rows() == [(1.235, 1), (2.0, None)]
    assert printed(report) == "X,N\n1.235,1\n2.000,\n"
