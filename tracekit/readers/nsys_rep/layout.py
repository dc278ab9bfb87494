"""Map the event columns of nsys exports to fields of the messages of a report.

An event has a type and one payload. The field that holds the payload determines the kind of the event. The values of a
column are stored in a field of the payload, or in a message inside the payload. Where the field is absent, the column
contains null or the number that nsys exports in this case.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from tracekit.readers.common.protobuf import field_numbers as declared
from tracekit.readers.nsys.tables import FRAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FILE = "nsys_rep"
CALL_MARK, CALL = 47, 48
RUNTIME_CLASSES, OSRT_CLASSES = (0, 1, 13, 26, 67), (27, 31, 32)
OPENMP_CLASSES = (78,)
OPENACC_CLASSES = (48,)
WDDM_EVENT, WDDM_CLASSES = 109, (70,)
SYSTEM_CALL, GRAPH_NODE_CREATION, GRAPH_CHANGES = 147, 113, (131, 132, 133)
_MEMORY_TYPES = (80, 142)
_OPENACC_COLUMNS = (
    *("eventKind", "lineNo", "endLineNo", "funcLineNo", "funcEndLineNo", "cuDeviceId", "cuContextId", "cuStreamId"),
    *("srcFile", "funcName"),
)


def load_fields(message_name: str) -> declared.FieldNumbers:
    """Return the field numbers of a message as attributes: ``load_fields("Event").api_call`` is 108."""
    return declared.load_field_numbers(_FILE, message_name)


def find_field_path(message_name: str, path: str) -> tuple[int, ...]:
    """Return the field numbers of a field path: ``find_field_path("GpuActivity", "kernel.grid_x")`` is (101, 10)."""
    return declared.find_field_path(_FILE, message_name, path)


def convert_to_snake_case(column: str) -> str:
    """Convert the name of an export column to the snake case of field names: ``"gridX"`` becomes ``"grid_x"``."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", column).lower()


class ValueDecoding(Enum):
    """Ways to decode the values of a column."""

    INT = "integer, as signed 64 bits"
    DOUBLE = "double in 64 bits"
    FLOAT = "float in 32 bits"
    BYTES = "bytes"
    NAME = "bytes with many repeated values, dictionary-encoded"
    FRAMES = "call stack: all values of a repeated message field, dictionary-encoded"
    ROW = "number of the row, from 1"
    CHAIN = "number of the call chain: rows with the field are numbered in order"


class SourceColumn(NamedTuple):
    """The definition of one column of an event table: the field that holds its values, and how to decode them.

    Attributes:
        path: Path of the field that holds the values: the number of a payload field, or the numbers of a payload field
            and of a field nested in it.
        kind: Way in which the values are decoded.
        fallbacks: Paths of alternative fields. The first field that is present is used where the field at ``path`` is
            absent.
        default: Value of rows that have neither the field nor an alternative field, or None for null.
        since: Year and minor version of the first nsys release whose exports have the column.
        first_chain: Number of the first call chain (0 or 1), for columns of the kind ``CHAIN``.
    """

    path: tuple[int, ...]
    kind: ValueDecoding = ValueDecoding.INT
    fallbacks: tuple[tuple[int, ...], ...] = ()
    default: int | None = None
    since: tuple[int, int] = (0, 0)
    first_chain: int = 1


class EventTable(NamedTuple):
    """The definition of one source table of events: which events are its rows, and which fields are its columns.

    Attributes:
        payload: Number of the event field that holds the payload.
        columns: Definition of each column by name.
        event_types: Event types of the rows. If empty, events of all types may be rows.
        identifying_fields: Payload fields that identify rows. An event is a row only if it has at least one of them. If
            empty, the payload fields do not matter.
        event_classes: Values of the field ``CLASS`` that identify rows. An event is a row only if it has one of them.
            If empty, the class does not matter.
        nested_message: Path of a message inside the payload. An event is a row only if it has this message. If the path
            is empty, no message is needed. If it has only one field, the message must not contain the message of any
            other table. A table with a nested message also has event classes.
        event_type_column: Name of the column that contains the event type, or None.
        expected_types: Event types whose events should all have an identifying field or a sibling field. Events that
            have neither are reported as unknown.
        sibling_fields: Payload fields that identify the rows of another table with the same event types.
    """

    payload: int
    columns: Mapping[str, SourceColumn]
    event_types: tuple[int, ...] = ()
    identifying_fields: tuple[int, ...] = ()
    event_classes: tuple[int, ...] = ()
    nested_message: tuple[int, ...] = ()
    event_type_column: str | None = None
    expected_types: tuple[int, ...] = ()
    sibling_fields: tuple[int, ...] = ()


