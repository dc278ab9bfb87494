"""Databases of nvprof and sessions of the Visual Profiler are read as SQLite and the catalogue of public files say."""

from __future__ import annotations

import base64
import gzip
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tests.helpers import count_undecoded
from tracekit.errors import CorruptTraceError, TracekitError, UnknownFormatError
from tracekit.readers.nvprof.capture import find_base_name

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures" / "nvprof"
DATABASE, SESSION = FIXTURES / "program.nvprof", FIXTURES / "session.nvvp"
PROGRAM = ROOT / "fixtures" / "programs" / "nvprof_database.py"
CORPUS = ROOT.parent / "shared" / "corpus" / "makers" / "nvprof"
ORIGIN = 1_700_000_000_000_000_000
FIRST = ORIGIN + 1_000
"""The earliest time in the fixture, at which an overhead starts."""


def rows(sql: str, path: Path = DATABASE) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        return db.execute(sql).fetchall()


@pytest.fixture(scope="module")
def trace() -> tk.Trace:
    return tk.load(DATABASE)


def frame(trace: tk.Trace, name: str) -> pl.DataFrame:
    table = pl.DataFrame(trace[name])
    return table.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


def test_activities_are_those_of_the_database(trace: tk.Trace) -> None:
    sql = "SELECT start, end, deviceId, contextId, streamId, correlationId, {} FROM CUPTI_ACTIVITY_KIND_{} {}"
    columns = ("start_ns", "end_ns", "device_id", "context_id", "stream_id", "correlation_id")
    names = dict(rows("SELECT _id_, value FROM StringTable"))
    expected = [
        (start - FIRST, end - FIRST, *ids, names[name], grid, registers, local)
        for start, end, *ids, name, grid, registers, local in rows(
            sql.format("name, gridX, registersPerThread, localMemoryTotal", "CONCURRENT_KERNEL", "")
        )
    ]
    wanted = (*columns, "name", "grid_x", "registers_per_thread", "local_memory_total_bytes")
    assert frame(trace, "kernels").select(wanted).rows() == expected
    expected = [
        (start - FIRST, end - FIRST, *ids)
        for start, end, *ids in rows(sql.format("bytes", "MEMSET", "WHERE start > 0"))
    ]
    assert frame(trace, "memsets").select(*columns, "bytes").rows() == expected


def test_kernels_have_a_base_name_and_a_launch_type(trace: tk.Trace) -> None:
    kernels = frame(trace, "kernels")
    assert kernels["short_name"].to_list() == ["gemm", "reduce"] * 3
    assert kernels["mangled_name"].to_list() == kernels["name"].to_list()
    assert kernels["launch_type"].to_list() == ["Regular", "Coop Single Device"] * 3
    assert set(kernels["process_id"]) == {4242}
    names = {"_ZN2at6native13reduce_kernelILi512EE": "reduce_kernel", "main_12_gpu": "main_12_gpu", "_Z": "_Z", "": ""}
    assert {name: find_base_name(name) for name in names} == names
    assert find_base_name("_Z9999x") == "x"


def test_copies_of_all_kinds_are_read(trace: tk.Trace) -> None:
    copies = frame(trace, "memcpys").select("memcpy_id", "copy_kind", "bytes", "device_id", "dst_device_id")
    assert copies.rows() == [
        (1, "Host-to-Device", 4096, 0, None),
        (2, "Host-to-Device", 8192, 0, None),
        (3, "Host-to-Device", 16384, 0, None),
        (4, "Peer-to-Peer", 1 << 20, 0, 1),
        (5, "Unified Host-to-Device", 65536, 1, None),
        (6, "Unified Device-to-Host", 4096, 0, None),
    ]
    assert frame(trace, "memcpys")["migration_cause"].to_list() == [None] * 4 + ["Page fault"] * 2
    faults = frame(trace, "gpu_page_faults").select("device_id", "page_faults", "access_type")
    assert faults.rows() == [(0, 3, "Write")]


def test_calls_have_names_and_launch_the_kernels(trace: tk.Trace) -> None:
    calls = frame(trace, "api_calls")
    assert calls["name"].to_list()[:3] == ["cudaMemcpy_v3020", "cudaLaunchKernel_v7000", "cudaLaunchKernel_v7000"]
    assert calls["name"].to_list()[-2:] == ["cuLaunchKernel", None]
    assert calls["api"].to_list() == ["CUDA runtime"] * 12 + ["CUDA driver"] * 2
    assert set(calls["thread_id"]) == {0x80000001, 77}
    linked = trace.correlate().frame("kernels").collect()
    assert linked["api_call_id"].to_list() == [2, 3, 6, 7, 10, 11]
    assert linked["range_id"].null_count() == 0


