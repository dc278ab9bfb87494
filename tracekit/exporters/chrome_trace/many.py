"""Write several traces to one Chrome trace file, on one clock and with arrows between them.

One trace is open at a time. Times in the file begin at the earliest origin. If an event is earlier than that, which is
only known when its trace is laid out, writing starts again with later times, because viewers cannot show negative ones.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import polars as pl

from tracekit.errors import ExportError
from tracekit.exporters.chrome_trace import events, kinds
from tracekit.exporters.chrome_trace.events import Clock
from tracekit.exporters.chrome_trace.export import BATCH_ROWS, ArrowFormatter, header, write_events
from tracekit.exporters.chrome_trace.file import TextFile
from tracekit.exporters.chrome_trace.layout import compute_layout
from tracekit.exporters.chrome_trace.tracks import Numbering

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from tracekit.exporters.chrome_trace.kinds import EventKind
    from tracekit.exporters.chrome_trace.layout import Layout
    from tracekit.interface import ManyTraces, Part, Progress, View

_ENDS = ("from", "to")
_POSITION: dict[str, type[pl.DataType]] = {"part": pl.Int64, "table": pl.String, "id": pl.Int64, "lane": pl.String}
"""Columns of the positions of events at which arrows begin or end."""


class _EarlierEventError(Exception):
    """An event is earlier than time 0 of the file. The argument is by how many ns."""


def write(traces: ManyTraces, path: Path, progress: Progress, tracks: Collection[str]) -> None:
    """Write the events of several traces on some tracks to a Chrome trace file.

    Raises:
        ExportError: The traces have no events with timestamps.
    """
    shift = -min((part.offset_ns for part in traces.parts), default=0)
    while True:
        try:
            _write(traces, path, progress, tracks, shift)
        except _EarlierEventError as e:
            shift += e.args[0]
        else:
            return


def _write(traces: ManyTraces, path: Path, progress: Progress, tracks: Collection[str], shift: int) -> None:
    """Write the file with times that are shifted by ``shift`` ns on the shared clock."""
    numbering, arrows = Numbering(), 0
    metadata: list[str] = []
    positions = [pl.DataFrame(schema=_POSITION)]
    with TextFile(path) as file:
        file.write(header(_facts(traces, shift)))
        for number, part in enumerate(traces.parts):
            with part.open() as view:
                layout = _layout(view, part, tracks, shift)
                layout.lanes.add_to_file(f"{part.name} · ", numbering)
                formatter = ArrowFormatter(layout, arrows)
                for kind, rows in write_events(file, view, layout, formatter):
                    positions += _positions(traces.links, number, kind, rows, layout)
            metadata += layout.lanes.metadata_events()
            arrows = formatter.count
            progress(number + 1, len(traces.parts))
        if not numbering.lanes:
            raise ExportError("nothing to draw: the traces have no events with timestamps")
        file.write_jobs(_arrow_jobs(traces.links, pl.concat(positions), Clock(shift), arrows))
        file.write(",\n".join(metadata) + "\n]}\n")


def _facts(traces: ManyTraces, shift: int) -> dict[str, str]:
    """Return the facts about the file."""
    origin = {} if traces.origin_utc_ns is None else {"origin_utc_ns": str(traces.origin_utc_ns - shift)}
    return {**origin, **traces.facts}


def _layout(view: View, part: Part, tracks: Collection[str], shift: int) -> Layout:
    """Lay out the events of a trace on the shared clock.

    Raises:
        _EarlierEventError: The trace has an event before time 0 of the file.
    """
    layout = compute_layout(view, kinds.stages_of(tracks))
    clock = Clock(shift + part.offset_ns, layout.clock.end_ns, part.drift)
    first = pl.select(clock.convert(pl.lit(-layout.clock.shift_ns, pl.Int64))).item()
    if first < 0:
        raise _EarlierEventError(-first)
    return layout._replace(clock=clock)


def _positions(
    links: pl.DataFrame, part: int, kind: EventKind, rows: pl.DataFrame, layout: Layout
) -> Iterator[pl.DataFrame]:
    """Yield the lanes of the events of one kind at which arrows between traces begin or end."""
    is_kind = {e: (pl.col(f"{e}_part") == part) & (pl.col(f"{e}_table") == kind.table) for e in _ENDS}
    ends = [links.filter(is_kind[e])[f"{e}_id"] for e in _ENDS]
    linked = pl.concat(ends).unique()
    if not len(linked):
        return
    chosen = rows.select(id=pl.col(kind.key), lane_id="lane_id").filter(pl.col("id").is_in(linked.implode()))
    lane = pl.lit(layout.lanes.json_members()).gather("lane_id")
    yield chosen.select(pl.lit(part, pl.Int64).alias("part"), pl.lit(kind.table).alias("table"), "id", lane=lane)


def _arrow_jobs(
    links: pl.DataFrame, positions: pl.DataFrame, clock: Clock, arrows: int
) -> Iterator[Callable[[], pl.Series]]:
    """Yield jobs, each of which formats a batch of the arrows whose events are drawn."""
    lanes = positions["lane"].unique(maintain_order=True).to_frame("lane").with_row_index("lane_id")
    placed = positions.join(lanes, on="lane").drop("lane")
    for end in _ENDS:
        named = placed.rename({c: f"{end}_{c}" for c in placed.columns})
        links = links.join(named, on=[f"{end}_{c}" for c in ("part", "table", "id")], maintain_order="left")
    for (name,), group in links.filter(pl.col("from_ns") <= pl.col("to_ns")).group_by("name", maintain_order=True):
        for batch in group.iter_slices(BATCH_ROWS):
            yield functools.partial(events.format_arrows, batch, lanes["lane"], clock, arrows + 1, str(name))
            arrows += batch.height
