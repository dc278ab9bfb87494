"""Assign every event to a track and a lane before the first event is written."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit import schemas
from tracekit.errors import ExportError
from tracekit.exporters.timeline import batches, kinds
from tracekit.exporters.timeline.batches import FileClock
from tracekit.exporters.timeline.blocks import TableRows, iterate_frames
from tracekit.exporters.timeline.tracks import LaneRegistry, TrackNames
from tracekit.native.combinations import CombinationFinder
from tracekit.native.lanes import LaneSweep
from tracekit.registry.tables import count_rows, prefetch, read_chunks, scan_table
from tracekit.system import memory
from tracekit.system.sorting import create_series, is_sorted, iterate_row_blocks, sort_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.exporters.timeline.tracks import Placement, Track
    from tracekit.registry.tables import Tables
    from tracekit.system.sorting import Array

    Stages = Sequence[Sequence[EventKind]]

_KEY_ROWS = 1 << 17
"""Number of events whose tracks are found at a time."""
_TIMES = ("start_ns", "end_ns", "timestamp_ns", "created_ns", "start_seen_ns", "end_seen_ns")
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
    clock: FileClock


def compute_layout(tables: Tables, stages: Stages) -> Layout:
    """Assign the events of the given kinds to tracks and lanes.

    Args:
        tables: The tables of the trace.
        stages: The kinds of events, grouped into stages. The kinds of a stage share tracks.
    """
    prefetch(tables, _list_columns_by_table(tables, stages))
    registry = LaneRegistry(TrackNames.read(tables))
    lane_ids: dict[EventKind, pl.Series] = {}
    first, clock = 0, FileClock()
    for stage in stages:
        positions = {kind: rows for kind in stage if (rows := _read_positions(tables, kind)).height}
        for kind, rows in positions.items():
            start, is_open = _find_first_start_and_detect_unclosed(kind, rows)
            first = min(first, start)
            if not clock.end_ns and is_open:
                clock = FileClock(end_ns=_find_last_time(tables, stages))
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


def read_rows(tables: Tables, kind: EventKind, more: Sequence[str] = ()) -> TableRows:
    """Return the events of a kind as rows that can be read in blocks, with the columns needed to draw them.

    Args:
        tables: The tables of the trace.
        kind: The kind of the events.
        more: Names of further columns of the table.
    """
    return _open_table_rows(tables, kind, [*_list_columns_of_kind(tables, kind), *more])


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
    return batches.choose_event_columns(kind, schema.names)


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
    return _open_table_rows(tables, kind, batches.list_position_columns(kind))


def _open_table_rows(tables: Tables, kind: EventKind, names: Sequence[str]) -> TableRows:
    """Return the given columns of the events of a kind, and the columns that ``kind.where`` uses, in schema order."""
    needed = {*names, *batches.list_column_names(kind.where)}
    columns = [n for n in tables.schema(kind.table).names if n in needed]
    return TableRows(read_chunks(tables, kind.table, columns), kind.where)


def _find_first_start_and_detect_unclosed(kind: EventKind, rows: TableRows) -> tuple[int, bool]:
    """Return the earliest start of the events of a kind in ns, and whether any event was never closed."""
    is_slice = kind.phase == kinds.SLICE
    names = batches.list_column_names(kind.start, kind.end) if is_slice else batches.list_column_names(kind.start)
    is_open = kind.end.is_null().any() if is_slice else pl.lit(value=False)
    starts_and_flags = [
        frame.select(kind.start.min().alias("start"), is_open.alias("open")).row(0)
        for _, frame in iterate_frames(rows, list(dict.fromkeys(names)))
    ]
    return min(start for start, _ in starts_and_flags), any(is_open for _, is_open in starts_and_flags)


class TimedRows(NamedTuple):
    """The events of one kind, and the expressions for their times.

    Attributes:
        rows: The events.
        start: Start of an event in ns.
        end: End of an event in ns.
    """

    rows: TableRows
    start: pl.Expr
    end: pl.Expr

    def read_block(self, block: slice) -> tuple[Array, Array]:
        """Return the starts and the ends of consecutive events."""
        names = list(dict.fromkeys(batches.list_column_names(self.start, self.end)))
        frame = self.rows.read_batch(block).read_frame(names).select(start=self.start, end=self.end)
        return frame["start"].to_numpy(), frame["end"].to_numpy()


def assign_lane_ids(parts: Sequence[TimedRows], placement: Placement, registry: LaneRegistry) -> Array:
    """Assign events to tracks, and overlapping events of a track to lanes. Return the lane id of each event.

    Args:
        parts: The events of the kinds that share tracks. Their tables contain the columns named by ``placement``.
        placement: The rule that assigns the events to tracks.
        registry: The registry to which new lanes are added.
    """
    codes, keys = _find_distinct_keys([part.rows for part in parts], placement.keys)
    tracks, numbers = _find_tracks_of_keys(keys, placement, registry.names)
    rows = len(codes)
    sweep = LaneSweep(len(tracks), nests=placement.nests)
    order, read_times = _order_by_time(parts, rows)

    def read_slices(block: slice) -> tuple[Array, Array, Array]:
        return *read_times(block), numbers[codes[block if order is None else order[block]]]

    for block in iterate_row_blocks(rows):
        sweep.find_overlaps(*read_slices(block))
    sweep.finish_overlaps()
    ids = [registry.get_or_create_lane_ids(*each) for each in zip(tracks, sweep.lane_counts.tolist(), strict=True)]
    first_ids = np.cumsum([0, *map(len, ids)])[:-1]
    flat = np.array(list(itertools.chain.from_iterable(ids)), np.int32)
    lane_ids = memory.allocate_zeros(rows, np.int32)
    for block in iterate_row_blocks(rows):
        if len(flat) == len(tracks):
            lane_ids[block] = flat[numbers[codes[block]]]
        else:
            slices = read_slices(block)
            lane_ids[block if order is None else order[block]] = flat[
                first_ids[slices[2]] + sweep.assign_lanes(*slices)
            ]
    return lane_ids


def _order_by_time(
    parts: Sequence[TimedRows], row_count: int
) -> tuple[Array | None, Callable[[slice], tuple[Array, Array]]]:
    """Return the row numbers in the order of start and descending end, and a function that returns ordered times.

    The row numbers are None if the events are in this order. Their times are then read in blocks.
    """
    offsets = list(itertools.accumulate((part.rows.height for part in parts), initial=0))

    def read_block(block: slice) -> tuple[Array, Array]:
        times = [
            part.read_block(slice(max(block.start - start, 0), min(block.stop - start, part.rows.height)))
            for part, start in zip(parts, offsets, strict=False)
            if block.start < start + part.rows.height and block.stop > start
        ]
        starts, ends = times[0] if len(times) == 1 else map(np.concatenate, zip(*times, strict=True))
        return starts, np.maximum(ends, starts + 1)

    def is_ordered(block: slice) -> bool:
        starts, ends = read_block(slice(max(block.start - 1, 0), block.stop))
        return is_sorted(starts, -ends)

    if all(is_ordered(block) for block in iterate_row_blocks(row_count)):
        return None, read_block
    keys = [memory.allocate_zeros(row_count, np.int64) for _ in range(2)]
    for block in iterate_row_blocks(row_count):
        starts, ends = read_block(block)
        keys[0][block], keys[1][block] = starts, -ends
    order, (starts, negative_ends) = sort_rows(*keys)
    return order, lambda block: (starts[block], -negative_ends[block])


def _find_distinct_keys(parts: Sequence[TableRows], names: tuple[str, ...]) -> tuple[Array, list[tuple[Any, ...]]]:
    """Return the number of the key of each event, and the distinct keys: the values of the given columns."""
    numbers: dict[tuple[Any, ...], int] = {}
    codes, stop = memory.allocate_zeros(sum(part.height for part in parts), np.uint32), 0
    finder = CombinationFinder()
    for part in parts:
        for first in range(0, part.height, _KEY_ROWS):
            batch = part.read_batch(slice(first, min(first + _KEY_ROWS, part.height)))
            combinations = finder.find(batch.read_keys(names))
            keys = batch.take(combinations.first_rows).read_frame(names).iter_rows()
            known = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.uint32)
            start, stop = stop, stop + batch.height
            codes[start:stop] = known[combinations.codes]
    return codes, list(numbers)


def _find_tracks_of_keys(
    keys: Sequence[tuple[Any, ...]], placement: Placement, names: TrackNames
) -> tuple[list[Track], Array]:
    """Return the distinct tracks, ordered by key, and the index of the track of each key.

    Different keys can result in the same track. For example, a null domain and an empty domain share a track.
    """
    tracks: dict[Track, int] = {}
    numbers = np.zeros(len(keys), np.uint32)
    ordered = sorted(range(len(keys)), key=lambda row: [(value is not None, value) for value in keys[row]])
    for row in ordered:
        numbers[row] = tracks.setdefault(placement.make_track(names, *keys[row]), len(tracks))
    return list(tracks), numbers


def _assign_lanes_of_stage(
    tables: dict[EventKind, TableRows], registry: LaneRegistry, clock: FileClock
) -> dict[EventKind, pl.Series]:
    """Assign the events of a stage (kinds that share tracks) to lanes. Return the lane ids by kind."""
    if not tables:
        return {}
    ends = {kind: kind.end.fill_null(clock.end_ns) if kind.phase == kinds.SLICE else kind.start for kind in tables}
    parts = [TimedRows(rows, kind.start, ends[kind]) for kind, rows in tables.items()]
    lane_ids = assign_lane_ids(parts, next(iter(tables)).placement, registry)
    offsets = itertools.pairwise(itertools.accumulate((rows.height for rows in tables.values()), initial=0))
    return {
        kind: create_series(lane_ids[first:stop]).alias("lane_id")
        for kind, (first, stop) in zip(tables, offsets, strict=True)
    }


def _find_last_time(tables: Tables, stages: Stages) -> int:
    """Return the latest time in ns in the tables of all kinds to draw."""
    latest: list[int | None] = []
    for name in sorted({kind.table for stage in stages for kind in stage}):
        times = [pl.col(c).max() for c in tables.schema(name).names if c in _TIMES]
        latest += scan_table(tables, name).select(times).collect().row(0)
    return max(t for t in latest if t is not None)
