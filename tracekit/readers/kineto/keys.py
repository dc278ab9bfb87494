"""Declare which JSON members of events are read, and in which slot the sandbox stores the value of each member.

Several keys may share a slot, because writers use different keys for the same value: PyTorch writes ``registers per
thread``, and tracekit writes ``registers_per_thread``.
"""

from __future__ import annotations

from enum import IntEnum

from tracekit.readers.common.json.scanner import AS_STRING, THOUSANDTHS


class Slot(IntEnum):
    """The position of each JSON member among the values of a parsed event.

    Position 0 contains the start and end offset of the JSON text of the arguments.
    """

    ARGS = 0
    PHASE = 1
    CATEGORY = 2
    NAME = 3
    PID = 4
    TID = 5
    START = 6
    DURATION = 7
    ID = 8
    CORRELATION = 9
    DEVICE = 10
    CONTEXT = 11
    STREAM = 12
    REGISTERS = 13
    SHARED = 14
    STATIC = 15
    DYNAMIC = 16
    GRID = 17
    BLOCK = 18
    GRAPH_NODE = 19
    GRAPH = 20
    GRAPH_EXEC = 21
    BYTES = 22
    VALUE = 23
    FULL_NAME = 24
    LABELS = 25
    COPY_KIND = 26
    SOURCE = 27
    TARGET = 28
    CAUSE = 29
    MEMORY = 30
    RETURNED = 31
    DOMAIN = 32
    DOMAIN_ID = 33
    CATEGORY_ID = 34
    CATEGORY_NAME = 35
    COLOR = 36
    PAYLOAD_TYPE = 37
    PAYLOAD = 38
    THREAD = 39
    END_THREAD = 40
    OPEN = 41
    NEGATIVE = 42
    PROCESS = 43
    SYNC = 44
    EVENT = 45
    EVENT_SYNC = 46
    KERNEL_ID = 47
    MEMCPY_ID = 48
    MEMSET_ID = 49
    CALL_ID = 50
    RANGE_ID = 51
    MARK_ID = 52
    GRAPH_LAUNCH_ID = 53
    SYNC_ID = 54
    CUDA_EVENT_ID = 55
    KIND = 56
    OSRT_CALL_ID = 57
    EXTERNAL = 58
    OCCUPANCY = 59
    BLOCKS_PER_SM = 60
    WARPS_PER_SM = 61
    API = 62


_MEMBERS = {
    "args": Slot.ARGS,
    "ph": Slot.PHASE,
    "cat": Slot.CATEGORY,
    "name": Slot.NAME,
    "pid": Slot.PID,
    "tid": Slot.TID,
    "ts": Slot.START + THOUSANDTHS,
    "dur": Slot.DURATION + THOUSANDTHS,
}
_ARGUMENTS = {
    "correlation": Slot.CORRELATION,
    "correlation_id": Slot.CORRELATION,
    "device": Slot.DEVICE,
    "device_id": Slot.DEVICE,
    "context": Slot.CONTEXT,
    "context_id": Slot.CONTEXT,
    "stream": Slot.STREAM,
    "stream_id": Slot.STREAM,
    "sycl queue": Slot.STREAM,
    "registers per thread": Slot.REGISTERS,
    "registers_per_thread": Slot.REGISTERS,
    "shared memory": Slot.SHARED,
    "static_shared_bytes": Slot.STATIC,
    "dynamic_shared_bytes": Slot.DYNAMIC,
    "grid": Slot.GRID,
    "block": Slot.BLOCK,
    "graph node id": Slot.GRAPH_NODE,
    "graph_node_id": Slot.GRAPH_NODE,
    "graph id": Slot.GRAPH,
    "graph_id": Slot.GRAPH,
    "graph_exec_id": Slot.GRAPH_EXEC,
    "bytes": Slot.BYTES,
    "size": Slot.BYTES,
    "value": Slot.VALUE,
    "name": Slot.FULL_NAME,
    "labels": Slot.LABELS,
    "copy_kind": Slot.COPY_KIND,
    "direction": Slot.COPY_KIND,
    "src_memory_kind": Slot.SOURCE,
    "dst_memory_kind": Slot.TARGET,
    "migration_cause": Slot.CAUSE,
    "memory_kind": Slot.MEMORY,
    "return_value": Slot.RETURNED,
    "domain": Slot.DOMAIN,
    "domain_id": Slot.DOMAIN_ID,
    "category_id": Slot.CATEGORY_ID,
    "category": Slot.CATEGORY_NAME,
    "color": Slot.COLOR,
    "payload_type": Slot.PAYLOAD_TYPE,
    "payload": Slot.PAYLOAD + AS_STRING,
    "thread_id": Slot.THREAD,
    "end_thread_id": Slot.END_THREAD,
    "open": Slot.OPEN,
    "negative_duration_ns": Slot.NEGATIVE,
    "process_id": Slot.PROCESS,
    "cuda_sync_kind": Slot.SYNC,
    "event_id": Slot.EVENT,
    "wait_on_cuda_event_id": Slot.EVENT,
    "event_sync_id": Slot.EVENT_SYNC,
    "kernel_id": Slot.KERNEL_ID,
    "memcpy_id": Slot.MEMCPY_ID,
    "memset_id": Slot.MEMSET_ID,
    "api_call_id": Slot.CALL_ID,
    "range_id": Slot.RANGE_ID,
    "mark_id": Slot.MARK_ID,
    "graph_launch_id": Slot.GRAPH_LAUNCH_ID,
    "sync_id": Slot.SYNC_ID,
    "cuda_event_id": Slot.CUDA_EVENT_ID,
    "kind": Slot.KIND,
    "osrt_call_id": Slot.OSRT_CALL_ID,
    "api": Slot.API,
    "External id": Slot.EXTERNAL,
    "external id": Slot.EXTERNAL,
    "est. achieved occupancy %": Slot.OCCUPANCY + AS_STRING,
    "achieved_occupancy_percent": Slot.OCCUPANCY + AS_STRING,
    "blocks per SM": Slot.BLOCKS_PER_SM + AS_STRING,
    "blocks_per_sm": Slot.BLOCKS_PER_SM + AS_STRING,
    "warps per SM": Slot.WARPS_PER_SM + AS_STRING,
    "warps_per_sm": Slot.WARPS_PER_SM + AS_STRING,
}
KEYS = {(0, k): int(s) for k, s in _MEMBERS.items()} | {(1, k): int(s) for k, s in _ARGUMENTS.items()}
