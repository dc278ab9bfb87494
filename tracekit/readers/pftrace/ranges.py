"""Collect the slices, instants and counters of traces that other programs wrote, and build their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.readers.common.builders import TableBuilder
from tracekit.readers.common.columns import build_null_array, build_number_array
from tracekit.readers.common.slices import NONE, merge_json_objects_expr
from tracekit.readers.pftrace.events import ANNOTATIONS, BEGIN, COMPLETE, COUNTER, END, INSTANT
from tracekit.readers.pftrace.strings import NO_STRING
from tracekit.readers.pftrace.tracks import match_stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Int64Array
    from tracekit.readers.pftrace.events import SliceStream, TrackEventDecoder, TrackEvents
    from tracekit.readers.pftrace.packets import DecodedPackets
    from tracekit.readers.pftrace.strings import TraceStrings
    from tracekit.readers.pftrace.tracks import DescribedTracks, MatchedEnds

_FEW_ROWS = 1 << 10
_SOURCE = "Perfetto"
_LARGEST_WHOLE = 2.0**63


class ForeignEvents:
    """Collector of the events of a trace that another program wrote."""

    def __init__(self, decoder: TrackEventDecoder, slices: SliceStream, budget: Budget) -> None:
        self._decoder = decoder
        self._slices = slices
        self._budget = budget
        self._ranges, self._marks, self._counters, self._ends = (TableBuilder(_FEW_ROWS) for _ in range(4))

    def add(self, batch: DecodedPackets, events: TrackEvents) -> None:
        """Add the events in a batch of packets.

        Raises:
            Damage: An event is invalid, or the events exceed the memory budget.
        """
        rows = len(events.types)
        positions = self._slices.add(events)
        decoder = self._decoder.create_annotation_decoder(batch)
        annotations = decoder.decode(events.starts, events.stops, events.states, ANNOTATIONS)
        arguments = (
            decoder.format_json(annotations, rows, events.states)
            if len(annotations.owners)
            else build_null_array(rows, pa.string())
        )
        categories = self._decoder.read_categories(batch, events)
        columns = {
            "position": build_number_array(positions),
            "time": build_number_array(events.times),
            "duration": build_number_array(events.durations),
            "track": build_number_array(events.tracks.astype(np.int32)),
            "name": build_number_array(events.names.astype(np.int32)),
            "category": build_number_array(categories.astype(np.int32)),
            "args": arguments,
            "is_complete": build_number_array((events.types == COMPLETE).astype(np.int8)),
        }
        is_range = (events.types == BEGIN) | (events.types == COMPLETE)
        has_label = (events.names != NO_STRING) | (categories != NO_STRING)
        is_described_end = (events.types == END) & (_compute_valid_mask(arguments) | has_label)
        for builder, mask, names in (
            (self._ranges, is_range, (*columns,)),
            (self._marks, events.types == INSTANT, ("time", "track", "name", "category", "args")),
            (self._ends, is_described_end, ("position", "args", "name", "category")),
        ):
            self._append(builder, {name: columns[name] for name in names}, mask)
        whole, is_whole, real, is_real = self._decoder.read_counters(events)
        counters = {
            "time": columns["time"],
            "track": columns["track"],
            "state": build_number_array(events.states),
            "whole": build_number_array(whole, is_whole),
            "real": build_number_array(real.view(np.float64), is_real),
        }
        has_value = is_whole | is_real
        self._decoder.undecoded["counters without a value"] += int(((events.types == COUNTER) & ~has_value).sum())
        self._append(self._counters, counters, (events.types == COUNTER) & has_value)

    def _append(self, builder: TableBuilder, columns: Mapping[str, pa.Array], mask: np.ndarray) -> None:
        rows = np.flatnonzero(mask)
        if len(rows):
            chosen = build_number_array(rows)
            values_of_rows = {
                name: values if len(rows) == len(mask) else values.take(chosen) for name, values in columns.items()
            }
            self._budget.reserve(sum(values.nbytes for values in values_of_rows.values()), 1, "bytes of events")
            builder.append(values_of_rows)

    def build_tables(self, tracks: DescribedTracks, strings: TraceStrings) -> tuple[dict[str, pl.DataFrame], int]:
        """Return the tables of ranges, marks and counters, and the number of ends of slices without a beginning."""
        ranges, marks, counters, of_ends = (
            builder.finish() for builder in (self._ranges, self._marks, self._counters, self._ends)
        )
        ends = match_stream(self._slices, tracks.same, *_read_labels(self._slices.count, ranges, of_ends, strings))
        tables: dict[str, pl.DataFrame] = {}
        if ranges:
            tables["nvtx_ranges"] = _build_ranges(ranges, of_ends, tracks, ends, strings)
        if marks:
            frame = _to_frame(marks)
            tables["nvtx_marks"] = _describe(frame, tracks, strings).rename({"time": "timestamp_ns"})
        if counters:
            tables["counters"] = _build_counters(_to_frame(counters), tracks, strings)
        return tables, ends.unmatched


def _read_labels(
    count: int, ranges: Mapping[str, Any], of_ends: Mapping[str, Any], strings: TraceStrings
) -> list[Int64Array]:
    """Return the codes of the name and category of each event of the stream, or nothing if no end has any."""
    labels: list[Int64Array] = []
    if not of_ends or not ranges:
        return labels
    frames = [_to_frame(columns).select("position", "name", "category") for columns in (ranges, of_ends)]
    if (frames[1].select("name", "category") == NO_STRING).select(pl.all().all()).row(0) == (True, True):
        return labels
    for name in ("name", "category"):
        codes = np.full(count, NONE, np.int64)
        for frame in frames:
            known = frame.filter(pl.col("position") != NONE)
            codes[known["position"].to_numpy()] = strings.number(known[name].to_numpy())
        labels.append(codes)
    return labels


def _build_ranges(
    columns: Mapping[str, Any],
    of_ends: Mapping[str, Any],
    tracks: DescribedTracks,
    ends: MatchedEnds,
    strings: TraceStrings,
) -> pl.DataFrame:
    frame = _to_frame(columns)
    positions = frame["position"].to_numpy()
    place = np.maximum(positions, 0)
    has_place = positions != NONE
    times = ends.times[place] if len(ends.times) else np.full(len(place), NONE, np.int64)
    end_positions = ends.positions[place] if len(ends.positions) else np.full(len(place), NONE, np.int64)
    matched = pl.Series(build_number_array(times, has_place & (times != NONE)))
    frame = frame.with_columns(
        end_ns=pl.when(pl.col("is_complete") == 1).then(pl.col("time") + pl.col("duration")).otherwise(pl.lit(matched)),
        end_position=pl.Series(build_number_array(end_positions, has_place & (end_positions != NONE))),
    )
    if of_ends:
        last = _to_frame(of_ends).select(end_position="position", end_args="args").drop_nulls("end_args")
        frame = frame.join(last, on="end_position", how="left", maintain_order="left")
        frame = frame.with_columns(args=merge_json_objects_expr("args", "end_args"))
    described = _describe(frame, tracks, strings)
    is_thread = pl.Series(build_number_array(tracks.is_thread.astype(np.int8))).gather(frame["track"]) == 1
    kind = pl.select(kind=pl.when(is_thread).then(pl.lit("push_pop")).otherwise(pl.lit("start_end"))).to_series()
    return described.with_columns(kind).rename({"time": "start_ns"})


def _describe(frame: pl.DataFrame, tracks: DescribedTracks, strings: TraceStrings) -> pl.DataFrame:
    """Return events with the columns of ranges and marks. The domain of an event is its track if it is no thread."""
    numbers = frame["track"].to_numpy()
    names = np.where(tracks.is_thread, NO_STRING, tracks.names)
    domains = strings.build(names[numbers])
    return frame.with_columns(
        process_id=_build_ids(tracks.process_ids, tracks.has_process, numbers),
        thread_id=_build_ids(tracks.thread_ids, tracks.is_thread, numbers),
        domain_id=pl.Series(build_number_array(_number_domains(tracks, strings)[numbers])),
        domain=pl.Series(domains),
        name=pl.Series(strings.build(frame["name"].to_numpy())),
        category=pl.Series(strings.build(frame["category"].to_numpy())),
        payload_type=pl.when(pl.col("args").is_not_null()).then(pl.lit("json")),
        payload_text="args",
    )


def _number_domains(tracks: DescribedTracks, strings: TraceStrings) -> Int64Array:
    """Return the number of the domain of each track: 0 for threads, and else one per name of a track."""
    names = strings.build(np.where(tracks.is_thread, NO_STRING, tracks.names))
    order = {text: nth for nth, text in enumerate(sorted(names.dictionary.to_pylist()), 1)}
    of_codes = np.array([*(order[text] for text in names.dictionary.to_pylist()), 0], np.int64)
    numbers: Int64Array = of_codes[names.indices.fill_null(len(order)).to_numpy()]
    return numbers


def _build_ids(ids: Int64Array, is_known: np.ndarray, numbers: Int64Array) -> pl.Series:
    return pl.Series(build_number_array(ids[numbers], is_known[numbers]))


def _build_counters(frame: pl.DataFrame, tracks: DescribedTracks, strings: TraceStrings) -> pl.DataFrame:
    """Return the values of counters. Differences are summed up in the order of the file.

    The sum starts anew when the sequence of the values clears its state. Values that do not fit into 64 bits become
    floating-point numbers.
    """
    numbers = frame["track"].to_numpy()
    frame = frame.with_columns(
        multiplier=pl.Series(build_number_array(tracks.multipliers[numbers])),
        is_incremental=pl.Series(build_number_array(tracks.is_incremental[numbers].astype(np.int8))) == 1,
    )
    if frame["is_incremental"].any():
        value = pl.coalesce(pl.col("whole").cast(pl.Float64), "real").fill_null(0)
        total = {"whole": pl.col("whole").fill_null(0).cum_sum(), "real": value.cum_sum()}
        is_real = pl.col("real").is_not_null().any() | (value.cum_sum().abs().max() >= _LARGEST_WHOLE)
        sums = {
            "whole": pl.when(~is_real).then(total["whole"]).over("track", "state"),
            "real": pl.when(is_real).then(total["real"]).over("track", "state"),
        }
        frame = frame.with_columns(
            pl.when("is_incremental").then(expression).otherwise(name).alias(name) for name, expression in sums.items()
        )
    label = strings.build(tracks.names[numbers])
    product = pl.col("whole").cast(pl.Float64) * pl.col("multiplier")
    is_whole = product.abs() < _LARGEST_WHOLE
    scaled = frame.with_columns(
        whole=pl.when(is_whole).then(pl.col("whole") * pl.col("multiplier")),
        real=pl.coalesce(pl.col("real") * pl.col("multiplier"), pl.when(~is_whole).then(product)),
    )
    return scaled.select(
        event_id=pl.int_range(1, pl.len() + 1, dtype=pl.Int64),
        timestamp_ns="time",
        process_id=_build_ids(tracks.process_ids, tracks.has_process, numbers),
        thread_id=_build_ids(tracks.thread_ids, tracks.is_thread, numbers),
        source=pl.lit(_SOURCE),
        name=pl.Series(label),
        field=pl.Series(label),
        value_type=pl.when(pl.col("whole").is_not_null())
        .then(pl.lit("int64"))
        .when(pl.col("real").is_not_null())
        .then(pl.lit("double")),
        value_int="whole",
        value_float="real",
    )


def _to_frame(columns: Mapping[str, Any]) -> pl.DataFrame:
    return pl.DataFrame({name: pl.Series(values) for name, values in columns.items()})


def _compute_valid_mask(array: pa.Array) -> np.ndarray:
    mask: np.ndarray = array.is_valid().to_numpy(zero_copy_only=False)
    return mask
