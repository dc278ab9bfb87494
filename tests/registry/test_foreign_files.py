"""Messages about files of other programs: they name the program, are true, and the hint leads somewhere."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import re
import sqlite3
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import FIXTURES, SHARED
from tracekit.errors import UnknownFormatError
from tracekit.registry import detection, foreign_files
from tracekit.registry.detection import UNKNOWN
from tracekit.registry.source import Source

MAKERS = SHARED / "corpus" / "makers"
CASE = SHARED / "cases" / "message_gzip_not_trace"
CHROME = "a Chrome trace, but not one of the PyTorch profiler or tracekit"
LOOKS = f"{CHROME}: it looks like a trace of"
DATABASE = "a SQLite database, but not an Nsight Systems export"
TABLES = "Name,Calls,Total"


def database(*tables: str) -> bytes:
    """Return a SQLite database with empty tables."""
    connection = sqlite3.connect(":memory:")
    for name in tables:
        connection.execute(f'CREATE TABLE "{name}" (id INTEGER, value TEXT)')
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    content = connection.serialize()
    connection.close()
    return content


def archive(*names: str) -> bytes:
    """Return a zip archive with empty files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, b"")
    return buffer.getvalue()


def trace(*events: dict[str, Any], **members: Any) -> bytes:
    """Return a Chrome trace in JSON."""
    event = {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "name": "f"}
    return json.dumps({**members, "traceEvents": [*events, event]}).encode()


def process(name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}}


def packet(content: bytes) -> bytes:
    return b"\n" + bytes([len(content)]) + content


