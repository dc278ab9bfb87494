"""What the reader gives, against a plain reading of the same file row by row."""

from __future__ import annotations

import gc
import re
import shutil
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from tests.builders.nsys_sqlite import (
    CHAINS,
    FIXTURES,
    KERNEL,
    RUNTIME,
    columns_of,
    edited,
    plain,
    stacks_of,
    untouched,
)
from tests.readers.test_nsys_by_schema import BY_SCHEMA
from tracekit import schemas
from tracekit.readers.common import columns as col
from tracekit.readers.common.sqlite import database, tables
from tracekit.readers.nsys.mapping import SOURCES
from tracekit.readers.nsys_sqlite.capture import ExportCapture
from tracekit.registry.source import Source
from tracekit.registry.tables import read_chunks
from tracekit.system import threads

FEATURES = FIXTURES / "nvtx_features.sqlite"


def text(column: str) -> str:
    return f"(SELECT value FROM StringIds s WHERE s.id = t.{column})"


def label(enum: str, column: str) -> str:
    return f"(SELECT label FROM ENUM_{enum} e WHERE e.id = t.{column})"


def defined(event_type: int, *keys: str) -> str:
    same = " AND ".join(f"ifnull(d.{k}, 0) = ifnull(t.{k}, 0)" for k in keys)
    return f"""(SELECT ifnull((SELECT value FROM StringIds s WHERE s.id = d.textId), d.text) FROM NVTX_EVENTS d
        WHERE d.eventType = {event_type} AND d.globalTid >> 24 = t.globalTid >> 24 AND {same}
        ORDER BY d.start LIMIT 1)"""


