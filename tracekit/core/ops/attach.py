"""Attribute API calls to op instances.

A call is attributed to the op instance that contains the call, bounds included:

1. Instances of the same thread are considered first.
2. If none of them contains the call, instances of all threads of the process are considered, because calls of the
   autograd thread belong to the backward op.
3. If none of them contains the call, and the call launches activities or waits for them, it becomes the root of a new
   instance. This instance is *unassociated*.

If several instances contain the call, the one that started last is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.intervals import containment
from tracekit.core.intervals.axis import replace_with_null_unless

if TYPE_CHECKING:
    from collections.abc import Sequence


def find_last_containing_intervals(items: pl.DataFrame, intervals: pl.DataFrame, *, by: Sequence[str]) -> pl.Series:
    """Return the last of the intervals that contain each item, bounds included.

    Args:
        items: Columns ``by``, ``start_ns``, ``end_ns``. An item that ends before it starts is contained in no interval.
        intervals: The same columns. The intervals may overlap in any way. Their row order determines the last interval.
        by: Columns whose values an interval and the items in it share, such as ``process_id`` and ``thread_id``.

    Returns:
        One row number of ``intervals`` per item (Int64), or null if no interval contains the item.
    """
    containers = pl.repeat(None, items.height, dtype=pl.Int64, eager=True)
    if not items.height or not intervals.height:
        return containers
    interval_positions, item_positions = containment.compute_axis_positions(
        intervals, _replace_ends_before_starts_with_null(items), by=by
    )
    for chain in containment.split_into_chains(item_positions):
        slices = containment.find_contained_slices(interval_positions, chain)
        last = containment.compute_covering_maxima(slices["row"], slices, chain.height)
        containers = containers.scatter(chain["row"], last.cast(pl.Int64))
    return containers


def _replace_ends_before_starts_with_null(items: pl.DataFrame) -> pl.DataFrame:
    """Replace ``end_ns`` with null where it is earlier than ``start_ns``."""
    return items.with_columns(pl.when(pl.col("end_ns") >= pl.col("start_ns")).then("end_ns"))


def find_instances_of_calls(calls: pl.DataFrame, instances: pl.DataFrame) -> pl.DataFrame:
    """Return the op instance to which each API call is attributed.

    Args:
        calls: One row per call: ``call_id`` (ascending in time), ``process_id``, ``thread_id``, ``start_ns``,
            ``end_ns``, ``has_work`` (whether the call launches activities or waits for them).
        instances: Op instances in order of start: ``process_id``, ``thread_id``, ``start_ns``, ``end_ns``.

    Returns:
        One row per call: ``instance`` (row number in ``instances``) and ``root_call`` (row number of the call that is
        the root of its unassociated instance, possibly the call itself). At most one of them is not null.
    """
    own = find_last_containing_intervals(calls, instances, by=["process_id", "thread_id"])
    left = calls.with_row_index("row").filter(own.is_null())
    shared = find_last_containing_intervals(left, instances, by=["process_id"])
    outside = left.filter(shared.is_null() & left["has_work"])
    roots = outside.filter(_find_latest_roots_with_larger_ids(outside, outside).is_null())
    is_root = left.select(pl.col("row").is_in(roots["row"].implode())).to_series()
    root = roots["row"].gather(_find_latest_roots_with_larger_ids(left, roots)).cast(pl.Int64)
    starts = pl.DataFrame({"op": instances["start_ns"].gather(shared), "root": calls["start_ns"].gather(root)})
    in_root = starts.select((pl.col("root") >= pl.col("op")).fill_null(pl.col("root").is_not_null())).to_series()
    rows = left["row"].cast(pl.Int64)
    attributed = left.select(
        "row",
        instance=pl.when(~in_root & ~is_root).then(shared),
        root_call=pl.when(is_root).then(rows).when(in_root).then(root),
    )
    empty = pl.repeat(None, calls.height, dtype=pl.Int64, eager=True)
    return pl.DataFrame(
        {
            "instance": own.scatter(attributed["row"], attributed["instance"]),
            "root_call": empty.scatter(attributed["row"], attributed["root_call"]),
        }
    )


def _find_latest_roots_with_larger_ids(calls: pl.DataFrame, roots: pl.DataFrame) -> pl.Series:
    """Return the root call that contains each API call. Only root calls with a larger call id are considered.

    Calls are attributed from the last to the first, so all roots that exist when a call is attributed have larger ids.
    If several of them contain the call, the one that started last is returned.

    Returns:
        One row number of ``roots`` per call (Int64), or null if no root with a larger id contains the call.
    """
    best = pl.DataFrame({"start": pl.repeat(None, calls.height, dtype=pl.Int64, eager=True)})
    best = best.with_columns(id=pl.col("start"), root=pl.col("start"))
    if not calls.height or not roots.height:
        return best["root"]
    by = ["process_id"]
    root_positions, call_positions = containment.compute_axis_positions(
        _replace_ends_before_starts_with_null(roots), calls, by=by
    )
    for chain in containment.split_into_chains(root_positions):
        ids = roots["call_id"].gather(chain["row"])
        containing = _find_enclosing_slices(call_positions, chain)
        last = _find_last_rows_above_limit(ids, containing, calls["call_id"].gather(call_positions["row"]))
        candidates = pl.DataFrame(
            {
                "row": call_positions["row"],
                "start": roots["start_ns"].gather(chain["row"].gather(last)),
                "id": ids.gather(last),
                "root": chain["row"].gather(last).cast(pl.Int64),
            }
        ).drop_nulls()
        best = _replace_with_later_candidates(best, candidates)
    return best["root"]


def _find_enclosing_slices(positions: pl.DataFrame, chain: pl.DataFrame) -> pl.DataFrame:
    """Find the intervals of a chain that contain each given interval, bounds included.

    In a chain, starts and ends are both ascending.

    Returns:
        One slice of the chain per given interval: ``first`` (first row) and ``stop`` (row after the last row).
    """
    first = chain["end"].search_sorted(positions["end"], side="left").cast(pl.Int64)
    stop = chain["start"].search_sorted(positions["start"], side="right").cast(pl.Int64)
    return pl.DataFrame({"first": first, "stop": stop})


def _find_last_rows_above_limit(values: pl.Series, slices: pl.DataFrame, limits: pl.Series) -> pl.Series:
    """For each slice, return the last row with a value above the limit of the slice, or null if there is none.

    The search starts at the end of the slice. Each step skips a block of rows if no value in the block is above the
    limit. The size of the blocks is halved after each step.
    """
    maxima = [values]
    while (width := 1 << len(maxima)) <= len(values):
        half = maxima[-1]
        maxima.append(pl.select(pl.max_horizontal(half, half.shift(-(width >> 1)))).to_series())
    stop, first = slices["stop"], slices["first"]
    for power in range(len(maxima) - 1, -1, -1):
        start = stop - (1 << power)
        inside = start >= first
        largest = maxima[power].gather(replace_with_null_unless(inside, start))
        stop = start.zip_with((inside & (largest <= limits)).fill_null(False), stop)  # noqa: FBT003
    return pl.select(pl.when(stop > first).then(stop - 1)).to_series()


def _replace_with_later_candidates(best: pl.DataFrame, candidates: pl.DataFrame) -> pl.DataFrame:
    """Replace rows with candidates that started later.

    A candidate with the same start replaces a row if the id of the candidate is smaller. A row of nulls is always
    replaced.

    Args:
        best: The rows to replace: ``start``, ``id`` and other columns.
        candidates: The same columns, and ``row``, the row number in ``best``.
    """
    old = best.select(pl.all().gather(candidates["row"]))
    same_start = candidates["start"] == old["start"]
    better = (candidates["start"] > old["start"]) | (same_start & (candidates["id"] < old["id"]))
    better_rows = candidates.filter(better.fill_null(True))  # noqa: FBT003
    return best.with_columns(best[c].scatter(better_rows["row"], better_rows[c]).alias(c) for c in best.columns)
