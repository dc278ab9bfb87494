"""Decode the events of tracks in batches, and collect their columns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.readers.common.builders import TableBuilder
from tracekit.readers.common.columns import build_number_array
from tracekit.readers.common.protobuf.decoding import decode, find_occurrences
from tracekit.readers.common.protobuf.fields import read_integers, read_spans
from tracekit.readers.pftrace.annotations import AnnotationDecoder
from tracekit.readers.pftrace.categories import find_repeated_integers, join_texts
from tracekit.readers.pftrace.interning import CATEGORIES, EVENT_NAMES, Descriptors, InternedData, read_text_codes
from tracekit.readers.pftrace.packets import COMPRESSED as _COMPRESSED
from tracekit.readers.pftrace.packets import DATA_FIELDS, TRACK_EVENT, UNKNOWN
from tracekit.readers.pftrace.strings import NO_STRING, TextPool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Field, Int64Array, Mask
    from tracekit.readers.pftrace.packets import DecodedPackets

_DELTA_US, _CATEGORY, ANNOTATIONS, _LEGACY, _TYPE, _NAME_IID, _TRACK = 1, 3, 4, 6, 9, 10, 11
_ABSOLUTE_US, _CATEGORY_TEXT, _NAME, _INTEGER, _FLOWS_OLD, _END_FLOWS_OLD, _REAL, _FLOWS, _END_FLOWS = (
    *(16, 22, 23, 30, 36, 42, 44, 47, 48),
)
_EXTRA_VALUES, _EXTRA_REAL_VALUES = 12, 46
_FIELDS = frozenset(
    (
        *(_DELTA_US, _CATEGORY, _LEGACY, _TYPE, _NAME_IID, _TRACK, _ABSOLUTE_US, _CATEGORY_TEXT, _NAME, _INTEGER),
        *(_FLOWS_OLD, _END_FLOWS_OLD, _REAL, _FLOWS, _END_FLOWS, _EXTRA_VALUES, _EXTRA_REAL_VALUES),
    )
)
_LEGACY_NAME, _PHASE, _DURATION_US, _UNSCOPED_ID, _SCOPE = 1, 2, 3, 6, 7
_LOCAL_ID, _GLOBAL_ID, _PID, _TID = 10, 11, 18, 19
_LEGACY_FIELDS = frozenset(
    (_LEGACY_NAME, _PHASE, _DURATION_US, _UNSCOPED_ID, _SCOPE, _LOCAL_ID, _GLOBAL_ID, _PID, _TID)
)
NO_TYPE, BEGIN, END, INSTANT, COUNTER, COMPLETE = range(6)
_PHASES = {"B": BEGIN, "E": END, "i": INSTANT, "I": INSTANT, "R": INSTANT, "X": COMPLETE}
_ASYNC_PHASES = {"b": BEGIN, "e": END, "n": INSTANT, "S": BEGIN, "F": END, "T": INSTANT, "p": INSTANT}
_PHASE_COUNT = 128
_TYPES_OF_PHASES = np.zeros(_PHASE_COUNT, np.int64)
_IS_ASYNC = np.zeros(_PHASE_COUNT, np.bool_)
for _phase, _type in (_PHASES | _ASYNC_PHASES).items():
    _TYPES_OF_PHASES[ord(_phase)] = _type
    _IS_ASYNC[ord(_phase)] = _phase in _ASYNC_PHASES
_HAS_NAME = np.isin(np.arange(_PHASE_COUNT), [ord(phase) for phase in "STpF"])
"""For each phase, whether the name of an asynchronous event is a part of its identity."""
_NS_PER_US = 1000
_MAX_DURATION_US = 1 << 50
_EVENT_BYTES, _TRACK_BYTES = 64, 128
_FEW_ROWS = 1 << 10
_FTRACE, _FTRACE_EVENTS = 1, 2
ZSTD = "packets compressed with zstd"
OTHER_PACKETS = {
    _FTRACE: "ftrace events",
    4: "file maps",
    7: "statistics of the system",
    9: "statistics of processes",
    37: "profiles of heaps",
    38: "battery counters",
    39: "messages of the Android log",
    40: "power rails",
    49: "events of the tracing service",
    _COMPRESSED: "compressed packets in compressed packets",
    54: "samples of call stacks",
    56: "heap graphs",
    57: "frames of graphics",
    62: "events of Vulkan memory",
    63: "messages of GPU drivers",
    65: "events of the Vulkan API",
    66: "samples of perf",
    71: "totals of GPU memory",
    73: "snapshots of memory trackers",
    74: "allocations of heaps",
    75: "deallocations of heaps",
    95: "ETW events",
    99: "code of V8",
    100: "code of V8",
    101: "code of V8",
    102: "code of V8",
    133: ZSTD,
    135: "samples of call stacks",
}
"""Data of packets that is counted, by field number. Other packets describe the trace, and contain no events."""


class TrackEvents(NamedTuple):
    """The events of tracks in a batch of packets.

    Attributes:
        starts: Start offset of each event.
        stops: End offset of each event.
        states: State of the sequence of each event.
        types: Type of each event, such as ``BEGIN``.
        times: Time of each event.
        tracks: Number of the track of each event.
        names: Code of the name of each event, or ``NO_STRING``.
        durations: Duration of each event of the type ``COMPLETE``.
        fields: The decoded fields of the events.
    """

    starts: Int64Array
    stops: Int64Array
    states: Int64Array
    types: Int64Array
    times: Int64Array
    tracks: Int64Array
    names: Int64Array
    durations: Int64Array
    fields: Mapping[int, Field]

    def select(self, mask: Mask) -> TrackEvents:
        """Return the events for which a mask is True."""
        rows = np.flatnonzero(mask)
        columns = {name: getattr(self, name)[rows] for name in self._fields if name != "fields"}
        return TrackEvents(**columns, fields={number: field.take(rows) for number, field in self.fields.items()})


class TrackNumbers:
    """The numbers of tracks from 0, in the order in which events use them.

    Attributes:
        keys: Key of each track: its uuid, the ids of its process and thread, or, for the track of asynchronous events,
            their id, whether they have one, numbers of their scope, category and name, and the track that determines
            the process to which the id belongs, each ``UNKNOWN`` if there is none.
    """

    def __init__(self, budget: Budget) -> None:
        self.keys: list[int | tuple[int, ...]] = []
        self._numbers: dict[int | tuple[int, ...], int] = {}
        self._budget = budget

    def number(self, keys: Int64Array) -> Int64Array:
        """Return the numbers of tracks, given one row with the key of each. A row of one column is a uuid.

        Raises:
            Damage: The tracks exceed the memory budget.
        """
        if keys.shape[1] == 1:
            distinct, inverse = np.unique(keys[:, 0], return_inverse=True)
        else:
            distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        numbers = [self._get_or_create(row if isinstance(row, int) else tuple(row)) for row in distinct.tolist()]
        result: Int64Array = np.array(numbers, np.int64)[inverse.reshape(-1)]
        return result

    def _get_or_create(self, key: int | tuple[int, ...]) -> int:
        number = self._numbers.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self._budget.reserve(1, _TRACK_BYTES, "tracks")
            self.keys.append(key)
        return number


def _find_local(columns: Mapping[int, tuple[Int64Array, Mask]]) -> Mask:
    """Return a mask of the asynchronous events whose ids belong to a process."""
    mask: Mask = columns[_LOCAL_ID][1] & ~columns[_GLOBAL_ID][1] & ~columns[_UNSCOPED_ID][1]
    return mask


class SliceStream:
    """The beginnings and ends of slices, in the order of the file.

    Attributes:
        count: Number of events so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._builder = TableBuilder(_FEW_ROWS)

    def add(self, events: TrackEvents) -> Int64Array:
        """Add the events that begin or end slices. Return the position of each event, or -1 for other events."""
        chosen = np.flatnonzero((events.types == BEGIN) | (events.types == END))
        positions = np.full(len(events.types), UNKNOWN, np.int64)
        positions[chosen] = self.count + np.arange(len(chosen))
        self.count += len(chosen)
        if len(chosen):
            self._builder.append(
                {
                    "track": build_number_array(events.tracks[chosen].astype(np.int32)),
                    "time": build_number_array(events.times[chosen]),
                    "is_end": build_number_array((events.types[chosen] == END).astype(np.int8)),
                }
            )
        return positions

    def finish(self) -> list[np.ndarray]:
        """Return the tracks, the times and the flags of ends of all events."""
        columns = self._builder.finish()
        types: dict[str, type] = {"track": np.int32, "time": np.int64, "is_end": np.int8}
        return [
            pa.chunked_array([columns[name]] if isinstance(columns[name], pa.Array) else columns[name]).to_numpy()
            if columns
            else np.zeros(0, kind)
            for name, kind in types.items()
        ]


