"""Write a trace as a Chrome trace file: first the events and flows by event kind, then the names of the tracks.

Write several traces to one Chrome trace file, with times on a shared clock and flows between the traces.

Only one trace is open at a time. ``timeline.parts`` describes the shared clock.
"""

from __future__ import annotations

import functools
import itertools
import json
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import ExportError
from tracekit.exporters.chrome_trace.events import EventFormatter, Programs, format_flows
from tracekit.exporters.timeline import flows, kinds
from tracekit.exporters.timeline.batches import BatchFile, FileClock, duration_expr
from tracekit.exporters.timeline.blocks import evaluate_expression
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
from tracekit.system.sorting import sort_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from tracekit.exporters.timeline.blocks import TableRows
    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.exporters.timeline.layout import Layout
    from tracekit.exporters.timeline.tracks import LaneRegistry
    from tracekit.registry.interface import AlignedTraces, Progress, View
    from tracekit.registry.tables import Tables

BATCH_ROWS, _BATCH_BYTES = 1 << 15, 1 << 26
_ENDS = ("from", "to")
_POSITION: dict[str, type[pl.DataType]] = {"part": pl.Int64, "table": pl.String, "id": pl.Int64, "lane": pl.String}
"""Columns of the positions of events at which flows begin or end."""


def write(view: View, path: Path, progress: Progress, tracks: Collection[str]) -> None:
    """Write the events on the selected tracks of a trace to a Chrome trace file.

    Times are relative to the trace origin. If an event starts before the origin, all times are shifted so that the
    first event starts at 0, because viewers cannot show negative times.

    Raises:
        ExportError: The data of the trace (a TensorFlow graph or Nsight Compute results) has no timestamps.
    """
    layout = compute_layout(view.tables, kinds.group_kinds_by_stage(tracks))
    check_drawable(view.tables, layout)
    total = sum(map(len, layout.lane_ids.values()))
    done = 0
    with BatchFile(path) as file:
        file.write(format_file_header(collect_trace_metadata(view, layout.clock.shift_ns)))
        formatter = FlowFormatter(layout, create_programs(file))
        for _, rows in write_and_yield_events(file, view.tables, layout, formatter):
            done += rows.height
            progress(done, total)
        file.write(format_file_footer(format_metadata_events(layout.lanes)))
    flows.warn_about_backward_flows(formatter.backward_count)


def write_and_yield_events(
    file: BatchFile, tables: Tables, layout: Layout, formatter: FlowFormatter
) -> Iterator[tuple[EventKind, TableRows]]:
    """Write the events and flows of a trace. Yield each event kind with its events."""
    for kind in layout.lane_ids:
        rows = read_rows(tables, kind)
        file.write_job_results(_create_event_jobs(kind, rows, layout, formatter.programs))
        file.write_job_results(formatter.create_flow_jobs(kind, rows))
        yield kind, rows


def _create_event_jobs(
    kind: EventKind, rows: TableRows, layout: Layout, programs: Iterator[Programs]
) -> Iterator[Callable[[], memoryview]]:
    """Yield jobs (functions) that each format a batch of events. A slice precedes the slices nested in it."""
    order = None
    if kind.placement.nests and kind.phase == kinds.SLICE:
        keys = [evaluate_expression(rows, key, np.int64) for key in (kind.start, -duration_expr(kind, layout.clock))]
        order = sort_rows(*keys).order
        del keys
    lane_texts, lane_ids = format_pid_tid_members(layout.lanes), layout.lane_ids[kind].to_numpy()
    formatter = EventFormatter(kind, rows, lane_ids, lane_texts, layout.clock)
    step = _compute_batch_rows(rows)
    for start in range(0, rows.height, step):
        batch = slice(start, min(start + step, rows.height))
        yield functools.partial(formatter.format, batch if order is None else order[batch], next(programs))


