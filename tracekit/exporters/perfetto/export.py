"""Write a trace as a Perfetto trace file: first the descriptions of the tracks, then the events by kind.

Perfetto sorts packets by time and keeps the order of packets with equal times. The end of a slice applies to the slice
on the same track that began last, so it has to precede slices that begin at the same time. Slices that share tracks are
in the same stage. The ends of the slices of a stage are therefore written before their begins. Only the ends of slices
without duration are written after the begins.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

import polars as pl

from tracekit import memory
from tracekit.exporters.perfetto.events import EventTimes, encode_ends, prepare_counters, prepare_events, time_deltas
from tracekit.exporters.perfetto.flows import FlowTable
from tracekit.exporters.perfetto.packets import PacketCompression, Sequence, TrackUuids, clock_packet, track_packets
from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.batches import BatchFile
from tracekit.exporters.timeline.columns import duration_expr, start_expr
from tracekit.exporters.timeline.layout import check_drawable, compute_layout, read_events, with_lane_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from tracekit.exporters.perfetto.wire import Numbers
    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.exporters.timeline.layout import Layout
    from tracekit.interface import Progress, View

BATCH_ROWS, BLOCK_ROWS = 1 << 14, 1 << 20


def write(view: View, path: Path, progress: Progress, tracks: Collection[str]) -> None:
    """Write the events on the selected tracks of a trace to a Perfetto trace file.

    Times are relative to the trace origin. If an event starts before the origin, all times are shifted so that the
    first event starts at 0, because viewers cannot show negative times.

    Raises:
        ExportError: The trace has no events with timestamps, such as a graph or Nsight Compute results.
    """
    layout = compute_layout(view, kinds.kinds_by_stage(tracks))
    check_drawable(view, layout)
    origin = int(view.info["origin_utc_ns"]) - layout.clock.shift_ns if "origin_utc_ns" in view.info else None
    total = sum(map(len, layout.lane_ids.values()))
    done = 0
    with BatchFile(path, PacketCompression()) as file:
        writer = TraceWriter(file, origin)
        flows = FlowTable()
        flows.add_flows_within_trace(view, layout)
        for rows in writer.write_trace(view, layout, flows):
            done += rows
            progress(done, total)


class TraceWriter:
    """A writer of one or more traces to a file, which numbers sequences and tracks consecutively in the whole file."""

    def __init__(self, file: BatchFile, origin_utc_ns: int | None) -> None:
        self._file = file
        self._sequences = 0
        self._uuids = TrackUuids()
        self._sequence = self._new_sequence()
        clock = clock_packet(self._sequence.number, origin_utc_ns)
        if clock:
            file.write(clock)

    def write_trace(self, view: View, layout: Layout, flows: FlowTable) -> Iterator[int]:
        """Write the tracks, events and flows of a trace, and yield the number of events of each kind."""
        self._file.write(track_packets(layout.lanes, self._new_sequence().number, self._uuids))
        lane_uuids = self._uuids.lanes(layout.lanes)
        self._sequence = self._new_sequence()
        for _, stage in itertools.groupby(layout.lane_ids, key=lambda kind: kind.placement):
            yield from self._write_stage(view, layout, flows, list(stage), lane_uuids)

    def _write_stage(
        self, view: View, layout: Layout, flows: FlowTable, stage: list[EventKind], lane_uuids: Numbers
    ) -> Iterator[int]:
        """Write the events of all kinds that share tracks (a stage), and yield the number of events of each kind."""
        tables = {kind: read_events(view, kind) for kind in stage}
        slices = [_intervals(kind, rows, layout) for kind, rows in tables.items() if kind.phase == kinds.SLICE]
        empty = pl.concat([_NO_ENDS, *(_select_ends(rows, pl.col("duration") == 0) for rows in slices)])
        ends = [_select_ends(rows, pl.col("duration") > 0) for rows in slices]
        del slices
        memory.release_pages()
        self._write_ends(pl.concat([_NO_ENDS, *ends]), lane_uuids)
        del ends
        for kind in stage:
            rows = tables.pop(kind)
            self._write_events(kind, rows, layout, flows, lane_uuids)
            yield rows.height
        self._write_ends(empty, lane_uuids)

    def _write_events(
        self, kind: EventKind, rows: pl.DataFrame, layout: Layout, flows: FlowTable, lane_uuids: Numbers
    ) -> None:
        """Write the events of one kind, ordered by time. A slice precedes the slices that are nested in it."""
        times, drawn = _order_by_time(kind, rows, layout), with_lane_ids(rows, layout.lane_ids[kind])
        memory.release_pages()
        event_flows = flows.flows(kind, times.order, rows.height)
        sequence = self._begin_stream()
        if kind.phase == kinds.COUNTER:
            events, tracks = prepare_counters(kind, drawn, times, sequence, lanes=layout.lanes, uuids=self._uuids)
            self._file.write(tracks)
        else:
            events = prepare_events(kind, drawn, times, sequence, lane_uuids, flows=event_flows)
        memory.release_pages()
        self._file.write_jobs(sequence.string_jobs())
        for start in range(0, rows.height, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, rows.height)
            self._file.write_jobs(_batch_jobs(events.block(start, stop).encode, stop - start))
            memory.release_pages()

    def _write_ends(self, ends: pl.DataFrame, lane_uuids: Numbers) -> None:
        """Write the packets that end slices, ordered by time."""
        if not ends.height:
            return
        ordered = ends.sort("end", maintain_order=True)
        deltas, lane_ids = time_deltas(ordered["end"].to_numpy()), ordered["lane_id"].to_numpy()
        sequence = self._begin_stream()

        def encode(start: int, stop: int) -> memoryview:
            return encode_ends(sequence, deltas[start:stop], lane_uuids[lane_ids[start:stop]])

        self._file.write_jobs(_batch_jobs(encode, len(deltas)))

    def _begin_stream(self) -> Sequence:
        """Write the packets that begin a stream of events, and return the packet sequence that contains the stream."""
        if not self._sequence.has_clocks:
            self._sequence = self._new_sequence()
        self._file.write(self._sequence.begin_stream())
        return self._sequence

    def _new_sequence(self) -> Sequence:
        self._sequences += 1
        return Sequence(self._sequences)


_NO_ENDS = pl.DataFrame(schema={"lane_id": pl.Int32, "end": pl.Int64})


def _intervals(kind: EventKind, rows: pl.DataFrame, layout: Layout) -> pl.DataFrame:
    """Return the lane id, the end and the duration of each slice, with times in ns as they are written to the file."""
    start, duration = start_expr(kind, layout.clock), duration_expr(kind, layout.clock)
    times = rows.select(end=start + duration, duration=duration)
    return with_lane_ids(times, layout.lane_ids[kind]).select("lane_id", "end", "duration")


def _select_ends(intervals: pl.DataFrame, where: pl.Expr) -> pl.DataFrame:
    """Return the lane id and end of the slices that meet a condition."""
    mask = intervals.select(where).to_series()
    return intervals.select("lane_id", "end").filter(mask)


def _order_by_time(kind: EventKind, rows: pl.DataFrame, layout: Layout) -> EventTimes:
    """Return the order of events by time, and their starts. Of slices with the same start, the longest is the first."""
    shorter = -duration_expr(kind, layout.clock) if kind.phase == kinds.SLICE else pl.lit(0, pl.Int64)
    times = rows.select(start=start_expr(kind, layout.clock), shorter=shorter)
    step, change = pl.col("start").diff(), pl.col("shorter").diff()
    if times.select(((step > 0) | ((step == 0) & (change >= 0))).all()).item():
        return EventTimes(None, time_deltas(times["start"].to_numpy()))
    ordered = times.with_row_index("row").sort("start", "shorter", maintain_order=True)
    return EventTimes(ordered["row"].to_numpy(), time_deltas(ordered["start"].to_numpy()))


def _batch_jobs(encode: Callable[[int, int], memoryview], rows: int) -> Iterable[Callable[[], memoryview]]:
    """Return jobs, each of which encodes a batch of rows."""
    return (functools.partial(encode, n, min(n + BATCH_ROWS, rows)) for n in range(0, rows, BATCH_ROWS))
