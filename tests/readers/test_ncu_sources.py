"""Cubins, PTX and source files of Nsight Compute reports: which there are, to what they belong, only when asked for."""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tests.builders.ncu_rep import FIXTURES, ROOT, SHARED, Block, block, kernel, made, metric, report, take_apart
from tracekit.errors import CorruptTraceError
from tracekit.readers.ncu_rep import sources
from tracekit.readers.ncu_rep.capture import SOURCES

CORPUS = sorted((SHARED / "corpus").glob("ncu_rep/**/*.ncu-rep"))
BIG = 1 << 63
ELF = b"\x7fELF\x02\x00\xff"
ORACLE = """
import json, sys, ncu_report
found = ncu_report.load_report(sys.argv[1])
ranges = [found.range_by_idx(i) for i in range(found.num_ranges())]
actions = [r.action_by_idx(i) for r in ranges for i in range(r.num_actions())]
print(json.dumps([sorted(dict(a.source_files()).items()) for a in actions]))
"""


def source(module: int, files: dict[str, bytes] | None = None, **fields: Any) -> tuple[str, bytes]:
    """What is said of a module."""
    named = [made("SourceFile", path=path.encode(), content=content) for path, content in (files or {}).items()]
    return "sources", made("SourceData", module=module, files=[made("SourceFiles", files=named)], **fields)


def complete(module: int) -> tuple[str, bytes]:
    """A kernel result that has all that ``ncu_report`` insists on."""
    kind, data = kernel(
        metric(0, whole=7), api_call_id=5, mangled_name=b"k", function_name=b"k", demangled_name=b"k",
        grid={"x": 1, "y": 1, "z": 1}, block={"x": 1, "y": 1, "z": 1}, source={"module": module},
    )  # fmt: skip
    required = bytes((3 << 3, 9, 4 << 3, 9, 8 << 3, 3, 9 << 3 | 2, 6, 8, 1, 16, 1, 24, 1))
    return kind, data + required


def rows(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    with tk.load(path) as trace:
        table = trace[SOURCES]
        table.validate(full=True)
        assert table.num_rows == trace.count(SOURCES)
        return trace.frame(SOURCES).select(*columns).collect().rows()


def written(folder: Path, *blocks: Block) -> Path:
    path = folder / "made.ncu-rep"
    path.write_bytes(report(*blocks))
    return path


def some(folder: Path) -> Path:
    return written(
        folder,
        block(source(4, code=b"__global__", ptx=b".version 8.0", cubin=ELF), process=5),
        block(source(4, {"/home/someone/a/k.cu": b"int x;", "C:\\some one\\k.h": b""}), process=5),
        block(kernel(metric(0, whole=7), source={"module": 4}), names=["m"], process=5),
    )


def test_every_kind_of_payload(tmp_path: Path) -> None:
    assert rows(some(tmp_path), "source_id", "launch_id", "launches", "process_id", "module", "kind") == [
        (0, 0, 1, 5, 4, "code"),
        (1, 0, 1, 5, 4, "ptx"),
        (2, 0, 1, 5, 4, "cubin"),
        (3, 0, 1, 5, 4, "file"),
        (4, 0, 1, 5, 4, "file"),
    ]
    assert rows(some(tmp_path), "name", "size_bytes", "data") == [
        (None, 10, b"__global__"),
        (None, 12, b".version 8.0"),
        (None, 7, ELF),
        ("k.cu", 6, b"int x;"),
        ("k.h", 0, None),
    ]


def test_which_launch_a_module_belongs_to(tmp_path: Path) -> None:
    """The same number is another module in another process; every kind of result refers in its own way."""
    path = written(
        tmp_path,
        block(*(source(n, cubin=ELF) for n in (1, 2, BIG)), process=5),
        block(source(1, cubin=b"other"), process=6),
        block(kernel(source={"module": 1}), names=["m"], process=5),
        block(kernel(source={"module": 1}), process=6),
        block(("ranges", made("RangeResult", modules=[2, BIG, 2])), process=5),
        block(("graphs", made("GraphResult", modules=[2])), process=5),
        block(("command_lists", made("CommandListResult", modules=[3])), process=5),
        block(kernel(), source(3, ptx=b"late"), source(9, cubin=b"nobody's"), process=5),
    )
    assert rows(path, "process_id", "module", "launch_id", "launches") == [
        (5, 1, 0, 1),
        (5, 2, None, 2),
        (5, -BIG, 2, 1),
        (6, 1, 1, 1),
        (5, 3, 4, 1),
        (5, 9, None, 0),
    ]


def test_blocks_without_a_process_belong_to_the_session(tmp_path: Path) -> None:
    path = written(tmp_path, block(process_id=7), block(source(1, ptx=b"x")), block(kernel(source={"module": 1})))
    assert rows(path, "process_id", "launch_id") == [(7, 0)]


def test_payloads_are_not_read_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    path = some(tmp_path)
    with tk.load(path) as trace:
        assert "data" not in trace.table(SOURCES, ["kind", "size_bytes"]).column_names
        monkeypatch.setattr(sources, "_collect_launch_ids_by_module", refuse)
        assert trace.table(SOURCES, ["data"]).num_rows == 5
    monkeypatch.setattr(sources, "_iterate_module_payloads", refuse)
    with tk.load(path) as trace:
        assert trace.count("ncu_launches") == trace.count("ncu_metrics") == 1


@pytest.mark.parametrize("format", ["csv", "parquet", "arrow"])
def test_exports_hold_them_only_if_named(tmp_path: Path, format: str) -> None:
    path = some(tmp_path)
    tk.convert(path, tmp_path / "whole", to=format)
    assert "ncu_launches" in {f.stem for f in (tmp_path / "whole").iterdir()}
    assert SOURCES not in {f.stem for f in (tmp_path / "whole").iterdir()}
    with tk.load(path) as trace:
        folder = trace.export(tmp_path / "named", format=format, tables=["ncu_launches", SOURCES])
        if format == "csv":
            read = pl.read_csv(folder / f"{SOURCES}.csv")["data"].to_list()
            assert [None if t is None else bytes.fromhex(t) for t in read] == trace[SOURCES]["data"].to_pylist()
        else:
            assert tk.load(folder)[SOURCES].equals(trace[SOURCES])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x22\x7f", r"source 0 at byte .* is not a valid protobuf message \(2 bytes\)"),
        (b"\x22\xff\xff\xff\xff\x0f", r"source 0 at byte .* is not a valid protobuf message \(6 bytes\)"),
        (made("SourceData", files=[b"\x0a\x7f"]), "a list of files of source 0 is not a valid protobuf message .*"),
        (
            made("SourceData", files=[made("SourceFiles", files=[b"\x12\x7f"])]),
            r"an entry of the files of source 0 is not a valid protobuf message \(2 bytes\)",
        ),
    ],
)
def test_damaged_sources(tmp_path: Path, data: bytes, message: str) -> None:
    path = written(tmp_path, block(("sources", data)), block(kernel()))
    with tk.load(path) as trace:
        assert trace.count("ncu_launches") == 1
        with pytest.raises(CorruptTraceError, match=rf"made\.ncu-rep: table ncu_sources: {message}\nHint: copy"):
            trace[SOURCES]


