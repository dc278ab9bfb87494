"""NVTX events of an export: ranges and marks, with domains, categories and payloads resolved.

An event has its text inline or as a registered string. Domains and categories are named by events of their own, valid
within one process; a category belongs to a domain.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col
from tracekit.readers.nsys import ids
from tracekit.readers.nsys.lookups import request
from tracekit.readers.nsys.tables import Where

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.readers.nsys.lookups import Lookups, Resolver
    from tracekit.readers.nsys.tables import Request

EVENTS = "NVTX_EVENTS"
PUSH_POP, START_END = (59, 70), (60, 71)
MARKS = (34, 65)

FILTERS = {
    "nvtx_ranges": Where("eventType", PUSH_POP + START_END),
    "nvtx_marks": Where("eventType", MARKS),
}
_DEFINITION_BYTES = 1 << 10
_INTS = {"uint64": "uint64Value", "int64": "int64Value", "uint32": "uint32Value", "int32": "int32Value"}
_FLOATS = {"double": "doubleValue", "float": "floatValue"}
_TEXTS = {"json": "jsonText", "binary": "binaryData"}
_SOURCES = (*_INTS.items(), *_FLOATS.items(), ("json", "jsonTextId"), *_TEXTS.items())
_PAYLOADS = (*_INTS.values(), *_FLOATS.values(), "jsonTextId", *_TEXTS.values())


def name(capture: Lookups, table: str, raw: pa.Table) -> pa.Array:
    """The registered text where there is one, else the inline text."""
    registered = capture.look_up(table, "name", raw["textId"], capture.strings)
    return col.coalesce_dictionaries(registered, col.single_array(raw["text"]))


def kind(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """push_pop or start_end."""
    is_start_end = pc.is_in(raw["eventType"], pa.array(START_END, pa.int64()))
    return col.compact_dictionary(is_start_end.cast(pa.int32()), pa.array(["push_pop", "start_end"]))


def domain_id(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """The domain; an event without one is in the default domain."""
    domains = raw["domainId"]
    return pc.fill_null(domains, 0) if domains.null_count else domains


def domain(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """Key of the domain: process and domain id. The name is put there when the whole file is read."""
    return _keys(raw["globalTid"], raw["domainId"])


def category(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """Key of the category: process, domain and category id. The name is put there when the whole file is read."""
    return _keys(raw["globalTid"], raw["domainId"], raw["category"])


def payload_type(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """Which of the payload columns is filled; the first if several are."""
    sources = [(name, c) for name, c in _SOURCES if not col.is_empty(raw[c])]
    codes = [pc.if_else(raw[c].is_valid(), pa.scalar(i, pa.int32()), None) for i, (_, c) in enumerate(sources)]
    names = pa.array([name for name, _ in sources], pa.string())
    return col.compact_dictionary(pc.coalesce(*codes), names) if codes else pa.nulls(len(raw), col.DICTIONARY)


def payload_int(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """The integer payload."""
    return col.coalesce(*(raw[c] for c in _INTS.values()))


def payload_float(_: Lookups, __: str, raw: pa.Table) -> pa.Array:
    """The floating point payload."""
    return col.coalesce(*(raw[c] for c in _FLOATS.values()))


def payload_text(capture: Lookups, table: str, raw: pa.Table) -> pa.Array:
    """The JSON payload, inline or registered, else the binary payload as it was encoded."""
    inline = [raw[c] for c in _TEXTS.values()]
    if col.is_empty(raw["jsonTextId"]):
        return col.coalesce(*inline)
    registered = capture.look_up(table, "payload_text", raw["jsonTextId"], capture.strings)
    capture.check_texts(table, registered)
    return col.coalesce(registered.cast(pa.string()), *inline)


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


class Definition(NamedTuple):
    """Events that name something.

    Attributes:
        column: Declared column of the names.
        types: Event types.
        keys: Columns that tell, with the process, what is named.
    """

    column: str
    types: tuple[int, ...]
    keys: tuple[str, ...]

    def request(self) -> Request[dict[str, pa.Array]]:
        """Ask for the events; each of them becomes a row of Python objects."""
        columns = ["start", "globalTid", "textId", "text", *self.keys]
        return replace(request(EVENTS, columns, Where("eventType", self.types)), row_bytes=_DEFINITION_BYTES)


DEFINITIONS = (Definition("domain", (75,), ("domainId",)), Definition("category", (33, 64), ("domainId", "category")))


def unknown(capture: Lookups, wanted: Mapping[str, Sequence[str]]) -> list[Definition]:
    """Return the definitions that columns of tables need and that are not read yet."""
    columns = {c for table in RESOLVERS for c in wanted.get(table, ())}
    return [d for d in DEFINITIONS if d.column in columns and d.column not in capture.names_of]


def learn(capture: Lookups, definition: Definition, raw: pa.Table) -> None:
    """Keep which names the events gave, by process, domain and further keys; the earliest name counts."""
    named = raw.append_column("name", name(capture, EVENTS, raw).cast(pa.string()))
    named = named.append_column("process", ids.process_id(raw["globalTid"])).sort_by("start")
    found: dict[str, str] = {}
    for row in named.select(["process", *definition.keys, "name"]).to_pylist():
        process, domain, *rest, text = row.values()
        key = _key(process, domain or 0, *rest)
        if text is not None and key is not None:
            found.setdefault(key, text)
    capture.names_of[definition.column] = found


def tell_names(capture: Lookups, made: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Put names in the place of keys: columns of n rows in, the same out."""
    return {c: _named(data, capture.names_of[c]) if c in capture.names_of else data for c, data in made.items()}


def _named(keys: pa.Array | pa.ChunkedArray, names: Mapping[str, str]) -> pa.Array:
    """Resolve keys that events of their own have named: n keys in, n names out."""
    used = col.single_array(keys)
    return col.dictionary_array(
        used.indices, pa.array([names.get(k) for k in used.dictionary.to_pylist()], pa.string())
    )


def _keys(threads: pa.ChunkedArray, domains: pa.ChunkedArray, *rest: pa.ChunkedArray) -> pa.Array:
    """Make texts of keys: n rows in, n texts out, null where a key is."""
    if any(col.is_empty(c) for c in rest):
        return pa.nulls(len(threads), col.DICTIONARY)
    numbers, rows = col.encode_rows(threads, domains, *rest)
    processes = ids.process_id(pa.array([thread for thread, *_ in rows], pa.int64())).to_pylist()
    keys = [_key(p, domain or 0, *others) for p, (_, domain, *others) in zip(processes, rows, strict=True)]
    return col.dictionary_array(numbers, pa.array(keys, pa.string()))


def _key(*numbers: int | None) -> str | None:
    return None if None in numbers else "/".join(map(str, numbers))
