"""Read the declared tables about a capture and its machine, such as ``capture_info``, ``devices`` and ``streams``.

The tables are processed by column rather than by row, because a damaged file may list a million devices. The module
``versions`` lists the source tables of each version of nsys.

Read the host name, and the environment variables with which launchers number processes.

Environments are private. Of all variables, only those in ``RANK_VARIABLES`` are used, and only if they are numbers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import CorruptTraceError
from tracekit.readers.common import columns as col
from tracekit.readers.nsys import ids
from tracekit.readers.nsys.paths import extract_file_names
from tracekit.readers.nsys.tables import Where
from tracekit.readers.nsys.versions import CONTEXTS, DEVICES, FACT_TABLES, METADATA
from tracekit.registry.interface import RANK_VARIABLES, LaunchMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.readers.nsys.lookups import Lookups, Resolver
    from tracekit.readers.nsys.versions import SourceTable

    Columns = dict[str, pa.Array | pa.ChunkedArray]
    """Columns of equal length by name."""

_CAPTURE, _LAUNCH_PROPERTIES = "META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV"
_ENVIRONMENT_PROPERTY, _HOST = 610, 619
_MAX_HOST = 256
_NAMES = "|".join(RANK_VARIABLES)
_PROCESS_VARIABLE = r"^PROCESS_[0-9]+:ENVIRONMENT_VARIABLE$"
_LAUNCHED = rf'^(?:{_NAMES})="?[0-9]{{1,9}}"?$'
_VARIABLE = re.compile(rf'({_NAMES})="?([0-9]{{1,9}})"?')
_SYSTEM = {
    "gpuCount": "gpu_count",
    "cpuModel": "cpu_model",
    "driverVersion": "driver_version",
    "framework": "framework",
    "cudaVersion": "cuda_version",
    "cudnnVersion": "cudnn_version",
    "nsysVersion": "nsys_version",
}
"""Columns of the table ``SystemInfo``, which DLProf adds to exports, and the name of each value in ``capture_info``."""
_STREAM = {"processId": "process_id", "contextId": "context_id", "streamId": "stream_id"}
"""Source columns that identify a stream, and the declared column for each of them."""
_ENVIRONMENT = "TARGET_INFO_SYSTEM_ENV"
_PROPERTIES = {13: "cpu_model", 205: "driver_version", 605: "os", 611: "cuda_version"}
"""Numbers of machine properties, and the name of each property in ``capture_info``.

