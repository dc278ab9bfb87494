"""Place the ranges in which a CUDA graph was captured inside the API calls that replay it.

The activities of a replay all belong to one API call. So that each of them belongs to its layer, the ranges that
contain nodes of the graph are copied into the call, and the launch of each activity is moved into the innermost copied
range around it. The copies are in the order of the captured ranges, and divide the call into steps of equal length.
Their times have no other meaning.

A replay keeps its ranges if they cannot be placed strictly inside of the call, because the call is too short, or
because a range of the thread begins or ends during the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.core.intervals import map_in_threads
from tracekit.core.relations import THREAD
from tracekit.core.series import spill_frame
from tracekit.core.trees import MAX_LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable

_END, _START, _MOMENT = range(3)
"""Order of what happens at the same time: a range that ends is left before another one begins."""
_LAST = (1 << 63) - 1
_SEEDS = (0x5BD1, 0x9E37)


class Places(NamedTuple):
    """The points in time at which the program captured or launched what replays run.

    Attributes:
        points: One row per place: ``THREAD``, ``api_start_ns`` and ``range_row`` (row number of the innermost open
            push/pop range, or null).
        ranges: The push/pop ranges, in the order of their row numbers: ``THREAD``, ``start_ns`` and ``end_ns``.
        find_outer_rows: Function that returns the row number of the next open range outside of a given one, for the
            columns of ``points``.
        has_own_ranges: Whether the ranges are those of the capture with the replays.
    """

    points: pl.DataFrame
    ranges: pl.DataFrame
    find_outer_rows: Callable[[pl.DataFrame], pl.Series]
    has_own_ranges: bool


class ReplayLayout(NamedTuple):
    """The copied ranges, and the moved launches.

    Attributes:
        copies: One row per copied range: ``range_row`` (row number of the range in ``Places.ranges``), ``THREAD``,
            ``start_ns``, ``end_ns``.
        launches: One row per activity, in the given order: ``launch_ns`` (null if the launch is not moved) and ``copy``
            (row number of its innermost copied range, or null).
        replay_count: Number of replays with a known place inside of a range.
        whole_count: Number of these replays into which no ranges could be copied.
    """

    copies: pl.DataFrame
    launches: pl.DataFrame
    replay_count: int
    whole_count: int


def place_ranges(activities: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame, places: Places) -> ReplayLayout:
    """Copy the ranges of places into the calls that replay them, and move launches into the copies.

    Args:
        activities: One row per activity: ``call`` (row number of its API call, or null) and ``place`` (row number in
            ``places.points``, or null if it is not known).
        calls: The API calls: ``THREAD``, ``start_ns``, ``end_ns``.
        ranges: The push/pop ranges of the capture with the replays: ``THREAD``, ``start_ns``, ``end_ns``.
        places: Where the program captured or launched the activities.
    """
    in_ranges = places.points["range_row"].is_not_null()
    replayed = activities.filter(in_ranges.gather(activities["place"])).drop_nulls()
    replays, members = _find_patterns(replayed)
    replays = replays.hstack(calls.select(pl.all().gather(replays["call"])))
    held, moments = _order_boundaries(_list_held_ranges(members, places), members, places)
    replays = _add_steps(replays, held, ranges)
    copies = _copy_ranges(replays.filter("is_placed"), held, places)
    launches = _move_launches(activities, replays, moments, copies)
    copies = copies.filter("is_copied").drop("is_copied")
    return ReplayLayout(spill_frame(copies), spill_frame(launches), replays.height, int((~replays["is_placed"]).sum()))


def _find_patterns(replayed: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Group the calls that replay the same places, because their ranges are laid out in the same way.

    Args:
        replayed: One row per activity: ``call`` and ``place``.

    Returns:
        One row per call, in ascending order (``call``, ``pattern``), and one row per place of each pattern
        (``pattern``, ``place``).
    """
    hashes = {f"hash_{seed}": pl.col("place").hash(seed).sum() for seed in _SEEDS}
    replays = replayed.group_by("call").agg(pl.len().alias("count"), **hashes).sort("call")
    firsts = replays.unique(["count", *hashes], keep="first", maintain_order=True).with_row_index("pattern")
    replays = replays.join(firsts.drop("call"), on=["count", *hashes], maintain_order="left")
    members = replayed.join(firsts.select("call", "pattern"), on="call").select("pattern", "place").unique()
    return replays.select("call", "pattern"), members


