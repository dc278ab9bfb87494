"""Downloads: exact integers, text that is never a formula, chosen columns, filtered rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import openpyxl
import polars as pl
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.view.support import BIG, NAMES, captures_of, hostile_tables
from tracekit.errors import TracekitError
from tracekit.view import downloads
from tracekit.view.captures import ViewedCaptures

TABLE = {"table": "table:kernels"}
DANGEROUS = ("=", "+", "-", "@", "\t", "\r")


@pytest.fixture(scope="module")
def hostile() -> Iterator[ViewedCaptures]:
    captures = captures_of(tk.Trace.from_tables(hostile_tables()))
    yield captures
    captures.close()


def export(captures: ViewedCaptures, kind: str, **values: str) -> bytes:
    return downloads.export_rows(captures, {**TABLE, "format": kind, **values}).content


def sheet(content: bytes) -> list[tuple[Any, ...]]:
    """Return the cells of a workbook, none of which may be a formula or a link."""
    book = openpyxl.load_workbook(io.BytesIO(content), data_only=False)
    page = book["rows"]
    for row in page.iter_rows():
        for cell in row:
            assert cell.data_type in "snb", (cell.value, cell.data_type)
            assert cell.hyperlink is None
    return list(page.iter_rows(values_only=True))


def test_csv_neutralises_formulas_and_keeps_everything_else(hostile: ViewedCaptures) -> None:
    text = export(hostile, "csv", columns="kernel_id,name,grid_id").decode()
    header, *rows = list(csv.reader(io.StringIO(text, newline="")))
    assert header == ["kernel_id", "name", "grid_id"]
    assert [row[1] for row in rows] == [f"'{n}" if n.startswith(DANGEROUS) else n for n in NAMES]
    assert [int(row[2]) for row in rows] == [BIG + 2 * i for i in range(len(NAMES))]


def test_the_clipboard_has_one_line_per_row(hostile: ViewedCaptures) -> None:
    header, *lines = export(hostile, "tsv", columns="name,grid_id").decode().removesuffix("\n").split("\n")
    assert header == "name\tgrid_id"
    assert len(lines) == len(NAMES)
    for line, name, number in zip(lines, NAMES, range(BIG, BIG + 99, 2), strict=False):
        cells = line.split("\t")
        assert cells == [
            ("'" if name.startswith(DANGEROUS) else "") + name.translate({9: " ", 10: " ", 13: " "}),
            str(number),
        ]


def test_json_and_parquet_are_exact(hostile: ViewedCaptures) -> None:
    wanted = hostile_tables()["kernels"]
    rows = json.loads(export(hostile, "json"))
    assert [row["name"] for row in rows] == list(NAMES)
    assert [row["grid_id"] for row in rows] == wanted["grid_id"].to_pylist()
    frame = pl.read_parquet(io.BytesIO(export(hostile, "parquet")))
    assert frame["name"].cast(pl.String).to_list() == list(NAMES)
    assert frame["grid_id"].to_list() == wanted["grid_id"].to_pylist()
    assert frame.schema["grid_id"] == pl.Int64


def test_excel_has_text_and_no_formulas(hostile: ViewedCaptures) -> None:
    header, *rows = sheet(export(hostile, "xlsx", columns="name,grid_id,start_ns"))
    assert header == ("name", "grid_id", "start_ns")
    named = [dict(zip(header, row, strict=True)) for row in rows]
    shown = [n.replace("\r", "\n") for n in NAMES]
    assert [str(row["name"]).replace("_x000D_", "\r").replace("\r", "\n") for row in named] == shown
    assert [row["grid_id"] for row in named] == [str(BIG + 2 * i) for i in range(len(NAMES))]
    assert [row["start_ns"] for row in named] == [1000 * i for i in range(len(NAMES))]


@settings(max_examples=examples(120))
@given(
    st.lists(
        st.tuples(
            st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
            st.none() | st.sampled_from([0, -1, BIG, -(2**63), 2**63 - 1]) | st.integers(-(10**15), 10**15),
            st.none() | st.floats(),
            st.none() | st.booleans(),
        ),
        max_size=5,
    )
)
def test_any_rows_can_be_downloaded(rows: list[tuple[Any, ...]]) -> None:
    schema = {"s": pl.Categorical(), "n": pl.Int64, "x": pl.Float64, "b": pl.Boolean}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    written = {name: write(frame) for name, (write, _, _) in downloads.FORMATS.items()}
    back = pl.read_parquet(io.BytesIO(written["parquet"]))
    assert back.select("s", "n", "b").cast({"s": pl.String}).rows() == [(s, n, b) for s, n, _, b in rows]
    assert [(r["s"], r["n"], r["b"]) for r in json.loads(written["json"])] == [(s, n, b) for s, n, _, b in rows]
    cells = list(csv.reader(io.StringIO(written["csv"].decode(), newline="")))[1:]
    assert [int(n) if n else None for _, n, _, _ in cells] == [n for _, n, _, _ in rows]
    for text, *_ in cells:
        assert not text.startswith(DANGEROUS)
    numbers = [row[1] for row in sheet(written["xlsx"])[1:]]
    if rows:
        assert [None if n is None else int(n) for n in numbers] == [n for _, n, _, _ in rows]


def test_nested_values_are_json() -> None:
    frame = pl.DataFrame({"l": [[1, 2], None], "s": [{"a": "=1"}, {"a": None}]})
    assert downloads._to_csv(frame).decode().splitlines() == ["l,s", '"[1, 2]","{""a"": ""=1""}"', ',"{""a"": null}"']
    assert json.loads(downloads._to_json(frame))[0] == {"l": [1, 2], "s": {"a": "=1"}}
    assert sheet(downloads._to_excel(frame))[1] == ("[1, 2]", '{"a": "=1"}')


def test_excel_says_which_texts_are_truncated() -> None:
    frame = pl.DataFrame({"s": ["x" * 40_000, "short", None], "t": ["y", "y" * 32_767, ""]})
    written = downloads._to_excel(frame)
    assert [row[0] for row in sheet(written)[1:]] == ["x" * 32_767, "short", None]
    book = openpyxl.load_workbook(io.BytesIO(written))
    assert book.sheetnames == ["rows", "truncated"]
    title, *rows = book["truncated"].iter_rows(values_only=True)
    assert "32,767 characters" in str(title[1])
    assert rows == [("s", 1)]
    assert openpyxl.load_workbook(io.BytesIO(downloads._to_excel(frame.tail(2)))).sheetnames == ["rows"]


@pytest.mark.slow
def test_filters_order_and_columns_apply(hostile: ViewedCaptures) -> None:
    values = {
        "filter": json.dumps({"kernel_id": {"type": "greaterThan", "filter": 3}}),
        "sort": "kernel_id:desc",
        "search": "A",
        "condition": "start_ns < 100000",
        "columns": "kernel_id,nope",
    }
    rows = json.loads(export(hostile, "json", **values))
    wanted = [i + 1 for i, n in enumerate(NAMES) if i + 1 > 3 and "a" in n.lower()]
    assert rows == [{"kernel_id": i} for i in reversed(wanted)]
    assert len(json.loads(export(hostile, "json", columns="nope"))[0]) > 5
    empty = {kind: export(hostile, kind, condition="FALSE", columns="name") for kind in downloads.FORMATS}
    assert (empty["csv"], empty["json"], sheet(empty["xlsx"])[0]) == (b"name\n", b"[]", ("name",))


def test_names_and_types_of_files(hostile: ViewedCaptures) -> None:
    made = downloads.export_rows(hostile, {**TABLE, "format": "xlsx"})
    assert made.name == "capture0_table_kernels.xlsx"
    assert made.media_type.endswith("spreadsheetml.sheet")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"format": "html"},
        {"format": "csv", "table": "nope"},
        {"format": "csv", "at": "capture=9"},
        {"format": "csv", "sort": "kernel_id"},
        {"format": "csv", "filter": "["},
        {"format": "csv", "condition": "read_csv('x')"},
    ],
)
def test_requests_that_are_not_valid(hostile: ViewedCaptures, values: dict[str, str]) -> None:
    with pytest.raises(TracekitError):
        downloads.export_rows(hostile, {**TABLE, **values})


def test_too_many_rows_for_excel(hostile: ViewedCaptures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "MAX_SHEET_ROWS", 5)
    with pytest.raises(TracekitError, match=f"{len(NAMES)} rows match, but an Excel sheet has at most 5 rows") as error:
        export(hostile, "xlsx")
    assert "Parquet" in str(error.value.hint)
    assert export(hostile, "csv")
