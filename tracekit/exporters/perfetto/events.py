"""Encode the events of one kind as Perfetto packets, in batches of rows and without a loop over events."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.exporters.perfetto.packets import encode_packet
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
    encode_field_tag,
    encode_length_delimited,
    encode_submessage,
    encode_varint,
    encode_varints,
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

    from tracekit.exporters.perfetto.flows import FlowBlock, Flows
    from tracekit.exporters.perfetto.packets import PacketSequence, TrackUuids
    from tracekit.exporters.perfetto.slots import Blobs, Slots
    from tracekit.exporters.perfetto.strings import InternedStrings
    from tracekit.exporters.perfetto.wire import EncodedColumn, Mask, Numbers
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


class RowValues(NamedTuple):
    """One of the alternative values of an event argument in some or all rows.

    Attributes:
        form: The type of the value.
        numbers: The values as 64-bit words: the bits of integers or floats, or the interning ids of strings.
        present: Mask of the rows in which the value is not null, or None if no value is null.
    """

    form: str
    numbers: Numbers
    present: Mask | None

    def select(self, rows: Array | slice) -> RowValues:
        """Return the values in the rows with the given row numbers, in this order."""
        present = None if self.present is None else self.present[rows]
        return RowValues(self.form, self.numbers[rows], None if present is None or present.all() else present)


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
        kind: The kind of the events.
        sequence: The packet sequence that the events are written to.
        rows: The rows from which ``args`` are computed.
        times: The start times of the events, and their order.
        args: Each argument that is not in ``blobs``: the interning id of its name, and its alternative values.
        row_values: The values of ``args`` in all rows, or an empty list if the rows are sorted by time.
        names: The interned names of the events, or None if the events are counters or ``blobs`` contains the names.
        blobs: The encoded fields that are equal in many events.
        codes: Index of the fields of each row in ``blobs``.
        flows: The flows that begin or end at the events, ordered by time, or None if there are no flows.
    """

    kind: EventKind
    sequence: PacketSequence
    rows: BlockRows
    times: EventTimes
    args: list[tuple[int, list[InternedValue]]]
    row_values: list[list[RowValues]]
    names: InternedStrings | None
    blobs: Blobs
    codes: Codes
    flows: Flows | None

    def select_block(self, start: int, stop: int) -> EventBlock:
        """Return the events ``start`` to ``stop - 1`` in the order of time."""
        order, starts = self.times
        chosen = slice(start, stop) if order is None else order[start:stop]
        values = (
            _read_block_values(self.args, self.rows, slice(start, stop))
            if order is None
            else [[value.select(chosen) for value in alternatives] for alternatives in self.row_values]
        )
        return EventBlock(
            self.kind,
            self.sequence,
            compute_time_deltas(starts[start:stop], int(starts[start - 1]) if start else 0),
            [(name, alternatives) for (name, _), alternatives in zip(self.args, values, strict=True)],
            None if self.names is None else self.names.get_ids(chosen),
            self.blobs,
            self.codes[chosen],
            None if self.flows is None else self.flows.select_flows_of_events(start, stop),
        )


class EventBlock(NamedTuple):
    """Consecutive events of one ``EventKind``, in the order of time.

    Attributes:
        kind: The kind of the events.
        sequence: The packet sequence that the events are written to.
        deltas: Difference in ns between the start of each event and the start of the previous event.
        args: Each argument that is not in ``blobs``: the interning id of its name, and its alternative values.
        names: The interning ids of the event names, or None if the events are counters or ``blobs`` contains the names.
        blobs: The encoded fields that are equal in many events.
        codes: Index of the fields of each event in ``blobs``.
        flows: The flows that begin or end at the events, or None if there are no flows.
    """

    kind: EventKind
    sequence: PacketSequence
    deltas: Numbers
    args: list[tuple[int, list[RowValues]]]
    names: Numbers | None
    blobs: Blobs
    codes: Codes
    flows: FlowBlock | None

    def encode(self, start: int, stop: int) -> memoryview:
        """Return the encoded packets of the events ``start`` to ``stop - 1`` of the block."""
        chosen = slice(start, stop)
        event: list[Slots] = []
        for name, values in self.args:
            for value in _select_alternatives([value.select(chosen) for value in values]):
                is_counter = self.kind.phase == kinds.COUNTER
                event.append(_build_counter_value_slots(value) if is_counter else _build_annotation_slots(name, value))
        if self.names is not None:
            event.append(VarintSlots(encode_field_tag("TrackEvent", "name_iid"), self.names[chosen]))
        event.append(BlobSlots(self.blobs, self.codes[chosen]))
        flows = None if self.flows is None else self.flows.select_flows_of_events(start, stop)
        gap_sizes = 0 if flows is None else flows.sizes
        packets = encode_packets(self.sequence.encoded_fields, event, self.deltas[chosen], gap_sizes)
        if flows is not None:
            flows.write(packets.data, packets.gap_offsets)
        return memoryview(packets.data.data)