GPU = {
    "start_ns": "start",
    "end_ns": "end",
    "process_id": "(t.globalPid >> 24) & 16777215",
    "device_id": "deviceId",
    "context_id": "contextId",
    "green_context_id": "greenContextId",
    "stream_id": "streamId",
    "correlation_id": "correlationId",
}
CPU = {
    "start_ns": "start",
    "end_ns": "end",
    "process_id": "(t.globalTid >> 24) & 16777215",
    "thread_id": "t.globalTid & 16777215",
}
MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"
POOL = {
    "pool_release_threshold_bytes": "localMemoryPoolReleaseThreshold",
    "pool_size_bytes": "localMemoryPoolSize",
    "pool_used_bytes": "localMemoryPoolUtilizedSize",
}
EVENT = {
    **{k: v for k, v in CPU.items() if k != "end_ns"},
    "domain_id": "ifnull(t.domainId, 0)",
    "domain": defined(75, "domainId"),
    "category_id": "category",
    "category": f"CASE WHEN t.category IS NOT NULL THEN {defined(33, 'domainId', 'category')} END",
    "color": "color",
    "name": f"ifnull({text('textId')}, t.text)",
    "payload_type": """CASE WHEN t.uint64Value IS NOT NULL THEN 'uint64' WHEN t.int64Value IS NOT NULL THEN 'int64'
        WHEN t.uint32Value IS NOT NULL THEN 'uint32' WHEN t.int32Value IS NOT NULL THEN 'int32'
        WHEN t.doubleValue IS NOT NULL THEN 'double' WHEN t.floatValue IS NOT NULL THEN 'float'
        WHEN t.jsonText IS NOT NULL OR t.jsonTextId IS NOT NULL THEN 'json'
        WHEN t.binaryData IS NOT NULL THEN 'binary' END""",
    "payload_int": "coalesce(t.uint64Value, t.int64Value, t.uint32Value, t.int32Value)",
    "payload_float": "ifnull(t.doubleValue, t.floatValue)",
    "payload_text": f"coalesce({text('jsonTextId')}, t.jsonText, t.binaryData)",
}
EXPECTED: dict[str, tuple[str, dict[str, str]]] = {
    "kernels": (
        KERNEL,
        {
            "kernel_id": "rowid",
            **GPU,
            "name": text("demangledName"),
            "short_name": text("shortName"),
            "mangled_name": text("mangledName"),
            "launch_type": label("CUDA_KERNEL_LAUNCH_TYPE", "launchType"),
            **{f"{a}_{b}": f"{a}{b.upper()}" for a in ("grid", "block", "cluster") for b in "xyz"},
            **dict.fromkeys(("blocks_per_sm", "warps_per_sm", "achieved_occupancy_percent", "operation"), "NULL"),
            "registers_per_thread": "registersPerThread",
            "static_shared_memory_bytes": "staticSharedMemory",
            "dynamic_shared_memory_bytes": "dynamicSharedMemory",
            "shared_memory_executed_bytes": "sharedMemoryExecuted",
            "local_memory_per_thread_bytes": "localMemoryPerThread",
            "local_memory_total_bytes": "localMemoryTotal",
            "grid_id": "gridId",
            "graph_node_id": "graphNodeId",
            "graph_id": "graphId",
        },
    ),
    "memcpys": (
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        {
            "memcpy_id": "rowid",
            **GPU,
            "bytes": "bytes",
            "copy_kind": label("CUDA_MEMCPY_OPER", "copyKind"),
            "src_memory_kind": label("CUDA_MEM_KIND", "srcKind"),
            "dst_memory_kind": label("CUDA_MEM_KIND", "dstKind"),
            "src_device_id": "srcDeviceId",
            "src_context_id": "srcContextId",
            "dst_device_id": "dstDeviceId",
            "dst_context_id": "dstContextId",
            "migration_cause": label("CUDA_UNIF_MEM_MIGRATION", "migrationCause"),
            "graph_node_id": "graphNodeId",
            "virtual_address": "virtualAddress",
            "copy_count": "copyCount",
        },
    ),
    "memsets": (
        "CUPTI_ACTIVITY_KIND_MEMSET",
        {
            "memset_id": "rowid",
            **GPU,
            "bytes": "bytes",
            "value": "value",
            "memory_kind": label("CUDA_MEM_KIND", "memKind"),
            "graph_node_id": "graphNodeId",
        },
    ),
    "syncs": (
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        {
            "sync_id": "rowid",
            **GPU,
            "sync_type": label("CUPTI_SYNC_TYPE", "syncType"),
            "event_id": "eventId",
            "event_sync_id": "eventSyncId",
        },
    ),
    "cuda_events": (
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
        {
            "cuda_event_id": "rowid",
            "timestamp_ns": "timestamp",
            **{k: v for k, v in GPU.items() if k not in ("start_ns", "end_ns")},
            "event_id": "eventId",
            "event_sync_id": "eventSyncId",
        },
    ),
    "graph_launches": (
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        {"graph_launch_id": "rowid", **GPU, "graph_id": "graphId", "graph_exec_id": "graphExecId"},
    ),
    "api_calls": (
        RUNTIME,
        {
            "api_call_id": "rowid",
            **CPU,
            "correlation_id": "correlationId",
            "api": "CASE t.eventClass WHEN 0 THEN 'CUDA runtime' WHEN 1 THEN 'CUDA driver' END",
            "name": text("nameId"),
            "name_id": "nameId",
            "return_value": "returnValue",
            "callchain_id": "callchainId",
        },
    ),
    "osrt_calls": (
        "OSRT_API",
        {
            "osrt_call_id": "rowid",
            **CPU,
            "event_class": "eventClass",
            "name": text("nameId"),
            "name_id": "nameId",
            "return_value": "returnValue",
            "nesting_level": "nestingLevel",
            "callchain_id": "callchainId",
        },
    ),
    "nvtx_ranges": (
        "NVTX_EVENTS",
        {
            "range_id": "rowid",
            "end_ns": "end",
            "kind": "CASE WHEN t.eventType IN (59, 70) THEN 'push_pop' ELSE 'start_end' END",
            "end_thread_id": "t.endGlobalTid & 16777215",
            **EVENT,
        },
    ),
    "nvtx_marks": (
        "NVTX_EVENTS",
        {"mark_id": "rowid", "timestamp_ns": "start", **{k: v for k, v in EVENT.items() if k != "start_ns"}},
    ),
    "gpu_metrics": (
        "GPU_METRICS",
        {
            "timestamp_ns": "timestamp",
            "device_id": "t.typeId & 255",
            "metric_id": "metricId",
            "metric": """(SELECT metricName FROM TARGET_INFO_GPU_METRICS m
                WHERE m.typeId = t.typeId AND m.metricId = t.metricId)""",
            "value": "value",
        },
    ),
    "memory_events": (
        MEMORY,
        {
            "memory_event_id": "rowid",
            "timestamp_ns": "start",
            **{c: GPU[c] for c in ("process_id", "device_id", "context_id", "stream_id", "correlation_id")},
            "operation": label("CUDA_DEV_MEM_EVENT_OPER", "memoryOperationType"),
            "memory_kind": label("CUDA_MEM_KIND", "memKind"),
            "address": "address",
            "bytes": "bytes",
            "name": "name",
            "program_counter": "pc",
            "pool_address": "localMemoryPoolAddress",
            **POOL,
            "imported_pool_address": "importedMemoryPoolAddress",
            "imported_pool_process_id": "importedMemoryPoolProcessId",
        },
    ),
    "memory_pool_events": (
        "CUDA_GPU_MEMORY_POOL_EVENTS",
        {
            "memory_pool_event_id": "rowid",
            "timestamp_ns": "start",
            **{c: GPU[c] for c in ("process_id", "device_id", "correlation_id")},
            "operation": label("CUDA_MEMPOOL_OPER", "operationType"),
            "pool_type": label("CUDA_MEMPOOL_TYPE", "poolType"),
            "pool_address": "address",
            "min_kept_bytes": "minBytesToKeep",
            **POOL,
        },
    ),
    "cpu_page_faults": (
        "CUDA_UM_CPU_PAGE_FAULT_EVENTS",
        {
            "cpu_page_fault_id": "rowid",
            "timestamp_ns": "start",
            "process_id": GPU["process_id"],
            "virtual_address": "address",
            "function": text("CpuInstruction"),
            "module": text("module"),
            "source_file": text("sourceFile"),
            "source_line": "sourceLine",
            "program_counter": "originalFaultPc",
            "is_unresolved": "unresolvedFaultPc",
            "function_id": "CpuInstruction",
            "source_file_id": "sourceFile",
        },
    ),
    "gpu_page_faults": (
        "CUDA_UM_GPU_PAGE_FAULT_EVENTS",
        {
            "gpu_page_fault_id": "rowid",
            **{c: GPU[c] for c in ("start_ns", "end_ns", "process_id", "device_id")},
            "virtual_address": "address",
            "page_faults": "numberOfPageFaults",
            "access_type": label("CUDA_UNIF_MEM_ACCESS_TYPE", "faultAccessType"),
        },
    ),
    "diagnostics": (
        "DIAGNOSTIC_EVENT",
        {
            "diagnostic_id": "rowid",
            "timestamp_ns": "timestamp",
            "timestamp_type": label("DIAGNOSTIC_TIMESTAMP_SOURCE", "timestampType"),
            "process_id": GPU["process_id"],
            "source": label("DIAGNOSTIC_SOURCE_TYPE", "source"),
            "severity": label("DIAGNOSTIC_SEVERITY_LEVEL", "severity"),
            "text": "text",
        },
    ),
    "overheads": (
        "PROFILER_OVERHEAD",
        {
            "overhead_id": "rowid",
            **CPU,
            "name": text("nameId"),
            "overhead_type": "CASE t.returnValue WHEN 0 THEN 'Undefined' ELSE 'another' END",
        },
    ),
    "cuda_overheads": (
        "CUPTI_ACTIVITY_KIND_OVERHEAD",
        {
            "cuda_overhead_id": "rowid",
            **CPU,
            "correlation_id": "correlationId",
            "name": text("nameId"),
            "overhead_type": label("CUPTI_OVERHEAD_TYPE", "overheadType"),
        },
    ),
    "jit_operations": (
        "CUPTI_ACTIVITY_KIND_JIT",
        {
            "jit_operation_id": "rowid",
            **CPU,
            "device_id": "deviceId",
            "correlation_id": "correlationId",
            "name": text("nameId"),
            "entry_type": label("CUPTI_JIT_ENTRY_TYPE", "jitEntryType"),
            "operation_type": label("CUPTI_JIT_OPERATION_TYPE", "jitOperationType"),
            "operation_correlation_id": "jitOperationCorrelationId",
            "cache_bytes": "cacheSize",
            "cache_path": "cachePath",
        },
    ),
    "gpu_context_switches": (
        "GPU_CONTEXT_SWITCH_EVENTS",
        {
            "gpu_context_switch_id": "rowid",
            "timestamp_ns": "timestamp",
            "process_id": GPU["process_id"],
            "device_id": "gpuId",
            "context_id": "contextId",
            "operation": label("GPU_CTX_SWITCH", "tag"),
            "sequence_number": "seqNo",
        },
    ),
    "cuda_graph_events": (
        "CUDA_GRAPH_EVENTS",
        {
            "cuda_graph_event_id": "rowid",
            **CPU,
            "event_class": "eventClass",
            "name": text("nameId"),
            "graph_id": "graphId",
            "original_graph_id": "originalGraphId",
            "graph_exec_id": "graphExecId",
        },
    ),
    "cuda_graph_node_events": (
        "CUDA_GRAPH_NODE_EVENTS",
        {
            "cuda_graph_node_event_id": "rowid",
            **CPU,
            "event_class": "eventClass",
            "name": text("nameId"),
            "graph_node_id": "graphNodeId",
            "original_graph_node_id": "originalGraphNodeId",
        },
    ),
    "syscalls": (
        "SYSCALL",
        {
            "syscall_id": "rowid",
            **CPU,
            "event_class": "eventClass",
            "name": text("nameId"),
            "name_id": "nameId",
            "return_value": "returnValue",
        },
    ),
    "devices": (
        "TARGET_INFO_GPU",
        {
            "device_id": "id",
            "name": "name",
            "chip": "chipName",
            "cuda_device_id": "cuDevice",
            "compute_major": "computeMajor",
            "compute_minor": "computeMinor",
            "sm_count": "smCount",
            "clock_rate_hz": "clockRate",
            "memory_bytes": "totalMemory",
            "memory_bandwidth_bytes_per_s": "memoryBandwidth",
            "peak_flop_per_s": "NULL",
            "l2_cache_bytes": "l2CacheSize",
            "threads_per_warp": "threadsPerWarp",
            "max_warps_per_sm": "maxWarpsPerSm",
            "max_registers_per_sm": "maxRegistersPerSm",
            "max_shared_memory_per_sm_bytes": "maxShmemPerSm",
            "uuid": "uuid",
            "bus_location": "busLocation",
        },
    ),
    "contexts": (
        "TARGET_INFO_CUDA_CONTEXT_INFO",
        {
            "process_id": "processId",
            "context_id": "contextId",
            "device_id": "deviceId",
            "null_stream_id": "nullStreamId",
            "parent_context_id": "nullif(t.parentContextId, 0)",
            "is_green": "t.isGreenContext <> 0",
        },
    ),
    "cpu_samples": (
        "COMPOSITE_EVENTS",
        {
            "cpu_sample_id": "id",
            "timestamp_ns": "start",
            "process_id": "(t.globalTid >> 24) & 16777215",
            "thread_id": "t.globalTid & 16777215",
            "cpu": "cpu",
            "thread_state": label("SAMPLING_THREAD_STATE", "threadState"),
            "cpu_cycles": "cpuCycles",
        },
    ),
    "cpu_scheduling": (
        "SCHED_EVENTS",
        {
            "cpu_scheduling_id": "rowid",
            "timestamp_ns": "start",
            "process_id": "(t.globalTid >> 24) & 16777215",
            "thread_id": "t.globalTid & 16777215",
            "cpu": "cpu",
            "is_scheduled_in": "t.isSchedIn <> 0",
            "thread_state": label("SAMPLING_THREAD_STATE", "threadState"),
            "thread_block": label("SCHEDULING_THREAD_BLOCK", "threadBlock"),
        },
    ),
    "streams": (
        "TARGET_INFO_CUDA_STREAM",
        {
            "process_id": "processId",
            "context_id": "contextId",
            "stream_id": "streamId",
            "priority": "CASE WHEN t.priority >= 2147483648 THEN t.priority - 4294967296 ELSE t.priority END",
            "stream_type": label("CUPTI_STREAM_TYPE", "flag"),
            "name": "NULL",
        },
    ),
    "mpi_communicators": (
        "MPI_COMMUNICATORS",
        {
            "mpi_communicator_id": "rowid",
            "rank": "rank",
            "timestamp_ns": "timestamp",
            "communicator": "commHandle",
            "parent_communicator": "parentHandle",
            "local_rank": "localRank",
            "size": "size",
            "group_root": "groupRoot",
            "group_root_id": "groupRootUid",
            "members": "members",
        },
    ),
    "mpi_ranks": (
        "MPI_RANKS",
        {
            "process_id": "(t.globalTid >> 24) & 16777215",
            "thread_id": "t.globalTid & 16777215",
            "rank": "rank",
        },
    ),
    "processes": (
        "PROCESSES",
        {
            "process_id": "(t.globalPid >> 24) & 16777215",
            "name": """CASE WHEN t.name LIKE '/%' OR t.name LIKE './%'
                THEN replace(t.name, rtrim(t.name, replace(t.name, '/', '')), '')
                ELSE t.name END""",
        },
    ),
    "threads": (
        "ThreadNames",
        {
            "process_id": "(t.globalTid >> 24) & 16777215",
            "thread_id": "t.globalTid & 16777215",
            "name": text("nameId"),
            "name_id": "nameId",
            "priority": "priority",
        },
    ),
}


