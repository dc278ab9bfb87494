"""Count the events of a report that no declared table contains, and sum their sizes, by class of event."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tracekit.readers.common.protobuf.rows import (
    MESSAGE_TYPE,
    ColumnKind,
    FieldTest,
    RowColumn,
    RowDecoder,
    RowTable,
)
from tracekit.readers.nsys_rep import entries, layout
from tracekit.readers.nsys_rep.entries import EventSelection, UndecodedSize
from tracekit.readers.nsys_rep.layout import load_fields
from tracekit.readers.nsys_rep.metrics import SOURCE_MASK, read_source_names
from tracekit.registry.interface import Undecoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracekit.readers.common.protobuf.rows import Clause, FieldPath
    from tracekit.readers.nsys_rep.container import RawData
    from tracekit.readers.nsys_rep.counters import CounterField
    from tracekit.readers.nsys_rep.events import ReportEvents, SelectedEvents
    from tracekit.readers.nsys_rep.metrics import MetricLocation

_GENERIC_TYPE = load_fields("GenericEvent").type_id


class EventsReport(Protocol):
    """The interface of a report whose undecoded events are counted."""

    @property
    def events(self) -> ReportEvents:
        """The events of the report."""
        ...

    @property
    def gpu_metrics_by_type(self) -> Mapping[int, Sequence[MetricLocation]]:
        """The GPU metrics in each sample, by event type."""
        ...

    @property
    def counter_fields_by_type(self) -> Mapping[int, Sequence[CounterField]]:
        """The fields of each counter sample, by event type."""
        ...

    @property
    def raw_data(self) -> RawData:
        """The section of the report that contains the events."""
        ...


class _EventClass(NamedTuple):
    """Events that no declared table contains. Generic events are counted whether a table contains them or not.

    Attributes:
        payload: Number of the event field that holds the payload, or ``GENERIC`` for generic events.
        path: Path of the field by whose value the events are counted.
        filters: Clauses that hold for the events.
        format_value: Function that returns the display name of the events with a value, which is None without one.
    """

    payload: int
    path: FieldPath
    filters: tuple[Clause, ...]
    format_value: Callable[[int | None], str]


def _define_class_of_calls(event_type: int) -> _EventClass:
    """Return the function calls of an event type whose class no table has, or whose class has only nested messages."""
    nested = layout.TABLES_BY_NESTED_MESSAGE.keys() & layout.CLASSES_BY_TYPE[event_type]
    decoded = layout.CLASSES_BY_TYPE[event_type] - nested
    filters: list[Clause] = [
        (FieldTest(MESSAGE_TYPE, frozenset((event_type,))),),
        (FieldTest((layout.CLASS,), decoded, is_negated=True),),
    ]
    for event_class in sorted(nested):
        tables = layout.TABLES_BY_NESTED_MESSAGE[event_class]
        other_class = FieldTest((layout.CLASS,), frozenset((event_class,)), is_negated=True)
        filters += ((other_class, FieldTest(layout.TABLES[t].nested_message, is_negated=True)) for t in tables)

    def format_value(value: int | None) -> str:
        return entries.format_call(event_type, value) or entries.format_call_class(value or 0)

    return _EventClass(layout.API, (layout.CLASS,), tuple(filters), format_value)


def _define_incomplete_events(table_name: str) -> _EventClass:
    """Return the events that have the event types of a table, but none of its identifying fields."""
    table = layout.TABLES[table_name]
    types = (FieldTest(MESSAGE_TYPE, frozenset(table.event_types)),)
    return _EventClass(
        table.payload,
        MESSAGE_TYPE,
        (types, *_require_absence(table.identifying_fields)),
        lambda event_type: entries.format_incomplete_event(table.payload, event_type or 0),
    )


def _require_absence(fields: Sequence[int]) -> tuple[Clause, ...]:
    return tuple((FieldTest((number,), is_negated=True),) for number in fields)


_CLASSES = (
    _EventClass(entries.GENERIC, (_GENERIC_TYPE,), (), lambda _: ""),
    *map(_define_class_of_calls, layout.CLASSES_BY_TYPE),
    _EventClass(
        layout.GPU, MESSAGE_TYPE, _require_absence(layout.ACTIVITIES), lambda t: entries.format_activity(t or 0)
    ),
    *map(_define_incomplete_events, ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS", "PROCESSES")),
)
SELECTIONS = tuple(dict.fromkeys(EventSelection(event_class.payload) for event_class in _CLASSES))
"""Selections of the events among which ``list_undecoded_sizes`` finds those that no declared table contains."""
_INDICES = {s: [nth for nth, c in enumerate(_CLASSES) if c.payload == s.payload] for s in SELECTIONS}
_DECODERS = [
    RowDecoder([
        RowTable(
            {
                "value": RowColumn(ColumnKind.INT64, pa.int64(), (_CLASSES[nth].path,)),
                "index": RowColumn(ColumnKind.RANK, pa.int64()),
            },
            filters=_CLASSES[nth].filters,
        )
        for nth in indices
    ])
    for indices in _INDICES.values()
]  # fmt: skip


def list_undecoded_sizes(batch: Sequence[SelectedEvents]) -> list[UndecodedSize]:
    """Return the number and size of the events of a batch that no declared table contains.

    Args:
        batch: The events of each selection in ``SELECTIONS``.

    Raises:
        Damage: An event is invalid.
    """
    listed: list[UndecodedSize] = []
    for events, indices, decoder in zip(batch, _INDICES.values(), _DECODERS, strict=True):
        for nth, decoded in zip(indices, decoder.decode(events.buffer, events.messages), strict=True):
            rows = decoded.columns["index"].to_numpy()
            sizes = (events.stops - events.starts)[rows]
            listed += (UndecodedSize(nth, *item) for item in _sum_by_value(decoded.columns["value"], sizes))
    return sorted(listed, key=lambda item: item.class_index)


def _sum_by_value(
    column: pa.Array, sizes: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Iterator[tuple[int | None, int, int]]:
    """Yield each value of a column, the number of rows with this value, and the sum of their sizes."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if not valid.all():
        yield None, int(np.count_nonzero(~valid)), int(sizes[~valid].sum())
    if valid.any():
        numbers = column.drop_null().to_numpy().view(np.uint64)
        values, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        totals = np.zeros(len(values), np.int64)
        np.add.at(totals, inverse, sizes[valid])
        yield from zip(values.tolist(), counts.tolist(), totals.tolist(), strict=True)


def count_undecoded_events(report: EventsReport) -> dict[str, Undecoded]:
    """Return the number and size in bytes of the events that no declared table contains, by class of event.

    The class with the most events comes first.

    Raises:
        Damage: An event is invalid.
    """
    sources = read_source_names(report.raw_data)
    decoded_types = {*report.gpu_metrics_by_type, *report.counter_fields_by_type}
    counts: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for kind, (number, size) in report.events.count_events_and_bytes_by_kind().items():
        if name := entries.format_event_kind(kind):
            counts[name] += number
            totals[name] += size
    for class_index, value, number, size in report.events.iterate_undecoded_sizes():
        event_class = _CLASSES[class_index]
        if event_class.payload != entries.GENERIC:
            name = event_class.format_value(value)
        elif value in decoded_types:
            continue
        else:
            name = entries.format_generic_event(sources.get(-1 if value is None else value & SOURCE_MASK))
        counts[name] += number
        totals[name] += size
    return {
        name: Undecoded(
            number, totals[name], entries.list_tables_of_undecoded_events(name), name in entries.AUXILIARY_CLASSES
        )
        for name, number in counts.most_common()
        if number
    }
