"""Where exports of Nsight Systems differ from version to version, as data: the one place that says so.

No reader asks for a version. It asks for the tables and columns listed here and takes what it finds, so that exports
read alike. An export names its schema since nsys 2021.5 (2.7.0), the newest known one is that of 2026.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

NEWEST_SCHEMA = (3, 25)

MARKS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "META_DATA_EXPORT", "EXPORT_META_DATA", "ProcessStreams", "ThreadNames")
"""Tables one of which every export has beside its strings."""


class Origin(NamedTuple):
    """A source table of a declared table about the machine.

    Attributes:
        table: Its name.
        columns: Declared columns, each with its source columns; the first that holds a value counts.
        schemas: The schemas in which it was seen.
        completes: Declared column by which it completes the rows of the origins before it; None if it does not.
    """

    table: str
    columns: Mapping[str, tuple[str, ...]]
    schemas: str
    completes: str | None = None


class Added(NamedTuple):
    """A source column that came with some schema: the last one known without it, and the first one known with it.

    ``none`` is an export before schema 2.7.0.
    """

    column: str
    last_without: str
    first_with: str


FACTS = {
    "EXPORT_PRODUCT_NAME": "tool",
    "EXPORT_PRODUCT_VERSION": "tool_version",
    "EXPORT_SCHEMA_VERSION": "schema_version",
}
"""Names of facts in the table of facts, and as they are declared."""

FACT_TABLES = {"META_DATA_EXPORT": "3.4.0 on", "EXPORT_META_DATA": "2.7.0 to 3.1.7"}
"""Tables of facts, and the schemas in which each was seen."""

LOOKED_UP = (
    *("StringIds", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV"),
    *("ANALYSIS_DETAILS", "SystemInfo"),
)
"""Further tables in which something is looked up: texts, times, and what DLProf noted of the machine."""

DEVICES = (
    Origin(
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
    Origin(
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
    Origin(
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
    Origin(
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
    Added("CUPTI_ACTIVITY_KIND_CUDA_EVENT.eventSyncId", "3.16.1", "3.20.3"),
    Added("CUPTI_ACTIVITY_KIND_CUDA_EVENT.greenContextId", "3.4.0", "3.7.2"),
    Added("CUPTI_ACTIVITY_KIND_CUDA_EVENT.timestamp", "3.20.3", "3.23.3"),
    Added("CUPTI_ACTIVITY_KIND_KERNEL.clusterX", "3.20.3", "3.24.8"),
    Added("CUPTI_ACTIVITY_KIND_KERNEL.clusterY", "3.20.3", "3.24.8"),
    Added("CUPTI_ACTIVITY_KIND_KERNEL.clusterZ", "3.20.3", "3.24.8"),
    Added("CUPTI_ACTIVITY_KIND_KERNEL.graphId", "3.20.3", "3.24.8"),
    Added("CUPTI_ACTIVITY_KIND_KERNEL.greenContextId", "3.6.0", "3.13.2"),
    Added("CUPTI_ACTIVITY_KIND_KERNEL.mangledName", "none", "2.7.0"),
    Added("CUPTI_ACTIVITY_KIND_MEMCPY.copyCount", "3.17.1", "3.20.2"),
    Added("CUPTI_ACTIVITY_KIND_MEMCPY.greenContextId", "3.6.0", "3.7.2"),
    Added("CUPTI_ACTIVITY_KIND_MEMCPY.virtualAddress", "none", "2.7.0"),
    Added("CUPTI_ACTIVITY_KIND_MEMSET.greenContextId", "3.6.0", "3.16.1"),
    Added("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION.eventSyncId", "3.16.1", "3.17.1"),
    Added("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION.greenContextId", "3.6.0", "3.7.2"),
    Added("NVTX_EVENTS.binaryData", "3.6.0", "3.16.1"),
)
"""Source columns of declared columns that older schemas lack; without a version of its own 2020.5 brought two more,
MEMCPY.migrationCause and RUNTIME.callchainId."""

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

_IN_ORDER: dict[str, tuple[str, ...]] = {
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
    **{name: dict(enumerate(listed)) for name, listed in _IN_ORDER.items()},
    "ENUM_NSYS_EVENT_CLASS": EVENT_CLASSES,
}
"""Labels of numbers, as nsys 2025.3 writes them: exports before schema 3.0 (2022.4) have no ``ENUM_*`` tables.

A table of an export wins over these."""

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
"""The labels that a source column is resolved with."""
