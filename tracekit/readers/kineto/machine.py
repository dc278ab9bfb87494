"""Build the rows of ``capture_info`` and of the tables of devices, processes, threads, contexts and streams."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit import schemas
from tracekit.readers.kineto import labels
from tracekit.readers.kineto.tracks import ON_CPU

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from tracekit.readers.kineto.rows import EventRows
    from tracekit.readers.kineto.tracks import Tracks

    Metadata = Mapping[str, Any]

PRODUCER = "tracekit"
METADATA_NAMES = frozenset(
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
_SCALAR_METADATA = tuple(sorted(n for n in METADATA_NAMES if n.islower()))
_DISTRIBUTED = ("backend", "rank", "world_size", "pg_count", "nccl_version")
_EXPORTED_METADATA = ("tool", "tool_version")
_EARLIEST_UTC_NS = 946_684_800_000_000_000
"""Start of the year 2000. Earlier times are not dates, but the time since boot, which some profiler versions record."""
_INT32 = 1 << 31
_MAX_TEXT_LENGTH = 200
_NUMBER = re.compile(r"[0-9]{1,18}|[1-8][0-9]{18}")


def is_tracekit_export(metadata: Metadata) -> bool:
    """Return whether tracekit wrote the file that contains the given metadata."""
    return _get_mapping_or_empty(metadata.get("otherData")).get("producer") == PRODUCER


def read_time_base_ns(metadata: Metadata) -> int:
    """Return the time in ns since 1970 to which all times in the file are relative, or 0 if it is unknown."""
    value = _get_nonnegative_int64_or_none(metadata.get("baseTimeNanoseconds"))
    return value if value is not None and value < 1 << 62 else 0


def read_export_shift_ns(metadata: Metadata) -> int:
    """Return the number of ns that tracekit added to all times when it wrote the file, or 0 if it is unknown."""
    return _parse_digits_or_none(_get_mapping_or_empty(metadata.get("otherData")).get("shift_ns")) or 0


def collect_capture_info_values(metadata: Metadata, origin_ns: int, end_ns: int | None) -> dict[str, str]:
    """Return the values of ``capture_info`` by name, except values that may identify a host, user or folder."""
    if is_tracekit_export(metadata):
        other = _get_mapping_or_empty(metadata.get("otherData"))
        origin = _parse_digits_or_none(other.get("origin_utc_ns"))
        info = {name: _convert_metadata_to_text(other.get(name)) for name in _EXPORTED_METADATA}
        info["origin_utc_ns"] = None if origin is None else str(origin + read_export_shift_ns(metadata))
    else:
        info = {
            "tool": _find_tool(metadata),
            "schema_version": _convert_metadata_to_text(metadata.get("schemaVersion")),
        }
        utc = read_time_base_ns(metadata) + origin_ns
        info["origin_utc_ns"] = str(utc) if utc >= _EARLIEST_UTC_NS else None
        info |= {name: _convert_metadata_to_text(metadata.get(name)) for name in _SCALAR_METADATA}
        info |= parse_distributed_info(metadata)
    info["duration_ns"] = None if end_ns is None else str(end_ns)
    return {name: value for name, value in info.items() if value is not None}


def _find_tool(metadata: Metadata) -> str:
    """Return the profiler that wrote a trace. Only Proton states a unit of times that Chrome does not know."""
    is_proton = metadata.get("displayTimeUnit") == "us" and "schemaVersion" not in metadata
    return "Proton" if is_proton else "PyTorch profiler"


def parse_distributed_info(metadata: Metadata) -> dict[str, str]:
    """Return the metadata of a distributed job, such as its backend, rank, number of ranks and NCCL version.

    The metadata is read from the member ``distributedInfo``. Its names get the prefix ``distributed_``. The result
    is empty if the member is missing, or if tracekit wrote the file.
    """
    distributed = {} if is_tracekit_export(metadata) else _get_mapping_or_empty(metadata.get("distributedInfo"))
    texts = {f"distributed_{name}": _convert_metadata_to_text(distributed.get(name)) for name in _DISTRIBUTED}
    return {name: text for name, text in texts.items() if text is not None}


def build_device_rows(metadata: Metadata) -> list[dict[str, Any]]:
    """Return one row of ``devices`` for each GPU that the profiler lists."""
    rows: dict[int, dict[str, Any]] = {}
    entries = metadata.get("deviceProperties")
    for properties in entries if isinstance(entries, list) else []:
        device = _get_mapping_or_empty(properties)
        number = _get_nonnegative_int32_or_none(device.get("id"))
        if number is not None:
            rows.setdefault(number, _build_device_row(number, device))
    return list(rows.values())


_SM_COUNT = ("numSms", "maxComputeUnits")
_SHARED_MEMORY_PER_SM = ("sharedMemPerMultiprocessor", "maxSharedMemoryPerMultiProcessor")
"""Properties of a GPU that have other names for other makers: NVIDIA and AMD, or Intel; NVIDIA, or AMD."""


def _get_first(properties: Metadata, names: tuple[str, ...]) -> Any:
    return next((properties[name] for name in names if name in properties), None)


def _build_device_row(number: int, properties: Metadata) -> dict[str, Any]:
    warp, max_threads = (
        _get_nonnegative_int32_or_none(properties.get("warpSize")),
        _get_nonnegative_int32_or_none(properties.get("maxThreadsPerMultiprocessor")),
    )
    return {
        "device_id": number,
        "cuda_device_id": number,
        "name": _convert_metadata_to_text(properties.get("name")),
        "compute_major": _get_nonnegative_int32_or_none(properties.get("computeMajor")),
        "compute_minor": _get_nonnegative_int32_or_none(properties.get("computeMinor")),
        "sm_count": _get_nonnegative_int32_or_none(_get_first(properties, _SM_COUNT)),
        "memory_bytes": _get_nonnegative_int64_or_none(properties.get("totalGlobalMem")),
        "threads_per_warp": warp,
        "max_warps_per_sm": max_threads // warp if warp and max_threads else None,
        "max_registers_per_sm": _get_nonnegative_int32_or_none(properties.get("regsPerMultiprocessor")),
        "max_shared_memory_per_sm_bytes": _get_nonnegative_int64_or_none(_get_first(properties, _SHARED_MEMORY_PER_SM)),
    }


def build_exported_device_rows(event_tables: Iterable[EventRows], tracks: Tracks) -> list[dict[str, Any]]:
    """Return one row of ``devices`` for each GPU with activities in a trace that tracekit wrote.

    The name of a GPU is taken from the name of its group of tracks.
    """
    used = sorted(
        {d for r in event_tables if r.name not in ON_CPU for d in r.track_columns["device_id"].unique().to_pylist()}
    )
    names = (
        tracks.list_recorded_names()
        .filter(pl.col("what") == "process_name")["name"]
        .drop_nulls()
        .unique(maintain_order=True)
    )
    named: dict[int, str] = {}
    for label in names:
        kind, _, rest = label.partition(" ")
        number, _, name = rest.partition(" · ")[0].partition(" ")
        if kind == "GPU" and number.isdigit() and name:
            named.setdefault(int(number), name)
    return [{"device_id": d, "cuda_device_id": d, "name": named.get(d)} for d in used]


def build_process_rows(tracks: Tracks) -> list[dict[str, Any]]:
    """Return one row per process with CPU events, ordered by process id.

    If the file names a process several times, the last name is used. In files that tracekit wrote, several processes
    may have the same id, for example those of several ranks. In this case, the name of the process whose ``pid`` in the
    file equals the id is used.
    """
    process_labels = tracks.list_recorded_names().filter(pl.col("what") == "process_name").drop_nulls("pid")
    names = dict(process_labels.select("pid", "name").iter_rows())
    by_pid = tracks.map_process_ids_by_pid()
    own_pid_last = sorted(by_pid.items(), key=lambda ids: ids[0] == ids[1])
    rows = {
        owner: _extract_process_name(names.get(pid), owner if owner != pid else None) for pid, owner in own_pid_last
    }
    return [{"process_id": process, "name": rows[process]} for process in sorted(rows)]


def build_thread_rows(tracks: Tracks) -> list[dict[str, Any]]:
    """Return one row per thread and name. A thread that was renamed has several rows."""
    owners = tracks.list_process_ids()
    threads = (
        tracks.list_recorded_names()
        .filter((pl.col("what") == "thread_name") & pl.col("pid").is_in(owners))
        .drop_nulls("tid")
    )
    names = threads.select("pid", "tid", "name").unique(maintain_order=True).iter_rows()
    return [
        {"process_id": p, "thread_id": t, "name": None if name is None else labels.strip_thread_number(name)}
        for p, t, name in names
    ]


def build_context_rows(event_tables: Iterable[EventRows]) -> list[dict[str, Any]]:
    """Return one row per CUDA context that has GPU activities."""
    used = _list_streams_with_activities(event_tables).group_by("process_id", "context_id", maintain_order=True).first()
    return used.select("process_id", "context_id", "device_id").sort(pl.all()).to_dicts()


def build_stream_rows(event_tables: Iterable[EventRows]) -> list[dict[str, Any]]:
    """Return one row per CUDA stream that has GPU activities. The priority is null because traces do not record it."""
    used = (
        _list_streams_with_activities(event_tables)
        .select("process_id", "context_id", "stream_id")
        .unique()
        .sort(pl.all())
    )
    return used.to_dicts()


def build_declared_table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Convert rows to a declared table. Values that a row lacks are null."""
    declared = schemas.table(name)
    frame = pl.DataFrame(
        {c: [r.get(c) for r in rows] for c in declared.names}, schema=schemas.polars_schema(declared), strict=False
    )
    return frame.to_arrow()