@dataclass(frozen=True)
class Union:
    """A declared table of the rows of several source tables, one after the other.

    ``columns`` returns an expression for each declared column, given a source table and the label of its rows.
    """

    id: str
    sources: dict[str, str]
    columns: Callable[[str, str], dict[str, str]]


def openmp_columns(source: str, kind: str) -> dict[str, str]:
    detail = {
        "sync_region_wait": "SYNC_REGION",
        "task": "TASK_FLAG",
        **dict.fromkeys(("mutex_wait", "critical_section", "mutex_released", "lock_init", "lock_destroy"), "MUTEX"),
        "workshare": "WORK",
    }.get(kind, kind.upper())
    kinded = source in {"", *(f"OPENMP_EVENT_KIND_{k}" for k in ("SYNC_REGION_WAIT", "SYNC_REGION", "TASK"))}
    kinded |= "LOCK" in source or "MUTEX" in source or source.endswith(("SECTION", "WORKSHARE", "DISPATCH"))
    return {
        "openmp_event_id": "rowid",
        **CPU,
        "kind": f"'{kind}'",
        "event_kind": label("OPENMP_EVENT_KIND", "eventKind"),
        "name": text("nameId"),
        "name_id": "nameId",
        "parallel_id": "parallelId",
        "task_id": "taskId",
        "parent_task_id": "parentTaskId",
        "new_task_id": "newTaskId",
        "prior_task_id": "priorTaskId",
        "prior_task_status": "NULL",
        "next_task_id": "nextTaskId",
        "wait_id": "waitId",
        "detail": label(f"OPENMP_{detail}", "kind") if kinded else "NULL",
        "detail_id": "kind",
        "count": "count",
        "openmp_thread_id": "threadId",
        "thread_type": "NULL",
    }