def _define_column(
    message_name: str,
    field: str,
    kind: ValueDecoding = ValueDecoding.INT,
    *,
    fallbacks: Sequence[str] = (),
    default: int | None = None,
    since: tuple[int, int] = (0, 0),
    first_chain: int = 1,
) -> SourceColumn:
    """Return the definition of a column. Fields are specified by name or by a path such as ``kernel.grid_x``."""
    fallback_paths = tuple(find_field_path(message_name, f) for f in fallbacks)
    return SourceColumn(find_field_path(message_name, field), kind, fallback_paths, default, since, first_chain)


def _define_integer_columns(message_name: str, *names: str, field_prefix: str = "") -> dict[str, SourceColumn]:
    """Return the definitions of integer columns by column name. Field names are the column names in snake case.

    The argument ``field_prefix`` is the path of the message that contains the fields, followed by a dot.
    """
    return {name: _define_column(message_name, field_prefix + convert_to_snake_case(name)) for name in names}


_EVENT, _CALL, _ACTIVITY = load_fields("Event"), load_fields("ApiCall"), load_fields("GpuActivity")
NVTX, API, GPU, PROCESS = _EVENT.nvtx, _EVENT.api_call, _EVENT.gpu_activity, _EVENT.process
CPU_SAMPLE, CPU_SWITCH = _EVENT.cpu_sample, _EVENT.cpu_switch
DIAGNOSTIC, CONTEXT_SWITCH, MEMORY_USAGE = _EVENT.diagnostic, _EVENT.context_switch, _EVENT.memory_usage
CPU_PAGE_FAULT, GPU_PAGE_FAULT, MEMORY_POOL = _EVENT.cpu_page_fault, _EVENT.gpu_page_fault, _EVENT.memory_pool_event
PERFORMANCE_COUNTER = _EVENT.performance_counter
CLASS = _CALL.event_class
ACTIVITIES = (
    *(_ACTIVITY.kernel, _ACTIVITY.memory_copy, _ACTIVITY.memory_set),
    *(_ACTIVITY.synchronization, _ACTIVITY.cuda_event, _ACTIVITY.graph_launch),
)
"""Fields of a GPU activity. Exactly one of them is present, and it determines the kind of activity."""


_CALL_COLUMNS = _define_integer_columns(
    "ApiCall", "start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue"
)
_LIBRARY_COLUMNS = _define_integer_columns("ApiCall", "start", "end", "eventClass", "globalTid", "nameId")
_ORIGIN_COLUMNS = _define_integer_columns(
    "GpuActivity", "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid"
)
_ACTIVITY_COLUMNS = {**_define_integer_columns("GpuActivity", "start", "end"), **_ORIGIN_COLUMNS}
_OPENMP_COLUMNS = {
    **_define_integer_columns("ApiCall", "start", "end", "eventClass", "globalTid", "correlationId", "nameId"),
    **_define_integer_columns("ApiCall", "eventKind", field_prefix="openmp."),
}


def _define_openmp_table(nested_message: str, *columns: str) -> EventTable:
    """Return the definition of a table of OpenMP events that have the given message inside the payload."""
    inner = _define_integer_columns("ApiCall", *columns, field_prefix=f"openmp.{nested_message}.")
    return EventTable(
        API,
        {**_OPENMP_COLUMNS, **inner},
        event_types=(CALL,),
        event_classes=OPENMP_CLASSES,
        nested_message=find_field_path("ApiCall", f"openmp.{nested_message}"),
    )


