"""The readers of AMD's profilers: one invented run in each format, and public files against their own views."""

from __future__ import annotations

import ast
import csv
import gzip
import html
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tracekit.errors import CorruptTraceError, TracekitError

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures" / "rocm"
PUBLIC = ROOT.parent / "shared" / "corpus" / "makers" / "rocm"
ROCPD, RPD = FIXTURES / "train_results.db", FIXTURES / "train.rpd"
JSON, CSV = FIXTURES / "train_results.json", FIXTURES / "csv"
ROCPD_FILES = [
    "HGLiu1998__batched_gemm/37ca13315e70/28_results.db",
    "HGLiu1998__batched_gemm/trace_20251121_0800/4ebf2d55103f/15_results.db",
]
RPD_FILES = [
    "ROCm__rocmProfileData/matmul_result.rpd",
    "ROCm__rocmProfileData/matmul_result_large.rpd",
    "ROCm__rocmProfileData/mytrace.rpd.gz",
    "Ajcarroll155__amelia-benchmark/trace.rpd",
]
ORIGIN = 1_000_000_000_000
EVENT = ("start_ns", "end_ns", "process_id", "device_id", "correlation_id")
PRIVATE = ("lovelace", "hf_invented", "workstation-of")


@pytest.fixture(scope="module", autouse=True)
def programs() -> Iterator[None]:
    """The generator as a module."""
    sys.path.insert(0, str(ROOT / "fixtures" / "programs"))
    yield
    sys.path.remove(str(ROOT / "fixtures" / "programs"))


def public(name: str) -> Path:
    path = PUBLIC / name
    if not path.exists():
        pytest.skip("needs the public files")
    return path


def query(path: Path, sql: str) -> list[tuple[object, ...]]:
    """Rows of a database, read by SQLite alone. The file is ours, or one whose views are known."""
    with closing(sqlite3.connect(":memory:")) as db:
        data = path.read_bytes()
        db.deserialize(gzip.decompress(data) if path.suffix == ".gz" else data)
        return db.execute(sql).fetchall()


def rows(path: Path, table: str, *columns: str) -> list[tuple[object, ...]]:
    with tk.load(path) as trace:
        return trace.frame(table).select(columns).collect().rows()


def tables_of(kind: str) -> str:
    return f"rocpd_{kind}_00001092_4a6f_7a6f_9b1c_d2e3f4a5b6c7"


def test_kernels_are_those_of_the_database() -> None:
    kernel, symbol, event = map(tables_of, ("kernel_dispatch", "info_kernel_symbol", "event"))
    expected = query(
        ROCPD,
        f"""SELECT k.start - {ORIGIN}, k.end - {ORIGIN}, k.pid, k.agent_id - 1, e.stack_id, k.stream_id, s.display_name,
        replace(s.kernel_name, '.kd', ''), grid_size_x / workgroup_size_x, grid_size_y, grid_size_z, workgroup_size_x,
        s.arch_vgpr_count + s.accum_vgpr_count, s.group_segment_size, k.group_segment_size - s.group_segment_size,
        k.group_segment_size, k.private_segment_size
        FROM {kernel} k JOIN {symbol} s ON s.id = k.kernel_id JOIN {event} e ON e.id = k.event_id ORDER BY k.start""",
    )
    columns = ("stream_id", "name", "mangled_name", "grid_x", "grid_y", "grid_z", "block_x", "registers_per_thread")
    memory = ("static_shared_memory_bytes", "dynamic_shared_memory_bytes", "shared_memory_executed_bytes")
    read = rows(ROCPD, "kernels", *EVENT, *columns, *memory, "local_memory_per_thread_bytes")
    assert len(read) == 40
    assert read == expected