def library_columns(_: str, library: str) -> dict[str, str]:
    return {
        "library_call_id": "rowid",
        **CPU,
        "library": f"'{library}'",
        "event_class": "eventClass",
        "name": text("nameId"),
        "name_id": "nameId",
    }


def mpi_columns(source: str, kind: str) -> dict[str, str]:
    return {
        "mpi_call_id": "rowid",
        **CPU,
        "kind": f"'{kind}'",
        "name": text("textId"),
        "name_id": "textId",
        "communicator": "commHandle",
        "tag": "tag",
        "remote_rank": "remoteRank",
        "root_rank": "rootRank",
        "size_bytes": "size",
        "receive_size_bytes": "recvSize",
        "request": "requestHandle",
    }


UNIONS = {
    name: Union(schemas.table(name).names[0], dict(SOURCES[name].labels), columns)
    for name, columns in {
        "openmp_events": openmp_columns,
        "library_calls": library_columns,
        "mpi_calls": mpi_columns,
    }.items()
}
ONLY = {"nvtx_ranges": "eventType IN (59, 60, 70, 71)", "nvtx_marks": "eventType IN (34, 65)"}
STACKS = "stacks"
STACK_COLUMNS = (
    "symbol",
    "module",
    "kernel_mode",
    "thumb_code",
    "unresolved",
    "special_entry",
    "original_ip",
    "unwind_method",
    "line",
)
STREAM_NAME = """(SELECT name FROM TARGET_INFO_NVTX_CUDA_STREAM n WHERE n.processId = t.processId
    AND n.contextId = t.contextId AND n.streamId = t.streamId)"""


