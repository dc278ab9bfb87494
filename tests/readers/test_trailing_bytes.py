"""Bytes after the end of a complete file are ignored with a warning, in every format that states where it ends."""

from __future__ import annotations

import gzip
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import tracekit as tk
from tracekit.errors import CorruptTraceError, TracekitWarning
from tracekit.readers.common.damage import MAX_TRAILING_BYTES, find_end, open_native
from tracekit.system.files import InputFile

FIXTURES = Path(__file__).parents[2] / "fixtures"
TRAIN = FIXTURES / "train_amp.sqlite"
TAILS = [b"\n", b"\0", b"\r\n", b"\xff", b"garbage \xff" * 3, bytes(4096)]


def export(name: str, format: str, tables: list[str] | None = None) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        with tk.load(TRAIN) as trace:
            return trace.export(folder / name, format=format, tables=tables)

    return write


def copy(path: Path) -> Callable[[Path], Path]:
    return lambda folder: Path(
        shutil.copytree(path, folder / path.name) if path.is_dir() else shutil.copyfile(path, folder / path.name)
    )


FILES = {
    "nsys-rep": copy(FIXTURES / "train_amp.nsys-rep"),
    "nsys-sqlite": copy(TRAIN),
    "nsys-parquetdir": copy(FIXTURES / "train_amp_parquetdir"),
    "nsys-arrowdir": copy(FIXTURES / "train_amp_arrowdir"),
    "ncu-rep": copy(FIXTURES / "ncu" / "ncu_basic.ncu-rep"),
    "dlprof-db": export("x.dldb.sqlite", "dlprof-db"),
    "parquet": export("kernels.parquet", "parquet", ["kernels"]),
    "parquet folder": export("tables", "parquet", ["kernels", "memcpys"]),
    "arrow": export("kernels.arrow", "arrow", ["kernels"]),
    "arrow folder": export("tables", "arrow", ["kernels", "memcpys"]),
    "kineto": copy(FIXTURES / "kineto" / "train.pt.trace.json.gz"),
    "chrome-trace": export("x.json.gz", "chrome-trace"),
}
"""How to write a file or folder of each format."""
READ = {"kernels", "memcpys", "capture_info", "ncu_launches", "ops"}


def read(path: Path) -> tuple[dict[str, int], list[str]]:
    """The rows of each table, all of whose columns are read, and the warnings."""
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        with tk.load(path, cache=False) as trace:
            rows = {name: n for name, n in trace.count_all().items() if n}
            assert all(trace.table(name).num_rows == rows[name] for name in READ & rows.keys())
    return rows, [str(w.message) for w in issued if issubclass(w.category, TracekitWarning)]


def append(path: Path, tail: bytes) -> int:
    """Append bytes to a file, or to each file of a folder, and return the number of files."""
    files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    for each in files:
        each.chmod(0o644)
        with each.open("ab") as file:
            file.write(tail)
    return len(files)


@pytest.mark.parametrize("name", FILES)
def test_bytes_after_the_end_are_ignored_with_a_warning(name: str, tmp_path: Path) -> None:
    path = FILES[name](tmp_path)
    rows, before = read(path)
    assert READ & rows.keys()
    tails = TAILS[:1] if path.is_dir() else TAILS if name != "ncu-rep" else [t for t in TAILS if t != b"\xff"]
    for tail in tails:
        copied = tmp_path / "with a tail" / path.name
        shutil.rmtree(copied.parent, ignore_errors=True)
        copied.parent.mkdir()
        copy(path)(copied.parent)
        files = append(copied, tail)
        again, issued = read(copied)
        assert again == rows, tail
        new = [m.partition(": ")[2] for m in issued if m not in before]
        assert 1 <= len(new) <= files, new
        count = "1 byte after its end is" if len(tail) == 1 else f"{len(tail):,} bytes after its end are"
        assert set(new) == {f"the file is complete, and {count} ignored"}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("is_array", [False, True])
@pytest.mark.parametrize(
    ("rest", "count"),
    [
        *(("", 0), ("\n \n", 0), ("\nnotes", 5), ("[1]", 3), ("]", 1), ("x" * 3_000_000, 3_000_000)),
        *(('{"traceEvents": []}', 0), ('\n{"traceEvents": []} [] x', 1)),  # other documents are read, too
    ],
)
def test_text_after_the_end_of_a_json_trace_is_counted(
    rest: str, count: int, is_array: bool, packed: bool, tmp_path: Path
) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2, "ts": 3, "dur": 4}
    text = json.dumps([event] if is_array else {"schemaVersion": 1, "traceEvents": [event]}) + rest
    path = tmp_path / "made.pt.trace.json"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert tk.load(path, format="kineto").count("nvtx_ranges") == 1
    ignored = "1 byte after its end is" if count == 1 else f"{count:,} bytes after its end are"
    assert [str(w.message) for w in said] == [f"{path}: the file is complete, and {ignored} ignored"] * bool(count)


def test_members_of_a_gzip_file_are_no_trailing_bytes(tmp_path: Path) -> None:
    data = gzip.decompress((FIXTURES / "kineto" / "train.pt.trace.json.gz").read_bytes())
    path = tmp_path / "x.pt.trace.json.gz"
    path.write_bytes(gzip.compress(data[:1000]) + gzip.compress(data[1000:]))
    assert read(path)[1] == []


@pytest.mark.parametrize("name", ["nsys-rep", "parquet", "arrow"])
def test_a_file_without_its_end_is_truncated(name: str, tmp_path: Path) -> None:
    path = FILES[name](tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + b"\n")
    with pytest.raises(CorruptTraceError, match=r"truncated|magic bytes not found"):
        read(path)


def test_a_truncated_report_of_nsight_compute_is_no_complete_one(tmp_path: Path) -> None:
    path = FILES["ncu-rep"](tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 100])
    with pytest.raises(CorruptTraceError, match="truncated"):
        read(path)


def test_an_end_marker_far_from_the_end_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abcEND" + bytes(MAX_TRAILING_BYTES + 1))
    with InputFile(path) as file:
        assert find_end(file, b"END") is None
    path.write_bytes(b"EN")
    with InputFile(path) as file:
        assert find_end(file, b"END") is None
    path.write_bytes(b"END")
    with InputFile(path) as file:
        assert find_end(file, b"END") is None
    path.write_bytes(b".ENDEND.")
    with InputFile(path) as file:
        assert find_end(file, b"END") == 7


def test_the_beginning_of_a_file_reads_like_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    with InputFile(path) as file, open_native(file, 6) as native:
        assert native.size() == 6
        assert native.read() == b"012345"
        native.seek(-2, 2)
        assert (native.tell(), native.read(10), native.read(1)) == (4, b"45", b"")