def test_markers_become_ranges_and_marks(trace: tk.Trace) -> None:
    ranges = frame(trace, "nvtx_ranges").sort("start_ns", "end_ns")
    assert ranges.filter(pl.col("kind") == "push_pop")["name"].to_list() == ["step", "forward"] * 3
    crossing = ranges.filter(pl.col("kind") == "start_end").drop("range_id")
    assert crossing.select("name", "domain", "thread_id", "end_thread_id", "start_ns", "end_ns").rows() == [
        ("load", "io", 77, 0x80000001, 4_000, 24_000)
    ]
    marks = frame(trace, "nvtx_marks").select("name", "domain", "color", "category_id", "payload_type", "payload_int")
    assert marks.rows() == [("mark", "io", 0xFFFF0000, 3, "uint64", 12)]


def test_ranges_that_cross_on_one_thread_are_start_end_ranges(tmp_path: Path) -> None:
    path = tmp_path / "crossing.nvprof"
    path.write_bytes(DATABASE.read_bytes())
    times = {60: (500, 900), 61: (700, 1200), 62: (750, 800), 63: (500, 900), 64: (650, 650), 65: (1200, 1300)}
    with closing(sqlite3.connect(path)) as db:
        place = struct.pack("<3I", 4242, 99, 0)
        for number, (start, end) in times.items():
            for flags, time in ((2, start), (4, end)):
                values = (flags, ORIGIN + 10_000 + time, number, 2, place, 5, 0)
                db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_MARKER VALUES (NULL{', ?' * 7})", values)
        db.commit()
    ranges = frame(tk.load(path), "nvtx_ranges").filter(pl.col("thread_id") == 99).sort("start_ns", "end_ns")
    crossing = ranges.filter(pl.col("kind") == "start_end")["end_ns"] + FIRST - ORIGIN - 10_000
    assert sorted(crossing) == [900, 900, 1200]
    assert ranges.height == len(times)


def test_other_events_are_read(trace: tk.Trace) -> None:
    syncs = frame(trace, "syncs").select("sync_type", "device_id", "stream_id", "event_id")
    assert syncs.rows() == [("Context sync", 0, None, None)] * 3
    assert frame(trace, "cuda_events").select("device_id", "event_id", "timestamp_ns").rows() == [(0, 5, None)]
    memory = frame(trace, "memory_events").select("timestamp_ns", "operation", "memory_kind", "bytes")
    assert memory.rows() == [
        (3_000, "Allocation", "Device", 1 << 20),
        (3_500, "Allocation", "Managed", 1 << 10),
        (329_000, "Deallocation", "Device", 1 << 20),
    ]
    overheads = frame(trace, "overheads").select("overhead_type", "process_id", "thread_id", "start_ns")
    assert overheads["overhead_type"].to_list()[0] == "Buffer flush (Profiler)"
    assert overheads.rows()[1:] == [
        ("Instrumentation (Profiler)", 4242, None, 1_000),
        ("Resource creation/destruction (Profiler)", 4242, None, 2_000),
    ]
    assert frame(trace, "cuda_overheads")["overhead_type"].to_list() == ["Driver JIT compiler (CUDA)"]
    acc = frame(trace, "openacc_events").select(
        "kind", "event_kind", "source_file", "variable", "kernel", "device_type"
    )
    assert acc.rows() == [
        ("data", "Enqueue upload", "main.c", "x", None, "NVIDIA"),
        ("launch", "Enqueue launch", "main.c", None, "main_12_gpu", "NVIDIA"),
    ]


def test_the_machine_is_read(trace: tk.Trace) -> None:
    device = frame(trace, "devices").row(0, named=True)
    assert device["name"] == "Tesla V100-SXM2-16GB"
    assert device["clock_rate_hz"] == 1_530_000_000
    assert device["memory_bandwidth_bytes_per_s"] == 898_048_000_000
    assert device["uuid"] == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert frame(trace, "streams").select("stream_id", "stream_type", "name").rows() == [
        (7, "Null stream", None),
        (13, "Non-blocking stream", "io"),
    ]
    assert frame(trace, "processes").rows() == [(4242, "a.out")]
    assert frame(trace, "threads").select("process_id", "thread_id", "name").rows() == [(4242, 77, "worker")]
    info = dict(trace["capture_info"].select(["name", "value"]).to_pylist()[n].values() for n in range(4))  # type: ignore[misc]
    assert info == {
        "tool": "nvprof",
        "schema_version": "12",
        "origin_utc_ns": str(FIRST),
        "duration_ns": str(ORIGIN + 400_500 - FIRST),
    }
    assert count_undecoded(trace.undecoded) == {
        "environment": 1,
        "events without valid times": 1,
        "external correlation": 1,
        "markers": 1,
        "unified memory counter": 1,
    }