class TrackEventDecoder:
    """Decoder of the events of tracks.

    Attributes:
        pool: The strings of the trace.
        interned: The interned data of all sequences.
        descriptors: The descriptors of tracks, processes and threads.
        tracks: The numbers of tracks.
        undecoded: Number of events that are not decoded, by class.
        flows: Number of events at which flows begin or end.
    """

    def __init__(self, budget: Budget) -> None:
        self.pool = TextPool(budget)
        self.interned = InternedData(self.pool, budget)
        self.descriptors = Descriptors(self.pool, budget)
        self.tracks = TrackNumbers(budget)
        self.undecoded: Counter[str] = Counter()
        self.flows = 0
        self._text_numbers: dict[str, int] = {}
        self._budget = budget

    def decode(self, batch: DecodedPackets) -> TrackEvents:
        """Decode the events in a batch of packets, and add the interned data and descriptors in it.

        Raises:
            Damage: A packet is invalid, or the events exceed the memory budget.
        """
        self.interned.add(batch)
        self.descriptors.add(batch)
        self._count_others(batch)
        rows, starts, stops = batch.find(TRACK_EVENT)
        self._budget.check_temporary_memory(len(rows), _EVENT_BYTES, "events")
        fields = decode(batch.buffer, starts, stops, _FIELDS)
        states = batch.states[rows]
        types, _ = read_integers(fields, _TYPE, len(rows))
        ids, has_id = read_integers(fields, _NAME_IID, len(rows))
        inline = read_text_codes(self.pool, batch.buffer, fields, _NAME, len(rows))
        names = np.where(inline != NO_STRING, inline, self.interned.texts[EVENT_NAMES].look_up(states, ids, has_id))
        times, is_timed = batch.times[rows].copy(), batch.is_timed[rows]
        absolute, is_absolute = read_integers(fields, _ABSOLUTE_US, len(rows))
        is_absolute &= (absolute >= 0) & (absolute < _MAX_DURATION_US)
        times[is_absolute] = batch.convert_monotonic_times(rows[is_absolute], absolute[is_absolute] * _NS_PER_US)
        has_time = is_timed | is_absolute
        tracks, has_track = self._number_tracks(batch, rows, fields)
        events = TrackEvents(
            *(starts, stops, states, types, times, tracks, names, np.zeros(len(rows), np.int64), fields)
        )
        events, is_known = self._add_legacy(batch, events, has_track)
        has_state, is_valid = batch.has_state[rows], events.durations != UNKNOWN
        for what, mask in (
            ("events without the state of their sequence", has_state),
            ("events without a known time", has_time | ~has_state),
            ("events of other types", is_known | ~has_time | ~has_state),
            ("events with an invalid duration", is_valid | ~is_known | ~has_time | ~has_state),
        ):
            self.undecoded[what] += int((~mask).sum())
        keep = has_state & has_time & is_known & is_valid
        return events if keep.all() else events.select(keep)

    def create_annotation_decoder(self, batch: DecodedPackets) -> AnnotationDecoder:
        """Return a decoder of the annotations in a batch of packets."""
        return AnnotationDecoder(batch.buffer, self.interned, self.pool, self._budget)

    def read_categories(self, batch: DecodedPackets, events: TrackEvents) -> Int64Array:
        """Return the code of the categories of each event, joined by commas, or ``NO_STRING``.

        Raises:
            Damage: An event with several categories has too many fields.
        """
        field = events.fields.get(_CATEGORY)
        rows = len(events.types)
        owners, codes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        if field is not None and field.stops is None:
            last = read_integers(events.fields, _CATEGORY, rows)
            numbers, ids = find_repeated_integers(batch.buffer, events.starts, events.stops, _CATEGORY, last)
            owners.append(numbers)
            codes.append(
                self.interned.texts[CATEGORIES].look_up(events.states[numbers], ids, np.ones(len(ids), np.bool_))
            )
        if _CATEGORY_TEXT in events.fields:
            (parts,) = find_occurrences(batch.buffer, events.starts, events.stops, (_CATEGORY_TEXT,))
            owners.append(parts.rows)
            codes.append(self.pool.add(batch.buffer, parts.starts, parts.stops))
        all_owners, all_codes = np.concatenate(owners), np.concatenate(codes)
        order = np.argsort(all_owners, kind="stable")
        all_owners, all_codes = all_owners[order], all_codes[order]
        result = np.full(rows, NO_STRING, np.int64)
        is_known = all_codes != NO_STRING
        result[all_owners[is_known]] = all_codes[is_known]
        several, joined = join_texts(self.pool, all_owners, all_codes)
        result[several] = joined
        return result

    def read_counters(self, events: TrackEvents) -> tuple[Int64Array, Mask, Int64Array, Mask]:
        """Return the integers and the bits of the floating-point numbers of counters, each with a mask."""
        rows = len(events.types)
        return *read_integers(events.fields, _INTEGER, rows), *read_integers(events.fields, _REAL, rows)

    def _number_tracks(
        self, batch: DecodedPackets, rows: Int64Array, fields: Mapping[int, Field]
    ) -> tuple[Int64Array, Mask]:
        """Return the number of the track of each event, and a mask of the events that state a track."""
        uuids, has_uuid = read_integers(fields, _TRACK, len(rows))
        uuids = np.where(has_uuid, uuids, batch.default_tracks[rows])
        has_uuid |= batch.default_tracks[rows] != UNKNOWN
        uuids = np.where(has_uuid, uuids, 0)
        numbers = self.tracks.number(uuids.reshape(-1, 1))
        rest = np.flatnonzero(uuids == 0)
        if len(rest) and self.descriptors.threads:
            sequences = batch.sequences[rows][rest]
            for sequence in np.unique(sequences).tolist():
                if sequence in self.descriptors.threads:
                    key = np.array([self.descriptors.threads[sequence]])
                    numbers[rest[sequences == sequence]] = self.tracks.number(key)
        return numbers, uuids != 0

    def _add_legacy(self, batch: DecodedPackets, events: TrackEvents, has_track: Mask) -> tuple[TrackEvents, Mask]:
        """Add what events state in the form of Chrome traces. Return the events, and a mask of those of known types.

        An invalid duration becomes ``UNKNOWN``.
        """
        starts, stops, valid = read_spans(events.fields, _LEGACY, len(events.types))
        if not valid.any():
            return events, (events.types > NO_TYPE) & (events.types <= COUNTER)
        chosen = np.flatnonzero(valid)
        fields = decode(batch.buffer, starts[chosen], stops[chosen], _LEGACY_FIELDS)
        columns = {number: read_integers(fields, number, len(chosen)) for number in _LEGACY_FIELDS - {_SCOPE}}
        phases = np.clip(columns[_PHASE][0], 0, _PHASE_COUNT - 1)
        types, durations, tracks, names = (
            column.copy() for column in (events.types, events.durations, events.tracks, events.names)
        )
        has_no_type = types[chosen] == NO_TYPE
        types[chosen[has_no_type]] = _TYPES_OF_PHASES[phases[has_no_type]]
        lengths, _ = columns[_DURATION_US]
        is_valid = (lengths >= 0) & (lengths < _MAX_DURATION_US)
        durations[chosen] = np.where(is_valid, lengths, 0) * _NS_PER_US
        durations[chosen[~is_valid & (types[chosen] == COMPLETE)]] = UNKNOWN
        ids, has_id = columns[_LEGACY_NAME]
        of_legacy = self.interned.texts[EVENT_NAMES].look_up(events.states[chosen], ids, has_id)
        names[chosen] = np.where(of_legacy != NO_STRING, of_legacy, names[chosen])
        (pids, has_pid), (tids, has_tid) = columns[_PID], columns[_TID]
        overrides = has_pid & has_tid & ~has_track[chosen]
        if overrides.any():
            keys = np.stack((pids[overrides], tids[overrides]), axis=1)
            tracks[chosen[overrides]] = self.tracks.number(keys)
        is_async = _IS_ASYNC[phases] & has_no_type
        replaced = events._replace(types=types, durations=durations, tracks=tracks, names=names)
        if is_async.any():
            scopes = read_text_codes(self.pool, batch.buffer, fields, _SCOPE, len(chosen))
            rows = np.flatnonzero(is_async)
            of_events = replaced.select(np.isin(np.arange(len(types)), chosen[rows]))
            categories = self.read_categories(batch, of_events)
            keys = np.stack(
                (
                    *self._number_ids(columns, rows),
                    self._number_texts(scopes[rows]),
                    self._number_texts(categories),
                    np.where(_HAS_NAME[phases[rows]], self._number_texts(of_events.names), UNKNOWN),
                    np.where(_find_local(columns)[rows], of_events.tracks, UNKNOWN),
                ),
                axis=1,
            )
            tracks[chosen[rows]] = self.tracks.number(keys)
        return replaced, (types > NO_TYPE) & (types <= COMPLETE)

    @staticmethod
    def _number_ids(columns: Mapping[int, tuple[Int64Array, Mask]], rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the id of each asynchronous event, and whether it has one."""
        ids, has_id = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        for number in (_LOCAL_ID, _GLOBAL_ID, _UNSCOPED_ID):
            values, valid = (column[rows] for column in columns[number])
            ids, has_id = np.where(valid, values, ids), np.where(valid, 1, has_id)
        return ids, has_id

    def _number_texts(self, codes: Int64Array) -> Int64Array:
        """Return numbers that are equal for equal strings, given their codes. That of ``NO_STRING`` is ``UNKNOWN``."""
        distinct, inverse = np.unique(codes, return_inverse=True)
        known = distinct[distinct != NO_STRING].tolist()
        for text in (texts := self.pool.get_texts(known)):
            if text not in self._text_numbers:
                self._budget.reserve(1, _TRACK_BYTES + len(text), "names of asynchronous events")
                self._text_numbers[text] = len(self._text_numbers)
        numbers = [UNKNOWN] * (len(distinct) - len(known)) + [self._text_numbers[text] for text in texts]
        result: Int64Array = np.array(numbers, np.int64)[inverse.reshape(-1)]
        return result

    def _count_others(self, batch: DecodedPackets) -> None:
        """Count the packets with data that is not decoded, and the events with flows and with extra counters."""
        has_data = np.zeros(len(batch.packets), np.bool_)
        for number in DATA_FIELDS:
            field = batch.fields.get(number)
            if field is not None:
                has_data |= True if field.valid is None else field.valid
        rest = np.flatnonzero(~has_data)
        starts, stops = batch.packets.starts[rest], batch.packets.stops[rest]
        for number, field in decode(batch.buffer, starts, stops, OTHER_PACKETS).items():
            count = len(rest) if field.valid is None else int(field.valid.sum())
            if number == _FTRACE:
                bundles = read_spans({number: field}, number, len(rest))
                chosen = np.flatnonzero(bundles[2])
                (parts,) = find_occurrences(batch.buffer, bundles[0][chosen], bundles[1][chosen], (_FTRACE_EVENTS,))
                count = len(parts)
            self.undecoded[OTHER_PACKETS[number]] += count

    def count_extras(self, events: TrackEvents) -> None:
        """Count the events at which flows begin or end, and those with further counters."""
        rows = len(events.types)
        for numbers, is_flow in (
            ((_FLOWS, _END_FLOWS, _FLOWS_OLD, _END_FLOWS_OLD), True),
            ((_EXTRA_VALUES, _EXTRA_REAL_VALUES), False),
        ):
            mask = np.zeros(rows, np.bool_)
            for number in numbers:
                field = events.fields.get(number)
                if field is not None:
                    mask |= True if field.valid is None else field.valid
            if is_flow:
                self.flows += int(mask.sum())
            else:
                self.undecoded["further counters of events"] += int(mask.sum())
