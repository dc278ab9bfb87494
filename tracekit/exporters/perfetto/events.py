"""Encode the events of one kind as Perfetto packets, in batches of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.exporters.perfetto.packets import encode_packet
from tracekit.exporters.perfetto.strings import EVENT_NAMES, STRING_VALUES
from tracekit.exporters.perfetto.wire import (
    FIXED64_BYTES,
    NO_FLOWS,
    FieldValues,
    PacketBatch,
    PacketField,
    Prefix,
    RepeatedFields,
    encode_field_tag,
    encode_fragments,
    encode_varint,
)
from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.batches import (
    get_key_arg,
    list_anomaly_args,
    list_column_names,
    select_available_args,
    value_exprs,
)
from tracekit.exporters.timeline.blocks import FrameRows, iterate_frames
from tracekit.exporters.timeline.combinations import assign_codes_to_combinations, find_distinct_combinations
from tracekit.system import memory
from tracekit.system.sorting import iterate_row_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.exporters.perfetto.packets import PacketSequence, TrackUuids
    from tracekit.exporters.perfetto.strings import InternedStrings
    from tracekit.exporters.perfetto.wire import Flows, Numbers
    from tracekit.exporters.timeline.blocks import BlockRows, RowsWithColumn
    from tracekit.exporters.timeline.combinations import Codes
    from tracekit.exporters.timeline.kinds import Arg, ArgumentValue, EventKind
    from tracekit.exporters.timeline.tracks import LaneRegistry
    from tracekit.system.sorting import Array

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


class InternedValue(NamedTuple):
    """One of the alternative values of an event argument. Strings have been interned for all rows.

    Attributes:
        form: The type of the value: one of the constants in ``kinds``, such as ``INTEGER``.
        expression: The expression that computes the value.
        strings: The interned strings of all rows, or None if the value is not a string.
    """

    form: str
    expression: pl.Expr
    strings: InternedStrings | None


class EventArg(NamedTuple):
    """An event argument.

    Attributes:
        prefixes: The encoded bytes that precede each of the alternative values.
        values: The alternative values. An event has the first one that is not null.
    """

    prefixes: list[Prefix]
    values: list[InternedValue]


class EventTimes(NamedTuple):
    """The start times of events, and the order of the events by time.

    Attributes:
        order: Row numbers of the events, sorted by time, or None if the rows are sorted already.
        starts: The start times in ns, sorted by time.
    """

    order: Array | None
    starts: Array


class EventsOfKind(NamedTuple):
    """The events of one ``EventKind``, with interned strings. They can be encoded in blocks in the order of time.

    Attributes:
        sequence: The packet sequence that the events are written to.
        rows: The rows from which ``args`` are computed.
        times: The start times of the events, and their order.
        args: The arguments that are not in ``fragments``.
        row_values: The values of ``args`` in all rows, or an empty list if the rows are sorted by time.
        names: The interned names of the events, or None if the events are counters or ``fragments`` has the names.
        fragments: The encoded fields that are equal in many events.
        codes: Index of the fields of each row in ``fragments``.
        flows: The flows that begin or end at the events, ordered by time.
    """

    sequence: PacketSequence
    rows: BlockRows
    times: EventTimes
    args: list[EventArg]
    row_values: list[FieldValues]
    names: InternedStrings | None
    fragments: RepeatedFields
    codes: Codes
    flows: Flows = NO_FLOWS

    def select_block(self, start: int, stop: int) -> PacketBatch:
        """Return the events ``start`` to ``stop - 1`` in the order of time."""
        order = self.times.order
        chosen = slice(start, stop) if order is None else order[start:stop]
        values = (
            _read_block_values(self.args, self.rows, chosen)
            if isinstance(chosen, slice)
            else [value.select(chosen) for value in self.row_values]
        )
        fields = [PacketField(arg.prefixes, value) for arg, value in zip(self.args, values, strict=True)]
        if self.names is not None:
            fields.append(_build_name_field(self.names.get_ids(chosen)))
        times = get_times_with_previous(self.times.starts, start, stop)
        flows = self.flows.select_flows_of_events(start, stop)
        return PacketBatch(self.sequence.event_lead, times, fields, self.fragments, self.codes[chosen], flows)


def create_events(
    kind: EventKind,
    rows: RowsWithColumn,
    times: EventTimes,
    sequence: PacketSequence,
    lane_uuids: Numbers,
    *,
    flows: Flows,
) -> EventsOfKind:
    """Return the slices or instants of one kind, with their strings interned and their repeated fields encoded.

    Args:
        kind: The kind of the events.
        rows: The events, with the columns of their table and ``lane_id``.
        times: The start times of the events, and their order.
        sequence: The packet sequence that the events are written to.
        lane_uuids: The track uuid of each lane, by lane id.
        flows: The flows that begin or end at the events, ordered by time.
    """
    anomalies = [arg for arg in list_anomaly_args(kind) if _has_values(arg, rows)]
    row_args = [get_key_arg(kind), *select_available_args(kind.row_args, rows.columns), *anomalies]
    repeated = select_available_args(kind.repeated_args, rows.columns)
    keys = [["lane_id"], list_column_names(kind.name), *(list_column_names(*value_exprs(arg)) for arg in repeated)]
    codes, examples, chosen = assign_codes_to_combinations(rows, keys)
    row_args += [arg for nth, arg in enumerate(repeated, 2) if nth not in chosen]
    args = [_create_annotation_arg(arg, rows, sequence) for arg in row_args]
    names = None if 1 in chosen else sequence.strings.intern(EVENT_NAMES, rows, kind.name)
    repeated_args = [arg for nth, arg in enumerate(repeated, 2) if nth in chosen]
    fragments = _encode_repeated_fields(kind, examples, repeated_args, sequence, lane_uuids, has_name=names is None)
    values = [] if times.order is None else _read_row_values(args, rows)
    return EventsOfKind(sequence, rows, times, args, values, names, fragments, codes, flows)


def _encode_repeated_fields(
    kind: EventKind,
    examples: pl.DataFrame,
    args: Sequence[Arg],
    sequence: PacketSequence,
    lane_uuids: Numbers,
    *,
    has_name: bool,
) -> RepeatedFields:
    """Encode the type, track, name and given arguments of events once per combination of their values.

    Args:
        kind: The kind of the events.
        examples: One event per combination of values.
        args: The arguments to encode.
        sequence: The packet sequence that the events are written to.
        lane_uuids: The track uuid of each lane, by lane id.
        has_name: Whether to encode the name of the event.
    """
    rows, every = FrameRows(examples), slice(0, examples.height)
    fields = [build_track_field(_TYPES[kind.phase], lane_uuids[examples["lane_id"].to_numpy()])]
    if has_name:
        fields.append(_build_name_field(sequence.strings.intern(EVENT_NAMES, rows, kind.name).get_ids(every)))
    for arg in args:
        interned = _create_annotation_arg(arg, rows, sequence)
        fields.append(PacketField(interned.prefixes, *_read_block_values([interned], rows, every)))
    return encode_fragments(fields, examples.height)


def create_counter_events_and_tracks(
    kind: EventKind,
    rows: RowsWithColumn,
    times: EventTimes,
    sequence: PacketSequence,
    *,
    lanes: LaneRegistry,
    uuids: TrackUuids,
) -> tuple[EventsOfKind, bytes]:
    """Return counter values, and the encoded packets that describe their counter tracks.

    Args:
        kind: The kind of the events.
        rows: The values, with the columns of their table and ``lane_id``.
        times: The times of the values, and the order of the values by time.
        sequence: The packet sequence that the values are written to.
        lanes: The lanes of all tracks.
        uuids: The uuids of the tracks in the file, to which the uuids of the counter tracks are added.
    """
    codes, examples, order = find_distinct_combinations(rows, ["lane_id", *list_column_names(kind.name)])
    pids = {thread.lane_id: thread.pid for thread in lanes.iterate_threads()}
    tracks: dict[tuple[int, str], int] = {}
    described = bytearray()
    keys = list(examples.select("lane_id", kind.name.alias("name")).iter_rows())
    for lane_id, name in (keys[code] for code in order):
        if (lane_id, name) not in tracks:
            tracks[lane_id, name] = uuids.create_counter_uuid()
            descriptor = {
                "uuid": tracks[lane_id, name],
                "parent_uuid": uuids.get_process_uuid(pids[lane_id]),
                "name": name,
            }
            described += encode_packet(
                trusted_packet_sequence_id=sequence.number, track_descriptor={**descriptor, "counter": {}}
            )
    track_uuids = np.array([tracks[key] for key in keys], np.uint64)
    fragments = encode_fragments([build_track_field(COUNTER, track_uuids)], len(keys))
    args = [_create_counter_arg(get_key_arg(kind), rows, sequence)]
    values = [] if times.order is None else _read_row_values(args, rows)
    return EventsOfKind(sequence, rows, times, args, values, None, fragments, codes), bytes(described)


def build_track_field(event_type: int, track_uuids: Numbers) -> PacketField:
    """Return a field that contains the given type of an event, and the uuid of the track of each event."""
    tag = encode_field_tag("TrackEvent", "type") + encode_varint(event_type)
    return PacketField([Prefix(tag + encode_field_tag("TrackEvent", "track_uuid"))], _require(track_uuids))


def _build_name_field(name_ids: Numbers) -> PacketField:
    return PacketField([Prefix(encode_field_tag("TrackEvent", "name_iid"))], _require(name_ids))


def _require(numbers: Numbers) -> FieldValues:
    """Return the values of a field that every event has."""
    return FieldValues(numbers, np.ones(len(numbers), np.uint8))


def get_times_with_previous(times: Array, start: int, stop: int) -> Array:
    """Return the times ``start`` to ``stop - 1``, preceded by the previous time. 0 precedes the first time."""
    return times[start - 1 : stop] if start else np.concatenate([np.zeros(1, np.int64), times[:stop]])


def _create_annotation_arg(arg: Arg, rows: FrameRows | RowsWithColumn, sequence: PacketSequence) -> EventArg:
    """Return an argument that is written as a debug annotation, with its name and strings interned."""
    name_id = sequence.strings.intern_annotation_name(arg.key)
    values = _intern_values(arg, rows, sequence)
    return EventArg([_encode_annotation_prefix(name_id, value.form) for value in values], values)


def _create_counter_arg(arg: Arg, rows: RowsWithColumn, sequence: PacketSequence) -> EventArg:
    """Return the value of a counter as an integer or float. Unsigned integers are converted to floats."""
    interned = _intern_values(arg, rows, sequence)
    values = [value._replace(form=kinds.REAL) if value.form == kinds.UNSIGNED else value for value in interned]
    whole, real = (Prefix(encode_field_tag("TrackEvent", name)) for name in ("counter_value", "double_counter_value"))
    return EventArg([whole if v.form == kinds.INTEGER else real._replace(is_fixed=True) for v in values], values)


def _intern_values(arg: Arg, rows: FrameRows | RowsWithColumn, sequence: PacketSequence) -> list[InternedValue]:
    """Return the alternative values of an argument, and intern the strings among them.

    Alternatives that are null in all rows are omitted.
    """
    return [
        InternedValue(
            value.form,
            value.expression,
            sequence.strings.intern(STRING_VALUES, rows, value.expression) if value.form == kinds.STRING else None,
        )
        for value in arg.values
        if not _is_all_null(value, rows)
    ]


def _has_values(arg: Arg, rows: BlockRows) -> bool:
    """Return whether an argument has a value in at least one row. The argument must have a single value expression."""
    (expression,) = value_exprs(arg)
    names = list(dict.fromkeys(list_column_names(expression)))
    return any(frame.select(expression.is_not_null().any()).item() for _, frame in iterate_frames(rows, names))


def _is_all_null(value: ArgumentValue, rows: FrameRows | RowsWithColumn) -> bool:
    """Return whether a value is null in all rows because a column of its expression is null in all rows."""
    return value.form != kinds.TRUE and any(rows.is_all_null(name) for name in list_column_names(value.expression))


def _read_row_values(args: Sequence[EventArg], rows: BlockRows) -> list[FieldValues]:
    """Return the values of each argument in all rows. The arrays may be in temporary files."""
    types = np.uint64, np.uint8
    results = [FieldValues(*(memory.allocate_zeros(rows.height, dtype) for dtype in types)) for _ in args]
    for block in iterate_row_blocks(rows.height):
        for stored, values in zip(results, _read_block_values(args, rows, block), strict=True):
            stored.numbers[block], stored.choices[block] = values
    return results


def _read_block_values(args: Sequence[EventArg], rows: BlockRows, block: slice) -> list[FieldValues]:
    """Return the values of each argument in a block of rows."""
    names = [n for _, values in args for v in values if v.strings is None for n in list_column_names(v.expression)]
    frame = rows.read_block(block, list(dict.fromkeys(names)))
    return [_choose_values(arg.values, frame, block) for arg in args]


def _choose_values(values: Sequence[InternedValue], rows: pl.DataFrame, block: slice) -> FieldValues:
    """Return, for each row of a block, the first of several alternative values that is not null."""
    result = FieldValues(np.zeros(block.stop - block.start, np.uint64), np.zeros(block.stop - block.start, np.uint8))
    for number, value in enumerate(values, 1):
        numbers, present = _convert_values_to_uint64(value, rows, block)
        if number == 1 and present is None:
            return _require(numbers)
        chosen = (result.choices == 0) & present if present is not None else result.choices == 0
        np.copyto(result.numbers, numbers, where=chosen)
        result.choices[chosen] = number
    return result


def _convert_values_to_uint64(
    value: InternedValue, rows: pl.DataFrame, block: slice
) -> tuple[Numbers, np.ndarray[tuple[int], np.dtype[np.bool_]] | None]:
    """Return an argument value in a block of rows as 64-bit words, and a mask of its values that are not null.

    Args:
        value: The value.
        rows: The rows of the block, with the columns from which numbers are computed.
        block: The slice of the row numbers in the block.

    Returns:
        The words: the bits of integers or floats, or the interning ids of strings; and the mask, or None if no value
        is null.
    """
    if value.strings is not None:
        numbers = value.strings.get_ids(block)
        return numbers, None if numbers.all() else numbers != 0
    plain = value.expression.meta.is_column()
    column = rows[value.expression.meta.output_name()] if plain else rows.select(value.expression).to_series()
    present = column.is_not_null().to_numpy() if column.null_count() else None
    if value.form in _FIXED:
        divisor = 1000 if value.form == kinds.THOUSANDTHS else 1
        floats = column.cast(pl.Float64).fill_null(0).to_numpy() / divisor
        return floats.view(np.uint64), present
    if value.form == kinds.UNSIGNED:
        return column.fill_null(0).to_numpy(), present
    return column.cast(pl.Int64).fill_null(0).to_numpy().view(np.uint64), present


def _encode_annotation_prefix(name_id: int, form: str) -> Prefix:
    """Return the bytes of a debug annotation up to its value, including the interning id of its name."""
    lead = encode_field_tag("TrackEvent", "debug_annotations")
    name = encode_field_tag("DebugAnnotation", "name_iid") + encode_varint(name_id)
    content = name + encode_field_tag("DebugAnnotation", _FIELDS[form])
    size = len(content) + (FIXED64_BYTES if form in _FIXED else 0)
    return Prefix(lead + encode_varint(size) + content, form in _FIXED, 0 if form in _FIXED else len(lead))
