"""The layout: which track and lane each event lies on; known for all of them before the first one is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit import schemas
from tracekit.exporters.chrome_trace import events, kinds, lanes
from tracekit.exporters.chrome_trace.events import Clock
from tracekit.exporters.chrome_trace.tracks import Book, Machine

if TYPE_CHECKING:
    from tracekit.exporters.chrome_trace.kinds import Kind
    from tracekit.exporters.chrome_trace.tracks import Placement
    from tracekit.registry import View

_MAX_SPAN = 1 << 30
_MAX_NUMBER = 1 << 62
_TIMES = ("start_ns", "end_ns", "timestamp_ns")


class Layout(NamedTuple):
    """Where everything lies.

    Attributes:
        book: The tracks and lanes.
        places: Place of each row that is drawn, by kind, in the order of ``read``.
        clock: How times are to be written.
    """

    book: Book
    places: dict[Kind, pl.Series]
    clock: Clock


def lay_out(view: View) -> Layout:
    """Put every event of a trace on a track and a lane."""
    view.prefetch(_columns_by_table(view))
    book = Book(Machine.of(view))
    places: dict[Kind, pl.Series] = {}
    first, clock = 0, Clock()
    for stage in kinds.STAGES:
        tables = {kind: rows for kind in stage if (rows := _outline(view, kind)).height}
        for kind, rows in tables.items():
            first = min(first, rows.select(kind.start.min()).item())
            if not clock.end_ns and kind.phase == kinds.SLICE and rows.select(kind.end.is_null().any()).item():
                clock = Clock(end_ns=_last_moment(view))
        places |= _place_stage(tables, book, clock)
    return Layout(book, places, clock._replace(shift_ns=-first))


def read(view: View, kind: Kind) -> pl.DataFrame:
    """Read what a kind is drawn from: no rows if its table lacks a column for it."""
    columns = _columns(view, kind)
    if not columns:
        return pl.DataFrame()
    frame = view.frame(kind.table)
    return (frame if kind.where is None else frame.filter(kind.where)).select(columns).collect()


def _columns(view: View, kind: Kind) -> list[str]:
    schema = schemas.table(kind.table) if kind.launched and not view.count("api_calls") else view.schema(kind.table)
    return events.columns(kind, schema.names)


def _columns_by_table(view: View) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for kind in (kind for stage in kinds.STAGES for kind in stage):
        found.setdefault(kind.table, []).extend(_columns(view, kind))
    return found


def _outline(view: View, kind: Kind) -> pl.DataFrame:
    """Read what a kind is placed by; all that it is drawn from is read along, for a trace keeps what it read."""
    rows = read(view, kind)
    return rows.select(events.vital(kind)) if rows.width else rows


def place(spans: pl.DataFrame, placement: Placement, book: Book) -> pl.Series:
    """Put events on tracks and, where they overlap, on lanes: n rows in, n places of the book out.

    Args:
        spans: The keys of the placement, ``start``, ``end``.
        placement: How tracks are told apart.
        book: Numbers the places.
    """
    numbered = pl.DataFrame({"track": _numbers(spans.select(placement.keys))}).with_row_index("row")
    grouped = numbered.group_by("track").agg("row", first=pl.col("row").first())
    keys = spans.select(pl.col(placement.keys).gather(grouped["first"])).with_columns(grouped["row"])
    tracks = keys.with_columns(pl.col(pl.Categorical).cast(pl.String)).sort(placement.keys)
    placed = pl.zeros(spans.height, pl.Int32, eager=True)
    for rows, key in zip(tracks["row"], tracks.select(placement.keys).iter_rows(), strict=True):
        track = placement.track(book.machine, *key)
        lane = _lanes(spans.select(pl.col("start", "end").gather(rows)), placement)
        here = pl.Series(book.places(track, lane.n_unique() if lane.len() else 1), dtype=pl.Int32)
        placed = placed.scatter(rows, here.gather(lane) if lane.len() else here.new_from_index(0, len(rows)))
    return placed


def _lanes(slices: pl.DataFrame, placement: Placement) -> pl.Series:
    """Spread the slices of a track that overlap: n slices in, n lanes out; none if one lane is enough."""
    if not slices.select(lanes.crowded(pl.col("start"), pl.col("end"))).item():
        return pl.Series([], dtype=pl.UInt32)
    return lanes.assign(slices["start"], slices["end"], nests=placement.nests)


def _numbers(keys: pl.DataFrame) -> pl.Series:
    """Number the combinations of some columns: n rows in, n numbers out; numbers take less room than the keys."""
    numbers, room = pl.zeros(keys.height, pl.Int32, eager=True), 1
    for key in keys.iter_columns():
        values, low, count = _small(key.to_physical())
        if room * count > _MAX_NUMBER:
            numbers, room = _dense(numbers), numbers.n_unique()
        room *= count
        dtype = pl.Int32 if room < _MAX_SPAN else pl.Int64
        column, so_far = pl.col("key").cast(dtype), pl.col("number").cast(dtype)
        both = pl.DataFrame({"key": values, "number": numbers})
        numbers = both.select(so_far * count + (column - low).fill_null(count - 1)).to_series()
    return numbers


def _small(values: pl.Series) -> tuple[pl.Series, int, int]:
    """Return integers that tell the values apart, the least of them, and how many there may be, null included."""
    if not values.dtype.is_integer():
        return _small(_dense(values))
    low, high = (
        values.to_frame("key").select(pl.col("key").min().alias("low"), pl.col("key").max().alias("high")).row(0)
    )
    if low is None:
        return values, 0, 1
    if not -_MAX_SPAN < low <= high < _MAX_SPAN:
        return _small(_dense(values))
    return values, low, high - low + 2


def _dense(values: pl.Series) -> pl.Series:
    distinct = values.drop_nulls().unique()
    return values.replace_strict(distinct, pl.int_range(len(distinct), eager=True), default=None, return_dtype=pl.Int64)


def _place_stage(tables: dict[Kind, pl.DataFrame], book: Book, clock: Clock) -> dict[Kind, pl.Series]:
    """Place the tables of a stage, which share their tracks."""
    if not tables:
        return {}
    spans = pl.concat([_spans(kind, rows, clock) for kind, rows in tables.items()], rechunk=False)
    placed = place(spans, next(iter(tables)).placement, book).alias("place")
    places, at = {}, 0
    for kind, rows in tables.items():
        places[kind] = placed.slice(at, rows.height)
        at += rows.height
    return places


def _spans(kind: Kind, rows: pl.DataFrame, clock: Clock) -> pl.DataFrame:
    keys = kind.placement.keys
    if kind.phase != kinds.SLICE:
        return rows.select(*keys, start=kind.start, end=kind.start)
    return rows.select(*keys, start=kind.start, end=kind.end.fill_null(clock.end_ns))


def _last_moment(view: View) -> int:
    """Return the latest time of all that is drawn, in ns."""
    found: list[int | None] = []
    for name in sorted({kind.table for stage in kinds.STAGES for kind in stage}):
        times = [pl.col(c).max() for c in view.schema(name).names if c in _TIMES]
        found += view.frame(name).select(times).collect().row(0)
    return max(t for t in found if t is not None)