def expected(path: Path, name: str) -> list[dict[str, object]]:
    """The rows of a declared table, read row by row through the standard library."""
    if name in (STACKS, *CHAINS):
        return stacks_expected(path, name)
    if name in UNIONS:
        of = UNIONS[name]
        rows = [
            row for source, kind in of.sources.items() for row in selected(path, name, source, of.columns(source, kind))
        ]
        return [row | {of.id: nth} for nth, row in enumerate(rows, 1)]
    return selected(path, name, *EXPECTED[name])


def selected(path: Path, name: str, source: str, expressions: dict[str, str]) -> list[dict[str, object]]:
    """The rows of one source table."""
    have = {*columns_of(path, source), "rowid"}
    if have == {"rowid"}:
        return []
    if name == "streams" and columns_of(path, "TARGET_INFO_NVTX_CUDA_STREAM"):
        expressions = {**expressions, "name": STREAM_NAME}
    chosen = [
        e if not e.isidentifier() or e == "NULL" else f't."{e}"' if e in have else "NULL" for e in expressions.values()
    ]
    rows = plain(path, f"SELECT {', '.join(chosen)} FROM {source} t WHERE {ONLY.get(name, 1)} ORDER BY t.rowid")
    found = [dict(zip(expressions, r, strict=True)) for r in rows]
    return [row | {column: without_folders(row[column]) for column in SHORTENED.get(name, ())} for row in found]


SHORTENED = {
    "diagnostics": ("text",),
    "jit_operations": ("cache_path",),
    "cpu_page_faults": ("module", "source_file"),
    "openacc_events": ("source_file",),
}
"""The columns of text in which paths have no folders."""


def without_folders(text: object) -> object:
    """The text with the last part of each word that is a path, unless the kernel names it."""
    kept = ("/proc/", "/sys/", "/dev/")
    return text and "".join(
        word.rpartition("/")[2] if word.startswith("/") and not word.startswith(kept) else word
        for word in re.split("([ '])", str(text))
    )


def stacks_expected(path: Path, name: str) -> list[dict[str, object]]:
    """The rows of ``stacks``, or those of a table with the stack of each row."""
    stacks, of_rows = stacks_of(path)
    if name == STACKS:
        return stacks
    rows = selected(path, name, EXPECTED[name][0], {**EXPECTED[name][1], "rowid": "rowid"})
    return [row | {"stack_id": of_rows[name].get(row["rowid"])} for row in rows]


def columns_expected(name: str) -> list[str]:
    """The columns that are compared."""
    if name == STACKS:
        return ["stack_id", "parent_id", "depth", *STACK_COLUMNS]
    of_stacks = ["stack_id"] if name in CHAINS else []
    return [*(UNIONS[name].columns("", "") if name in UNIONS else EXPECTED[name][1]), *of_stacks]


@pytest.mark.parametrize("name", [*sorted(EXPECTED), *sorted(UNIONS), STACKS])
def test_every_value_is_the_one_of_the_file(capture: Path, name: str) -> None:
    want = expected(capture, name)
    with tk.load(capture) as trace:
        assert set(trace.schema(name).names) == set(columns_expected(name))
        assert trace[name].to_pylist() == [{c: r[c] for c in trace.schema(name).names} for r in want]
        assert trace.count(name) == len(want)


def test_every_table_but_the_facts_is_compared() -> None:
    elsewhere = {"python_samples", "capture_info", "counters", "performance_counters"}
    assert {*EXPECTED, *UNIONS, *BY_SCHEMA, STACKS, *elsewhere} == SOURCES.keys()
    counts = [tk.load(p).count("streams") for p in sorted(FIXTURES.glob("*.sqlite"))]
    assert sum(counts) > 500
    assert tk.load(FIXTURES / "jax_mlp.sqlite").frame("streams").collect()["name"].null_count() < 91


