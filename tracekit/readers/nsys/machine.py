"""The tables of an export about the capture and its machine: facts, devices, contexts, streams, processes, threads.

All are read by column: a damaged file may list a million devices. From which source tables, in which version, is told
in ``versions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import CorruptTraceError
from tracekit.readers.common import columns as col
from tracekit.readers.nsys import ids
from tracekit.readers.nsys.tables import Where
from tracekit.readers.nsys.versions import CONTEXTS, DEVICES, FACT_TABLES, FACTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.readers.nsys.lookups import Lookups, Resolver
    from tracekit.readers.nsys.versions import Origin

    Columns = dict[str, pa.Array | pa.ChunkedArray]
    """Columns of n rows by name."""

_SYSTEM = {
    "gpuCount": "gpu_count",
    "cpuModel": "cpu_model",
    "driverVersion": "driver_version",
    "framework": "framework",
    "cudaVersion": "cuda_version",
    "cudnnVersion": "cudnn_version",
    "nsysVersion": "nsys_version",
}
"""What DLProf noted of the machine in the export that it read."""

_STREAM = {"processId": "process_id", "contextId": "context_id", "streamId": "stream_id"}
"""Source columns that a stream is known by, and the declared ones."""

_ENVIRONMENT = "TARGET_INFO_SYSTEM_ENV"
_PROPERTIES = {13: "cpu_model", 205: "driver_version", 605: "os", 611: "cuda_version"}
"""Numbers of the properties that are public; others name the host and its users, or hold whole environments."""

_LONGEST_PROPERTY = 256


def facts(capture: Lookups) -> dict[str, str]:
    """Read what is public of the capture: tool, versions, origin, extent."""
    values: dict[str, Any] = {}
    for table in FACT_TABLES:
        values |= _named_values(capture, table)
    values |= {"origin_utc_ns": _first(capture, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs").get("utcEpochNs")}
    values |= {"duration_ns": _first(capture, "ANALYSIS_DETAILS", "duration").get("duration")}
    values |= _machine(capture)
    system = _first(capture, "SystemInfo", *_SYSTEM)
    values |= {fact: system[column] for column, fact in _SYSTEM.items() if column in system}
    return {k: str(v) for k, v in values.items() if v is not None}


def _machine(capture: Lookups) -> dict[str, str]:
    """Read the public properties of the machine; of several machines those of the first."""
    if not {"nameEnum", "value"} <= set(capture.tables.columns.get(_ENVIRONMENT, ())):
        return {}
    listed = capture.fetch(_ENVIRONMENT, ["nameEnum", "value"], Where("nameEnum", tuple(_PROPERTIES)))
    firsts = listed.filter(pc.less_equal(pc.binary_length(listed["value"]), _LONGEST_PROPERTY)).group_by(
        "nameEnum", use_threads=False
    )
    first = firsts.aggregate([("value", "first")])
    found = dict(zip(first["nameEnum"].to_pylist(), first["value_first"].to_pylist(), strict=True))
    named = {_PROPERTIES[number]: value for number, value in found.items() if number in _PROPERTIES and value}
    return {name: _VERSIONS.get(name, str)(value) for name, value in named.items()}


def _driver(text: str) -> str:
    """Return the version of a driver, which reports up to 2023 keep as one number: 515.43.04 for 5154304."""
    whole = text.isascii() and text.isdecimal() and len(text) > 5  # noqa: PLR2004 - three, at least one, two digits
    return f"{text[:3]}.{text[3:-2]}.{text[-2:]}" if whole else text


def _cuda(text: str) -> str:
    """Return a version of CUDA: 12.4 for 12040."""
    whole = text.isascii() and text.isdecimal() and len(text) < 10  # noqa: PLR2004 - what fits
    return f"{int(text) // 1000}.{int(text) % 1000 // 10}" if whole else text


_VERSIONS: dict[str, Callable[[str], str]] = {"driver_version": _driver, "cuda_version": _cuda}


def capture_info(capture: Lookups) -> Columns:
    """Return the facts, one row each."""
    known = facts(capture)
    return {"name": pa.array(known.keys(), pa.string()), "value": pa.array(known.values(), pa.string())}


def devices(capture: Lookups) -> Columns:
    """Return one row per GPU of the first table that lists them; other tables complete these rows."""
    listed: Columns = {}
    for origin in DEVICES:
        more = _declared(capture, origin)
        try:
            listed = _completed(listed, more, origin.completes) if _height(listed) else more
        except ValueError as e:
            raise CorruptTraceError(str(e), path=capture.path, table=origin.table, hint=capture.tables.hint) from e
    return listed


def contexts(capture: Lookups) -> Columns:
    """Return one row per CUDA context of every table that lists them."""
    listed = [pa.table(_declared(capture, origin)) for origin in CONTEXTS if origin.table in capture.tables.columns]
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


def streams(capture: Lookups) -> Columns:
    """Return one row per CUDA stream, with the name that NVTX gave it."""
    table = "TARGET_INFO_CUDA_STREAM"
    if table not in capture.tables.columns:
        return {}
    raw = capture.fetch(table, [*_STREAM, "priority", "flag"])
    priority, kinds = raw["priority"], capture.labels("ENUM_CUPTI_STREAM_TYPE")
    return {
        **{name: raw[source] for source, name in _STREAM.items()},
        "priority": pc.if_else(pc.greater_equal(priority, 1 << 31), pc.subtract(priority, 1 << 32), priority),
        "stream_type": kinds.look_up(raw["flag"])[0],
        "name": _stream_names(capture, raw),
    }


def process_id(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """The system's number of the process, packed or plain."""
    return pc.coalesce(ids.process_id(raw["globalPid"]).cast(pa.int64()), raw["pid"])


