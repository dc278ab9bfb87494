"""Write a trace as a Perfetto trace file: first the descriptions of the tracks, then the events by kind.

Perfetto sorts packets by time and preserves the order of packets with equal times. A slice end applies to the slice on
the same track that began last, so an end must precede the slices that begin at the same time. Kinds of slices that
share tracks form a stage. In each stage, all ends are therefore written before the starts, except the ends of slices
without duration, which are written after the starts.

Write several traces to one Perfetto trace file, with times on a shared clock and flows between the traces.

Only one trace is open at a time.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.errors import ExportError
from tracekit.exporters.perfetto import BOTH, RENDER_STAGES, TRACKS
from tracekit.exporters.perfetto.events import (
    END,
    CounterTracks,
    EventsOfKind,
    EventTimes,
    build_track_field,
    get_times_with_previous,
)
from tracekit.exporters.perfetto.flows import FlowTable
from tracekit.exporters.perfetto.packets import (
    PacketCompression,
    PacketSequence,
    TrackUuids,
    encode_clock_packet,
    encode_metadata_packet,
    encode_track_packets,
)
from tracekit.exporters.perfetto.render_stages import RenderStages
from tracekit.exporters.perfetto.strings import StringPool
from tracekit.exporters.perfetto.wire import BATCH_ROWS, PacketBatch, PacketEncoder, encode_fragments
from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.batches import BatchFile, duration_expr, list_column_names, start_expr
from tracekit.exporters.timeline.blocks import evaluate_expression, iterate_frames
from tracekit.exporters.timeline.flows import (
    collect_origin_metadata,
    collect_trace_metadata,
    compute_part_layout,
    drop_backward_flows,
    retry_with_shift,
    warn_about_backward_flows,
)
from tracekit.exporters.timeline.layout import check_drawable, compute_layout, read_rows
from tracekit.exporters.timeline.tracks import Numbering
from tracekit.system import memory
from tracekit.system.sorting import iterate_row_blocks, sort_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from tracekit.exporters.perfetto.wire import Numbers
    from tracekit.exporters.timeline.blocks import TableRows
    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.exporters.timeline.layout import Layout
    from tracekit.registry.interface import AlignedTraces, Progress, View
    from tracekit.registry.tables import Tables
    from tracekit.system.sorting import Array

BLOCK_ROWS = 1 << 17
"""Number of events whose fields are prepared at a time."""


def write(view: View, path: Path, progress: Progress, tracks: Collection[str], *, gpu_activities: str = TRACKS) -> None:
    """Write the events on the selected tracks of a trace to a Perfetto trace file.

    Times are relative to the trace origin. If an event starts before the origin, all times are shifted so that the
    first event starts at 0, because viewers cannot show negative times.

    Raises:
        ExportError: The data of the trace (a TensorFlow graph or Nsight Compute results) has no timestamps.
    """
    layout = compute_layout(view.tables, kinds.group_kinds_by_stage(tracks))
    check_drawable(view.tables, layout)
    origin = int(view.info["origin_utc_ns"]) - layout.clock.shift_ns if "origin_utc_ns" in view.info else None
    total = sum(map(len, layout.lane_ids.values()))
    done = 0
    with BatchFile(path, PacketCompression()) as file:
        writer = TraceWriter(file, origin, collect_trace_metadata(view, layout.clock.shift_ns), gpu_activities)
        writer.begin_trace(view.tables, layout)
        flows = writer.create_flow_table()
        flows.add_flows_within_trace(view.tables, layout)
        for rows in writer.write_and_count_events(view.tables, layout, flows):
            done += rows
            progress(done, total)
    warn_about_backward_flows(flows.backward_count)


class TraceWriter:
    """Writer of one or more traces to a file. Packet sequences and tracks are numbered across all traces.

    Attributes:
        stages: The GPU render stage events of the current trace, or None if activities are drawn as slices only.
    """

    def __init__(
        self, file: BatchFile, origin_utc_ns: int | None, metadata: Mapping[str, str], gpu_activities: str
    ) -> None:
        self._file = file
        self._gpu_activities = gpu_activities
        self.stages: RenderStages | None = None
        self._encoder = PacketEncoder()
        self._sequences = 0
        self._pool = StringPool()
        self._uuids = TrackUuids()
        self._sequence = self._create_sequence()
        file.write(encode_metadata_packet(self._sequence.number, metadata))
        clock = encode_clock_packet(self._sequence.number, origin_utc_ns)
        if clock:
            file.write(clock)

    def begin_trace(self, tables: Tables, layout: Layout) -> None:
        """Begin a trace, whose events have not been written yet."""
        self._pool = StringPool()
        if self._gpu_activities != TRACKS:
            event_id, gpu = (1, 0) if self.stages is None else (self.stages.next_id, self.stages.next_gpu)
            self.stages = RenderStages(tables, layout, self._create_sequence(), first_event_id=event_id, first_gpu=gpu)

    def create_flow_table(self, count: int = 0) -> FlowTable:
        """Return a table for the flows of the current trace. ``count`` is the number of flows in the file so far."""
        stages = {} if self.stages is None else self.stages.first_ids
        omitted = tuple(stages) if self._gpu_activities == RENDER_STAGES else ()
        return FlowTable(count, omitted=omitted, stages=stages)

    def write_and_count_events(self, tables: Tables, layout: Layout, flows: FlowTable) -> Iterator[int]:
        """Write the tracks, events and flows of the current trace, and yield the number of events of each kind."""
        omitted = self.stages.lane_ids if self.stages and self._gpu_activities == RENDER_STAGES else ()
        number = self._create_sequence().number
        self._file.write(encode_track_packets(layout.lanes, number, self._uuids, omitted=omitted))
        if self.stages:
            self._file.write(self.stages.begin())
        lane_uuids = self._uuids.get_lane_uuids(layout.lanes)
        self._sequence = self._create_sequence()
        for _, stage in itertools.groupby(layout.lane_ids, key=lambda kind: kind.placement):
            yield from self._write_events_and_yield_counts(tables, layout, flows, list(stage), lane_uuids)

    def _write_events_and_yield_counts(
        self, tables: Tables, layout: Layout, flows: FlowTable, stage: list[EventKind], lane_uuids: Numbers
    ) -> Iterator[int]:
        """Write the events of the kinds that share tracks (a stage), and yield the number of events of each kind."""
        more = {} if self.stages is None else {kinds.KERNELS: self.stages.metrics}
        rows_of_kind = {kind: read_rows(tables, kind, more.get(kind, ())) for kind in stage}
        staged = () if self.stages is None else self.stages.first_ids
        drawn = {
            kind: rows for kind, rows in rows_of_kind.items() if kind not in staged or self._gpu_activities == BOTH
        }
        ends, empty = _read_ends_of_nonempty_and_empty_slices(drawn, layout)
        self._write_ends(ends, lane_uuids)
        del ends
        for kind in stage:
            rows = rows_of_kind.pop(kind)
            if kind in drawn:
                self._write_events(kind, drawn.pop(kind), layout, flows, lane_uuids)
            if self.stages and kind in staged:
                self._write_render_stages(self.stages, kind, rows, layout)
            yield rows.height
        self._write_ends(empty, lane_uuids)

    def _write_events(
        self, kind: EventKind, rows: TableRows, layout: Layout, flows: FlowTable, lane_uuids: Numbers
    ) -> None:
        """Write the events of one kind, ordered by time. A slice precedes the slices that are nested in it."""
        times = _compute_event_times(kind, rows, layout)
        event_flows = flows.find_flows(kind, times.order, rows.height)
        submissions = flows.find_submissions(kind, times.order, rows.height)
        sequence = self._begin_stream()
        counters = (
            CounterTracks(kind.table, layout.lanes, self._uuids, sequence.number)
            if kind.phase == kinds.COUNTER
            else None
        )
        tracks = lane_uuids if counters is None else counters
        lane_ids = layout.lane_ids[kind].to_numpy()
        events = EventsOfKind(
            kind, rows, lane_ids, times, sequence, tracks=tracks, flows=event_flows, submissions=submissions
        )
        memory.release_pages()
        for start in range(0, rows.height, BLOCK_ROWS):
            block = events.select_block(start, min(start + BLOCK_ROWS, rows.height))
            if counters is not None:
                self._file.write(counters.pop_packets())
            self._file.write_job_results(sequence.create_string_jobs(self._encoder))
            self._file.write_job_results(self._create_batch_jobs(block))
            memory.release_pages()

    def _write_render_stages(self, stages: RenderStages, kind: EventKind, rows: TableRows, layout: Layout) -> None:
        """Write the activities of one kind as GPU render stage events, ordered by time."""
        times, lane_ids = _compute_event_times(kind, rows, layout), layout.lane_ids[kind].to_numpy()
        self._file.write(stages.sequence.begin_stream())
        for start in range(0, rows.height, BLOCK_ROWS):
            chosen = slice(start, min(start + BLOCK_ROWS, rows.height))
            block = stages.select_block(kind, rows, lane_ids, times, chosen)
            self._file.write(stages.pop_packets())
            self._file.write_job_results(stages.sequence.create_string_jobs(self._encoder))
            self._file.write_job_results(self._create_batch_jobs(block))
            memory.release_pages()

    def _write_ends(self, ends: SliceEnds, lane_uuids: Numbers) -> None:
        """Write the ends of slices, ordered by time."""
        if not len(ends.times):
            return
        order, (times,) = sort_rows(ends.times)
        sequence = self._begin_stream()
        fragments = encode_fragments([build_track_field(END, lane_uuids)], len(lane_uuids))
        lead = sequence.encode_event_lead("track_event")
        for block in iterate_row_blocks(len(times)):
            lane_ids = ends.lane_ids[block if order is None else order[block]]
            with_previous = get_times_with_previous(times, block.start, block.stop)
            batch = PacketBatch(lead, with_previous, [], fragments, lane_ids)
            self._file.write_job_results(self._create_batch_jobs(batch))

    def _begin_stream(self) -> PacketSequence:
        """Write the packets that begin a stream of events, and return the packet sequence of the stream."""
        if not self._sequence.has_unused_clock:
            self._sequence = self._create_sequence()
        self._file.write(self._sequence.begin_stream())
        return self._sequence

    def _create_batch_jobs(self, events: PacketBatch) -> Iterator[Callable[[], memoryview]]:
        """Yield jobs (functions) that each encode a batch of events."""
        for n in range(0, len(events.codes), BATCH_ROWS):
            yield functools.partial(self._encoder.encode_events, events.select(n, n + BATCH_ROWS))

    def _create_sequence(self) -> PacketSequence:
        self._sequences += 1
        return PacketSequence(self._sequences, self._pool)


class SliceEnds(NamedTuple):
    """The end times of slices and the lanes on which the slices end.

    Attributes:
        times: The end times in ns, as written to the file.
        lane_ids: The lane id of each slice.
    """

    times: Array
    lane_ids: Array


def _read_ends_of_nonempty_and_empty_slices(
    tables: dict[EventKind, TableRows], layout: Layout
) -> tuple[SliceEnds, SliceEnds]:
    """Return the ends of slices with a duration, and separately the ends of slices without duration, in row order."""
    slices = {kind: rows for kind, rows in tables.items() if kind.phase == kinds.SLICE}
    total = sum(rows.height for rows in slices.values())
    ends = SliceEnds(memory.allocate_zeros(total, np.int64), memory.allocate_zeros(total, np.int32))
    count, empty = 0, [pl.DataFrame(schema={"end": pl.Int64, "lane_id": pl.Int32})]
    for kind, rows in slices.items():
        start, duration = start_expr(kind, layout.clock), duration_expr(kind, layout.clock)
        for block, frame in iterate_frames(rows, list(dict.fromkeys(list_column_names(start, duration)))):
            times = frame.select(end=start + duration, duration=duration)
            times = times.with_columns(layout.lane_ids[kind][block].alias("lane_id"))
            lasting = times.filter(pl.col("duration") > 0)
            here = slice(count, count + lasting.height)
            ends.times[here], ends.lane_ids[here] = lasting["end"].to_numpy(), lasting["lane_id"].to_numpy()
            count += lasting.height
            empty.append(times.filter(pl.col("duration") == 0).select("end", "lane_id"))
    instants = pl.concat(empty)
    return SliceEnds(ends.times[:count], ends.lane_ids[:count]), SliceEnds(
        instants["end"].to_numpy(), instants["lane_id"].to_numpy()
    )


def _compute_event_times(kind: EventKind, rows: TableRows, layout: Layout) -> EventTimes:
    """Return the start times of events and their order by start. Of slices with equal starts, the longest is first."""
    keys = [start_expr(kind, layout.clock)]
    if kind.phase == kinds.SLICE:
        keys.append(-duration_expr(kind, layout.clock))
    order, times = sort_rows(*(evaluate_expression(rows, key, np.int64) for key in keys))
    return EventTimes(order, times[0])


def write_many(
    traces: AlignedTraces, path: Path, progress: Progress, tracks: Collection[str], *, gpu_activities: str = TRACKS
) -> None:
    """Write the events on the selected tracks of several traces to a Perfetto trace file.

    Raises:
        ExportError: The traces have no events with timestamps.
    """
    retry_with_shift(
        traces, functools.partial(_write_parts, traces, path, progress, tracks, gpu_activities=gpu_activities)
    )


def _write_parts(
    traces: AlignedTraces,
    path: Path,
    progress: Progress,
    tracks: Collection[str],
    shift_ns: int,
    *,
    gpu_activities: str,
) -> None:
    """Write several traces to one Perfetto file, with all times on a shared clock and increased by ``shift_ns``."""
    numbering, flow_count = Numbering(), traces.links.height
    _, backward_count = drop_backward_flows(traces.links)
    with BatchFile(path, PacketCompression()) as file:
        origin = None if traces.origin_utc_ns is None else traces.origin_utc_ns - shift_ns
        writer = TraceWriter(file, origin, collect_origin_metadata(traces, shift_ns), gpu_activities)
        for number, part in enumerate(traces.parts):
            with part.open() as view:
                layout = compute_part_layout(view.tables, part, tracks, shift_ns)
                layout.lanes.continue_numbering(f"{part.name} · ", numbering)
                writer.begin_trace(view.tables, layout)
                flows = writer.create_flow_table(flow_count)
                flows.add_flows_within_trace(view.tables, layout)
                for kind in layout.lane_ids:
                    flows.add_flows_between_traces(traces.links, number, kind, view.tables)
                for _ in writer.write_and_count_events(view.tables, layout, flows):
                    pass
                flow_count = flows.count
                backward_count += flows.backward_count
            progress(number + 1, len(traces.parts))
        if not numbering.lanes:
            raise ExportError("there is nothing to draw: the traces have no events with timestamps")
    warn_about_backward_flows(backward_count)
