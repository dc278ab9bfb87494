"""Tables, columns and labels of Nsight Systems exports, and the differences between their versions.

Readers do not check the version of a file. They use the tables and columns of this module that the file contains.
Exports have had a schema version since nsys 2021.5, which wrote 2.7.0. The newest supported schema version is that of
nsys 2026.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracekit.readers.common import cupti

if TYPE_CHECKING:
    from collections.abc import Mapping

NEWEST_SCHEMA = (3, 25)

MARKER_TABLES = ("CUPTI_ACTIVITY_KIND_RUNTIME", "META_DATA_EXPORT", "EXPORT_META_DATA", "ProcessStreams", "ThreadNames")
"""Tables by which an export is detected. Every export has a string table and at least one of these tables."""


class SourceTable(NamedTuple):
    """A source table from which a declared table about the machine is read.

    Attributes:
        table: Name of the source table.
        columns: Source columns by declared column. If there are several, the first value that is not null is used.
        schemas: Schema versions in which the table was observed.
        fill_key: Declared column by which rows are matched with rows of an earlier source table to replace the nulls of
            the earlier table. None if the table does not replace nulls.
    """

    table: str
    columns: Mapping[str, tuple[str, ...]]
    schemas: str
    fill_key: str | None = None


class AddedColumn(NamedTuple):
    """A source column that was added to exports in some schema version.

    Attributes:
        column: Names of the table and the column, joined by a dot.
        last_without: Last observed schema version without the column, or ``none`` for exports without a version.
        first_with: First observed schema version with the column.
    """

    column: str
    last_without: str
    first_with: str


METADATA = {
    "EXPORT_PRODUCT_NAME": "tool",
    "EXPORT_PRODUCT_VERSION": "tool_version",
    "EXPORT_SCHEMA_VERSION": "schema_version",
}
"""Values of the column ``name`` in ``FACT_TABLES``, and the corresponding names in ``capture_info``."""

FACT_TABLES = {"META_DATA_EXPORT": "3.4.0 on", "EXPORT_META_DATA": "2.7.0 to 3.1.7"}
"""Tables of names and values about the export, and the schema versions in which each table was observed."""

LOOKUP_TABLES = (
    *("StringIds", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV"),
    *("ANALYSIS_DETAILS", "SystemInfo", "NVTX_PAYLOAD_SCHEMAS"),
)
"""Further source tables that are read: strings, time origin, machine properties, and a table that DLProf adds."""

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
        fill_key="device_id",
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
    AddedColumn("CUDA_GPU_MEMORY_USAGE_EVENTS.importedMemoryPoolAddress", "2.9.1", "3.20.3"),
    AddedColumn("CUDA_GPU_MEMORY_USAGE_EVENTS.importedMemoryPoolProcessId", "2.9.1", "3.20.3"),
    AddedColumn("CUDA_GPU_MEMORY_USAGE_EVENTS.localMemoryPoolAddress", "2.9.1", "3.20.3"),
    AddedColumn("CUDA_GPU_MEMORY_USAGE_EVENTS.localMemoryPoolReleaseThreshold", "2.9.1", "3.20.3"),
    AddedColumn("CUDA_GPU_MEMORY_USAGE_EVENTS.localMemoryPoolSize", "2.9.1", "3.20.3"),
    AddedColumn("CUDA_GPU_MEMORY_USAGE_EVENTS.localMemoryPoolUtilizedSize", "2.9.1", "3.20.3"),
    AddedColumn("CUDA_GPU_MEMORY_USAGE_EVENTS.streamId", "2.9.1", "3.20.3"),
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
    AddedColumn("SCHED_EVENTS.threadBlock", "3.7.4", "3.13.2"),
    AddedColumn("SCHED_EVENTS.threadState", "3.7.4", "3.13.2"),
)
"""Source columns of declared columns that exports with an older schema version lack.