XSPACE = packet(b"\x08\x01\x12\x0d/device:GPU:0\x1a\x02\x08\x01")
CASES: dict[str, tuple[bytes, str]] = {
    "JAX": (
        trace(process("/device:GPU:0"), displayTimeUnit="ns", metadata={"highres-ticks": True}),
        f"{LOOKS} JAX or TensorFlow (XLA)",
    ),
    "TensorFlow": (trace(process("/job:localhost/replica:0")), f"{LOOKS} JAX or TensorFlow (XLA)"),
    "VizTracer": (trace(viztracer_metadata={"version": "1.0"}), f"{LOOKS} VizTracer"),
    "DevTools": (trace(metadata={"source": "DevTools"}), f"{LOOKS} Chrome"),
    "rocprof trace": (trace(process("CPU HIP API")), f"{LOOKS} rocprof (ROCm)"),
    "rpd trace": (json.dumps([{}, process("GPU2")]).encode(), f"{LOOKS} rpd (ROCm)"),
    "Horovod": (
        json.dumps([{"ph": "B", "ts": 1, "pid": 1, "name": "NEGOTIATE_ALLREDUCE"}]).encode(),
        f"{LOOKS} Horovod",
    ),
    "ONNX Runtime": (
        json.dumps([{"cat": "Session", "pid": 1, "tid": 1, "dur": 1, "ts": 1, "ph": "X", "name": "run"}]).encode(),
        f"{LOOKS} ONNX Runtime",
    ),
    "Clang": (trace({"ph": "X", "ts": 1, "pid": 1, "name": "Total ExecuteCompiler"}), f"{LOOKS} the compiler Clang"),
    "Hermes": (trace(process("hermes")), f"{LOOKS} the JavaScript engine Hermes"),
    "AIU": (json.dumps([process("AIU 0")]).encode(), f"{LOOKS} the IBM AIU"),
    "Chrome trace": (trace(), CHROME),
    "array": (b'\n [\n {"pid": 0, "ph": "B", "ts": 0, "name": "A"},', CHROME),
    "rocprofv3 JSON": (b'{"version":1,"rocprofiler-sdk-tool":[{"metadata":{}}]}', "a JSON file of rocprofv3 (ROCm)"),
    "thread trace": (
        b'{"duration":4,"name":"SE0","num_insts":2,"num_stitched":2}',
        "a part of a thread trace of rocprofv3",
    ),
    "Chakra": (
        b'{"schema": "1.0.2-chakra.0.0.4", "pid": 5, "nodes": [{"id": 2}]}',
        "an execution trace of PyTorch (Chakra)",
    ),
    "memory timeline": (b"[[-1, 1, 37888, 7], [-1, 1, 512, 7]]", "a memory timeline of the PyTorch profiler"),
    "pickle": (pickle.dumps([1, 2]), "a pickle file, which tracekit does not load"),
    "XProf": (b'[ { "cols": [ { "id": "rank" } ] } ]', "a page of XProf"),
    "V8": (b'{"nodes":[{"id":1,"callFrame":{"functionName":"a"}}]}', "a CPU profile of V8"),
    "replay": (b'[{"op_name": "aten::add", "replay_ir": {}}]', "a list of operators to replay with PyTorch"),
    "speedscope": (b'{"$schema": "https://www.speedscope.app/file-format-schema.json"}', "a speedscope file"),
    "baseline": (b'{"format": "tracekit-baseline", "version": 1}', "a baseline of tracekit diff"),
    "JSON": (b'{"a": [1, 2]}', "a JSON file, but not a trace that tracekit reads"),
    "rocpd": (database("rocpd_metadata_00ab", "rocpd_string_00ab"), f"{DATABASE}: it looks like a rocpd database"),
    "rpd": (database("rocpd_api", "rocpd_op"), f"{DATABASE}: it looks like an rpd database"),
    "rocprof": (database("HIP", "OPS", "COPY", "KERN"), f"{DATABASE}: it looks like a database of rocprof"),
    "Perfetto database": (database("slice", "thread_track"), f"{DATABASE}: it looks like a database that the trace"),
    "database": (database("people", "places"), f"{DATABASE} (its tables are people, places)"),
    "tables": (database(*"abcdefg"), f"{DATABASE} (its tables are a, b, c, d, e, …)"),
    "no tables": (database(), DATABASE),
    "nvprof output": (b"==1234== NVPROF is profiling process 1234\n", "output of nvprof"),
    "nvprof binary": (b"\x00\x04\x00\x00\x04\x00\x00\x00\x01\x04\x00\x00\x01", "a binary profile of an old nvprof"),
    "nsys stats": (b"Time (%),Total Time (ns),Instances,Avg (ns)\n1,2,3,4\n", "a CSV report of nsys stats"),
    "rocprofv3 CSV": (b'"Kind","Agent_Id","Queue_Id","Thread_Id"\n', "a CSV file of rocprofv3"),
    "rocprof CSV": (b'"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n', "a CSV file of rocprof (ROCm)"),
    "rocprof-compute": (b"Dispatch_ID,Kernel_Name,GPU_ID\n0,f,1\n", "a CSV file of ROCm Compute Profiler"),
    "TraceLens": (b"type,time ms,percent\nbusy,1,2\n", "a CSV table of TraceLens"),
    "perf": (b"PERFILE2" + bytes(90), "a recording of Linux perf"),
    "Perfetto": (packet(b"\x32\x02\x08\x01") + packet(b"\x18\x03\x50\x01"), "a Perfetto trace"),
    "Excel": (archive("[Content_Types].xml", "xl/workbook.xml"), "an Office document, such as an Excel workbook"),
    "checkpoint": (archive("model/data.pkl", "model/byteorder"), "a file of torch.save"),
    "NumPy archive": (archive("a.npy"), "a NumPy archive"),
    "archive": (archive("report.nsys-rep"), "a zip archive, not a profile"),
    "bzip2": (b"BZh91AY&SY", "a bzip2 file"),
    "xz": (b"\xfd7zXZ\x00\x00\x04", "an xz file"),
    "tar": (b"a".ljust(257, b"\0") + b"ustar\x00" + bytes(250), "a tar archive"),
    "NumPy": (b"\x93NUMPY\x01\x00", "a NumPy array"),
    "image": (b"\x89PNG\r\n\x1a\n" + bytes(20), "an image"),
    "PDF": (b"%PDF-1.7\n", "a PDF document"),
    "program": (b"\x7fELF\x02\x01" + bytes(60), "a program or library"),
    "DuckDB": (bytes(range(1, 9)) + b"DUCK" + bytes(20), "a DuckDB database"),
}