_OPENMP_TABLES = {
    "THREAD": _define_openmp_table("thread", "threadId", "threadType"),
    "PARALLEL": _define_openmp_table("parallel", "parallelId", "parentTaskId"),
    "SYNC_REGION_WAIT": _define_openmp_table("sync_region_wait", "parallelId", "taskId", "kind"),
    "SYNC_REGION": _define_openmp_table("sync_region", "parallelId", "taskId", "kind"),
    "TASK": _define_openmp_table("task", "parallelId", "taskId", "kind"),
    "MASTER": _define_openmp_table("master", "parallelId", "taskId"),
    "REDUCTION": _define_openmp_table("reduction", "parallelId", "taskId"),
    "TASK_CREATE": _define_openmp_table("task_create", "parentTaskId", "newTaskId"),
    "TASK_SCHEDULE": _define_openmp_table(
        "task_schedule", "parallelId", "priorTaskId", "priorTaskStatus", "nextTaskId"
    ),
    "CANCEL": _define_openmp_table("cancel", "taskId"),
    "MUTEX_WAIT": _define_openmp_table("mutex_wait", "kind", "waitId", "taskId"),
    "CRITICAL_SECTION": _define_openmp_table("critical_section", "kind", "waitId"),
    "MUTEX_RELEASED": _define_openmp_table("mutex_released", "kind", "waitId", "taskId"),
    "LOCK_INIT": _define_openmp_table("lock_init", "kind", "waitId"),
    "LOCK_DESTROY": _define_openmp_table("lock_destroy", "kind", "waitId"),
    "WORKSHARE": _define_openmp_table("workshare", "kind", "parallelId", "taskId", "count"),
    "DISPATCH": _define_openmp_table("dispatch", "kind", "parallelId", "taskId"),
    "FLUSH": _define_openmp_table("flush", "threadId"),
}


def _define_openacc_table(nested_message: str, names: Sequence[str] = ()) -> EventTable:
    """Return the definition of a table of OpenACC events that have the given message inside the payload.

    An empty name stands for events that have neither of the two messages.
    """
    path = ".".join(filter(None, ("openacc", nested_message)))
    return EventTable(
        API,
        {
            **_define_integer_columns("ApiCall", "start", "end", "eventClass", "globalTid", "correlationId", "nameId"),
            "DeviceType": _define_column("ApiCall", "openacc.device_type"),
            **_define_integer_columns("ApiCall", *_OPENACC_COLUMNS, field_prefix="openacc."),
            **_define_integer_columns("ApiCall", *names, field_prefix=f"{path}."),
        },
        event_types=(CALL,),
        event_classes=OPENACC_CLASSES,
        nested_message=find_field_path("ApiCall", path),
    )


_OPENACC_TABLES = {
    "DATA": _define_openacc_table("data", ("bytes", "varName")),
    "LAUNCH": _define_openacc_table("launch", ("numGangs", "numWorkers", "vectorLength", "kernelName")),
    "OTHER": _define_openacc_table(""),
}


def _define_wddm_table(nested_message: str, *columns: str) -> EventTable:
    """Return the definition of a table of WDDM events that have the given message inside the payload."""
    return EventTable(
        API,
        {
            **_define_integer_columns("ApiCall", "start", "end", "globalTid", "gpu"),
            **_define_integer_columns("ApiCall", "context", *columns, field_prefix=f"wddm.{nested_message}."),
        },
        event_types=(WDDM_EVENT,),
        event_classes=WDDM_CLASSES,
        nested_message=find_field_path("ApiCall", f"wddm.{nested_message}"),
    )


