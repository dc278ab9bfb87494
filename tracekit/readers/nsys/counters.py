"""Compute the names, times and values of counters.

nsys stores samples of counters as generic events. Exports contain the values of generic events in one table, the time
and the thread of each event in a second table, and the names of counters and of their fields in further tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col
from tracekit.readers.nsys import ids
from tracekit.readers.nsys.generic_events import GenericEvents

if TYPE_CHECKING:
    from tracekit.readers.nsys.lookups import Lookups, Resolver

DATA = "GENERIC_EVENT_DATA"
TYPES, FIELDS, SOURCES = "GENERIC_EVENT_TYPES", "GENERIC_EVENT_TYPE_FIELDS", "GENERIC_EVENT_SOURCES"
COMPONENTS, METRICS = "TARGET_INFO_COMPONENT", "TARGET_INFO_PERF_METRIC"
SMALL_TABLES = (TYPES, FIELDS, SOURCES, COMPONENTS, METRICS)
"""Source tables in which names are looked up."""
_EVENT_KEYS = GenericEvents.COLUMNS
_VALUES = {"intVal": "int64", "uintVal": "uint64", "floatVal": "float", "doubleVal": "double"}


def _read_event_column(lookups: Lookups, column_name: str, source_rows: pa.Table) -> pa.ChunkedArray:
    """Return a column of the generic events, such as ``timestamp``, with one row per counter value.

    In reports, the table of values has this column. In exports, the column is looked up in the table of generic events.
    """
    if column_name in lookups.tables.columns[DATA]:
        return source_rows[column_name]
    return lookups.generic_events.look_up_column(column_name, source_rows["genericEventId"])


def resolve_sample_times(lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the time of each counter value in ns."""
    return _read_event_column(lookups, "timestamp", source_rows)


