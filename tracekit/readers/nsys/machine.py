"""The tables of an export about the capture and its machine: facts, devices, contexts, streams, processes, threads.

Processes and threads can be many and are read by column. The others are read whole, row by row; from where, in which
version, is told in ``versions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.readers.nsys import ids
from tracekit.readers.nsys.tables import Where
from tracekit.readers.nsys.versions import CONTEXTS, DEVICES, FACT_TABLES, FACTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracekit.readers.nsys.lookups import Lookups, Resolver
    from tracekit.readers.nsys.versions import Origin

    Row = dict[str, Any]

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

_ENVIRONMENT = "TARGET_INFO_SYSTEM_ENV"
_PROPERTIES = {13: "cpu_model", 205: "driver_version", 605: "os", 611: "cuda_version"}
"""Numbers of the properties that are public; others name the host and its users, or hold whole environments."""

_LONGEST_PROPERTY = 256


def facts(capture: Lookups) -> dict[str, str]:
    """Read what is public of the capture: tool, versions, origin, extent."""
    found: dict[str, Any] = {}
    for table in FACT_TABLES:
        listed = rows(capture, table, "name", "value")
        found.update({FACTS[r["name"]]: r["value"] for r in listed if r["name"] in FACTS})
    for r in rows(capture, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")[:1]:
        found["origin_utc_ns"] = r["utcEpochNs"]
    for r in rows(capture, "ANALYSIS_DETAILS", "duration")[:1]:
        found["duration_ns"] = r["duration"]
    found |= _machine(capture)
    for r in rows(capture, "SystemInfo", *_SYSTEM)[:1]:
        found.update({fact: r[column] for column, fact in _SYSTEM.items()})
    return {k: str(v) for k, v in found.items() if v is not None}


def _machine(capture: Lookups) -> dict[str, str]:
    """Read the public properties of the machine; of several machines those of the first."""
    if not {"nameEnum", "value"} <= set(capture.tables.columns.get(_ENVIRONMENT, ())):
        return {}
    listed = capture.fetch(_ENVIRONMENT, ["nameEnum", "value"], Where("nameEnum", tuple(_PROPERTIES))).to_pylist()
    found: dict[str, str] = {}
    for r in listed:
        name, value = _PROPERTIES.get(r["nameEnum"]), r["value"]
        if name and value and len(value) <= _LONGEST_PROPERTY:
            found.setdefault(name, _VERSIONS.get(name, str)(value))
    return found


def _driver(text: str) -> str:
    """Return the version of a driver, which reports up to 2023 keep as one number: 515.43.04 for 5154304."""
    whole = text.isascii() and text.isdecimal() and len(text) > 5  # noqa: PLR2004 - three, at least one, two digits
    return f"{text[:3]}.{text[3:-2]}.{text[-2:]}" if whole else text


def _cuda(text: str) -> str:
    """Return a version of CUDA: 12.4 for 12040."""
    whole = text.isascii() and text.isdecimal() and len(text) < 10  # noqa: PLR2004 - what fits
    return f"{int(text) // 1000}.{int(text) % 1000 // 10}" if whole else text


_VERSIONS: dict[str, Callable[[str], str]] = {"driver_version": _driver, "cuda_version": _cuda}


def capture_info(capture: Lookups) -> Iterable[Row]:
    """The facts as rows."""
    return ({"name": k, "value": v} for k, v in facts(capture).items())


def devices(capture: Lookups) -> Iterable[Row]:
    """One row a GPU, of the first table that lists them; others complete it."""
    found: list[Row] = []
    for origin in DEVICES:
        listed = made(capture, origin)
        found = _completed(found, listed, origin.completes) if found else listed
    return found


def contexts(capture: Lookups) -> Iterable[Row]:
    """One row a CUDA context, of every table that lists them."""
    for origin in CONTEXTS:
        for r in made(capture, origin):
            green = r.get("is_green")
            parent = r.get("parent_context_id") or None
            yield {**r, "parent_context_id": parent, "is_green": None if green is None else bool(green)}


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


def made(capture: Lookups, origin: Origin) -> list[Row]:
    """Read the rows of an origin as declared: of the source columns of each column the first that holds a value."""
    listed = rows(capture, origin.table, *dict.fromkeys(c for sources in origin.columns.values() for c in sources))
    return [
        {name: next((r[c] for c in sources if r[c] is not None), None) for name, sources in origin.columns.items()}
        for r in listed
    ]


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


def _completed(found: list[Row], more: list[Row], key: str | None) -> list[Row]:
    """Fill what is null in some rows from others of the same key; of several the first counts."""
    if key is None:
        return found
    known = {r[key]: r for r in reversed(more) if r[key] is not None}
    return [{c: known.get(r[key], r).get(c) if v is None else v for c, v in r.items()} for r in found]


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