_QUEUE_PACKET = ("packetType", "submitSequence", "engineType")
_DMA_PACKET = ("packetType", "ulQueueSubmitSequence", "engineType")
_WDDM_TABLES = {
    "QUEUE_PACKET_START": _define_wddm_table(
        "queue_packet_start",
        *(*_QUEUE_PACKET, "dmaBufferSize", "dmaBuffer", "queuePacket", "progressFenceValue", "allocationListSize"),
        *("patchLocationListSize", "present", "syncObject"),
    ),
    "QUEUE_PACKET_STOP": _define_wddm_table(
        "queue_packet_stop", *_QUEUE_PACKET, "queuePacket", "preempted", "timeouted"
    ),
    "QUEUE_PACKET_INFO": _define_wddm_table("queue_packet_info", *_QUEUE_PACKET),
    "DMA_PACKET_START": _define_wddm_table(
        "dma_packet_start", *_DMA_PACKET, "queuePacketContext", "uliSubmissionId", "dmaBuffer", "quantumStatus"
    ),
    "DMA_PACKET_STOP": _define_wddm_table("dma_packet_stop", *_DMA_PACKET, "uliCompletionId", "preempted"),
    "DMA_PACKET_INFO": _define_wddm_table(
        "dma_packet_info",
        *(*_DMA_PACKET, "uliCompletionId", "faultedVirtualAddress", "faultedProcessHandle", "interruptType"),
        *("quantumStatus", "pageFaultFlags"),
    ),
}

