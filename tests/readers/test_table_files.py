"""Parquet and Arrow files of our own exports, whole, damaged and foreign."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import tracekit as tk
from pyarrow import ipc, parquet
from tests.builders.nsys_sqlite import FIXTURES, outcome, untouched
from tracekit import schemas
from tracekit.errors import CorruptTraceError, TracekitError, UnknownFormatError

CAPTURE = FIXTURES / "graph_node.sqlite"
FORMATS = ["parquet", "arrow"]
AGAIN = "\nHint: write it again with tracekit"


@pytest.fixture(scope="module", params=FORMATS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture as a folder of table files."""
    with tk.load(CAPTURE) as trace:
        return trace.export(tmp_path_factory.mktemp("tables") / request.param, format=request.param)


def written(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        with ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.mark.many(1)
def test_a_folder_is_the_trace(folder: Path) -> None:
    with tk.load(CAPTURE) as trace, tk.load(folder) as again:
        assert again.format == folder.name
        for name in trace.tables:
            assert again[name].equals(trace[name]), name
            assert again.count(name) == trace.count(name)
        assert again.table("kernels", ["end_ns", "name"]).equals(trace.table("kernels", ["end_ns", "name"]))


def test_one_file_is_one_table(folder: Path, tmp_path: Path) -> None:
    unknown = tmp_path / "unknown"
    shutil.copyfile(folder / f"kernels.{folder.name}", unknown)
    with untouched(unknown), tk.load(CAPTURE) as trace, tk.load(unknown) as again:
        assert again["kernels"].equals(trace["kernels"])
        assert again.count("kernels") == 52
        assert again.count("api_calls") == again["api_calls"].num_rows == 0


def test_a_file_without_a_note_is_known_by_its_name(folder: Path, tmp_path: Path) -> None:
    bare = pa.table({"start_ns": [1], "end_ns": [2], "more": ["x"]})
    path = written(tmp_path / f"kernels.{folder.name}", bare)
    assert tk.load(path).table("kernels", ["end_ns"]).to_pylist() == [{"end_ns": 2}]
    path = written(tmp_path / f"mine.{folder.name}", bare)
    with pytest.raises(CorruptTraceError) as caught:
        tk.load(path)
    assert (
        str(caught.value)
        == f"{path}: the file contains no table whose name tracekit knows\nHint: pass a file that tracekit wrote"
    )


def test_other_files_of_a_folder_do_not_matter(folder: Path, tmp_path: Path) -> None:
    written(tmp_path / f"kernels.{folder.name}", schemas.empty(schemas.table("kernels")))
    written(tmp_path / f"mine.{folder.name}", pa.table({"a": [1]}))
    (tmp_path / "notes.txt").write_text("hello")
    with tk.load(tmp_path) as trace:
        assert trace["kernels"].num_rows == trace.count("kernels") == 0


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"start_ns": [1]}), "table 'kernels' lacks required columns: end_ns"),
        (
            pa.table({"start_ns": [1], "end_ns": ["x"]}),
            "column 'end_ns' of table 'kernels' cannot be cast to int64",
        ),
        (
            pa.table({"start_ns": [1], "end_ns": [None]}),
            "column 'end_ns' of table 'kernels' is not nullable, but it has 1",
        ),
    ],
)
def test_a_table_that_is_not_as_declared(folder: Path, tmp_path: Path, table: pa.Table, said: str) -> None:
    path = written(tmp_path / f"kernels.{folder.name}", table)
    with tk.load(path) as trace, pytest.raises(CorruptTraceError) as caught:
        trace.table("kernels", ["start_ns", "end_ns"])
    assert str(caught.value).startswith(f"{path}: table kernels: {said}")
    assert str(caught.value).endswith(AGAIN)


@pytest.mark.slow
@pytest.mark.many(1)
def test_damaged_files(folder: Path, tmp_path: Path) -> None:
    rolls = random.Random(7)
    path = tmp_path / f"kernels.{folder.name}"
    whole = (folder / path.name).read_bytes()
    found = set()
    for _ in range(120):
        data = bytearray(whole)
        if rolls.random() < 0.3:
            del data[rolls.randrange(len(data)) :]
        elif rolls.random() < 0.3:
            at = rolls.randrange(len(data))
            data[at : at + 500] = bytes(len(data[at : at + 500]))
        else:
            for _ in range(rolls.randrange(1, 5)):
                data[-1 - rolls.randrange(900 if rolls.random() < 0.5 else len(data))] = rolls.randrange(256)
        path.write_bytes(data)
        with untouched(path):
            found |= set(outcome(path).values())
    assert found <= {"read", "CorruptTraceError", "UnknownFormatError"}
    assert "CorruptTraceError" in found


def test_a_damaged_file_in_a_folder_spoils_only_its_table(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    bad = copy / f"kernels.{folder.name}"
    bad.write_bytes(b"")
    with tk.load(copy) as trace:
        assert trace["api_calls"].num_rows == 138
        for ask in (trace.count, trace.table):
            with pytest.raises(CorruptTraceError) as caught:
                ask("kernels")
            assert str(caught.value).startswith(f"{bad}: table kernels: cannot be read: ")


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_no_table_file(tmp_path: Path, format: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorruptTraceError, match=r"empty: this is a folder whose content no reader recognizes\nHint"):
        tk.load(tmp_path / "empty", format)
    (tmp_path / "zeros").write_bytes(bytes(5000))
    with pytest.raises(CorruptTraceError, match=r"zeros: cannot be read: .+\nHint: write it again with tracekit"):
        tk.load(tmp_path / "zeros", format)
    with pytest.raises(UnknownFormatError, match="a folder whose content no reader recognizes"):
        tk.load(tmp_path)


@pytest.mark.parametrize("format", FORMATS)
def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = written(tmp_path / f"kernels.{format}", schemas.empty(schemas.table("kernels")))
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(TracekitError) as caught:
        tk.load(path)
    assert str(caught.value) == f"{path}: the file cannot be read: permission denied\nHint: check its permissions"


def test_a_folder_that_may_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(TracekitError, match="cannot be read: permission denied\nHint: check its permissions"):
        tk.load(tmp_path)
