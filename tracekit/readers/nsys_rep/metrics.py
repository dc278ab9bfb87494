"""Decode samples of GPU metrics, which are generic events with one value per metric.

The stream header describes the layout of the samples of each event type.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.readers.common.budget import CELL_BYTES
from tracekit.readers.common.columns import build_number_array
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import WORD, decode
from tracekit.readers.nsys.tables import ROWID
from tracekit.readers.nsys_rep.layout import load_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Buffer, Field, Int64Array, Mask, Message, UInt64Array
    from tracekit.readers.nsys_rep.container import RawData
    from tracekit.readers.nsys_rep.events import SelectedEvents

_EVENT = load_fields("GenericEvent")
SOURCE = b"GpuMetrics"
SOURCES = (SOURCE, b"SocMetrics", b"FTrace", b"ETW", b"GenericCounters", b"QnxKernelTrace")
"""Names that nsys gives to sources of generic events. Other names may be those of programs."""
INCOMPLETE = "sample of GPU metrics without its time or its values"
SOURCE_MASK = ~0xFFFFFFFF
SAMPLE_MASK = 0xFF00
C_SIZES = (1, 2, 4, 8)
"""Sizes of C integers in bytes."""
COLUMNS = ("rawTimestamp", "timestamp", "typeId", "metricId", "value")


class MetricLocation(NamedTuple):
    """The location of one GPU metric in a sample.

    Attributes:
        name_id: String id of the metric name.
        offset: Offset of the value in the data of a sample.
        size: Size of the value in bytes.
    """

    name_id: int
    offset: int
    size: int

    def decode_values(self, words: UInt64Array) -> Int64Array:
        """Decode the values of this metric from the 64-bit words at its offset in each sample.

        Reports declare all values as unsigned, but nsys exports values of 3 bytes as signed. Values of 5, 6 and 7 bytes
        are also decoded as signed, because C has no integer type of these sizes either.
        """
        unused = 8 * (WORD - self.size)
        shifted = words << np.uint64(unused)
        return (
            (shifted >> np.uint64(unused)).view(np.int64) if self.size in C_SIZES else shifted.view(np.int64) >> unused
        )


def read_gpu_metrics_by_type(raw_data: RawData) -> dict[int, list[MetricLocation]]:
    """Return the GPU metrics by event type, in the order in which the event type lists them.

    The id of a metric is its index in this order, which is the order of offsets only from nsys 2023.3 on.

    Each GPU has its own event types: the lowest byte of an event type is the number of the GPU.

    Raises:
        Damage: Metrics overlap, or a metric has an invalid offset or size.
    """
    stream, generic_type = load_fields("StreamHeader"), load_fields("GenericType")
    sources = {number for number, name in read_source_ids_and_names(raw_data) if name == SOURCE}
    metrics_by_type = {}
    for listed in raw_data.stream.messages(stream.generic_types):
        number = listed.int_value(generic_type.type_id) or 0
        if number & SOURCE_MASK in sources and not number & SAMPLE_MASK:
            metrics_by_type[number] = [_parse_metric(m) for m in listed.messages(generic_type.fields)]
            _check_no_overlap(metrics_by_type[number])
    return metrics_by_type


def read_source_names(raw_data: RawData) -> dict[int, str]:
    """Return the names of the sources of generic events by source id. Sources that programs define are omitted."""
    return {
        number: name.decode()
        for number, name in read_source_ids_and_names(raw_data)
        if name in SOURCES and number is not None
    }


def read_source_ids_and_names(raw_data: RawData) -> list[tuple[int | None, bytes]]:
    """Return the id and the name of each source of generic events."""
    source_id, sources = load_fields("GenericSource").source_id, load_fields("StreamHeader").generic_sources
    return [(m.int_value(source_id), _read_source_name(raw_data, m)) for m in raw_data.stream.messages(sources)]


def decode_metric_samples(
    metrics_by_type: Mapping[int, list[MetricLocation]],
    selected_events: SelectedEvents,
    budget: Budget,
    skipped: Counter[str],
) -> dict[str, pa.Array]:
    """Decode GPU metric samples into columns, including ``rowid``, with one row per sample and metric in event order.

    Args:
        metrics_by_type: Metrics in the samples of each event type. Events of other types are ignored.
        selected_events: Generic events to decode.
        budget: Memory budget for the rows.
        skipped: Counts of skipped events by reason. The count for the key ``INCOMPLETE`` is increased by the number of
            samples that have no time or no data.

    Raises:
        Damage: A sample is invalid, or the rows exceed the memory budget.
    """
    decoded = _decode_metric_rows(metrics_by_type, selected_events, budget, skipped)
    rows = len(decoded["value"])
    before = selected_events.exchange_totals({ROWID: rows})
    return {ROWID: build_number_array(np.arange(1, rows + 1) + before[ROWID])} | decoded


def _decode_metric_rows(
    metrics_by_type: Mapping[int, list[MetricLocation]],
    selected_events: SelectedEvents,
    budget: Budget,
    skipped: Counter[str],
) -> dict[str, pa.Array]:
    needed = (_EVENT.type_id, _EVENT.time_ns, _EVENT.data)
    fields_by_number = decode(selected_events.buffer, selected_events.starts, selected_events.stops, needed)
    skipped.update(_count_incomplete_samples(metrics_by_type, fields_by_number))
    stops = fields_by_number[_EVENT.data].stops if fields_by_number.keys() >= set(needed) else None
    if stops is None:
        return dict.fromkeys(COLUMNS, pa.array([], pa.int64()))
    ids, times, offsets = (fields_by_number[f].values.view(np.int64) for f in needed)
    complete = np.ones(len(ids), np.bool_)
    for field in fields_by_number.values():
        complete &= True if field.valid is None else field.valid
    samples = _Samples(selected_events.buffer, times, offsets, stops - offsets)
    groups = list(_group_event_indices_by_type(ids, complete, metrics_by_type))
    parts = [
        samples.decode_samples_of_type(number, metrics_by_type[number], events, budget) for number, events in groups
    ]
    columns: tuple[Int64Array, ...] = parts[0] if len(parts) == 1 else ()
    if not columns:
        owners = [np.repeat(events, len(metrics_by_type[number])) for number, events in groups]
        order = np.argsort(np.concatenate([_NO_VALUES, *owners]), kind="stable")
        columns = tuple(np.concatenate([_NO_VALUES, *column])[order] for column in zip(_NO_ROWS, *parts, strict=True))
    arrays = [build_number_array(column, None) for column in columns]
    return dict(zip(COLUMNS, (arrays[0], *arrays), strict=True))


def _count_incomplete_samples(
    metrics_by_type: Mapping[int, list[MetricLocation]], fields_by_number: Mapping[int, Field]
) -> Counter[str]:
    """Count GPU metric samples that have no time or no data. The only key of the result is ``INCOMPLETE``."""
    if _EVENT.type_id not in fields_by_number:
        return Counter()
    types = fields_by_number[_EVENT.type_id]
    mine = np.isin(types.values.view(np.int64), np.array(sorted(metrics_by_type), np.int64))
    if types.valid is not None:
        mine &= types.valid
    complete = mine.copy()
    for number in (_EVENT.time_ns, _EVENT.data):
        valid = fields_by_number[number].valid if number in fields_by_number else np.False_
        complete &= True if valid is None else valid
    return +Counter({INCOMPLETE: int(np.count_nonzero(mine) - np.count_nonzero(complete))})


def _group_event_indices_by_type(
    event_types: Int64Array, complete_mask: Mask, metrics_by_type: Mapping[int, list[MetricLocation]]
) -> Iterator[tuple[int, Int64Array]]:
    """Yield each event type of GPU metrics that has complete events, and the ascending indices of these events.

    The argument ``complete_mask`` is a mask of the complete events, which have an event type, a time and data.
    """
    events = np.flatnonzero(complete_mask)
    events = events[np.argsort(event_types[events], kind="stable")]
    listed = np.array(sorted(metrics_by_type), np.int64)
    firsts, lasts = (np.searchsorted(event_types[events], listed, side) for side in ("left", "right"))
    for nth in np.flatnonzero(lasts > firsts).tolist():
        yield int(listed[nth]), events[firsts[nth] : lasts[nth]]


_NO_VALUES = np.zeros(0, np.int64)


class _MetricRows(NamedTuple):
    """Columns of decoded metric samples, with one element per sample and metric."""

    times: Int64Array
    event_types: Int64Array
    metric_ids: Int64Array
    values: Int64Array


_NO_ROWS = _MetricRows(_NO_VALUES, _NO_VALUES, _NO_VALUES, _NO_VALUES)


class _Samples(NamedTuple):
    """The time of each generic event, and the offset and size of its data."""

    buffer: Buffer
    times: Int64Array
    offsets: Int64Array
    sizes: Int64Array

    def decode_samples_of_type(
        self, event_type: int, metrics: list[MetricLocation], event_indices: Int64Array, budget: Budget
    ) -> _MetricRows:
        """Decode the GPU metric samples of one event type."""
        if int(self.sizes[event_indices].min()) < max((m.offset + m.size for m in metrics), default=0):
            raise Damage("a GPU metric sample is shorter than the metrics that the event type of the sample declares")
        budget.reserve(len(event_indices) * len(metrics), CELL_BYTES * len(COLUMNS), "values of GPU metrics")
        at = self.offsets[event_indices]
        values = np.empty((len(event_indices), len(metrics)), np.int64)
        for nth, m in enumerate(metrics):
            values[:, nth] = m.decode_values(self.buffer.words[at + m.offset])
        rows = values.size
        times, ids = (
            np.repeat(self.times[event_indices], len(metrics)),
            np.tile(np.arange(len(metrics)), len(event_indices)),
        )
        return _MetricRows(times, np.full(rows, event_type), ids, values.reshape(-1))


def _check_no_overlap(metrics: Sequence[MetricLocation]) -> None:
    """Raise an error if metrics overlap, because a small sample could otherwise have any number of rows."""
    for one, other in itertools.pairwise(sorted(metrics, key=lambda m: m.offset)):
        if one.offset + one.size > other.offset:
            raise Damage(f"two GPU metrics overlap at byte {other.offset} of their samples")


def _parse_metric(message: Message) -> MetricLocation:
    field = load_fields("GenericField")
    name, at, size = (message.int_value(n) or 0 for n in (field.name_id, field.offset, field.size))
    if not (0 <= at < 1 << 20 and 1 <= size <= WORD):
        raise Damage(f"a GPU metric has an invalid offset or size: {size} bytes at byte {at}")
    return MetricLocation(name, at, size)


def _read_source_name(raw_data: RawData, source: Message) -> bytes:
    name = source.int_value(load_fields("GenericSource").name_id)
    return raw_data.strings[name].as_py() if name is not None and 0 <= name < len(raw_data.strings) else b""
