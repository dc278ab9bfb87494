"""Map declared tables and columns to the source tables and columns of Nsight Systems."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

LABEL = "*"
"""Marker of a column that contains the label of the source table of each row."""


class TableSources(NamedTuple):
    """The source tables and columns of a declared table.

    Attributes:
        labels: Label of each source table, by name. The rows of several source tables are concatenated in this order.
            The label of a single source table is empty.
        columns: Source column of each declared column. ``start`` is a column of every source table, in which it may be
            missing, and ``TABLE.start`` a column of one table only. ``rowid`` is the number of the row, which is
            counted across all source tables, from 1. ``LABEL`` is the label of the source table. Columns that Nsight
            Systems does not record are omitted.
        required: Nullable columns that Nsight Systems always records. A null in one of them means that the file is
            damaged.
    """

    labels: Mapping[str, str]
    columns: Mapping[str, str]
    required: tuple[str, ...] = ()

    @property
    def is_union(self) -> bool:
        """Whether the declared table has the rows of several source tables."""
        return len(self.labels) > 1

    @property
    def first_table(self) -> str:
        """Name of the first source table."""
        return next(iter(self.labels))

    def list_tables(self) -> set[str]:
        """Return the names of all source tables that contain rows or values of the declared table."""
        return {*self.labels, *(c.partition(".")[0] for c in self.columns.values() if "." in c)}

    def find_column(self, table: str, column: str) -> str | None:
        """Return the name of the source column from which a declared column is computed.

        The result is None if the declared column is not computed from this source table.
        """
        source = self.columns.get(column, "")
        owner, _, name = source.rpartition(".")
        return name if name and (not owner or owner == table or not self.is_union) else None

    def locate_column(self, column: str) -> tuple[str, str]:
        """Return the table and the name of the source column of a declared column.

        The table is the first one if the column is read from every source table.
        """
        table, _, name = self.columns[column].rpartition(".")
        return table or self.first_table, name

    def is_column_of(self, table: str, column: str) -> bool:
        """Return whether a source table itself contains the values of a declared column."""
        source = self.columns.get(column)
        return source is not None and source.rpartition(".")[0] in ("", table)


# fmt: off
SOURCES: dict[str, TableSources] = {
    "api_calls": TableSources({"CUPTI_ACTIVITY_KIND_RUNTIME": ""}, {
        "api_call_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "correlation_id": "correlationId", "api": "eventClass", "name": "nameId",
        "name_id": "nameId", "return_value": "returnValue", "callchain_id": "callchainId",
        "stack_id": "CUDA_CALLCHAINS.id",
    }, required=("name_id",)),
    "capture_info": TableSources({"META_DATA_EXPORT": ""}, {
        "name": "name", "value": "value",
    }),
    "contexts": TableSources({"TARGET_INFO_CUDA_CONTEXT_INFO": ""}, {
        "process_id": "processId", "context_id": "contextId", "device_id": "deviceId",
        "null_stream_id": "nullStreamId", "parent_context_id": "parentContextId", "is_green": "isGreenContext",
    }),
    "counters": TableSources({"GENERIC_EVENT_DATA": ""}, {
        "counter_id": "rowid", "event_id": "genericEventId", "timestamp_ns": "GENERIC_EVENTS.timestamp",
        "process_id": "GENERIC_EVENTS.globalTid", "thread_id": "GENERIC_EVENTS.globalTid",
        "source": "GENERIC_EVENT_SOURCES.nameId", "name": "GENERIC_EVENT_TYPES.nameId",
        "field": "GENERIC_EVENT_TYPE_FIELDS.fieldNameId", "value_type": "*Val", "value_int": "intVal",
        "value_float": "doubleVal",
    }),
    "cpu_page_faults": TableSources({"CUDA_UM_CPU_PAGE_FAULT_EVENTS": ""}, {
        "cpu_page_fault_id": "rowid", "timestamp_ns": "start", "process_id": "globalPid",
        "virtual_address": "address", "function": "CpuInstruction", "module": "module", "source_file": "sourceFile",
        "source_line": "sourceLine", "program_counter": "originalFaultPc", "is_unresolved": "unresolvedFaultPc",
        "function_id": "CpuInstruction", "source_file_id": "sourceFile",
    }),
    "cpu_samples": TableSources({"COMPOSITE_EVENTS": ""}, {
        "cpu_sample_id": "id", "timestamp_ns": "start", "process_id": "globalTid", "thread_id": "globalTid",
        "cpu": "cpu", "thread_state": "threadState", "cpu_cycles": "cpuCycles", "stack_id": "SAMPLING_CALLCHAINS.id",
    }, required=("cpu_cycles",)),
    "cpu_scheduling": TableSources({"SCHED_EVENTS": ""}, {
        "cpu_scheduling_id": "rowid", "timestamp_ns": "start", "process_id": "globalTid", "thread_id": "globalTid",
        "cpu": "cpu", "is_scheduled_in": "isSchedIn", "thread_state": "threadState", "thread_block": "threadBlock",
    }),
    "cuda_events": TableSources({"CUPTI_ACTIVITY_KIND_CUDA_EVENT": ""}, {
        "cuda_event_id": "rowid", "timestamp_ns": "timestamp", "process_id": "globalPid", "device_id": "deviceId",
        "context_id": "contextId", "green_context_id": "greenContextId", "stream_id": "streamId",
        "correlation_id": "correlationId", "event_id": "eventId", "event_sync_id": "eventSyncId",
    }, required=("context_id", "stream_id", "event_id")),
    "cuda_graph_events": TableSources({"CUDA_GRAPH_EVENTS": ""}, {
        "cuda_graph_event_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "event_class": "eventClass", "name": "nameId", "graph_id": "graphId",
        "original_graph_id": "originalGraphId", "graph_exec_id": "graphExecId",
    }),
    "cuda_graph_node_events": TableSources({"CUDA_GRAPH_NODE_EVENTS": ""}, {
        "cuda_graph_node_event_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "event_class": "eventClass", "name": "nameId", "graph_node_id": "graphNodeId",
        "original_graph_node_id": "originalGraphNodeId",
    }),
    "cuda_overheads": TableSources({"CUPTI_ACTIVITY_KIND_OVERHEAD": ""}, {
        "cuda_overhead_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "correlation_id": "correlationId", "name": "nameId",
        "overhead_type": "overheadType",
    }),
    "devices": TableSources({"TARGET_INFO_GPU": ""}, {
        "device_id": "id", "name": "name", "chip": "chipName", "cuda_device_id": "cuDevice",
        "compute_major": "computeMajor", "compute_minor": "computeMinor", "sm_count": "smCount",
        "clock_rate_hz": "clockRate", "memory_bytes": "totalMemory",
        "memory_bandwidth_bytes_per_s": "memoryBandwidth", "l2_cache_bytes": "l2CacheSize",
        "threads_per_warp": "threadsPerWarp", "max_warps_per_sm": "maxWarpsPerSm",
        "max_registers_per_sm": "maxRegistersPerSm", "max_shared_memory_per_sm_bytes": "maxShmemPerSm",
        "uuid": "uuid", "bus_location": "busLocation",
    }),
    "diagnostics": TableSources({"DIAGNOSTIC_EVENT": ""}, {
        "diagnostic_id": "rowid", "timestamp_ns": "timestamp", "timestamp_type": "timestampType",
        "process_id": "globalPid", "source": "source", "severity": "severity", "text": "text",
    }),
    "dx12_memory_operations": TableSources({"DX12_MEMORY_OPERATION": ""}, {
        "dx12_memory_operation_id": "rowid", "event_id": "traceEventId", "gpu": "gpu", "heap_type": "heapType",
        "heap_flags": "heapFlags", "cpu_page_property": "cpuPageProperty", "cpu_page_property_id": "cpuPageProperty",
        "subresource_id": "subresourceId", "range_start_bytes": "rangeStart", "range_end_bytes": "rangeEnd",
        "nvapi_flags": "nvApiFlags",
    }),
    "gpu_context_switches": TableSources({"GPU_CONTEXT_SWITCH_EVENTS": ""}, {
        "gpu_context_switch_id": "rowid", "timestamp_ns": "timestamp", "process_id": "globalPid",
        "device_id": "gpuId", "context_id": "contextId", "operation": "tag", "sequence_number": "seqNo",
    }),
    "gpu_metrics": TableSources({"GPU_METRICS": ""}, {
        "timestamp_ns": "timestamp", "device_id": "typeId", "metric_id": "metricId",
        "metric": "TARGET_INFO_GPU_METRICS.metricName", "value": "value",
    }),
    "gpu_page_faults": TableSources({"CUDA_UM_GPU_PAGE_FAULT_EVENTS": ""}, {
        "gpu_page_fault_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalPid",
        "device_id": "deviceId", "virtual_address": "address", "page_faults": "numberOfPageFaults",
        "access_type": "faultAccessType",
    }),
    "graph_launches": TableSources({"CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ""}, {
        "graph_launch_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalPid",
        "device_id": "deviceId", "context_id": "contextId", "green_context_id": "greenContextId",
        "stream_id": "streamId", "correlation_id": "correlationId", "graph_id": "graphId",
        "graph_exec_id": "graphExecId",
    }, required=("context_id", "stream_id", "graph_id", "graph_exec_id")),
    "graphics_calls": TableSources({
        "OPENGL_API": "opengl", "VULKAN_API": "vulkan", "VULKAN_DEBUG_API": "vulkan_debug", "DX12_API": "dx12",
        "D3D11_PIX_DEBUG_API": "dx11_pix", "D3D12_PIX_DEBUG_API": "dx12_pix", "NVVIDEO_ENCODER_API": "video_encoder",
        "NVVIDEO_DECODER_API": "video_decoder", "NVVIDEO_JPEG_API": "jpeg",
    }, {
        "graphics_call_id": "rowid", "event_id": "id", "start_ns": "start", "end_ns": "end",
        "process_id": "globalTid", "thread_id": "globalTid", "kind": "*", "name": "nameId", "name_id": "nameId",
        "event_class": "eventClass", "event_class_id": "eventClass", "correlation_id": "correlationId",
        "end_correlation_id": "endCorrelationId", "context_id": "contextId", "short_context_id": "shortContextId",
        "frame_id": "frameId", "return_value": "OPENGL_API.returnValue", "color": "color", "text": "textId",
        "text_id": "textId", "object_name": "objectNameId",
    }),
    "graphics_workloads": TableSources({
        "OPENGL_WORKLOAD": "opengl", "VULKAN_WORKLOAD": "vulkan", "DX12_WORKLOAD": "dx12",
    }, {
        "graphics_workload_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "kind": "*", "name": "nameId", "name_id": "nameId", "event_class": "eventClass",
        "correlation_id": "correlationId", "end_correlation_id": "endCorrelationId", "context_id": "contextId",
        "short_context_id": "shortContextId", "frame_id": "frameId", "gpu": "gpu", "color": "color", "text": "textId",
        "text_id": "textId",
    }),
    "jit_operations": TableSources({"CUPTI_ACTIVITY_KIND_JIT": ""}, {
        "jit_operation_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "device_id": "deviceId", "correlation_id": "correlationId", "name": "nameId",
        "entry_type": "jitEntryType", "operation_type": "jitOperationType",
        "operation_correlation_id": "jitOperationCorrelationId", "cache_bytes": "cacheSize",
        "cache_path": "cachePath",
    }),
    "kernels": TableSources({"CUPTI_ACTIVITY_KIND_KERNEL": ""}, {
        "kernel_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalPid",
        "device_id": "deviceId", "context_id": "contextId", "green_context_id": "greenContextId",
        "stream_id": "streamId", "correlation_id": "correlationId", "name": "demangledName",
        "short_name": "shortName", "mangled_name": "mangledName", "launch_type": "launchType", "grid_x": "gridX",
        "grid_y": "gridY", "grid_z": "gridZ", "block_x": "blockX", "block_y": "blockY", "block_z": "blockZ",
        "registers_per_thread": "registersPerThread", "static_shared_memory_bytes": "staticSharedMemory",
        "dynamic_shared_memory_bytes": "dynamicSharedMemory", "shared_memory_executed_bytes": "sharedMemoryExecuted",
        "local_memory_per_thread_bytes": "localMemoryPerThread", "local_memory_total_bytes": "localMemoryTotal",
        "grid_id": "gridId", "graph_node_id": "graphNodeId", "graph_id": "graphId", "cluster_x": "clusterX",
        "cluster_y": "clusterY", "cluster_z": "clusterZ",
    }, required=("context_id", "stream_id")),
    "khr_debug_events": TableSources({"KHR_DEBUG_EVENTS": ""}, {
        "khr_debug_event_id": "rowid", "event_class": "eventClass", "start_ns": "start", "end_ns": "end",
        "process_id": "globalTid", "thread_id": "globalTid", "text": "textId", "text_id": "textId",
        "message_source": "source", "message_type": "khrdType", "severity": "severity", "debug_id": "id",
        "correlation_id": "correlationId", "context_id": "context",
    }),
    "library_calls": TableSources({
        "CUDNN_EVENTS": "cuDNN", "CUBLAS_EVENTS": "cuBLAS",
    }, {
        "library_call_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "library": "*", "event_class": "eventClass", "name": "nameId", "name_id": "nameId",
    }, required=("event_class", "name_id")),
    "memcpys": TableSources({"CUPTI_ACTIVITY_KIND_MEMCPY": ""}, {
        "memcpy_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalPid",
        "device_id": "deviceId", "context_id": "contextId", "green_context_id": "greenContextId",
        "stream_id": "streamId", "correlation_id": "correlationId", "bytes": "bytes", "copy_kind": "copyKind",
        "src_memory_kind": "srcKind", "dst_memory_kind": "dstKind", "src_device_id": "srcDeviceId",
        "src_context_id": "srcContextId", "dst_device_id": "dstDeviceId", "dst_context_id": "dstContextId",
        "migration_cause": "migrationCause", "graph_node_id": "graphNodeId", "virtual_address": "virtualAddress",
        "copy_count": "copyCount",
    }, required=("context_id", "stream_id")),
    "memory_events": TableSources({"CUDA_GPU_MEMORY_USAGE_EVENTS": ""}, {
        "memory_event_id": "rowid", "timestamp_ns": "start", "process_id": "globalPid", "device_id": "deviceId",
        "context_id": "contextId", "stream_id": "streamId", "correlation_id": "correlationId",
        "operation": "memoryOperationType", "memory_kind": "memKind", "address": "address", "bytes": "bytes",
        "name": "name", "program_counter": "pc", "pool_address": "localMemoryPoolAddress",
        "pool_release_threshold_bytes": "localMemoryPoolReleaseThreshold", "pool_size_bytes": "localMemoryPoolSize",
        "pool_used_bytes": "localMemoryPoolUtilizedSize", "imported_pool_address": "importedMemoryPoolAddress",
        "imported_pool_process_id": "importedMemoryPoolProcessId",
    }, required=("context_id", "program_counter")),
    "memory_pool_events": TableSources({"CUDA_GPU_MEMORY_POOL_EVENTS": ""}, {
        "memory_pool_event_id": "rowid", "timestamp_ns": "start", "process_id": "globalPid", "device_id": "deviceId",
        "correlation_id": "correlationId", "operation": "operationType", "pool_type": "poolType",
        "pool_address": "address", "min_kept_bytes": "minBytesToKeep",
        "pool_release_threshold_bytes": "localMemoryPoolReleaseThreshold", "pool_size_bytes": "localMemoryPoolSize",
        "pool_used_bytes": "localMemoryPoolUtilizedSize",
    }),
    "memsets": TableSources({"CUPTI_ACTIVITY_KIND_MEMSET": ""}, {
        "memset_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalPid",
        "device_id": "deviceId", "context_id": "contextId", "green_context_id": "greenContextId",
        "stream_id": "streamId", "correlation_id": "correlationId", "bytes": "bytes", "value": "value",
        "memory_kind": "memKind", "graph_node_id": "graphNodeId",
    }, required=("context_id", "stream_id")),
    "mpi_calls": TableSources({
        "MPI_P2P_EVENTS": "p2p", "MPI_START_WAIT_EVENTS": "start-wait", "MPI_OTHER_EVENTS": "other",
        "MPI_COLLECTIVES_EVENTS": "collectives",
    }, {
        "mpi_call_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "kind": "*", "name": "textId", "name_id": "textId", "communicator": "commHandle",
        "tag": "MPI_P2P_EVENTS.tag", "remote_rank": "MPI_P2P_EVENTS.remoteRank",
        "root_rank": "MPI_COLLECTIVES_EVENTS.rootRank", "size_bytes": "size",
        "receive_size_bytes": "MPI_COLLECTIVES_EVENTS.recvSize", "request": "requestHandle",
    }),
    "mpi_communicators": TableSources({"MPI_COMMUNICATORS": ""}, {
        "mpi_communicator_id": "rowid", "rank": "rank", "timestamp_ns": "timestamp", "communicator": "commHandle",
        "parent_communicator": "parentHandle", "local_rank": "localRank", "size": "size", "group_root": "groupRoot",
        "group_root_id": "groupRootUid", "members": "members",
    }),
    "mpi_ranks": TableSources({"MPI_RANKS": ""}, {
        "process_id": "globalTid", "thread_id": "globalTid", "rank": "rank",
    }),
    "network_card_devices": TableSources({"NIC_ID_MAP": ""}, {
        "nic_id": "nicId", "network_device_id": "globalId",
    }),
    "network_cards": TableSources({"TARGET_INFO_NIC_INFO": ""}, {
        "nic_id": "nicId", "name": "name", "card_type": "deviceId", "vendor": "vendorId", "link_layer": "linkLayer",
        "guid": "GUID",
    }),
    "network_congestion_events": TableSources({"NET_IB_SWITCH_CONGESTION_EVENT": ""}, {
        "network_congestion_event_id": "rowid", "timestamp_ns": "start", "network_device_id": "globalId",
        "congestion_type": "congestionType", "source_lid": "packetSLID", "target_lid": "packetDLID",
        "service_level": "packetSL", "operation_code": "packetOpCode", "source_queue_pair": "packetSourceQP",
        "target_queue_pair": "packetDestinationQP", "ingress_port": "switchIngressPort",
        "egress_port": "switchEgressPort",
    }),
    "network_metric_names": TableSources({"TARGET_INFO_NETWORK_METRICS": ""}, {
        "metrics_list_id": "metricsListId", "metric_index": "metricsIdx", "name": "name",
        "description": "description", "metric_unit": "unit",
    }),
    "network_metrics": TableSources({
        "NET_NIC_METRIC": "nic", "NET_IB_SWITCH_METRIC": "switch",
    }, {
        "network_metric_id": "rowid", "start_ns": "start", "end_ns": "end", "kind": "*",
        "network_device_id": "globalId", "port": "portId", "metrics_list_id": "metricsListId",
        "metric_index": "metricsIdx", "value": "value",
    }),
    "nvtx_marks": TableSources({"NVTX_EVENTS": ""}, {
        "mark_id": "rowid", "timestamp_ns": "start", "process_id": "globalTid", "thread_id": "globalTid",
        "domain_id": "domainId", "domain": "textId", "category_id": "category", "category": "textId",
        "color": "color", "name": "text", "payload_type": "*Value", "payload_int": "uint64Value",
        "payload_float": "doubleValue", "payload_text": "jsonText",
    }),
    "nvtx_ranges": TableSources({"NVTX_EVENTS": ""}, {
        "range_id": "rowid", "start_ns": "start", "end_ns": "end", "kind": "eventType", "process_id": "globalTid",
        "thread_id": "globalTid", "end_thread_id": "endGlobalTid", "domain_id": "domainId", "domain": "textId",
        "category_id": "category", "category": "textId", "color": "color", "name": "text", "payload_type": "*Value",
        "payload_int": "uint64Value", "payload_float": "doubleValue", "payload_text": "jsonText",
    }),
    "openacc_events": TableSources({
        "CUPTI_ACTIVITY_KIND_OPENACC_DATA": "data", "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH": "launch",
        "CUPTI_ACTIVITY_KIND_OPENACC_OTHER": "other",
    }, {
        "openacc_event_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "kind": "*", "name": "nameId", "name_id": "nameId", "event_kind": "eventKind",
        "device_type": "DeviceType", "source_file": "srcFile", "line": "lineNo", "function": "funcName",
        "device_id": "cuDeviceId", "context_id": "cuContextId", "stream_id": "cuStreamId",
        "bytes": "CUPTI_ACTIVITY_KIND_OPENACC_DATA.bytes", "variable": "CUPTI_ACTIVITY_KIND_OPENACC_DATA.varName",
        "gangs": "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH.numGangs",
        "workers": "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH.numWorkers",
        "vector_length": "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH.vectorLength",
        "kernel": "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH.kernelName",
    }),
    "openmp_events": TableSources({
        "OPENMP_EVENT_KIND_THREAD": "thread", "OPENMP_EVENT_KIND_PARALLEL": "parallel",
        "OPENMP_EVENT_KIND_SYNC_REGION_WAIT": "sync_region_wait", "OPENMP_EVENT_KIND_SYNC_REGION": "sync_region",
        "OPENMP_EVENT_KIND_TASK": "task", "OPENMP_EVENT_KIND_MASTER": "master",
        "OPENMP_EVENT_KIND_REDUCTION": "reduction", "OPENMP_EVENT_KIND_TASK_CREATE": "task_create",
        "OPENMP_EVENT_KIND_TASK_SCHEDULE": "task_schedule", "OPENMP_EVENT_KIND_CANCEL": "cancel",
        "OPENMP_EVENT_KIND_WORKSHARE": "workshare", "OPENMP_EVENT_KIND_DISPATCH": "dispatch",
        "OPENMP_EVENT_KIND_FLUSH": "flush", "OPENMP_EVENT_KIND_MUTEX_WAIT": "mutex_wait",
        "OPENMP_EVENT_KIND_CRITICAL_SECTION": "critical_section",
        "OPENMP_EVENT_KIND_MUTEX_RELEASED": "mutex_released", "OPENMP_EVENT_KIND_LOCK_INIT": "lock_init",
        "OPENMP_EVENT_KIND_LOCK_DESTROY": "lock_destroy",
    }, {
        "openmp_event_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "kind": "*", "event_kind": "eventKind", "name": "nameId", "name_id": "nameId",
        "parallel_id": "parallelId", "task_id": "taskId", "parent_task_id": "parentTaskId",
        "new_task_id": "OPENMP_EVENT_KIND_TASK_CREATE.newTaskId",
        "prior_task_id": "OPENMP_EVENT_KIND_TASK_SCHEDULE.priorTaskId",
        "prior_task_status": "OPENMP_EVENT_KIND_TASK_SCHEDULE.priorTaskStatus",
        "next_task_id": "OPENMP_EVENT_KIND_TASK_SCHEDULE.nextTaskId", "wait_id": "waitId", "detail": "kind",
        "detail_id": "kind", "count": "OPENMP_EVENT_KIND_WORKSHARE.count", "openmp_thread_id": "threadId",
        "thread_type": "OPENMP_EVENT_KIND_THREAD.threadType",
    }),
    "osrt_calls": TableSources({"OSRT_API": ""}, {
        "osrt_call_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "event_class": "eventClass", "name": "nameId", "name_id": "nameId",
        "return_value": "returnValue", "nesting_level": "nestingLevel", "callchain_id": "callchainId",
        "stack_id": "OSRT_CALLCHAINS.id",
    }, required=("event_class", "name_id", "return_value")),
    "overheads": TableSources({"PROFILER_OVERHEAD": ""}, {
        "overhead_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "name": "nameId", "overhead_type": "overheadType",
    }),
    "performance_counters": TableSources({"PERF_EVENT_SOC_OR_CPU_RAW_EVENT": ""}, {
        "performance_counter_id": "rowid", "start_ns": "start", "end_ns": "end", "component_id": "componentId",
        "component": "TARGET_INFO_COMPONENT.name", "instance": "TARGET_INFO_COMPONENT.instance",
        "metric_id": "eventId", "metric": "TARGET_INFO_PERF_METRIC.name",
        "metric_unit": "TARGET_INFO_PERF_METRIC.unit", "count": "count",
    }),
    "processes": TableSources({"PROCESSES": ""}, {
        "process_id": "globalPid", "name": "name",
    }),
    "python_samples": TableSources({"NVTX_EVENTS": ""}, {
        "python_sample_id": "rowid", "timestamp_ns": "start", "process_id": "globalTid", "thread_id": "globalTid",
        "kind": "domainId", "thread_state": "color", "stack_id": "binaryData",
    }),
    "stacks": TableSources({"SAMPLING_CALLCHAINS": ""}, {
        "stack_id": "id", "parent_id": "stackDepth", "depth": "stackDepth", "symbol": "symbol", "module": "module",
        "kernel_mode": "kernelMode", "thumb_code": "thumbCode", "unresolved": "unresolved",
        "special_entry": "specialEntry", "original_ip": "originalIP", "unwind_method": "unwindMethod",
        "line": "NVTX_EVENTS.binaryData",
    }),
    "streams": TableSources({"TARGET_INFO_CUDA_STREAM": ""}, {
        "process_id": "processId", "context_id": "contextId", "stream_id": "streamId", "priority": "priority",
        "stream_type": "flag", "name": "TARGET_INFO_NVTX_CUDA_STREAM.name",
    }),
    "syncs": TableSources({"CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": ""}, {
        "sync_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalPid", "device_id": "deviceId",
        "context_id": "contextId", "green_context_id": "greenContextId", "stream_id": "streamId",
        "correlation_id": "correlationId", "sync_type": "syncType", "event_id": "eventId",
        "event_sync_id": "eventSyncId",
    }, required=("context_id", "stream_id", "event_id")),
    "syscalls": TableSources({"SYSCALL": ""}, {
        "syscall_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "event_class": "eventClass", "name": "nameId", "name_id": "nameId",
        "return_value": "returnValue",
    }, required=("event_class", "name_id")),
    "threads": TableSources({"ThreadNames": ""}, {
        "process_id": "globalTid", "thread_id": "globalTid", "name": "nameId", "name_id": "nameId",
        "priority": "priority",
    }),
    "ucx_calls": TableSources({
        "UCP_SUBMIT_EVENTS": "submit", "UCP_PROGRESS_EVENTS": "progress", "UCP_EVENTS": "other",
    }, {
        "ucx_call_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "kind": "*", "name": "textId", "name_id": "textId", "buffer_address": "bufferAddr",
        "packed_bytes": "packedSize", "peer_worker_id": "peerWorkerUid", "tag": "tag",
    }),
    "video_engine_workloads": TableSources({"GPU_VIDEO_ENGINE_WORKLOAD": ""}, {
        "video_engine_workload_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalPid",
        "engine_type": "engineType", "engine_id": "engineId", "codec": "codecId", "context_id": "contextId",
        "api_id": "apiId",
    }),
    "wddm_contexts": TableSources({"TARGET_INFO_WDDM_CONTEXTS": ""}, {
        "context_id": "context", "engine_type": "engineType", "engine_type_id": "engineType", "node": "nodeOrdinal",
        "name": "friendlyName",
    }),
    "wddm_packets": TableSources({
        "WDDM_QUEUE_PACKET_START_EVENTS": "queue_start", "WDDM_QUEUE_PACKET_STOP_EVENTS": "queue_stop",
        "WDDM_QUEUE_PACKET_INFO_EVENTS": "queue_info", "WDDM_DMA_PACKET_START_EVENTS": "dma_start",
        "WDDM_DMA_PACKET_STOP_EVENTS": "dma_stop", "WDDM_DMA_PACKET_INFO_EVENTS": "dma_info",
    }, {
        "wddm_packet_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "kind": "*", "gpu": "gpu", "context_id": "context", "packet_type": "packetType",
        "engine_type": "engineType", "engine_type_id": "engineType", "queue_packet": "queuePacket",
        "submit_sequence": "submitSequence", "queue_submit_sequence": "ulQueueSubmitSequence",
        "submission_id": "WDDM_DMA_PACKET_START_EVENTS.uliSubmissionId", "completion_id": "uliCompletionId",
        "queue_packet_context_id": "WDDM_DMA_PACKET_START_EVENTS.queuePacketContext", "dma_buffer": "dmaBuffer",
        "dma_buffer_bytes": "WDDM_QUEUE_PACKET_START_EVENTS.dmaBufferSize",
        "allocations": "WDDM_QUEUE_PACKET_START_EVENTS.allocationListSize",
        "patch_locations": "WDDM_QUEUE_PACKET_START_EVENTS.patchLocationListSize",
        "is_present": "WDDM_QUEUE_PACKET_START_EVENTS.present",
        "fence_value": "WDDM_QUEUE_PACKET_START_EVENTS.progressFenceValue",
        "sync_object": "WDDM_QUEUE_PACKET_START_EVENTS.syncObject", "is_preempted": "preempted",
        "is_timed_out": "WDDM_QUEUE_PACKET_STOP_EVENTS.timeouted", "quantum_status": "quantumStatus",
        "interrupt_type": "WDDM_DMA_PACKET_INFO_EVENTS.interruptType",
        "fault_address": "WDDM_DMA_PACKET_INFO_EVENTS.faultedVirtualAddress",
        "fault_process_handle": "WDDM_DMA_PACKET_INFO_EVENTS.faultedProcessHandle",
        "fault_flags": "WDDM_DMA_PACKET_INFO_EVENTS.pageFaultFlags",
    }),
    "wddm_paging_packets": TableSources({
        "WDDM_PAGING_QUEUE_PACKET_START_EVENTS": "start", "WDDM_PAGING_QUEUE_PACKET_STOP_EVENTS": "stop",
        "WDDM_PAGING_QUEUE_PACKET_INFO_EVENTS": "info",
    }, {
        "wddm_paging_packet_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "kind": "*", "gpu": "gpu", "paging_queue": "pagingQueue",
        "paging_queue_packet": "pagingQueuePacket", "sequence_id": "sequenceId",
        "operation": "WDDM_PAGING_QUEUE_PACKET_START_EVENTS.vidMmOpType",
        "queue_type": "WDDM_PAGING_QUEUE_PACKET_START_EVENTS.pagingQueueType",
        "allocation": "WDDM_PAGING_QUEUE_PACKET_START_EVENTS.alloc",
        "dxg_device": "WDDM_PAGING_QUEUE_PACKET_START_EVENTS.dxgDevice",
        "dxg_adapter": "WDDM_PAGING_QUEUE_PACKET_START_EVENTS.dxgAdapter",
    }),
    "wddm_queue_events": TableSources({
        "WDDM_HW_QUEUE_EVENTS": "hardware_queue", "WDDM_EVICT_ALLOCATION_EVENTS": "eviction",
    }, {
        "wddm_queue_event_id": "rowid", "start_ns": "start", "end_ns": "end", "process_id": "globalTid",
        "thread_id": "globalTid", "kind": "*", "gpu": "gpu", "context_id": "WDDM_HW_QUEUE_EVENTS.context",
        "hardware_queue": "WDDM_HW_QUEUE_EVENTS.hwQueue", "parent_queue": "WDDM_HW_QUEUE_EVENTS.parentDxgHwQueue",
        "allocation": "WDDM_EVICT_ALLOCATION_EVENTS.allocationHandle",
    }),
}
# fmt: on
"""The source tables and columns of each declared table that Nsight Systems records."""