TRACES = {name: case for name, case in CASES.items() if case[1].startswith((CHROME, "a Perfetto trace"))}
"""Traces that are read as far as they have events with times."""
UNREAD = [name for name in CASES if name not in TRACES]


def error_of(path: Path) -> UnknownFormatError:
    with pytest.raises(UnknownFormatError) as raised:
        tk.load(path)
    return raised.value


def leads_somewhere(what: str, hint: str | None) -> bool:
    """Return whether a message states what a file is, and the hint does not send it through another program."""
    forbidden = ("run: nsys", "nsys export", "run nsys")
    return bool(hint) and what != UNKNOWN and not any(text in str(hint) for text in forbidden)


@pytest.mark.many(70)
@pytest.mark.parametrize("name", UNREAD)
def test_the_program_is_named(name: str, tmp_path: Path) -> None:
    content, what = CASES[name]
    path = tmp_path / "file"
    path.write_bytes(content)
    error = error_of(path)
    assert error.message.startswith(f"this is {what}")
    assert leads_somewhere(error.message, error.hint)
    for suffix in (".json", ".sqlite", ".nsys-rep", ".db", ".csv", ".pb", ".qdstrm", ".pftrace"):
        assert error_of(path.rename(tmp_path / f"file{suffix}")).message == error.message
        (tmp_path / f"file{suffix}").rename(path)


def test_a_gzipped_memory_snapshot_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps({"segments": [], "device_traces": [[]]})))
    with pytest.raises(UnknownFormatError, match="a gzip file that contains a snapshot of the CUDA memory of PyTorch"):
        tk.load(path)


@pytest.mark.many(70)
@pytest.mark.parametrize("name", UNREAD)
def test_the_program_is_named_in_a_gzip_file(name: str, tmp_path: Path) -> None:
    content, what = CASES[name]
    path = tmp_path / "file.json.gz"
    path.write_bytes(gzip.compress(content))
    error = error_of(path)
    assert error.message.startswith(f"this is a gzip file that contains {what}")
    assert leads_somewhere(error.message, error.hint)


