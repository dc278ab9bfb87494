"""Assign every event to a track and a lane before the first event is written.

Assign the overlapping slices of a track to lanes, so that no viewer drops a slice.

Slices on the same lane never overlap. An *overlap group* is a maximal sequence of slices, ordered by start, in which
each slice after the first starts while an earlier slice is open. A slice that overlaps no other slice is on lane 0. An
overlap group in which at most L slices are open at once uses the lanes 0 to L-1. A track therefore has as few lanes as
possible.

Inside an overlap group, the i-th slice to start gets lane i if i < L. Otherwise, it gets the lane of the (i-L)-th slice
to end. That slice has ended, because at most L-1 other slices are open when the i-th slice starts. Pointer jumping
resolves these references to lanes in log n passes over whole columns.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit import schemas
from tracekit.errors import ExportError
from tracekit.exporters.timeline import batches, kinds
from tracekit.exporters.timeline.batches import FileClock
from tracekit.exporters.timeline.blocks import JoinedRows, TableRows, iterate_frames
from tracekit.exporters.timeline.combinations import find_distinct_combinations
from tracekit.exporters.timeline.tracks import LaneRegistry, TrackNames
from tracekit.registry.tables import count_rows, prefetch, read_chunks, scan_table
from tracekit.system import memory
from tracekit.system.sorting import create_series, group_row_numbers, iterate_row_blocks, map_blocks, sort_rows, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.exporters.timeline.blocks import BlockRows, Categories
    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.exporters.timeline.tracks import Placement, Track
    from tracekit.registry.tables import Tables
    from tracekit.system.sorting import Array

    Stages = Sequence[Sequence[EventKind]]

_INT32_ROWS = 1 << 31
_TIMES = ("start_ns", "end_ns", "timestamp_ns")
_TIMELESS = {
    "ncu_launches": "Nsight Compute results have durations, but no timestamps",
    "graph_nodes": "the nodes of a graph have no timestamps",
}


def may_overlap(starts: Array, ends: Array) -> bool:
    """Return whether a slice of a track starts before the end of the slice in the previous row.

    Slices without duration are treated as if they took 1 ns.
    """

    def has_overlaps(block: slice) -> bool:
        before, after = slice(max(block.start - 1, 0), block.stop - 1), slice(max(block.start, 1), block.stop)
        return bool((np.maximum(ends[before], starts[before] + 1) > starts[after]).any())

    return any(has_overlaps(block) for block in iterate_row_blocks(len(starts)))


def are_nested_or_disjoint(starts: Array, ends: Array) -> bool:
    """Return whether a track needs only one lane, because any two of its slices are disjoint or nested.

    Of slices that end at the same time, the one that began last is assumed to end first. Slices without duration are
    treated as if they took 1 ns.

    Slices are disjoint or nested if, for each slice, equally many slices are open before its start and after its end.
    """
    rows = len(starts)
    shorter = map_blocks(lambda block: -np.maximum(ends[block], starts[block] + 1), rows, np.int64)
    _, (starts, shorter) = sort_rows(starts, shorter)
    depths = Depths.from_slices(starts, map_blocks(lambda block: -shorter[block], rows, np.int64))
    return not any(depths.compute_mismatch_mask(block).any() for block in iterate_row_blocks(rows))


class Depths(NamedTuple):
    """Numbers of slices that are open when the slices of a track start and end.

    Attributes:
        starts: Start of each slice in ns, ascending.
        ends: Ends of the slices in ns, ascending.
        opened: Number of slices that are open before each slice starts.
        closing: Row numbers of the slices in the order of their ends. Of slices that end at the same time, the one that
            began last ends first.
    """

    starts: Array
    ends: Array
    opened: Array
    closing: Array

    @classmethod
    def from_slices(cls, starts: Array, ends: Array) -> Depths:
        """Return the depths of the given slices. They must be ordered by start and then by descending end."""
        rows = len(starts)
        backwards = map_blocks(lambda block: ends[rows - block.stop : rows - block.start][::-1], rows, np.int64)
        order, (ordered,) = sort_rows(backwards)  # The sort keeps the order of equal ends.
        kind = np.int32 if rows < _INT32_ROWS else np.int64

        def count_open_slices(block: slice) -> Array:
            return _compute_row_numbers(block) - np.searchsorted(ordered, starts[block], side="right")

        def compute_closing_rows(block: slice) -> Array:
            return rows - 1 - (_compute_row_numbers(block) if order is None else order[block].astype(np.int64))

        return cls(
            starts, ordered, map_blocks(count_open_slices, rows, kind), map_blocks(compute_closing_rows, rows, kind)
        )

    def compute_mismatch_mask(self, block: slice) -> Array:
        """Return a mask of the slices for which unequal numbers of slices are open before the start and after the end.

        Args:
            block: A block of slices in the order of their ends.
        """
        closed_at = np.searchsorted(self.starts, self.ends[block], side="left") - _compute_row_numbers(block) - 1
        mismatch: Array = self.opened[self.closing[block]] != closed_at
        return mismatch


def _compute_row_numbers(block: slice) -> Array:
    """Return the row numbers of a block of rows."""
    return np.arange(block.start, block.stop)


def assign_lanes(start_ns: pl.Series, end_ns: pl.Series, *, nests: bool = False) -> pl.Series:
    """Return a lane number for each slice of a track, so that slices on the same lane do not overlap.

    Slices do not overlap if one ends when the other starts. Slices without duration are treated as if they took 1 ns.

    Args:
        start_ns: Start of each slice in ns, in any order.
        end_ns: End of each slice in ns.
        nests: Whether slices on the same lane may be nested. If so, only overlap groups with slices that overlap
            without being nested use several lanes.

    Returns:
        The lane number of each slice, counted from 0, as UInt32.
    """
    starts, ends, rows = start_ns.to_numpy(), end_ns.to_numpy(), len(start_ns)
    lanes = memory.allocate_zeros(rows, np.uint32)
    shorter = map_blocks(lambda block: -np.maximum(ends[block], starts[block] + 1), rows, np.int64)
    order, (starts, shorter) = sort_rows(starts, shorter)
    ends = map_blocks(lambda block: -shorter[block], rows, np.int64)
    group_numbers = _compute_overlap_group_numbers(starts, ends)
    shared = np.flatnonzero((np.bincount(group_numbers) > 1)[group_numbers])
    if nests and len(shared):
        depths = Depths.from_slices(starts[shared], ends[shared])
        crossing = np.zeros(group_numbers[-1] + 1, np.bool_)
        for block in iterate_row_blocks(len(shared)):
            crossing[group_numbers[shared[depths.closing[block][depths.compute_mismatch_mask(block)]]]] = True
        shared = shared[crossing[group_numbers[shared]]]
    if len(shared):
        lane = _assign_disjoint_lanes(Depths.from_slices(starts[shared], ends[shared]), group_numbers[shared])
        lanes[shared if order is None else order[shared]] = lane
    return create_series(lanes)


def _compute_overlap_group_numbers(starts: Array, ends: Array) -> Array:
    """Return the number of the overlap group of each slice. The slices must be ordered by start."""
    begins = np.ones(len(starts), np.bool_)
    begins[1:] = starts[1:] >= np.maximum.accumulate(ends)[:-1]
    return np.cumsum(begins, dtype=np.int32 if len(starts) < _INT32_ROWS else np.int64) - 1


def _assign_disjoint_lanes(depths: Depths, group_numbers: Array) -> Array:
    """Return a lane number for each slice. Slices on the same lane never overlap.

    Args:
        depths: The depths of the slices.
        group_numbers: The number of the overlap group of each slice, ascending.
    """
    kind = depths.opened.dtype
    first = np.flatnonzero(np.diff(group_numbers, prepend=-1))
    sizes = np.diff(first, append=len(group_numbers))
    lanes_needed = np.repeat((np.maximum.reduceat(depths.opened, first) + 1).astype(kind), sizes)
    row = np.arange(len(group_numbers), dtype=kind)
    nth = row - np.repeat(first.astype(kind), sizes)
    parents = np.where(nth < lanes_needed, row, depths.closing[row - lanes_needed])
    del row, lanes_needed
    lanes: Array = nth[_resolve_pointers(parents)]
    return lanes


def _resolve_pointers(parents: Array) -> Array:
    """Return the end of the chain of references from each row, given the row to which each row refers.

    This takes log n passes over all rows.
    """
    while not np.array_equal(further := parents[parents], parents):
        parents = further
    return parents


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


def read_rows(
    tables: Tables, kind: EventKind, *, has_categories: bool = True, categories: Categories | None = None
) -> TableRows:
    """Return the events of a kind as rows that can be read in blocks, with the columns needed to draw them."""
    names = _list_columns_of_kind(tables, kind)
    return _open_table_rows(tables, kind, names, has_categories=has_categories, categories=categories)


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


def _open_table_rows(
    tables: Tables,
    kind: EventKind,
    names: Sequence[str],
    *,
    has_categories: bool = True,
    categories: Categories | None = None,
) -> TableRows:
    """Return the given columns of the events of a kind, and the columns that ``kind.where`` uses, in schema order."""
    needed = {*names, *batches.list_column_names(kind.where)}
    columns = [n for n in tables.schema(kind.table).names if n in needed]
    table = read_chunks(tables, kind.table, columns)
    return TableRows(table, kind.where, has_categories=has_categories, categories=categories)


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


def assign_lane_ids(
    positions: BlockRows, intervals: tuple[Array, Array], placement: Placement, registry: LaneRegistry
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
    if not may_overlap(starts, ends) or (placement.nests and are_nested_or_disjoint(starts, ends)):
        return None
    return assign_lanes(create_series(starts), create_series(ends), nests=placement.nests)


def _assign_lanes_of_stage(
    tables: dict[EventKind, TableRows], registry: LaneRegistry, clock: FileClock
) -> dict[EventKind, pl.Series]:
    """Assign the events of a stage (kinds that share tracks) to lanes. Return the lane ids by kind."""
    if not tables:
        return {}
    rows = JoinedRows(list(tables.values()))
    start, end = memory.allocate_zeros(rows.height, np.int64), memory.allocate_zeros(rows.height, np.int64)
    offsets = rows.compute_table_offsets()
    for (kind, part), offset in zip(tables.items(), offsets, strict=False):
        last = kind.end.fill_null(clock.end_ns) if kind.phase == kinds.SLICE else kind.start
        times = list(dict.fromkeys(batches.list_column_names(kind.start, last)))
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