def process_name(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """Name of the process; of a path (never of ``kworker/0:1``) without the folder, which may name a user."""
    return pc.replace_substring_regex(raw["name"], r"(?s)^(?:[/.~]|[A-Za-z]:[\\/]|\\\\).*[/\\]", "")


def columns(capture: Lookups, name: str) -> Columns:
    """Read a whole table; a column that no source has is null."""
    read = TABLES[name](capture)
    kinds = {"int32": pa.int64(), "int64": pa.int64(), "bool": pa.bool_()}
    absent = {c.name: pa.nulls(_height(read), kinds.get(c.type, pa.string())) for c in schemas.table(name).columns}
    return {c: read.get(c, nulls) for c, nulls in absent.items()}


TABLES: dict[str, Callable[[Lookups], Columns]] = {
    "capture_info": capture_info,
    "devices": devices,
    "contexts": contexts,
    "streams": streams,
}
FILTERS = {"threads": Where("globalTid")}
RESOLVERS: dict[str, dict[str, Resolver]] = {
    "processes": {"process_id": (("globalPid", "pid"), process_id), "name": (("name",), process_name)}
}


def _height(columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> int:
    return len(next(iter(columns.values()))) if columns else 0


def _named_values(capture: Lookups, table: str) -> dict[str, str | None]:
    """Return the facts of a table of names and values, in its order; of a repeated name the last value counts."""
    if table not in capture.tables.columns:
        return {}
    raw = capture.fetch(table, ["name", "value"])
    raw = raw.filter(pc.is_in(raw["name"], pa.array(FACTS, pa.string())))
    firsts = sorted((row, name) for name in FACTS if (row := pc.index(raw["name"], name).as_py()) >= 0)
    values = {name: raw["value"].filter(pc.equal(raw["name"], name)) for _, name in firsts}
    return {FACTS[name]: found[len(found) - 1].as_py() for name, found in values.items()}


def _first(capture: Lookups, table: str, *wanted: str) -> dict[str, Any]:
    """Return columns of the first row of a source table; nothing if there is none, None where a column is absent."""
    if table not in capture.tables.columns:
        return {}
    rows = capture.fetch(table, wanted).slice(0, 1).to_pylist()
    return dict(rows[0]) if rows else {}


def _declared(capture: Lookups, origin: Origin) -> Columns:
    """Read an origin as declared: of the source columns of each column the first that holds a value."""
    if origin.table not in capture.tables.columns:
        return {}
    raw = capture.fetch(origin.table, list(dict.fromkeys(c for sources in origin.columns.values() for c in sources)))
    return {name: pc.coalesce(*(raw[c] for c in sources)) for name, sources in origin.columns.items()}


def _completed(listed: Columns, more: Columns, key: str | None) -> Columns:
    """Fill what is null in some rows from others of the same key; of several the first counts.

    Raises:
        ValueError: Their texts would take far more memory than the file has bytes.
    """
    if key is None or not _height(more):
        return listed
    rows = col.single_array(pc.index_in(listed[key], col.single_array(more[key]), skip_nulls=True))
    filled = {c: pc.coalesce(data, _taken(col.single_array(more[c]), rows)) for c, data in listed.items() if c in more}
    return {**listed, **filled}


def _taken(values: pa.Array, rows: pa.Array) -> pa.Array:
    """Return the value of each row [n]; null where there is none."""
    if pa.types.is_string(values.type):
        return col.decode_dictionary(pa.DictionaryArray.from_arrays(rows, values))
    return values.take(rows)


def _stream_names(capture: Lookups, streams: pa.Table) -> pa.Array:
    """Return the name of each stream [n]; of several the last counts."""
    import polars as pl

    table, keys = "TARGET_INFO_NVTX_CUDA_STREAM", list(_STREAM)
    named = capture.fetch(table, [*keys, "name"]) if table in capture.tables.columns else None
    if named is None or not named.num_rows:
        return pa.nulls(streams.num_rows, pa.string())
    names = pl.DataFrame(named.select(keys)).with_row_index("nth").unique(keys, keep="last")
    of = pl.DataFrame(streams.select(keys)).join(names, on=keys, how="left", nulls_equal=True, maintain_order="left")
    try:
        return _taken(col.single_array(named["name"]), of["nth"].to_arrow().cast(pa.int32()))
    except ValueError as e:
        raise CorruptTraceError(str(e), path=capture.path, table=table, hint=capture.tables.hint) from e
