"""The tables and columns of a database of nvprof that contain the declared tables of activities.

Sources: ``cupti_activity.h``, and the schemas of databases of nvprof 9.2 to 11.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracekit.readers.common import cupti

if TYPE_CHECKING:
    from collections.abc import Mapping

TIME, STRING, SHORT_NAME, MANGLED_NAME, FILE_NAME = "time", "string", "short name", "mangled name", "file name"
THREAD, OPTIONAL, DEVICE_OF_CONTEXT, NUMBER = "thread", "optional", "device of a context", "number"
RUNTIME, DRIVER = "runtime", "driver"


class KindFilter(NamedTuple):
    """A filter that keeps the rows in which a column has one of several values."""

    column: str
    values: tuple[int, ...]


class RecordedColumn(NamedTuple):
    """The column of the database from which a declared column is computed.

    Attributes:
        name: Name of the column.
        conversion: What the values are: times, ids of strings, numbers of functions, and so on.
        labels: Labels of the values of an enum, by value.
    """

    name: str
    conversion: str = NUMBER
    labels: Mapping[int, str] | None = None


class RecordedTable(NamedTuple):
    """A table of the database that contains rows of a declared table.

    Attributes:
        name: Name of the table without its prefix.
        columns: Columns of the table, by declared column.
        constants: Values of further declared columns, which are the same in all rows.
        where: Filter applied to the rows.
    """

    name: str
    columns: Mapping[str, RecordedColumn]
    constants: Mapping[str, str] = {}
    where: KindFilter | None = None


MEMORY_KINDS = {0: cupti.MEMORY_KINDS[-1], **dict(enumerate(cupti.MEMORY_KINDS[:-1], 1))}
_LAUNCH_TYPES = dict(enumerate(cupti.LAUNCH_TYPES[1:]))
_MIGRATIONS = {1: "Unified Host-to-Device", 2: "Unified Device-to-Host", 8: "Unified Device-to-Device"}
_GPU_PAGE_FAULT = 4


def _number(**columns: str) -> dict[str, RecordedColumn]:
    return {declared: RecordedColumn(name) for declared, name in columns.items()}


_INTERVAL = {"start_ns": RecordedColumn("start", TIME), "end_ns": RecordedColumn("end", TIME)}
_ACTIVITY = {
    **_INTERVAL,
    **_number(device_id="deviceId", context_id="contextId", stream_id="streamId", correlation_id="correlationId"),
}
_OF_CONTEXT = {
    "device_id": RecordedColumn("contextId", DEVICE_OF_CONTEXT),
    **_number(context_id="contextId", correlation_id="correlationId"),
    "stream_id": RecordedColumn("streamId", OPTIONAL),
}
_KERNEL = {
    **_ACTIVITY,
    "name": RecordedColumn("name", STRING),
    "short_name": RecordedColumn("name", SHORT_NAME),
    "mangled_name": RecordedColumn("name", MANGLED_NAME),
    "launch_type": RecordedColumn("launchType", labels=_LAUNCH_TYPES),
    **_number(grid_x="gridX", grid_y="gridY", grid_z="gridZ", block_x="blockX", block_y="blockY", block_z="blockZ"),
    **_number(registers_per_thread="registersPerThread", static_shared_memory_bytes="staticSharedMemory"),
    **_number(dynamic_shared_memory_bytes="dynamicSharedMemory", shared_memory_executed_bytes="sharedMemoryExecuted"),
    **_number(local_memory_per_thread_bytes="localMemoryPerThread", local_memory_total_bytes="localMemoryTotal"),
    **_number(grid_id="gridId"),
}
_COPY = {
    **_ACTIVITY,
    **_number(bytes="bytes"),
    "copy_kind": RecordedColumn("copyKind", labels=dict(enumerate(cupti.COPY_KINDS[:11]))),
    "src_memory_kind": RecordedColumn("srcKind", labels=MEMORY_KINDS),
    "dst_memory_kind": RecordedColumn("dstKind", labels=MEMORY_KINDS),
}
_PEER_COPY = {
    **_COPY,
    **_number(src_device_id="srcDeviceId", src_context_id="srcContextId"),
    **_number(dst_device_id="dstDeviceId", dst_context_id="dstContextId"),
}
_MIGRATION = {
    **_INTERVAL,
    **_number(process_id="processId", bytes="value", virtual_address="address"),
    "copy_kind": RecordedColumn("counterKind", labels=_MIGRATIONS),
    "migration_cause": RecordedColumn("flags", labels=dict(enumerate(cupti.MIGRATION_CAUSES))),
}
_CALL = {
    **_INTERVAL,
    **_number(process_id="processId", correlation_id="correlationId", return_value="returnValue"),
    "thread_id": RecordedColumn("threadId", THREAD),
}
_OPENACC = {
    **_INTERVAL,
    **_number(process_id="cuProcessId", line="lineNo", device_id="cuDeviceId", context_id="cuContextId"),
    **_number(stream_id="cuStreamId"),
    "thread_id": RecordedColumn("cuThreadId", THREAD),
    "name": RecordedColumn("eventKind", labels=dict(enumerate(cupti.OPENACC_EVENT_KINDS))),
    "event_kind": RecordedColumn("eventKind", labels=dict(enumerate(cupti.OPENACC_EVENT_KINDS))),
    "device_type": RecordedColumn("deviceType", labels=dict(enumerate(cupti.OPENACC_DEVICES))),
    "source_file": RecordedColumn("srcFile", FILE_NAME),
    "function": RecordedColumn("funcName", STRING),
}


def _build_migrations(kind: int, device: str) -> RecordedTable:
    columns = {**_MIGRATION, "device_id": RecordedColumn(device)}
    return RecordedTable("UNIFIED_MEMORY_COUNTER", columns, where=KindFilter("counterKind", (kind,)))


TABLES: Mapping[str, tuple[RecordedTable, ...]] = {
    "kernels": tuple(RecordedTable(name, _KERNEL) for name in ("KERNEL", "CONCURRENT_KERNEL", "CDP_KERNEL")),
    "memcpys": (
        RecordedTable("MEMCPY", _COPY),
        RecordedTable("MEMCPY2", _PEER_COPY),
        _build_migrations(1, "dstId"),
        _build_migrations(2, "srcId"),
        _build_migrations(8, "dstId"),
    ),
    "memsets": (
        RecordedTable(
            "MEMSET",
            {
                **_ACTIVITY,
                **_number(bytes="bytes", value="value"),
                "memory_kind": RecordedColumn("memoryKind", labels=MEMORY_KINDS),
            },
        ),
    ),
    "syncs": (
        RecordedTable(
            "SYNCHRONIZATION",
            {
                **_INTERVAL,
                **_OF_CONTEXT,
                "sync_type": RecordedColumn("type", labels=dict(enumerate(cupti.SYNC_TYPES))),
                "event_id": RecordedColumn("cudaEventId", OPTIONAL),
            },
        ),
    ),
    "cuda_events": (RecordedTable("CUDA_EVENT", {**_OF_CONTEXT, **_number(event_id="eventId")}),),
    "gpu_page_faults": (
        RecordedTable(
            "UNIFIED_MEMORY_COUNTER",
            {
                **_INTERVAL,
                **_number(process_id="processId", device_id="srcId", virtual_address="address", page_faults="value"),
                "access_type": RecordedColumn("flags", labels=dict(enumerate(cupti.MEMORY_ACCESS_TYPES))),
            },
            where=KindFilter("counterKind", (_GPU_PAGE_FAULT,)),
        ),
    ),
    "api_calls": (
        RecordedTable("RUNTIME", {**_CALL, "name": RecordedColumn("cbid", RUNTIME)}, {"api": "CUDA runtime"}),
        RecordedTable("DRIVER", {**_CALL, "name": RecordedColumn("cbid", DRIVER)}, {"api": "CUDA driver"}),
    ),
    "openacc_events": (
        RecordedTable(
            "OPENACC_DATA",
            {**_OPENACC, **_number(bytes="bytes"), "variable": RecordedColumn("varName", STRING)},
            {"kind": "data"},
        ),
        RecordedTable(
            "OPENACC_LAUNCH",
            {
                **_OPENACC,
                **_number(gangs="numGangs", workers="numWorkers", vector_length="vectorLength"),
                "kernel": RecordedColumn("kernelName", STRING),
            },
            {"kind": "launch"},
        ),
        RecordedTable("OPENACC_OTHER", _OPENACC, {"kind": "other"}),
    ),
}
"""The tables of the database that contain the rows of each declared table of activities and calls, in row order."""

IDS = {
    "kernels": "kernel_id",
    "memcpys": "memcpy_id",
    "memsets": "memset_id",
    "syncs": "sync_id",
    "cuda_events": "cuda_event_id",
    "gpu_page_faults": "gpu_page_fault_id",
    "api_calls": "api_call_id",
    "openacc_events": "openacc_event_id",
}
"""The declared column of each table that contains the number of the row."""

DESCRIPTIONS = frozenset(
    {
        *("NAME", "DEVICE", "CONTEXT", "STREAM", "DEVICE_ATTRIBUTE", "PCIE", "NVLINK", "MODULE", "FUNCTION"),
        *("SOURCE_LOCATOR", "MARKER_DATA", "INSTRUCTION_CORRELATION", "PC_SAMPLING_RECORD_INFO"),
    }
)
"""Tables without prefix that describe objects or other events."""

DEVICE_COLUMNS = {
    "device_id": "id",
    "cuda_device_id": "id",
    "compute_major": "computeCapabilityMajor",
    "compute_minor": "computeCapabilityMinor",
    "sm_count": "numMultiprocessors",
    "clock_rate_hz": "coreClockRate",
    "memory_bytes": "globalMemorySize",
    "memory_bandwidth_bytes_per_s": "globalMemoryBandwidth",
    "l2_cache_bytes": "l2CacheSize",
    "threads_per_warp": "numThreadsPerWarp",
    "max_warps_per_sm": "maxWarpsPerMultiprocessor",
    "max_registers_per_sm": "maxRegistersPerMultiprocessor",
    "max_shared_memory_per_sm_bytes": "maxSharedMemoryPerMultiprocessor",
}
"""Columns of the table of devices, by declared column."""
DEVICE_UNITS = {"clock_rate_hz": 1000, "memory_bandwidth_bytes_per_s": 1000}
"""Factors by which values of the table of devices are multiplied: CUPTI stores them in kHz and kB/s."""