def _list_held_ranges(members: pl.DataFrame, places: Places) -> pl.DataFrame:
    """Return the ranges that contain a place of each pattern: ``pattern`` and ``range_row``."""
    inside = places.points.select(pl.all().gather(members["place"])).hstack(members.select("pattern"))
    held = inside.select("pattern", "range_row").clear()
    for _ in range(MAX_LEVELS):
        if not inside.height:
            break
        held = pl.concat([held, inside.select("pattern", "range_row")]).unique()
        inside = inside.with_columns(range_row=places.find_outer_rows(inside)).drop_nulls("range_row")
    return held


def _order_boundaries(held: pl.DataFrame, members: pl.DataFrame, places: Places) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Number the starts and ends of the ranges of each pattern, and the places between them, in the order of time.

    Returns:
        The ranges of each pattern in the order of their starts (``pattern``, ``range_row``, ``first``, ``last``:
        numbers of its start and its end, ``index``: number within the pattern), and its places inside of ranges
        (``pattern``, ``place``, ``at``, and ``index`` of the innermost range).
    """
    ranges = held.hstack(places.ranges.select(pl.all().gather(held["range_row"])))
    ranges = ranges.with_columns(pl.col("end_ns").fill_null(_LAST))
    row = pl.col("range_row").cast(pl.Int64)
    columns = ["pattern", *THREAD, "range_row"]
    starts = ranges.select(*columns, time="start_ns", order=pl.lit(_START), tie=-pl.col("end_ns"), row=row)
    ends = ranges.select(*columns, time="end_ns", order=pl.lit(_END), tie=-pl.col("start_ns"), row=-row)
    points = members.hstack(places.points.select(pl.all().gather(members["place"])))
    zero = pl.lit(0, pl.Int64)
    moments = points.select(*columns, "place", time="api_start_ns", order=pl.lit(_MOMENT), tie=zero, row=zero)
    keys = ["pattern", *THREAD, "time", "order", "tie", "row"]
    rows = pl.concat([starts, ends, moments], how="diagonal").sort(keys)
    boundary = (pl.col("order") != _MOMENT).cast(pl.Int64)
    rows = rows.with_columns(at=2 * boundary.cum_sum().over("pattern") - boundary)
    firsts, lasts = (
        rows.filter(pl.col("order") == order).select("pattern", "range_row", pl.col("at").alias(name))
        for order, name in ((_START, "first"), (_END, "last"))
    )
    numbered = firsts.join(lasts, on=["pattern", "range_row"], maintain_order="left")
    numbered = numbered.with_columns(index=pl.int_range(pl.len()).over("pattern"))
    indices = numbered.select("pattern", "range_row", "index")
    moments = rows.filter(pl.col("order") == _MOMENT).join(indices, on=["pattern", "range_row"])
    return numbered, moments.select("pattern", "place", "at", "index")


def _add_steps(replays: pl.DataFrame, held: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Add the distance in ns of what is placed in each call (``step_ns``), and whether there is place (``is_placed``).

    Args:
        replays: One row per call: ``pattern`` and the columns of the call.
        held: The ranges of each pattern.
        ranges: The push/pop ranges of the capture with the replays.
    """
    counts = held.group_by("pattern").agg(slots=pl.col("last").max() + 1, ranges=pl.len().cast(pl.Int64))
    replays = replays.join(counts, on="pattern", maintain_order="left").with_row_index("replay")
    times = pl.concat(ranges.select(*THREAD, time=pl.col(c)) for c in ("start_ns", "end_ns")).drop_nulls().sort("time")
    last = replays.select("replay", *THREAD, "start_ns", time=pl.col("end_ns") - 1).sort("time")
    last = last.join_asof(times.with_columns(boundary="time"), on="time", by=THREAD, check_sortedness=False)
    is_free = (pl.col("boundary").is_null() | (pl.col("boundary") <= pl.col("start_ns"))).alias("is_free")
    free = last.select("replay", is_free)
    step = ((pl.col("end_ns") - pl.col("start_ns")) // pl.col("slots")).alias("step_ns")
    joined = replays.with_columns(step).join(free, on="replay", maintain_order="left")
    return joined.with_columns(is_placed=(pl.col("is_free") & (pl.col("step_ns") > 0)).fill_null(value=False))


def _copy_ranges(replays: pl.DataFrame, held: pl.DataFrame, places: Places) -> pl.DataFrame:
    """Return the ranges that are copied into each call, in the order of calls and starts.

    Returns:
        One row per range of the pattern of each call: ``range_row``, ``THREAD``, ``start_ns``, ``end_ns`` and
        ``is_copied``. A range that is open when the call begins is not copied.
    """
    rows = replays.join(held, on="pattern", maintain_order="left_right")
    call_start, step = pl.col("start_ns"), pl.col("step_ns")
    is_new = pl.lit(value=True)
    if places.has_own_ranges:
        names = {"process_id": "p", "thread_id": "t", "start_ns": "s", "end_ns": "e"}
        sources = places.ranges.select(pl.all().gather(rows["range_row"])).rename(names)
        rows = rows.hstack(sources)
        is_open = (pl.col("s") <= call_start) & (pl.col("e").is_null() | (pl.col("e") > call_start))
        same_thread = (pl.col("p") == pl.col("process_id")) & (pl.col("t") == pl.col("thread_id"))
        is_new = ~(is_open & same_thread).fill_null(value=False)
    return rows.select(
        "range_row",
        *THREAD,
        start_ns=call_start + pl.col("first") * step,
        end_ns=call_start + pl.col("last") * step,
        is_copied=is_new,
    )


def _move_launches(
    activities: pl.DataFrame, replays: pl.DataFrame, moments: pl.DataFrame, copies: pl.DataFrame
) -> pl.DataFrame:
    """Return the columns ``launch_ns`` and ``copy`` of ``ReplayLayout.launches``.

    Args:
        activities: One row per activity: ``call`` and ``place``.
        replays: One row per call: ``call``, ``pattern``, ``start_ns``, ``step_ns``, ``is_placed``, and ``ranges``
            (number of ranges of its pattern).
        moments: The places of each pattern inside of ranges.
        copies: The ranges of the calls in which ranges are placed, with those that are not copied.
    """
    placed = replays.filter("is_placed").with_columns(offset=pl.col("ranges").cum_sum() - pl.col("ranges"))
    placed = placed.select("call", "pattern", "start_ns", "step_ns", "offset")
    number = copies.select(pl.when("is_copied").then(pl.col("is_copied").cum_sum().cast(pl.Int64) - 1)).to_series()

    def move_batch(batch: pl.DataFrame) -> pl.Series:
        rows = batch.join(placed, on="call", how="left", maintain_order="left")
        rows = rows.join(moments, on=["pattern", "place"], how="left", maintain_order="left")
        copy = number.gather(rows.select(pl.col("offset") + pl.col("index")).to_series())
        time = pl.col("start_ns") + pl.col("at") * pl.col("step_ns")
        moved = rows.with_columns(copy=copy).select(
            pl.when(pl.col("copy").is_not_null()).then(time).alias("launch_ns"), "copy"
        )
        return moved.to_struct("launch")

    return map_in_threads(move_batch, activities).struct.unnest()
