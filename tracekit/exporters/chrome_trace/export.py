"""Lay out all events of a trace, and write the events and arrows by kind, followed by the names of the tracks."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

import polars as pl

from tracekit import schemas
from tracekit.errors import ExportError
from tracekit.exporters.chrome_trace import events, kinds
from tracekit.exporters.chrome_trace.file import TextFile
from tracekit.exporters.chrome_trace.layout import compute_layout, read_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracekit.exporters.chrome_trace.kinds import EventKind
    from tracekit.exporters.chrome_trace.layout import Layout
    from tracekit.interface import Progress, View

BATCH_ROWS = 1 << 14
_TIMELESS = {
    "ncu_launches": "Nsight Compute results have durations, but no timestamps",
    "graph_nodes": "the nodes of a graph have no timestamps",
}


def write(view: View, path: Path, progress: Progress) -> None:
    """Write all events of a trace to a Chrome trace file.

    Times are relative to the trace origin. If an event starts before the origin, all times are shifted so that the
    first event starts at 0, because viewers cannot show negative times.

    Raises:
        ExportError: The trace has no events with timestamps, such as a graph or Nsight Compute results.
    """
    layout = compute_layout(view)
    reasons = [reason for name, reason in _TIMELESS.items() if not layout.lane_ids and view.count(name)]
    if reasons:
        raise ExportError(f"nothing to draw: {reasons[0]}", hint="export tables: --to csv, parquet or arrow")
    total = sum(map(len, layout.lane_ids.values()))
    done = 0
    arrows = _ArrowFormatter(layout)
    with TextFile(path) as file:
        file.write(_header(view, layout.clock.shift_ns))
        for kind, lane_ids in layout.lane_ids.items():
            rows = read_events(view, kind).with_columns(lane_ids)
            file.write_jobs(_event_jobs(kind, rows, layout))
            file.write_jobs(arrows.jobs(kind, rows))
            done += rows.height
            progress(done, total)
        file.write(",\n".join(layout.lanes.metadata_events()) + "\n]}\n")


def _event_jobs(kind: EventKind, rows: pl.DataFrame, layout: Layout) -> Iterator[Callable[[], pl.Series]]:
    """Yield jobs, each of which formats a batch of events. A slice precedes the slices that are nested in it."""
    if kind.placement.nests and kind.phase == kinds.SLICE:
        rows = rows.sort(
            kind.start, events.slice_duration(kind, layout.clock), descending=[False, True], maintain_order=True
        )
    lane_texts = layout.lanes.json_members()
    for batch in rows.iter_slices(BATCH_ROWS):
        yield functools.partial(events.format_events, kind, batch, lane_texts, layout.clock)


class _ArrowFormatter:
    """Formats the arrows from API calls to the activities that they launched.

    Arrows have consecutive ids in the whole file. An activity that starts before its API call has no arrow.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._calls: pl.DataFrame | None = None
        self._count = 0

    def jobs(self, kind: EventKind, rows: pl.DataFrame) -> Iterator[Callable[[], pl.Series]]:
        """Yield jobs, each of which formats a batch of the arrows from API calls to the events of one kind.

        Args:
            kind: The kind of the events. ``kinds.API_CALLS`` must be passed before the kinds of launched activities.
            rows: The events, with their lane ids.
        """
        if kind is kinds.API_CALLS:
            self._calls = rows.select("api_call_id", call_start_ns="start_ns", call_lane_id="lane_id")
        if self._calls is None or not kind.launched or "api_call_id" not in rows.columns:
            return
        lane_texts = self._layout.lanes.json_members()
        links = rows.select("api_call_id", "start_ns", "lane_id").join(
            self._calls, "api_call_id", maintain_order="left"
        )
        for batch in links.filter(pl.col("call_start_ns") <= pl.col("start_ns")).iter_slices(BATCH_ROWS):
            yield functools.partial(events.format_arrows, batch, lane_texts, self._layout.clock, self._count + 1)
            self._count += batch.height


def _header(view: View, shift_ns: int) -> str:
    """Return the beginning of the file, which contains no private values."""
    facts = {"producer": "tracekit", "schema_version": str(schemas.SCHEMA_VERSION)}
    facts |= {name: view.info[name] for name in ("tool", "tool_version") if name in view.info}
    if "origin_utc_ns" in view.info:
        facts["origin_utc_ns"] = str(int(view.info["origin_utc_ns"]) - shift_ns)
    if shift_ns:
        facts["shift_ns"] = str(shift_ns)
    return f'{{"displayTimeUnit":"ns","otherData":{json.dumps(facts, ensure_ascii=False)},"traceEvents":[\n'