All other properties may be private, so they are not read.
"""
_LONGEST_PROPERTY = 256
FILTERS = {"threads": Where("globalTid")}


def parse_rank_variables(*environments: str) -> dict[str, int]:
    """Return the values of rank variables, such as ``RANK``, in one or more environments, by variable name.

    Launchers number processes with these variables. A variable with different values in the environments is omitted.

    Args:
        environments: Environments with entries ``NAME=VALUE``. Reports separate the entries with NUL bytes, and
            exports with semicolons or newlines.
    """
    values: dict[str, set[int]] = {}
    for environment in environments:
        for entry in environment.split("\0") if "\0" in environment else re.split("[;\n]", environment):
            if match := _VARIABLE.fullmatch(entry):
                values.setdefault(match[1], set()).add(int(match[2]))
    return {name: next(iter(numbers)) for name, numbers in values.items() if len(numbers) == 1}


def read_launch_metadata(lookups: Lookups) -> LaunchMetadata:
    """Return the host name and the rank variables, such as ``RANK``, in a capture.

    If the environments of the program and of the profiler set the same variable, the value of the program is used.
    """
    properties = _read_property_values(lookups)
    variables = parse_rank_variables(
        *properties.get(_ENVIRONMENT_PROPERTY, ())
    ) | _read_variables_of_launched_processes(lookups)
    hosts = {host for host in properties.get(_HOST, ()) if 0 < len(host) <= _MAX_HOST}
    return LaunchMetadata(variables, next(iter(hosts)) if len(hosts) == 1 else None)


def _read_variables_of_launched_processes(lookups: Lookups) -> dict[str, int]:
    """Return the rank variables in the recorded environments of processes."""
    if _CAPTURE not in lookups.tables.columns:
        return {}
    raw = lookups.fetch(_CAPTURE, ["name", "value"])
    is_variable = pc.match_substring_regex(raw["name"], _PROCESS_VARIABLE)
    is_number = pc.match_substring_regex(raw["value"], _LAUNCHED)
    values = raw["value"].filter(pc.and_(is_variable, is_number)).unique()
    return parse_rank_variables(*values.to_pylist())


def _read_property_values(lookups: Lookups) -> dict[int, list[str]]:
    """Return the distinct values of the machine properties for environments and host names, by property number."""
    if not {"nameEnum", "value"} <= set(lookups.tables.columns.get(_LAUNCH_PROPERTIES, ())):
        return {}
    rows = lookups.fetch(_LAUNCH_PROPERTIES, ["nameEnum", "value"], Where("nameEnum", (_ENVIRONMENT_PROPERTY, _HOST)))
    return {
        number: rows["value"].filter(pc.equal(rows["nameEnum"], number)).drop_null().unique().to_pylist()
        for number in (_ENVIRONMENT_PROPERTY, _HOST)
    }


def collect_capture_info_values(lookups: Lookups) -> dict[str, str]:
    """Return the values of ``capture_info`` by name.

    The table holds the tool and its version, the time origin, the duration, and properties of the machine.
    """
    values: dict[str, Any] = {}
    for table in FACT_TABLES:
        values |= _read_named_values(lookups, table)
    values |= {
        "origin_utc_ns": _read_first_row(lookups, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs").get("utcEpochNs")
    }
    values |= {"duration_ns": _read_first_row(lookups, "ANALYSIS_DETAILS", "duration").get("duration")}
    values |= _read_machine_properties(lookups)
    system = _read_first_row(lookups, "SystemInfo", *_SYSTEM)
    values |= {name: system[column] for column, name in _SYSTEM.items() if column in system}
    return {k: str(v) for k, v in values.items() if v is not None}


def _read_machine_properties(lookups: Lookups) -> dict[str, str]:
    """Return the public properties of the machine, keyed by their names in ``capture_info``.

    If a property is listed several times, its first value is used.
    """
    if not {"nameEnum", "value"} <= set(lookups.tables.columns.get(_ENVIRONMENT, ())):
        return {}
    listed = lookups.fetch(_ENVIRONMENT, ["nameEnum", "value"], Where("nameEnum", tuple(_PROPERTIES)))
    short = listed.filter(pc.less_equal(pc.binary_length(listed["value"]), _LONGEST_PROPERTY))
    rows = {number: pc.index(short["nameEnum"], number).as_py() for number in _PROPERTIES}
    values = {number: short["value"][row].as_py() for number, row in rows.items() if row >= 0}
    named = {_PROPERTIES[number]: value for number, value in values.items() if value}
    return {name: _VERSIONS.get(name, str)(value) for name, value in named.items()}


def _format_driver_version(version: str) -> str:
    """Return a driver version with dots. Reports of nsys until 2023 store 515.43.04 as the number 5154304."""
    is_number = version.isascii() and version.isdecimal() and len(version) > 5  # noqa: PLR2004 - major version of 3 digits, minor version, patch of 2 digits
    return f"{version[:3]}.{version[3:-2]}.{version[-2:]}" if is_number else version


def _format_cuda_version(version: str) -> str:
    """Return a CUDA version with a dot. Reports store 12.4 as the number 12040."""
    is_number = version.isascii() and version.isdecimal() and len(version) < 10  # noqa: PLR2004 - a 32-bit number
    return f"{int(version) // 1000}.{int(version) % 1000 // 10}" if is_number else version


_VERSIONS: dict[str, Callable[[str], str]] = {
    "driver_version": _format_driver_version,
    "cuda_version": _format_cuda_version,
}


def build_capture_info_columns(lookups: Lookups) -> Columns:
    """Return the columns ``name`` and ``value`` of ``capture_info``."""
    values = collect_capture_info_values(lookups)
    return {"name": pa.array(values.keys(), pa.string()), "value": pa.array(values.values(), pa.string())}


def build_device_columns(lookups: Lookups) -> Columns:
    """Return the columns of ``devices``: one row per GPU in the first source table of ``DEVICES`` that has rows.

    Nulls are replaced with the values that later source tables of ``DEVICES`` have for the same GPU.
    """
    listed: Columns = {}
    for origin in DEVICES:
        more = _read_declared_columns(lookups, origin)
        try:
            listed = _fill_nulls(listed, more, origin.fill_key) if _count_rows(listed) else more
        except ValueError as e:
            raise CorruptTraceError(str(e), path=lookups.path, table=origin.table, hint=lookups.tables.hint) from e
    return listed


def build_context_columns(lookups: Lookups) -> Columns:
    """Return the columns of ``contexts``: the rows of all source tables that list CUDA contexts."""
    listed = [
        pa.table(_read_declared_columns(lookups, origin))
        for origin in CONTEXTS
        if origin.table in lookups.tables.columns
    ]
    if not listed:
        return {}
    joined = pa.concat_tables(listed, promote_options="default")
    columns = dict(zip(joined.column_names, joined.columns, strict=True))
    parent = columns.get("parent_context_id")
    if parent is not None:
        columns["parent_context_id"] = pc.if_else(pc.equal(parent, 0), None, parent)
    if "is_green" in columns:
        columns["is_green"] = pc.not_equal(columns["is_green"], 0)
    return columns


def build_stream_columns(lookups: Lookups) -> Columns:
    """Return the columns of ``streams``, including the names that the program assigned to streams through NVTX."""
    table = "TARGET_INFO_CUDA_STREAM"
    if table not in lookups.tables.columns:
        return {}
    raw = lookups.fetch(table, [*_STREAM, "priority", "flag"])
    priority, kinds = raw["priority"], lookups.read_enum_labels("ENUM_CUPTI_STREAM_TYPE")
    return {
        **{name: raw[source] for source, name in _STREAM.items()},
        "priority": pc.if_else(pc.greater_equal(priority, 1 << 31), pc.subtract(priority, 1 << 32), priority),
        "stream_type": kinds.look_up_strings_of_ids(raw["flag"])[0],
        "name": _find_stream_names(lookups, raw),
    }


def resolve_process_ids(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the process id of each process, from its global id or, if that is null, from the column ``pid``."""
    return pc.coalesce(ids.extract_process_ids(source_rows["globalPid"]).cast(pa.int64()), source_rows["pid"])


