"""Encode the events of one kind in batches of whole columns."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.exporters.perfetto.packets import packet
from tracekit.exporters.perfetto.slots import (
    BlobSlots,
    Fixed64Slots,
    VarintSlots,
    encode_blobs,
    encode_packets,
)
from tracekit.exporters.perfetto.strings import EVENT_NAMES, STRING_VALUES
from tracekit.exporters.perfetto.wire import (
    FIXED64_BYTES,
    Constant,
    Fixed64s,
    field_tag,
    sized,
    submessage,
    varint,
    varints,
)
from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.columns import available_args, column_names, exception_args, key_arg, value_exprs
from tracekit.exporters.timeline.combinations import distinct_combinations, repeated_combinations

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from tracekit.exporters.perfetto.flows import Flows
    from tracekit.exporters.perfetto.packets import Sequence, TrackUuids
    from tracekit.exporters.perfetto.slots import Blobs, Slots
    from tracekit.exporters.perfetto.strings import Numbered
    from tracekit.exporters.perfetto.wire import Column, Mask, Numbers, Sizes, Times
    from tracekit.exporters.timeline.combinations import Codes
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
_FIXED = (kinds.REAL, kinds.THOUSANDTHS)


class NumberedValue(NamedTuple):
    """One of the alternative values of an argument, whose strings are interned.

    Attributes:
        form: The form of the value, one of those in ``kinds``.
        expression: The expression that computes the value.
        strings: The interned strings of all rows. None for values that are not strings.
    """

    form: str
    expression: pl.Expr
    strings: Numbered | None


class EventTimes(NamedTuple):
    """The times of events, in the order of time.

    Attributes:
        order: Row numbers in the order of time. If None, the rows are in this order.
        deltas: Number of ns between the start of each event and of the previous one. The first one is the start.
    """

    order: Sizes | None
    deltas: Numbers


class Events(NamedTuple):
    """The events of one kind, prepared so that batches of them can be encoded in the order of time.

    Attributes:
        kind: The kind.
        sequence: The sequence that the packets belong to.
        rows: The columns of ``args``.
        times: The order and the starts of the events.
        args: The interning id of the name, and the alternative values, of each argument that is not in ``blobs``.
        names: The interned names. None if they are in ``blobs``, and for counters, which have no names.
        blobs: The encoded fields that are equal in many events.
        codes: The number of the blob of each row.
        flows: The arrows at the events, in the order of time. None if there are no arrows.
    """

    kind: EventKind
    sequence: Sequence
    rows: pl.DataFrame
    times: EventTimes
    args: list[tuple[int, list[NumberedValue]]]
    names: Numbered | None
    blobs: Blobs
    codes: Codes
    flows: Flows | None

    def encode(self, start: int, stop: int) -> memoryview:
        """Return the encoded packets of the events from ``start`` to ``stop``, counted in the order of time."""
        chosen = slice(start, stop) if self.times.order is None else self.times.order[start:stop]
        rows = self.rows[chosen]
        event: list[Slots] = []
        for name, values in self.args:
            for value, numbers, present in _alternatives(values, rows, chosen):
                is_counter = self.kind.phase == kinds.COUNTER
                encode = _counter_value if is_counter else functools.partial(_annotation, name)
                event.append(encode(value, numbers, present))
        if self.names is not None:
            event.append(VarintSlots(field_tag("TrackEvent", "name_iid"), self.names.batch(chosen)))
        event.append(BlobSlots(self.blobs, self.codes[chosen]))
        flows = None if self.flows is None else self.flows.batch(start, stop)
        gaps = 0 if flows is None else flows.sizes
        packets = encode_packets(self.sequence.fields, event, self.times.deltas[start:stop], gaps)
        if flows is not None:
            flows.write(packets.data, packets.gaps)
        return memoryview(packets.data.data)


def make_events(
    kind: EventKind,
    rows: pl.DataFrame,
    times: EventTimes,
    sequence: Sequence,
    lane_uuids: Numbers,
    *,
    flows: Flows | None,
) -> Events:
    """Prepare slices or instants: intern their strings and encode the fields that are equal in many events.

    Args:
        kind: The kind of the events.
        rows: Columns of the table of the events, and ``lane_id``.
        times: The order and the starts of the events.
        sequence: The sequence of the packets.
        lane_uuids: The track uuid of each lane, by lane id.
        flows: The arrows at the events, in the order of time. None if there are no arrows.
    """
    exceptions = [arg for arg in exception_args(kind) if rows.select(value_exprs(arg)[0].is_not_null().any()).item()]
    row_args = [key_arg(kind), *available_args(kind.row_args, rows.columns), *exceptions]
    repeated = available_args(kind.repeated_args, rows.columns)
    keys = [["lane_id"], column_names(kind.name), *(column_names(*value_exprs(arg)) for arg in repeated)]
    codes, examples, chosen = repeated_combinations(rows, keys)
    row_args += [arg for nth, arg in enumerate(repeated, 2) if nth not in chosen]
    args = [(sequence.strings.annotation_name(arg.key), _number_strings(arg, rows, sequence)) for arg in row_args]
    names = None if 1 in chosen else sequence.strings.number(EVENT_NAMES, rows, kind.name)
    in_blobs = [arg for nth, arg in enumerate(repeated, 2) if nth in chosen]
    blobs = _encode_repeated(kind, examples, in_blobs, sequence, lane_uuids, has_name=names is None)
    columns = [c for c in dict.fromkeys(column_names(*value_exprs(*row_args))) if c in rows.columns]
    return Events(kind, sequence, rows.select(columns), times, args, names, blobs, codes, flows)


def _encode_repeated(
    kind: EventKind,
    examples: pl.DataFrame,
    args: SequenceOf[Arg],
    sequence: Sequence,
    lane_uuids: Numbers,
    *,
    has_name: bool,
) -> Blobs:
    """Encode the type, track, name and some arguments of one event per combination of their values.

    Args:
        kind: The kind of the events.
        examples: One event per combination of values.
        args: The arguments that are encoded.
        sequence: The sequence of the packets.
        lane_uuids: The track uuid of each lane, by lane id.
        has_name: Whether the name is encoded.
    """
    columns: list[Column] = [
        Constant(field_tag("TrackEvent", "type") + varint(_TYPES[kind.phase]) + field_tag("TrackEvent", "track_uuid")),
        varints(lane_uuids[examples["lane_id"].to_numpy()]),
    ]
    rows = slice(0, examples.height)
    if has_name:
        names = sequence.strings.number(EVENT_NAMES, examples, kind.name)
        columns += [Constant(field_tag("TrackEvent", "name_iid")), varints(names.batch(rows))]
    for arg in args:
        name = sequence.strings.annotation_name(arg.key)
        for value, numbers, present in _alternatives(_number_strings(arg, examples, sequence), examples, rows):
            columns += _annotation_columns(name, value, numbers, present)
    return encode_blobs(columns, examples.height)


def make_counters(
    kind: EventKind,
    rows: pl.DataFrame,
    times: EventTimes,
    sequence: Sequence,
    *,
    lanes: LaneRegistry,
    uuids: TrackUuids,
) -> tuple[Events, bytes]:
    """Prepare the values of counters, and return them with the packets that describe the tracks of the counters.

    Args:
        kind: The kind of the events.
        rows: Columns of the table of the events, and ``lane_id``.
        times: The order and the times of the values.
        sequence: The sequence of the packets.
        lanes: The lanes.
        uuids: The uuids of tracks. New ones are created for the counters.
    """
    codes, examples = distinct_combinations(rows, ["lane_id", *column_names(kind.name)])
    pids = {thread.lane_id: thread.pid for thread in lanes.threads()}
    tracks: dict[tuple[int, str], int] = {}
    described = bytearray()
    keys = list(examples.select("lane_id", kind.name.alias("name")).iter_rows())
    for lane_id, name in keys:
        if (lane_id, name) not in tracks:
            tracks[lane_id, name] = uuids.counter()
            descriptor = {"uuid": tracks[lane_id, name], "parent_uuid": uuids.process(pids[lane_id]), "name": name}
            described += packet(
                trusted_packet_sequence_id=sequence.number, track_descriptor={**descriptor, "counter": {}}
            )
    track_type = field_tag("TrackEvent", "type") + varint(COUNTER) + field_tag("TrackEvent", "track_uuid")
    numbers = np.array([tracks[key] for key in keys], np.uint64)
    blobs = encode_blobs([Constant(track_type), varints(numbers)], len(keys))
    args = [(0, _number_strings(key_arg(kind), rows, sequence))]
    columns = rows.select(list(dict.fromkeys(column_names(*value_exprs(key_arg(kind))))))
    return Events(kind, sequence, columns, times, args, None, blobs, codes, None), bytes(described)


def encode_ends(sequence: Sequence, deltas: Numbers, tracks: Numbers) -> memoryview:
    """Return the encoded packets that end slices.

    Args:
        sequence: The sequence that the packets belong to.
        deltas: Number of ns between each end and the previous one.
        tracks: The track uuid of each slice.
    """
    prefix = field_tag("TrackEvent", "type") + varint(END) + field_tag("TrackEvent", "track_uuid")
    return memoryview(encode_packets(sequence.fields, [VarintSlots(prefix, tracks)], deltas).data.data)


def deltas_of(times: Times) -> Numbers:
    """Return the difference between each time and the previous one in ns. The first value is the first time itself."""
    return np.diff(times, prepend=0).astype(np.uint64)


def _number_strings(arg: Arg, rows: pl.DataFrame, sequence: Sequence) -> list[NumberedValue]:
    """Return the alternative values of an argument that are not null in all rows, with interned strings."""
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
    """Return whether a value is null in all rows because a column that it is computed from is null in all rows."""
    return any(rows[name].null_count() == rows.height for name in column_names(value.expression)) and (
        value.form != kinds.TRUE
    )


def _alternatives(
    values: SequenceOf[NumberedValue], rows: pl.DataFrame, chosen: Sizes | slice
) -> list[tuple[NumberedValue, Numbers, Mask | None]]:
    """Return the alternative values of an argument in some rows, each with a mask of the rows that use it.

    A row uses the first alternative that is not null. Values are returned as numbers, and strings as interning ids.
    The mask is None if all rows use the alternative.

    Args:
        values: The alternative values.
        rows: The rows.
        chosen: The positions of the rows among all rows of the kind.
    """
    alternatives: list[tuple[NumberedValue, Numbers, Mask | None]] = []
    taken: Mask | None = None
    for value in values:
        numbers, present = _numbers_of(value, rows, chosen)
        if taken is not None:
            present = ~taken if present is None else present & ~taken
        if present is None or present.any():
            alternatives.append((value, numbers, present))
        if present is None:
            break
        taken = present if taken is None else taken | present
    return alternatives


def _numbers_of(value: NumberedValue, rows: pl.DataFrame, chosen: Sizes | slice) -> tuple[Numbers, Mask | None]:
    """Return a value in some rows as unsigned numbers, with a mask of the rows in which it is not null.

    Integers and floats are reinterpreted, and strings are replaced with their interning ids. The mask is None if no
    value is null.
    """
    if value.strings is not None:
        numbers = value.strings.batch(chosen)
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


def _annotation(name: int, value: NumberedValue, numbers: Numbers, present: Mask | None) -> Slots:
    """Return slots with one debug annotation per event, which contains a value of an argument."""
    tag = _annotation_tag(name, value)
    lead = field_tag("TrackEvent", "debug_annotations")
    if value.form in _FIXED:
        return Fixed64Slots(sized(lead, tag + bytes(FIXED64_BYTES))[:-FIXED64_BYTES], numbers, present)
    return VarintSlots(sized(lead, tag), numbers, present, length_at=len(lead))


def _annotation_columns(name: int, value: NumberedValue, numbers: Numbers, present: Mask | None) -> list[Column]:
    """Return columns with one debug annotation per event, which contains a value of an argument."""
    content = Fixed64s(numbers) if value.form in _FIXED else varints(numbers)
    columns = [Constant(_annotation_tag(name, value)), content]
    return submessage(field_tag("TrackEvent", "debug_annotations"), columns, present)


def _annotation_tag(name: int, value: NumberedValue) -> bytes:
    """Return the bytes of a debug annotation that precede its value."""
    tag = field_tag("DebugAnnotation", "name_iid") + varint(name)
    return tag + field_tag("DebugAnnotation", _FIELDS[value.form])


def _counter_value(value: NumberedValue, numbers: Numbers, present: Mask | None) -> Slots:
    """Return slots with the value of a counter in each event that has it, as an integer or float."""
    if value.form == kinds.INTEGER:
        return VarintSlots(field_tag("TrackEvent", "counter_value"), numbers, present)
    floats = numbers.astype(np.float64).view(np.uint64) if value.form == kinds.UNSIGNED else numbers
    return Fixed64Slots(field_tag("TrackEvent", "double_counter_value"), floats, present)
