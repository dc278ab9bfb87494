"""The tables of an export about the capture and its machine: facts, devices, contexts, streams, processes, threads.

Processes and threads can be many and are read by column. The others are read whole, row by row; where versions differ
their sources are tried in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.readers.nsys import ids
from tracekit.readers.nsys.tables import Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracekit.readers.nsys.lookups import Lookups, Resolver

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


def facts(capture: Lookups) -> dict[str, str]:
    """Read what is public of the capture: tool, versions, origin, extent."""
    found: dict[str, Any] = {}
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        listed = rows(capture, table, "name", "value")
        found.update({FACTS[r["name"]]: r["value"] for r in listed if r["name"] in FACTS})
    for r in rows(capture, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")[:1]:
        found["origin_utc_ns"] = r["utcEpochNs"]
    for r in rows(capture, "ANALYSIS_DETAILS", "duration")[:1]:
        found["duration_ns"] = r["duration"]
    return {k: str(v) for k, v in found.items() if v is not None}


def capture_info(capture: Lookups) -> Iterable[Row]:
    """The facts as rows."""
    return ({"name": k, "value": v} for k, v in facts(capture).items())


def devices(capture: Lookups) -> Iterable[Row]:
    """One row a GPU; exports of 2020 keep its name and its properties in two tables."""
    wanted = dict.fromkeys(k for keys in _DEVICE_COLUMNS.values() for k in keys)
    listed = rows(capture, "TARGET_INFO_GPU", *wanted)
    older = rows(capture, "TARGET_INFO_CUDA_GPU", *wanted)
    if not listed:
        return (_device(r) for r in older)
    extra = {r["deviceId"]: r for r in reversed(older) if r["deviceId"] is not None}
    return (_device(r, extra.get(r["deviceId"], {})) for r in listed)


def contexts(capture: Lookups) -> Iterable[Row]:
    """One row a CUDA context; before schema 3.7 known from their null streams only."""
    keys = ("processId", "contextId", "deviceId", "nullStreamId")
    for r in rows(capture, "TARGET_INFO_CUDA_CONTEXT_INFO", *keys, "parentContextId", "isGreenContext"):
        yield {
            "process_id": r["processId"],
            "context_id": r["contextId"],
            "device_id": r["deviceId"],
            "null_stream_id": r["nullStreamId"],
            "parent_context_id": r["parentContextId"] or None,
            "is_green": None if r["isGreenContext"] is None else bool(r["isGreenContext"]),
        }
    for r in rows(capture, "TARGET_INFO_CUDA_NULL_STREAM", *keys, "streamId"):
        stream = r["nullStreamId"] if r["streamId"] is None else r["streamId"]
        yield {"process_id": r["processId"], "context_id": r["contextId"], "null_stream_id": stream}


def streams(capture: Lookups) -> Iterable[Row]:
    """One row a CUDA stream, with the name that NVTX gave it."""
    kinds = capture.labels("ENUM_CUPTI_STREAM_TYPE")
    label = dict(zip(kinds.ids.to_pylist(), kinds.values.to_pylist(), strict=True))
    keys = ("processId", "contextId", "streamId")
    named = rows(capture, "TARGET_INFO_NVTX_CUDA_STREAM", *keys, "name")
    names = {tuple(r[k] for k in keys): r["name"] for r in named}
    for r in rows(capture, "TARGET_INFO_CUDA_STREAM", *keys, "priority", "flag"):
        yield {
            "process_id": r["processId"],
            "context_id": r["contextId"],
            "stream_id": r["streamId"],
            "priority": None if r["priority"] is None else _signed(r["priority"]),
            "stream_type": label.get(r["flag"]),
            "name": names.get(tuple(r[k] for k in keys)),
        }


def process_id(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """The system's number of the process, packed or plain."""
    return pc.coalesce(ids.process_id(raw["globalPid"]).cast(pa.int64()), raw["pid"])


def process_name(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """Name of the process; of a path (never of ``kworker/0:1``) without the folder, which may name a user."""
    return pc.replace_substring_regex(raw["name"], r"(?s)^(?:[/.~]|[A-Za-z]:[\\/]|\\\\).*[/\\]", "")


def rows(capture: Lookups, table: str, *wanted: str) -> list[Row]:
    """Read columns of a small source table as dictionaries; none if it is absent, null where a column is."""
    if table not in capture.tables.columns:
        return []
    found: list[Row] = capture.fetch(table, wanted).to_pylist()
    return found


def columns(capture: Lookups, name: str) -> dict[str, pa.Array]:
    """Read a whole table by rows and turn it into columns, as wide as the source keeps them."""
    made = list(TABLES[name](capture))
    kinds = {"int32": pa.int64(), "int64": pa.int64(), "bool": pa.bool_()}
    declared = schemas.table(name).columns
    return {c.name: pa.array([r.get(c.name) for r in made], kinds.get(c.type, pa.string())) for c in declared}


TABLES: dict[str, Callable[[Lookups], Iterable[Row]]] = {
    "capture_info": capture_info,
    "devices": devices,
    "contexts": contexts,
    "streams": streams,
}
FILTERS = {"threads": Where("globalTid")}
RESOLVERS: dict[str, dict[str, Resolver]] = {
    "processes": {"process_id": (("globalPid", "pid"), process_id), "name": (("name",), process_name)}
}


def _device(row: Row, more: Row | None = None) -> Row:
    found = (row, more or {})
    return {
        name: next((r[k] for r in found for k in keys if r.get(k) is not None), None)
        for name, keys in _DEVICE_COLUMNS.items()
    }


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