def test_facts_are_the_public_ones(capture: Path) -> None:
    with tk.load(capture) as trace:
        machine = {"cpu_model", "driver_version", "os", "cuda_version"}
        capture_facts = {"tool", "tool_version", "schema_version", "origin_utc_ns", "duration_ns"}
        assert set(trace.info) == capture_facts | machine
        assert trace.info["tool"] == "NVIDIA Nsight Systems"
        assert trace.info["schema_version"] == "3.20.3"
        ((origin,),) = plain(capture, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
        ((duration,),) = plain(capture, "SELECT duration FROM ANALYSIS_DETAILS")
        assert (trace.info["origin_utc_ns"], trace.info["duration_ns"]) == (str(origin), str(duration))


def test_dictionaries_hold_only_what_the_column_says(capture: Path) -> None:
    with tk.load(capture) as trace:
        for name in trace.tables:
            for field, column in zip(trace[name].schema, trace[name].columns, strict=True):
                if pa.types.is_dictionary(field.type):
                    held = [v for c in column.chunks for v in c.dictionary.to_pylist()]
                    assert held == [v for v in dict.fromkeys(column.to_pylist()) if v is not None], (name, field.name)


def test_no_environment_reaches_a_table(tmp_path: Path) -> None:
    path = edited(tmp_path, "INSERT INTO StringIds VALUES (999999, 'TOKEN=do-not-tell' || char(0) || 'HOME=/home/x')")
    with tk.load(path) as trace:
        for name in trace.tables:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, trace[name].schema) as writer:
                writer.write_table(trace[name])
            assert b"do-not-tell" not in sink.getvalue().to_pybytes(), name


def test_only_the_columns_asked_for_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []
    real = database.Database.map_column_batches

    def spy(self: database.Database, table: str, columns: list[str], *rest: object):
        asked.append((table, sorted(columns)))
        return real(self, table, columns, *rest)  # type: ignore[arg-type]

    with tk.load(FEATURES) as trace:
        monkeypatch.setattr(database.Database, "map_column_batches", spy)
        trace.table("kernels", ["start_ns", "process_id"])
        trace.frame("kernels").filter(pl.col("start_ns") > 0).select("end_ns").collect()
        assert trace.count("kernels") == 22
    assert asked == [(KERNEL, ["globalPid", "start"]), (KERNEL, ["end"])]


def test_tables_do_not_depend_on_the_size_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    with tk.load(FEATURES) as trace:
        whole = {name: trace[name] for name in trace.tables}
    monkeypatch.setattr(tables, "RUN_BYTES", 512)  # one page for each batch
    monkeypatch.setattr(database, "_RUNS_PER_BATCH", 1)
    with tk.load(FEATURES) as trace:
        assert {name for name in whole if not trace[name].equals(whole[name], check_metadata=True)} == set()


