"""Count the events of unknown types that are skipped when a table is read. The counts are used in warnings.

Event types that the module ``names`` lists are not counted, because it is known whether declared tables
contain their events.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.nsys_rep import entries, layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.readers.common.protobuf.decoding import Field, Int64Array, Mask
    from tracekit.readers.nsys_rep.events import SelectedEvents
    from tracekit.readers.nsys_rep.layout import EventTable

KNOWN_CLASSES = tuple(sorted(entries.KNOWN_CLASSES))
"""Classes of calls for which it is known whether they are rows of a table."""
TABLES = {
    layout.API: "api_calls and osrt_calls",
    layout.GPU: "the tables of GPU activities",
    layout.NVTX: "nvtx_ranges and nvtx_marks",
    entries.GENERIC: "gpu_metrics and counters",
}
"""Declared tables that contain the events with each payload field, as named in warnings."""


def count_unknown_calls(classes: Field | None, rows: Int64Array) -> Counter[str]:
    """Count function calls with an unknown class or no class, by class name.

    Args:
        classes: Class of each function call, or None if no call has a class.
        rows: Indices of the function calls to count.
    """
    if classes is None:
        return Counter({entries.WITHOUT_CLASS: len(rows)} if len(rows) else {})
    valid = np.ones(len(rows), np.bool_) if classes.valid is None else classes.valid[rows]
    values = classes.values[rows]
    unknown, counts = np.unique_counts(values[valid & ~np.isin(values, np.array(KNOWN_CLASSES, np.uint64))])
    unknown_classes = {entries.format_call_class(c): n for c, n in zip(unknown.tolist(), counts.tolist(), strict=True)}
    return +Counter({entries.WITHOUT_CLASS: int(np.count_nonzero(~valid)), **unknown_classes})


def count_unknown_activities(
    selected_events: SelectedEvents, fields_by_number: Mapping[int, Field], table: EventTable, rows: Int64Array
) -> Counter[str]:
    """Count GPU activities of an unknown kind, by name of the event type.

    An activity of a type that the table expects is counted if it has no sibling field. An activity of an unknown type
    is counted if it has none of the known activity fields.

    Args:
        selected_events: Events that were read for a table.
        fields_by_number: The decoded identifying and sibling fields of the table, by field number.
        table: Source table that was read.
        rows: Indices of the events that are not rows of the table.
    """
    if not table.expected_types:
        return Counter()
    types = selected_events.get_types(rows)
    expected, unknown = np.isin(types, table.expected_types), ~np.isin(types, entries.GPU_TYPES)
    empty = _compute_mask_of_rows_without_fields(fields_by_number, table.sibling_fields, rows) & expected
    if unknown.any():
        some = rows[unknown]
        parts = decode(
            selected_events.buffer, selected_events.starts[some], selected_events.stops[some], layout.ACTIVITIES
        )
        empty[unknown] = _compute_mask_of_rows_without_fields(parts, layout.ACTIVITIES, np.arange(len(some)))
    values, counts = np.unique_counts(types[empty])
    return Counter({entries.format_activity(t): n for t, n in zip(values.tolist(), counts.tolist(), strict=True)})


def _compute_mask_of_rows_without_fields(fields: Mapping[int, Field], numbers: Sequence[int], rows: Int64Array) -> Mask:
    """Return a mask of the given rows, which is true for rows that have none of the fields with the given numbers."""
    empty = np.ones(len(rows), np.bool_)
    for number in numbers:
        field = fields.get(number)
        if field is not None:
            empty &= False if field.valid is None else ~field.valid[rows]
    return empty


class UnknownEventType(NamedTuple):
    """An unknown event type that occurs in a report.

    Attributes:
        payload_field: Number of the event field that holds the payload.
        event_count: Number of events of the type.
        name: Display name of the type.
    """

    payload_field: int
    event_count: int
    name: str


def iterate_unknown_event_types(counts_by_kind: Mapping[int, int]) -> Iterator[UnknownEventType]:
    """Yield the unknown event types of function calls and NVTX events, with the number of their events.

    The keys of ``counts_by_kind`` are kinds of events, as computed by ``combine_into_event_kind``.
    """
    for kind, number in counts_by_kind.items():
        if kind in (entries.GENERIC, entries.UNKNOWN):
            continue
        payload, event_type = entries.split_event_kind(kind)
        if payload in (layout.API, layout.NVTX) and (payload, event_type) not in entries.KNOWN_TYPES:
            yield UnknownEventType(payload, number, entries.format_event_type(payload, event_type))
