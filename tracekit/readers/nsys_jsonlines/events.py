"""The fields of the events of a JSON export, and the source tables and columns in which other exports contain them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.readers.nsys.versions import EVENT_CLASSES

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = {
    "NvtxEvent": (
        *("Type", "Timestamp", "EndTimestamp", "RangeId", "Category", "Color", "Text", "TextId", "DomainId"),
        *("GlobalTid", "EndGlobalTid"),
    ),
    "TraceProcessEvent": (
        *("startNs", "endNs", "correlationId", "eventClass", "name", "returnValue32", "globalTid", "nestingLevel"),
        "callchainIndex",
    ),
    "CommEvent": ("GlobalPid", "Commname", "Command"),
}
_ORIGIN = ("deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid")
_PAYLOAD = ("Uint64Value", "Int64Value", "DoubleValue", "Uint32Value", "Int32Value", "FloatValue")
_KERNEL = (
    *("demangledName", "shortName", "mangledName", "launched", "gridX", "gridY", "gridZ", "blockX", "blockY"),
    *("blockZ", "registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "sharedMemoryExecuted"),
    *("localMemoryPerThread", "localMemoryTotal", "gridId", "graphNodeId", "graphId"),
    *("clusterX", "clusterY", "clusterZ"),
)
_COPY = (
    *("sizebytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "srcContextId", "dstDeviceId", "dstContextId"),
    *("migrationCause", "graphNodeId", "virtualAddress", "copyCount"),
)
_SET = ("sizebytes", "value", "memKind", "graphNodeId")


def _create_struct(*names: str, **nested: pl.DataType) -> pl.Struct:
    return pl.Struct({**dict.fromkeys(names, pl.String), **nested})


SCHEMA = pl.Schema(
    {
        "Type": pl.Int64(),
        "NvtxEvent": _create_struct(
            *_NAMES["NvtxEvent"],
            Payload=_create_struct(*_PAYLOAD, BinaryData=pl.List(_create_struct("SchemaId"))),
        ),
        "TraceProcessEvent": _create_struct(*_NAMES["TraceProcessEvent"]),
        "CudaEvent": _create_struct(
            *("startNs", "endNs", "eventClass", *_ORIGIN),
            kernel=_create_struct(*_KERNEL),
            memcpy=_create_struct(*_COPY),
            memset=_create_struct(*_SET),
            sync=_create_struct("eventId", "eventSyncId", "syncType"),
            cudaEventRecord=_create_struct("eventId", "eventSyncId"),
        ),
        "CommEvent": _create_struct(*_NAMES["CommEvent"]),
        "DiagnosticEvent": _create_struct(
            *("Source", "Level", "Text", "GlobalProcess"), Timestamp=_create_struct("Time", "Type")
        ),
    }
)
"""The fields that are read. Numbers are read as strings, because 64-bit integers are strings in JSON."""
THREADS = pl.Schema({"data": pl.List(_create_struct("nameIdx", "priority", "globalTid"))})
STRINGS = pl.Schema({"data": pl.List(pl.String())})


class ExportedEvents(NamedTuple):
    """Events of a JSON export that are the rows of one source table.

    Attributes:
        table: Name of the source table.
        member: Name of the member of the line that contains the event.
        columns: Path of the field of each source column, below the member.
        detail: Name of the member of the event that only these events have, or None.
        classes: Event classes of these events, or None if all are of this kind.
        texts: Source columns that are strings.
        labels: Numbers of the labels of source columns with enum values.
    """

    table: str
    member: str
    columns: dict[str, str]
    detail: str | None = None
    classes: tuple[int, ...] | None = None
    texts: frozenset[str] = frozenset()
    labels: Mapping[str, Mapping[str, int]] = MappingProxyType({})


_CALL = {
    "start": "startNs",
    "end": "endNs",
    "eventClass": "eventClass",
    "globalTid": "globalTid",
    "correlationId": "correlationId",
    "nameId": "name",
    "returnValue": "returnValue32",
}
_OVERHEAD = {**_CALL, "overheadType": "returnValue32"}
_ACTIVITY = {"start": "startNs", "end": "endNs", **{name: name for name in _ORIGIN}}
_OF_EVENT = {name: name for name in _ORIGIN}
_SYNC_TYPES = ("UNKNOWN", "EVENT_SYNCHRONIZE", "STREAM_WAIT_EVENT", "STREAM_SYNCHRONIZE", "CONTEXT_SYNCHRONIZE")


def _nest(detail: str, *names: str, **renamed: str) -> dict[str, str]:
    return {column: f"{detail}.{name}" for column, name in {**{n: n for n in names}, **renamed}.items()}


KINDS = (
    ExportedEvents(
        "NVTX_EVENTS",
        "NvtxEvent",
        {
            "eventType": "Type",
            "start": "Timestamp",
            "end": "EndTimestamp",
            "rangeId": "RangeId",
            "category": "Category",
            "color": "Color",
            "text": "Text",
            "textId": "TextId",
            "domainId": "DomainId",
            "globalTid": "GlobalTid",
            "endGlobalTid": "EndGlobalTid",
            **{f"{name[0].lower()}{name[1:]}": f"Payload.{name}" for name in _PAYLOAD},
        },
        texts=frozenset(("text",)),
    ),
    ExportedEvents("CUPTI_ACTIVITY_KIND_RUNTIME", "TraceProcessEvent", _CALL, classes=tuple(EVENT_CLASSES)),
    ExportedEvents("PROFILER_OVERHEAD", "TraceProcessEvent", _OVERHEAD, classes=(3,)),
    ExportedEvents("CUPTI_ACTIVITY_KIND_OVERHEAD", "TraceProcessEvent", _OVERHEAD, classes=(103,)),
    ExportedEvents("CUDNN_EVENTS", "TraceProcessEvent", _CALL, classes=(28, 33, 34)),
    ExportedEvents("CUBLAS_EVENTS", "TraceProcessEvent", _CALL, classes=(29, 35, 36)),
    ExportedEvents(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CudaEvent",
        {**_ACTIVITY, **_nest("kernel", *_KERNEL, launchType="launched")},
        "kernel",
    ),
    ExportedEvents(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "CudaEvent",
        {**_ACTIVITY, **_nest("memcpy", *_COPY[1:], bytes="sizebytes")},
        "memcpy",
    ),
    ExportedEvents(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "CudaEvent",
        {**_ACTIVITY, **_nest("memset", *_SET[1:], bytes="sizebytes")},
        "memset",
    ),
    ExportedEvents(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        "CudaEvent",
        {**_ACTIVITY, **_nest("sync", "eventId", "eventSyncId", "syncType")},
        "sync",
        labels={"syncType": {f"SYNCHRONIZATION_TYPE_{name}": n for n, name in enumerate(_SYNC_TYPES)}},
    ),
    ExportedEvents(
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
        "CudaEvent",
        {**_OF_EVENT, **_nest("cudaEventRecord", "eventId", "eventSyncId")},
        "cudaEventRecord",
    ),
    ExportedEvents(
        "PROCESSES", "CommEvent", {"globalPid": "GlobalPid", "name": "Commname"}, texts=frozenset(("name",))
    ),
    ExportedEvents(
        "DIAGNOSTIC_EVENT",
        "DiagnosticEvent",
        {
            "timestamp": "Timestamp.Time",
            "timestampType": "Timestamp.Type",
            "source": "Source",
            "severity": "Level",
            "text": "Text",
            "globalPid": "GlobalProcess",
        },
        texts=frozenset(("text",)),
        labels={
            "timestampType": {"TargetTimestamp": 1, "HostTimestamp": 2},
            "source": {"Injection": 1, "Daemon": 2, "Analysis": 3},
            "severity": {"Info": 1, "Warning": 2, "Error": 3, "Verbose": 4},
        },
    ),
)
"""The events that are read, in the order in which they are matched."""