def create_events(
    kind: EventKind,
    rows: RowsWithColumn,
    times: EventTimes,
    sequence: PacketSequence,
    lane_uuids: Numbers,
    *,
    flows: Flows | None,
) -> EventsOfKind:
    """Return the slices or instants of one kind, with their strings interned and their repeated fields encoded.

    Args:
        kind: The kind of the events.
        rows: The events, with the columns of their table and ``lane_id``.
        times: The start times of the events, and their order.
        sequence: The packet sequence that the events are written to.
        lane_uuids: The track uuid of each lane, by lane id.
        flows: The flows that begin or end at the events, ordered by time, or None if there are no flows.
    """
    anomalies = [arg for arg in list_anomaly_args(kind) if _has_values(arg, rows)]
    row_args = [get_key_arg(kind), *select_available_args(kind.row_args, rows.columns), *anomalies]
    repeated = select_available_args(kind.repeated_args, rows.columns)
    keys = [["lane_id"], list_column_names(kind.name), *(list_column_names(*value_exprs(arg)) for arg in repeated)]
    codes, examples, chosen = assign_codes_to_combinations(rows, keys)
    row_args += [arg for nth, arg in enumerate(repeated, 2) if nth not in chosen]
    args = [(sequence.strings.intern_annotation_name(arg.key), _intern_values(arg, rows, sequence)) for arg in row_args]
    names = None if 1 in chosen else sequence.strings.intern(EVENT_NAMES, rows, kind.name)
    in_blobs = [arg for nth, arg in enumerate(repeated, 2) if nth in chosen]
    blobs = _encode_repeated_fields(kind, examples, in_blobs, sequence, lane_uuids, has_name=names is None)
    values = [] if times.order is None else _read_row_values(args, rows)
    return EventsOfKind(kind, sequence, rows, times, args, values, names, blobs, codes, flows)


def _encode_repeated_fields(
    kind: EventKind,
    examples: pl.DataFrame,
    args: Sequence[Arg],
    sequence: PacketSequence,
    lane_uuids: Numbers,
    *,
    has_name: bool,
) -> Blobs:
    """Encode the type, track, name and given arguments of events once per combination of their values.

    Args:
        kind: The kind of the events.
        examples: One event per combination of values.
        args: The arguments to encode.
        sequence: The packet sequence that the events are written to.
        lane_uuids: The track uuid of each lane, by lane id.
        has_name: Whether to encode the name of the event.
    """
    columns: list[EncodedColumn] = [
        Constant(
            encode_field_tag("TrackEvent", "type")
            + encode_varint(_TYPES[kind.phase])
            + encode_field_tag("TrackEvent", "track_uuid")
        ),
        encode_varints(lane_uuids[examples["lane_id"].to_numpy()]),
    ]
    rows = FrameRows(examples)
    if has_name:
        names = sequence.strings.intern(EVENT_NAMES, rows, kind.name)
        columns += [
            Constant(encode_field_tag("TrackEvent", "name_iid")),
            encode_varints(names.get_ids(slice(0, examples.height))),
        ]
    for arg in args:
        name = sequence.strings.intern_annotation_name(arg.key)
        interned = _intern_values(arg, rows, sequence)
        (values,) = _read_block_values([(name, interned)], rows, slice(0, examples.height))
        for value in _select_alternatives(values):
            columns += _build_annotation_columns(name, value)
    return encode_blobs(columns, examples.height)


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
    track_type = (
        encode_field_tag("TrackEvent", "type") + encode_varint(COUNTER) + encode_field_tag("TrackEvent", "track_uuid")
    )
    numbers = np.array([tracks[key] for key in keys], np.uint64)
    blobs = encode_blobs([Constant(track_type), encode_varints(numbers)], len(keys))
    args = [(0, _intern_values(get_key_arg(kind), rows, sequence))]
    values = [] if times.order is None else _read_row_values(args, rows)
    return EventsOfKind(kind, sequence, rows, times, args, values, None, blobs, codes, None), bytes(described)


def encode_slice_ends(sequence: PacketSequence, deltas: Numbers, track_uuids: Numbers) -> memoryview:
    """Return the encoded packets that end slices.

    Args:
        sequence: The packet sequence that the ends are written to.
        deltas: Difference in ns between the end of each slice and the end of the previous slice.
        track_uuids: The track uuid of each slice.
    """
    prefix = encode_field_tag("TrackEvent", "type") + encode_varint(END) + encode_field_tag("TrackEvent", "track_uuid")
    return memoryview(encode_packets(sequence.encoded_fields, [VarintSlots(prefix, track_uuids)], deltas).data.data)


def compute_time_deltas(times: Array, previous_time: int = 0) -> Numbers:
    """Return the difference in ns between each time and the previous time.

    Args:
        times: Times in ns, in ascending order.
        previous_time: The time that precedes the first one, in ns.
    """
    return np.diff(times, prepend=previous_time).astype(np.uint64)


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