def _list_streams_with_activities(event_tables: Iterable[EventRows]) -> pl.DataFrame:
    """Return one row per stream that has activities, with the ids of its process, device, context and stream."""
    names = ("process_id", "device_id", "context_id", "stream_id")
    frames = [
        pl.DataFrame({n: pl.Series(r.track_columns[n]).cast(pl.Int64) for n in names}).unique()
        for r in event_tables
        if r.name in (*schemas.list_tables("activity"), "cuda_events")
    ]
    schema = dict.fromkeys(names, pl.Int64())
    return pl.concat([pl.DataFrame(schema=schema), *frames]).drop_nulls().unique().sort(pl.all())


def _extract_process_name(label: str | None, appended_pid: int | None) -> str | None:
    """Return the name of a process without its folder, and without the pid that an exporter of tracekit appended."""
    if label is None:
        return None
    return labels.strip_process_folder(label if appended_pid is None else label.removesuffix(f" · pid {appended_pid}"))


def _get_mapping_or_empty(value: object) -> Metadata:
    return value if isinstance(value, dict) else {}


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _get_nonnegative_int64_or_none(value: Any) -> int | None:
    """Return a value if it is an integer from 0 to 2^63 - 1. Return None for all other values."""
    return value if _is_integer(value) and 0 <= value < 1 << 63 else None


def _get_nonnegative_int32_or_none(value: Any) -> int | None:
    """Return a value if it is an integer from 0 to 2^31 - 1. Return None for all other values."""
    return value if _is_integer(value) and 0 <= value < _INT32 else None


def _parse_digits_or_none(value: object) -> int | None:
    """Return the integer that a string of digits represents, or None for all other values."""
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    return int(match[0]) if match else None


def _convert_metadata_to_text(value: object) -> str | None:
    """Convert a string, integer or boolean to a string.

    The result is None for values of other types, and for strings of more than 200 characters.
    """
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, str | int) and len(text := str(value).encode("utf-8", "replace").decode()) <= _MAX_TEXT_LENGTH:
        return text
    return None