def test_calls_copies_ranges_and_marks_are_those_of_the_database() -> None:
    region, string, event, copy = map(tables_of, ("region", "string", "event", "memory_copy"))
    calls = f"""SELECT r.start - {ORIGIN}, r.end - {ORIGIN}, r.pid, r.tid, e.stack_id, n.string, substr(c.string, 1, 7)
        FROM {region} r JOIN {event} e ON e.id = r.event_id JOIN {string} n ON n.id = r.name_id
        JOIN {string} c ON c.id = e.category_id WHERE c.string NOT LIKE 'MARKER%' ORDER BY r.start"""
    labels = {"HIP runtime": "HIP_RUN", "HIP compiler": "HIP_COM", "HSA": "HSA_COR"}
    read = rows(ROCPD, "api_calls", "start_ns", "end_ns", "process_id", "thread_id", "correlation_id", "name", "api")
    assert [(*row[:-1], labels[str(row[-1])]) for row in read] == query(ROCPD, calls)
    copies = f"""SELECT m.start - {ORIGIN}, m.end - {ORIGIN}, m.pid, max(src_agent_id, dst_agent_id) - 1, e.stack_id,
        size,
        CASE src_agent_id WHEN 0 THEN 'Host-to-Device' ELSE 'Device-to-Host' END
        FROM {copy} m JOIN {event} e ON e.id = m.event_id ORDER BY m.start"""
    assert rows(ROCPD, "memcpys", *EVENT, "bytes", "copy_kind") == query(ROCPD, copies)
    ranges = rows(ROCPD, "nvtx_ranges", "name", "kind", "domain_id", "domain", "thread_id")
    assert ranges == [(f"step {n}", "push_pop", 0, None, 4242) for n in range(4)]
    assert rows(ROCPD, "nvtx_marks", "name", "domain_id") == [(f'loss of "step" {n}', 0) for n in range(4)]


def test_counters_are_summed_over_their_instances() -> None:
    pmc, kernel = map(tables_of, ("pmc_event", "kernel_dispatch"))
    expected = query(
        ROCPD,
        f"""SELECT k.start - {ORIGIN}, sum(p.value), 'SQ_WAVES' FROM {pmc} p JOIN {kernel} k ON k.event_id = p.event_id
        GROUP BY p.event_id ORDER BY k.start""",
    )
    assert rows(ROCPD, "profiler_metrics", "start_ns", "value", "metric") == expected


def test_memory_of_gpus_is_allocated_and_freed() -> None:
    events = rows(ROCPD, "memory_events", "operation", "device_id", "address", "bytes", "memory_kind")
    addresses = [0x7E0000000000, 0x7E0100000000]
    expected = [("Allocation", n, address, 1 << 26, "Device") for n, address in enumerate(addresses)]
    assert events == expected + [("Deallocation", *row[1:]) for row in expected]


def test_devices_are_the_agents_that_are_gpus() -> None:
    columns = (
        "device_id",
        "name",
        "chip",
        "compute_major",
        "compute_minor",
        "sm_count",
        "clock_rate_hz",
        "memory_bytes",
    )
    mi300x = ("AMD Instinct MI300X", "gfx942", 9, 4, 304, 2_100_000_000, 206_141_652_992)
    assert rows(ROCPD, "devices", *columns) == [(0, *mi300x), (1, *mi300x)]
    units = ("threads_per_warp", "max_warps_per_sm", "max_shared_memory_per_sm_bytes", "bus_location")
    assert rows(ROCPD, "devices", *units) == [(64, 32, 65_536, "0000:0c:00.0"), (64, 32, 65_536, "0000:1c:00.0")]


