"""Tables of memory, page faults, diagnostics, overheads, compilations, context switches and CUDA graphs of nsys."""

from __future__ import annotations

from pathlib import Path

import pytest
import tracekit as tk
from tests.builders.nsys_rep import Parts, event, message, strings
from tests.builders.nsys_sqlite import FIXTURES, edited
from tests.secrets_of import texts
from tracekit.errors import CorruptTraceError
from tracekit.readers.nsys_rep.report import NsysReportCapture
from tracekit.registry.source import Source

PROCESS = 1 << 48 | 9 << 24
THREAD = PROCESS | 10
CALL = ((1, 5), (2, 8), (3, 6), (7, 0), (8, 0), (13, THREAD))
HOME = "/home/somebody"
COUNTS = {
    "memory_events": 40,
    "memory_pool_events": 17,
    "cuda_graph_node_events": 10,
    "cuda_events": 0,
    "diagnostics": 11,
}


def written(folder: Path, *events: bytes) -> Path:
    path = folder / "made.nsys-rep"
    path.write_bytes(Parts([b"".join(events)], [strings("first", "second", "third")]).pack())
    return path


def rows(path: Path, table: str, *columns: str) -> list[tuple[object, ...]]:
    with tk.load(path) as trace:
        found = trace.table(table, columns)
        return list(zip(*(found[c].to_pylist() for c in columns), strict=True))


def test_memory_pools_are_read_alike_from_report_and_export() -> None:
    export, report = (FIXTURES / "memory" / f"memory_pools.{form}" for form in ("sqlite", "nsys-rep"))
    with tk.load(export) as theirs, tk.load(report) as mine:
        for name, number in COUNTS.items():
            assert mine.count(name) == theirs.count(name) == number
            assert mine[name].to_pylist() == theirs[name].to_pylist()
        assert theirs.count("jit_operations") == 0
        assert mine.table("jit_operations", ["operation_type"])["operation_type"].to_pylist() == [
            *("Compile", "Cache store", "Compile", "Cache store"),
        ]
        utilized = mine.table("memory_pool_events", ["pool_used_bytes"])["pool_used_bytes"].to_pylist()
        assert (utilized[3], utilized[-2]) == (3 << 20, 9 << 20)


def test_page_faults_of_a_cpu_have_a_function(tmp_path: Path) -> None:
    frame = message((1, 1), (2, 2), (6, 1), (8, (1 << 64) - 16), (10, 77), (11, 0))
    path = written(
        tmp_path,
        event(119, 124, (1, 3), (2, PROCESS), (3, 4096), (4, frame)),
        event(119, 124, (1, 4), (2, PROCESS), (3, 8192), (4, message((1, 0), (2, 1)))),
    )
    columns = ("cpu_page_fault_id", "timestamp_ns", "process_id", "virtual_address", "function", "module")
    assert rows(path, "cpu_page_faults", *columns) == [
        (1, 3, 9, 4096, "second", "third"),
        (2, 4, 9, 8192, "first", "second"),
    ]
    more = ("source_file", "source_line", "program_counter", "is_unresolved")
    assert rows(path, "cpu_page_faults", *more) == [("first", 77, -16, 1), (None, None, None, None)]


def test_a_frame_that_is_a_number_is_damage(tmp_path: Path) -> None:
    path = written(tmp_path, event(119, 124, (1, 3), (2, PROCESS), (3, 4096), (4, 1)))
    with pytest.raises(CorruptTraceError), tk.load(path) as trace:
        trace.table("cpu_page_faults")


def test_context_switches(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        event(58, 114, (1, 8), (2, 0), (3, 0), (4, 85), (6, 20), (7, PROCESS), (8, 1)),
        event(58, 114, (1, (1 << 64) - 1), (2, 0), (3, 1), (4, 85), (6, 30), (8, 1)),
    )
    columns = ("timestamp_ns", "process_id", "device_id", "context_id", "operation", "sequence_number")
    assert rows(path, "gpu_context_switches", *columns) == [
        (20, 9, 1, 85, "Restore start", 0),
        (30, None, 1, 85, "Unknown", 1),
    ]