The columns MEMCPY.migrationCause and RUNTIME.callchainId are not listed, because nsys 2020.5 added them without a
schema version.
"""

_ORDERED_LABELS: dict[str, tuple[str, ...]] = {
    "ENUM_CUDA_DEV_MEM_EVENT_OPER": cupti.MEMORY_OPERATIONS,
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": cupti.LAUNCH_TYPES,
    "ENUM_CUDA_MEMCPY_OPER": cupti.COPY_KINDS,
    "ENUM_CUDA_MEM_KIND": cupti.MEMORY_KINDS,
    "ENUM_CUDA_MEMPOOL_OPER": ("Invalid", "Created", "Destroyed", "Trimmed"),
    "ENUM_CUDA_MEMPOOL_TYPE": ("Invalid", "Local", "Imported"),
    "ENUM_CUDA_UNIF_MEM_ACCESS_TYPE": cupti.MEMORY_ACCESS_TYPES,
    "ENUM_CUDA_UNIF_MEM_MIGRATION": cupti.MIGRATION_CAUSES,
    "ENUM_CUPTI_JIT_ENTRY_TYPE": ("Invalid", "PTX to cubin", "NVVM IR to PTX"),
    "ENUM_CUPTI_JIT_OPERATION_TYPE": ("Invalid", "Cache load", "Cache store", "Compile"),
    "ENUM_CUPTI_OVERHEAD_TYPE": cupti.OVERHEAD_TYPES,
    "ENUM_CUPTI_STREAM_TYPE": cupti.STREAM_TYPES,
    "ENUM_SAMPLING_THREAD_STATE": (
        *("Unknown", "Running", "Interruptible", "Uninterruptible", "Stopped", "Terminated"),
        *("Unscheduled", "Waiting", "OS runtime", "Initialized", "Transition"),
    ),
    "ENUM_SCHEDULING_THREAD_BLOCK": (
        *("NonBlocked", "Unknown", "SigSuspend", "Stopped", "Nanosleep", "Intr", "Mutex", "CondVar", "Sem", "Join"),
        *("SigWaitInfo", "WaitCtx", "Send", "Receive", "Reply", "Stack", "WaitThread", "WaitPage", "NetSend"),
        *("NetReply", "FreePage", "PageIn", "PoolAllocation", "DelayExecution", "Suspended", "UserRequest"),
        *("EventPair", "Queue", "LPCReceive", "LPCReply", "VirtualMemory", "PageOut", "Rendezvous", "KeyedEvent"),
        *("Terminated", "ProcessInSwap", "CPURateControl", "WrCalloutStack", "Kernel", "Resource", "PushLock"),
        *("WindowsMutex", "QuantumEnd", "DispatchInt", "Preempted", "YieldExecution", "FastMutex", "GuardedMutex"),
        *("Rundown", "ReadyToRun", "AlertByThreadId", "DeferredPreempt", "PhysicalFault"),
    ),
    "ENUM_OPENACC_EVENT_KIND": cupti.OPENACC_EVENT_KINDS,
    "ENUM_OPENACC_DEVICE": cupti.OPENACC_DEVICES,
    "ENUM_CUPTI_SYNC_TYPE": cupti.SYNC_TYPES,
    "ENUM_DIAGNOSTIC_SEVERITY_LEVEL": ("Unknown", "Info", "Warning", "Error", "Verbose"),
    "ENUM_DIAGNOSTIC_SOURCE_TYPE": ("Unknown source", "Injection", "Daemon", "Analysis"),
    "ENUM_DIAGNOSTIC_TIMESTAMP_SOURCE": ("Unknown timestamp", "Target timestamp", "Host timestamp"),
}
_CONTEXT_SWITCHES = (
    *("Unknown", "SO", "Request by host", "Front-end ACK", "Front-end ACK WFI", "Front-end ACK GFXP"),
    *("Front-end ACK CTAP", "Front-end ACK CILP", "Save end", "Restore start", "Context start"),
    *("Invalid timestamp", "Engine reset"),
)
EVENT_CLASSES = {0: "CUDA runtime", 1: "CUDA driver", 13: "CUDA EGL driver", 26: "CUDA API", 67: "CUDA backtrace"}
_OPENACC = ("DATA", "LAUNCH", "OTHER")
_LABELLED_BY_FILES = (
    *("ENUM_OPENGL_DEBUG_SOURCE", "ENUM_OPENGL_DEBUG_TYPE", "ENUM_OPENGL_DEBUG_SEVERITY"),
    *("ENUM_VIDEO_ENGINE_TYPE", "ENUM_VIDEO_ENGINE_CODEC", "ENUM_NET_IB_CONGESTION_EVENT_TYPE"),
    "ENUM_D3D12_PAGE_PROPERTY",
)
KHR_DEBUG_TYPES = {
    52: "KhrDebugMark",
    53: "KhrDebugPushRange",
    54: "KhrDebugPopRange",
    55: "KhrDebugGpuMark",
    56: "KhrDebugGpuPushRange",
    57: "KhrDebugGpuPopRange",
    62: "KhrDebugPushPopRange",
    63: "KhrDebugGpuPushPopRange",
}
"""Labels of the event types of OpenGL debug events."""
NETWORK_CARDS = {
    4099: "ConnectX-3",
    4103: "ConnectX-3 Pro",
    4113: "Connect-IB",
    4115: "ConnectX-4",
    4117: "ConnectX-4 Lx",
    4119: "ConnectX-5",
    4121: "ConnectX-5 Ex",
    4123: "ConnectX-6",
    4125: "ConnectX-6 Dx",
    4127: "ConnectX-6 Lx",
    4129: "ConnectX-7",
    4131: "ConnectX-8",
    21108: "InfiniBridge",
    23108: "InfiniHost",
    24204: "InfiniHost III Lx HCA 1",
    25204: "InfiniHost III Lx HCA 2",
    25208: "InfiniHost III Ex (Tavor compatibility mode)",
    25218: "InfiniHost III Ex",
    25408: "ConnectX Dual Port 10Gb/s",
    25418: "ConnectX Dual Port 20Gb/s",
    25448: "ConnectX EN 10GigE PCIe 2.0 2.5GT/s",
    25458: "ConnectX EN 10GBASE-T PCIe 2.5 GT/s",
    26428: "ConnectX Dual Port 40Gb/s",
    26438: "ConnectX VPI PCIe 2.0 5GT/s",
    26448: "ConnectX EN 10GigE PCIe 2.0 5GT/s",
    26458: "ConnectX EN 10GBASE-T PCIe Gen2 5.0 GT/s",
    26468: "ConnectX EN 10GigE PCIe 2.0 5GT/s Virtualization+",
    26478: "ConnectX EN 40GigE PCIe 2.0 5GT/s",
    26488: "ConnectX VPI PCIe 2.0 5GT/s - IB DDR / 10GigE Virtualization+",
    41680: "BlueField SoC Crypto enabled",
    41681: "BlueField SoC Crypto disabled",
    41682: "BlueField integrated ConnectX-5 network controller",
    41683: "BlueField multicore SoC family VF",
    41684: "BlueField-2 SoC Crypto enabled",
    41685: "BlueField-2 SoC Crypto disabled",
    41686: "BlueField-2 integrated ConnectX-6 Dx network controller",
    41687: "BlueField-3 Lx SoC Crypto enabled",
    41688: "BlueField-3 Lx SoC Crypto disabled",
    41689: "BlueField-3 Lx integrated ConnectX-7 network controller",
    41690: "BlueField-3 SoC Crypto enabled",
    41691: "BlueField-3 SoC Crypto disabled",
    41692: "BlueField-3 integrated ConnectX-7 network controller",
    41693: "BlueField-4 SoC Crypto enabled",
    41694: "BlueField-4 SoC Crypto disabled",
    41695: "BlueField-4 integrated network controller",
}
"""Labels of network cards by their PCI device id."""
OPENMP_LABELS: dict[str, Mapping[int, str]] = {
    "ENUM_OPENMP_EVENT_KIND": dict(
        enumerate(
            (
                *("Invalid", "Thread begin", "Thread end", "Parallel begin", "Parallel End", "Sync region wait begin"),
                *(
                    "Sync region wait end",
                    "Sync region begin",
                    "Sync region end",
                    "Task begin",
                    "Task end",
                    "Master begin",
                ),
                *("Master end", "Reduction begin", "Reduction end", "Task create", "Task schedule", "Cancel"),
                *("Mutex acquire", "Mutex acquired", "Mutex released", "Lock init", "Lock destroy", "Workshare begin"),
                *(
                    "Workshare end",
                    "Dispatch",
                    "Flush",
                    "Thread",
                    "Parallel",
                    "Sync region wait",
                    "Sync region",
                    "Task",
                ),
                *("Master", "Reduction", "Mutex wait", "Critical section", "Workshare"),
            )
        )
    ),
    "ENUM_OPENMP_DISPATCH": {1: "Iteration", 2: "Section"},
    "ENUM_OPENMP_MUTEX": {
        1: "Wait for lock",
        2: "Testing lock",
        3: "Wait for nested lock",
        4: "Testing nested lock",
        5: "Wait for critical section entry",
        6: "Wait for atomic region entry",
        7: "Wait for ordered region entry",
    },
    "ENUM_OPENMP_SYNC_REGION": {
        1: "Barrier",
        2: "Implicit barrier",
        3: "Explicit barrier",
        4: "Implementation barrier",
        5: "Task wait",
        6: "Task group",
        7: "Reduction",
    },
    "ENUM_OPENMP_TASK_FLAG": {
        1: "Initial",
        2: "Implitic",
        4: "Explicit",
        8: "Target",
        1 << 27: "Undeferred",
        1 << 28: "United",
        1 << 29: "Final",
        1 << 30: "Mergeable",
        1 << 31: "Merged",
    },
    "ENUM_OPENMP_TASK_STATUS": {
        1: "Completed",
        2: "Yielded",
        3: "Cancelled",
        4: "Detached",
        5: "Early fulfilled",
        6: "Late fulfilled",
        7: "Switched Out",
    },
    "ENUM_OPENMP_THREAD": {1: "Initial", 2: "Worker", 3: "Internal", 4: "Unknown"},
    "ENUM_OPENMP_WORK": {
        1: "Loop region",
        2: "Sections region",
        3: "Single region executor",
        4: "Single region waiting",
        5: "Workshare retion",
        6: "Distribute region",
        7: "Task loop region",
    },
}
"""Labels of OpenMP enums, with the spelling of nsys."""
WDDM_LABELS: dict[str, Mapping[int, str]] = {
    "ENUM_WDDM_ENGINE_TYPE": {
        0: "Other",
        1: "3D",
        2: "Video decode",
        3: "Video encode",
        4: "Video processing",
        5: "Scene assembly",
        6: "Copy",
        7: "Overlay",
        8: "Crypto",
    },
    "ENUM_WDDM_INTERRUPT_TYPE": {
        1: "DMA complete",
        2: "DMA preempted",
        3: "Critical VSYNC",
        4: "CMA faulted",
        5: "Display-only VSYNC",
        6: "Display-only progress",
        7: "Critical VSYNC w/ overlay",
        8: "Miracast chunk complete",
        9: "DMA page faulted",
        10: "Critical VSYNC w/ overlay 2",
        11: "Monitored fence",
        12: "HW queue page fault",
        13: "HW context switch",
        14: "Periodic fence",
        15: "Scheduling log",
        16: "GPU timeout",
        17: "Suspend ctx complete",
    },
    "ENUM_WDDM_PACKET_TYPE": {
        0: "Render",
        1: "Deferred",
        2: "System",
        3: "MemMap IO Flip",
        4: "Wait",
        5: "Signal",
        6: "Device",
        7: "Software",
    },
    "ENUM_WDDM_PAGING_QUEUE_TYPE": {
        0: "UMD",
        1: "Default",
        2: "Evict",
        3: "Reclaim",
    },
    "ENUM_WDDM_VIDMM_OP_TYPE": {
        0: "None",
        101: "Restore segments",
        102: "Purge segements",
        103: "Cleanup primary",
        104: "Allocate paging buffer resources",
        105: "Free paging buffer resources",
        106: "Report VIDMM State",
        107: "Run aperture coherency test",
        108: "Run unmap to dummy page test",
        109: "Deferred command",
        110: "Suspend mem seg access",
        111: "Resume mem seg access",
        112: "Evict and flush",
        113: "Commit virt-addr range",
        114: "Uncommit virt-addrrange",
        115: "Destroy virt-addr allocator",
        116: "Page in device",
        117: "Map context allocation",
        118: "Init praging process VA space",
        200: "Close allocation",
        202: "Complex lock",
        203: "Pin allocation",
        204: "Flish pending GPU access",
        205: "Unpin allocation",
        206: "Make resident",
        207: "Evict",
        208: "Lock in aperture",
        209: "Init context allocation",
        210: "Reclaim allocation",
        211: "Discard allocation",
        212: "Set allocation priority",
        1000: "Evict sys-mem offer list",
    },
}
"""Labels of WDDM enums, with the spelling of nsys."""
_UNWIND_METHODS = (
    *("Unknown", "Frame pointer", "Unwind table", "LR frame pointer", "LR unwind table", "Kernel context"),
    *("DWARF EH", "DWARF DF", "LBR"),
)
UNWIND_METHODS = {**dict(enumerate(_UNWIND_METHODS)), 1000: "Undefined"}
LABELS: dict[str, Mapping[int, str]] = {
    **{name: dict(enumerate(listed)) for name, listed in _ORDERED_LABELS.items()},
    "ENUM_GPU_CTX_SWITCH": dict(enumerate(_CONTEXT_SWITCHES, -1)),
    "ENUM_NSYS_EVENT_CLASS": EVENT_CLASSES,
    "ENUM_NSYS_EVENT_TYPE": KHR_DEBUG_TYPES,
    "ENUM_NET_DEVICE_ID": NETWORK_CARDS,
    "ENUM_NET_VENDOR_ID": {5555: "NVIDIA / Mellanox"},
    "ENUM_NET_LINK_TYPE": {0: "Unknown NIC", 1: "Ethernet NIC", 2: "InfiniBand NIC"},
    **OPENMP_LABELS,
    **WDDM_LABELS,
    **{enum: {} for enum in _LABELLED_BY_FILES},
    "ENUM_STACK_UNWIND_METHOD": UNWIND_METHODS,
}
"""Labels of enum values in nsys 2025.3, for exports without ``ENUM_*`` tables (before schema version 3.0, nsys 2022.4).

