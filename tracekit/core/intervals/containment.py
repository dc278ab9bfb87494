"""Find which intervals contain other intervals or enclose a point in time. The intervals may overlap in any way.

Of two intervals on one track, ``p`` *contains* ``c`` if ``p.start_ns <= c.start_ns`` and ``p.end_ns >= c.end_ns``. Both
bounds are included, as in Nsight Systems. An interval with a null time contains nothing and is not contained in
anything. An interval *encloses* a point in time ``t`` if ``start_ns <= t < end_ns``.

All tracks are placed on one axis (``compute_axis_positions``). Intervals are split into *chains*, in which starts and
ends are both ascending. The intervals of a chain that are contained in a given interval are therefore a contiguous
*slice* of the chain, whose bounds are found by binary search. ``compute_slice_minima`` takes log n steps over whole
columns. Nested intervals form one chain per level of nesting. CUDA calls of one thread do not nest, so they form one
chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.intervals.axis import Axis
from tracekit.core.series import compute_frame_in_blocks, create_nullable_series
from tracekit.native.covering import find_last_covering_slices
from tracekit.native.nesting import compute_parents
from tracekit.system import memory
from tracekit.system.sorting import create_series, iterate_row_blocks, sort_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

# Exponent of the largest power of two that is at most the length of a slice.
_POWER = 63 - (pl.col("stop") - pl.col("first")).bitwise_leading_zeros().cast(pl.Int64)

# Twins are intervals with equal bounds. In rows sorted by start and end, _IS_TWIN is true if the previous row has the
# same bounds, and _FIRST_TWIN is the first row with the same bounds.
_IS_TWIN = pl.all_horizontal(pl.col(c) == pl.col(c).shift(1) for c in ("start", "end")).fill_null(value=False)
_FIRST_TWIN = pl.when(~_IS_TWIN).then("row").forward_fill()


def compute_axis_positions(*frames: pl.DataFrame, by: Sequence[str]) -> list[pl.DataFrame]:
    """Return the positions of the intervals of several frames on one common axis.

    Args:
        frames: Frames with the columns ``by``, ``start_ns`` and ``end_ns``.
        by: Columns that identify the track of an interval, such as its thread or its GPU.

    Returns:
        For each frame, the result of ``Axis.compute_positions``.
    """
    axis = Axis.from_intervals(*frames, by=by)
    return [axis.compute_positions(frame) for frame in frames]


def split_into_chains(positions: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Split intervals into chains, in which starts and ends are both ascending.

    Yields:
        Frames with the columns of ``positions``. Each row of ``positions`` is in exactly one frame. The first
        frame may have no rows.
    """
    start, end = (positions[c].to_numpy() for c in ("start", "end"))
    order = sort_rows(start, end).order
    rest = positions
    if order is not None:
        rest = compute_frame_in_blocks(lambda block: positions[create_series(order[block])], len(order))
    while True:
        ascends = _find_ascending_rows(rest["end"].to_numpy())
        if ascends.all():
            yield rest
            return
        yield _filter(rest, ascends)
        rest = _filter(rest, ~ascends)


def _filter(rows: pl.DataFrame, mask: npt.NDArray[np.bool_]) -> pl.DataFrame:
    return compute_frame_in_blocks(lambda block: rows[block].filter(create_series(mask[block])), rows.height)