def test_loading_reads_no_table_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = database.Database.map_column_batches

    def spy(self: database.Database, table: str, *rest: object):
        asked.append(table)
        return real(self, table, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(database.Database, "map_column_batches", spy)
    tk.load(FEATURES).close()
    facts = {"META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS"}
    assert set(asked) == facts


def test_the_string_table_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = ExportCapture(Source(FEATURES))
    assert capture.strings is capture.strings
    assert capture.read_enum_labels("ENUM_CUDA_MEM_KIND") is capture.read_enum_labels("ENUM_CUDA_MEM_KIND")
    assert capture.read_machine_table("streams") is capture.read_machine_table("streams")
    capture.close()


def test_a_capture_is_let_go(tmp_path: Path) -> None:
    capture = ExportCapture(Source(FEATURES))
    read_chunks(capture, "kernels", ["name", "launch_type"])
    read_chunks(capture, "nvtx_ranges", ["domain", "category"])
    gone = weakref.ref(capture)
    del capture
    gc.collect()
    assert gone() is None


@pytest.mark.many(2)
@pytest.mark.parametrize("decoded", [True, False])
@pytest.mark.parametrize("size", [1, 8192, 1 << 15])
def test_slices_give_the_same_rows_in_order(monkeypatch: pytest.MonkeyPatch, size: int, decoded: bool) -> None:
    with tk.load(FEATURES) as trace:
        want = {name: trace[name] for name in trace.tables}
    monkeypatch.setattr(tables, "RUN_BYTES", size)
    monkeypatch.setattr(database, "LARGE_RUNS", 0 if decoded else 1 << 30)
    with tk.load(FEATURES) as trace:
        for name in trace.tables:
            assert trace[name].equals(want[name]), name
            assert trace.count(name) == want[name].num_rows


def test_connections_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RUN_BYTES", 1)
    monkeypatch.setattr(database, "LARGE_RUNS", 1 << 30)
    capture = ExportCapture(Source(FEATURES))
    for _ in range(5):
        read_chunks(capture, "api_calls", ["start_ns"])
    assert 1 <= len(capture.tables._connections.idle) <= threads.MAX_THREADS
    capture.close()
    assert capture.tables._connections.idle == []
    assert read_chunks(capture, "api_calls", ["start_ns"]).num_rows == 1109
    capture.close()


def test_reading_leaves_the_file_as_it_was(capture: Path, tmp_path: Path) -> None:
    path = tmp_path / "capture.sqlite"
    shutil.copyfile(capture, path)
    with untouched(path), tk.load(path) as trace:
        for name in trace.tables:
            assert trace[name].num_rows == trace.count(name)


@pytest.mark.parametrize(
    "name",
    ["a b.sqlite", "a#b.sqlite", "a?mode=rwc.sqlite", "50%41.sqlite", "Größe-数.sqlite", "plain", "-.db", "é\udcff"],
)
def test_any_name_of_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    shutil.copyfile(FEATURES, path)
    with untouched(path), tk.load(path) as trace:
        assert trace.count("kernels") == trace["kernels"].num_rows == 22


def test_a_link_and_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copyfile(FEATURES, tmp_path / "real.sqlite")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link.sqlite").symlink_to(tmp_path / "real.sqlite")
    monkeypatch.chdir(tmp_path / "folder")
    for path in ("link.sqlite", "../real.sqlite", "./link.sqlite"):
        with tk.load(path) as trace:
            assert trace["kernels"].num_rows == 22


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "closed" / "capture.sqlite"
    path.parent.mkdir()
    shutil.copyfile(FEATURES, path)
    path.chmod(0o444)
    path.parent.chmod(0o555)
    with untouched(path), tk.load(path) as trace:
        assert trace["kernels"].num_rows == 22
    path.parent.chmod(0o755)


OLD_GPU = "CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, deviceId INTEGER, name TEXT, busLocation TEXT)"
OLD_CUDA_GPU = """CREATE TABLE TARGET_INFO_CUDA_GPU (vmId INTEGER, name TEXT, pciBusId TEXT,
    globalMemoryBandwidth INTEGER, globalMemorySize INTEGER, l2CacheSize INTEGER, numThreadsPerWarp INTEGER,
    coreClockRate INTEGER,
    numMultiprocessors INTEGER, maxWarpsPerMultiprocessor INTEGER, computeCapabilityMajor INTEGER,
    computeCapabilityMinor INTEGER, deviceId INTEGER)"""


def test_devices_of_2020(tmp_path: Path) -> None:
    cuda = "INSERT INTO TARGET_INFO_CUDA_GPU VALUES (0, 'T4', '0000:01', 320, 15, 4, 32, 1590, 40, 32, 7, 5, 1)"
    path = edited(
        tmp_path,
        "DROP TABLE TARGET_INFO_GPU",
        OLD_GPU,
        "INSERT INTO TARGET_INFO_GPU VALUES (0, 1, 'Tesla T4', '0000:00'), (0, 2, 'other', '0000:02')",
        OLD_CUDA_GPU,
        cuda,
        cuda.replace("'T4'", "'repeated'"),
    )
    first, second = tk.load(path).devices.to_dicts()
    assert {k: v for k, v in first.items() if v is not None} == {
        "device_id": 1,
        "name": "Tesla T4",
        "cuda_device_id": 1,
        "compute_major": 7,
        "compute_minor": 5,
        "sm_count": 40,
        "clock_rate_hz": 1590,
        "memory_bytes": 15,
        "memory_bandwidth_bytes_per_s": 320,
        "l2_cache_bytes": 4,
        "threads_per_warp": 32,
        "max_warps_per_sm": 32,
        "bus_location": "0000:00",
    }
    assert (second["device_id"], second["name"], second["sm_count"]) == (2, "other", None)


def test_devices_known_from_cuda_only(tmp_path: Path) -> None:
    row = "INSERT INTO TARGET_INFO_CUDA_GPU VALUES (0, 'T4', '0000:01', 320, 15, 4, 32, 1590, 40, 32, 7, 5, 0)"
    path = edited(tmp_path, "DROP TABLE TARGET_INFO_GPU", OLD_CUDA_GPU, row)
    (device,) = tk.load(path).devices.to_dicts()
    assert (device["device_id"], device["name"], device["bus_location"]) == (0, "T4", "0000:01")


def test_contexts_known_from_their_null_streams(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        "DROP TABLE TARGET_INFO_CUDA_CONTEXT_INFO",
        "CREATE TABLE TARGET_INFO_CUDA_NULL_STREAM (streamId INTEGER, hwId INTEGER, vmId INTEGER, processId INTEGER,"
        " deviceId INTEGER, contextId INTEGER)",
        "INSERT INTO TARGET_INFO_CUDA_NULL_STREAM VALUES (7, 0, 0, 42, 3, 1)",
    )
    want = {"process_id": 42, "context_id": 1, "device_id": 3, "null_stream_id": 7}
    assert tk.load(path)["contexts"].to_pylist() == [{**want, "parent_context_id": None, "is_green": None}]


def test_an_export_without_labels_and_newer_columns_reads_alike(tmp_path: Path) -> None:
    enums = [
        n for (n,) in plain(FEATURES, "SELECT name FROM sqlite_schema WHERE name LIKE 'ENUM_%' AND type = 'table'")
    ]
    old = edited(
        tmp_path,
        *(f"DROP TABLE {n}" for n in enums),
        f"ALTER TABLE {KERNEL} DROP COLUMN greenContextId",
        f"ALTER TABLE {RUNTIME} DROP COLUMN callchainId",
        "ALTER TABLE NVTX_EVENTS DROP COLUMN binaryData",
        "ALTER TABLE NVTX_EVENTS DROP COLUMN text",
        of="nvtx_features",
    )
    with tk.load(FEATURES) as new, tk.load(old) as trace:
        for name in ("memcpys", "memsets", "syncs", "streams"):
            assert trace[name].equals(new[name]), name
        assert trace.table("kernels", ["launch_type"]).equals(new.table("kernels", ["launch_type"]))
        assert trace["kernels"]["green_context_id"].null_count == 22
        assert trace["nvtx_ranges"].num_rows == new.count("nvtx_ranges")


def test_an_export_without_meta_data(tmp_path: Path) -> None:
    facts = ("META_DATA_EXPORT", "META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_SESSION_START_TIME")
    gone = (*facts, "ANALYSIS_DETAILS", "PROCESSES")
    with tk.load(edited(tmp_path, *(f"DROP TABLE {n}" for n in gone))) as trace:
        assert trace.format == "nsys-sqlite"
        assert trace.info == {}
        assert trace.count("processes") == 0


def test_an_export_without_strings_has_no_names(tmp_path: Path) -> None:
    path = edited(tmp_path, "DROP TABLE StringIds")
    with (
        tk.load(path, "nsys-sqlite") as trace,
        pytest.warns(tk.TracekitWarning, match="52 rows of kernels refer to strings that the file lacks"),
    ):
        assert trace.table("kernels", ["name"])["name"].null_count == 52


def test_older_meta_data(tmp_path: Path) -> None:
    path = edited(tmp_path, "ALTER TABLE META_DATA_EXPORT RENAME TO EXPORT_META_DATA")
    assert tk.load(path).info["schema_version"] == "3.20.3"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/usr/bin/python3.11", "python3.11"),
        ("C:\\Users\\someone\\python.exe", "python.exe"),
        ("\\\\host\\share\\a.exe", "a.exe"),
        ("./a.out", "a.out"),
        ("~/bin/x", "x"),
        ("kworker/0:1H-kblockd", "kworker/0:1H-kblockd"),
        ("migration/22", "migration/22"),
        (None, None),
        ("", ""),
    ],
)
def test_a_process_is_named_without_its_folder(tmp_path: Path, path: str | None, name: str | None) -> None:
    value = "NULL" if path is None else f"'{path}'"
    edit = edited(tmp_path, "DELETE FROM PROCESSES", f"INSERT INTO PROCESSES VALUES (NULL, 77, {value})")
    assert tk.load(edit)["processes"].to_pylist() == [{"process_id": 77, "name": name}]


