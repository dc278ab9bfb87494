"""Find the interval that holds another, and the op that a call of CUDA belongs to.

A call belongs to the op of its thread that began last among those it lies in as a whole, bounds included; if there is
none, to such an op of any thread of its process, which is how calls of the autograd thread come to the backward op. A
call that starts GPU work or waits for it and finds no op makes one of its own, an *unassociated* op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.intervals import containment

if TYPE_CHECKING:
    from collections.abc import Sequence


def holders(items: pl.DataFrame, intervals: pl.DataFrame, *, by: Sequence[str]) -> pl.Series:
    """Find for each item the last interval, in the order of rows, that holds it, bounds included.

    Args:
        items: Columns ``by``, ``start_ns``, ``end_ns``; one that ends before it starts lies nowhere.
        intervals: The same columns; any overlap is allowed.
        by: Columns that name the track.

    Returns:
        n items in, n rows of ``intervals`` out (Int64), null where none holds the item.
    """
    found = pl.repeat(None, items.height, dtype=pl.Int64, eager=True)
    if not items.height or not intervals.height:
        return found
    placed, asked = containment.axis_positions(intervals, _forward(items), by=by)
    for lane in containment.chains(asked):
        held = containment.contained_slices(placed, lane)
        best = containment.covering_maxima(held["row"], held, lane.height)
        found = found.scatter(lane["row"], best.cast(pl.Int64))
    return found


def _forward(items: pl.DataFrame) -> pl.DataFrame:
    """Take the ends from items that end before they start."""
    return items.with_columns(pl.when(pl.col("end_ns") >= pl.col("start_ns")).then("end_ns"))


def owners(calls: pl.DataFrame, instances: pl.DataFrame) -> pl.DataFrame:
    """Find the op instance that each call belongs to.

    Args:
        calls: One row a call: ``call_id`` (of two calls the later one has the larger), ``process_id``, ``thread_id``,
            ``start_ns``, ``end_ns``, ``works`` (whether it starts or awaits GPU work).
        instances: Rows in order of start, with the same columns of place and time.

    Returns:
        n calls in, n rows out: ``instance`` (row of ``instances``), ``made_by`` (row of the call whose unassociated op
        it belongs to; its own row if it makes one). Both null: the call belongs to nothing.
    """
    own = holders(calls, instances, by=["process_id", "thread_id"])
    left = calls.with_row_index("row").filter(own.is_null())
    shared = holders(left, instances, by=["process_id"])
    alone = left.filter(shared.is_null() & left["works"])
    roots = alone.filter(_latest_of_later(alone, alone).is_null())
    joined = _latest_of_later(left, roots)
    self_made = left.select(pl.col("row").is_in(roots["row"].implode())).to_series()
    root = roots["row"].gather(joined).cast(pl.Int64)
    starts = pl.DataFrame({"op": instances["start_ns"].gather(shared), "root": calls["start_ns"].gather(root)})
    wins = starts.select((pl.col("root") >= pl.col("op")).fill_null(pl.col("root").is_not_null())).to_series()
    rows = left["row"].cast(pl.Int64)
    placed = left.select(
        "row",
        instance=pl.when(~wins & ~self_made).then(shared),
        made_by=pl.when(self_made).then(rows).when(wins).then(root),
    )
    empty = pl.repeat(None, calls.height, dtype=pl.Int64, eager=True)
    return pl.DataFrame(
        {
            "instance": own.scatter(placed["row"], placed["instance"]),
            "made_by": empty.scatter(placed["row"], placed["made_by"]),
        }
    )


def _latest_of_later(calls: pl.DataFrame, makers: pl.DataFrame) -> pl.Series:
    """Find for each call the maker with a larger id that holds it, of several the one that began last.

    Calls are dealt with from the last to the first, and an op that one of them makes is there for those after it.

    Returns:
        n calls in, n rows of ``makers`` out (Int64), null where there is none.
    """
    found = pl.DataFrame({"start": pl.repeat(None, calls.height, dtype=pl.Int64, eager=True)})
    found = found.with_columns(id=pl.col("start"), maker=pl.col("start"))
    if not calls.height or not makers.height:
        return found["maker"]
    placed, asked = containment.axis_positions(_forward(makers), calls, by=["process_id"])
    for lane in containment.chains(placed):
        ids = makers["call_id"].gather(lane["row"])
        at = _last_larger(ids, _around(asked, lane), calls["call_id"].gather(asked["row"]))
        here = pl.DataFrame(
            {
                "row": asked["row"],
                "start": makers["start_ns"].gather(lane["row"].gather(at)),
                "id": ids.gather(at),
                "maker": lane["row"].gather(at).cast(pl.Int64),
            }
        ).drop_nulls()
        found = _best(found, here)
    return found["maker"]


def _around(asked: pl.DataFrame, lane: pl.DataFrame) -> pl.DataFrame:
    """Find which stretch of a lane holds each interval: what starts before it and ends after it, bounds included."""
    first = lane["end"].search_sorted(asked["end"], side="left").cast(pl.Int64)
    stop = lane["start"].search_sorted(asked["start"], side="right").cast(pl.Int64)
    return pl.DataFrame({"first": first, "stop": stop})


def _last_larger(values: pl.Series, slices: pl.DataFrame, than: pl.Series) -> pl.Series:
    """Find the last position of each slice whose value is larger than a number; null where there is none.

    From the end of the slice backwards, in steps that halve, over stretches that hold nothing larger.
    """
    ladder = [values]
    while (width := 1 << len(ladder)) <= len(values):
        low = ladder[-1]
        ladder.append(pl.select(pl.max_horizontal(low, low.shift(-(width >> 1)))).to_series())
    stop, first = slices["stop"], slices["first"]
    for power in range(len(ladder) - 1, -1, -1):
        at = stop - (1 << power)
        inside = at >= first
        largest = ladder[power].gather(at.zip_with(inside, pl.repeat(None, len(at), dtype=pl.Int64, eager=True)))
        stop = at.zip_with((inside & (largest <= than)).fill_null(False), stop)  # noqa: FBT003
    return pl.select(pl.when(stop > first).then(stop - 1)).to_series()


def _best(found: pl.DataFrame, here: pl.DataFrame) -> pl.DataFrame:
    """Keep of two findings the one that began later; of equal starts the one with the smaller id."""
    old = found.select(pl.all().gather(here["row"]))
    later = (here["start"] > old["start"]) | ((here["start"] == old["start"]) & (here["id"] < old["id"]))
    taken = here.filter(later.fill_null(True))  # noqa: FBT003
    return found.with_columns(found[c].scatter(taken["row"], taken[c]).alias(c) for c in found.columns)
