"""Count the events of a report that no declared table contains, and sum their sizes, by class of event."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.nsys_rep import entries, layout
from tracekit.readers.nsys_rep.arrays import decode_nested_fields
from tracekit.readers.nsys_rep.entries import EventSelection
from tracekit.readers.nsys_rep.layout import load_fields
from tracekit.readers.nsys_rep.metrics import SOURCE_MASK, read_source_names
from tracekit.registry.interface import Undecoded
from tracekit.system.sorting import sort_and_deduplicate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from tracekit.readers.common.protobuf.decoding import Field, Int64Array, Mask
    from tracekit.readers.nsys_rep.container import RawData
    from tracekit.readers.nsys_rep.counters import CounterField
    from tracekit.readers.nsys_rep.events import ReportEvents, SelectedEvents
    from tracekit.readers.nsys_rep.metrics import MetricLocation

    Size = tuple[str | None, int, int]
    """The name of a class of events, their number and total size in bytes. The name is None if they are decoded."""

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


class _FieldCheck(NamedTuple):
    """A check that finds events that are in no declared table, because they have none of the given fields.

    Attributes:
        selection: Selection of the events to check.
        fields: Numbers of the fields.
        format_class: Function that takes an event type, and returns the name under which such events are counted.
    """

    selection: EventSelection
    fields: Collection[int]
    format_class: Callable[[int], str]


def _create_identifying_fields_check(table: str) -> _FieldCheck:
    """Return a check for events that have the event types of a table, but none of its identifying fields."""
    declared = layout.TABLES[table]
    return _FieldCheck(
        EventSelection(declared.payload, declared.event_types),
        declared.identifying_fields,
        lambda event_type: entries.format_incomplete_event(declared.payload, event_type),
    )


_CHECKS = (
    _FieldCheck(EventSelection(layout.GPU), layout.ACTIVITIES, entries.format_activity),
    *map(_create_identifying_fields_check, ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS", "PROCESSES")),
)


def count_undecoded_events(report: EventsReport) -> dict[str, Undecoded]:
    """Return the number and size in bytes of the events that no declared table contains, by class of event.

    The class with the most events comes first.

    Raises:
        Damage: An event is invalid.
    """
    sources = read_source_names(report.raw_data)
    counts: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    call_types = tuple(layout.CLASSES_BY_TYPE)
    selections = [EventSelection(entries.GENERIC), *(EventSelection(layout.API, (t,)) for t in call_types)]
    selections += [check.selection for check in _CHECKS]

    def list_sizes_by_class(batch: list[SelectedEvents]) -> list[Size]:
        generic, calls, checked = batch[0], batch[1 : len(call_types) + 1], batch[len(call_types) + 1 :]
        sizes = list(
            _iterate_sizes_of_generic_events(
                generic, {*report.gpu_metrics_by_type, *report.counter_fields_by_type}, sources
            )
        )
        for event_type, selected_events in zip(call_types, calls, strict=True):
            sizes += _iterate_sizes_of_calls(selected_events, event_type)
        for check, selected_events in zip(_CHECKS, checked, strict=True):
            sizes += _iterate_sizes_of_events_without_fields(selected_events, check)
        return sizes

    listed = [
        (entries.format_event_kind(kind), *size)
        for kind, size in report.events.count_events_and_bytes_by_kind().items()
    ]
    for batch in report.events.map_batches(selections, list_sizes_by_class):
        listed += batch
    for name, number, size in listed:
        if name is not None:
            counts[name] += number
            totals[name] += size
    return {
        name: Undecoded(
            number, totals[name], entries.list_tables_of_undecoded_events(name), name in entries.AUXILIARY_CLASSES
        )
        for name, number in counts.most_common()
        if number
    }


def _iterate_sizes_of_generic_events(
    selected_events: SelectedEvents, decoded_types: Collection[int], sources: Mapping[int, str]
) -> Iterator[Size]:
    """Yield the class, the number and the total size in bytes of the generic events of each event type.

    The class is None for the event types in ``decoded_types``, whose events are rows of declared tables.
    """
    for number, count, size in _iterate_counts_and_sizes_by_value(
        selected_events, np.arange(len(selected_events.starts)), _GENERIC_TYPE
    ):
        source = sources.get(-1 if number is None else number & SOURCE_MASK)
        yield None if number in decoded_types else entries.format_generic_event(source), count, size


def _iterate_sizes_of_calls(selected_events: SelectedEvents, event_type: int) -> Iterator[Size]:
    """Yield the class, the number and the total size in bytes of the function calls of one event type.

    There is one item per event class. Its first element is None if declared tables contain the calls of the class. If
    the tables contain only calls with certain nested messages, another item counts the calls without these messages.
    """
    for event_class, count, size in _iterate_counts_and_sizes_by_value(
        selected_events, np.arange(len(selected_events.starts)), layout.CLASS
    ):
        yield entries.format_call(event_type, event_class), count, size
        if event_class in layout.TABLES_BY_NESTED_MESSAGE and event_type == layout.CALL:
            rows = _find_call_indices_of_class(selected_events, event_class)
            decoded = np.zeros(len(rows), np.bool_)
            for field in _decode_nested_messages(selected_events, rows, event_class):
                decoded |= _compute_presence_mask(field, len(rows))
            rest = rows[~decoded]
            yield (
                entries.format_call_class(event_class),
                len(rest),
                int(_get_payload_sizes(selected_events, rest).sum()),
            )


def _iterate_sizes_of_events_without_fields(selected_events: SelectedEvents, check: _FieldCheck) -> Iterator[Size]:
    """Yield the event class, count and total size in bytes of the events that have none of the fields of a check.

    There is one item per event type.
    """
    decoded = np.zeros(len(selected_events.starts), np.bool_)
    for field in decode(selected_events.buffer, selected_events.starts, selected_events.stops, check.fields).values():
        decoded |= _compute_presence_mask(field, len(decoded))
    rest = np.flatnonzero(~decoded)
    types = selected_events.get_types(rest)
    for event_type in sort_and_deduplicate(types.copy()).tolist():
        rows = rest[types == event_type]
        yield check.format_class(event_type), len(rows), int(_get_payload_sizes(selected_events, rows).sum())


def _iterate_counts_and_sizes_by_value(
    selected_events: SelectedEvents, rows: Int64Array, field_number: int
) -> Iterator[tuple[int | None, int, int]]:
    """Yield each value of a field, and the number and total size in bytes of the events with this value.

    The value is None for events without the field.
    """
    field = decode(
        selected_events.buffer, selected_events.starts[rows], selected_events.stops[rows], (field_number,)
    ).get(field_number)
    present = _compute_presence_mask(field, len(rows))
    missing = rows[~present]
    if len(missing):
        yield None, len(missing), int(_get_payload_sizes(selected_events, missing).sum())
    if field is not None:
        values, inverse, counts = np.unique(field.values[present], return_inverse=True, return_counts=True)
        totals = np.zeros(len(values), np.int64)
        np.add.at(totals, inverse, _get_payload_sizes(selected_events, rows[present]))
        yield from zip(values.tolist(), counts.tolist(), totals.tolist(), strict=True)


def _find_call_indices_of_class(selected_events: SelectedEvents, event_class: int) -> Int64Array:
    """Return the indices of the function calls that have the given event class."""
    classes = decode(selected_events.buffer, selected_events.starts, selected_events.stops, (layout.CLASS,))[
        layout.CLASS
    ]
    return np.flatnonzero(
        (classes.values == event_class) & _compute_presence_mask(classes, len(selected_events.starts))
    )


def _decode_nested_messages(
    selected_events: SelectedEvents, rows: Int64Array, event_class: int
) -> Iterator[Field | None]:
    """Decode, from the calls of a class at the given indices, the nested messages that identify table rows.

    There is one field per kind of nested message. The field is None if no event contains this kind.
    """
    parts = {layout.TABLES[name].nested_message for name in layout.TABLES_BY_NESTED_MESSAGE[event_class]}
    outer = decode(
        selected_events.buffer, selected_events.starts[rows], selected_events.stops[rows], {part[0] for part in parts}
    )
    for number, *path in parts:
        field, inner = outer.get(number), tuple(path)
        yield decode_nested_fields(selected_events.buffer, field, {inner})[inner] if inner else field


def _compute_presence_mask(field: Field | None, event_count: int) -> Mask:
    """Return a mask with one element per event, which is true if the event has the field."""
    if field is None:
        return np.zeros(event_count, np.bool_)
    return np.ones(event_count, np.bool_) if field.valid is None else field.valid


def _get_payload_sizes(selected_events: SelectedEvents, rows: Int64Array) -> Int64Array:
    """Return the sizes in bytes of the payloads of the events at the given indices."""
    return selected_events.stops[rows] - selected_events.starts[rows]
