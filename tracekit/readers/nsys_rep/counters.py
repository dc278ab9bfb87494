"""Decode samples of counters, which are generic events with one value per field.

The stream header describes the layout of the samples of each event type. A program may also record why a counter has
no value. In this case, the data of the sample is a single byte, which contains the reason.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.readers.common.budget import CELL_BYTES
from tracekit.readers.common.columns import build_number_array
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import WORD, decode
from tracekit.readers.nsys.tables import ROWID
from tracekit.readers.nsys_rep.layout import load_fields
from tracekit.readers.nsys_rep.metrics import C_SIZES, SOURCE_MASK, read_source_ids_and_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    import pyarrow as pa

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Field, Int64Array, Mask, Message, UInt64Array
    from tracekit.readers.nsys_rep.container import RawData
    from tracekit.readers.nsys_rep.events import SelectedEvents

    Float64Array = npt.NDArray[np.float64]

TABLE, SOURCE = "GENERIC_EVENT_DATA", b"GenericCounters"
INCOMPLETE = "sample of a counter without its type, its time or its values"
SIGNED, UNSIGNED, FLOAT, DOUBLE = range(4)
_SIZES = {SIGNED: C_SIZES, UNSIGNED: C_SIZES, FLOAT: (4,), DOUBLE: (8,)}
"""Supported sizes of the values of each type in bytes."""
COLUMNS = (
    *("genericEventId", "timestamp", "typeId", "globalTid", "fieldIdx"),
    *("intVal", "uintVal", "floatVal", "doubleVal"),
)
_EVENT, _ORIGIN = load_fields("GenericEvent"), load_fields("GenericOrigin")
_EVENTS = "events"
_SHIFTS = {_ORIGIN.hardware_id: 56, _ORIGIN.vm_id: 48, _ORIGIN.process_id: 24, _ORIGIN.thread_id: 0}
"""Number of bits by which each part of a global thread id is shifted to the left, by field number."""
_MAX_OFFSET = 1 << 20
STORED, ZERO = -1, 0
"""Markers of samples that contain values, and of samples whose values are all zero."""
_NO_VALUE = -1


class CounterField(NamedTuple):
    """The location and type of one value in the samples of a counter.

    Attributes:
        name_id: String id of the field name.
        at: Offset of the value in the data of a sample.
        size: Size of the value in bytes.
        kind: Type of the value: ``SIGNED``, ``UNSIGNED``, ``FLOAT`` or ``DOUBLE``.
    """

    name_id: int
    at: int
    size: int
    kind: int

    def decode_integers(self, words: UInt64Array) -> Int64Array:
        """Decode the integers of this field from the 64-bit words at its offset in each sample."""
        unused = 8 * (WORD - self.size)
        shifted = words << np.uint64(unused)
        return (
            (shifted >> np.uint64(unused)).view(np.int64) if self.kind == UNSIGNED else shifted.view(np.int64) >> unused
        )

    def decode_floats(self, words: UInt64Array) -> Float64Array:
        """Decode the floats of this field from the 64-bit words at its offset in each sample."""
        if self.kind == DOUBLE:
            return words.view(np.float64)
        return words.astype(np.uint32).view(np.float32).astype(np.float64)


def read_counter_fields_by_type(raw_data: RawData) -> dict[int, list[CounterField]]:
    """Return the fields of counter samples by event type, in the order that the report declares.

    An event type is omitted if one of its fields has an unknown type or size, or if two fields overlap.
    """
    stream, generic_type = load_fields("StreamHeader"), load_fields("GenericType")
    sources = {number for number, name in read_source_ids_and_names(raw_data) if name == SOURCE}
    fields_of_types = {}
    for listed in raw_data.stream.messages(stream.generic_types):
        number = listed.int_value(generic_type.type_id) or 0
        if number & SOURCE_MASK in sources:
            fields = [_parse_counter_field(m) for m in listed.messages(generic_type.fields)]
            if _has_supported_layout(fields):
                fields_of_types[number] = fields
    return fields_of_types


def _parse_counter_field(message: Message) -> CounterField:
    field = load_fields("GenericField")
    name_id, at, size, kind = (
        message.int_value(n) or 0 for n in (field.name_id, field.offset, field.size, field.value_type)
    )
    return CounterField(name_id, at, size, kind)


def _has_supported_layout(fields: list[CounterField]) -> bool:
    """Return whether there is at least one field, all fields have a supported type and size, and no fields overlap."""
    end = 0
    for field in sorted(fields, key=lambda f: f.at):
        if not (end <= field.at < _MAX_OFFSET and field.size in _SIZES.get(field.kind, ())):
            return False
        end = field.at + field.size
    return bool(fields)


def decode_counter_samples(
    fields_by_type: Mapping[int, list[CounterField]],
    selected_events: SelectedEvents,
    budget: Budget,
    skipped: Counter[str],
) -> dict[str, pa.Array]:
    """Decode counter samples into columns, including ``rowid``, with one row per sample and field in event order.

    Args:
        fields_by_type: Fields of the samples of each event type. Events of other types are ignored.
        selected_events: Generic events to decode.
        budget: Memory budget for the rows.
        skipped: Counts of skipped events by reason. The count for the key ``INCOMPLETE`` is increased by the number of
            samples that have no time or no data.

    Raises:
        Damage: A sample is shorter than its event type declares, or the rows exceed the memory budget.
    """
    needed = (_EVENT.type_id, _EVENT.time_ns, _EVENT.data)
    fields_by_number = decode(
        selected_events.buffer, selected_events.starts, selected_events.stops, (*needed, _EVENT.origin)
    )
    events = _find_complete_event_indices(fields_by_type, fields_by_number, skipped)
    samples = _Samples(selected_events, fields_by_number, events, fields_by_type)
    rows = samples.rows
    before = selected_events.exchange_totals({ROWID: rows, _EVENTS: len(events)})
    budget.reserve(rows, CELL_BYTES * len(COLUMNS), "values of counters")
    first = {ROWID: build_number_array(np.arange(1, rows + 1) + before[ROWID])}
    ids = np.arange(1, len(events) + 1) + before[_EVENTS]
    return first | {"genericEventId": build_number_array(samples.repeat_per_value(ids))} | samples.decode_columns()


def _find_complete_event_indices(
    fields_by_type: Mapping[int, list[CounterField]], fields_by_number: Mapping[int, Field], skipped: Counter[str]
) -> Int64Array:
    """Return the indices of the counter samples that have a time and data. Count the others in ``skipped``."""
    if _EVENT.type_id not in fields_by_number:
        return np.zeros(0, np.int64)
    field = fields_by_number[_EVENT.type_id]
    of_counters = np.isin(
        field.values.view(np.int64), np.array(sorted(fields_by_type), np.int64)
    ) & _compute_presence_mask(field)
    complete = of_counters.copy()
    for number in (_EVENT.time_ns, _EVENT.data):
        complete &= _compute_presence_mask(fields_by_number.get(number))
    skipped.update(+Counter({INCOMPLETE: int(np.count_nonzero(of_counters) - np.count_nonzero(complete))}))
    return np.flatnonzero(complete)


def _compute_presence_mask(field: Field | None) -> Mask:
    """Return a mask of the messages that have a field. The mask has one element if all or none have the field."""
    if field is None:
        return np.zeros(1, np.bool_)
    return np.ones(1, np.bool_) if field.valid is None else field.valid


class _Samples:
    """The counter samples in a batch of events. Columns are decoded from these samples.

    Attributes:
        rows: Number of values in all samples.
    """

    def __init__(
        self,
        selected_events: SelectedEvents,
        fields_by_number: Mapping[int, Field],
        events: Int64Array,
        types: Mapping[int, list[CounterField]],
    ) -> None:
        self._buffer, self._fields_by_number, self._events, self._types = (
            selected_events.buffer,
            fields_by_number,
            events,
            types,
        )
        empty = np.zeros(0, np.uint64)
        values = (fields_by_number[_EVENT.type_id].values if len(events) else empty)[events]
        self._type_ids = values.view(np.int64)
        listed = np.array(sorted(types), np.int64)
        lengths = np.array([len(types[number]) for number in listed.tolist()], np.int64)
        self._lengths = lengths[np.searchsorted(listed, self._type_ids)]
        self.rows = int(self._lengths.sum())

    def repeat_per_value(self, per_sample: Int64Array) -> Int64Array:
        """Repeat each element of an array with one element per sample, once for each value of the sample."""
        return np.repeat(per_sample, self._lengths)

    def decode_columns(self) -> dict[str, pa.Array]:
        """Decode all columns except ``rowid`` and ``genericEventId``, with one element per counter value."""
        integers, floats = np.zeros(self.rows, np.int64), np.zeros(self.rows)
        kinds, positions = np.zeros(self.rows, np.int8), np.zeros(self.rows, np.int64)
        starts = np.cumsum(self._lengths) - self._lengths
        for number in build_number_array(self._type_ids).unique().to_pylist():
            samples = np.flatnonzero(self._type_ids == number)
            fields = self._types[number]
            at, reasons = self._find_data_offsets_and_reasons(samples, max(f.at + f.size for f in fields))
            is_stored = reasons == STORED
            for nth, field in enumerate(fields):
                rows = starts[samples] + nth
                words = np.where(is_stored, self._buffer.words[np.where(is_stored, at + field.at, 0)], np.uint64(0))
                kinds[rows], positions[rows] = np.where(is_stored | (reasons == ZERO), field.kind, _NO_VALUE), nth
                if field.kind in (SIGNED, UNSIGNED):
                    integers[rows] = field.decode_integers(words)
                else:
                    floats[rows] = field.decode_floats(words)
        return self._build_sample_columns() | {
            "fieldIdx": build_number_array(positions),
            **{name: build_number_array(integers, kinds == kind) for kind, name in enumerate(COLUMNS[-4:-2])},
            **{name: build_number_array(floats, kinds == kind) for kind, name in enumerate(COLUMNS[-2:], 2)},
        }

    def _find_data_offsets_and_reasons(self, samples: Int64Array, min_size: int) -> tuple[Int64Array, Int64Array]:
        """Return the offset of the data of each sample, and a code for the reason why the sample has no values.

        The code is ``STORED`` for samples with values.

        Raises:
            Damage: The data of a sample is shorter than ``min_size`` bytes, and is not the single byte of a reason.
        """
        starts, stops = (a[self._events[samples]] for a in self._fields_by_number[_EVENT.data].compute_byte_ranges())
        sizes = stops - starts
        without = (sizes == 1) & (min_size > 1)
        if ((sizes < min_size) & ~without).any():
            raise Damage("a counter sample is shorter than the values that the event type of the sample declares")
        reasons = self._buffer.words[starts].view(np.int64) & 0xFF
        return starts, np.where(without, reasons, STORED)

    def _build_sample_columns(self) -> dict[str, pa.Array]:
        """Return the columns for the time, event type and global thread id, with one element per counter value."""
        times = (
            self._fields_by_number[_EVENT.time_ns].values.view(np.int64)[self._events]
            if len(self._events)
            else self._type_ids
        )
        threads, known = self._find_sample_thread_ids()
        return {
            "timestamp": build_number_array(self.repeat_per_value(times)),
            "typeId": build_number_array(self.repeat_per_value(self._type_ids)),
            "globalTid": build_number_array(self.repeat_per_value(threads), np.repeat(known, self._lengths)),
        }

    def _find_sample_thread_ids(self) -> tuple[Int64Array, Mask]:
        """Return the global thread id of each sample, and a mask of the samples for which a thread is recorded."""
        threads, known = np.zeros(len(self._events), np.int64), np.zeros(len(self._events), np.bool_)
        origin = self._fields_by_number.get(_EVENT.origin)
        if origin is None:
            return threads, known
        known = np.broadcast_to(_compute_presence_mask(origin), len(origin.values))[self._events]
        starts, stops = (a[self._events[known]] for a in origin.compute_byte_ranges())
        for number, part in decode(self._buffer, starts, stops, _SHIFTS).items():
            threads[known] |= np.where(_compute_presence_mask(part), part.values.view(np.int64), 0) << _SHIFTS[number]
        return threads, known