def test_domains_and_categories_belong_to_a_process(tmp_path: Path) -> None:
    def event(kind: int, process: int, start: int, text: str, category: int | None = None) -> str:
        tid = (process << 24) + 5
        number = "NULL" if category is None else category
        return (
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId, category) "
            f"VALUES ({start}, {start + 9}, {kind}, '{text}', {tid}, 3, {number})"
        )

    path = edited(
        tmp_path,
        "DELETE FROM NVTX_EVENTS",
        event(75, 1, 20, "later name"),
        event(75, 1, 10, "one"),
        event(75, 2, 10, "two"),
        event(33, 1, 10, "category of one", 4),
        event(59, 1, 30, "a", 4),
        event(59, 2, 30, "b", 4),
        event(34, 3, 30, "c"),
        "UPDATE NVTX_EVENTS SET \"end\" = NULL WHERE text = 'a'",
    )
    with tk.load(path) as trace:
        ranges = trace.table("nvtx_ranges", ["name", "domain", "category", "end_ns"]).to_pylist()
        assert ranges == [
            {"name": "a", "domain": "one", "category": "category of one", "end_ns": None},
            {"name": "b", "domain": "two", "category": None, "end_ns": 39},
        ]
        assert trace.table("nvtx_marks", ["name", "domain"]).to_pylist() == [{"name": "c", "domain": None}]


def test_numbered_rows() -> None:
    a = pa.chunked_array([pa.array([5, None, 5]), pa.array([5, 6])])
    b = pa.chunked_array([pa.array([1, 1, 1, 2, None])])
    numbers, rows = col.encode_rows(a, b)
    assert [rows[n] for n in numbers.to_pylist()] == [(5, 1), (None, 1), (5, 1), (5, 2), (6, None)]
    assert col.encode_rows(pa.chunked_array([pa.array([], pa.int64())]))[1] == []


def test_text_of_any_type() -> None:
    assert col.convert_to_strings(pa.array([1, None]))[0].to_pylist() == ["1", None]
    assert col.convert_to_strings(pa.array([b"a\0b", None, b"\xff"]))[0].to_pylist() == ["a\0b", None, "�"]
    assert col.convert_to_strings(pa.array(["�"])) == (pa.array(["�"]), 0)


def test_tables_decoded_from_their_pages_are_the_same(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tk.load(capture) as trace:
        expected = {name: trace[name] for name in trace.tables}
    monkeypatch.setattr(database, "LARGE_RUNS", 0)
    with tk.load(capture) as trace:
        assert {name: trace[name] for name in trace.tables} == expected
