"""Build the declared columns of event tables on demand from the collected JSON members."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common import columns as col
from tracekit.readers.common.json.scanner import parse_integer
from tracekit.readers.kineto import labels
from tracekit.readers.kineto.event_tables import ARGUMENTS, DOMAINS, ROW_IDS
from tracekit.readers.kineto.keys import Slot
from tracekit.readers.kineto.tracks import replace_numbers_beyond_int32_with_null

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.readers.kineto.tracks import Tracks


class EventRows:
    """The rows of one event table.

    Attributes:
        name: Name of the table.
        count: Number of rows.
    """

    def __init__(self, name: str, members: Mapping[str, pa.Array], origin_ns: int, tracks: Tracks) -> None:
        self.name = name
        self.count = len(members[Slot.START.name])
        self._origin_ns = origin_ns
        self._tracks = tracks
        self._order = _compute_sort_order_by_id(members[ROW_IDS[name].name], self.count) if tracks.exported else None
        self._members = members

    def build_column(self, name: str) -> pa.Array | pa.ChunkedArray | None:
        """Build a declared column, or return None if JSON traces do not contain the column."""
        builders = _COLUMN_BUILDERS[self.name]
        return builders[name](self) if name in builders else None

    def get_member_values(self, slot: Slot) -> pa.Array:
        """Return the value of a JSON member in each event, in row order."""
        return self._sort_into_row_order(self._members[slot.name])

    def get_values_or_those_of_calls(self, slot: Slot) -> pa.Array:
        """Return the value of a JSON member in each activity or, if it is missing, in the call that launched it."""
        values = self.get_member_values(slot)
        if self.is_tracekit_export or not values.null_count:
            return values
        of_calls = self._tracks.find_values_of_calls(
            slot, self.track_columns["process_id"], self.get_member_values(Slot.CORRELATION)
        )
        if of_calls is None:
            return values
        return (
            col.coalesce_dictionaries(values, of_calls)
            if pa.types.is_dictionary(values.type)
            else pc.coalesce(values, of_calls)
        )

    def format_arguments_json(self) -> pa.Array | pa.ChunkedArray:
        """Return the arguments of each event as a JSON object, or an empty string for an event without arguments."""
        return self._members[ARGUMENTS]

    @property
    def member_names(self) -> frozenset[str]:
        """Names of the JSON members that were collected for the table."""
        return frozenset(self._members)

    @property
    def is_tracekit_export(self) -> bool:
        """Whether tracekit wrote the file."""
        return self._tracks.exported

    @functools.cached_property
    def track_columns(self) -> dict[str, pa.Array]:
        """The columns that identify the track of each event, such as process, thread, device, context and stream."""
        return self._tracks.build_track_columns(self.name, self.get_member_values)

    def compute_start_ns(self) -> pa.Array:
        """Return the start of each event in ns since the trace origin."""
        return pc.subtract(self.get_member_values(Slot.START), self._origin_ns)

    def compute_end_ns(self) -> pa.Array:
        """Return the end of each event in ns since the trace origin, null for ranges that were never closed."""
        duration = pc.coalesce(self.get_member_values(Slot.NEGATIVE), self.get_member_values(Slot.DURATION))
        end = pc.add(self.compute_start_ns(), duration)
        return (
            pc.if_else(self._compute_never_closed_mask(), pa.scalar(None, pa.int64()), end)
            if Slot.OPEN.name in self._members
            else end
        )

    def compute_row_ids(self) -> pa.Array:
        """Return the id of each row.

        If tracekit wrote the file and all ids in the file are valid, these ids are used. Otherwise, rows are numbered
        from 1.
        """
        if self._order is None:
            return pa.array(np.arange(1, self.count + 1))
        return self.get_member_values(ROW_IDS[self.name])

    def _compute_never_closed_mask(self) -> pa.Array:
        """Return a mask of the ranges that were never closed."""
        return pc.equal(
            labels.map_to_integers(self.get_member_values(Slot.OPEN), lambda t: int(t == "true")).fill_null(0), 1
        )

    def _sort_into_row_order(self, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        array = col.concatenate_chunks(column)
        return array if self._order is None else array.take(self._order)


def _compute_sort_order_by_id(ids: pa.Array | pa.ChunkedArray, row_count: int) -> pa.Array | None:
    """Return the indices that sort the rows by id, or None if an id is missing, not positive or not unique."""
    ids = col.concatenate_chunks(ids)
    if ids.null_count or not row_count or pc.min(ids).as_py() < 1 or pc.count_distinct(ids).as_py() != row_count:
        return None
    return pc.sort_indices(ids)


def _create_member_column_builder(slot: Slot) -> Callable[[EventRows], pa.Array]:
    return lambda rows: rows.get_member_values(slot)


def _create_int32_column_builder(slot: Slot) -> Callable[[EventRows], pa.Array]:
    return lambda rows: replace_numbers_beyond_int32_with_null(rows.get_member_values(slot))


def _create_float_column_builder(slot: Slot) -> Callable[[EventRows], pa.Array]:
    def build_column(rows: EventRows) -> pa.Array:
        texts = col.concatenate_chunks(rows.get_member_values(slot))
        return pa.array([_parse_finite_float(t) for t in texts.dictionary.to_pylist()], pa.float64()).take(
            texts.indices
        )

    return build_column


def _create_zero_filled_column_builder(slot: Slot) -> Callable[[EventRows], pa.Array]:
    return lambda rows: rows.get_member_values(slot).fill_null(0)


def _create_track_column_builder(name: str) -> Callable[[EventRows], pa.Array]:
    return lambda rows: rows.track_columns[name]


def _create_parsed_name_column_builder(
    slot: Slot, parse_name: Callable[[str], str | None]
) -> Callable[[EventRows], pa.Array]:
    """Return a function that builds a column from a JSON member, or from the names of events.

    The member is used if tracekit wrote the file. Otherwise, ``parse_name`` parses the names of the events.
    """

    def build_column(rows: EventRows) -> pa.Array:
        return (
            rows.get_member_values(slot)
            if rows.is_tracekit_export
            else labels.map_strings(rows.get_member_values(Slot.NAME), parse_name)
        )

    return build_column


def _create_dim3_column_builder(slot: Slot, axis: int) -> Callable[[EventRows], pa.Array]:
    return lambda rows: labels.map_to_integers(rows.get_values_or_those_of_calls(slot), labels.create_dim3_parser(axis))


def _build_copy_kind_column(rows: EventRows) -> pa.Array:
    recorded = rows.get_member_values(Slot.COPY_KIND)
    if rows.is_tracekit_export:
        return recorded
    of_name = labels.map_strings(rows.get_member_values(Slot.NAME), labels.parse_copy_kind)
    return col.coalesce_dictionaries(of_name, labels.map_strings(recorded, labels.parse_direction))


def _build_memset_value_column(rows: EventRows) -> pa.Array:
    if rows.is_tracekit_export:
        return rows.get_member_values(Slot.VALUE)
    return labels.map_to_integers(rows.get_member_values(Slot.NAME), labels.parse_memset_value)


def _build_size_column(rows: EventRows) -> pa.Array:
    return rows.get_values_or_those_of_calls(Slot.BYTES)


def _build_full_name_column(rows: EventRows) -> pa.Array:
    return col.coalesce_dictionaries(rows.get_member_values(Slot.FULL_NAME), rows.get_member_values(Slot.NAME))


def _build_short_name_column(rows: EventRows) -> pa.Array:
    name = rows.get_member_values(Slot.NAME)
    return name if rows.is_tracekit_export else labels.map_strings(name, labels.shorten_function_name)


def _build_dynamic_shared_memory_column(rows: EventRows) -> pa.Array:
    return replace_numbers_beyond_int32_with_null(
        pc.coalesce(rows.get_member_values(Slot.DYNAMIC), rows.get_values_or_those_of_calls(Slot.SHARED))
    )


def _build_api_column(rows: EventRows) -> pa.Array:
    if rows.is_tracekit_export:
        of_name = labels.map_strings(rows.get_member_values(Slot.NAME), labels.find_api_of_function)
        return col.coalesce_dictionaries(rows.get_member_values(Slot.API), of_name)
    return labels.map_strings(rows.get_member_values(Slot.CATEGORY), labels.find_api_of_category)


def _build_name_id_column(rows: EventRows) -> pa.Array:
    return rows.get_member_values(Slot.NAME).indices.cast(pa.int64()).fill_null(-1)


def _build_range_kind_column(rows: EventRows) -> pa.Array:
    """Return the kind of each range. Traces that tracekit did not write contain only push/pop ranges."""
    nested = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows.count, np.int32)), pa.array(["push_pop"]))
    if not rows.is_tracekit_export:
        return nested
    return pc.coalesce(rows.track_columns["kind"].cast(pa.string()), nested.cast(pa.string())).dictionary_encode()


def _build_domain_column(rows: EventRows) -> pa.Array:
    return rows.get_member_values(Slot.DOMAIN if rows.is_tracekit_export else Slot.CATEGORY)


def _build_domain_id_column(rows: EventRows) -> pa.Array:
    if rows.is_tracekit_export:
        return rows.track_columns["domain_id"].fill_null(0)
    return labels.map_to_integers(
        rows.get_member_values(Slot.CATEGORY), lambda c: DOMAINS.get(c, DOMAINS["cpu_op"])
    ).fill_null(0)


def _build_color_column(rows: EventRows) -> pa.Array:
    return labels.map_to_integers(rows.get_member_values(Slot.COLOR), labels.convert_rgb_to_argb)


def _build_thread_id_column(rows: EventRows) -> pa.Array:
    return pc.coalesce(rows.track_columns["thread_id"], rows.get_member_values(Slot.THREAD))


TRACED_CALL_CLASS = 27
"""Value of ``event_class`` that nsys records for calls of OS runtime functions."""
_FLOAT_TYPES = ("double", "float")
_INTEGER_TYPES = ("uint64", "int64", "uint32", "int32")


def _build_payload_type_column(rows: EventRows) -> pa.Array:
    if rows.is_tracekit_export:
        return labels.map_strings(
            rows.get_member_values(Slot.PAYLOAD_TYPE), lambda t: t if t in _PAYLOAD_TYPES else None
        )
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows.count, np.int32)), pa.array(["json"]))


def _select_payloads_of_types(rows: EventRows, types: tuple[str, ...]) -> pa.Array:
    """Return the payloads of the given types as strings. All other payloads are null."""
    fits = pc.equal(labels.map_to_integers(_build_payload_type_column(rows), lambda t: int(t in types)).fill_null(0), 1)
    payload = rows.get_member_values(Slot.PAYLOAD)
    return pa.DictionaryArray.from_arrays(
        pc.if_else(fits, payload.indices, pa.scalar(None, pa.int32())), payload.dictionary
    )


def _build_payload_int_column(rows: EventRows) -> pa.Array:
    if not rows.is_tracekit_export:
        return pa.nulls(rows.count, pa.int64())
    return labels.map_to_integers(_select_payloads_of_types(rows, _INTEGER_TYPES), parse_integer)


def _build_payload_float_column(rows: EventRows) -> pa.Array:
    if not rows.is_tracekit_export:
        return pa.nulls(rows.count, pa.float64())
    payloads = _select_payloads_of_types(rows, _FLOAT_TYPES)
    return pa.array([_parse_float(t) for t in payloads.dictionary.to_pylist()], pa.float64()).take(payloads.indices)


def _build_payload_text_column(rows: EventRows) -> pa.Array | pa.ChunkedArray:
    return (
        _select_payloads_of_types(rows, ("json", "binary")).cast(pa.string())
        if rows.is_tracekit_export
        else rows.format_arguments_json()
    )


def _parse_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _parse_finite_float(text: str) -> float | None:
    number = _parse_float(text)
    return number if number is not None and math.isfinite(number) else None


def _build_overhead_type_column(rows: EventRows) -> pa.Array:
    return labels.map_strings(rows.get_member_values(Slot.NAME), labels.find_nsys_overhead_type)


def _build_sync_type_column(rows: EventRows) -> pa.Array:
    return (
        rows.get_member_values(Slot.NAME)
        if rows.is_tracekit_export
        else labels.map_strings(rows.get_member_values(Slot.SYNC), labels.convert_to_nsys_sync_type)
    )


_PAYLOAD_TYPES = (*_INTEGER_TYPES, *_FLOAT_TYPES, "json", "binary")
_TIMES = {"start_ns": EventRows.compute_start_ns, "end_ns": EventRows.compute_end_ns}
_THREAD = {
    "process_id": _create_track_column_builder("process_id"),
    "thread_id": _create_track_column_builder("thread_id"),
}
_STREAM = {n: _create_track_column_builder(n) for n in ("process_id", "device_id", "context_id", "stream_id")}
_ACTIVITY = {**_TIMES, **_STREAM, "correlation_id": _create_member_column_builder(Slot.CORRELATION)}
_NODE = {"graph_node_id": _create_member_column_builder(Slot.GRAPH_NODE)}
_NVTX = {
    "process_id": _create_track_column_builder("process_id"),
    "domain_id": _build_domain_id_column,
    "domain": _build_domain_column,
    "category_id": _create_member_column_builder(Slot.CATEGORY_ID),
    "category": _create_member_column_builder(Slot.CATEGORY_NAME),
    "color": _build_color_column,
    "name": _create_member_column_builder(Slot.NAME),
    "payload_type": _build_payload_type_column,
    "payload_int": _build_payload_int_column,
    "payload_float": _build_payload_float_column,
    "payload_text": _build_payload_text_column,
}
_EVENT = {
    "event_id": _create_zero_filled_column_builder(Slot.EVENT),
    "event_sync_id": _create_member_column_builder(Slot.EVENT_SYNC),
}
_COLUMN_BUILDERS: dict[str, Mapping[str, Callable[[EventRows], pa.Array | pa.ChunkedArray]]] = {
    "kernels": {
        "kernel_id": EventRows.compute_row_ids,
        **_ACTIVITY,
        "name": _build_full_name_column,
        "short_name": _build_short_name_column,
        **{f"grid_{axis}": _create_dim3_column_builder(Slot.GRID, i) for i, axis in enumerate("xyz")},
        **{f"block_{axis}": _create_dim3_column_builder(Slot.BLOCK, i) for i, axis in enumerate("xyz")},
        "registers_per_thread": _create_int32_column_builder(Slot.REGISTERS),
        "static_shared_memory_bytes": _create_int32_column_builder(Slot.STATIC),
        "dynamic_shared_memory_bytes": _build_dynamic_shared_memory_column,
        **_NODE,
        "graph_id": _create_member_column_builder(Slot.GRAPH),
        "blocks_per_sm": _create_float_column_builder(Slot.BLOCKS_PER_SM),
        "warps_per_sm": _create_float_column_builder(Slot.WARPS_PER_SM),
        "achieved_occupancy_percent": _create_float_column_builder(Slot.OCCUPANCY),
    },
    "memcpys": {
        "memcpy_id": EventRows.compute_row_ids,
        **_ACTIVITY,
        "bytes": _build_size_column,
        "copy_kind": _build_copy_kind_column,
        "src_memory_kind": _create_parsed_name_column_builder(Slot.SOURCE, labels.parse_source_memory_kind),
        "dst_memory_kind": _create_parsed_name_column_builder(Slot.TARGET, labels.parse_target_memory_kind),
        "migration_cause": _create_member_column_builder(Slot.CAUSE),
        **_NODE,
    },
    "memsets": {
        "memset_id": EventRows.compute_row_ids,
        **_ACTIVITY,
        "bytes": _build_size_column,
        "value": _build_memset_value_column,
        "memory_kind": _create_parsed_name_column_builder(Slot.MEMORY, labels.parse_memset_memory_kind),
        **_NODE,
    },
    "graph_launches": {
        "graph_launch_id": EventRows.compute_row_ids,
        **_ACTIVITY,
        "graph_id": _create_zero_filled_column_builder(Slot.GRAPH),
        "graph_exec_id": _create_zero_filled_column_builder(Slot.GRAPH_EXEC),
    },
    "syncs": {"sync_id": EventRows.compute_row_ids, **_ACTIVITY, "sync_type": _build_sync_type_column, **_EVENT},
    "api_calls": {
        "api_call_id": EventRows.compute_row_ids,
        **_TIMES,
        **_THREAD,
        "correlation_id": _create_member_column_builder(Slot.CORRELATION),
        "api": _build_api_column,
        "name": _create_member_column_builder(Slot.NAME),
        "name_id": _build_name_id_column,
        "return_value": _create_member_column_builder(Slot.RETURNED),
    },
    "osrt_calls": {
        "osrt_call_id": EventRows.compute_row_ids,
        **_TIMES,
        **_THREAD,
        "event_class": lambda rows: pa.array(np.full(rows.count, TRACED_CALL_CLASS)),
        "name": _create_member_column_builder(Slot.NAME),
        "name_id": _build_name_id_column,
        "return_value": _create_zero_filled_column_builder(Slot.RETURNED),
    },
    "nvtx_ranges": {
        "range_id": EventRows.compute_row_ids,
        **_TIMES,
        "kind": _build_range_kind_column,
        **_NVTX,
        "thread_id": _build_thread_id_column,
        "end_thread_id": _create_member_column_builder(Slot.END_THREAD),
    },
    "nvtx_marks": {
        "mark_id": EventRows.compute_row_ids,
        "timestamp_ns": EventRows.compute_start_ns,
        **_NVTX,
        "thread_id": _create_track_column_builder("thread_id"),
    },
    "overheads": {
        "overhead_id": EventRows.compute_row_ids,
        **_TIMES,
        **_THREAD,
        "name": _create_member_column_builder(Slot.NAME),
        "overhead_type": _build_overhead_type_column,
    },
    "cuda_events": {
        "cuda_event_id": EventRows.compute_row_ids,
        "timestamp_ns": EventRows.compute_start_ns,
        **_STREAM,
        "correlation_id": _create_member_column_builder(Slot.CORRELATION),
        **_EVENT,
    },
}