def test_graphs_are_created_cloned_and_instantiated(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        event(48, 108, *CALL, (6, 0)),
        event(132, 108, *CALL, (6, 95), (38, message((1, 1)))),
        event(133, 108, *CALL, (6, 96), (39, message((1, 2), (2, 1)))),
        event(131, 108, *CALL, (6, 94), (37, message((1, 2), (2, 3)))),
        event(113, 108, *CALL, (6, 77), (33, message((1, 2 << 32), (2, 1 << 32)))),
    )
    columns = ("cuda_graph_event_id", "event_class", "graph_id", "original_graph_id", "graph_exec_id")
    assert rows(path, "cuda_graph_events", *columns) == [
        (1, 95, 1, None, None),
        (2, 96, 2, 1, None),
        (3, 94, 2, None, 3),
    ]
    nodes = ("cuda_graph_node_event_id", "thread_id", "name", "graph_node_id", "original_graph_node_id")
    assert rows(path, "cuda_graph_node_events", *nodes) == [(1, 10, "first", 2 << 32, 1 << 32)]


def test_pools_and_allocations_from_them(tmp_path: Path) -> None:
    pool = message((1, 4096), (2, 64), (3, 256), (4, 32))
    usage = ((3, 1), (4, 2), (5, PROCESS), (6, 8192), (7, 0), (8, 16), (9, 2), (12, 6))
    path = written(
        tmp_path,
        event(129, 129, (1, 1), (2, 1), (3, 1), (4, 5), (5, PROCESS), (6, 1), (7, 4096), (9, message((9, 256)))),
        event(117, 123, (1, 2), *usage, (10, 0), (13, pool), (15, 7)),
        event(117, 123, (1, 3), *usage, (10, 1)),
    )
    columns = ("timestamp_ns", "operation", "memory_kind", "stream_id", "pool_address", "pool_used_bytes", "name")
    assert rows(path, "memory_events", *columns) == [
        (2, "Allocation", "Device", 7, 4096, 32, None),
        (3, "Deallocation", "Device", None, None, None, None),
    ]
    columns = ("operation", "pool_type", "pool_address", "pool_size_bytes", "pool_used_bytes", "min_kept_bytes")
    assert rows(path, "memory_pool_events", *columns) == [("Created", "Local", 4096, 256, None, None)]


def test_compilations_overheads_and_system_calls_are_told_from_other_calls(tmp_path: Path) -> None:
    jit = message((1, 2), (2, 1), (3, 0), (4, 1), (5, 1 << 30), (6, f"{HOME}/.nv/ComputeCache"))
    path = written(
        tmp_path,
        event(48, 108, *CALL, (6, 0)),
        event(48, 108, *CALL, (6, 102), (40, jit)),
        event(48, 108, *CALL, (6, 3)),
        event(147, 108, *CALL, (6, 107)),
        event(48, 108, *CALL, (6, 102), (40, message((1, 1), (2, 3)))),
    )
    columns = ("jit_operation_id", "entry_type", "operation_type", "cache_bytes", "cache_path")
    assert rows(path, "jit_operations", *columns) == [
        (1, "NVVM IR to PTX", "Cache load", 1 << 30, "ComputeCache"),
        (2, "PTX to cubin", "Compile", None, None),
    ]
    assert rows(path, "overheads", "overhead_id", "start_ns", "overhead_type") == [(1, 5, "Undefined")]
    assert rows(path, "syscalls", "syscall_id", "name", "event_class", "return_value") == [(1, "first", 107, 0)]
    assert rows(path, "api_calls", "api_call_id") == [(1,)]
    assert NsysReportCapture(Source(path)).undecoded == {}


def test_calls_of_libraries_include_their_marks(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        event(48, 108, *CALL, (6, 29)),
        event(48, 108, *CALL, (6, 28)),
        event(47, 108, *CALL, (6, 33)),
        event(47, 108, *CALL, (6, 36)),
        event(48, 108, *CALL, (6, 103)),
    )
    columns = ("library_call_id", "library", "event_class", "name")
    assert rows(path, "library_calls", *columns) == [
        (1, "cuDNN", 28, "first"),
        (2, "cuDNN", 33, "first"),
        (3, "cuBLAS", 29, "first"),
        (4, "cuBLAS", 36, "first"),
    ]
    assert rows(path, "cuda_overheads", "cuda_overhead_id", "correlation_id") == [(1, 6)]
    assert NsysReportCapture(Source(path)).undecoded == {}


