"""Assign the overlapping slices of a track to lanes, so that no viewer drops a slice.

Slices on the same lane never overlap. A *component* is a maximal sequence of slices, ordered by start, in which each
slice after the first starts while an earlier slice is open. A slice that is alone in its component is on lane 0. A
component in which at most L slices are open at once uses the lanes 0 to L-1, so a track has as few lanes as possible.

Inside a component, the i-th slice to start gets lane i if i < L. Otherwise, it gets the lane of the (i-L)-th slice to
end. This slice has ended, because at most L-1 other slices are open when the i-th slice starts. Pointer jumping
resolves these references to lanes in log n passes over whole columns.
"""

from __future__ import annotations

import numpy as np
import polars as pl

_INT32_ROWS = 1 << 31


def may_overlap_expr(start: pl.Expr, end: pl.Expr) -> pl.Expr:
    """Return an expression that is False if each slice of a track starts at or after the end of the previous slice.

    Slices without duration are treated as if they took 1 ns.
    """
    return (pl.max_horizontal(end, start + 1).shift(1) > start).any()


def is_nested(start_ns: pl.Series, end_ns: pl.Series) -> bool:
    """Return whether one lane suffices for a track, because every two of its slices are disjoint or nested.

    Of slices that end at the same time, the one that began last is assumed to end first. Slices without duration are
    treated as if they took 1 ns.
    """
    starts, ends = start_ns.to_numpy(), np.maximum(end_ns.to_numpy(), start_ns.to_numpy() + 1)
    steps = np.diff(starts)
    if not ((steps > 0) | ((steps == 0) & (np.diff(ends) <= 0))).all():
        order = np.lexsort((-ends, starts))
        starts, ends = starts[order], ends[order]
    row = np.arange(len(starts), dtype=np.int32 if len(starts) < _INT32_ROWS else np.int64)
    closing = row[::-1][np.argsort(ends[::-1], kind="stable")]
    ordered_ends = ends[closing]
    opened_at = row - np.searchsorted(ordered_ends, starts, side="right").astype(row.dtype)
    closed_at = np.searchsorted(starts, ordered_ends, side="left").astype(row.dtype) - row - 1
    return bool((opened_at[closing] == closed_at).all())


def assign_lanes(start_ns: pl.Series, end_ns: pl.Series, *, nests: bool = False) -> pl.Series:
    """Assign each slice of a track to a lane.

    Two slices do not overlap if one ends when the other starts. Slices without duration are treated as if they took
    1 ns.

    Args:
        start_ns: Start of each slice in ns, in any order.
        end_ns: End of each slice in ns.
        nests: Whether slices on a lane may be nested. If so, only components with crossing slices use several lanes.

    Returns:
        The lane number of each slice, counted from 0, as UInt32.
    """
    slices = pl.DataFrame({"start": start_ns, "end": end_ns}).with_row_index("slice")
    overlapping = _overlapping_slices(slices.with_columns(pl.max_horizontal("end", pl.col("start") + 1)))
    boundaries = _boundaries(overlapping)
    if nests:
        crossing = _crossing_components(boundaries)["component"].implode()
        overlapping = overlapping.filter(pl.col("component").is_in(crossing)).drop("row").with_row_index("row")
        boundaries = _boundaries(overlapping)
    lanes = _disjoint_lanes(overlapping, boundaries)
    return pl.zeros(len(slices), pl.UInt32, eager=True).scatter(overlapping["slice"], lanes)


def _overlapping_slices(slices: pl.DataFrame) -> pl.DataFrame:
    """Return the slices that overlap another slice of the track, ordered by start and then by descending end."""
    ordered = slices.sort("start", "end", descending=[False, True], maintain_order=True)
    starts_component = (pl.col("start") >= pl.col("end").cum_max().shift(1)).fill_null(value=True)
    components = ordered.with_columns(component=starts_component.cum_sum())
    shared = components.filter(pl.len().over("component") > 1)
    return shared.with_row_index("row")


def _boundaries(overlapping: pl.DataFrame) -> pl.DataFrame:
    """Return the starts and ends of slices, ordered by component and time, with the number of other open slices."""
    starts = overlapping.select("component", "row", time="start", starts=True, rank=pl.col("row").cast(pl.Int64))
    ends = overlapping.select("component", "row", time="end", starts=False, rank=-pl.col("row").cast(pl.Int64))
    both = pl.concat([starts, ends]).sort("component", "time", "starts", "rank")
    opened = pl.when("starts").then(1).otherwise(-1).cum_sum()
    return both.select("component", "row", "starts", depth=opened - pl.col("starts").cast(pl.Int32))


def _crossing_components(boundaries: pl.DataFrame) -> pl.DataFrame:
    """Return the ids of the groups of overlapping slices in which two slices overlap without being nested."""
    by_depth = boundaries.sort("depth", maintain_order=True)
    mismatch = pl.col("starts") & (pl.col("row") != pl.col("row").shift(-1))
    return by_depth.filter(mismatch).select("component").unique()


def _disjoint_lanes(overlapping: pl.DataFrame, boundaries: pl.DataFrame) -> pl.Series:
    """Return the lane of each slice, assigned so that slices on the same lane never overlap."""
    ended = boundaries.filter(~pl.col("starts"))["row"]
    depths = boundaries.filter("starts").sort("row")["depth"]
    start = pl.int_range(pl.len()).over("component")
    lanes_needed = pl.col("depth").max().over("component") + 1
    ranked = overlapping.with_columns(depth=depths).select("row", nth=start, lanes=lanes_needed)
    has_new_lane = pl.col("nth") < pl.col("lanes")
    predecessor = pl.lit(ended).gather(pl.when(has_new_lane).then("row").otherwise(pl.col("row") - pl.col("lanes")))
    pointers = ranked.select(pl.when(has_new_lane).then("row").otherwise(predecessor)).to_series()
    return ranked["nth"].gather(_resolve_pointers(pointers)).cast(pl.UInt32)


def _resolve_pointers(parents: pl.Series) -> pl.Series:
    """Return, for each row, the last row of the chain of rows that starts at its parent.

    The chain ends at a row that is its own parent. The rows are replaced in log n passes over all rows.
    """
    while not (further := parents.gather(parents)).equals(parents):
        parents = further
    return parents
