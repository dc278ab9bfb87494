"""Tables, columns and labels of Nsight Systems exports, and the differences between their versions.

Readers do not check versions. They ask for the tables and columns listed here and use those that a file has. Exports
have a schema version since nsys 2021.5 (2.7.0). The newest supported schema is that of nsys 2026.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

NEWEST_SCHEMA = (3, 25)

MARKER_TABLES = ("CUPTI_ACTIVITY_KIND_RUNTIME", "META_DATA_EXPORT", "EXPORT_META_DATA", "ProcessStreams", "ThreadNames")
"""Tables that identify an export. Every export has at least one of them in addition to its string table."""


class SourceTable(NamedTuple):
    """A source table that provides rows or values for a declared table about the machine.

    Attributes:
        table: Name of the source table.
        columns: Source columns of each declared column, of which the first value that is not null is used.
        schemas: Schema versions in which the table was observed.
        completes: Declared column that identifies the rows in which the table fills nulls. It is None if the table
            provides rows itself.
    """

    table: str
    columns: Mapping[str, tuple[str, ...]]
    schemas: str
    completes: str | None = None


class AddedColumn(NamedTuple):
    """A source column that an export schema added: the last version without the column and the first one with it.

    The version ``none`` is an export before schema 2.7.0.
    """

    column: str
    last_without: str
    first_with: str


FACTS = {
    "EXPORT_PRODUCT_NAME": "tool",
    "EXPORT_PRODUCT_VERSION": "tool_version",
    "EXPORT_SCHEMA_VERSION": "schema_version",
}
"""Names of facts in exports, and the declared name of each fact."""

FACT_TABLES = {"META_DATA_EXPORT": "3.4.0 on", "EXPORT_META_DATA": "2.7.0 to 3.1.7"}
"""Tables of facts, and the schema versions in which each table was observed."""

LOOKUP_TABLES = (
    *("StringIds", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV"),
    *("ANALYSIS_DETAILS", "SystemInfo"),
)
"""Further tables that are read: strings, times, properties of the machine, and facts that DLProf added."""

DEVICES = (
    SourceTable(
        "TARGET_INFO_GPU",
        {
            "device_id": ("id", "deviceId"),
            "name": ("name",),
            "chip": ("chipName",),
            "cuda_device_id": ("cuDevice", "deviceId"),
            "compute_major": ("computeMajor",),
            "compute_minor": ("computeMinor",),
            "sm_count": ("smCount",),
            "clock_rate_hz": ("clockRate",),
            "memory_bytes": ("totalMemory",),
            "memory_bandwidth_bytes_per_s": ("memoryBandwidth",),
            "l2_cache_bytes": ("l2CacheSize",),
            "threads_per_warp": ("threadsPerWarp",),
            "max_warps_per_sm": ("maxWarpsPerSm",),
            "max_registers_per_sm": ("maxRegistersPerSm",),
            "max_shared_memory_per_sm_bytes": ("maxShmemPerSm",),
            "uuid": ("uuid",),
            "bus_location": ("busLocation",),
        },
        "all; until 2020.5 with deviceId, name and busLocation alone",
    ),
    SourceTable(
        "TARGET_INFO_CUDA_GPU",
        {
            "device_id": ("deviceId",),
            "name": ("name",),
            "cuda_device_id": ("deviceId",),
            "compute_major": ("computeCapabilityMajor",),
            "compute_minor": ("computeCapabilityMinor",),
            "sm_count": ("numMultiprocessors",),
            "clock_rate_hz": ("coreClockRate",),
            "memory_bytes": ("globalMemorySize",),
            "memory_bandwidth_bytes_per_s": ("globalMemoryBandwidth",),
            "l2_cache_bytes": ("l2CacheSize",),
            "threads_per_warp": ("numThreadsPerWarp",),
            "max_warps_per_sm": ("maxWarpsPerMultiprocessor",),
            "max_registers_per_sm": ("maxRegistersPerMultiprocessor",),
            "max_shared_memory_per_sm_bytes": ("maxSharedMemoryPerMultiprocessor",),
            "uuid": ("uuid",),
            "bus_location": ("pciBusId",),
        },
        "none, until 2020.5",
        completes="device_id",
    ),
)

CONTEXTS = (
    SourceTable(
        "TARGET_INFO_CUDA_CONTEXT_INFO",
        {
            "process_id": ("processId",),
            "context_id": ("contextId",),
            "device_id": ("deviceId",),
            "null_stream_id": ("nullStreamId",),
            "parent_context_id": ("parentContextId",),
            "is_green": ("isGreenContext",),
        },
        "3.7.2 on",
    ),
    SourceTable(
        "TARGET_INFO_CUDA_NULL_STREAM",
        {
            "process_id": ("processId",),
            "context_id": ("contextId",),
            "device_id": ("deviceId",),
            "null_stream_id": ("streamId", "nullStreamId"),
        },
        "none to 3.6.0",
    ),
)

ADDED = (
    AddedColumn("CUPTI_ACTIVITY_KIND_CUDA_EVENT.eventSyncId", "3.16.1", "3.20.3"),
    AddedColumn("CUPTI_ACTIVITY_KIND_CUDA_EVENT.greenContextId", "3.4.0", "3.7.2"),
    AddedColumn("CUPTI_ACTIVITY_KIND_CUDA_EVENT.timestamp", "3.20.3", "3.23.3"),
    AddedColumn("CUPTI_ACTIVITY_KIND_KERNEL.clusterX", "3.20.3", "3.24.8"),
    AddedColumn("CUPTI_ACTIVITY_KIND_KERNEL.clusterY", "3.20.3", "3.24.8"),
    AddedColumn("CUPTI_ACTIVITY_KIND_KERNEL.clusterZ", "3.20.3", "3.24.8"),
    AddedColumn("CUPTI_ACTIVITY_KIND_KERNEL.graphId", "3.20.3", "3.24.8"),
    AddedColumn("CUPTI_ACTIVITY_KIND_KERNEL.greenContextId", "3.6.0", "3.13.2"),
    AddedColumn("CUPTI_ACTIVITY_KIND_KERNEL.mangledName", "none", "2.7.0"),
    AddedColumn("CUPTI_ACTIVITY_KIND_MEMCPY.copyCount", "3.17.1", "3.20.2"),
    AddedColumn("CUPTI_ACTIVITY_KIND_MEMCPY.greenContextId", "3.6.0", "3.7.2"),
    AddedColumn("CUPTI_ACTIVITY_KIND_MEMCPY.virtualAddress", "none", "2.7.0"),
    AddedColumn("CUPTI_ACTIVITY_KIND_MEMSET.greenContextId", "3.6.0", "3.16.1"),
    AddedColumn("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION.eventSyncId", "3.16.1", "3.17.1"),
    AddedColumn("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION.greenContextId", "3.6.0", "3.7.2"),
    AddedColumn("NVTX_EVENTS.binaryData", "3.6.0", "3.16.1"),
)
"""Source columns that declared columns need and that older schemas lack.

