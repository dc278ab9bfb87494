"""Encode the events of one kind as Perfetto packets, in batches of rows."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.exporters.perfetto.packets import encode_packet, format_description
from tracekit.exporters.perfetto.strings import ANNOTATION_NAMES, EVENT_NAMES, LAUNCH_ARG_NAMES, STRING_VALUES
from tracekit.exporters.perfetto.wire import (
    FIXED64_BYTES,
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
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.exporters.perfetto.packets import PacketSequence, TrackUuids
    from tracekit.exporters.perfetto.strings import StringTables
    from tracekit.exporters.perfetto.wire import Codes, Flows, Numbers
    from tracekit.exporters.timeline.blocks import RowBatch, TableRows
    from tracekit.exporters.timeline.kinds import Arg, ArgumentValue, EventKind
    from tracekit.exporters.timeline.tracks import LaneRegistry
    from tracekit.native.combinations import RowCombinations
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
_ANNOTATION = ("TrackEvent", "debug_annotations", "DebugAnnotation")
_LAUNCH_ARG = (
    "GpuRenderStageEvent.ComputeKernelLaunch",
    "args",
    "GpuRenderStageEvent.ExtraComputeArg",
)
_FIXED = (kinds.REAL, kinds.THOUSANDTHS)
_MIN_COMBINATIONS = 64
"""Number of combinations that is always allowed, even if a block has few rows."""


class EventArg(NamedTuple):
    """An event argument.

    Attributes:
        prefixes: The encoded bytes that precede each of the alternative values.
        values: The alternative values. An event has the first one that is not null.
    """

    prefixes: list[Prefix]
    values: tuple[ArgumentValue, ...]

    @classmethod
    def as_annotation(cls, arg: Arg, strings: StringTables) -> EventArg:
        """Return an argument that is written as a debug annotation, with its name interned."""
        name_id = strings.intern_name(ANNOTATION_NAMES, arg.key)
        return cls([_encode_arg_prefix(*_ANNOTATION, name_id, value.form) for value in arg.values], arg.values)

    @classmethod
    def as_launch_arg(cls, arg: Arg, strings: StringTables) -> EventArg:
        """Return an argument that is written as a parameter of a launch, with its name interned."""
        name_id = strings.intern_name(LAUNCH_ARG_NAMES, arg.key)
        return cls([_encode_arg_prefix(*_LAUNCH_ARG, name_id, value.form) for value in arg.values], arg.values)

    @classmethod
    def as_counter(cls, arg: Arg) -> EventArg:
        """Return the value of a counter as an integer or float. Unsigned integers are converted to floats."""
        values = tuple(v._replace(form=kinds.REAL) if v.form == kinds.UNSIGNED else v for v in arg.values)
        tags = (encode_field_tag("TrackEvent", name) for name in ("counter_value", "double_counter_value"))
        whole, real = (Prefix(tag) for tag in tags)
        return cls([whole if v.form == kinds.INTEGER else real._replace(is_fixed=True) for v in values], values)


class EventTimes(NamedTuple):
    """The start times of events, and the order of the events by time.

    Attributes:
        order: Row numbers of the events, sorted by time, or None if the rows are sorted already.
        starts: The start times in ns, sorted by time.
    """

    order: Array | None
    starts: Array


class CounterTracks:
    """The tracks of the counters of one kind. A track is described when its first value is written."""

    def __init__(self, table: str, lanes: LaneRegistry, uuids: TrackUuids, sequence_number: int) -> None:
        self._table = table
        self._threads = {thread.lane_id: thread for thread in lanes.iterate_threads()}
        self._uuids, self._sequence_number = uuids, sequence_number
        self._tracks: dict[tuple[int, str], int] = {}
        self._described = bytearray()

    def get_or_create_uuids(self, lane_ids: Array, names: pl.Series) -> Numbers:
        """Return the uuid of the track of each counter, given its lane and name."""
        keys = list(zip(lane_ids.tolist(), names, strict=True))
        for lane_id, name in keys:
            if (lane_id, name) not in self._tracks:
                uuid = self._tracks[lane_id, name] = self._uuids.create_counter_uuid()
                thread = self._threads[lane_id]
                parent = self._uuids.get_process_uuid(thread.pid)
                about = format_description({"table": self._table, **thread.attributes})
                descriptor = {"uuid": uuid, "parent_uuid": parent, "name": name, "counter": {}, "description": about}
                self._described += encode_packet(
                    trusted_packet_sequence_id=self._sequence_number, track_descriptor=descriptor
                )
        return np.array([self._tracks[key] for key in keys], np.uint64)

    def pop_packets(self) -> bytes:
        """Return the packets that describe the tracks that were created since the last call."""
        described, self._described = bytes(self._described), bytearray()
        return described


class EventsOfKind:
    """The events of one ``EventKind``. Their fields are prepared in blocks, in the order of time."""

    def __init__(
        self,
        kind: EventKind,
        rows: TableRows,
        lane_ids: Array,
        times: EventTimes,
        sequence: PacketSequence,
        *,
        tracks: Numbers | CounterTracks,
        flows: Flows,
        submissions: Flows,
    ) -> None:
        """Prepare to encode events.

        Args:
            kind: The kind of the events.
            rows: The events.
            lane_ids: Lane id of each event.
            times: The start times of the events, and their order.
            sequence: The packet sequence that the events are written to.
            tracks: The track uuid of each lane, by lane id, or the tracks of counters.
            flows: The flows that begin or end at the events, ordered by time.
            submissions: The GPU render stage events that the events launched, ordered by the time of the events.
        """
        self._kind, self._rows, self._lane_ids, self._times = kind, rows, lane_ids, times
        self._sequence, self._strings, self._flows = sequence, sequence.strings, flows
        self._tracks, self._submissions = tracks, submissions
        self._row_args, self._repeated_args = [EventArg.as_counter(get_key_arg(kind))], list[EventArg]()
        if isinstance(tracks, np.ndarray):
            own = [get_key_arg(kind), *select_available_args(kind.row_args, rows.columns), *list_anomaly_args(kind)]
            self._row_args = [EventArg.as_annotation(arg, self._strings) for arg in own]
            repeated = select_available_args(kind.repeated_args, rows.columns)
            self._repeated_args = [EventArg.as_annotation(arg, self._strings) for arg in repeated]

    def select_block(self, start: int, stop: int) -> PacketBatch:
        """Return the events ``start`` to ``stop - 1`` in the order of time. Their strings have been interned.

        The fields of one block do not depend on other blocks, except for interning ids and the numbers of tracks.
        """
        order = self._times.order
        chosen = slice(start, stop) if order is None else order[start:stop]
        batch, lane_ids = self._rows.read_batch(chosen), self._lane_ids[chosen]
        groups = [list_column_names(self._kind.name)]
        groups += [list_column_names(*(value.expression for value in arg.values)) for arg in self._repeated_args]
        combinations, used = self._find_combinations(batch, lane_ids, groups)
        examples = batch.take(combinations.first_rows)
        repeated = [arg for nth, arg in enumerate(self._repeated_args, 1) if nth in used]
        fields = [*self._create_track_fields(examples, lane_ids[combinations.first_rows], has_name=0 in used)]
        fragments = encode_fragments([*fields, *create_arg_fields(repeated, examples, self._strings)], examples.height)
        rest = [arg for nth, arg in enumerate(self._repeated_args, 1) if nth not in used]
        fields = [*create_arg_fields([*self._row_args, *rest], batch, self._strings)]
        if 0 not in used:
            fields.append(self._create_name_field(batch))
        times = get_times_with_previous(self._times.starts, start, stop)
        flows = self._flows.select_flows_of_events(start, stop)
        submissions = self._submissions.select_flows_of_events(start, stop)
        fragments, codes = _add_submissions(fragments, combinations.codes, submissions)
        return PacketBatch(self._sequence.encode_event_lead("track_event"), times, fields, fragments, codes, flows)

    def _find_combinations(
        self, batch: RowBatch, lane_ids: Array, groups: Sequence[Sequence[str]]
    ) -> tuple[RowCombinations, frozenset[int]]:
        """Return the combinations of lanes and values in groups of columns, and the indexes of the used groups.

        A group is omitted if it would increase the number of combinations to more than a quarter of the number of rows
        (or 64 if that is larger). The names of counters are always used.
        """
        limit = max(_MIN_COMBINATIONS, batch.height // 4)
        lanes = lane_ids.astype(np.int64)
        keys = [self._strings.read_keys(batch, names) for names in groups]
        every = self._strings.find_combinations([lanes, *itertools.chain.from_iterable(keys)])
        if len(every.first_rows) <= limit or isinstance(self._tracks, CounterTracks):
            return every, frozenset(range(len(groups)))
        result, used = self._strings.find_combinations([lanes]), []
        for nth, columns in enumerate(keys):
            combined = self._strings.find_combinations([result.codes.astype(np.int64), *columns]) if columns else result
            if len(combined.first_rows) <= limit:
                result = combined
                used.append(nth)
        return result, frozenset(used)

    def _create_track_fields(self, examples: RowBatch, lane_ids: Array, *, has_name: bool) -> Iterator[PacketField]:
        """Yield the fields that contain the types, tracks and perhaps names of events."""
        if isinstance(self._tracks, CounterTracks):
            names = examples.read_frame(list(dict.fromkeys(list_column_names(self._kind.name)))).select(self._kind.name)
            yield build_track_field(COUNTER, self._tracks.get_or_create_uuids(lane_ids, names.to_series()))
            return
        yield build_track_field(_TYPES[self._kind.phase], self._tracks[lane_ids])
        if has_name:
            yield self._create_name_field(examples)

    def _create_name_field(self, batch: RowBatch) -> PacketField:
        name_ids = self._strings.intern(EVENT_NAMES, batch, self._kind.name)
        return PacketField([Prefix(encode_field_tag("TrackEvent", "name_iid"))], require_values(name_ids))


def create_arg_fields(args: Sequence[EventArg], batch: RowBatch, strings: StringTables) -> Iterator[PacketField]:
    """Yield the fields of arguments, except those that are null in all rows."""
    numbers = {
        f"{place} {nth}": value.expression
        for place, arg in enumerate(args)
        for nth, value in enumerate(arg.values)
        if value.form == kinds.TRUE
        or (value.form != kinds.STRING and not all(map(batch.is_all_null, list_column_names(value.expression))))
    }
    frame = batch.read_frame(list(dict.fromkeys(list_column_names(*numbers.values())))).select(**numbers)
    for place, arg in enumerate(args):
        result = FieldValues(np.zeros(batch.height, np.uint64), np.zeros(batch.height, np.uint8))
        for nth, value in enumerate(arg.values):
            if value.form == kinds.STRING:
                words = strings.intern(STRING_VALUES, batch, value.expression)
                present = None if words.all() else words != 0
            elif f"{place} {nth}" in numbers:
                words, present = _convert_to_words(frame[f"{place} {nth}"], value.form)
            else:
                continue
            if nth == 0 and present is None:
                result = require_values(words)
                break
            chosen = (result.choices == 0) & present if present is not None else result.choices == 0
            np.copyto(result.numbers, words, where=chosen)
            result.choices[chosen] = nth + 1
        if result.choices.any():
            yield PacketField(arg.prefixes, result)


def _add_submissions(fragments: RepeatedFields, codes: Codes, submissions: Flows) -> tuple[RepeatedFields, Codes]:
    """Add the GPU render stage events that events launched to the fragments of these events.

    Args:
        fragments: The encoded fields that are equal in many events.
        codes: Index of the fields of each event in ``fragments``.
        submissions: The launched events, ordered by the launching event.
    """
    if not len(submissions.ids):
        return fragments, codes
    starts = np.flatnonzero(np.diff(submissions.positions, prepend=-1))
    rows, count = submissions.positions[starts], len(fragments.offsets) - 1
    tag = Prefix(encode_field_tag("GpuCorrelation", "render_stage_submission_event_ids"))
    ids = encode_fragments([PacketField([tag], require_values(submissions.ids))], len(submissions.ids))
    launched = ids.merge_groups(starts).wrap(encode_field_tag("TrackEvent", "gpu_correlation"))
    own = RepeatedFields.join([fragments.take(codes[rows]), launched])
    codes = codes.astype(np.int64)
    codes[rows] = np.arange(count, count + len(rows))
    return RepeatedFields.concatenate([fragments, own]), codes


def build_track_field(event_type: int, track_uuids: Numbers) -> PacketField:
    """Return a field that contains the given type of an event, and the uuid of the track of each event."""
    tag = encode_field_tag("TrackEvent", "type") + encode_varint(event_type)
    return PacketField([Prefix(tag + encode_field_tag("TrackEvent", "track_uuid"))], require_values(track_uuids))


def require_values(numbers: Numbers) -> FieldValues:
    """Return the values of a field that every event has."""
    return FieldValues(numbers, np.ones(len(numbers), np.uint8))


def get_times_with_previous(times: Array, start: int, stop: int) -> Array:
    """Return the times ``start`` to ``stop - 1``, preceded by the previous time. 0 precedes the first time."""
    return times[start - 1 : stop] if start else np.concatenate([np.zeros(1, np.int64), times[:stop]])


def _convert_to_words(
    column: pl.Series, form: str
) -> tuple[Numbers, np.ndarray[tuple[int], np.dtype[np.bool_]] | None]:
    """Return numbers as 64-bit words (the bits of integers or floats), and a mask of the numbers that are not null.

    The mask is None if no number is null.
    """
    present = column.is_not_null().to_numpy() if column.null_count() else None
    if form in _FIXED:
        divisor = 1000 if form == kinds.THOUSANDTHS else 1
        floats = column.cast(pl.Float64).fill_null(0).to_numpy() / divisor
        return floats.view(np.uint64), present
    if form == kinds.UNSIGNED:
        return column.fill_null(0).to_numpy(), present
    return column.cast(pl.Int64).fill_null(0).to_numpy().view(np.uint64), present


def _encode_arg_prefix(owner: str, field: str, message: str, name_id: int, form: str) -> Prefix:
    """Return the bytes of an argument up to its value, including the interning id of its name.

    Args:
        owner: The message that contains the argument.
        field: The field of ``owner`` that contains the argument.
        message: The message of the argument.
        name_id: The interning id of the name.
        form: The type of the value.
    """
    lead = encode_field_tag(owner, field)
    name = encode_field_tag(message, "name_iid") + encode_varint(name_id)
    content = name + encode_field_tag(message, _FIELDS[form])
    size = len(content) + (FIXED64_BYTES if form in _FIXED else 0)
    return Prefix(lead + encode_varint(size) + content, form in _FIXED, 0 if form in _FIXED else len(lead))