def resolve_process_names(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the name of each process without folders, because folders may be private.

    A name such as ``kworker/0:1``, which does not begin like a path, is unchanged.
    """
    return extract_file_names(source_rows["name"])


def read_machine_columns(lookups: Lookups, table_name: str) -> Columns:
    """Read a declared table about the capture or its machine. Columns that the file lacks are null."""
    read = TABLES[table_name](lookups)
    kinds = {"int32": pa.int64(), "int64": pa.int64(), "bool": pa.bool_()}
    absent = {
        c.name: pa.nulls(_count_rows(read), kinds.get(c.type, pa.string())) for c in schemas.table(table_name).columns
    }
    return {c: read.get(c, nulls) for c, nulls in absent.items()}


TABLES: dict[str, Callable[[Lookups], Columns]] = {
    "capture_info": build_capture_info_columns,
    "devices": build_device_columns,
    "contexts": build_context_columns,
    "streams": build_stream_columns,
}
RESOLVERS: dict[str, dict[str, Resolver]] = {
    "processes": {"process_id": (("globalPid", "pid"), resolve_process_ids), "name": (("name",), resolve_process_names)}
}


def _count_rows(columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> int:
    """Return the number of rows of columns of equal length, or 0 if there are no columns."""
    return len(next(iter(columns.values()))) if columns else 0


def _read_named_values(lookups: Lookups, source_table: str) -> dict[str, str | None]:
    """Return the values of ``capture_info`` in a source table with the columns ``name`` and ``value``, by name.

    Names are in the order in which they first occur. If a name occurs several times, its last value is used.
    """
    if source_table not in lookups.tables.columns:
        return {}
    raw = lookups.fetch(source_table, ["name", "value"])
    raw = raw.filter(pc.is_in(raw["name"], pa.array(METADATA, pa.string())))
    firsts = sorted((row, name) for name in METADATA if (row := pc.index(raw["name"], name).as_py()) >= 0)
    values = {name: raw["value"].filter(pc.equal(raw["name"], name)) for _, name in firsts}
    return {METADATA[name]: column[len(column) - 1].as_py() for name, column in values.items()}


def _read_first_row(lookups: Lookups, source_table: str, *columns: str) -> dict[str, Any]:
    """Return the requested columns of the first row of a source table as Python objects, by column name.

    The mapping is empty if the table is missing or has no rows. The value of a missing column is None.
    """
    if source_table not in lookups.tables.columns:
        return {}
    rows = lookups.fetch(source_table, columns).slice(0, 1).to_pylist()
    return dict(rows[0]) if rows else {}


def _read_declared_columns(lookups: Lookups, source_table: SourceTable) -> Columns:
    """Return the declared columns that are read from one source table.

    If a declared column has several source columns, the first value that is not null is used.
    """
    if source_table.table not in lookups.tables.columns:
        return {}
    raw = lookups.fetch(
        source_table.table, list(dict.fromkeys(c for sources in source_table.columns.values() for c in sources))
    )
    return {name: pc.coalesce(*(raw[c] for c in sources)) for name, sources in source_table.columns.items()}


def _fill_nulls(rows: Columns, fallback: Columns, key: str | None) -> Columns:
    """Replace nulls in the columns of a table with values from another table.

    For each row, the values come from the first row of the other table with the same key.

    Args:
        rows: The columns whose nulls are replaced.
        fallback: The columns of the other table.
        key: Name of the column by which rows are matched, or None to replace no nulls.

    Raises:
        ValueError: The strings in a resulting column exceed the limit for a column of this many rows.
    """
    if key is None or not _count_rows(fallback):
        return rows
    numbers = col.concatenate_chunks(pc.index_in(rows[key], col.concatenate_chunks(fallback[key]), skip_nulls=True))
    filled = {
        c: pc.coalesce(data, _select_values_at(col.concatenate_chunks(fallback[c]), numbers))
        for c, data in rows.items()
        if c in fallback
    }
    return {**rows, **filled}


def _select_values_at(values: pa.Array, indices: pa.Array) -> pa.Array:
    """Return the values at the given row indices. A null index yields null."""
    if pa.types.is_string(values.type):
        return col.decode_dictionary(pa.DictionaryArray.from_arrays(indices, values))
    return values.take(indices)


def _find_stream_names(lookups: Lookups, streams: pa.Table) -> pa.Array:
    """Return the name of each stream in a table. If a stream has several names, the last name is used."""
    import polars as pl

    table, keys = "TARGET_INFO_NVTX_CUDA_STREAM", list(_STREAM)
    named = lookups.fetch(table, [*keys, "name"]) if table in lookups.tables.columns else None
    if named is None or not named.num_rows:
        return pa.nulls(streams.num_rows, pa.string())
    names = pl.DataFrame(named.select(keys)).with_row_index("row").unique(keys, keep="last")
    numbered = pl.DataFrame(streams.select(keys)).join(
        names, on=keys, how="left", nulls_equal=True, maintain_order="left"
    )
    try:
        return _select_values_at(col.concatenate_chunks(named["name"]), numbered["row"].to_arrow().cast(pa.int32()))
    except ValueError as e:
        raise CorruptTraceError(str(e), path=lookups.path, table=table, hint=lookups.tables.hint) from e
