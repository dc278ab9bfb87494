"""NVTX events of an export: ranges and marks, with domains, categories and payloads resolved.

An event has its text inline or as a registered string. Domains and categories are named by events of their own, valid
within one process; a category belongs to a domain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers import columns as col
from tracekit.readers.nsys import ids
from tracekit.readers.nsys.tables import Where

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.nsys.lookups import Lookups, Resolver

EVENTS = "NVTX_EVENTS"
PUSH_POP, START_END = (59, 70), (60, 71)
MARKS = (34, 65)
CATEGORY, DOMAIN_CREATE = (33, 64), (75,)

FILTERS = {
    "nvtx_ranges": Where("eventType", PUSH_POP + START_END),
    "nvtx_marks": Where("eventType", MARKS),
}
_INTS = {"uint64": "uint64Value", "int64": "int64Value", "uint32": "uint32Value", "int32": "int32Value"}
_FLOATS = {"double": "doubleValue", "float": "floatValue"}
_TEXTS = {"json": "jsonText", "binary": "binaryData"}
_SOURCES = (*_INTS.items(), *_FLOATS.items(), ("json", "jsonTextId"), *_TEXTS.items())
_PAYLOADS = (*_INTS.values(), *_FLOATS.values(), "jsonTextId", *_TEXTS.values())


def name(capture: Lookups, table: str, raw: pa.Table) -> pa.Array:
    """The registered text where there is one, else the inline text."""
    registered = capture.look_up(table, "name", raw["textId"], capture.strings)
    return col.first_of(registered, col.whole(raw["text"]))


def kind(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """push_pop or start_end."""
    is_start_end = pc.is_in(raw["eventType"], pa.array(START_END, pa.int64()))
    return col.compact(is_start_end.cast(pa.int32()), pa.array(["push_pop", "start_end"]))


def domain_id(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """The domain; an event without one is in the default domain."""
    domains = raw["domainId"]
    return pc.fill_null(domains, 0) if domains.null_count else domains


def domain(capture: Lookups, _: str, raw: pa.Table) -> pa.Array:
    """Name of the domain, by process and domain id; of several the earliest."""
    return _named(_names(capture, DOMAIN_CREATE, "domainId"), raw["globalTid"], raw["domainId"])


def category(capture: Lookups, _: str, raw: pa.Table) -> pa.Array:
    """Name of the category, by process, domain and category id; of several the earliest."""
    return _named(_names(capture, CATEGORY, "domainId", "category"), raw["globalTid"], raw["domainId"], raw["category"])


def payload_type(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """Which of the payload columns is filled; the first if several are."""
    sources = [(name, c) for name, c in _SOURCES if not col.is_empty(raw[c])]
    codes = [pc.if_else(raw[c].is_valid(), pa.scalar(i, pa.int32()), None) for i, (_, c) in enumerate(sources)]
    names = pa.array([name for name, _ in sources], pa.string())
    return col.compact(pc.coalesce(*codes), names) if codes else pa.nulls(len(raw), col.DICTIONARY)


def payload_int(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """The integer payload."""
    return col.coalesced(*(raw[c] for c in _INTS.values()))


def payload_float(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """The floating point payload."""
    return col.coalesced(*(raw[c] for c in _FLOATS.values()))


def payload_text(capture: Lookups, table: str, raw: pa.Table) -> pa.Array:
    """The JSON payload, inline or registered, else the binary payload as it was encoded."""
    registered = capture.look_up(table, "payload_text", raw["jsonTextId"], capture.strings)
    return col.coalesced(registered.cast(pa.string()), *(raw[c] for c in _TEXTS.values()))


_COMMON: dict[str, Resolver] = {
    "name": (("textId", "text"), name),
    "domain_id": (("domainId",), domain_id),
    "domain": (("globalTid", "domainId"), domain),
    "category": (("globalTid", "domainId", "category"), category),
    "payload_type": (_PAYLOADS, payload_type),
    "payload_int": (tuple(_INTS.values()), payload_int),
    "payload_float": (tuple(_FLOATS.values()), payload_float),
    "payload_text": (("jsonTextId", *_TEXTS.values()), payload_text),
}
RESOLVERS: dict[str, dict[str, Resolver]] = {
    "nvtx_ranges": {**_COMMON, "kind": (("eventType",), kind)},
    "nvtx_marks": _COMMON,
}


def _names(capture: Lookups, types: tuple[int, ...], *keys: str) -> dict[tuple[int | None, ...], str]:
    return capture.once(("names", types), lambda: definitions(capture, types, *keys))


def definitions(capture: Lookups, types: tuple[int, ...], *keys: str) -> dict[tuple[int | None, ...], str]:
    """Read which names the events of some types gave, by process, domain and further keys; the earliest name counts."""
    raw = capture.fetch(EVENTS, ["start", "globalTid", "textId", "text", *keys], Where("eventType", types))
    named = raw.append_column("name", name(capture, EVENTS, raw).cast(pa.string()))
    named = named.append_column("process", ids.process_id(raw["globalTid"])).sort_by("start")
    found: dict[tuple[int | None, ...], str] = {}
    for row in named.select(["process", *keys, "name"]).to_pylist():
        process, domain, *rest, text = row.values()
        if text is not None:
            found.setdefault((process, domain or 0, *rest), text)
    return found


def _named(names: Mapping[tuple[int | None, ...], str], *columns: pa.ChunkedArray) -> pa.Array:
    """Resolve ids that events of their own have named: n rows in, n names out."""
    if not names:
        return pa.nulls(len(columns[0]), col.DICTIONARY)
    threads, domains, *rest = columns
    numbers, keys = col.number_rows(ids.process_id(threads), pc.fill_null(domains, 0), *rest)
    return col.named(numbers, pa.array([names.get(k) for k in keys], pa.string()))