Labels in the ``ENUM_*`` tables of an export take precedence.
"""

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
    "threadState": "ENUM_SAMPLING_THREAD_STATE",
    "threadBlock": "ENUM_SCHEDULING_THREAD_BLOCK",
    "eventKind": "ENUM_OPENMP_EVENT_KIND",
    "priorTaskStatus": "ENUM_OPENMP_TASK_STATUS",
    "threadType": "ENUM_OPENMP_THREAD",
    "OPENMP_EVENT_KIND_SYNC_REGION_WAIT.kind": "ENUM_OPENMP_SYNC_REGION",
    "OPENMP_EVENT_KIND_SYNC_REGION.kind": "ENUM_OPENMP_SYNC_REGION",
    "OPENMP_EVENT_KIND_TASK.kind": "ENUM_OPENMP_TASK_FLAG",
    "OPENMP_EVENT_KIND_MUTEX_WAIT.kind": "ENUM_OPENMP_MUTEX",
    "OPENMP_EVENT_KIND_CRITICAL_SECTION.kind": "ENUM_OPENMP_MUTEX",
    "OPENMP_EVENT_KIND_MUTEX_RELEASED.kind": "ENUM_OPENMP_MUTEX",
    "OPENMP_EVENT_KIND_LOCK_INIT.kind": "ENUM_OPENMP_MUTEX",
    "OPENMP_EVENT_KIND_LOCK_DESTROY.kind": "ENUM_OPENMP_MUTEX",
    "OPENMP_EVENT_KIND_WORKSHARE.kind": "ENUM_OPENMP_WORK",
    "OPENMP_EVENT_KIND_DISPATCH.kind": "ENUM_OPENMP_DISPATCH",
    **{f"CUPTI_ACTIVITY_KIND_OPENACC_{t}.eventKind": "ENUM_OPENACC_EVENT_KIND" for t in _OPENACC},
    **{f"CUPTI_ACTIVITY_KIND_OPENACC_{t}.DeviceType": "ENUM_OPENACC_DEVICE" for t in _OPENACC},
    **{f"{t}.eventClass": "ENUM_NSYS_EVENT_TYPE" for t in ("OPENGL_API", "OPENGL_WORKLOAD", "KHR_DEBUG_EVENTS")},
    "KHR_DEBUG_EVENTS.source": "ENUM_OPENGL_DEBUG_SOURCE",
    "KHR_DEBUG_EVENTS.khrdType": "ENUM_OPENGL_DEBUG_TYPE",
    "KHR_DEBUG_EVENTS.severity": "ENUM_OPENGL_DEBUG_SEVERITY",
    "GPU_VIDEO_ENGINE_WORKLOAD.engineType": "ENUM_VIDEO_ENGINE_TYPE",
    "codecId": "ENUM_VIDEO_ENGINE_CODEC",
    "congestionType": "ENUM_NET_IB_CONGESTION_EVENT_TYPE",
    "packetType": "ENUM_WDDM_PACKET_TYPE",
    "engineType": "ENUM_WDDM_ENGINE_TYPE",
    "interruptType": "ENUM_WDDM_INTERRUPT_TYPE",
    "vidMmOpType": "ENUM_WDDM_VIDMM_OP_TYPE",
    "pagingQueueType": "ENUM_WDDM_PAGING_QUEUE_TYPE",
    "cpuPageProperty": "ENUM_D3D12_PAGE_PROPERTY",
    "TARGET_INFO_NIC_INFO.deviceId": "ENUM_NET_DEVICE_ID",
    "TARGET_INFO_NIC_INFO.vendorId": "ENUM_NET_VENDOR_ID",
    "linkLayer": "ENUM_NET_LINK_TYPE",
    "memoryOperationType": "ENUM_CUDA_DEV_MEM_EVENT_OPER",
    "faultAccessType": "ENUM_CUDA_UNIF_MEM_ACCESS_TYPE",
    "overheadType": "ENUM_CUPTI_OVERHEAD_TYPE",
    "jitEntryType": "ENUM_CUPTI_JIT_ENTRY_TYPE",
    "jitOperationType": "ENUM_CUPTI_JIT_OPERATION_TYPE",
    "CUDA_GPU_MEMORY_POOL_EVENTS.operationType": "ENUM_CUDA_MEMPOOL_OPER",
    "CUDA_GPU_MEMORY_POOL_EVENTS.poolType": "ENUM_CUDA_MEMPOOL_TYPE",
    "DIAGNOSTIC_EVENT.timestampType": "ENUM_DIAGNOSTIC_TIMESTAMP_SOURCE",
    "DIAGNOSTIC_EVENT.source": "ENUM_DIAGNOSTIC_SOURCE_TYPE",
    "DIAGNOSTIC_EVENT.severity": "ENUM_DIAGNOSTIC_SEVERITY_LEVEL",
    "GPU_CONTEXT_SWITCH_EVENTS.tag": "ENUM_GPU_CTX_SWITCH",
    "unwindMethod": "ENUM_STACK_UNWIND_METHOD",
}
"""The enum of each source column that holds enum values, by column or by table and column."""