def test_sizes_beyond_the_file_are_refused(tmp_path: Path) -> None:
    path = some(tmp_path)
    data = path.read_bytes()
    at = data.index(source(4, code=b"__global__", ptx=b".version 8.0", cubin=ELF)[1]) - 4
    path.write_bytes(data[:at] + struct.pack("<I", (1 << 32) - 1) + data[at + 4 :])
    with pytest.raises(CorruptTraceError, match=r"truncated: 4294967299 bytes are expected"):
        tk.load(path)


@pytest.mark.parametrize("limit", ["container.MAX_RESULTS", "sources.MAX_FILES", "sources.MAX_MODULES"])
def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """What two of each pass, three do not."""

    def read(n: int) -> int:
        many = [source(i) for i in range(n if limit == "container.MAX_RESULTS" else 2)]
        files = source(1, {f"{i}.cu": b"x" for i in range(n if limit == "sources.MAX_FILES" else 2)})
        result = made("RangeResult", modules=range(n if limit == "sources.MAX_MODULES" else 2))
        with tk.load(written(tmp_path, block(*many[1:], files, ("ranges", result)))) as trace:
            return trace[SOURCES].num_rows

    monkeypatch.setattr(f"tracekit.readers.ncu_rep.{limit}", 2)
    assert read(2) == 2
    with pytest.raises(
        CorruptTraceError, match=r"more than 2 sources|3 (files|modules) of .* 0, but tracekit supports at most 2|3 f"
    ):
        read(3)


def test_our_own_captures_hold_none() -> None:
    assert FIXTURES
    for path in FIXTURES:
        assert rows(path, "data") == []


@pytest.mark.skipif(importlib.util.find_spec("ncu_report") is None, reason="ncu-report is not installed")
def test_source_files_as_ncu_report_has_them(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        block(source(1, {"a.cu": b"one", "b.cu": b""}, cubin=ELF), process=5),
        block(source(1, {"a.h": b"same number, other process"}), process=6),
        block(complete(1), names=["m"], process=5),
        block(complete(1), process=6),
        block(source(1, {"c.cu": b"behind"}), process=5),
        block(("ranges", made("RangeResult", thread_id=1, api_call_id=5, created_s=9, modules=[2])), process=5),
        block(source(2, {"r.cu": b"of a range"}), source(3, {"n.cu": b"of none"}), process=5),
    )
    done = subprocess.run([sys.executable, "-c", ORACLE, path], cwd=ROOT, check=True, capture_output=True, text=True)
    ours: list[list[list[str]]] = [[], [], []]
    for launch, kind, name, data in rows(path, "launch_id", "kind", "name", "data"):
        if kind == "file" and launch is not None:
            ours[launch].append([name, (data or b"").decode()])
    assert [len(files) for files in ours] == [3, 1, 1]
    assert [sorted(files) for files in ours] == json.loads(done.stdout)


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS, reason="no corpus beside the checkout")
@pytest.mark.parametrize("number", range(len(CORPUS)))
def test_public_reports(number: int) -> None:
    """Cubins are whole ELF files of a GPU, and every launch comes from a module that is held."""
    found = rows(CORPUS[number], "kind", "size_bytes", "data", "launches")
    raw = b"".join(m for b in take_apart(CORPUS[number].read_bytes()) for kind, m in b.messages if kind == "sources")
    assert {kind for kind, *_ in found} == {"cubin"}
    for _, size, data, _ in found:
        assert size == len(data)
        assert data.startswith(b"\x7fELF")
        assert struct.unpack_from("<H", data, 18) == (190,)
        assert data in raw
    with tk.load(CORPUS[number]) as trace:
        assert sum(launches for *_, launches in found) == trace.count("ncu_launches")
