"""The export: all is laid out, then written kind by kind: events, arrows to what was launched, names of tracks."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

import polars as pl

from tracekit import schemas
from tracekit.errors import ExportError
from tracekit.exporters.chrome_trace import events, kinds
from tracekit.exporters.chrome_trace.file import TextFile
from tracekit.exporters.chrome_trace.layout import lay_out, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracekit.exporters.chrome_trace.kinds import Kind
    from tracekit.exporters.chrome_trace.layout import Layout
    from tracekit.registry import Progress, View

CHUNK_ROWS = 1 << 14
_TIMELESS = {
    "ncu_launches": "results of Nsight Compute have durations, but no place in time",
    "graph_nodes": "the nodes of a graph have no place in time",
}


def write(view: View, path: Path, progress: Progress) -> None:
    """Write a trace.

    Times are ns since the trace origin; if some lie before it, which viewers cannot show, all are shifted so that the
    first event is at 0.

    Raises:
        ExportError: It is a trace of Nsight Compute, or a graph.
    """
    layout = lay_out(view)
    timeless = [said for name, said in _TIMELESS.items() if not layout.places and view.count(name)]
    if timeless:
        raise ExportError(f"nothing to draw: {timeless[0]}", hint="export tables: --to csv, parquet or arrow")
    total = sum(map(len, layout.places.values()))
    done = 0
    arrows = _Arrows(layout)
    with TextFile(path) as file:
        file.write(_head(view, layout.clock.shift_ns))
        for kind, places in layout.places.items():
            rows = read(view, kind).with_columns(places)
            file.extend(_events(kind, rows, layout))
            file.extend(arrows.to(kind, rows))
            done += rows.height
            progress(done, total)
        file.write(",\n".join(layout.book.metadata()) + "\n]}\n")


def _events(kind: Kind, rows: pl.DataFrame, layout: Layout) -> Iterator[Callable[[], pl.Series]]:
    """Give the jobs that make the text of the events; a slice comes before those within it."""
    if kind.placement.nests and kind.phase == kinds.SLICE:
        rows = rows.sort(kind.start, events.duration(kind, layout.clock), descending=[False, True], maintain_order=True)
    texts = layout.book.texts()
    for chunk in rows.iter_slices(CHUNK_ROWS):
        yield functools.partial(events.render, kind, chunk, texts, layout.clock)


class _Arrows:
    """Arrows from API calls to what they launched. They are numbered, and none points back in time."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._calls: pl.DataFrame | None = None
        self._count = 0

    def to(self, kind: Kind, rows: pl.DataFrame) -> Iterator[Callable[[], pl.Series]]:
        """Remember calls; give the jobs that make the text of the arrows to what calls launched."""
        if kind is kinds.API_CALLS:
            self._calls = rows.select("api_call_id", call_start_ns="start_ns", call_place="place")
        if self._calls is None or not kind.launched or "api_call_id" not in rows.columns:
            return
        texts = self._layout.book.texts()
        links = rows.select("api_call_id", "start_ns", "place").join(self._calls, "api_call_id", maintain_order="left")
        for chunk in links.filter(pl.col("call_start_ns") <= pl.col("start_ns")).iter_slices(CHUNK_ROWS):
            yield functools.partial(events.arrows, chunk, texts, self._layout.clock, self._count + 1)
            self._count += chunk.height


def _head(view: View, shift_ns: int) -> str:
    """Write the beginning of the file: of the capture only what tells nothing of people and machines."""
    facts = {"producer": "tracekit", "schema_version": str(schemas.SCHEMA_VERSION)}
    facts |= {name: view.info[name] for name in ("tool", "tool_version") if name in view.info}
    if "origin_utc_ns" in view.info:
        facts["origin_utc_ns"] = str(int(view.info["origin_utc_ns"]) - shift_ns)
    if shift_ns:
        facts["shift_ns"] = str(shift_ns)
    return f'{{"displayTimeUnit":"ns","otherData":{json.dumps(facts, ensure_ascii=False)},"traceEvents":[\n'
