"""Write a trace as a Chrome trace file: first the events and flows by event kind, then the names of the tracks.

Write several traces to one Chrome trace file, with times on a shared clock and flows between the traces.

Only one trace is open at a time. ``timeline.parts`` describes the shared clock.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

import polars as pl

from tracekit import schemas
from tracekit.errors import ExportError
from tracekit.exporters.chrome_trace import events
from tracekit.exporters.timeline import batches, flows, kinds
from tracekit.exporters.timeline.batches import BatchFile, FileClock
from tracekit.exporters.timeline.flows import (
    collect_origin_metadata,
    compute_part_layout,
    drop_backward_flows,
    retry_with_shift,
    warn_about_backward_flows,
)
from tracekit.exporters.timeline.layout import check_drawable, compute_layout, read_events
from tracekit.exporters.timeline.tracks import Numbering

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.exporters.timeline.layout import Layout
    from tracekit.exporters.timeline.tracks import LaneRegistry
    from tracekit.registry.interface import AlignedTraces, Progress, View
    from tracekit.registry.tables import Tables

BATCH_ROWS, _BATCH_BYTES = 1 << 14, 1 << 25
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
        file.write(format_file_header(_collect_trace_metadata(view, layout.clock.shift_ns)))
        formatter = FlowFormatter(layout)
        for _, rows in write_and_yield_events(file, view.tables, layout, formatter):
            done += rows.height
            progress(done, total)
        file.write(format_file_footer(format_metadata_events(layout.lanes)))
    flows.warn_about_backward_flows(formatter.backward_count)


def write_and_yield_events(
    file: BatchFile, tables: Tables, layout: Layout, formatter: FlowFormatter
) -> Iterator[tuple[EventKind, pl.DataFrame]]:
    """Write the events and flows of a trace. Yield each event kind with its events and their lane ids."""
    for kind, lane_ids in layout.lane_ids.items():
        rows = read_events(tables, kind).with_columns(lane_ids)
        file.write_job_results(_create_event_jobs(kind, rows, layout))
        file.write_job_results(formatter.create_flow_jobs(kind, rows))
        yield kind, rows


def _create_event_jobs(kind: EventKind, rows: pl.DataFrame, layout: Layout) -> Iterator[Callable[[], memoryview]]:
    """Yield jobs (functions) that each format a batch of events. A slice precedes the slices nested in it."""
    if kind.placement.nests and kind.phase == kinds.SLICE:
        rows = rows.sort(
            kind.start, batches.duration_expr(kind, layout.clock), descending=[False, True], maintain_order=True
        )
    lane_texts = format_pid_tid_members(layout.lanes)
    for batch in rows.iter_slices(_compute_batch_rows(rows)):
        yield functools.partial(events.format_events, kind, batch, lane_texts, layout.clock)


def _compute_batch_rows(rows: pl.DataFrame) -> int:
    """Return the number of events that are formatted at a time, which is smaller if they have long strings."""
    strings = (pl.selectors.categorical().cat, pl.selectors.string().str)
    longest = [rows.select(s.len_bytes().max()) for s in strings]
    row_bytes = sum(size or 0 for frame in longest for sizes in frame.iter_rows() for size in sizes)
    return max(1, min(BATCH_ROWS, _BATCH_BYTES // max(row_bytes, 1)))


class FlowFormatter:
    """Formatter of the flows from API calls to the activities that they launched, and of the flows between MPI calls.

    The ids of the flows are consecutive within the file.

    Attributes:
        count: Number of flows in the file so far.
        backward_count: Number of flows of the trace that were omitted because they end before they start.
    """

    def __init__(self, layout: Layout, count: int = 0) -> None:
        self._layout = layout
        self.backward_count = 0
        self._calls: pl.DataFrame | None = None
        self.count = count

    def create_flow_jobs(self, kind: EventKind, rows: pl.DataFrame) -> Iterator[Callable[[], memoryview]]:
        """Yield jobs (functions) that each format a batch of the flows that end at events of one kind.

        Args:
            kind: The kind of the events. Pass ``kinds.API_CALLS`` before the kinds of launched activities.
            rows: The events, with their lane ids.
        """
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
            yield functools.partial(events.format_flows, batch, lane_texts, clock, self.count + 1, name)
            self.count += batch.height


def _collect_trace_metadata(view: View, shift_ns: int) -> dict[str, str]:
    """Return the trace metadata for the file: the tool, its version, the UTC time at time 0 and the time shift.

    The metadata contains no private values.
    """
    metadata = {name: view.info[name] for name in ("tool", "tool_version") if name in view.info}
    if "origin_utc_ns" in view.info:
        metadata["origin_utc_ns"] = str(int(view.info["origin_utc_ns"]) - shift_ns)
    if shift_ns:
        metadata["shift_ns"] = str(shift_ns)
    return metadata


def format_file_header(metadata: Mapping[str, str]) -> bytes:
    """Return the beginning of the JSON file, including the trace metadata."""
    metadata = {"producer": "tracekit", "schema_version": str(schemas.SCHEMA_VERSION), **metadata}
    text = f'{{"displayTimeUnit":"ns","otherData":{json.dumps(metadata, ensure_ascii=False)},"traceEvents":[\n'
    return text.encode()


def format_file_footer(metadata_events: Iterable[str]) -> bytes:
    """Return the end of the JSON file, including the events that name and order the tracks."""
    return (",\n".join(metadata_events) + "\n]}\n").encode()


def format_pid_tid_members(lanes: LaneRegistry) -> pl.Series:
    """Return the JSON members ``"pid":…,"tid":…`` of all lanes, by lane id. No lane may be added afterwards."""
    members = {thread.lane_id: f'"pid":{thread.pid},"tid":{thread.tid}' for thread in lanes.iterate_threads()}
    return pl.Series([members[lane_id] for lane_id in range(len(members))], dtype=pl.String)


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
        file.write(format_file_header(collect_origin_metadata(traces, shift_ns)))
        for number, part in enumerate(traces.parts):
            with part.open() as view:
                layout = compute_part_layout(view.tables, part, tracks, shift_ns)
                layout.lanes.continue_numbering(f"{part.name} · ", numbering)
                formatter = FlowFormatter(layout, flow_count)
                for kind, rows in write_and_yield_events(file, view.tables, layout, formatter):
                    positions += _find_flow_positions(links, number, kind, rows, layout)
            metadata += format_metadata_events(layout.lanes)
            flow_count = formatter.count
            backward_count += formatter.backward_count
            progress(number + 1, len(traces.parts))
        if not numbering.lanes:
            raise ExportError("there is nothing to draw: the traces have no events with timestamps")
        file.write_job_results(_create_flow_jobs(links, pl.concat(positions), FileClock(shift_ns), flow_count))
        file.write(format_file_footer(metadata))
    warn_about_backward_flows(backward_count)


def _find_flow_positions(
    links: pl.DataFrame, part_number: int, kind: EventKind, rows: pl.DataFrame, layout: Layout
) -> Iterator[pl.DataFrame]:
    """Yield at most one frame: ids and lanes of the events of one kind at which flows between traces begin or end."""
    is_kind = {e: (pl.col(f"{e}_part") == part_number) & (pl.col(f"{e}_table") == kind.table) for e in _ENDS}
    ends = [links.filter(is_kind[e])[f"{e}_id"] for e in _ENDS]
    linked = pl.concat(ends).unique()
    if not len(linked):
        return
    chosen = rows.select(id=pl.col(kind.key), lane_id="lane_id").filter(pl.col("id").is_in(linked.implode()))
    lane = pl.lit(format_pid_tid_members(layout.lanes)).gather("lane_id")
    yield chosen.select(pl.lit(part_number, pl.Int64).alias("part"), pl.lit(kind.table).alias("table"), "id", lane=lane)


def _create_flow_jobs(
    links: pl.DataFrame, positions: pl.DataFrame, clock: FileClock, flow_count: int
) -> Iterator[Callable[[], memoryview]]:
    """Yield jobs (functions) that each format a batch of the flows between traces.

    A flow is omitted unless both of its events are drawn.
    """
    lanes = positions["lane"].unique(maintain_order=True).to_frame("lane").with_row_index("lane_id")
    placed = positions.join(lanes, on="lane").drop("lane")
    for end in _ENDS:
        named = placed.rename({c: f"{end}_{c}" for c in placed.columns})
        links = links.join(named, on=[f"{end}_{c}" for c in ("part", "table", "id")], maintain_order="left")
    for (name,), group in links.group_by("name", maintain_order=True):
        for batch in group.iter_slices(BATCH_ROWS):
            yield functools.partial(events.format_flows, batch, lanes["lane"], clock, flow_count + 1, str(name))
            flow_count += batch.height