def resolve_process_ids(lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the id of the process that sampled each counter value."""
    return ids.extract_process_ids(_read_event_column(lookups, "globalTid", source_rows))


def resolve_thread_ids(lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the id of the thread that sampled each counter value."""
    return ids.extract_thread_ids(_read_event_column(lookups, "globalTid", source_rows))


def resolve_counter_names(lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the name of the counter, or of the counter group, of each counter value. Empty names become null."""
    types = _read_columns_as_lists(lookups, TYPES, "typeId", "nameId")
    return _look_up_names_by_string_id(
        lookups, dict(zip(*types, strict=True)), _read_event_column(lookups, "typeId", source_rows)
    )


def resolve_source_names(lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the name of the event source from which each counter value comes, such as ``GenericCounters``."""
    sources = dict(zip(*_read_columns_as_lists(lookups, SOURCES, "sourceId", "nameId"), strict=True))
    types, owners = _read_columns_as_lists(lookups, TYPES, "typeId", "sourceId")
    string_ids = {number: sources.get(owner) for number, owner in zip(types, owners, strict=True)}
    return _look_up_names_by_string_id(lookups, string_ids, _read_event_column(lookups, "typeId", source_rows))


def resolve_field_names(lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the field name of each counter value, which distinguishes the values of one counter group."""
    types, fields, names = _read_columns_as_lists(lookups, FIELDS, "typeId", "fieldIdx", "fieldNameId")
    by_field: dict[tuple[int | None, ...], int | None] = dict(zip(zip(types, fields, strict=True), names, strict=True))
    numbers, keys = col.encode_rows(_read_event_column(lookups, "typeId", source_rows), source_rows["fieldIdx"])
    return col.build_dictionary_array(numbers, _look_up_strings(lookups, [by_field.get(k) for k in keys]))


def resolve_value_types(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the data type of each counter value: ``int64``, ``uint64``, ``float`` or ``double``."""
    codes = pa.nulls(len(source_rows), pa.int32())
    for number, column in enumerate(_VALUES):
        codes = pc.if_else(pc.is_valid(source_rows[column]), pa.scalar(number, pa.int32()), codes)
    codes = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
    return pa.DictionaryArray.from_arrays(codes, pa.array(_VALUES.values(), pa.string()))


def resolve_integer_values(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return each counter value of an integer type. The result is null for values of floating-point types."""
    return pc.coalesce(source_rows["intVal"], source_rows["uintVal"])


def resolve_float_values(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return each counter value of a floating-point type. The result is null for values of integer types."""
    return pc.coalesce(source_rows["doubleVal"], source_rows["floatVal"])


def resolve_component_names(lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the name of the hardware component, such as ``Core``, of each row of ``performance_counters``."""
    return _look_up_names(
        source_rows["componentId"], *_read_columns_as_lists(lookups, COMPONENTS, "componentId", "name")
    )


def resolve_component_instances(lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the instance number of the component of each row of ``performance_counters``.

    The number distinguishes components with the same name. It is null for an unknown component.
    """
    listed = dict(zip(*_read_columns_as_lists(lookups, COMPONENTS, "componentId", "instance"), strict=True))
    numbers, keys = col.encode_rows(source_rows["componentId"])
    values = pa.array([listed.get(key) for (key,) in keys], pa.int64())
    return values.take(pa.array(numbers))


def resolve_metric_names(lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the name of the event, such as ``Page Faults``, that each row of ``performance_counters`` counts."""
    return _look_up_names(source_rows["eventId"], *_read_columns_as_lists(lookups, METRICS, "id", "name"))


def resolve_metric_units(lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the unit of the event count in each row of ``performance_counters``."""
    return _look_up_names(source_rows["eventId"], *_read_columns_as_lists(lookups, METRICS, "id", "unit"))


def _read_columns_as_lists(lookups: Lookups, table_name: str, *columns: str) -> list[list[Any]]:
    """Return one list per column of a small source table. The lists are empty if the file lacks the table."""
    if table_name not in lookups.tables.columns:
        return [[] for _ in columns]
    return [column.to_pylist() for column in lookups.fetch(table_name, columns).columns]


def _look_up_names_by_string_id(
    lookups: Lookups, string_ids: dict[int | None, int | None], keys: pa.ChunkedArray
) -> pa.DictionaryArray:
    """Return the name of each key, given the string ids of known names. The name of an unknown key is null.

    Args:
        lookups: The lookups, in whose string table the names are looked up.
        string_ids: Mapping from each known key to the string id of its name.
        keys: The keys to look up.
    """
    numbers, distinct = col.encode_rows(keys)
    return col.build_dictionary_array(numbers, _look_up_strings(lookups, [string_ids.get(key) for (key,) in distinct]))


def _look_up_names(keys: pa.ChunkedArray, known_keys: list[int | None], names: list[str | None]) -> pa.DictionaryArray:
    """Return the name of each key, given all known keys and their names. The name of an unknown key is null.

    Args:
        keys: The keys to look up.
        known_keys: All known keys.
        names: Name of each known key, in the order of ``known_keys``.
    """
    by_key = dict(zip(known_keys, names, strict=True))
    numbers, distinct = col.encode_rows(keys)
    return col.build_dictionary_array(numbers, pa.array([by_key.get(key) for (key,) in distinct], pa.string()))


def _look_up_strings(lookups: Lookups, string_ids: list[int | None]) -> pa.Array:
    """Return the strings with the given ids. Empty strings are replaced with null."""
    names, _ = lookups.strings.look_up_strings_of_ids(pa.chunked_array([pa.array(string_ids, pa.int64())]))
    decoded = names.cast(pa.string())
    decoded = decoded.combine_chunks() if isinstance(decoded, pa.ChunkedArray) else decoded
    return pc.if_else(pc.equal(pc.binary_length(decoded), 0), None, decoded)


RESOLVERS: dict[str, dict[str, Resolver]] = {
    "counters": {
        "timestamp_ns": (_EVENT_KEYS, resolve_sample_times),
        "process_id": (_EVENT_KEYS, resolve_process_ids),
        "thread_id": (_EVENT_KEYS, resolve_thread_ids),
        "source": (_EVENT_KEYS, resolve_source_names),
        "name": (_EVENT_KEYS, resolve_counter_names),
        "field": ((*_EVENT_KEYS, "fieldIdx"), resolve_field_names),
        "value_type": (tuple(_VALUES), resolve_value_types),
        "value_int": (("intVal", "uintVal"), resolve_integer_values),
        "value_float": (("doubleVal", "floatVal"), resolve_float_values),
    },
    "performance_counters": {
        "component": (("componentId",), resolve_component_names),
        "instance": (("componentId",), resolve_component_instances),
        "metric": (("eventId",), resolve_metric_names),
        "metric_unit": (("eventId",), resolve_metric_units),
    },
}
