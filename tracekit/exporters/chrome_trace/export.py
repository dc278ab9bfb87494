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
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from tracekit.exporters.chrome_trace.kinds import EventKind
    from tracekit.exporters.chrome_trace.layout import Layout
    from tracekit.interface import Progress, View

BATCH_ROWS = 1 << 14
_TIMELESS = {
    "ncu_launches": "Nsight Compute results have durations, but no timestamps",
    "graph_nodes": "the nodes of a graph have no timestamps",
}


def write(view: View, path: Path, progress: Progress, tracks: Collection[str]) -> None:
    """Write the events of a trace on some tracks to a Chrome trace file.

    Times are relative to the trace origin. If an event starts before the origin, all times are shifted so that the
    first event starts at 0, because viewers cannot show negative times.

    Raises:
        ExportError: The trace has no events with timestamps, such as a graph or Nsight Compute results.
    """
    layout = compute_layout(view, kinds.stages_of(tracks))
    reasons = [reason for name, reason in _TIMELESS.items() if not layout.lane_ids and view.count(name)]
    if reasons:
        raise ExportError(f"nothing to draw: {reasons[0]}", hint="export tables: --to csv, parquet or arrow")
    total = sum(map(len, layout.lane_ids.values()))
    done = 0
    with TextFile(path) as file:
        file.write(header(_facts(view, layout.clock.shift_ns)))
        for _, rows in write_events(file, view, layout, ArrowFormatter(layout)):
            done += rows.height
            progress(done, total)
        file.write(",\n".join(layout.lanes.metadata_events()) + "\n]}\n")


def write_events(
    file: TextFile, view: View, layout: Layout, arrows: ArrowFormatter
) -> Iterator[tuple[EventKind, pl.DataFrame]]:
    """Write the events and arrows of a trace, and yield the events of each kind with their lane ids."""
    for kind, lane_ids in layout.lane_ids.items():
        rows = read_events(view, kind).with_columns(lane_ids)
        file.write_jobs(_event_jobs(kind, rows, layout))
        file.write_jobs(arrows.jobs(kind, rows))
        yield kind, rows


def _event_jobs(kind: EventKind, rows: pl.DataFrame, layout: Layout) -> Iterator[Callable[[], pl.Series]]:
    """Yield jobs, each of which formats a batch of events. A slice precedes the slices that are nested in it."""
    if kind.placement.nests and kind.phase == kinds.SLICE:
        rows = rows.sort(
            kind.start, events.slice_duration(kind, layout.clock), descending=[False, True], maintain_order=True
        )
    lane_texts = layout.lanes.json_members()
    for batch in rows.iter_slices(BATCH_ROWS):
        yield functools.partial(events.format_events, kind, batch, lane_texts, layout.clock)


class ArrowFormatter:
    """Formats the arrows from API calls to the activities that they launched, and between MPI calls.

    Arrows have consecutive ids in the whole file. An event that ends before the arrow begins has no arrow.

    Attributes:
        count: Number of arrows in the file so far.
    """

    def __init__(self, layout: Layout, count: int = 0) -> None:
        self._layout = layout
        self._calls: pl.DataFrame | None = None
        self.count = count

    def jobs(self, kind: EventKind, rows: pl.DataFrame) -> Iterator[Callable[[], pl.Series]]:
        """Yield jobs, each of which formats a batch of the arrows to the events of one kind.

        Args:
            kind: The kind of the events. ``kinds.API_CALLS`` must be passed before the kinds of launched activities.
            rows: The events, with their lane ids.
        """
        if kind is kinds.API_CALLS:
            self._calls = rows.select("api_call_id", from_ns="start_ns", from_lane_id="lane_id")
        if self._calls is not None and kind.launched and "api_call_id" in rows.columns:
            activities = rows.select("api_call_id", to_ns="start_ns", to_lane_id="lane_id")
            yield from self._format(activities.join(self._calls, "api_call_id", maintain_order="left"), "launch")
        if kind is kinds.MPI_CALLS and set(kind.links) <= set(rows.columns):
            yield from self._format(_messages(rows), "message")
            yield from self._format(_collectives(rows), "collective")

    def _format(self, links: pl.DataFrame, name: str) -> Iterator[Callable[[], pl.Series]]:
        lane_texts, clock = self._layout.lanes.json_members(), self._layout.clock
        for batch in links.filter(pl.col("from_ns") <= pl.col("to_ns")).iter_slices(BATCH_ROWS):
            yield functools.partial(events.format_arrows, batch, lane_texts, clock, self.count + 1, name)
            self.count += batch.height


def _messages(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the arrows from the calls that send messages to the ends of the calls that receive them."""
    sent = rows.select(sender_call_id="mpi_call_id", from_ns="start_ns", from_lane_id="lane_id")
    last = pl.max_horizontal("start_ns", pl.col("end_ns").fill_null(pl.col("start_ns")) - 1)
    received = rows.drop_nulls("sender_call_id").select("sender_call_id", to_ns=last, to_lane_id="lane_id")
    return received.join(sent, "sender_call_id", maintain_order="left")


def _collectives(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the arrows from each call of a collective operation to the next one, in another process."""
    calls = rows.drop_nulls("collective_id").sort("start_ns", "mpi_call_id")
    before = [pl.col(c).shift(1).over("collective_id") for c in ("start_ns", "lane_id")]
    from_ns, from_lane_id = before
    arrows = calls.select(to_ns="start_ns", to_lane_id="lane_id", from_ns=from_ns, from_lane_id=from_lane_id)
    return arrows.drop_nulls()


def _facts(view: View, shift_ns: int) -> dict[str, str]:
    """Return the facts about a trace that the file contains. None of them is private."""
    facts = {name: view.info[name] for name in ("tool", "tool_version") if name in view.info}
    if "origin_utc_ns" in view.info:
        facts["origin_utc_ns"] = str(int(view.info["origin_utc_ns"]) - shift_ns)
    if shift_ns:
        facts["shift_ns"] = str(shift_ns)
    return facts


def header(facts: Mapping[str, str]) -> str:
    """Return the beginning of the file, with facts about it."""
    facts = {"producer": "tracekit", "schema_version": str(schemas.SCHEMA_VERSION), **facts}
    return f'{{"displayTimeUnit":"ns","otherData":{json.dumps(facts, ensure_ascii=False)},"traceEvents":[\n'
