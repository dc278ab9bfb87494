"""Files that cannot be read: the command line says what each is and exactly what to do."""

from __future__ import annotations

import contextlib
import gzip
import re
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.builders.nsys_rep import Parts, container

if TYPE_CHECKING:
    from tests.cli.conftest import Run

FIXTURES = Path(__file__).parents[2] / "fixtures"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 145693\n"
STREAM = b"NVIDIA Nsight Systems Stream 2025.3.1.0!\n" + bytes(range(256))
WRITTEN, WRITING = b"U3w[END]", b"\0\xff" * 4
REPORT = (FIXTURES / "cpu_only.nsys-rep").read_bytes()
IMPORT = "Hint: with the QdstrmImporter of Nsight Systems 2025.3.1.0, run: QdstrmImporter -i FILE.qdstrm"
UNFINISHED = (
    "Hint: copy it again; if the original is also unfinished, let nsys finish, record again, "
    "or convert the .qdstrm file: QdstrmImporter -i FILE.qdstrm"
)
COPY = "Hint: copy the report again from where it was recorded, or record it again"
CASES = {
    "stream": (
        WRITTEN + STREAM,
        "this is a .qdstrm stream, which only Nsight Systems can convert into a report",
        IMPORT,
    ),
    "stream being written": (
        WRITING + STREAM,
        "this is a .qdstrm stream, perhaps an unfinished one, which only Nsight Systems can convert into a report",
        IMPORT,
    ),
    "pointer": (POINTER, "this is a Git LFS pointer, not the file itself", "Hint: run: git lfs pull"),
    "empty": (b"", "the file is empty (0 bytes)", "Hint: export or copy it again"),
    "gzip": (
        gzip.compress(REPORT),
        "this is a gzip file that contains a report of Nsight Systems",
        "Hint: decompress it first: gunzip FILE",
    ),
}
REPORTS = {
    "unfinished": (
        REPORT[:-1],
        (
            "the report is unfinished or truncated: "
            f"the end marker is missing at the end of the file ({len(REPORT) - 1} bytes)"
        ),
        UNFINISHED,
    ),
    "compression": (
        Parts(compression="zstd").pack(),
        "the blocks of the report are compressed with 'zstd', but tracekit supports only lz4",
        "Hint: run nsys export --type sqlite REPORT, and read the export",
    ),
    "head": (REPORT[:40], "the file is truncated: it has only 40 bytes", COPY),
    "sections": (
        container(Parts().sections),
        "the section 'Raw Sampling Data' (0 bytes) does not begin with QDTEXT00",
        COPY,
    ),
}


def said(run: Run, path: Path, *options: str) -> list[str]:
    result = run("info", path, *options, status=1)
    assert result.text == ""
    return result.stderr.splitlines()


@pytest.mark.many(8)
@pytest.mark.parametrize("suffix", [".nsys-rep", ".sqlite", ".qdstrm", ""])
@pytest.mark.parametrize("case", CASES)
def test_another_file(run: Run, tmp_path: Path, case: str, suffix: str) -> None:
    data, what, hint = CASES[case]
    path = tmp_path / f"file{suffix}"
    path.write_bytes(data)
    assert said(run, path) == [f"tracekit: {path}: {what}", hint]


@pytest.mark.many(6)
@pytest.mark.parametrize(
    ("reader", "kind"), [("nsys-rep", "not an Nsight Systems report"), ("nsys-sqlite", "not a SQLite database")]
)
@pytest.mark.parametrize("case", CASES)
def test_another_file_for_a_named_reader(run: Run, tmp_path: Path, case: str, reader: str, kind: str) -> None:
    data, what, hint = CASES[case]
    path = tmp_path / "file"
    path.write_bytes(data)
    assert said(run, path, "--from", reader) == [f"tracekit: {path}: {kind}: {what}", hint]


