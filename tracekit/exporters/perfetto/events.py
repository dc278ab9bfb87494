"""Encode the events of one kind in batches of whole columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.exporters.perfetto.flows import flow_bytes
from tracekit.exporters.perfetto.packets import packet
from tracekit.exporters.perfetto.strings import ANNOTATION_NAMES, EVENT_NAMES, STRING_VALUES, Numbered
from tracekit.exporters.perfetto.wire import Constant, Fixed64s, Tails, assemble, field_tag, submessage, varint, varints
from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.columns import available_args, column_names, exception_args, key_arg, value_exprs
from tracekit.exporters.timeline.combinations import combinations

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from tracekit.exporters.perfetto.flows import Flows
    from tracekit.exporters.perfetto.packets import Sequence, TrackUuids
    from tracekit.exporters.perfetto.wire import Column, Mask, Numbers, Times
    from tracekit.exporters.timeline.kinds import Arg, EventKind, Value
    from tracekit.exporters.timeline.tracks import LaneRegistry

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
_TYPES = {kinds.SLICE: BEGIN, kinds.INSTANT: INSTANT, kinds.COUNTER: COUNTER}
_FIELDS = {
    kinds.INTEGER: "int_value",
    kinds.UNSIGNED: "uint_value",
    kinds.REAL: "double_value",
    kinds.THOUSANDTHS: "double_value",
    kinds.STRING: "string_value_iid",
    kinds.TRUE: "bool_value",
}


class NumberedValue(NamedTuple):
    """A value of an argument.

    Attributes:
        form: The form of the value.
        expression: The value.
        strings: The strings by number, for strings only.
    """

    form: str
    expression: pl.Expr
    strings: Numbered | None


class Events(NamedTuple):
    """The events of one kind, sorted by start, and what is needed to encode a batch of them.

    Attributes:
        kind: The kind.
        sequence: The sequence of their packets.
        rows: Columns of the table.
        deltas: Number of ns between the starts of each event and the previous one.
        tracks: The number of the track of each event.
        names: The names, which counters do not have.
        args: The number of the name, and the alternative values, of each argument.
        flows: The arrows at the events, if there are any.
    """

    kind: EventKind
    sequence: Sequence
    rows: pl.DataFrame
    deltas: Numbers
    tracks: Numbered
    names: Numbered | None
    args: list[tuple[int, list[NumberedValue]]]
    flows: Flows | None

    def encode(self, start: int, stop: int) -> memoryview:
        """Return the packets of some events."""
        rows = self.rows[start:stop]
        event: list[Column] = [
            Constant(field_tag("TrackEvent", "type") + varint(_TYPES[self.kind.phase])),
            Constant(field_tag("TrackEvent", "track_uuid")),
            varints(self.tracks.batch(start, stop)),
        ]
        if self.names is not None:
            event += [Constant(field_tag("TrackEvent", "name_iid")), varints(self.names.batch(start, stop))]
        for name, values in self.args:
            for value, numbers, present in _alternatives(values, rows, start):
                if self.kind.phase == kinds.COUNTER:
                    event += _counter_value(value, numbers, present)
                else:
                    event += _annotation(name, value, numbers, present)
        if self.flows is not None:
            event += _flow_columns(self.flows.batch(start, stop))
        return assemble(self.sequence.event_columns(self.deltas[start:stop], event), stop - start)


def make_events(
    kind: EventKind, rows: pl.DataFrame, starts: Times, sequence: Sequence, lane_uuids: Numbers, *, flows: Flows | None
) -> Events:
    """Number the strings of slices or instants.

    Args:
        kind: The kind of the events.
        rows: Columns of the table of the events, and ``lane_id``, sorted by start.
        starts: The start of each event in the file in ns.
        sequence: A new sequence.
        lane_uuids: The number of each lane, by lane id.
        flows: The arrows at the events.
    """
    strings = sequence.strings
    exceptions = [arg for arg in exception_args(kind) if rows.select(value_exprs(arg)[0].is_not_null().any()).item()]
    args = [key_arg(kind), *available_args(kind.row_args, rows.columns), *exceptions]
    args += available_args(kind.repeated_args, rows.columns)
    numbered = [(strings.add(ANNOTATION_NAMES, arg.key), _number_strings(arg, rows, sequence)) for arg in args]
    tracks = Numbered(rows["lane_id"].to_numpy().astype(np.int64), lane_uuids)
    names = strings.number(EVENT_NAMES, rows, kind.name)
    return Events(kind, sequence, rows, deltas_of(starts), tracks, names, numbered, flows)


def make_counters(
    kind: EventKind, rows: pl.DataFrame, starts: Times, sequence: Sequence, *, lanes: LaneRegistry, uuids: TrackUuids
) -> tuple[Events, bytes]:
    """Return the values of counters, and the packets that describe the tracks of the counters.

    Args:
        kind: The kind of the events.
        rows: Columns of the table of the events, and ``lane_id``, sorted by start.
        starts: The start of each event in the file in ns.
        sequence: A new sequence.
        lanes: The lanes.
        uuids: The numbers of tracks.
    """
    codes, examples = combinations(rows, ["lane_id", *column_names(kind.name)])
    pids = {thread.lane_id: thread.pid for thread in lanes.threads()}
    tracks: dict[tuple[int, str], int] = {}
    described = bytearray()
    for lane_id, name in examples.select("lane_id", kind.name.alias("name")).iter_rows():
        if (lane_id, name) not in tracks:
            tracks[lane_id, name] = uuids.counter()
            descriptor = {"uuid": tracks[lane_id, name], "parent_uuid": uuids.process(pids[lane_id]), "name": name}
            described += packet(
                trusted_packet_sequence_id=sequence.number, track_descriptor={**descriptor, "counter": {}}
            )
    keys = examples.select("lane_id", kind.name.alias("name")).iter_rows()
    numbers = Numbered(codes, np.array([tracks[key] for key in keys], np.uint64))
    args = [(0, _number_strings(key_arg(kind), rows, sequence))]
    return Events(kind, sequence, rows, deltas_of(starts), numbers, None, args, None), bytes(described)


def encode_ends(sequence: Sequence, deltas: Numbers, tracks: Numbers) -> memoryview:
    """Return packets that end slices."""
    event: list[Column] = [
        Constant(field_tag("TrackEvent", "type") + varint(END) + field_tag("TrackEvent", "track_uuid")),
        varints(tracks),
    ]
    return assemble(sequence.event_columns(deltas, event), len(tracks))


def deltas_of(times: Times) -> Numbers:
    """Return the number of ns between each time and the previous one. The first time is relative to 0."""
    return np.diff(times, prepend=0).astype(np.uint64)


def _number_strings(arg: Arg, rows: pl.DataFrame, sequence: Sequence) -> list[NumberedValue]:
    """Return the alternative values of an argument, and number those that are strings."""
    return [
        NumberedValue(
            value.form,
            value.expression,
            sequence.strings.number(STRING_VALUES, rows, value.expression) if value.form == kinds.STRING else None,
        )
        for value in arg.values
        if not _is_null(value, rows)
    ]


def _is_null(value: Value, rows: pl.DataFrame) -> bool:
    """Return whether a value is null in all rows because it uses a column that is."""
    return any(rows[name].null_count() == rows.height for name in column_names(value.expression)) and (
        value.form != kinds.TRUE
    )


def _alternatives(
    values: SequenceOf[NumberedValue], rows: pl.DataFrame, start: int
) -> list[tuple[NumberedValue, Numbers, Mask | None]]:
    """Return the values of an argument in some rows, each as numbers and a mask of the rows that have it.

    Args:
        values: The alternative values, of which the first one that is not null is used.
        rows: The rows.
        start: Position of the rows among all events.
    """
    alternatives: list[tuple[NumberedValue, Numbers, Mask | None]] = []
    taken: Mask | None = None
    for value in values:
        numbers, present = _numbers_of(value, rows, start)
        if taken is not None:
            present = ~taken if present is None else present & ~taken
        if present is None or present.any():
            alternatives.append((value, numbers, present))
        if present is None:
            break
        taken = present if taken is None else taken | present
    return alternatives


def _numbers_of(value: NumberedValue, rows: pl.DataFrame, start: int) -> tuple[Numbers, Mask | None]:
    """Return a value in some rows as unsigned numbers, and a mask of the rows that have it, or None for all rows."""
    if value.strings is not None:
        numbers = value.strings.batch(start, start + rows.height)
        return numbers, None if numbers.all() else numbers != 0
    plain = value.expression.meta.is_column()
    column = rows[value.expression.meta.output_name()] if plain else rows.select(value.expression).to_series()
    present = column.is_not_null().to_numpy() if column.null_count() else None
    if value.form in (kinds.REAL, kinds.THOUSANDTHS):
        divisor = 1000 if value.form == kinds.THOUSANDTHS else 1
        floats = column.cast(pl.Float64).fill_null(0).to_numpy() / divisor
        return floats.view(np.uint64), present
    if value.form == kinds.UNSIGNED:
        return column.fill_null(0).to_numpy(), present
    return column.cast(pl.Int64).fill_null(0).to_numpy().view(np.uint64), present


def _annotation(name: int, value: NumberedValue, numbers: Numbers, present: Mask | None) -> list[Column]:
    """Return the columns of a value of an argument."""
    tag = field_tag("DebugAnnotation", "name_iid") + varint(name)
    tag += field_tag("DebugAnnotation", _FIELDS[value.form])
    is_fixed = value.form in (kinds.REAL, kinds.THOUSANDTHS)
    content = Fixed64s(numbers) if is_fixed else varints(numbers)
    return submessage(field_tag("TrackEvent", "debug_annotations"), [Constant(tag), content], present)


def _counter_value(value: NumberedValue, numbers: Numbers, present: Mask | None) -> list[Column]:
    """Return the columns of a value of a counter."""
    if value.form == kinds.INTEGER:
        return [Constant(field_tag("TrackEvent", "counter_value"), present), varints(numbers, present)]
    floats = numbers.astype(np.float64).view(np.uint64) if value.form == kinds.UNSIGNED else numbers
    return [Constant(field_tag("TrackEvent", "double_counter_value"), present), Fixed64s(floats, present)]


def _flow_columns(flows: Flows) -> list[Column]:
    """Return the columns of the arrows at some events."""
    counts = np.diff(flows.ends)
    tag = field_tag("TrackEvent", "flow_ids")
    if not len(flows.ids):
        return []
    if counts.max() > 1:
        return [Tails(*flow_bytes(tag, flows))]
    present = counts > 0
    ids = np.zeros(len(counts), np.uint64)
    ids[present] = flows.ids
    return [Constant(tag, present), Fixed64s(ids, present)]
