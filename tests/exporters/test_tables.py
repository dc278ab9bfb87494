"""CSV, Parquet and Arrow: one table to one file, and back."""

from __future__ import annotations

import csv
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from pyarrow import ipc, parquet
from tracekit import registry, schemas
from tracekit.exporters import arrow
from tracekit.exporters import parquet as parquet_exporter

ROWS = {
    "mark_id": [1, 2, 3, 4],
    "timestamp_ns": [2**61, -2, 0, 9],
    "process_id": [1, None, 1, 1],
    "domain": ["", 'a "quoted", text', None, "a\nb"],
    "payload_int": [2**63 - 1, None, -(2**63), 0],
    "payload_float": [0.1, None, 5e-324, float("inf")],
    "payload_text": ["", None, "é\u2028", " padded "],
}


@pytest.fixture
def marks() -> tk.Trace:
    schema = schemas.table("nvtx_marks")
    absent = {c: [0] * 4 if not schema[c].nullable else [None] * 4 for c in schema.names if c not in ROWS}
    frame = pl.DataFrame(ROWS | absent, schema=schemas.polars_schema(schema))
    return tk.Trace.from_tables({"nvtx_marks": schemas.conform(frame.to_arrow(), schema)})


def written(trace: tk.Trace, table: str, folder: Path, format: str) -> Path:
    exporter = registry.exporter(format).with_options({})
    assert exporter.write_table is not None
    path = folder / f"{table}{exporter.suffixes[0]}"
    progress: list[tuple[int, int]] = []
    exporter.write_table(trace._view.tables, table, path, lambda *done: progress.append(done))
    rows = trace.count(table)
    assert [*([] if rows else [(0, 0)]), *progress][-1] == (rows, rows)
    return path


def read_again(path: Path) -> pa.Table:
    return parquet.read_table(path) if path.suffix == ".parquet" else ipc.open_file(str(path)).read_all()


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize("table", ["nvtx_marks", "kernels"])
def test_a_table_comes_back_as_declared(
    marks: tk.Trace, table: str, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "BATCH_ROWS", 3)
    monkeypatch.setattr(parquet_exporter, "GROUP_ROWS", 3)
    again = read_again(written(marks, table, tmp_path, format))
    assert again.schema.equals(schemas.arrow_schema(schemas.table(table)), check_metadata=True)
    assert again.to_pylist() == marks[table].to_pylist()


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_added_columns_are_kept(format: str, tmp_path: Path, capture: Path) -> None:
    with tk.load(capture) as raw:
        trace = raw.correlate()
        again = read_again(written(trace, "kernels", tmp_path, format))
        assert again.schema.equals(schemas.arrow_schema(schemas.correlated_schema("kernels")), check_metadata=True)
        assert pl.DataFrame(again).equals(pl.DataFrame(trace["kernels"]))


def test_a_dictionary_holds_only_what_its_column_uses(marks: tk.Trace, tmp_path: Path) -> None:
    again = read_again(written(marks, "nvtx_marks", tmp_path, "arrow"))
    assert again["domain"].chunk(0).dictionary.to_pylist() == ["", 'a "quoted", text', "a\nb"]


def test_csv_tells_null_from_empty_and_keeps_numbers(marks: tk.Trace, tmp_path: Path) -> None:
    path = written(marks, "nvtx_marks", tmp_path, "csv")
    lines = path.read_text("utf-8").split("\n")
    assert lines[0] == ",".join(schemas.table("nvtx_marks").names)
    assert lines[1] == '1,2305843009213693952,1,0,0,"",,,,,,9223372036854775807,0.1,""'.replace("1,0,0,", "1,,0,", 1)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["domain"] for row in rows] == ["", 'a "quoted", text', "", "a\nb"]
    assert [int(row["payload_int"] or 0) for row in rows] == [n or 0 for n in ROWS["payload_int"]]  # type: ignore[call-overload]
    assert [float(row["payload_float"] or 0) for row in rows] == [n or 0 for n in ROWS["payload_float"]]


def test_csv_of_no_rows_is_its_header(marks: tk.Trace, tmp_path: Path) -> None:
    text = written(marks, "kernels", tmp_path, "csv").read_text("utf-8")
    assert text == ",".join(schemas.table("kernels").names) + "\n"


def test_many_different_texts_come_back_and_are_no_dictionary_of_the_file(
    marks: tk.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracekit.exporters import parquet as exporter

    monkeypatch.setattr(arrow, "BATCH_ROWS", 3)
    monkeypatch.setattr(parquet_exporter, "GROUP_ROWS", 3)
    dictionary = {}
    for most in (2, 3):
        monkeypatch.setattr(exporter, "MAX_DICTIONARY_VALUES", most)
        (tmp_path / str(most)).mkdir()
        path = written(marks, "nvtx_marks", tmp_path / str(most), "parquet")
        again = read_again(path)
        assert again.schema.equals(schemas.arrow_schema(schemas.table("nvtx_marks")), check_metadata=True)
        assert again.to_pylist() == marks["nvtx_marks"].to_pylist()
        group = parquet.ParquetFile(path).metadata.row_group(0)
        column = again.schema.get_field_index("domain")
        dictionary[most] = group.column(column).has_dictionary_page
    assert dictionary == {2: False, 3: True}