@pytest.mark.many(6)
@pytest.mark.parametrize("name", ["report.nsys-rep", "unknown"])
@pytest.mark.parametrize("case", REPORTS)
def test_a_report_that_is_not_whole(run: Run, tmp_path: Path, case: str, name: str) -> None:
    data, what, hint = REPORTS[case]
    path = tmp_path / name
    path.write_bytes(data)
    assert said(run, path) == [f"tracekit: {path}: {what}", hint]


@pytest.mark.many(6)
@pytest.mark.parametrize("form", ["report.sqlite", "report_pqtdir", "report_arwdir"])
@pytest.mark.parametrize("case", [*REPORTS, "empty", "pointer"])
def test_a_whole_export_beside_a_report_that_is_not_whole_is_named(
    run: Run, tmp_path: Path, case: str, form: str
) -> None:
    data, what, _ = {**REPORTS, **CASES}[case]
    (path := tmp_path / "report.nsys-rep").write_bytes(data)
    export = tmp_path / form
    if form.endswith("dir"):
        shutil.copytree(FIXTURES / {"q": "train_amp_parquetdir", "r": "train_amp_arrowdir"}[form[8]], export)
    else:
        shutil.copyfile(FIXTURES / "cpu_only.sqlite", export)
    assert said(run, path) == [f"tracekit: {path}: {what}", f"Hint: read {export}, the export of this report"]


def test_damage_that_is_met_later_names_the_export_too(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.qdrep"
    data = bytearray((FIXTURES / "train_amp.nsys-rep").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = b"\xff" * 64
    path.write_bytes(data)
    before = run("rows", path, "api_calls", status=1).stderr.splitlines()
    shutil.copyfile(FIXTURES / "cpu_only.sqlite", tmp_path / "report.sqlite")
    first, hint = run("rows", path, "api_calls", status=1).stderr.splitlines()
    assert [first, COPY] == before
    assert hint == f"Hint: read {tmp_path / 'report.sqlite'}, the export of this report"


@pytest.mark.parametrize("case", ["damaged", "another database", "another name", "no report"])
def test_an_export_that_is_not_whole_is_not_named(run: Run, tmp_path: Path, case: str) -> None:
    data, what, hint = REPORTS["unfinished"]
    (path := tmp_path / ("report" if case == "no report" else "report.nsys-rep")).write_bytes(data)
    export = (FIXTURES / "cpu_only.sqlite").read_bytes()
    name = "report2.sqlite" if case == "another name" else "report.sqlite"
    if case == "another database":
        with contextlib.closing(sqlite3.connect(tmp_path / name)) as database, database:
            database.execute("CREATE TABLE t (x)")
    else:
        (tmp_path / name).write_bytes(export[: len(export) // 2] if case == "damaged" else export)
    assert said(run, path) == [f"tracekit: {path}: {what}", hint]


def test_a_stream_with_an_unknown_head_goes_by_its_name(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "old.QDSTRM"
    path.write_bytes(b"\1\2\3" * 100)
    assert said(run, path) == [
        f"tracekit: {path}: this is a .qdstrm stream, which only Nsight Systems can convert into a report",
        "Hint: with the QdstrmImporter of the Nsight Systems that recorded it, run: QdstrmImporter -i FILE.qdstrm",
    ]


@pytest.mark.parametrize("keep", [0.02, 0.5, 0.98])
@pytest.mark.parametrize("form", ["nsys-rep", "sqlite"])
def test_a_part_of_a_capture(run: Run, tmp_path: Path, form: str, keep: float) -> None:
    data = (FIXTURES / f"graph_node.{form}").read_bytes()
    path = tmp_path / f"part.{form}"
    path.write_bytes(data[: int(len(data) * keep)])
    what, hint = said(run, path)
    assert re.match(rf"tracekit: {re.escape(str(path))}: (the report is unfinished or|the file is) truncated: ", what)
    assert hint in (UNFINISHED, "Hint: export it again: nsys export --type sqlite REPORT")
