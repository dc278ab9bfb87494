"""Compute the names, domains, categories and payloads of NVTX ranges and marks.

The name of an event is either inline text or a registered string. Separate events define the names of domains and
categories. Domain ids are unique within a process, and category ids are unique within a domain.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col
from tracekit.readers.nsys import ids
from tracekit.readers.nsys.lookups import create_source_request
from tracekit.readers.nsys.tables import Where

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.readers.nsys.lookups import Lookups, Resolver
    from tracekit.readers.nsys.tables import ColumnsRequest

SOURCE_TABLE = "NVTX_EVENTS"
PUSH_POP, START_END = (59, 70), (60, 71)
MARKS = (34, 65)

FILTERS = {
    "nvtx_ranges": Where("eventType", PUSH_POP + START_END),
    "nvtx_marks": Where("eventType", MARKS),
}
_DEFINITION_BYTES = 1 << 10
_INTS = {"uint64": "uint64Value", "int64": "int64Value", "uint32": "uint32Value", "int32": "int32Value"}
_FLOATS = {"double": "doubleValue", "float": "floatValue"}
_STRINGS = {"json": "jsonText", "binary": "binaryData"}
_SOURCES = (*_INTS.items(), *_FLOATS.items(), ("json", "jsonTextId"), *_STRINGS.items())
_PAYLOADS = (*_INTS.values(), *_FLOATS.values(), "jsonTextId", *_STRINGS.values())


def resolve_event_names(lookups: Lookups, table: str, source_rows: pa.Table) -> pa.Array:
    """Return the name of each event: its registered string, or its inline text if it has no registered string."""
    registered = lookups.look_up_strings(table, "name", source_rows["textId"], lookups.strings)
    return col.coalesce_dictionaries(registered, col.concatenate_chunks(source_rows["text"]))


def resolve_range_kinds(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the kind of each range: ``push_pop`` or ``start_end``."""
    is_start_end = pc.is_in(source_rows["eventType"], pa.array(START_END, pa.int64()))
    return col.compact_dictionary(is_start_end.cast(pa.int32()), pa.array(["push_pop", "start_end"]))


