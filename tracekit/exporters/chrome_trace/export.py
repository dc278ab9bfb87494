"""The export: stage by stage, tables are read, put on tracks and lanes, and written; then the arrows, then the names."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

import polars as pl

from tracekit import schemas
from tracekit.exporters.chrome_trace import events, kinds, lanes
from tracekit.exporters.chrome_trace.events import Clock
from tracekit.exporters.chrome_trace.file import TextFile
from tracekit.exporters.chrome_trace.tracks import Book, Machine, Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracekit.exporters.chrome_trace.kinds import Kind
    from tracekit.registry import Progress, View

CHUNK_ROWS = 1 << 16
_TIMES = ("start_ns", "end_ns", "timestamp_ns")


class _BeforeOriginError(Exception):
    """An event lies before the trace origin."""


def write(view: View, path: Path, progress: Progress) -> None:
    """Write a trace.

    Times are ns since the trace origin. If some lie before it, which viewers cannot show, all are shifted so that the
    first event is at 0. That is rare: it is seen on the way, and the file begun again.
    """
    try:
        _Export(view, path, progress, shift_ns=0).run()
    except _BeforeOriginError:
        _Export(view, path, progress, shift_ns=-_extreme(view, pl.Expr.min)).run()


class _Export:
    """One pass over the tables."""

    def __init__(self, view: View, path: Path, progress: Progress, shift_ns: int) -> None:
        self._view = view
        self._path = path
        self._progress = progress
        self._clock = Clock(shift_ns)
        self._book = Book(Machine.of(view))
        self._calls: pl.DataFrame | None = None
        self._arrows = 0
        self._done = 0
        self._total = sum(view.count(kind.table) for stage in kinds.STAGES for kind in stage)

    def run(self) -> None:
        with TextFile(self._path) as file:
            file.write(_head(self._view, self._clock.shift_ns))
            for stage in kinds.STAGES:
                self._stage(stage, file)
            file.write(",\n".join(self._book.metadata()) + "\n]}\n")

    def _stage(self, stage: tuple[Kind, ...], file: TextFile) -> None:
        tables = [self._read(kind) for kind in stage]
        places = self._place(stage, tables)
        for kind, rows, column in zip(stage, tables, places, strict=True):
            placed = rows.with_columns(column)
            file.extend(self._events(kind, placed))
            file.extend(self._links(kind, placed))
            self._done += self._view.count(kind.table)
            self._progress(self._done, self._total)

    def _read(self, kind: Kind) -> pl.DataFrame:
        """Read what a kind is drawn from; nothing if the table lacks a column for it."""
        columns = events.columns(kind, self._view.schema(kind.table).names)
        if not columns:
            return pl.DataFrame()
        frame = self._view.frame(kind.table)
        rows = (frame if kind.where is None else frame.filter(kind.where)).select(columns).collect()
        if kind.placement.nests and kind.phase == kinds.SLICE:
            rows = rows.sort(kind.start, kind.end, descending=[False, True], nulls_last=False, maintain_order=True)
        self._check_clock(kind, rows)
        return rows

    def _check_clock(self, kind: Kind, rows: pl.DataFrame) -> None:
        if rows.height and rows.select(kind.start.min()).item() + self._clock.shift_ns < 0:
            raise _BeforeOriginError
        if kind.phase == kinds.SLICE and not self._clock.end_ns and rows.select(kind.end.is_null().any()).item():
            self._clock = self._clock._replace(end_ns=_extreme(self._view, pl.Expr.max))

    def _place(self, stage: tuple[Kind, ...], tables: list[pl.DataFrame]) -> list[pl.Series]:
        """Give every row of the tables of a stage its place: n rows of a table in, n numbers out."""
        drawn = [(kind, rows) for kind, rows in zip(stage, tables, strict=True) if rows.height]
        ends = pl.Series([0, *(rows.height for rows in tables)]).cum_sum()
        if not drawn:
            return [pl.Series("place", [], pl.Int32)] * len(tables)
        spans = pl.concat([self._spans(kind, rows) for kind, rows in drawn], rechunk=False)
        places = place(spans, stage[0].placement, self._book).alias("place")
        return [places.slice(at, rows.height) for at, rows in zip(ends, tables, strict=False)]

    def _spans(self, kind: Kind, rows: pl.DataFrame) -> pl.DataFrame:
        keys = kind.placement.keys
        if kind.phase != kinds.SLICE:
            return rows.select(*keys, start=kind.start, end=kind.start)
        length = events.duration(kind, self._clock).clip(lower_bound=1)
        return rows.select(*keys, start=kind.start, end=kind.start + length)

    def _events(self, kind: Kind, rows: pl.DataFrame) -> Iterator[Callable[[], pl.Series]]:
        places = self._book.texts()
        for chunk in rows.iter_slices(CHUNK_ROWS):
            yield functools.partial(events.render, kind, chunk, places, self._clock)

    def _links(self, kind: Kind, rows: pl.DataFrame) -> Iterator[Callable[[], pl.Series]]:
        """Remember the calls; give the arrows from them to what they launched, as none can point back in time."""
        if kind.launches and rows.height:
            self._calls = rows.select("api_call_id", call_start_ns="start_ns", call_place="place")
        if not kind.launched or self._calls is None or "api_call_id" not in rows.columns:
            return
        both = rows.select("api_call_id", "start_ns", "place").join(self._calls, "api_call_id", maintain_order="left")
        places = self._book.texts()
        for chunk in both.filter(pl.col("start_ns") >= pl.col("call_start_ns")).iter_slices(CHUNK_ROWS):
            yield functools.partial(events.arrows, chunk, places, self._clock, self._arrows + 1)
            self._arrows += chunk.height


def place(spans: pl.DataFrame, placement: Placement, book: Book) -> pl.Series:
    """Put events on tracks and, where they overlap, on lanes: n rows in, n places of the book out.

    Args:
        spans: The keys of the placement, ``start``, ``end``; no row is empty, unless all are moments.
        placement: How tracks are told apart.
        book: Numbers the places.
    """
    crowded = lanes.crowded(pl.col("start"), pl.col("end"))
    grouped = spans.with_row_index("row").group_by(placement.keys).agg("row", crowded=crowded)
    tracks = grouped.with_columns(pl.col(pl.Categorical).cast(pl.String)).sort(placement.keys)
    numbers = []
    for *keys, overlaps in tracks.drop("row").iter_rows():
        track = placement.track(book.machine, *keys)
        rows = tracks["row"][len(numbers)]
        if overlaps:
            lane = lanes.assign(spans["start"].gather(rows), spans["end"].gather(rows), nests=placement.nests)
            known = pl.Series([book.place(track, n) for n in range(lane.max() + 1)], dtype=pl.Int32)
            numbers.append(known.gather(lane))
        else:
            numbers.append(pl.repeat(book.place(track), len(rows), dtype=pl.Int32, eager=True))
    return pl.zeros(spans.height, pl.Int32, eager=True).scatter(tracks["row"].explode(), pl.concat(numbers))


def _head(view: View, shift_ns: int) -> str:
    """Write the beginning of the file: of the capture only what tells nothing of people and machines."""
    facts = {"producer": "tracekit", "schema_version": str(schemas.SCHEMA_VERSION)}
    facts |= {name: view.info[name] for name in ("tool", "tool_version") if name in view.info}
    if "origin_utc_ns" in view.info:
        facts["origin_utc_ns"] = str(int(view.info["origin_utc_ns"]) - shift_ns)
    if shift_ns:
        facts["shift_ns"] = str(shift_ns)
    return f'{{"displayTimeUnit":"ns","otherData":{json.dumps(facts)},"traceEvents":[\n'


def _extreme(view: View, least_or_greatest: Callable[[pl.Expr], pl.Expr]) -> int:
    """Return the first or the last time of all that is drawn."""
    found = []
    for name in {kind.table for stage in kinds.STAGES for kind in stage}:
        times = [c for c in view.schema(name).names if c in _TIMES]
        found += view.frame(name).select(least_or_greatest(pl.col(times))).collect().row(0)
    return int(pl.DataFrame({"time": found}).select(least_or_greatest(pl.col("time"))).item())