def test_a_session_is_its_database(trace: tk.Trace) -> None:
    with tk.load(SESSION) as session:
        assert session.format == "nvprof"
        for name in trace.tables:
            assert session[name].equals(trace[name])
        assert not count_undecoded(session.undecoded)


def test_the_program_writes_the_fixtures(tmp_path: Path) -> None:
    subprocess.run([sys.executable, PROGRAM, tmp_path], check=True)
    for sql in ("SELECT * FROM CUPTI_ACTIVITY_KIND_MARKER", "SELECT * FROM StringTable"):
        assert rows(sql, tmp_path / "program.nvprof") == rows(sql)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda s: s[: len(s) // 2], CorruptTraceError, "truncated"),
        (lambda s: s.replace(b"<pdm>", b"<xdm>"), UnknownFormatError, "contains no profiles"),
        (lambda s: s.replace(b"<timelinepdm>", b"<timelinepdm><pdm></pdm>"), UnknownFormatError, "contains 2 profiles"),
        (
            lambda s: s.replace(b"</split>\n", b"*</split>\n").replace(b"\n</split>", b"*</split>"),
            CorruptTraceError,
            "damaged",
        ),
        (lambda s: s.replace(b"<split>H4s", b"<split>AAAA"), CorruptTraceError, "damaged"),
    ],
)
def test_damaged_sessions_are_errors(tmp_path: Path, change: Any, error: type[TracekitError], text: str) -> None:
    path = tmp_path / "damaged.nvvp"
    path.write_bytes(change(SESSION.read_bytes()))
    with pytest.raises(error, match=text):
        tk.load(path)


def test_a_small_session_does_not_fill_the_disk(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(200 << 20))
    path = tmp_path / "bomb.nvvp"
    path.write_bytes(
        b"<session><timelinepdm><pdm><split>" + base64.b64encode(bomb) + b"</split></pdm></timelinepdm></session>"
    )
    with pytest.raises(CorruptTraceError, match="would take"):
        tk.load(path)


def test_values_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "changed.nvprof"
    path.write_bytes(DATABASE.read_bytes())
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL SET gridX = 1 << 40, deviceId = -1 WHERE _id_ > 4")
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL SET gridX = 1 << 40 WHERE _id_ = 1")
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_MEMSET SET value = 'text'")
        db.commit()
    with tk.load(path) as changed:
        assert changed.count("kernels") == 4
        with pytest.raises(CorruptTraceError, match="1099511627776"):
            changed["kernels"]
        with pytest.raises(CorruptTraceError, match="must hold values of type integer"):
            changed["memsets"]


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("xstupi00__N-Body-OpenACC/profile.nvvp", {"kernels": 27, "memcpys": 87, "memsets": 28, "openacc_events": 423}),
        ("ImageProjection__path_integral_gpu/prof.nvvp", {"kernels": 4, "api_calls": 125, "overheads": 21}),
        ("dipsankarb__csl7520/profile.nvvp", {"kernels": 1, "api_calls": 112, "overheads": 23}),
        ("peijin94__FastQSL/prof.nvvp", {"kernels": 1, "api_calls": 191, "overheads": 95, "memcpys": 20}),
    ],
)
def test_public_files_have_the_catalogued_rows(file: str, counts: dict[str, int]) -> None:
    path = CORPUS / file
    if not path.exists():
        pytest.skip("not beside this checkout")
    with tk.load(path) as public:
        assert {name: public.count(name) for name in counts} == counts
        kernels = public.correlate().frame("kernels").collect()
        assert kernels["api_call_id"].null_count() == 0
        assert count_undecoded(public.undecoded) == ({"external correlation": 321} if "OpenACC" in file else {})
        if not file.startswith("xstupi00"):
            expected = rows("SELECT SUM(end - start) FROM CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", path)
            assert kernels.select(pl.sum("end_ns") - pl.sum("start_ns")).rows() == expected