def _read_row_values(args: Sequence[tuple[int, list[InternedValue]]], rows: BlockRows) -> list[list[RowValues]]:
    """Return the alternative values of each argument in all rows. The arrays may be in temporary files."""
    results = [[RowValues(v.form, *_allocate_values_and_mask(rows.height)) for v in values] for _, values in args]
    for block in iterate_row_blocks(rows.height):
        for stored, values in zip(results, _read_block_values(args, rows, block), strict=True):
            for target, value in zip(stored, values, strict=True):
                target.numbers[block] = value.numbers
                if target.present is not None:
                    target.present[block] = True if value.present is None else value.present
    return results


def _allocate_values_and_mask(row_count: int) -> tuple[Numbers, Mask]:
    """Return two arrays of zeros: for the values of the rows, and for the mask of the values that are not null."""
    return memory.allocate_zeros(row_count, np.uint64), memory.allocate_zeros(row_count, np.bool_)


def _read_block_values(
    args: Sequence[tuple[int, list[InternedValue]]], rows: BlockRows, block: slice
) -> list[list[RowValues]]:
    """Return the alternative values of each argument in a block of rows."""
    names = [n for _, values in args for v in values if v.strings is None for n in list_column_names(v.expression)]
    frame = rows.read_block(block, list(dict.fromkeys(names)))
    return [[_convert_values_to_uint64(value, frame, block) for value in values] for _, values in args]


def _select_alternatives(values: Sequence[RowValues]) -> list[RowValues]:
    """Return the alternative values of an argument, each with the mask of the rows that use it.

    A row uses the first alternative that is not null. Alternatives that no row uses are omitted.
    """
    alternatives: list[RowValues] = []
    has_value: Mask | None = None
    for value in values:
        present = value.present
        if has_value is not None:
            present = ~has_value if present is None else present & ~has_value
        if present is None or present.any():
            alternatives.append(value._replace(present=present))
        if present is None:
            break
        has_value = present if has_value is None else has_value | present
    return alternatives


def _convert_values_to_uint64(value: InternedValue, rows: pl.DataFrame, block: slice) -> RowValues:
    """Return an argument value in a block of rows as 64-bit words.

    Args:
        value: The value.
        rows: The rows of the block, with the columns from which numbers are computed.
        block: The slice of the row numbers in the block.
    """
    if value.strings is not None:
        numbers = value.strings.get_ids(block)
        return RowValues(value.form, numbers, None if numbers.all() else numbers != 0)
    plain = value.expression.meta.is_column()
    column = rows[value.expression.meta.output_name()] if plain else rows.select(value.expression).to_series()
    present = column.is_not_null().to_numpy() if column.null_count() else None
    if value.form in (kinds.REAL, kinds.THOUSANDTHS):
        divisor = 1000 if value.form == kinds.THOUSANDTHS else 1
        floats = column.cast(pl.Float64).fill_null(0).to_numpy() / divisor
        return RowValues(value.form, floats.view(np.uint64), present)
    if value.form == kinds.UNSIGNED:
        return RowValues(value.form, column.fill_null(0).to_numpy(), present)
    return RowValues(value.form, column.cast(pl.Int64).fill_null(0).to_numpy().view(np.uint64), present)


def _build_annotation_slots(name_id: int, value: RowValues) -> Slots:
    """Return slots that contain the value of an argument as one debug annotation per event."""
    tag = _encode_annotation_prefix(name_id, value)
    lead = encode_field_tag("TrackEvent", "debug_annotations")
    if value.form in _FIXED:
        prefix = encode_length_delimited(lead, tag + bytes(FIXED64_BYTES))[:-FIXED64_BYTES]
        return Fixed64Slots(prefix, value.numbers, value.present)
    return VarintSlots(encode_length_delimited(lead, tag), value.numbers, value.present, length_at=len(lead))


def _build_annotation_columns(name_id: int, value: RowValues) -> list[EncodedColumn]:
    """Return columns that contain the value of an argument as one debug annotation per event."""
    content = Fixed64s(value.numbers) if value.form in _FIXED else encode_varints(value.numbers)
    columns = [Constant(_encode_annotation_prefix(name_id, value)), content]
    return encode_submessage(encode_field_tag("TrackEvent", "debug_annotations"), columns, value.present)


def _encode_annotation_prefix(name_id: int, value: RowValues) -> bytes:
    """Return the bytes of a debug annotation up to its value: the interning id of its name and the tag of the value."""
    tag = encode_field_tag("DebugAnnotation", "name_iid") + encode_varint(name_id)
    return tag + encode_field_tag("DebugAnnotation", _FIELDS[value.form])


def _build_counter_value_slots(value: RowValues) -> Slots:
    """Return slots with the value of a counter as an integer or float. Events without a value have empty slots."""
    if value.form == kinds.INTEGER:
        return VarintSlots(encode_field_tag("TrackEvent", "counter_value"), value.numbers, value.present)
    floats = value.numbers.astype(np.float64).view(np.uint64) if value.form == kinds.UNSIGNED else value.numbers
    return Fixed64Slots(encode_field_tag("TrackEvent", "double_counter_value"), floats, value.present)