@pytest.mark.parametrize("path", [RPD, JSON, CSV], ids=["rpd", "json", "csv"])
def test_the_same_run_is_read_from_every_format(path: Path) -> None:
    columns = (*EVENT, "name", "short_name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
    assert rows(path, "kernels", *columns) == rows(ROCPD, "kernels", *columns)
    copies = (*EVENT, "copy_kind") if path == CSV else (*EVENT, "copy_kind", "bytes")
    assert rows(path, "memcpys", *copies) == rows(ROCPD, "memcpys", *copies)
    calls = ("start_ns", "end_ns", "process_id", "thread_id", "correlation_id", "api", "name")
    assert rows(path, "api_calls", *calls) == rows(ROCPD, "api_calls", *calls)
    marks = ("timestamp_ns", "process_id", "thread_id", "domain_id", "name")
    assert rows(path, "nvtx_marks", *marks) == rows(ROCPD, "nvtx_marks", *marks)
    ranges = ("start_ns", "end_ns", "process_id", "thread_id", "domain_id", "name", "kind")
    steps = [row for row in rows(path, "nvtx_ranges", *ranges) if str(row[-2]).startswith("step")]
    assert steps == rows(ROCPD, "nvtx_ranges", *ranges)
    if path != RPD:
        resources = ("stream_id", "registers_per_thread", "local_memory_per_thread_bytes")
        assert rows(path, "kernels", *resources) == rows(ROCPD, "kernels", *resources)
        metrics = ("start_ns", "end_ns", "device_id", "range_name", "metric", "value")
        assert rows(path, "profiler_metrics", *metrics) == rows(ROCPD, "profiler_metrics", *metrics)
        events = ("timestamp_ns", "process_id", "operation", "device_id", "address", "bytes", "memory_kind")
        assert rows(path, "memory_events", *events) == rows(ROCPD, "memory_events", *events)
        devices = ("device_id", "name", "chip", "sm_count", "compute_major", "threads_per_warp", "bus_location")
        assert rows(path, "devices", *devices) == rows(ROCPD, "devices", *devices)
        assert rows(path, "threads", "process_id", "thread_id") == rows(ROCPD, "threads", "process_id", "thread_id")


def test_kernels_belong_to_their_calls_and_ranges() -> None:
    for path in (ROCPD, RPD, JSON, CSV):
        with tk.load(path) as trace:
            kernels = trace.correlate().frame("kernels").select("api_call_id", "range_path").collect()
        assert kernels["api_call_id"].null_count() == 0
        assert kernels["range_path"].cast(pl.String).str.extract(r"^(step \d)").drop_nulls().len() == 40


def test_what_only_rpd_records() -> None:
    assert rows(RPD, "overheads", "name", "thread_id", "start_ns") == [("ApiTable::writeRows", 4243, 50_000)]
    counters = rows(RPD, "counters", "timestamp_ns", "name", "field", "value_type", "value_int")
    assert counters == [(n * 100_000, "sclk", f"gpu {n % 2}", "int64", 800 + 400 * n) for n in range(4)]
    names = {str(name) for (name,) in rows(RPD, "nvtx_ranges", "name") if str(name).startswith("aten")}
    assert len(names) == 4
    assert all(", op_id = " in name and name.endswith(", sizes = [[8, 16], [16, 4]]") for name in names)
    with tk.load(RPD) as trace:
        ops = trace.rollup().frame("ops").select("op_name").collect()
    assert "mm" in " ".join(ops["op_name"].cast(pl.String))


def test_a_gzipped_database_is_decompressed(tmp_path: Path) -> None:
    zipped = tmp_path / "train.rpd.gz"
    zipped.write_bytes(gzip.compress(RPD.read_bytes()))
    assert rows(zipped, "kernels", *EVENT) == rows(RPD, "kernels", *EVENT)
    zipped.write_bytes(zipped.read_bytes()[:-400])
    with pytest.raises(CorruptTraceError, match=r"train\.rpd\.gz: the compressed data ends before.*\nHint: copy"):
        tk.load(zipped)


def test_processes_of_a_merged_database_are_told_apart(tmp_path: Path) -> None:
    import gen_rocm

    path = tmp_path / "merged.db"
    for number in range(2):
        gen_rocm.write_rocpd(path, 2, gen_rocm.GUID.replace("c7", f"d{number}"), gen_rocm.PID + number)
    with tk.load(path) as trace:
        kernels = trace.correlate().frame("kernels").collect()
        assert kernels["api_call_id"].n_unique() == kernels.height == 40
        assert trace.frame("processes").collect()["process_id"].to_list() == [4242, 4243]
        assert trace.count("devices") == 2
        assert trace.frame("profiler_metrics").collect()["profiler_range_id"].n_unique() == 40


def test_private_text_is_in_no_table() -> None:
    for path in (ROCPD, JSON):
        assert all(text.encode() in path.read_bytes() for text in PRIVATE)
        with tk.load(path) as trace:
            for name in trace.tables:
                text = trace.frame(name).collect().write_csv()
                assert not any(private in text for private in PRIVATE), name


def changed(tmp_path: Path, path: Path, *statements: str) -> Path:
    """A copy of a database after some statements."""
    copy = tmp_path / path.name
    shutil.copyfile(path, copy)
    with closing(sqlite3.connect(copy)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
    return copy


@pytest.mark.parametrize(
    ("path", "table", "statement", "message"),
    [
        (ROCPD, "kernels", "UPDATE {kernel_dispatch} SET start = 'soon' WHERE id = 3", "type integer, but holds text"),
        (ROCPD, "kernels", "UPDATE {kernel_dispatch} SET start = -5 WHERE id = 3", "negative time -5 ns"),
        (ROCPD, "kernels", "UPDATE {kernel_dispatch} SET agent_id = 99", "device_id"),
        (ROCPD, "kernels", "UPDATE {kernel_dispatch} SET workgroup_size_x = 1 << 40", "block_x"),
        (RPD, "kernels", "UPDATE rocpd_op SET gpuId = 1 << 40", "device_id"),
        (RPD, "api_calls", "UPDATE rocpd_api SET pid = 'one' WHERE id = 3", "type integer, but holds text"),
    ],
)
def test_damage_is_an_error_of_the_file(tmp_path: Path, path: Path, table: str, statement: str, message: str) -> None:
    copy = changed(tmp_path, path, statement.format(kernel_dispatch=tables_of("kernel_dispatch")))
    with tk.load(copy) as trace, pytest.raises(TracekitError, match=rf"{copy.name}: .*{message}"):
        trace.frame(table).collect()


@pytest.mark.parametrize("times", ["start = 0, end = 0", "start = 0", "end = 0", "end = start - 1"])
def test_events_without_valid_times_are_counted_and_left_out(tmp_path: Path, times: str) -> None:
    """Such an event would have a negative duration, or move the origin by the uptime of the machine."""
    copies = [
        changed(tmp_path, ROCPD, f"UPDATE {tables_of('kernel_dispatch')} SET {times} WHERE id = 3"),
        changed(tmp_path, RPD, f"UPDATE rocpd_op SET {times} WHERE id = (SELECT max(id) FROM rocpd_op)"),
    ]
    document = json.loads(JSON.read_text())
    kernel = document["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"][3]
    start, end = kernel["start_timestamp"], kernel["end_timestamp"]
    changes = dict(part.split(" = ") for part in times.split(", "))
    kernel["start_timestamp"] = int(changes.get("start", start))
    kernel["end_timestamp"] = {"0": 0, "start - 1": start - 1}.get(changes.get("end", ""), end)
    (tmp_path / JSON.name).write_text(json.dumps(document))
    for copy in [*copies, tmp_path / JSON.name]:
        with tk.load(copy) as trace:
            assert trace.count("kernels") + trace.count("memcpys") == 47
            assert trace.undecoded["events without valid times"].count == 1
            assert trace.span() == (0, 1_353_077)
            kernels = trace.frame("kernels").collect()
            assert (kernels["end_ns"] >= kernels["start_ns"]).all()


def test_repeated_keys_multiply_no_rows(tmp_path: Path) -> None:
    event = tables_of("event")
    statements = [
        f"CREATE TABLE other AS SELECT * FROM {event}",
        f"DROP TABLE {event}",
        f"CREATE TABLE {event} AS SELECT * FROM other UNION ALL SELECT * FROM other",
        f"UPDATE {event} SET id = 5",
    ]
    copy = changed(tmp_path, ROCPD, *statements)
    assert len(rows(copy, "kernels", "kernel_id")) == 40


def test_columns_of_other_versions_may_be_missing(tmp_path: Path) -> None:
    kernel = tables_of("kernel_dispatch")
    statements = [f"ALTER TABLE {kernel} DROP COLUMN stream_id", f"DROP TABLE {tables_of('sample')}"]
    copy = changed(tmp_path, ROCPD, *statements, f"UPDATE {kernel} SET queue_id = 1 + id % 2")
    assert {stream for (stream,) in rows(copy, "kernels", "stream_id")} == {1, 2}
    assert rows(copy, "nvtx_marks", "name") == []


def test_fixtures_are_what_the_program_writes(tmp_path: Path) -> None:
    program = ROOT / "fixtures" / "programs" / "gen_rocm.py"
    subprocess.run([sys.executable, program, tmp_path], check=True)
    for path in (JSON, *CSV.iterdir()):
        assert (tmp_path / path.relative_to(FIXTURES)).read_bytes() == path.read_bytes()
    for path in (ROCPD, RPD):
        assert list(sqlite3.connect(tmp_path / path.name).iterdump()) == list(sqlite3.connect(path).iterdump())


@pytest.mark.parametrize("path", [ROCPD, RPD], ids=["rocpd", "rpd"])
def test_a_redacted_copy_has_no_private_text_and_the_same_tables(path: Path, tmp_path: Path) -> None:
    copy, again = tmp_path / f"copy{path.suffix}", tmp_path / f"again{path.suffix}"
    counts = tk.redact(path, copy, key=b"0123456789abcdef")
    assert counts == tk.unredacted(path)
    assert not any(text.encode() in copy.read_bytes() for text in PRIVATE)
    assert set(tk.unredacted(copy).values()) == {0}
    assert (counts["environment"] > 0, counts["host name"] > 0, counts["command line"] > 0) == (path == ROCPD,) * 3
    tk.redact(copy, again, key=b"0123456789abcdef")
    with tk.load(path) as before, tk.load(copy) as after, tk.load(again) as twice:
        for name in before.tables:
            assert before[name].equals(after[name]), name
            assert before[name].equals(twice[name]), name


def test_what_cannot_be_redacted_is_refused(tmp_path: Path) -> None:
    zipped = tmp_path / "train.rpd.gz"
    zipped.write_bytes(gzip.compress(RPD.read_bytes()))
    with pytest.raises(TracekitError, match=r"a gzipped database cannot be redacted\nHint: decompress it first"):
        tk.redact(zipped, tmp_path / "copy.rpd")
    cut = changed(
        tmp_path,
        ROCPD,
        "CREATE TRIGGER t AFTER INSERT ON sample BEGIN SELECT 1; END".replace("sample", tables_of("sample")),
    )
    with pytest.raises(
        TracekitError, match=r"SQL triggers.*\nHint: copy the file again from where the profiler wrote it"
    ):
        tk.redact(cut, tmp_path / "copy.db")


def test_json_of_several_processes_and_gzipped(tmp_path: Path) -> None:
    (tool,) = json.loads(JSON.read_bytes())["rocprofiler-sdk-tool"]
    other = json.loads(json.dumps(tool))
    other["metadata"]["pid"] = 4243
    other["kernel_symbols"][0]["formatted_kernel_name"] = "other"
    path = tmp_path / "two_results.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"rocprofiler-sdk-tool": [tool, other]}, indent=1).encode()))
    with tk.load(path) as trace:
        assert trace.format == "rocprofv3-json"
        kernels = trace.correlate().frame("kernels").collect()
    assert kernels["api_call_id"].n_unique() == kernels.height == 80
    assert dict(kernels.filter(pl.col("name") == "other")["process_id"].value_counts().rows()) == {4243: 8}


def test_a_truncated_json_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path, content = tmp_path / "cut_results.json", JSON.read_bytes()
    path.write_bytes(content[: content.index(b'"hip_api"') - 400])
    with pytest.warns(tk.errors.TracekitWarning, match="read up to the last whole record"), tk.load(path) as trace:
        assert 30 <= trace.count("kernels") < 40
    path.write_bytes(content[:200])
    with pytest.raises(CorruptTraceError, match=r"no records of rocprofv3\nHint: copy"):
        tk.load(path)


def test_old_counters_have_the_times_of_their_kernels(tmp_path: Path) -> None:
    folder = shutil.copytree(CSV, tmp_path / "csv")
    counters = pl.read_csv(folder / "4242_counter_collection.csv")
    counters.drop("Start_Timestamp", "End_Timestamp").write_csv(folder / "4242_counter_collection.csv")
    metrics = ("start_ns", "range_name", "value")
    assert rows(folder, "profiler_metrics", *metrics) == rows(CSV, "profiler_metrics", *metrics)
    (folder / "4242_kernel_trace.csv").unlink()
    with tk.load(folder) as trace:
        assert trace.count("profiler_metrics") == trace.count("kernels") == 0
        assert trace.undecoded["counters of kernels without times"].count == 40


def test_kernels_are_those_of_counters_if_no_others_were_traced(tmp_path: Path) -> None:
    file = shutil.copy(CSV / "4242_counter_collection.csv", tmp_path / "file.csv")
    columns = ("process_id", "correlation_id", "name", "registers_per_thread")
    assert rows(Path(file), "kernels", *columns) == rows(CSV, "kernels", *columns)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '"HIP_RUNTIME_API","hipMalloc",soon,2\n',
            "could not parse",
        ),
        ('"HIP_RUNTIME_API","hipMalloc",1,2,3\n', "more fields"),
        ('"HIP_RUNTIME_API","hipMalloc",1\n', "end_ns"),
    ],
)
def test_damaged_lines_are_errors_of_the_file(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "1_hip_api_trace.csv"
    path.write_text('"Domain","Function","Start_Timestamp","End_Timestamp"\n' + content)
    with pytest.raises(CorruptTraceError, match=rf"hip_api_trace\.csv: .*{message}"), tk.load(path) as trace:
        trace.frame("api_calls").collect()


@pytest.mark.parametrize("name", ROCPD_FILES)
def test_public_rocpd_equals_its_views(name: str) -> None:
    path = public(name)
    with tk.load(path) as trace:
        origin = int(trace.info["origin_clock_ns"])
        columns = ("name", "stream_id", "grid_x", "block_x", "shared_memory_executed_bytes", "device_id")
        kernels = trace.frame("kernels").select(pl.col("start_ns", "end_ns") + origin, *columns).collect()
        calls = trace.frame("api_calls").select(pl.col("start_ns", "end_ns") + origin, "name", "process_id").collect()
        linked = trace.correlate().frame("kernels").select("api_call_id").collect()
    view = "start, end, name, stream_id, (grid_x - 1) / workgroup_x + 1, workgroup_x, lds_size, agent_type_index"
    assert kernels.rows() == query(path, f"SELECT {view} FROM kernels ORDER BY start, id")
    assert calls.rows() == query(path, "SELECT start, end, name, pid FROM regions ORDER BY start, id")
    duration = pl.col("end_ns") - pl.col("start_ns")
    top = kernels.group_by("name").agg(pl.len(), total=duration.sum()).sort("total", descending=True)
    expected = query(path, "SELECT name, total_calls, total_duration FROM top_kernels")
    assert [(n, count, total / 1000) for n, count, total in top.rows()] == expected
    ((busy, wall),) = query(path, "SELECT GpuTime, WallTime FROM busy")
    assert (kernels.select(duration.sum()).item(), kernels["end_ns"].max() - kernels["start_ns"].min()) == (busy, wall)
    assert linked["api_call_id"].null_count() == 0


@pytest.mark.parametrize("name", RPD_FILES)
def test_public_rpd_equals_its_views(name: str) -> None:
    path = public(name)
    with tk.load(path) as trace:
        origin = int(trace.info["origin_clock_ns"])
        kernels = trace.frame("kernels").with_columns(pl.col("start_ns", "end_ns") + origin).collect()
        copies, sets = (
            trace.frame(t).with_columns(pl.col("start_ns", "end_ns") + origin).collect() for t in ("memcpys", "memsets")
        )
        others = [trace.count(t) for t in ("api_calls", "overheads", "nvtx_ranges", "nvtx_marks")]
    assert [(sum(others),)] == query(path, "SELECT count(*) FROM api")
    view = """SELECT k.start, k.end, gpuId, kernelName, workgroupX, a.apiName, gridX FROM kernel k
        JOIN rocpd_api_ops o ON o.op_id = k.id JOIN api a ON a.id = o.api_id ORDER BY k.start"""
    launched = kernels.drop_nulls("block_x").select("start_ns", "end_ns", "device_id", "name", "block_x", "grid_x")
    expected = [
        (*row[:5], -(-row[6] // row[4]) if row[5] == "hipExtModuleLaunchKernel" else row[6])  # type: ignore[operator]
        for row in query(path, view)
    ]
    assert launched.rows() == expected
    view = "SELECT start, end, size, gpuId FROM copyop WHERE size <> '' ORDER BY start"
    single = copies.drop_nulls("bytes").select("start_ns", "end_ns", "bytes", "device_id")
    assert single.rows() == query(path, view)
    assert [(kernels.height + copies.height + sets.height,)] == query(path, "SELECT count(*) FROM op")
    spans = pl.concat([frame.select("start_ns", "end_ns", "device_id") for frame in (kernels, copies, sets)])
    busy = spans.group_by("device_id").agg(total=(pl.col("end_ns") - pl.col("start_ns")).sum())
    wall = spans["end_ns"].max() - spans["start_ns"].min() if spans.height else 0  # type: ignore[operator]
    assert [(*row, wall) for row in busy.rows()] == query(path, "SELECT gpuId, GpuTime, WallTime FROM busy")
    top = kernels.group_by("name").agg(count=pl.len(), total=(pl.col("end_ns") - pl.col("start_ns")).sum())
    totals = {n: (count, total // 1000) for n, count, total in top.rows()}
    named = {n: v for n, *v in query(path, "SELECT Name, TotalCalls, TotalDuration FROM top") if n in totals}
    assert totals == {n: tuple(v) for n, v in named.items()}


def test_public_json_equals_its_records() -> None:
    path = public("AMD-AGI__TraceLens/908_results.json.gz")
    (tool,) = json.loads(gzip.decompress(path.read_bytes()))["rocprofiler-sdk-tool"]
    names = {symbol["kernel_id"]: symbol["formatted_kernel_name"] for symbol in tool["kernel_symbols"]}
    gpus = {a["id"]["handle"]: a["logical_node_type_id"] for a in tool["agents"] if a["type"] == 2}
    expected = [
        (
            *(record["start_timestamp"], record["end_timestamp"], record["correlation_id"]["internal"]),
            *(gpus[launch["agent_id"]["handle"]], names[launch["kernel_id"]].removesuffix(".kd")),
            *(launch["grid_size"][axis] // launch["workgroup_size"][axis] for axis in "xyz"),
            launch["group_segment_size"],
        )
        for record in tool["buffer_records"]["kernel_dispatch"]
        for launch in [record["dispatch_info"]]
    ]
    with tk.load(path) as trace:
        origin = int(trace.info["origin_clock_ns"])
        sizes = ("grid_x", "grid_y", "grid_z", "shared_memory_executed_bytes")
        kernels = trace.frame("kernels").select(
            pl.col("start_ns", "end_ns") + origin, "correlation_id", "device_id", "name", *sizes
        )
        assert kernels.collect().rows() == sorted(expected, key=lambda row: row[0])
        assert trace.frame("processes").collect()["process_id"].to_list() == [908]
        assert set(trace.frame("devices").collect()["name"]) == {"AMD Instinct MI350X"}


@pytest.mark.parametrize(("name", "first", "busy_ns"), [("prefill", 0, 66_054_868), ("decode", 4, 672_793)])
def test_public_csv_equals_what_another_viewer_computed(name: str, first: int, busy_ns: int) -> None:
    folder = public("jimw567__rocprof-unified-viewer")
    golden = json.loads((folder / "golden" / f"{name}_payload.json").read_bytes())
    blocks = pl.col("grid_x") * pl.col("grid_y") * pl.col("grid_z")
    with tk.load(folder / "fixtures" / f"{name}_kernel_trace.csv") as trace:
        kernels = trace.frame("kernels").select(pl.col("end_ns") - pl.col("start_ns"), blocks=blocks).collect().rows()
    shown = kernels[first : first + len(golden["gpu"])]
    assert shown == [(kernel["e"] - kernel["s"], kernel["blocks"]) for kernel in golden["gpu"]]
    assert sum(duration for duration, _ in shown) == golden["busy_ns"] == busy_ns


@pytest.mark.parametrize("name", ["decode_fetch", "decode_stall", "prefill_fetch", "prefill_stall"])
def test_public_counters_are_those_of_the_file(name: str) -> None:
    path = public(f"jimw567__rocprof-unified-viewer/fixtures/{name}_counter_collection.csv")
    with path.open(encoding="utf-8", newline="") as file:
        lines = [*csv.DictReader(file)]
    expected = [(row["Kernel_Name"], row["Counter_Name"], float(row["Counter_Value"])) for row in lines]
    read = rows(path, "profiler_metrics", "range_name", "metric", "value")
    assert sorted(read) == sorted(expected)  # type: ignore[type-var]
    assert len(rows(path, "kernels", "name")) == len({row["Dispatch_Id"] for row in lines})


def test_public_kernels_of_rocprof_equal_its_statistics() -> None:
    folder = public("amd__HPCTrainingExamples/rocprof_v1_finite_difference")
    duration = pl.col("end_ns") - pl.col("start_ns")
    with tk.load(folder / "results.csv") as trace:
        totals = trace.frame("kernels").group_by("name").agg(pl.len(), total=duration.sum()).collect()
    with (folder / "results.stats.csv").open(encoding="utf-8", newline="") as file:
        stats = {
            (r["Name"].removesuffix(" [clone .kd]").removesuffix(".kd"), int(r["Calls"]), int(r["TotalDurationNs"]))
            for r in csv.DictReader(file)
        }
    assert set(totals.rows()) == stats


def test_public_rpd_equals_the_chrome_trace_of_the_same_run() -> None:
    events = json.loads(public("ROCm__rocmProfileData/matmul_result.json").read_bytes())
    drawn = sorted((int(e["ts"]), int(e["dur"]), int(e["pid"])) for e in events if e and e.get("ph") == "X")
    read: list[tuple[int, int, int]] = []
    with tk.load(public("ROCm__rocmProfileData/matmul_result.rpd")) as trace:
        origin = int(trace.info["origin_clock_ns"])
        for table in ("kernels", "memcpys", "memsets", "api_calls", "overheads"):
            owner = "device_id" if "device_id" in trace.schema(table).names else "process_id"
            start = (pl.col("start_ns") + origin) // 1000
            frame = trace.frame(table).select(start, (pl.col("end_ns") - pl.col("start_ns")) // 1000, pl.col(owner))
            read += frame.collect().rows()  # type: ignore[arg-type]
    assert sorted(read) == drawn


def test_public_rpd_equals_the_report_of_raptor() -> None:
    with zipfile.ZipFile(public("ROCm__rocmProfileData/mytrace.rpd.xlsx")) as archive:
        sheet = archive.read("xl/worksheets/sheet1.xml").decode()
    totals: dict[str, tuple[int, int]] = {}
    for row in re.findall(r'<row r="\d+".*?</row>', sheet, re.DOTALL)[3:]:
        cells = re.findall(r"<c [^>]*?(?:/>|>(?:<is><t[^>]*>([^<]*)</t></is>|<v>([^<]*)</v>)</c>)", row)
        sequence, total, count = html.unescape(cells[0][0]), int(float(cells[8][1])), int(float(cells[14][1]))
        if sequence.startswith("("):
            name = ast.literal_eval(sequence)[0]
            before = totals.get(name, (0, 0))
            totals[name] = before[0] + total, before[1] + count
    with tk.load(public("ROCm__rocmProfileData/mytrace.rpd.gz")) as trace:
        duration = (pl.col("end_ns") - pl.col("start_ns")).sum()
        kernels = (
            trace.frame("kernels").group_by(pl.col("name").cast(pl.String)).agg(duration, count=pl.len()).collect()
        )
    different = [(name, total, count) for name, total, count in kernels.rows() if totals.get(name) != (total, count)]
    assert kernels.height == 33
    # raptor leaves out two calls of the kernel with which the trace begins
    assert [count - totals[name][1] for name, _, count in different] == [2]


HEADER, *KERNELS = (CSV / "4242_kernel_trace.csv").read_text().splitlines()


@pytest.mark.parametrize(
    "end", ['"KERNEL_DISPATCH","Agent 1",1', '"KERNEL_DISPATCH","Agent 1",1,0,7,1,1,"f<a, ', "1,2"]
)
def test_a_truncated_csv_file_is_an_error(end: str, tmp_path: Path) -> None:
    path = tmp_path / "1_kernel_trace.csv"
    path.write_text("\n".join([HEADER, *KERNELS[:3], end]))
    with pytest.raises(CorruptTraceError, match="the file is truncated: its last row has"):
        tk.load(path)
    path.write_text("\n".join([HEADER, *KERNELS[:3]]))
    with pytest.warns(tk.errors.TracekitWarning, match="so its last value may be truncated"):
        assert len(rows(path, "kernels", "name")) == 3


def test_a_truncated_list_of_agents_is_an_error(tmp_path: Path) -> None:
    folder = shutil.copytree(CSV, tmp_path / "csv")
    agents = folder / "4242_agent_info.csv"
    agents.write_bytes(agents.read_bytes()[:-40])
    with pytest.raises(CorruptTraceError, match="the file is truncated: its last row has"):
        tk.load(folder)


def test_members_of_nested_objects_are_not_those_of_the_object(tmp_path: Path) -> None:
    """Of two members with the same name, the one of the outer object is read."""
    document = json.loads(JSON.read_bytes())
    for tool in document["rocprofiler-sdk-tool"]:
        for record in tool["buffer_records"]["kernel_dispatch"]:
            inner = {"external": {"internal": 7, "value": {"internal": 8}}}
            record["correlation_id"] = inner | record["correlation_id"] | {"ancestor": {"internal": 9}}
    path = tmp_path / "nested_results.json"
    document["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"][0]["correlation_id"].pop("external")
    path.write_text(json.dumps(document))
    assert rows(path, "kernels", "correlation_id", "name") == rows(JSON, "kernels", "correlation_id", "name")


def test_counters_of_several_processes_and_values_that_are_no_numbers(tmp_path: Path) -> None:
    """Each process numbers its launches from 1."""
    header, *lines = (CSV / "4242_counter_collection.csv").read_text().splitlines()
    names, first = next(csv.reader([header])), next(csv.reader([lines[0]]))
    counters = [
        dict(zip(names, first, strict=True)) | {"Process_Id": process, "Counter_Value": value}
        for process, value in (("42", "5"), ("43", "nan"), ("44", "inf"), ("45", "1e400"))
    ]
    path = tmp_path / "file.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(counters)
    assert rows(path, "kernels", "process_id") == [(42,), (43,), (44,), (45,)]
    assert rows(path, "profiler_metrics", "value") == [(5.0,), (None,), (None,), (None,)]


@pytest.mark.parametrize("process", [True, -5, "42", 1 << 40])
def test_ids_of_processes_that_are_no_ids(process: object, tmp_path: Path) -> None:
    document = json.loads(JSON.read_text())
    document["rocprofiler-sdk-tool"][0]["metadata"]["pid"] = process
    path = tmp_path / "file.json"
    path.write_text(json.dumps(document))
    assert {number for (number,) in rows(path, "kernels", "process_id")} == {None}
