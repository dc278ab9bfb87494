"""Assign every event to a track and a lane before the first event is written."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit import schemas
from tracekit.errors import ExportError
from tracekit.exporters.timeline import columns, kinds, lanes
from tracekit.exporters.timeline.blocks import JoinedRows, TableRows, iterate_frames
from tracekit.exporters.timeline.columns import Clock
from tracekit.exporters.timeline.combinations import find_distinct_combinations
from tracekit.exporters.timeline.tracks import LaneRegistry, TrackNames
from tracekit.registry.tables import count_rows, prefetch, read_chunks, scan_table
from tracekit.system import memory
from tracekit.system.sorting import create_series, group_row_numbers, iterate_row_blocks, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.exporters.timeline.blocks import Rows
    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.exporters.timeline.tracks import Placement, Track
    from tracekit.registry.tables import Tables
    from tracekit.system.sorting import Array

    Stages = Sequence[Sequence[EventKind]]

_TIMES = ("start_ns", "end_ns", "timestamp_ns")
_TIMELESS = {
    "ncu_launches": "Nsight Compute results have durations, but no timestamps",
    "graph_nodes": "the nodes of a graph have no timestamps",
}


class Layout(NamedTuple):
    """The assignment of all events to lanes, and the conversion of their times.

    Attributes:
        lanes: The lanes of all tracks.
        lane_ids: Lane ids of the events of each kind, in the order of ``read_events``.
        clock: The conversion of times in the capture to times in the file.
    """

    lanes: LaneRegistry
    lane_ids: dict[EventKind, pl.Series]
    clock: Clock


def compute_layout(tables: Tables, stages: Stages) -> Layout:
    """Assign the events of the given kinds to tracks and lanes.

    Args:
        tables: The tables of the trace.
        stages: The kinds of events, grouped into stages. The kinds of a stage share tracks.
    """
    prefetch(tables, _list_columns_by_table(tables, stages))
    registry = LaneRegistry(TrackNames.read(tables))
    lane_ids: dict[EventKind, pl.Series] = {}
    first, clock = 0, Clock()
    for stage in stages:
        positions = {kind: rows for kind in stage if (rows := _read_positions(tables, kind)).height}
        for kind, rows in positions.items():
            start, is_open = _find_first_start_and_detect_unclosed(kind, rows)
            first = min(first, start)
            if not clock.end_ns and is_open:
                clock = Clock(end_ns=_find_last_time(tables, stages))
        lane_ids |= _assign_lanes_of_stage(positions, registry, clock)
        memory.release_pages()
    return Layout(registry, lane_ids, clock._replace(shift_ns=-first))


def check_drawable(tables: Tables, layout: Layout) -> None:
    """Raise an error if a trace has nothing to draw because its data has no timestamps.

    Raises:
        ExportError: The data of the trace (a TensorFlow graph or Nsight Compute results) has no timestamps.
    """
    reasons = [reason for name, reason in _TIMELESS.items() if not layout.lane_ids and count_rows(tables, name)]
    if reasons:
        raise ExportError(
            f"there is nothing to draw: {reasons[0]}", hint="to export tables, use --to csv, --to parquet or --to arrow"
        )


def read_events(tables: Tables, kind: EventKind) -> pl.DataFrame:
    """Read the columns needed to draw the events of a kind. Return no rows if a required column is missing."""
    frame = _scan_events(tables, kind)
    return pl.DataFrame() if frame is None else frame.collect()


def read_rows(tables: Tables, kind: EventKind) -> TableRows:
    """Return the events of a kind as rows that can be read in blocks, with the columns needed to draw them."""
    return _open_table_rows(tables, kind, _list_columns_of_kind(tables, kind))


def add_lane_ids(rows: pl.DataFrame, lane_ids: pl.Series) -> pl.DataFrame:
    """Add the column ``lane_id`` to rows, split into chunks of the same sizes as the other columns.

    With other chunks, polars would copy all columns when it evaluates expressions.
    """
    sizes = next(rows.iter_columns()).chunk_lengths()
    starts = itertools.accumulate(sizes, initial=0)
    chunks = [lane_ids.slice(start, size) for start, size in zip(starts, sizes, strict=False)]
    return rows.with_columns(pl.concat(chunks, rechunk=False))


def _scan_events(tables: Tables, kind: EventKind) -> pl.LazyFrame | None:
    """Scan the columns needed to draw the events of a kind. Return None if a required column is missing."""
    names = _list_columns_of_kind(tables, kind)
    if not names:
        return None
    frame = scan_table(tables, kind.table)
    if kind.where is None or frame.select(kind.where.fill_null(value=False).all()).collect().item():
        return frame.select(names)  # Filtering would copy all columns.
    return frame.filter(kind.where).select(names)


def _list_columns_of_kind(tables: Tables, kind: EventKind) -> list[str]:
    """Return the names of the columns needed to draw the events of a kind.

    If the trace has no API calls, columns added by correlation are excluded for activities that API calls launch.
    """
    schema = (
        schemas.table(kind.table)
        if kind.launched and not count_rows(tables, "api_calls")
        else tables.schema(kind.table)
    )
    return columns.choose_event_columns(kind, schema.names)


def _list_columns_by_table(tables: Tables, stages: Stages) -> dict[str, list[str]]:
    """Return the names of the columns needed to draw the events of the given kinds, by table name."""
    by_table: dict[str, list[str]] = {}
    for kind in (kind for stage in stages for kind in stage):
        by_table.setdefault(kind.table, []).extend(_list_columns_of_kind(tables, kind))
    return by_table


def _read_positions(tables: Tables, kind: EventKind) -> TableRows:
    """Return the columns that determine the tracks and times of the events of a kind.

    The result has no rows if a required column is missing.
    """
    if not _list_columns_of_kind(tables, kind):
        return TableRows(pa.table({}))
    return _open_table_rows(tables, kind, columns.list_position_columns(kind))


def _open_table_rows(tables: Tables, kind: EventKind, names: Sequence[str]) -> TableRows:
    """Return the given columns of the events of a kind, and the columns that ``kind.where`` uses, in schema order."""
    needed = {*names, *columns.list_column_names(kind.where)}
    return TableRows(
        read_chunks(tables, kind.table, [n for n in tables.schema(kind.table).names if n in needed]), kind.where
    )


def _find_first_start_and_detect_unclosed(kind: EventKind, rows: TableRows) -> tuple[int, bool]:
    """Return the earliest start of the events of a kind in ns, and whether any event was never closed."""
    is_slice = kind.phase == kinds.SLICE
    names = columns.list_column_names(kind.start, kind.end) if is_slice else columns.list_column_names(kind.start)
    is_open = kind.end.is_null().any() if is_slice else pl.lit(value=False)
    starts_and_flags = [
        frame.select(kind.start.min().alias("start"), is_open.alias("open")).row(0)
        for _, frame in iterate_frames(rows, list(dict.fromkeys(names)))
    ]
    return min(start for start, _ in starts_and_flags), any(is_open for _, is_open in starts_and_flags)


def assign_lane_ids(
    positions: Rows, intervals: tuple[Array, Array], placement: Placement, registry: LaneRegistry
) -> Array:
    """Assign events to tracks, and overlapping events of a track to lanes. Return the lane id of each event.

    Args:
        positions: The track keys of each event, as named by ``placement``.
        intervals: The start of each event, and the end of each event, in ns.
        placement: The rule that assigns the events to tracks.
        registry: The registry to which new lanes are added.
    """
    codes, examples, _ = find_distinct_combinations(positions, placement.keys)
    tracks, numbers = _find_tracks_of_keys(examples, placement, registry.names)
    count = len(tracks)
    grouped = group_row_numbers(lambda block: numbers[codes[block]], positions.height, count) if count > 1 else None
    lane_ids = memory.allocate_zeros(positions.height, np.int32)
    for number, track in enumerate(tracks):
        rows = None if grouped is None else grouped.order[grouped.starts[number] : grouped.starts[number + 1]]
        lane = _assign_lanes_of_track(_take_values(intervals[0], rows), _take_values(intervals[1], rows), placement)
        ids = np.array(registry.get_or_create_lane_ids(track, 1 if lane is None else lane.n_unique()), np.int32)
        for block in iterate_row_blocks(positions.height if rows is None else len(rows)):
            values = ids[0] if lane is None else ids[lane[block].to_numpy()]
            lane_ids[block if rows is None else rows[block]] = values
        memory.release_pages()
    return lane_ids


def _find_tracks_of_keys(keys: pl.DataFrame, placement: Placement, names: TrackNames) -> tuple[list[Track], Array]:
    """Return the distinct tracks, ordered by key, and the index of the track of each row of ``keys``.

    Different keys can result in the same track. For example, a null domain and an empty domain share a track.
    """
    numbered = keys.with_row_index("row").with_columns(pl.col(pl.Categorical).cast(pl.String)).sort(placement.keys)
    tracks: dict[Track, int] = {}
    numbers = np.zeros(keys.height, np.int64)
    for row, *key in numbered.select("row", *placement.keys).iter_rows():
        numbers[row] = tracks.setdefault(placement.make_track(names, *key), len(tracks))
    return list(tracks), numbers


def _take_values(values: Array, row_numbers: Array | None) -> Array:
    """Return the values at the given row numbers, or all values if ``row_numbers`` is None."""
    return values if row_numbers is None else take(values, row_numbers)


def _assign_lanes_of_track(starts: Array, ends: Array, placement: Placement) -> pl.Series | None:
    """Return the lane number of each event of a track, or None if all events fit on one lane."""
    if not lanes.may_overlap(starts, ends) or (placement.nests and lanes.are_nested_or_disjoint(starts, ends)):
        return None
    return lanes.assign_lanes(create_series(starts), create_series(ends), nests=placement.nests)


def _assign_lanes_of_stage(
    tables: dict[EventKind, TableRows], registry: LaneRegistry, clock: Clock
) -> dict[EventKind, pl.Series]:
    """Assign the events of a stage (kinds that share tracks) to lanes. Return the lane ids by kind."""
    if not tables:
        return {}
    rows = JoinedRows(list(tables.values()))
    start, end = memory.allocate_zeros(rows.height, np.int64), memory.allocate_zeros(rows.height, np.int64)
    offsets = rows.compute_table_offsets()
    for (kind, part), offset in zip(tables.items(), offsets, strict=False):
        last = kind.end.fill_null(clock.end_ns) if kind.phase == kinds.SLICE else kind.start
        times = list(dict.fromkeys(columns.list_column_names(kind.start, last)))
        for block, frame in iterate_frames(part, times):
            here = slice(block.start + offset, block.stop + offset)
            start[here] = frame.select(kind.start).to_series().to_numpy()
            end[here] = frame.select(last).to_series().to_numpy()
    lane_ids = assign_lane_ids(rows, (start, end), next(iter(tables)).placement, registry)
    return {
        kind: create_series(lane_ids[first:stop]).alias("lane_id")
        for kind, first, stop in zip(tables, offsets[:-1], offsets[1:], strict=True)
    }


def _find_last_time(tables: Tables, stages: Stages) -> int:
    """Return the latest time in ns in the tables of all kinds to draw."""
    latest: list[int | None] = []
    for name in sorted({kind.table for stage in stages for kind in stage}):
        times = [pl.col(c).max() for c in tables.schema(name).names if c in _TIMES]
        latest += scan_table(tables, name).select(times).collect().row(0)
    return max(t for t in latest if t is not None)
