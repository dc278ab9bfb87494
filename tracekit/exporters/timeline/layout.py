"""Assign every event to a track and a lane before the first event is written."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit import memory, schemas
from tracekit.errors import ExportError
from tracekit.exporters.timeline import columns, kinds, lanes
from tracekit.exporters.timeline.columns import Clock
from tracekit.exporters.timeline.tracks import LaneRegistry, TrackNames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.exporters.timeline.tracks import Placement
    from tracekit.interface import View

    Stages = Sequence[Sequence[EventKind]]

_MAX_INT32_RANGE = 1 << 30
_MAX_CODE = 1 << 62
_TIMES = ("start_ns", "end_ns", "timestamp_ns")
_TIMELESS = {
    "ncu_launches": "Nsight Compute results have durations, but no timestamps",
    "graph_nodes": "the nodes of a graph have no timestamps",
}


class Layout(NamedTuple):
    """The assignment of all events to lanes, and the conversion of times.

    Attributes:
        lanes: The lanes of all tracks.
        lane_ids: Lane id of each event in the order of ``read_events``, by kind.
        clock: The conversion of times of the capture to times in the file.
    """

    lanes: LaneRegistry
    lane_ids: dict[EventKind, pl.Series]
    clock: Clock


def compute_layout(view: View, stages: Stages) -> Layout:
    """Assign the events of some kinds to tracks and lanes.

    Args:
        view: The trace.
        stages: The kinds of events, grouped into stages. The kinds of a stage share tracks.
    """
    view.prefetch(_columns_by_table(view, stages))
    registry = LaneRegistry(TrackNames.from_view(view))
    lane_ids: dict[EventKind, pl.Series] = {}
    first, clock = 0, Clock()
    for stage in stages:
        tables = {kind: rows for kind in stage if (rows := _read_positions(view, kind)).height}
        for kind, rows in tables.items():
            first = min(first, rows.select(kind.start.min()).item())
            if not clock.end_ns and kind.phase == kinds.SLICE and rows.select(kind.end.is_null().any()).item():
                clock = Clock(end_ns=_last_time(view, stages))
        lane_ids |= _assign_lanes_of_stage(tables, registry, clock)
        memory.release_pages()
    return Layout(registry, lane_ids, clock._replace(shift_ns=-first))


def check_drawable(view: View, layout: Layout) -> None:
    """Raise an error if a trace has nothing to draw because its data never has timestamps.

    Raises:
        ExportError: The trace has no events with timestamps, such as a graph or Nsight Compute results.
    """
    reasons = [reason for name, reason in _TIMELESS.items() if not layout.lane_ids and view.count(name)]
    if reasons:
        raise ExportError(
            f"there is nothing to draw: {reasons[0]}", hint="to export tables, use --to csv, --to parquet or --to arrow"
        )


def read_events(view: View, kind: EventKind) -> pl.DataFrame:
    """Read the columns that are used to draw the events of a kind. Return no rows if a required column is missing."""
    frame = _scan_events(view, kind)
    return pl.DataFrame() if frame is None else frame.collect()


def with_lane_ids(rows: pl.DataFrame, lane_ids: pl.Series) -> pl.DataFrame:
    """Add the column ``lane_id``, with chunks of the same sizes as those of the rows.

    Otherwise, polars would copy all columns when it computes expressions.
    """
    sizes = next(rows.iter_columns()).chunk_lengths()
    starts = itertools.accumulate(sizes, initial=0)
    chunks = [lane_ids.slice(start, size) for start, size in zip(starts, sizes, strict=False)]
    return rows.with_columns(pl.concat(chunks, rechunk=False))


def _scan_events(view: View, kind: EventKind) -> pl.LazyFrame | None:
    """Return the columns that are used to draw the events of a kind, or None if a required column is missing."""
    names = _columns_of_kind(view, kind)
    if not names:
        return None
    frame = view.frame(kind.table)
    if kind.where is None or frame.select(kind.where.fill_null(value=False).all()).collect().item():
        return frame.select(names)  # Filtering would copy all columns.
    return frame.filter(kind.where).select(names)


def _columns_of_kind(view: View, kind: EventKind) -> list[str]:
    """Return the names of the columns that are used to draw the events of a kind.

    Columns that correlation adds are excluded if the trace has no API calls.
    """
    schema = schemas.table(kind.table) if kind.launched and not view.count("api_calls") else view.schema(kind.table)
    return columns.event_columns(kind, schema.names)


def _columns_by_table(view: View, stages: Stages) -> dict[str, list[str]]:
    """Return the names of the columns that are used to draw the given kinds of events, by table."""
    by_table: dict[str, list[str]] = {}
    for kind in (kind for stage in stages for kind in stage):
        by_table.setdefault(kind.table, []).extend(_columns_of_kind(view, kind))
    return by_table


def _read_positions(view: View, kind: EventKind) -> pl.DataFrame:
    """Read only the columns that determine the tracks and times of the events of a kind."""
    frame = _scan_events(view, kind)
    return pl.DataFrame() if frame is None else frame.select(columns.position_columns(kind)).collect()


def assign_lane_ids(intervals: pl.DataFrame, placement: Placement, registry: LaneRegistry) -> pl.Series:
    """Assign events to tracks and overlapping events to lanes, and return the lane id of each event.

    Args:
        intervals: The keys of the placement, and the columns ``start`` and ``end``, of each event.
        placement: The tracks of the events.
        registry: The registry that numbers lanes.
    """
    numbered = pl.DataFrame({"track": _combination_codes(intervals.select(placement.keys))}).with_row_index("row")
    grouped = numbered.group_by("track").agg("row", first=pl.col("row").first())
    keys = intervals.select(pl.col(placement.keys).gather(grouped["first"])).with_columns(grouped["row"])
    tracks = keys.with_columns(pl.col(pl.Categorical).cast(pl.String)).sort(placement.keys)
    lane_ids = pl.zeros(intervals.height, pl.Int32, eager=True)
    for rows, key in zip(tracks["row"], tracks.select(placement.keys).iter_rows(), strict=True):
        track = placement.make_track(registry.names, *key)
        lane = _lanes_of_track(intervals.select(pl.col("start", "end").gather(rows)), placement)
        ids = pl.Series(registry.lane_ids(track, lane.n_unique() if lane.len() else 1), dtype=pl.Int32)
        lane_ids = lane_ids.scatter(rows, ids.gather(lane) if lane.len() else ids.new_from_index(0, len(rows)))
        memory.release_pages()
    return lane_ids


def _lanes_of_track(slices: pl.DataFrame, placement: Placement) -> pl.Series:
    """Return the lane number of each slice of a track, or an empty series if all slices fit on one lane."""
    if not slices.select(lanes.may_overlap_expr(pl.col("start"), pl.col("end"))).item():
        return pl.Series([], dtype=pl.UInt32)
    if placement.nests and lanes.is_nested(slices["start"], slices["end"]):
        return pl.Series([], dtype=pl.UInt32)
    return lanes.assign_lanes(slices["start"], slices["end"], nests=placement.nests)


def _combination_codes(keys: pl.DataFrame) -> pl.Series:
    """Return an integer code for the combination of values in each row. Codes take less memory than the values."""
    codes, size = pl.zeros(keys.height, pl.Int32, eager=True), 1
    for key in keys.iter_columns():
        values, low, count = _integer_codes(key.to_physical())
        if size * count > _MAX_CODE:
            codes, size = _dictionary_codes(codes), codes.n_unique()
        size *= count
        dtype = pl.Int32 if size < _MAX_INT32_RANGE else pl.Int64
        column, previous = pl.col("key").cast(dtype), pl.col("code").cast(dtype)
        both = pl.DataFrame({"key": values, "code": codes})
        codes = both.select(previous * count + (column - low).fill_null(count - 1)).to_series()
    return codes


def _integer_codes(values: pl.Series) -> tuple[pl.Series, int, int]:
    """Return an integer for each value, the smallest integer, and the size of the range of integers including null."""
    if not values.dtype.is_integer():
        return _integer_codes(_dictionary_codes(values))
    low, high = (
        values.to_frame("key").select(pl.col("key").min().alias("low"), pl.col("key").max().alias("high")).row(0)
    )
    if low is None:
        return values, 0, 1
    if not -_MAX_INT32_RANGE < low <= high < _MAX_INT32_RANGE:
        return _integer_codes(_dictionary_codes(values))
    return values, low, high - low + 2


def _dictionary_codes(values: pl.Series) -> pl.Series:
    """Return a number for each value. Distinct values are numbered from 0, and null remains null."""
    distinct = values.drop_nulls().unique()
    return values.replace_strict(distinct, pl.int_range(len(distinct), eager=True), default=None, return_dtype=pl.Int64)


def _assign_lanes_of_stage(
    tables: dict[EventKind, pl.DataFrame], registry: LaneRegistry, clock: Clock
) -> dict[EventKind, pl.Series]:
    """Assign the events of the kinds of a stage, which share tracks, to lanes. Return the lane ids by kind."""
    if not tables:
        return {}
    intervals = pl.concat([_event_intervals(kind, rows, clock) for kind, rows in tables.items()], rechunk=False)
    stage_ids = assign_lane_ids(intervals, next(iter(tables)).placement, registry).alias("lane_id")
    lane_ids, offset = {}, 0
    for kind, rows in tables.items():
        lane_ids[kind] = stage_ids.slice(offset, rows.height)
        offset += rows.height
    return lane_ids


def _event_intervals(kind: EventKind, rows: pl.DataFrame, clock: Clock) -> pl.DataFrame:
    """Return the track keys, start and end of each event. Events that were never closed end with the capture."""
    keys = kind.placement.keys
    if kind.phase != kinds.SLICE:
        return rows.select(*keys, start=kind.start, end=kind.start)
    return rows.select(*keys, start=kind.start, end=kind.end.fill_null(clock.end_ns))


def _last_time(view: View, stages: Stages) -> int:
    """Return the latest time in all tables that are drawn, in ns."""
    latest: list[int | None] = []
    for name in sorted({kind.table for stage in stages for kind in stage}):
        times = [pl.col(c).max() for c in view.schema(name).names if c in _TIMES]
        latest += view.frame(name).select(times).collect().row(0)
    return max(t for t in latest if t is not None)