def resolve_domain_ids(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the domain id of each event. Events without a domain have 0, the id of the default domain."""
    domains = source_rows["domainId"]
    return pc.fill_null(domains, 0) if domains.null_count else domains


def compute_domain_keys(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the domain key of each event, which combines the process id and the domain id.

    ``replace_name_keys_with_names`` later replaces the key with the domain name.
    """
    return _format_key_strings(source_rows["globalTid"], source_rows["domainId"])


def compute_category_keys(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the category key of each event, which combines the process id, the domain id and the category id.

    ``replace_name_keys_with_names`` later replaces the key with the category name.
    """
    return _format_key_strings(source_rows["globalTid"], source_rows["domainId"], source_rows["category"])


def resolve_payload_types(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the payload type of each event, such as ``int64`` or ``json``, or null for an event without payload.

    The type is that of the first payload column that is not null.
    """
    sources = [(name, c) for name, c in _SOURCES if not col.is_all_null(source_rows[c])]
    codes = [pc.if_else(source_rows[c].is_valid(), pa.scalar(i, pa.int32()), None) for i, (_, c) in enumerate(sources)]
    names = pa.array([name for name, _ in sources], pa.string())
    return col.compact_dictionary(pc.coalesce(*codes), names) if codes else pa.nulls(len(source_rows), col.DICTIONARY)


def resolve_payload_ints(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the integer payload of each event, or null for an event without integer payload."""
    return col.coalesce(*(source_rows[c] for c in _INTS.values()))


def resolve_payload_floats(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the floating-point payload of each event, or null for an event without floating-point payload."""
    return col.coalesce(*(source_rows[c] for c in _FLOATS.values()))


def resolve_payload_strings(lookups: Lookups, table: str, source_rows: pa.Table) -> pa.Array:
    """Return the text payload of each event: a registered JSON string, inline JSON, or a formatted binary payload."""
    inline = [source_rows[c] for c in _STRINGS.values()]
    if col.is_all_null(source_rows["jsonTextId"]):
        return col.coalesce(*inline)
    registered = lookups.look_up_strings(table, "payload_text", source_rows["jsonTextId"], lookups.strings)
    lookups.reserve_string_memory(table, registered)
    return col.coalesce(registered.cast(pa.string()), *inline)


_COMMON: dict[str, Resolver] = {
    "name": (("textId", "text"), resolve_event_names),
    "domain_id": (("domainId",), resolve_domain_ids),
    "domain": (("globalTid", "domainId"), compute_domain_keys),
    "category": (("globalTid", "domainId", "category"), compute_category_keys),
    "payload_type": (_PAYLOADS, resolve_payload_types),
    "payload_int": (tuple(_INTS.values()), resolve_payload_ints),
    "payload_float": (tuple(_FLOATS.values()), resolve_payload_floats),
    "payload_text": (("jsonTextId", *_STRINGS.values()), resolve_payload_strings),
}
RESOLVERS: dict[str, dict[str, Resolver]] = {
    "nvtx_ranges": {**_COMMON, "kind": (("eventType",), resolve_range_kinds)},
    "nvtx_marks": _COMMON,
}


class NameDefinition(NamedTuple):
    """A description of the NVTX events that define the names of either domains or categories.

    Attributes:
        column: Declared column that holds the defined names: ``domain`` or ``category``.
        types: Values of the source column ``eventType`` of the events that define a name.
        keys: Source columns whose values identify the named domain or category within a process.
    """

    column: str
    types: tuple[int, ...]
    keys: tuple[str, ...]

    def create_request(self) -> ColumnsRequest[dict[str, pa.Array]]:
        """Create the request that reads the events that define names.

        The request reserves memory for the Python objects that are created from each event.
        """
        columns = ["start", "globalTid", "textId", "text", *self.keys]
        return replace(
            create_source_request(SOURCE_TABLE, columns, Where("eventType", self.types)), row_bytes=_DEFINITION_BYTES
        )


DEFINITIONS = (
    NameDefinition("domain", (75,), ("domainId",)),
    NameDefinition("category", (33, 64), ("domainId", "category")),
)


def list_unread_name_definitions(
    lookups: Lookups, columns_by_table: Mapping[str, Sequence[str]]
) -> list[NameDefinition]:
    """Return the name definitions that the requested columns need and that have not been read yet.

    Args:
        lookups: The open file.
        columns_by_table: Requested columns of each declared table.
    """
    columns = {c for table in RESOLVERS for c in columns_by_table.get(table, ())}
    return [d for d in DEFINITIONS if d.column in columns and d.column not in lookups.defined_names]


def store_defined_names(lookups: Lookups, definition: NameDefinition, source_rows: pa.Table) -> None:
    """Add the names that NVTX events define to ``lookups.defined_names``.

    If several events name the same domain or category, the name of the earliest event is used.
    """
    named = source_rows.append_column("name", resolve_event_names(lookups, SOURCE_TABLE, source_rows).cast(pa.string()))
    named = named.append_column("process", ids.extract_process_ids(source_rows["globalTid"]))
    named = named.take(pc.sort_indices(named["start"]))  # Table.sort_by imports pyarrow.dataset, which takes 20 ms
    names: dict[str, str] = {}
    for row in named.select(["process", *definition.keys, "name"]).to_pylist():
        process, domain, *rest, text = row.values()
        key = _join_numbers_with_slashes(process, domain or 0, *rest)
        if text is not None and key is not None:
            names.setdefault(key, text)
    lookups.defined_names[definition.column] = names


def replace_name_keys_with_names(lookups: Lookups, columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Replace keys of domains and categories with the stored names, and return the new columns."""
    return {
        c: _look_up_names_of_keys(data, lookups.defined_names[c]) if c in lookups.defined_names else data
        for c, data in columns.items()
    }


def _look_up_names_of_keys(keys: pa.Array | pa.ChunkedArray, names: Mapping[str, str]) -> pa.Array:
    """Return the name of each key, or null for a key without a name."""
    encoded = col.concatenate_chunks(keys)
    return col.build_dictionary_array(
        encoded.indices, pa.array([names.get(k) for k in encoded.dictionary.to_pylist()], pa.string())
    )


def _format_key_strings(threads: pa.ChunkedArray, domains: pa.ChunkedArray, *rest: pa.ChunkedArray) -> pa.Array:
    """Return a key for each row, which joins its process id, its domain id and the numbers in ``rest`` with slashes.

    The key is null if the thread or a number in ``rest`` is null. A null domain counts as the default domain 0.
    """
    if any(col.is_all_null(c) for c in rest):
        return pa.nulls(len(threads), col.DICTIONARY)
    numbers, rows = col.encode_rows(threads, domains, *rest)
    processes = ids.extract_process_ids(pa.array([thread for thread, *_ in rows], pa.int64())).to_pylist()
    keys = [
        _join_numbers_with_slashes(p, domain or 0, *others)
        for p, (_, domain, *others) in zip(processes, rows, strict=True)
    ]
    return col.build_dictionary_array(numbers, pa.array(keys, pa.string()))


def _join_numbers_with_slashes(*numbers: int | None) -> str | None:
    """Return numbers joined by slashes, or None if any number is None."""
    return None if None in numbers else "/".join(map(str, numbers))