TABLES: dict[str, EventTable] = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": EventTable(
        API,
        {**_CALL_COLUMNS, "callchainId": _define_column("ApiCall", "call_chain", ValueDecoding.CHAIN, first_chain=0)},
        event_types=(CALL,),
        event_classes=RUNTIME_CLASSES,
    ),
    "OSRT_API": EventTable(
        API,
        {
            **_CALL_COLUMNS,
            **_define_integer_columns("ApiCall", "nestingLevel"),
            "callchainId": _define_column("ApiCall", "call_chain", ValueDecoding.CHAIN, default=0),
        },
        event_types=(CALL, CALL_MARK),
        event_classes=OSRT_CLASSES,
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": EventTable(
        GPU,
        {
            **_ACTIVITY_COLUMNS,
            **_define_integer_columns(
                "GpuActivity",
                *("demangledName", "shortName", "mangledName", "launchType", "cacheConfig"),
                *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread"),
                *("staticSharedMemory", "dynamicSharedMemory", "sharedMemoryExecuted", "sharedMemoryLimitConfig"),
                *("localMemoryPerThread", "localMemoryTotal", "gridId", "graphNodeId", "graphId"),
                *("clusterX", "clusterY", "clusterZ", "clusterSchedulingPolicy"),
                *("maxPotentialClusterSize", "maxActiveClusters"),
                field_prefix="kernel.",
            ),
        },
        identifying_fields=(_ACTIVITY.kernel,),
        expected_types=(79,),
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": EventTable(
        GPU,
        {
            **_ACTIVITY_COLUMNS,
            "bytes": _define_column("GpuActivity", "memory_copy.bytes", default=0),
            "copyKind": _define_column("GpuActivity", "memory_copy.copy_kind", default=0),
            **_define_integer_columns(
                "GpuActivity",
                *("srcKind", "dstKind", "srcDeviceId", "srcContextId", "dstDeviceId", "dstContextId"),
                *("migrationCause", "graphNodeId", "virtualAddress", "copyCount"),
                field_prefix="memory_copy.",
            ),
        },
        identifying_fields=(_ACTIVITY.memory_copy,),
        expected_types=_MEMORY_TYPES,
        sibling_fields=(_ACTIVITY.memory_set,),
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": EventTable(
        GPU,
        {
            **_ACTIVITY_COLUMNS,
            "bytes": _define_column("GpuActivity", "memory_set.bytes", default=0),
            "value": _define_column("GpuActivity", "memory_set.value", default=0),
            **_define_integer_columns("GpuActivity", "graphNodeId", "memKind", field_prefix="memory_set."),
        },
        identifying_fields=(_ACTIVITY.memory_set,),
        expected_types=_MEMORY_TYPES,
        sibling_fields=(_ACTIVITY.memory_copy,),
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": EventTable(
        GPU,
        {
            **_ACTIVITY_COLUMNS,
            "syncType": _define_column(
                "GpuActivity",
                "synchronization.sync_type",
                fallbacks=("synchronization.deprecated_sync_type",),
                default=0,
            ),
            **_define_integer_columns("GpuActivity", "eventId", "eventSyncId", field_prefix="synchronization."),
        },
        identifying_fields=(_ACTIVITY.synchronization,),
        expected_types=(106,),
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": EventTable(
        GPU,
        {
            "timestamp": _define_column("GpuActivity", "start", since=(2025, 5)),
            **_ORIGIN_COLUMNS,
            **_define_integer_columns("GpuActivity", "eventId", "eventSyncId", field_prefix="cuda_event."),
        },
        identifying_fields=(_ACTIVITY.cuda_event,),
        expected_types=(127,),
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": EventTable(
        GPU,
        {
            **_ACTIVITY_COLUMNS,
            **_define_integer_columns("GpuActivity", "graphId", "graphExecId", field_prefix="graph_launch."),
        },
        identifying_fields=(_ACTIVITY.graph_launch,),
        expected_types=(130,),
    ),
    "NVTX_EVENTS": EventTable(
        NVTX,
        {
            **_define_integer_columns("NvtxEvent", "eventType", "start", "end", "rangeId", "category", "color"),
            **_define_integer_columns("NvtxEvent", "globalTid", "endGlobalTid", "textId", "domainId"),
            "text": _define_column("NvtxEvent", "text", ValueDecoding.NAME),
            **_define_integer_columns(
                "NvtxEvent",
                *("uint64Value", "int64Value", "uint32Value", "int32Value", "jsonTextId"),
                field_prefix="payload.",
            ),
            "doubleValue": _define_column("NvtxEvent", "payload.double_value", ValueDecoding.DOUBLE),
            "floatValue": _define_column("NvtxEvent", "payload.float_value", ValueDecoding.FLOAT),
            "jsonText": _define_column("NvtxEvent", "payload.json_text", ValueDecoding.BYTES),
            "binaryData": _define_column("NvtxEvent", "payload", ValueDecoding.BYTES),
        },
        event_type_column="eventType",
    ),
    "COMPOSITE_EVENTS": EventTable(
        CPU_SAMPLE,
        {
            "id": _define_column("CpuSample", "start", ValueDecoding.ROW),
            **_define_integer_columns("CpuSample", "start", "cpu", "threadState", "globalTid"),
            "cpuCycles": _define_column("CpuSample", "counter.cpu_cycles"),
        },
        event_types=(31,),
    ),
    "SCHED_EVENTS": EventTable(
        CPU_SWITCH,
        {
            **_define_integer_columns("CpuSwitch", "start", "cpu", "isSchedIn", "globalTid"),
            "threadState": _define_column("CpuSwitch", "thread_state", since=(2024, 5)),
            "threadBlock": _define_column("CpuSwitch", "thread_block", since=(2024, 5)),
        },
        event_types=(41,),
    ),
    "PROFILER_OVERHEAD": EventTable(
        API,
        {
            **_define_integer_columns("ApiCall", "start", "end", "globalTid", "nameId"),
            "overheadType": _define_column("ApiCall", "return_value"),
        },
        event_types=(CALL,),
        event_classes=(3,),
    ),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": EventTable(
        API,
        {
            **_define_integer_columns("ApiCall", "start", "end", "eventClass", "globalTid", "correlationId", "nameId"),
            "overheadType": _define_column("ApiCall", "return_value"),
        },
        event_types=(CALL,),
        event_classes=(103,),
    ),
    "CUPTI_ACTIVITY_KIND_JIT": EventTable(
        API,
        {
            **_define_integer_columns("ApiCall", "start", "end", "eventClass", "globalTid", "correlationId", "nameId"),
            "overheadType": _define_column("ApiCall", "return_value"),
            **_define_integer_columns(
                "ApiCall",
                *("jitEntryType", "jitOperationType", "deviceId", "jitOperationCorrelationId", "cacheSize"),
                field_prefix="jit_operation.",
            ),
            "cachePath": _define_column("ApiCall", "jit_operation.cache_path", ValueDecoding.NAME),
        },
        event_types=(CALL,),
        event_classes=(102,),
    ),
    "CUDNN_EVENTS": EventTable(API, _LIBRARY_COLUMNS, event_types=(CALL, CALL_MARK), event_classes=(28, 33, 34)),
    "CUBLAS_EVENTS": EventTable(API, _LIBRARY_COLUMNS, event_types=(CALL, CALL_MARK), event_classes=(29, 35, 36)),
    "SYSCALL": EventTable(
        API,
        _define_integer_columns("ApiCall", "start", "end", "eventClass", "globalTid", "nameId", "returnValue"),
        event_types=(CALL, SYSTEM_CALL),
        event_classes=(107,),
    ),
    "CUDA_GRAPH_NODE_EVENTS": EventTable(
        API,
        {
            **_LIBRARY_COLUMNS,
            **_define_integer_columns(
                "ApiCall", "graphNodeId", "originalGraphNodeId", field_prefix="graph_node_creation."
            ),
        },
        event_types=(GRAPH_NODE_CREATION,),
        identifying_fields=(_CALL.graph_node_creation,),
    ),
    "CUDA_GRAPH_EVENTS": EventTable(
        API,
        {
            **_LIBRARY_COLUMNS,
            "graphId": _define_column(
                "ApiCall",
                "graph_creation.graph_id",
                fallbacks=("graph_clone.graph_id", "graph_instantiation.graph_id"),
            ),
            "originalGraphId": _define_column("ApiCall", "graph_clone.original_graph_id"),
            "graphExecId": _define_column("ApiCall", "graph_instantiation.graph_exec_id"),
        },
        event_types=GRAPH_CHANGES,
        identifying_fields=(_CALL.graph_creation, _CALL.graph_clone, _CALL.graph_instantiation),
    ),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": EventTable(
        MEMORY_USAGE,
        {
            **_define_integer_columns(
                "MemoryUsage",
                *("start", "globalPid", "deviceId", "contextId", "address", "pc", "bytes", "memKind"),
                *("memoryOperationType", "correlationId", "streamId"),
            ),
            "name": _define_column("MemoryUsage", "name", ValueDecoding.NAME),
            "localMemoryPoolAddress": _define_column("MemoryUsage", "local_memory_pool.address"),
            "localMemoryPoolReleaseThreshold": _define_column("MemoryUsage", "local_memory_pool.release_threshold"),
            "localMemoryPoolSize": _define_column("MemoryUsage", "local_memory_pool.size"),
            "localMemoryPoolUtilizedSize": _define_column("MemoryUsage", "local_memory_pool.utilized_size"),
        },
    ),
    "CUDA_GPU_MEMORY_POOL_EVENTS": EventTable(
        MEMORY_POOL,
        {
            **_define_integer_columns(
                "MemoryPoolEvent",
                *("start", "globalPid", "deviceId", "address", "operationType", "poolType", "correlationId"),
                "minBytesToKeep",
            ),
            "localMemoryPoolReleaseThreshold": _define_column("MemoryPoolEvent", "local_memory_pool.release_threshold"),
            "localMemoryPoolSize": _define_column("MemoryPoolEvent", "local_memory_pool.size"),
            "localMemoryPoolUtilizedSize": _define_column("MemoryPoolEvent", "local_memory_pool.utilized_size"),
        },
    ),
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": EventTable(
        CPU_PAGE_FAULT,
        {
            **_define_integer_columns("CpuPageFault", "start", "globalPid", "address"),
            **_define_integer_columns(
                "CpuPageFault", "originalFaultPc", "module", "sourceFile", "sourceLine", field_prefix="instruction."
            ),
            "CpuInstruction": _define_column("CpuPageFault", "instruction.symbol"),
            "unresolvedFaultPc": _define_column("CpuPageFault", "instruction.unresolved"),
        },
    ),
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": EventTable(
        GPU_PAGE_FAULT,
        _define_integer_columns(
            "GpuPageFault",
            *("start", "end", "globalPid", "deviceId", "address", "numberOfPageFaults", "faultAccessType"),
        ),
    ),
    "PERF_EVENT_SOC_OR_CPU_RAW_EVENT": EventTable(
        PERFORMANCE_COUNTER,
        _define_integer_columns("PerformanceCounter", "start", "end", "vmId", "componentId", "eventId", "count"),
    ),
    "DIAGNOSTIC_EVENT": EventTable(
        DIAGNOSTIC,
        {
            **_define_integer_columns("Diagnostic", "timestamp", "timestampType", field_prefix="time."),
            **_define_integer_columns("Diagnostic", "source", "severity", "globalPid"),
            "text": _define_column("Diagnostic", "text", ValueDecoding.NAME),
        },
    ),
    "GPU_CONTEXT_SWITCH_EVENTS": EventTable(
        CONTEXT_SWITCH,
        _define_integer_columns(
            "ContextSwitch", "tag", "vmId", "seqNo", "contextId", "timestamp", "globalPid", "gpuId"
        ),
    ),
    "SAMPLING_CALLCHAINS": EventTable(
        CPU_SAMPLE,
        {
            "id": _define_column("CpuSample", "start", ValueDecoding.ROW),
            FRAMES: _define_column("CpuSample", "frames", ValueDecoding.FRAMES),
        },
        event_types=(31,),
    ),
    "OSRT_CALLCHAINS": EventTable(
        API,
        {
            "id": _define_column("ApiCall", "call_chain", ValueDecoding.CHAIN),
            FRAMES: _define_column("ApiCall", "call_chain", ValueDecoding.FRAMES),
        },
        event_types=(CALL, CALL_MARK),
        event_classes=OSRT_CLASSES,
    ),
    "CUDA_CALLCHAINS": EventTable(
        API,
        {
            "id": _define_column("ApiCall", "call_chain", ValueDecoding.CHAIN, first_chain=0),
            FRAMES: _define_column("ApiCall", "call_chain", ValueDecoding.FRAMES),
        },
        event_types=(CALL,),
        event_classes=RUNTIME_CLASSES,
    ),
    "PROCESSES": EventTable(
        PROCESS,
        {
            "globalPid": _define_column("Process", "global_pid"),
            "name": _define_column("Process", "name", ValueDecoding.BYTES, fallbacks=("command",)),
        },
        event_types=(27,),
        identifying_fields=(load_fields("Process").command, load_fields("Process").name),
    ),
    **{f"OPENMP_EVENT_KIND_{name}": table for name, table in _OPENMP_TABLES.items()},
    **{f"CUPTI_ACTIVITY_KIND_OPENACC_{name}": table for name, table in _OPENACC_TABLES.items()},
    **{f"WDDM_{name}_EVENTS": table for name, table in _WDDM_TABLES.items()},
}

TABLES_BY_NESTED_MESSAGE = {
    c: [name for name, t in TABLES.items() if t.nested_message and c in t.event_classes]
    for c in (*OPENMP_CLASSES, *OPENACC_CLASSES, *WDDM_CLASSES)
}
"""Names of the source tables for the calls of each event class of OpenMP, OpenACC and WDDM.

The nested message of a call determines which of the tables contains the call.
"""


def list_nested_messages(outer: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Return the paths of the messages inside a message that identify the rows of tables."""
    return {t.nested_message for t in TABLES.values() if t.nested_message[:1] == outer != t.nested_message}


CLASSES_BY_TYPE: Mapping[int, frozenset[int]] = {
    event_type: frozenset(
        event_class
        for table in TABLES.values()
        if table.payload == API and event_type in table.event_types
        for event_class in table.event_classes
    )
    for event_type in (CALL, CALL_MARK, SYSTEM_CALL, WDDM_EVENT)
}
"""Classes of the function calls that are rows of a table, by event type."""