def _compute_batch_rows(rows: TableRows) -> int:
    """Return the number of events that are formatted at a time, which is smaller if they have long strings."""
    lists = [rows.dictionaries[n].arrays if n in rows.dictionaries else rows.table[n].chunks for n in rows.columns]
    strings = [[part for part in parts if not pa.types.is_primitive(part.type)] for parts in lists]
    longest = (max((pc.max(pc.binary_length(part)).as_py() or 0 for part in parts), default=0) for parts in strings)
    return max(1, min(BATCH_ROWS, _BATCH_BYTES // max(sum(longest), 1)))


class FlowFormatter:
    """Formatter of the flows from API calls to the activities that they launched, and of the flows between MPI calls.

    The ids of the flows are consecutive within the file.

    Attributes:
        programs: The programs for the next batch, as returned by ``create_programs``.
        count: Number of flows in the file so far.
        backward_count: Number of flows of the trace that were omitted because they end before they start.
    """

    def __init__(self, layout: Layout, programs: Iterator[Programs], count: int = 0) -> None:
        self._layout = layout
        self.programs = programs
        self.backward_count = 0
        self._calls: pl.DataFrame | None = None
        self.count = count

    def create_flow_jobs(self, kind: EventKind, table: TableRows) -> Iterator[Callable[[], memoryview]]:
        """Yield jobs (functions) that each format a batch of the flows that end at events of one kind.

        Args:
            kind: The kind of the events. Pass ``kinds.API_CALLS`` before the kinds of launched activities.
            table: The events.
        """
        if not (kind.launched or kind in (kinds.API_CALLS, kinds.MPI_CALLS)):
            return
        names = [n for n in ("api_call_id", "mpi_call_id", *kind.links, "start_ns", "end_ns") if n in table.columns]
        rows = table.read_block(slice(0, table.height), names).with_columns(self._layout.lane_ids[kind])
        if kind is kinds.API_CALLS:
            self._calls = flows.select_call_flow_starts(rows)
        if self._calls is not None and kind.launched and "api_call_id" in rows.columns:
            yield from self._create_batch_jobs(flows.LAUNCH, flows.find_launch_flows(self._calls, rows))
        for name, links in flows.find_mpi_flows(kind, rows):
            yield from self._create_batch_jobs(name, links)

    def _create_batch_jobs(self, name: str, links: pl.DataFrame) -> Iterator[Callable[[], memoryview]]:
        lane_texts, clock = format_pid_tid_members(self._layout.lanes), self._layout.clock
        links, backward_count = flows.drop_backward_flows(links)
        self.backward_count += backward_count
        for batch in links.iter_slices(BATCH_ROWS):
            yield functools.partial(
                format_flows, batch, lane_texts, clock, next(self.programs), first_id=self.count + 1, name=name
            )
            self.count += batch.height


def format_file_header(metadata: Mapping[str, str]) -> bytes:
    """Return the beginning of the JSON file, including the trace metadata."""
    text = f'{{"displayTimeUnit":"ns","otherData":{json.dumps(metadata, ensure_ascii=False)},"traceEvents":[\n'
    return text.encode()


def format_file_footer(metadata_events: Iterable[str]) -> bytes:
    """Return the end of the JSON file, including the events that name and order the tracks."""
    return (",\n".join(metadata_events) + "\n]}\n").encode()


def create_programs(file: BatchFile) -> Iterator[Programs]:
    """Return an iterator over programs. The results of the last ``file.max_waiting_jobs`` programs are separate."""
    return itertools.cycle([Programs.create() for _ in range(file.max_waiting_jobs)])


def format_pid_tid_members(lanes: LaneRegistry) -> pa.LargeStringArray:
    """Return the JSON members ``"pid":…,"tid":…`` of all lanes, by lane id. No lane may be added afterwards."""
    members = {thread.lane_id: f'"pid":{thread.pid},"tid":{thread.tid}' for thread in lanes.iterate_threads()}
    return pa.array([members[lane_id] for lane_id in range(len(members))], pa.large_string())


def format_metadata_events(lanes: LaneRegistry) -> Iterator[str]:
    """Yield the JSON events that name and order the processes and threads."""
    for process in lanes.iterate_processes():
        yield _format_metadata_event("process_name", process.pid, 0, name=process.name)
        yield _format_metadata_event("process_sort_index", process.pid, 0, sort_index=process.sort_index)
    for thread in lanes.iterate_threads():
        if thread.name is not None:
            yield _format_metadata_event("thread_name", thread.pid, thread.tid, name=thread.name, **thread.attributes)
            yield _format_metadata_event("thread_sort_index", thread.pid, thread.tid, sort_index=thread.tid)


def _format_metadata_event(name: str, pid: int, tid: int, /, **args: str | int) -> str:
    """Return a JSON event that names or orders a process or thread."""
    event = {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)


def write_many(traces: AlignedTraces, path: Path, progress: Progress, tracks: Collection[str]) -> None:
    """Write the events on the selected tracks of several traces to a Chrome trace file.

    Raises:
        ExportError: The traces have no events with timestamps.
    """
    retry_with_shift(traces, functools.partial(_write_parts, traces, path, progress, tracks))


def _write_parts(traces: AlignedTraces, path: Path, progress: Progress, tracks: Collection[str], shift_ns: int) -> None:
    """Write several traces to one Chrome trace file, with all times on a shared clock and increased by ``shift_ns``."""
    numbering, flow_count = Numbering(), 0
    links, backward_count = drop_backward_flows(traces.links)
    metadata: list[str] = []
    positions = [pl.DataFrame(schema=_POSITION)]
    with BatchFile(path) as file:
        programs = create_programs(file)
        file.write(format_file_header(collect_origin_metadata(traces, shift_ns)))
        for number, part in enumerate(traces.parts):
            with part.open() as view:
                layout = compute_part_layout(view.tables, part, tracks, shift_ns)
                layout.lanes.continue_numbering(f"{part.name} · ", numbering)
                formatter = FlowFormatter(layout, programs, flow_count)
                for kind, rows in write_and_yield_events(file, view.tables, layout, formatter):
                    positions += _find_flow_positions(links, number, kind, rows, layout)
            metadata += format_metadata_events(layout.lanes)
            flow_count = formatter.count
            backward_count += formatter.backward_count
            progress(number + 1, len(traces.parts))
        if not numbering.lanes:
            raise ExportError("there is nothing to draw: the traces have no events with timestamps")
        clock = FileClock(shift_ns)
        file.write_job_results(_create_flow_jobs(links, pl.concat(positions), clock, flow_count, programs))
        file.write(format_file_footer(metadata))
    warn_about_backward_flows(backward_count)


def _find_flow_positions(
    links: pl.DataFrame, part_number: int, kind: EventKind, rows: TableRows, layout: Layout
) -> Iterator[pl.DataFrame]:
    """Yield at most one frame: ids and lanes of the events of one kind at which flows between traces begin or end."""
    is_kind = {e: (pl.col(f"{e}_part") == part_number) & (pl.col(f"{e}_table") == kind.table) for e in _ENDS}
    ends = [links.filter(is_kind[e])[f"{e}_id"] for e in _ENDS]
    linked = pl.concat(ends).unique()
    if not len(linked):
        return
    ids = rows.read_block(slice(0, rows.height), [kind.key]).select(pl.col(kind.key).alias("id"))
    chosen = ids.with_columns(layout.lane_ids[kind]).filter(pl.col("id").is_in(linked.implode()))
    lane = pl.lit(pl.Series(format_pid_tid_members(layout.lanes))).gather("lane_id")
    yield chosen.select(pl.lit(part_number, pl.Int64).alias("part"), pl.lit(kind.table).alias("table"), "id", lane=lane)


def _create_flow_jobs(
    links: pl.DataFrame, positions: pl.DataFrame, clock: FileClock, flow_count: int, programs: Iterator[Programs]
) -> Iterator[Callable[[], memoryview]]:
    """Yield jobs (functions) that each format a batch of the flows between traces.

    A flow is omitted unless both of its events are drawn.
    """
    lanes = positions["lane"].unique(maintain_order=True).to_frame("lane").with_row_index("lane_id")
    placed = positions.join(lanes, on="lane").drop("lane")
    for end in _ENDS:
        named = placed.rename({c: f"{end}_{c}" for c in placed.columns})
        links = links.join(named, on=[f"{end}_{c}" for c in ("part", "table", "id")], maintain_order="left")
    lane_texts = lanes["lane"].to_arrow(compat_level=pl.CompatLevel.oldest())
    for (name,), group in links.group_by("name", maintain_order=True):
        for batch in group.iter_slices(BATCH_ROWS):
            yield functools.partial(
                format_flows, batch, lane_texts, clock, next(programs), first_id=flow_count + 1, name=str(name)
            )
            flow_count += batch.height
