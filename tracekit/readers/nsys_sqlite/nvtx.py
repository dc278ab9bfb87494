"""NVTX events of an export: ranges and marks, with domains, categories and payloads resolved.

An event has its text inline or as a registered string. Domains and categories are named by events of their own, valid
within one process; a category belongs to a domain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.nsys_sqlite import columns as col

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.readers.nsys_sqlite.capture import NsysCapture

    Resolver = tuple[tuple[str, ...], Callable[[NsysCapture, str, pa.Table], pa.Array]]

EVENTS = "NVTX_EVENTS"
PUSH_POP, START_END = (59, 70), (60, 71)
MARKS = (34, 65)
CATEGORY, DOMAIN_CREATE = (33, 64), (75,)

FILTERS = {
    "nvtx_ranges": f'"eventType" IN {PUSH_POP + START_END}',
    "nvtx_marks": f'"eventType" IN {MARKS}',
}
_INTS = {"uint64": "uint64Value", "int64": "int64Value", "uint32": "uint32Value", "int32": "int32Value"}
_FLOATS = {"double": "doubleValue", "float": "floatValue"}
_TEXTS = {"json": "jsonText", "binary": "binaryData"}
_PAYLOADS = (*_INTS.values(), *_FLOATS.values(), "jsonTextId", *_TEXTS.values())


def name(capture: NsysCapture, table: str, raw: pa.Table) -> pa.Array:
    """The registered text where there is one, else the inline text."""
    registered = capture.look_up(table, "name", raw["textId"], capture.strings)
    return col.first_of(registered, raw["text"].combine_chunks().dictionary_encode())


def kind(_: NsysCapture, __: str, raw: pa.Table) -> pa.Array:
    """push_pop or start_end."""
    is_start_end = pc.is_in(raw["eventType"], pa.array(START_END, pa.int64()))
    return pa.DictionaryArray.from_arrays(is_start_end.combine_chunks().cast(pa.int32()), ["push_pop", "start_end"])


def domain_id(_: NsysCapture, __: str, raw: pa.Table) -> pa.Array:
    """The domain; an event without one is in the default domain."""
    return pc.fill_null(raw["domainId"], 0)


def domain(capture: NsysCapture, _: str, raw: pa.Table) -> pa.Array:
    """Name of the domain, by process and domain id; of several the earliest."""
    return _named(capture, raw, DOMAIN_CREATE, ("domainId",))


def category(capture: NsysCapture, _: str, raw: pa.Table) -> pa.Array:
    """Name of the category, by process, domain and category id; of several the earliest."""
    return _named(capture, raw, CATEGORY, ("domainId", "category"))


def payload_type(_: NsysCapture, __: str, raw: pa.Table) -> pa.Array:
    """Which of the payload columns is filled; the first if several are."""
    sources = {**_INTS, **_FLOATS, "json": "jsonTextId", **_TEXTS}
    codes = [pc.if_else(raw[c].is_valid(), pa.scalar(i, pa.int32()), None) for i, c in enumerate(sources.values())]
    codes.append(pc.if_else(raw["jsonText"].is_valid(), pa.scalar(list(sources).index("json"), pa.int32()), None))
    return col.compact(pc.coalesce(*codes), pa.array(sources))


def payload_int(_: NsysCapture, __: str, raw: pa.Table) -> pa.Array:
    """The integer payload."""
    return pc.coalesce(*(raw[c] for c in _INTS.values()))


def payload_float(_: NsysCapture, __: str, raw: pa.Table) -> pa.Array:
    """The floating point payload."""
    return pc.coalesce(*(raw[c] for c in _FLOATS.values()))


def payload_text(capture: NsysCapture, table: str, raw: pa.Table) -> pa.Array:
    """The JSON payload, inline or registered, else the binary payload as it was encoded."""
    registered = capture.look_up(table, "payload_text", raw["jsonTextId"], capture.strings)
    texts = (raw[c].combine_chunks().cast(pa.string()) for c in _TEXTS.values())
    return pc.coalesce(registered.cast(pa.string()), *texts)


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


def _named(capture: NsysCapture, raw: pa.Table, types: tuple[int, ...], keys: tuple[str, ...]) -> pa.Array:
    """Resolve ids that events of their own have named: n rows in, n names out."""
    names = _definitions(capture, types, keys)
    fields = [col.process_id(raw["globalTid"]).cast(pa.int64()), pc.fill_null(raw["domainId"], 0)]
    fields += [raw[k] for k in keys[1:]]
    packed = pc.binary_join_element_wise(*(f.cast(pa.string()) for f in fields), "/").combine_chunks().dictionary_encode()
    return col.compact(packed.indices, pa.array([names.get(k) for k in packed.dictionary.to_pylist()], pa.string()))


def _definitions(capture: NsysCapture, types: tuple[int, ...], keys: tuple[str, ...]) -> dict[str, str]:
    """Read which names the events of some types gave: {'process/id…': name}, the earliest first."""
    listed = ", ".join(map(str, types))
    raw = capture.fetch(EVENTS, ["start", "globalTid", "textId", "text", *keys], f'"eventType" IN ({listed})')
    named = raw.append_column("name", name(capture, "nvtx_ranges", raw).cast(pa.string()))
    named = named.append_column("process", col.process_id(raw["globalTid"])).sort_by("start")
    found: dict[str, str] = {}
    for row in named.select(["process", *keys, "name"]).to_pylist():
        process, domain, *rest, text = row.values()
        if text is not None:
            found.setdefault("/".join(map(str, (process, domain or 0, *rest))), text)
    return found