@pytest.mark.parametrize("name", TRACES)
def test_a_chrome_trace_is_named_and_detected(name: str, tmp_path: Path) -> None:
    content, what = TRACES[name]
    path = tmp_path / "file"
    for data in (content, gzip.compress(content)):
        path.write_bytes(data)
        found, hint = detection.describe_unrecognized(Source(path))
        assert f"this is {what}" in found or f"this is a gzip file that contains {what}" in found
        assert leads_somewhere(found, hint)
        assert detection.find_reader(Source(path)) is not None


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("empty.nsys-rep", "a report of Nsight Systems"),
        ("empty.sqlite", "a SQLite export of Nsight Systems"),
        ("nvprof/program.nvprof", "a profile of nvprof"),
        ("proton/scopes.hatchet", "a profile of Proton (Triton)"),
        ("nvprof/session.nvvp", "a session of the NVIDIA Visual Profiler"),
    ],
)
def test_a_compressed_capture_is_to_be_decompressed(file: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / f"{Path(file).name}.gz"
    path.write_bytes(gzip.compress((FIXTURES / file).read_bytes()))
    assert (
        str(error_of(path))
        == f"{path}: this is a gzip file that contains {what}\nHint: decompress it first: gunzip FILE"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"a few words", mtime=0), "this is a gzip file whose content is unknown"),
        (gzip.compress(b"", mtime=0), "this is a gzip file without content"),
        (b"\x1f\x8b\x08" + b"\1" * 100, "this is a gzip file, but it is damaged"),
        (b"\x0a\x05\x08\x01\x10\x02\x18", UNKNOWN),
        (b"[build-system]\nrequires = []\n", UNKNOWN),
        (b"{{ template }}", UNKNOWN),
        (b"\x0a\xff\xff\xff\xff\xff\xff", UNKNOWN),
    ],
)
def test_unknown_content(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert error_of(path).message == message


def test_tables_are_no_markup_and_short(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(database("\x1b[31m", "a" * 500, "<b>"))
    message = error_of(path).message
    assert "\x1b" not in message
    assert "<b>" not in message
    assert len(message) < 200


def test_a_bomb_is_not_decompressed(tmp_path: Path) -> None:
    path = tmp_path / "file.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    start = time.monotonic()
    assert error_of(path).message == "this is a gzip file whose content is unknown"
    assert time.monotonic() - start < 5


@given(st.binary(max_size=300), st.sampled_from([b"", *(content[:200] for content, _ in CASES.values())]))
def test_any_content_has_a_description_or_none(rest: bytes, head: bytes) -> None:
    for content in (head + rest, rest + head, gzip.compress(head + rest)[: len(rest) + 20]):
        described = foreign_files.describe_content(content, rest)
        assert described is None or (described.what and described.hint)


@pytest.mark.parametrize(
    "content",
    [
        b"{" * 70_000,
        b'{"traceEvents":' + b"[" * 70_000,
        b'["frame":{' * 8000,
        b'{"schema":"1.0"' * 5000,
        b"a," * 40_000,
        b"\n" * 70_000,
        b" " * 70_000,
        b"\n\x02\x12" * 30_000,
        b"name," + b"," * 60_000,
        b'["ph":"X","cat":"Node"' * 4000,
    ],
    ids=lambda content: content[:12].decode().strip() or "blank",
)
def test_hostile_content_takes_no_time(content: bytes) -> None:
    start = time.monotonic()
    foreign_files.describe_content(content, content[: 1 << 14])
    assert time.monotonic() - start < 1


@pytest.mark.skipif(not CASE.is_dir(), reason="no cases beside the checkout")
@pytest.mark.parametrize("name", ["jax.trace.json", "jax.trace.json.gz"])
def test_the_case_of_a_trace_of_jax(name: str) -> None:
    what, hint = detection.describe_unrecognized(Source(CASE / name))
    assert f"{LOOKS} JAX or TensorFlow (XLA)" in what
    assert "https://ui.perfetto.dev" in str(hint)


PROGRAMS = {
    "xplane": r"XProf|XPlane|TraceLens|TensorFlow|Chrome trace|JSON file",
    "rocm": r"ROCm|JSON file|Excel",
    "nvprof": r"nvprof|NVIDIA Visual Profiler|Proton",
    "perfetto": "Perfetto",
    "pytorch_memory": "memory",
    "chrome_trace": "Chrome trace|speedscope",
    "nccl": "NCCL|TraceLens",
    "kineto_other": r"TraceLens|Chakra|AIU|JSON file|replay|Excel",
}


@pytest.mark.skipif(not MAKERS.is_dir(), reason="no corpus beside the checkout")
def test_every_public_file_that_is_not_read_is_named() -> None:
    with (MAKERS / "CATALOG.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    sources = {row["path"]: Source(MAKERS / row["path"]) for row in rows}
    unread = [row for row in rows if detection.find_reader(sources[row["path"]]) is None]
    assert len(unread) > 100
    for row in unread:
        what, hint = detection.describe_unrecognized(sources[row["path"]])
        if sources[row["path"]].head.strip():  # one table is empty
            assert leads_somewhere(what, hint), row["path"]
            assert re.search(PROGRAMS[row["kind"]], what), (row["path"], what)
