"""Facts about the capture, and its devices, processes, threads, contexts and streams."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit import schemas
from tracekit.readers.kineto import labels
from tracekit.readers.kineto.tracks import ON_CPU

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracekit.readers.kineto.rows import Rows
    from tracekit.readers.kineto.tracks import Tracks

    Facts = Mapping[str, Any]

PRODUCER = "tracekit"
WANTED = frozenset(
    {
        "schemaVersion",
        "deviceProperties",
        "distributedInfo",
        "baseTimeNanoseconds",
        "displayTimeUnit",
        "otherData",
        "record_shapes",
        "profile_memory",
        "with_stack",
        "with_flops",
        "with_modules",
        "cuda_driver_version",
        "cuda_runtime_version",
        "cupti_version",
    }
)
_PLAIN = tuple(sorted(n for n in WANTED if n.islower()))
_DISTRIBUTED = ("backend", "rank", "world_size", "pg_count", "nccl_version")
_OWN = ("tool", "tool_version")
_EARLIEST_UTC_NS = 946_684_800_000_000_000
"""The year 2000: what is less is no date."""
_INT32 = 1 << 31
_LONGEST_FACT = 200
_NUMBER = re.compile(r"[0-9]{1,18}|[1-8][0-9]{18}")
ON_STREAMS = ("kernels", "memcpys", "memsets", "graph_launches", "cuda_events")


def is_exported(facts: Facts) -> bool:
    """Whether tracekit wrote the file."""
    return _mapping(facts.get("otherData")).get("producer") == PRODUCER


def base_ns(facts: Facts) -> int:
    """Return the time that all times of the file count from, in ns since 1970."""
    value = _large(facts.get("baseTimeNanoseconds"))
    return value if value is not None and value < 1 << 62 else 0


def shift_ns(facts: Facts) -> int:
    """Return by how much tracekit shifted the times that it wrote."""
    return _digits(_mapping(facts.get("otherData")).get("shift_ns")) or 0


def capture_info(facts: Facts, origin_ns: int, end_ns: int | None) -> dict[str, str]:
    """Return the facts that are told: none that names a host, a user or a folder."""
    if is_exported(facts):
        other = _mapping(facts.get("otherData"))
        origin = _digits(other.get("origin_utc_ns"))
        found = {name: _told(other.get(name)) for name in _OWN}
        found["origin_utc_ns"] = None if origin is None else str(origin + shift_ns(facts))
    else:
        found = {"tool": "PyTorch profiler", "schema_version": _told(facts.get("schemaVersion"))}
        utc = base_ns(facts) + origin_ns
        found["origin_utc_ns"] = str(utc) if utc >= _EARLIEST_UTC_NS else None
        found |= {name: _told(facts.get(name)) for name in _PLAIN}
        shared = _mapping(facts.get("distributedInfo"))
        found |= {f"distributed_{name}": _told(shared.get(name)) for name in _DISTRIBUTED}
    found["duration_ns"] = None if end_ns is None else str(end_ns)
    return {name: value for name, value in found.items() if value is not None}


def devices(facts: Facts) -> list[dict[str, Any]]:
    """Return a row a GPU."""
    rows: dict[int, dict[str, Any]] = {}
    listed = facts.get("deviceProperties")
    for found in listed if isinstance(listed, list) else []:
        device = _mapping(found)
        number = _small(device.get("id"))
        if number is not None:
            rows.setdefault(number, _device(number, device))
    return list(rows.values())


def _device(number: int, found: Facts) -> dict[str, Any]:
    warp, threads = _small(found.get("warpSize")), _small(found.get("maxThreadsPerMultiprocessor"))
    return {
        "device_id": number,
        "cuda_device_id": number,
        "name": _told(found.get("name")),
        "compute_major": _small(found.get("computeMajor")),
        "compute_minor": _small(found.get("computeMinor")),
        "sm_count": _small(found.get("numSms")),
        "memory_bytes": _large(found.get("totalGlobalMem")),
        "threads_per_warp": warp,
        "max_warps_per_sm": threads // warp if warp and threads else None,
        "max_registers_per_sm": _small(found.get("regsPerMultiprocessor")),
        "max_shared_memory_per_sm_bytes": _large(found.get("sharedMemPerMultiprocessor")),
    }


def exported_devices(rows: Iterable[Rows], tracks: Tracks) -> list[dict[str, Any]]:
    """Return a row a GPU that something ran on, named as its group of tracks is."""
    used = sorted({d for r in rows if r.name not in ON_CPU for d in r.place["device_id"].unique().to_pylist()})
    names = tracks.labels().filter(pl.col("what") == "process_name")["name"].drop_nulls().unique(maintain_order=True)
    named: dict[int, str] = {}
    for label in names:
        kind, _, rest = label.partition(" ")
        number, _, name = rest.partition(" · ")[0].partition(" ")
        if kind == "GPU" and number.isdigit() and name:
            named.setdefault(int(number), name)
    return [{"device_id": d, "cuda_device_id": d, "name": named.get(d)} for d in used]


def processes(tracks: Tracks) -> list[dict[str, Any]]:
    """Return a row a process, with the name that it is given last."""
    found = tracks.labels().filter(pl.col("what") == "process_name").drop_nulls("pid")
    names = dict(found.select("pid", "name").iter_rows())
    return [{"process_id": p, "name": _process_name(names.get(p))} for p in sorted(tracks.processes())]


def threads(tracks: Tracks) -> list[dict[str, Any]]:
    """Return a row a named thread of a process; one renamed on the way has several."""
    owners = tracks.processes()
    found = tracks.labels().filter((pl.col("what") == "thread_name") & pl.col("pid").is_in(owners)).drop_nulls("tid")
    listed = found.select("pid", "tid", "name").unique(maintain_order=True).iter_rows()
    return [
        {"process_id": p, "thread_id": t, "name": None if name is None else labels.thread_name(name)}
        for p, t, name in listed
    ]


def contexts(rows: Iterable[Rows]) -> list[dict[str, Any]]:
    """Return a row a context that something ran in."""
    found = _queues(rows).group_by("process_id", "context_id", maintain_order=True).first()
    return found.select("process_id", "context_id", "device_id").sort(pl.all()).to_dicts()


def streams(rows: Iterable[Rows]) -> list[dict[str, Any]]:
    """Return a row a stream that something ran on; priorities are not recorded."""
    found = _queues(rows).select("process_id", "context_id", "stream_id").unique().sort(pl.all())
    return [{**r, "priority": 0} for r in found.to_dicts()]


def made(name: str, rows: list[dict[str, Any]]) -> Any:
    """Make a declared table of rows."""
    declared = schemas.table(name)
    frame = pl.DataFrame(
        {c: [r.get(c) for r in rows] for c in declared.names}, schema=schemas.polars_schema(declared), strict=False
    )
    return frame.to_arrow()


def _queues(rows: Iterable[Rows]) -> pl.DataFrame:
    names = ("process_id", "device_id", "context_id", "stream_id")
    found = [
        pl.DataFrame({n: pl.Series(r.place[n]).cast(pl.Int64) for n in names}).unique()
        for r in rows
        if r.name in ON_STREAMS
    ]
    schema = dict.fromkeys(names, pl.Int64())
    return pl.concat([pl.DataFrame(schema=schema), *found]).drop_nulls().unique().sort(pl.all())


def _process_name(label: str | None) -> str | None:
    return None if label is None else labels.process_name(label)


def _mapping(value: object) -> Facts:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _large(value: Any) -> int | None:
    return value if _whole(value) and 0 <= value < 1 << 63 else None


def _small(value: Any) -> int | None:
    return value if _whole(value) and 0 <= value < _INT32 else None


def _digits(value: object) -> int | None:
    """Take a number that is written as text."""
    found = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    return int(found[0]) if found else None


def _told(value: object) -> str | None:
    """Take a fact that is one value, as text."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, str | int) and len(text := str(value).encode("utf-8", "replace").decode()) <= _LONGEST_FACT:
        return text
    return None
