"""Where the columns of the event tables stand in a report: tables and columns as an export of nsys calls them.

An event is a message with its type (field 1) and one payload, whose field number tells its kind. A column is a path of
field numbers from the payload; absent fields are null, unless the export writes a number for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Kind(Enum):
    """How the value of a column is to be taken."""

    INT = "number, as signed 64 bits"
    DOUBLE = "double in 64 bits"
    FLOAT = "float in 32 bits"
    TEXT = "bytes"
    NAME = "bytes, the same ones time and again"
    CHAIN = "number of the row among those that have the field"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table of events.

    Attributes:
        path: Its fields, from the payload on.
        kind: How the value is to be taken.
        otherwise: Further fields to be tried.
        missing: What stands for an absent value.
        since: Release from which exports have the column.
        first: Number of the first call chain.
    """

    path: tuple[int, ...]
    kind: Kind = Kind.INT
    otherwise: tuple[int, ...] | None = None
    missing: int | None = None
    since: tuple[int, int] = (0, 0)
    first: int = 1


@dataclass(frozen=True, slots=True)
class Table:
    """One table of events.

    Attributes:
        payload: Field of the event that holds the payload.
        columns: Columns by name.
        types: Event types; any if empty.
        part: Field of the payload that rows of this table have; of several any one. All rows if empty.
        classes: Values of the field ``CLASS`` that rows of this table have. All rows if empty.
        typed_by: Column that repeats the event type.
        expected: Event types whose events all have ``part`` or ``beside``.
        beside: Fields of the payload that events of these types have if they are rows of another table.
    """

    payload: int
    columns: Mapping[str, Column]
    types: tuple[int, ...] = ()
    part: tuple[int, ...] = ()
    classes: tuple[int, ...] = ()
    typed_by: str | None = None
    expected: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()


CLASS = 6
NVTX, API, GPU, PROCESS = 102, 108, 107, 113
CALL_MARK, CALL = 47, 48
RUNTIME_CLASSES, OSRT_CLASSES = (0, 1, 13, 26, 67), (27, 31, 32)


def _ints(*, inside: int | None = None, **numbers: int) -> dict[str, Column]:
    before = () if inside is None else (inside,)
    return {name: Column((*before, number)) for name, number in numbers.items()}


_CALL = _ints(start=1, end=2, eventClass=CLASS, globalTid=13, correlationId=3, nameId=7, returnValue=8)
_PLACE = _ints(deviceId=4, contextId=5, greenContextId=9, streamId=6, correlationId=3, globalPid=8)
_ACTIVITY = {**_ints(start=1, end=2), **_PLACE}
_KERNEL, _COPY, _SET, _SYNC, _EVENT, _GRAPH = 101, 102, 103, 105, 106, 107
ACTIVITIES = (_KERNEL, _COPY, _SET, _SYNC, _EVENT, _GRAPH)
_MEMORY = (80, 142)

TABLES: dict[str, Table] = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": Table(
        API, {**_CALL, "callchainId": Column((15,), Kind.CHAIN, first=0)}, types=(CALL,), classes=RUNTIME_CLASSES
    ),
    "OSRT_API": Table(
        API,
        {**_CALL, **_ints(nestingLevel=20), "callchainId": Column((15,), Kind.CHAIN, missing=0)},
        types=(CALL, CALL_MARK),
        classes=OSRT_CLASSES,
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": Table(
        GPU,
        {
            **_ACTIVITY,
            **_ints(inside=_KERNEL, demangledName=1, shortName=2, mangledName=3, launchType=24, cacheConfig=23),
            **_ints(inside=_KERNEL, gridX=10, gridY=11, gridZ=12, blockX=13, blockY=14, blockZ=15),
            **_ints(inside=_KERNEL, registersPerThread=21, staticSharedMemory=16, dynamicSharedMemory=17),
            **_ints(inside=_KERNEL, localMemoryPerThread=18, localMemoryTotal=19, sharedMemoryExecuted=22, gridId=20),
            **_ints(inside=_KERNEL, graphNodeId=27, graphId=29, sharedMemoryLimitConfig=28),
            **_ints(inside=_KERNEL, clusterX=31, clusterY=32, clusterZ=33, clusterSchedulingPolicy=34),
            **_ints(inside=_KERNEL, maxPotentialClusterSize=35, maxActiveClusters=36),
        },
        part=(_KERNEL,),
        expected=(79,),
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": Table(
        GPU,
        {
            **_ACTIVITY,
            "bytes": Column((_COPY, 1), missing=0),
            "copyKind": Column((_COPY, 2), missing=0),
            **_ints(inside=_COPY, srcKind=4, dstKind=5, srcDeviceId=6, srcContextId=7, dstDeviceId=8, dstContextId=9),
            **_ints(inside=_COPY, migrationCause=10, graphNodeId=11, virtualAddress=12, copyCount=16),
        },
        part=(_COPY,),
        expected=_MEMORY,
        beside=(_SET,),
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": Table(
        GPU,
        {
            **_ACTIVITY,
            "bytes": Column((_SET, 1), missing=0),
            "value": Column((_SET, 2), missing=0),
            **_ints(inside=_SET, graphNodeId=3, memKind=4),
        },
        part=(_SET,),
        expected=_MEMORY,
        beside=(_COPY,),
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": Table(
        GPU,
        {
            **_ACTIVITY,
            "syncType": Column((_SYNC, 4), otherwise=(_SYNC, 2), missing=0),
            **_ints(inside=_SYNC, eventId=1, eventSyncId=3),
        },
        part=(_SYNC,),
        expected=(106,),
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": Table(
        GPU,
        {"timestamp": Column((1,), since=(2025, 5)), **_PLACE, **_ints(inside=_EVENT, eventId=1, eventSyncId=2)},
        part=(_EVENT,),
        expected=(127,),
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": Table(
        GPU, {**_ACTIVITY, **_ints(inside=_GRAPH, graphId=1, graphExecId=2)}, part=(_GRAPH,), expected=(130,)
    ),
    "NVTX_EVENTS": Table(
        NVTX,
        {
            **_ints(eventType=1, start=2, end=10, rangeId=4, category=5, color=6, globalTid=9, endGlobalTid=11),
            **_ints(textId=12, domainId=13),
            "text": Column((7,), Kind.NAME),
            **_ints(inside=8, uint64Value=1, int64Value=2, uint32Value=4, int32Value=5, jsonTextId=7),
            "doubleValue": Column((8, 3), Kind.DOUBLE),
            "floatValue": Column((8, 6), Kind.FLOAT),
            "jsonText": Column((8, 8), Kind.TEXT),
            "binaryData": Column((8,), Kind.TEXT),
        },
        typed_by="eventType",
    ),
    "PROCESSES": Table(
        PROCESS,
        {"globalPid": Column((2,)), "name": Column((6,), Kind.TEXT, otherwise=(5,))},
        types=(27,),
        part=(5, 6),
    ),
}
