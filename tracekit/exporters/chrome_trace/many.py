"""Write several traces to one Chrome trace file, with times on a shared clock and flows between the traces.

Only one trace is open at a time. ``timeline.parts`` describes the shared clock.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import polars as pl

from tracekit.errors import ExportError
from tracekit.exporters.chrome_trace import events
from tracekit.exporters.chrome_trace.export import (
    BATCH_ROWS,
    FlowFormatter,
    format_file_footer,
    format_file_header,
    write_and_yield_events,
)
from tracekit.exporters.chrome_trace.metadata import format_metadata_events, format_pid_tid_members
from tracekit.exporters.timeline.batches import BatchFile
from tracekit.exporters.timeline.columns import Clock
from tracekit.exporters.timeline.flows import drop_backward_flows, warn_about_backward_flows
from tracekit.exporters.timeline.parts import collect_origin_metadata, compute_part_layout, retry_with_shift
from tracekit.exporters.timeline.tracks import Numbering

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.exporters.timeline.layout import Layout
    from tracekit.registry.interface import ManyTraces, Progress

_ENDS = ("from", "to")
_POSITION: dict[str, type[pl.DataType]] = {"part": pl.Int64, "table": pl.String, "id": pl.Int64, "lane": pl.String}
"""Columns of the positions of events at which flows begin or end."""


def write(traces: ManyTraces, path: Path, progress: Progress, tracks: Collection[str]) -> None:
    """Write the events on the selected tracks of several traces to a Chrome trace file.

    Raises:
        ExportError: The traces have no events with timestamps.
    """
    retry_with_shift(traces, functools.partial(_write_parts, traces, path, progress, tracks))


def _write_parts(traces: ManyTraces, path: Path, progress: Progress, tracks: Collection[str], shift_ns: int) -> None:
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
        file.write_job_results(_create_flow_jobs(links, pl.concat(positions), Clock(shift_ns), flow_count))
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
    links: pl.DataFrame, positions: pl.DataFrame, clock: Clock, flow_count: int
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
