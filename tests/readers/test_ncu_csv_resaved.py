"""CSV of ncu that a spreadsheet or a library saved again is read like the file that ncu printed."""

from __future__ import annotations

import contextlib
import csv
import itertools
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.ncu_csv import FOLDER, records
from tracekit.errors import CorruptTraceError, TracekitWarning

CASES = Path(__file__).parents[3] / "shared" / "cases" / "ncu_csv_resaved"
NAMES = ["ncu_details.csv", "ncu_raw.csv", "ncu_raw_base.csv", "ncu_per_kernel.csv", "ncu_per_nvtx.csv"]
TABLES = ("ncu_launches", "ncu_metrics", "ncu_rules", "ncu_nvtx_ranges", "devices", "processes")
WHOLE = ("ID", "Process ID", "Context", "Stream", "Device", "Invocations")


def tables(path: Path) -> dict[str, list[dict[str, object]]]:
    with tk.load(path) as trace:
        assert trace.format == "ncu-csv"
        return {
            name: trace.frame(name).with_columns(pl.col(pl.Categorical).cast(str)).collect().to_dicts()
            for name in TABLES
        }


def save(
    name: str,
    *,
    separator: str = ",",
    quoting: int = csv.QUOTE_MINIMAL,
    newline: str = "\n",
    index: list[str] | None = None,
    floats: bool = False,
    encoding: str = "utf-8",
    quote: str = '"',
    padding: tuple[str, str] = ("", ""),
    backslash: bool = False,
) -> bytes:
    """A table of a fixture, saved again. Cells have the given padding before and after them."""
    header, rows = records(name)

    def convert_cell(cell: str) -> str:
        is_quoted = quoting == csv.QUOTE_ALL or cell != cell.strip() or any(c in cell for c in (separator, quote, "\n"))
        if backslash:
            cell = cell.replace("\\", "\\\\")
        escaped = ("\\" if backslash else quote) + quote
        text = quote + cell.replace(quote, escaped) + quote if is_quoted else cell
        return padding[0] + text + padding[1]

    lines: list[str] = []
    index = index or []
    lines.append(separator.join(map(convert_cell, [*index, *header])))
    for nth, row in enumerate(rows):
        cells = [
            f"{cell}.0" if floats and title in WHOLE and cell.isdecimal() else cell
            for title, cell in itertools.zip_longest(header, row, fillvalue="")
        ]
        lines.append(separator.join(map(convert_cell, [*[str(nth)] * len(index), *cells])))
    return "".join(line + newline for line in lines).encode(encoding)


FORMS: dict[str, dict[str, Any]] = {
    "pandas": {},
    "pandas with an index": {"index": [""], "floats": True},
    "pandas twice": {"index": ["", "Unnamed: 0"], "floats": True},
    "polars": {"quoting": csv.QUOTE_ALL, "index": ["index"]},
    "excel": {"newline": "\r\n", "encoding": "utf-8-sig"},
    "excel in Europe": {"separator": ";", "newline": "\r\n", "encoding": "utf-8-sig"},
    "excel, Unicode text": {"separator": "\t", "newline": "\r\n", "encoding": "utf-16"},
    "excel of old Macs": {"newline": "\r"},
    "quoted semicolons": {"separator": ";", "quoting": csv.QUOTE_ALL},
    "bars": {"separator": "|"},
    "tabs": {"separator": "\t", "index": ["Unnamed: 0.1"]},
    "single quotes": {"quote": "'"},
    "single quotes around all cells": {"quote": "'", "quoting": csv.QUOTE_ALL, "separator": ";"},
    "Spark": {"backslash": True, "quoting": csv.QUOTE_ALL},
    "blanks": {"padding": (" ", "")},
    "blanks on both sides": {"padding": ("  ", " "), "quote": "'", "index": [""], "floats": True},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.many(16)
def test_a_file_saved_again_has_the_same_tables(name: str, form: str, tmp_path: Path) -> None:
    path = tmp_path / "unknown"
    path.write_bytes(save(name, **FORMS[form]))
    assert tables(path) == tables(FOLDER / name)


OPTIONS = st.fixed_dictionaries(
    {
        "separator": st.sampled_from([",", ";", "\t", "|"]),
        "quoting": st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
        "newline": st.sampled_from(["\n", "\r\n"]),
        "index": st.lists(st.sampled_from(["", "index", "Unnamed: 0", "Unnamed: 0.1"]), max_size=3),
        "floats": st.booleans(),
        "encoding": st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
        "quote": st.sampled_from(['"', "'"]),
        "padding": st.tuples(st.sampled_from(["", " ", "   "]), st.sampled_from(["", " "])),
    }
)


@given(options=OPTIONS)
def test_all_combinations(tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("saved") / "x.csv"
    path.write_bytes(save("ncu_details.csv", **options))
    with tk.load(path) as trace:
        assert (trace.count("ncu_metrics"), trace.count("ncu_launches")) == (624, 12)


@pytest.mark.skipif(not CASES.is_dir(), reason="no cases beside the checkout")
@pytest.mark.parametrize("name", ["input.csv", "input_semicolon.csv"])
def test_the_case_has_the_metrics_of_the_fixture(name: str) -> None:
    assert tables(CASES / name) == tables(FOLDER / "ncu_details.csv")


def test_decimal_commas_are_numbers(tmp_path: Path) -> None:
    header, rows = records("ncu_raw_base.csv")
    path = tmp_path / "german.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(header)
        for row in rows:
            name = header.index("Kernel Name")
            cells = [c if i == name else c.replace(",", "").replace(".", ",") for i, c in enumerate(row)]
            writer.writerow(cells)
    read, printed = (tables(p)["ncu_metrics"] for p in (path, FOLDER / "ncu_raw_base.csv"))
    assert len(read) == len(printed) > 0
    differing = [
        (a["metric"], a["value"], b["value"]) for a, b in zip(read, printed, strict=True) if a["value"] != b["value"]
    ]
    assert differing == []


def test_output_before_the_table_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"sep=;\n==PROF== Connected to process 1;;;\n" + save("ncu_details.csv", separator=";"))
    assert tables(path) == tables(FOLDER / "ncu_details.csv")


def test_rows_with_too_many_cells_are_skipped_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    data = save("ncu_details.csv").splitlines(keepends=True)
    data[3] = data[3].rstrip() + b",more,more\n"
    path.write_bytes(b"".join(data) + b",,,\n")
    with pytest.warns(TracekitWarning, match="1 row does not match the header of its table and was skipped"):
        assert len(tables(path)["ncu_metrics"]) in (623, 624)


@pytest.mark.parametrize(
    "tail", [b'"', b"0\n" * 100_000, b"\xff\xfe\x00;;\n", b'0,"\n'], ids=["quote", "short", "bytes", "open"]
)
def test_damaged_rows_are_an_error_or_a_warning(tail: bytes, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(save("ncu_details.csv") + tail)
    with contextlib.suppress(CorruptTraceError):
        tables(path)
    recwarn.clear()


def test_other_tables_are_not_csv_of_ncu(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"ID,Process,Name\n1,2,3\n")
    with pytest.raises(tk.errors.UnknownFormatError):
        tk.load(path)
