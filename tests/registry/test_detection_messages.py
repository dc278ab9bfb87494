"""Tests of the messages about files that tracekit or another program wrote and that no reader recognizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tracekit.errors import UnknownFormatError

EXPORTED = "Hint: read the capture from which it was exported"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("t.html", "this is an HTML page, not a profile"),
        ("t", "this is a folder of CSV files, which tracekit writes but cannot read"),
    ],
)
def test_exports_that_cannot_be_read_are_named(name: str, message: str, tmp_path: Path) -> None:
    with tk.load(FIXTURES / "cpu_only.nsys-rep") as trace:
        path = trace.export(tmp_path / name, format="csv" if name == "t" else None)
    with pytest.raises(UnknownFormatError) as e:
        tk.load(path)
    assert str(e.value).startswith(f"{path}: {message}\n{EXPORTED}")


def test_a_page_may_begin_with_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "page"
    path.write_text("\n  <HTML lang=en>")
    with pytest.raises(UnknownFormatError, match="this is an HTML page, not a profile"):
        tk.load(path)


def test_an_empty_folder_is_no_folder_of_csv_files(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match="a folder whose content no reader recognizes"):
        tk.load(tmp_path)
