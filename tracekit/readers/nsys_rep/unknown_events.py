"""Count the events of unknown types that are skipped when a table is read. The counts are used in warnings.

Event types that the module ``names`` lists are not counted, because it is known whether declared tables
contain their events.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from tracekit.readers.common.protobuf.rows import MESSAGE_TYPE, ColumnKind, FieldTest, RowColumn, RowTable
from tracekit.readers.nsys_rep import entries, layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.readers.common.protobuf.rows import Clause, FieldPath
    from tracekit.readers.nsys_rep.layout import EventTable

TABLES = {
    layout.API: "api_calls and osrt_calls",
    layout.GPU: "the tables of GPU activities",
    layout.NVTX: "nvtx_ranges and nvtx_marks",
    entries.GENERIC: "gpu_metrics and counters",
}
"""Declared tables that contain the events with each payload field, as named in warnings."""


class UnknownEvents(NamedTuple):
    """Events of unknown types that might be rows of a table, as a table of their own with one column.

    Attributes:
        path: Path of the field that names the events: the class of a call, or the type of a GPU activity.
        clauses: Clauses that hold for the events.
    """

    path: FieldPath
    clauses: tuple[Clause, ...]

    def build_row_table(self) -> RowTable:
        """Return the definition of the table, which has one column."""
        return RowTable({"value": RowColumn(ColumnKind.INT64, pa.int64(), (self.path,))}, self.clauses)

    def count_names(self, columns: Mapping[str, pa.Array]) -> Counter[str]:
        """Count the decoded events by their display names."""
        counts: Counter[str] = Counter()
        for value, count in (entry.values() for entry in columns["value"].value_counts().to_pylist()):
            if self.path == MESSAGE_TYPE:
                counts[entries.format_activity(value)] += count
            else:
                counts[entries.WITHOUT_CLASS if value is None else entries.format_call_class(value % (1 << 64))] += (
                    count
                )
        return counts


def define_tables(table: EventTable, event_types: Sequence[int]) -> list[UnknownEvents]:
    """Return the events of unknown types that are skipped when a table is read.

    A call is unknown if its class is, or if it has no class. WDDM events have a type of their own, so none of them can
    be a call. A GPU activity of a type that the table expects is unknown if it has no sibling field. An activity of an
    unknown type is unknown if it has none of the known activity fields.

    Args:
        table: Source table.
        event_types: Event types that are read for the table. If empty, events of all types are read.
    """
    types: tuple[Clause, ...] = ((FieldTest(MESSAGE_TYPE, frozenset(event_types)),),) if event_types else ()
    if table.event_types == (layout.WDDM_EVENT,):
        return []
    if table.event_classes:
        unknown = FieldTest((layout.CLASS,), entries.KNOWN_CLASSES, is_negated=True)
        return [UnknownEvents((layout.CLASS,), (*types, (unknown,)))]
    if not table.expected_types:
        return []
    siblings = (*table.identifying_fields, *table.sibling_fields)
    return [
        UnknownEvents(MESSAGE_TYPE, (*types, (is_type,), *((FieldTest((n,), is_negated=True),) for n in fields)))
        for is_type, fields in (
            (FieldTest(MESSAGE_TYPE, frozenset(table.expected_types)), siblings),
            (FieldTest(MESSAGE_TYPE, frozenset(entries.GPU_TYPES), is_negated=True), layout.ACTIVITIES),
        )
    ]


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
