"""The small tables of an export, about the capture and its machine: facts, devices, contexts, streams, processes, threads.

They are read whole through plain SQL. Where versions differ the sources are tried in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tracekit import schemas
from tracekit.readers.nsys_sqlite.columns import ID_BITS, ID_MASK
from tracekit.readers.nsys_sqlite.database import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracekit.readers.nsys_sqlite.capture import NsysCapture

    Row = dict[str, Any]

FACTS = {
    "EXPORT_PRODUCT_NAME": "tool",
    "EXPORT_PRODUCT_VERSION": "tool_version",
    "EXPORT_SCHEMA_VERSION": "schema_version",
}
_DEVICE_COLUMNS = {
    "device_id": ("id", "deviceId"),
    "name": ("name",),
    "chip": ("chipName",),
    "cuda_device_id": ("cuDevice", "deviceId"),
    "compute_major": ("computeMajor", "computeCapabilityMajor"),
    "compute_minor": ("computeMinor", "computeCapabilityMinor"),
    "sm_count": ("smCount", "numMultiprocessors"),
    "clock_rate_hz": ("clockRate", "coreClockRate"),
    "memory_bytes": ("totalMemory", "globalMemorySize"),
    "memory_bandwidth_bytes_per_s": ("memoryBandwidth", "globalMemoryBandwidth"),
    "l2_cache_bytes": ("l2CacheSize",),
    "threads_per_warp": ("threadsPerWarp", "numThreadsPerWarp"),
    "max_warps_per_sm": ("maxWarpsPerSm", "maxWarpsPerMultiprocessor"),
    "max_registers_per_sm": ("maxRegistersPerSm", "maxRegistersPerMultiprocessor"),
    "max_shared_memory_per_sm_bytes": ("maxShmemPerSm", "maxSharedMemoryPerMultiprocessor"),
    "uuid": ("uuid",),
    "bus_location": ("busLocation", "pciBusId"),
}


def facts(capture: NsysCapture) -> dict[str, str]:
    """Read what is public of the capture: tool, versions, origin, extent."""
    found = {}
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        found.update({FACTS[r["name"]]: r["value"] for r in rows(capture, table) if r["name"] in FACTS})
    for r in rows(capture, "TARGET_INFO_SESSION_START_TIME")[:1]:
        found["origin_utc_ns"] = r.get("utcEpochNs")
    for r in rows(capture, "ANALYSIS_DETAILS")[:1]:
        found["duration_ns"] = r.get("duration")
    return {k: str(v) for k, v in found.items() if v is not None}


def capture_info(capture: NsysCapture) -> Iterable[Row]:
    """The facts as rows."""
    return ({"name": k, "value": v} for k, v in facts(capture).items())


def devices(capture: NsysCapture) -> Iterable[Row]:
    """One row a GPU; exports of 2020 keep its name and its properties in two tables."""
    listed = rows(capture, "TARGET_INFO_GPU")
    older = rows(capture, "TARGET_INFO_CUDA_GPU")
    if not listed:
        return (_device(r) for r in older)
    extra = {r["deviceId"]: r for r in reversed(older)}
    return (_device(r | {k: v for k, v in extra.get(r.get("deviceId"), {}).items() if k not in r}) for r in listed)


def contexts(capture: NsysCapture) -> Iterable[Row]:
    """One row a CUDA context; before schema 3.7 known from their null streams only."""
    for r in rows(capture, "TARGET_INFO_CUDA_CONTEXT_INFO"):
        yield {
            "process_id": r["processId"],
            "context_id": r["contextId"],
            "device_id": r["deviceId"],
            "null_stream_id": r["nullStreamId"],
            "parent_context_id": r["parentContextId"] or None,
            "is_green": None if r["isGreenContext"] is None else bool(r["isGreenContext"]),
        }
    for r in rows(capture, "TARGET_INFO_CUDA_NULL_STREAM"):
        stream = r.get("streamId", r.get("nullStreamId"))
        yield {"process_id": r["processId"], "context_id": r["contextId"], "null_stream_id": stream}


def streams(capture: NsysCapture) -> Iterable[Row]:
    """One row a CUDA stream, with the name that NVTX gave it."""
    kinds = capture.labels("ENUM_CUPTI_STREAM_TYPE")
    label = dict(zip(kinds.ids.to_pylist(), kinds.values.to_pylist(), strict=True))
    keys = ("processId", "contextId", "streamId")
    names = {tuple(r[k] for k in keys): r["name"] for r in rows(capture, "TARGET_INFO_NVTX_CUDA_STREAM")}
    for r in rows(capture, "TARGET_INFO_CUDA_STREAM"):
        yield {
            "process_id": r["processId"],
            "context_id": r["contextId"],
            "stream_id": r["streamId"],
            "priority": _signed(r["priority"]),
            "stream_type": label.get(r["flag"]),
            "name": names.get(tuple(r[k] for k in keys)),
        }


def processes(capture: NsysCapture) -> Iterable[Row]:
    """One row a process; its name without the folder."""
    for r in rows(capture, "PROCESSES"):
        number = r["pid"] if r["globalPid"] is None else (r["globalPid"] >> ID_BITS) & ID_MASK
        yield {"process_id": number, "name": r["name"] and r["name"].rpartition("/")[2]}


def threads(capture: NsysCapture) -> Iterable[Row]:
    """One row a name of a thread."""
    listed = [r for r in rows(capture, "ThreadNames") if r["globalTid"] is not None]
    ids = pa.chunked_array([pa.array([r["nameId"] for r in listed], pa.int64())])
    names = capture.look_up("threads", "name", ids, capture.strings).to_pylist()
    for r, name in zip(listed, names, strict=True):
        process = (r["globalTid"] >> ID_BITS) & ID_MASK
        yield {
            "process_id": process,
            "thread_id": r["globalTid"] & ID_MASK,
            "name": name,
            "priority": r["priority"],
        }


def rows(capture: NsysCapture, table: str) -> list[Row]:
    """Read a small source table as dictionaries; none if it is absent."""
    names = capture.db.columns.get(table)
    if names is None:
        return []
    listed = ", ".join(map(quote, names))
    found = capture.db.query(f"SELECT {listed} FROM {quote(table)} ORDER BY rowid")  # noqa: S608 - quoted
    return [dict(zip(names, r, strict=True)) for r in found]


def _table(name: str, make: Callable[[NsysCapture], Iterable[Row]]) -> Callable[[NsysCapture], pa.Table]:
    def read(capture: NsysCapture) -> pa.Table:
        made = list(make(capture))
        schema = schemas.arrow_schema(schemas.table(name))
        return pa.Table.from_pylist(made, schema=schema)

    return read


TABLES: dict[str, Callable[[NsysCapture], pa.Table]] = {
    f.__name__: _table(f.__name__, f) for f in (capture_info, devices, contexts, streams, processes, threads)
}


def _device(row: Row) -> Row:
    return {name: next((row[k] for k in keys if row.get(k) is not None), None) for name, keys in _DEVICE_COLUMNS.items()}


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
