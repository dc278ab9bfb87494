"""Write several traces to one Perfetto trace file, with times on a shared clock and flows between the traces.

Only one trace is open at a time.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tracekit.errors import ExportError
from tracekit.exporters.perfetto.export import TraceWriter
from tracekit.exporters.perfetto.flows import FlowTable
from tracekit.exporters.perfetto.packets import PacketCompression
from tracekit.exporters.timeline.batches import BatchFile
from tracekit.exporters.timeline.flows import drop_backward_flows, warn_about_backward_flows
from tracekit.exporters.timeline.parts import compute_part_layout, retry_with_shift
from tracekit.exporters.timeline.tracks import Numbering

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from tracekit.registry.interface import ManyTraces, Progress


def write(traces: ManyTraces, path: Path, progress: Progress, tracks: Collection[str]) -> None:
    """Write the events on the selected tracks of several traces to a Perfetto trace file.

    Raises:
        ExportError: The traces have no events with timestamps.
    """
    retry_with_shift(traces, functools.partial(_write_parts, traces, path, progress, tracks))


def _write_parts(traces: ManyTraces, path: Path, progress: Progress, tracks: Collection[str], shift_ns: int) -> None:
    """Write several traces to one Perfetto file, with all times on a shared clock and increased by ``shift_ns``."""
    numbering, flow_count = Numbering(), traces.links.height
    _, backward_count = drop_backward_flows(traces.links)
    with BatchFile(path, PacketCompression()) as file:
        writer = TraceWriter(file, None if traces.origin_utc_ns is None else traces.origin_utc_ns - shift_ns)
        for number, part in enumerate(traces.parts):
            with part.open() as view:
                layout = compute_part_layout(view.tables, part, tracks, shift_ns)
                layout.lanes.continue_numbering(f"{part.name} · ", numbering)
                flows = FlowTable(flow_count)
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