The columns MEMCPY.migrationCause and RUNTIME.callchainId are not listed, because nsys 2020.5 added them without a
schema version.
"""

MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
COPY_KINDS = (
    "Unknown",
    "Host-to-Device",
    "Device-to-Host",
    "Host-to-Array",
    "Array-to-Host",
    "Array-to-Array",
    "Array-to-Device",
    "Device-to-Array",
    "Device-to-Device",
    "Host-to-Host",
    "Peer-to-Peer",
    "Unified Host-to-Device",
    "Unified Device-to-Host",
    "Unified Device-to-Device",
)

_ORDERED_LABELS: dict[str, tuple[str, ...]] = {
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": ("Unknown", "Regular", "Coop Single Device", "Coop Multi Device"),
    "ENUM_CUDA_MEMCPY_OPER": COPY_KINDS,
    "ENUM_CUDA_MEM_KIND": MEMORY_KINDS,
    "ENUM_CUDA_UNIF_MEM_MIGRATION": (
        "Unknown",
        "User prefetch",
        "Page fault",
        "Speculative prefecth",
        "Eviction",
        "Access counters",
    ),
    "ENUM_CUPTI_STREAM_TYPE": ("Unknown stream type", "Default stream", "Non-blocking stream", "Null stream"),
    "ENUM_CUPTI_SYNC_TYPE": ("Unknown", "Event sync", "Stream wait sync", "Stream sync", "Context sync"),
}
EVENT_CLASSES = {0: "CUDA runtime", 1: "CUDA driver", 13: "CUDA EGL driver", 26: "CUDA API", 67: "CUDA backtrace"}
LABELS: dict[str, Mapping[int, str]] = {
    **{name: dict(enumerate(listed)) for name, listed in _ORDERED_LABELS.items()},
    "ENUM_NSYS_EVENT_CLASS": EVENT_CLASSES,
}
"""Enum labels of nsys 2025.3, for exports without ``ENUM_*`` tables (before schema 3.0 of nsys 2022.4).

The ``ENUM_*`` tables of an export take precedence."""

ENUM_OF_COLUMN = {
    "launchType": "ENUM_CUDA_KERNEL_LAUNCH_TYPE",
    "copyKind": "ENUM_CUDA_MEMCPY_OPER",
    "srcKind": "ENUM_CUDA_MEM_KIND",
    "dstKind": "ENUM_CUDA_MEM_KIND",
    "memKind": "ENUM_CUDA_MEM_KIND",
    "migrationCause": "ENUM_CUDA_UNIF_MEM_MIGRATION",
    "syncType": "ENUM_CUPTI_SYNC_TYPE",
    "flag": "ENUM_CUPTI_STREAM_TYPE",
    "eventClass": "ENUM_NSYS_EVENT_CLASS",
}
"""Enum that provides the labels for the values of each source column."""