def _find_ascending_rows(values: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return whether each value is at least as large as all earlier ones."""
    ascends = np.ones(len(values), np.bool_)
    highest = np.int64(-1)  # positions are not negative
    for block in iterate_row_blocks(len(values)):
        highest_values = np.maximum(np.maximum.accumulate(values[block]), highest)
        np.greater_equal(values[block], highest_values, out=ascends[block])
        highest = highest_values[-1]
    return ascends


def find_contained_slices(positions: pl.DataFrame, chain: pl.DataFrame) -> pl.DataFrame:
    """Return the slice of a chain of intervals that each interval contains.

    Args:
        positions: The intervals, as ``compute_axis_positions`` returns them.
        chain: A chain, as ``split_into_chains`` yields it.

    Returns:
        One row per interval, in the same order: ``row`` (of the interval), ``first`` and ``stop``. The slice extends
        from the row ``first`` of the chain to the row before ``stop``. Intervals that contain no interval of the chain
        are omitted.
    """

    def find_slices_of_block(block: slice) -> pl.DataFrame:
        rows = positions[block]
        first = chain["start"].search_sorted(rows["start"], side="left").cast(pl.Int64)
        stop = chain["end"].search_sorted(rows["end"], side="right").cast(pl.Int64)
        return pl.DataFrame({"row": rows["row"], "first": first, "stop": stop}).filter(pl.col("first") < pl.col("stop"))

    return compute_frame_in_blocks(find_slices_of_block, positions.height)


def list_contained_pairs(slices: pl.DataFrame, chain: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs of an interval and a member of a chain of intervals that the interval contains.

    Args:
        slices: Slices of the chain, as ``find_contained_slices`` returns them.
        chain: A chain, as ``split_into_chains`` yields it.

    Returns:
        One row per pair, in the order of ``slices`` and then of the chain: ``row`` of the interval, ``member`` (row of
        the contained interval).
    """
    pairs = slices.select("row", pl.int_ranges("first", "stop", dtype=pl.UInt32).alias("position")).explode("position")
    return pairs.select("row", chain["row"].gather(pairs["position"]).alias("member"))


def compute_slice_minima(values: pl.Series, slices: pl.DataFrame) -> pl.Series:
    """Return the minimum of each slice of a column.

    Args:
        values: A column without nulls.
        slices: The bounds ``first`` and ``stop`` of slices that are not empty.

    Returns:
        One value per slice, in the order of ``slices``.
    """
    first, stop = (slices[c].to_numpy() for c in ("first", "stop"))
    powers = slices.select(_POWER.alias("power"))["power"].to_numpy()
    least = values.to_numpy()
    minima = least[first]
    for power in range(1, int(powers.max(initial=0)) + 1):
        half = 1 << (power - 1)
        least = np.minimum(least[:-half], least[half:])
        here = np.flatnonzero(powers == power)
        minima[here] = np.minimum(least[first[here]], least[stop[here] - (1 << power)])
    return create_series(minima).cast(values.dtype)


def find_last_covering_rows(slices: pl.DataFrame, length: int) -> npt.NDArray[np.int64]:
    """Return, for each member of a chain of intervals, the last interval that contains it.

    Args:
        slices: Slices of the chain, as ``find_contained_slices`` returns them, in the order of ``row``.
        length: Number of members of the chain.

    Returns:
        The ``row`` of the interval for each member. It is -1 if no interval contains the member.
    """
    row, first, stop = (slices[c].to_numpy() for c in ("row", "first", "stop"))
    last = memory.allocate_zeros(length, np.int64)
    find_last_covering_slices(first, stop, last)
    for block in iterate_row_blocks(length):
        covered = np.flatnonzero(last[block] >= 0) + block.start
        last[covered] = row[last[covered]]
    return last


def find_shortest_containers(
    intervals: pl.DataFrame, *, by: Sequence[str], is_candidate: pl.Series | None = None
) -> pl.Series:
    """Return the parent of each interval: the shortest other interval that contains it.

    If several intervals are equally short, the first one is the parent. Intervals with equal bounds form a cycle: the
    first one is the parent of all others, and the second one is the parent of the first.

    Args:
        intervals: Columns ``by``, ``start_ns`` and ``end_ns``. The intervals may overlap in any way.
        by: Columns that identify the track of an interval, such as its thread or its GPU.
        is_candidate: Whether each interval may be a parent (Boolean), or None if all of them may.

    Returns:
        One row number per interval (UInt32). It is null if no other interval contains the interval.
    """
    (positions,) = compute_axis_positions(intervals, by=by)
    if is_candidate is not None and not is_candidate.all():
        rows = _find_parents_of_overlapping_intervals(positions, intervals, is_candidate)
        return pl.repeat(None, intervals.height, dtype=pl.UInt32, eager=True).scatter(rows["row"], rows["parent"])
    order = sort_rows(positions["start"].to_numpy(), -positions["end"].to_numpy()).order
    ordered = positions if order is None else positions[create_series(order)]
    nested, irregular = _find_parents_assuming_nesting(ordered)
    crossing = _find_parents_of_overlapping_intervals(positions.join(irregular, on="track", how="semi"), intervals)
    parents = pl.repeat(None, intervals.height, dtype=pl.UInt32, eager=True)
    for rows in (nested, crossing, _find_parents_of_equal_intervals(ordered)):
        parents = parents.scatter(rows["row"], rows["parent"])
    return parents


def _find_parents_assuming_nesting(ordered: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the columns ``row`` and ``parent`` of intervals, assuming that intervals of a track never cross.

    The parent of an interval is then the last earlier one that contains it. The second frame contains the tracks to
    which the assumption does not apply, as the column ``track``: those on which intervals cross or have no length.
    """
    start, end = (ordered[c].to_numpy() for c in ("start", "end"))
    outer, depth = np.empty(len(start), np.int64), np.empty(len(start), np.int32)
    crossings = compute_parents(start, end, outer, depth)
    parent = ordered.select(_FIRST_TWIN).to_series().gather(create_nullable_series(outer))
    irregular = pl.concat([ordered["track"].gather(crossings), ordered["track"].filter(create_series(start >= end))])
    return ordered.select("row", parent.alias("parent")), irregular.unique().to_frame("track")


def _find_parents_of_overlapping_intervals(
    positions: pl.DataFrame, intervals: pl.DataFrame, is_candidate: pl.Series | None = None
) -> pl.DataFrame:
    """Return the columns ``row`` and ``parent`` of intervals that may overlap without being nested."""
    # Positions cannot be subtracted because they may be ranks, and Int64 differences of times may overflow.
    start, end = (intervals[c].gather(positions["row"]).cast(pl.Int128) for c in ("start_ns", "end_ns"))
    ranked = positions.sort(end - start, "row", descending=True)
    rows = ranked["row"]
    ranked = ranked.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"))  # sorted by descending duration
    containers = ranked if is_candidate is None else ranked.filter(is_candidate.gather(rows))
    parents = []
    for chain in split_into_chains(ranked):
        others = _remove_self_from_slices(find_contained_slices(containers, chain), chain)
        last = create_nullable_series(find_last_covering_rows(others, chain.height))
        parents.append(pl.DataFrame({"row": rows.gather(chain["row"]), "parent": rows.gather(last)}))
    return pl.concat(parents)


def _remove_self_from_slices(slices: pl.DataFrame, chain: pl.DataFrame) -> pl.DataFrame:
    """Remove each interval from its own slice, which divides the slice into at most two slices."""
    own = chain.select("row", pl.int_range(pl.len()).alias("own"))
    slices = slices.join(own, on="row", how="left")
    before = slices.select("row", "first", pl.min_horizontal("stop", "own").alias("stop"))
    after = slices.select("row", (pl.col("own") + 1).alias("first"), "stop")
    return pl.concat([before, after]).filter(pl.col("first") < pl.col("stop")).sort("row")


def _find_parents_of_equal_intervals(ordered: pl.DataFrame) -> pl.DataFrame:
    """Return the columns ``row`` and ``parent`` of the intervals with the same bounds as another interval."""
    parent = pl.when(_IS_TWIN).then(_FIRST_TWIN).when(_IS_TWIN.shift(-1)).then(pl.col("row").shift(-1))
    return ordered.select("row", parent.alias("parent")).drop_nulls()


def find_last_containers(
    items: pl.DataFrame, intervals: pl.DataFrame, *, by: Sequence[str], allow_inverted: bool = False
) -> pl.Series:
    """Return the last of the intervals that contain each item, bounds included.

    Args:
        items: Columns ``by``, ``start_ns``, ``end_ns``.
        intervals: The same columns. The intervals may overlap in any way. Their row order determines the last interval.
        by: Columns whose values an interval and the items in it share, such as ``process_id`` and ``thread_id``.
        allow_inverted: Whether an interval contains an item that ends before it starts if it starts at or before the
            start and ends at or after the end of the item, as in nsys. Otherwise, no interval contains such an item.

    Returns:
        One row number of ``intervals`` per item (Int64), or null if no interval contains the item.
    """
    if not items.height or not intervals.height:
        return pl.repeat(None, items.height, dtype=pl.Int64, eager=True)
    items = items if allow_inverted else drop_inverted_ends(items)
    interval_positions, item_positions = compute_axis_positions(intervals, items, by=by)
    containers = memory.allocate_zeros(items.height, np.int64)
    for block in iterate_row_blocks(items.height):
        containers[block] = -1
    for chain in split_into_chains(item_positions):
        rows = chain["row"].to_numpy()
        last = find_last_covering_rows(find_contained_slices(interval_positions, chain), chain.height)
        for block in iterate_row_blocks(chain.height):
            containers[rows[block]] = last[block]
    return create_nullable_series(containers)


def drop_inverted_ends(intervals: pl.DataFrame) -> pl.DataFrame:
    """Replace ``end_ns`` with null where it is earlier than ``start_ns``."""
    if not (intervals["end_ns"] < intervals["start_ns"]).any():
        return intervals
    return intervals.with_columns(pl.when(pl.col("end_ns") >= pl.col("start_ns")).then("end_ns"))


def add_enclosing_range_id(
    points: pl.LazyFrame, ranges: pl.LazyFrame, *, time_column: str, by: Sequence[str]
) -> pl.LazyFrame:
    """Add the id of the range that encloses each point and started last.

    Of several enclosing ranges that started last, the one with the largest id is used. Both frames are collected.

    Args:
        points: Columns ``by`` and ``time_column``, and any further columns.
        ranges: Columns ``by``, ``start_ns``, ``end_ns`` (null if the range never ends) and ``range_id``. The ranges may
            overlap in any way.
        time_column: Name of the column of ``points`` with the times in ns.
        by: Columns that identify the track of an interval, such as its thread or its GPU.

    Returns:
        The points, in the same order, with the column ``range_id``. It is null if no range is open.
    """
    rows = points.collect()
    solid = pl.col("end_ns").is_null() | (pl.col("end_ns") > pl.col("start_ns"))
    ordered = ranges.filter(solid).select(*by, "start_ns", "end_ns", "range_id").sort("start_ns", "range_id").collect()
    closed = ordered.with_columns((pl.col("end_ns") - 1).fill_null(pl.lit(rows[time_column].max(), pl.Int64)))
    instants = rows.select(*by, pl.col(time_column).alias("start_ns"), pl.col(time_column).alias("end_ns"))
    latest = find_last_containers(instants, closed, by=by, allow_inverted=True)
    return rows.with_columns(ordered["range_id"].gather(latest)).lazy()