def test_paths_in_caches_and_messages_are_redacted(tmp_path: Path) -> None:
    said = message((1, 4), (2, 1))
    path = written(
        tmp_path,
        event(48, 108, *CALL, (6, 102), (40, message((1, 2), (2, 1), (6, f"{HOME}/.nv/ComputeCache")))),
        event(49, 110, (1, said), (2, 1), (3, 2), (4, f"cannot write {HOME}/report"), (5, PROCESS)),
    )
    shown = ("cannot write report", "Warning")
    assert rows(path, "diagnostics", "text", "severity") == [shown]
    tk.redact(path, tmp_path / "redacted.nsys-rep")
    assert b"somebody" not in b"".join(texts(tmp_path / "redacted.nsys-rep"))
    assert rows(tmp_path / "redacted.nsys-rep", "diagnostics", "severity") == [shown[1:]]
    assert b"cannot write /home/" in b"".join(texts(tmp_path / "redacted.nsys-rep"))


JIT = """CREATE TABLE CUPTI_ACTIVITY_KIND_JIT (start INTEGER NOT NULL, "end" INTEGER NOT NULL,
    eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER, overheadType INTEGER NOT NULL,
    jitEntryType INTEGER NOT NULL, jitOperationType INTEGER NOT NULL, deviceId INTEGER,
    jitOperationCorrelationId INTEGER, cacheSize INTEGER, cachePath TEXT)"""


def test_exported_compilations_and_system_calls(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        JIT,
        f"INSERT INTO CUPTI_ACTIVITY_KIND_JIT VALUES (1, 2, 102, {THREAD}, 3, 0, 2, 1, 2, 0, 4, 5, '{HOME}/cache')",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_JIT VALUES (3, 4, 102, {THREAD}, 3, NULL, 2, 9, 3, NULL, 4, NULL, NULL)",
        """CREATE TABLE SYSCALL (start INTEGER NOT NULL, "end" INTEGER NOT NULL, eventClass INTEGER NOT NULL,
        globalTid INTEGER, nameId INTEGER NOT NULL)""",
        f"INSERT INTO SYSCALL VALUES (1, 9, 107, {THREAD}, 0)",
    )
    columns = ("start_ns", "thread_id", "entry_type", "operation_type", "cache_bytes", "cache_path")
    assert rows(path, "jit_operations", *columns) == [
        (1, 10, "PTX to cubin", "Cache store", 5, "cache"),
        (3, 10, None, "Compile", None, None),
    ]
    assert rows(path, "syscalls", "syscall_id", "end_ns", "return_value") == [(1, 9, None)]
    tk.redact(path, tmp_path / "redacted.sqlite")
    assert b"somebody" not in (tmp_path / "redacted.sqlite").read_bytes()


def test_the_kind_of_an_overhead_in_both_versions_of_the_export(tmp_path: Path) -> None:
    old = rows(FIXTURES / "um.sqlite", "overheads", "overhead_type")
    assert set(old) == {("Undefined",)}
    renamed = "ALTER TABLE PROFILER_OVERHEAD RENAME COLUMN returnValue TO overheadType"
    changed = "UPDATE PROFILER_OVERHEAD SET overheadType = 4 WHERE rowid = 2"
    new = rows(edited(tmp_path, renamed, changed, of="um"), "overheads", "overhead_type")
    assert new[:3] == [("Undefined",), ("Instrumentation (Profiler)",), ("Undefined",)]


def test_migrations_have_their_cause_and_address() -> None:
    for form in ("nsys-rep", "sqlite"):
        found = rows(FIXTURES / f"um.{form}", "memcpys", "migration_cause", "virtual_address", "copy_kind")
        causes = {cause for cause, address, _ in found if address is not None}
        assert causes == {"Page fault", "Speculative prefecth"}
