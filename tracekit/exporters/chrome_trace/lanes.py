"""Lanes: how the slices of one track are spread so that no viewer drops one.

Slices of one lane never overlap. A *component* is a run of slices that touch each other: none begins while no earlier
one is open. Slices that are alone in their component stay on lane 0, and a component in which L slices are open at
once uses the lanes 0 to L-1, so a track has as few lanes as can be.

Inside a component the i-th slice to start takes lane i while i < L, and from then on the lane of the slice that was
the (i-L)-th to end: when the i-th starts at most L-1 others are open, so that one has ended. Which lane that was
follows by pointer jumping, in log n passes over whole columns.
"""

from __future__ import annotations

import polars as pl


def crowded(start: pl.Expr, end: pl.Expr) -> pl.Expr:
    """Say whether the slices of a track may overlap: false only if each starts when the one before has ended.

    Slices of no length count as 1 ns.
    """
    return (pl.max_horizontal(end, start + 1).shift(1) > start).any()


def assign(start_ns: pl.Series, end_ns: pl.Series, *, nests: bool = False) -> pl.Series:
    """Give each slice of a track a lane: n slices in, n lane numbers out.

    A slice ends before another one starts at the same time. Slices of no length are laid out as if they took 1 ns.

    Args:
        start_ns: Starts, in any order.
        end_ns: Ends.
        nests: Whether lanes may hold slices within slices; then only components in which slices cross are spread.

    Returns:
        Lanes from 0, UInt32, in the order of the slices.
    """
    slices = pl.DataFrame({"start": start_ns, "end": end_ns}).with_row_index("slice")
    busy = _busy(slices.with_columns(pl.max_horizontal("end", pl.col("start") + 1)))
    moments = _moments(busy)
    if nests:
        busy = busy.filter(pl.col("component").is_in(_crossing(moments)["component"].implode()))
        busy = busy.drop("row").with_row_index("row")
        moments = _moments(busy)
    lanes = _strict(busy, moments)
    return pl.zeros(len(slices), pl.UInt32, eager=True).scatter(busy["slice"], lanes)


def _busy(slices: pl.DataFrame) -> pl.DataFrame:
    """Keep the slices that share their component, by start, the longer first: row, slice, component, start, end."""
    ordered = slices.sort("start", "end", descending=[False, True], maintain_order=True)
    begins = (pl.col("start") >= pl.col("end").cum_max().shift(1)).fill_null(value=True)
    components = ordered.with_columns(component=begins.cum_sum())
    shared = components.filter(pl.len().over("component") > 1)
    return shared.with_row_index("row")


def _moments(busy: pl.DataFrame) -> pl.DataFrame:
    """Return every start and end in order of time with the depth it opens or closes: component, row, starts, depth."""
    starts = busy.select("component", "row", at="start", starts=True, rank=pl.col("row").cast(pl.Int64))
    ends = busy.select("component", "row", at="end", starts=False, rank=-pl.col("row").cast(pl.Int64))
    both = pl.concat([starts, ends]).sort("component", "at", "starts", "rank")
    opened = pl.when("starts").then(1).otherwise(-1).cum_sum()
    return both.select("component", "row", "starts", depth=opened - pl.col("starts").cast(pl.Int32))


def _crossing(moments: pl.DataFrame) -> pl.DataFrame:
    """Return the components in which slices cross: there a depth is closed by another slice than opened it."""
    by_depth = moments.sort("depth", maintain_order=True)
    mismatch = pl.col("starts") & (pl.col("row") != pl.col("row").shift(-1))
    return by_depth.filter(mismatch).select("component").unique()


def _strict(busy: pl.DataFrame, moments: pl.DataFrame) -> pl.Series:
    """Give each slice a lane of its own at any time."""
    ended = moments.filter(~pl.col("starts"))["row"]
    depths = moments.filter("starts").sort("row")["depth"]
    start = pl.int_range(pl.len()).over("component")
    lanes_needed = pl.col("depth").max().over("component") + 1
    ranked = busy.with_columns(depth=depths).select("row", nth=start, lanes=lanes_needed)
    own = pl.col("nth") < pl.col("lanes")
    inherits = pl.lit(ended).gather(pl.when(own).then("row").otherwise(pl.col("row") - pl.col("lanes")))
    heir_of = ranked.select(pl.when(own).then("row").otherwise(inherits)).to_series()
    return ranked["nth"].gather(_roots(heir_of)).cast(pl.UInt32)


def _roots(parents: pl.Series) -> pl.Series:
    """Follow every pointer to its end, all at once: each pass doubles the distance."""
    while not (further := parents.gather(parents)).equals(parents):
        parents = further
    return parents
