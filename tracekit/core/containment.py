"""Which intervals contain which, and which of them an instant lies in, when they may nest, touch, cross or coincide.

Definitions. An interval lies on a *track* (the columns named by ``by``); one with a null track or time lies nowhere.
``p`` *contains* ``c`` if both lie on one track, ``p.start_ns <= c.start_ns`` and ``p.end_ns >= c.end_ns``: bounds
included, as Nsight Systems has it. An instant ``t`` lies in ``[start_ns, end_ns)``: end excluded.

Method. All tracks are laid end to end on one axis (``place``). Intervals are dealt to *lanes* in which starts and ends
both ascend, so that what an interval contains of a lane is a contiguous *slice* of it, found by binary search. Minima
over slices, and the best slice over each place, come from doubling: log n whole-column steps. The number of lanes is
the depth of nesting: one for CUDA calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.errors import CorruptTraceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LARGEST = (1 << 63) - 1


def place(*frames: pl.DataFrame, by: Sequence[str]) -> list[pl.DataFrame]:
    """Lay all tracks end to end on one axis, where intervals of different tracks never meet.

    Args:
        frames: Intervals with the columns ``by``, ``start_ns`` and ``end_ns``.
        by: Columns that name the track.

    Returns:
        For each frame, n rows in, at most n rows out in the same order: ``row`` (its row number), ``track`` (a number),
        ``start`` and ``end`` (places on the axis, ns). Rows with a null track or time are left out.

    Raises:
        CorruptTraceError: The tracks together are longer than 2**63 ns (292 years).
    """
    keys = list(by)
    times = ["start_ns", "end_ns"]
    known = [f.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"), *keys, *times).drop_nulls() for f in frames]
    spans = pl.concat([f.group_by(keys).agg(_lowest(times), _highest(times)) for f in known])
    tracks = spans.group_by(keys).agg(pl.col("low").min(), pl.col("high").max()).sort(keys).with_row_index("track")
    tracks = tracks.with_columns((pl.col("high").cast(pl.Int128) - pl.col("low") + 1).alias("length"))
    if (tracks["length"].sum() or 0) > _LARGEST:
        raise CorruptTraceError(f"the times of {tracks.height} tracks span more than 2**63 ns", hint="export it again")
    offset = (pl.col("length").cast(pl.Int64).cum_sum().shift(1, fill_value=0)).alias("offset")
    tracks = tracks.select(*keys, "track", "low", offset)
    return [f.join(tracks, on=keys, how="left", maintain_order="left").select(*_PLACED) for f in known]


_PLACED = (
    pl.col("row", "track"),
    (pl.col("start_ns") - pl.col("low") + pl.col("offset")).alias("start"),
    (pl.col("end_ns") - pl.col("low") + pl.col("offset")).alias("end"),
)


def _lowest(times: list[str]) -> pl.Expr:
    return pl.min_horizontal(pl.col(t).min() for t in times).alias("low")


def _highest(times: list[str]) -> pl.Expr:
    return pl.max_horizontal(pl.col(t).max() for t in times).alias("high")


def lanes(placed: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Deal placed intervals to lanes in which starts and ends both ascend.

    Yields:
        Frames with the columns of ``placed``; each of its rows is in exactly one. The first may have no rows.
    """
    rest = placed.sort("start", "end", maintain_order=True)
    while True:
        ascends = rest["end"] >= rest["end"].cum_max()
        yield rest.filter(ascends)
        rest = rest.filter(~ascends)
        if rest.is_empty():
            return


def slices(placed: pl.DataFrame, lane: pl.DataFrame) -> pl.DataFrame:
    """Find what each interval contains of a lane.

    Returns:
        n intervals in, at most n rows out in the same order: ``row`` of the interval, ``first`` and ``stop`` (positions
        in the lane, ``stop`` excluded). Intervals that contain nothing of the lane are left out.
    """
    first = lane["start"].search_sorted(placed["start"], side="left")
    stop = lane["end"].search_sorted(placed["end"], side="right")
    found = pl.DataFrame({"row": placed["row"], "first": first.cast(pl.Int64), "stop": stop.cast(pl.Int64)})
    return found.filter(pl.col("first") < pl.col("stop"))


def slice_members(found: pl.DataFrame, lane: pl.DataFrame) -> pl.DataFrame:
    """List every pair of an interval and a member of its slice.

    Returns:
        One row a pair, in the order of ``found`` and then of the lane: ``row`` of the interval, ``member`` (row of the
        contained interval).
    """
    pairs = found.select("row", pl.int_ranges("first", "stop", dtype=pl.UInt32).alias("position")).explode("position")
    return pairs.select("row", lane["row"].gather(pairs["position"]).alias("member"))


def slice_min(values: pl.Series, found: pl.DataFrame) -> pl.Series:
    """Take the minimum of each slice of a column.

    Args:
        values: One value a position; no nulls.
        found: Slices that are not empty, ``first`` and ``stop``.

    Returns:
        One value a slice, in the order of ``found``.
    """
    todo = found.select("first", "stop", power=_POWER).with_row_index("slice")
    done = [pl.DataFrame({"slice": todo["slice"].clear(), "least": values.clear()})]
    for power in range(_top(todo) + 1):
        now = todo.filter(power=power)
        ends = pl.DataFrame({"a": values.gather(now["first"]), "b": values.gather(now["stop"] - (1 << power))})
        done.append(ends.select(now["slice"], pl.min_horizontal("a", "b").alias("least")))
        values = pl.select(pl.min_horizontal(values, values.shift(-(1 << power)))).to_series()
    return pl.concat(done).sort("slice")["least"]


def slice_paint(values: pl.Series, found: pl.DataFrame, length: int) -> pl.Series:
    """Take, for each position, the largest value of the slices that cover it.

    Args:
        values: One value a slice; no nulls.
        found: Slices that are not empty, ``first`` and ``stop``.
        length: Number of positions.

    Returns:
        One value a position; null where no slice covers it.
    """
    todo = found.select("first", "stop", values.alias("value"), power=_POWER)
    best = pl.repeat(None, length, dtype=values.dtype, eager=True)
    for power in range(_top(todo), -1, -1):
        now = todo.filter(power=power)
        ends = pl.concat([now.select("value", at="first"), now.select("value", at=pl.col("stop") - (1 << power))])
        best = _raised(best, ends.group_by("at").agg(pl.col("value").max()))
        if power:
            best = pl.select(pl.max_horizontal(best, best.shift(1 << (power - 1)))).to_series()
    return best


_POWER = 63 - (pl.col("stop") - pl.col("first")).bitwise_leading_zeros().cast(pl.Int64)  # of two, the largest that fits


def _top(todo: pl.DataFrame) -> int:
    return -1 if todo.is_empty() else int(todo["power"].max())  # type: ignore[arg-type]


def _raised(best: pl.Series, to: pl.DataFrame) -> pl.Series:
    higher = to.select(pl.max_horizontal("value", best.gather(to["at"]).alias("old")))
    return best.scatter(to["at"], higher.to_series())


def parents(ranges: pl.DataFrame, *, by: Sequence[str]) -> pl.Series:
    """Find the parent of each range: the shortest other range that contains it; of several, the first.

    Ranges that coincide are each other's parents, which makes a cycle: all but the first have the first one, and it has
    the second.

    Args:
        ranges: Columns ``by``, ``start_ns`` and ``end_ns``; any overlap is allowed.
        by: Columns that name the track.

    Returns:
        Row number of the parent, n rows in, n values out; null where nothing contains the range.
    """
    (placed,) = place(ranges, by=by)
    ordered = placed.sort("start", "end", "row", descending=[False, True, False])
    nested = _nested_parents(ordered)
    irregular = nested.filter(~pl.col("regular")).select("track").unique()
    crossing = _shortest_containers(placed.join(irregular, on="track", how="semi"))
    found = pl.repeat(None, ranges.height, dtype=pl.UInt32, eager=True)
    for part in (nested, crossing, _twins(ordered)):
        found = found.scatter(part["row"], part["parent"])
    return found


# Of rows in order of start and end: whether a row coincides with the one before, and the first that it coincides with.
_IS_TWIN = pl.all_horizontal(pl.col(c) == pl.col(c).shift(1) for c in ("start", "end")).fill_null(value=False)
_FIRST_TWIN = pl.when(~_IS_TWIN).then("row").forward_fill()


def _nested_parents(ordered: pl.DataFrame) -> pl.DataFrame:
    """Find parents as if ranges of a track never crossed: the last one to start one level up.

    ``regular`` says whether the finding holds. Where it does for all ranges of a track, the chain of parents of each
    is as long as the number of ranges then open: all of these contain it, and the last of them is the shortest.
    """
    position = pl.int_range(pl.len())
    closed = ordered["end"].sort().search_sorted(ordered["start"], side="right")
    rows = ordered.with_columns(position.alias("position"), (position - closed.cast(pl.Int64)).alias("level"))
    outer = rows.select("position", "level", _FIRST_TWIN.alias("parent"), outer_start="start", outer_end="end")
    outer = outer.with_columns(pl.col("level") + 1)
    found = rows.join_asof(outer, on="position", by="level", strategy="backward", check_sortedness=False)
    contained = (pl.col("outer_start") <= pl.col("start")) & (pl.col("outer_end") >= pl.col("end"))
    regular = (pl.col("level") == 0) | ((pl.col("level") > 0) & contained.fill_null(value=False))
    return found.select(
        "row",
        "track",
        pl.when(pl.col("level") > 0).then("parent").alias("parent"),
        (regular & (pl.col("start") < pl.col("end"))).alias("regular"),
    )


def _shortest_containers(placed: pl.DataFrame) -> pl.DataFrame:
    """Find parents however ranges cross; ``row`` and ``parent``."""
    ranked = placed.sort(pl.col("end") - pl.col("start"), "row", descending=True)
    rows = ranked["row"]
    ranked = ranked.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"))  # the later, the shorter
    found = []
    for lane in lanes(ranked):
        others = _without_itself(slices(ranked, lane), lane)
        best = slice_paint(others["row"], others, lane.height)
        found.append(pl.DataFrame({"row": rows.gather(lane["row"]), "parent": rows.gather(best)}))
    return pl.concat(found)


def _without_itself(found: pl.DataFrame, lane: pl.DataFrame) -> pl.DataFrame:
    """Cut each interval out of its own slice, which leaves up to two."""
    own = lane.select("row", pl.int_range(pl.len()).alias("own"))
    found = found.join(own, on="row", how="left")
    before = found.select("row", "first", pl.min_horizontal("stop", "own").alias("stop"))
    after = found.select("row", (pl.col("own") + 1).alias("first"), "stop")
    return pl.concat([before, after]).filter(pl.col("first") < pl.col("stop"))


def _twins(ordered: pl.DataFrame) -> pl.DataFrame:
    """Make ranges that coincide each other's parents; ``row`` and ``parent`` of these alone."""
    parent = pl.when(_IS_TWIN).then(_FIRST_TWIN).when(_IS_TWIN.shift(-1)).then(pl.col("row").shift(-1))
    return ordered.select("row", parent.alias("parent")).drop_nulls()


def levels(parent: pl.Series) -> pl.Series:
    """Count the steps from each row up to a row without parent.

    Args:
        parent: Row number of the parent, or null.

    Returns:
        Int64, n values in, n values out; null on and below a cycle.
    """
    return _fold_up(parent, parent.is_not_null().cast(pl.Int64))


def paths(parent: pl.Series, texts: pl.Series) -> pl.Series:
    """Join the texts of each row's ancestors and its own, outermost first.

    Args:
        parent: Row number of the parent, or null.
        texts: One text a row.

    Returns:
        n values in, n values out; null on and below a cycle.
    """
    table = pl.DataFrame({"parent": parent, "text": texts, "level": levels(parent)})
    known = pl.col("level").is_not_null()
    table = table.select(pl.when(known).then("parent").alias("parent"), pl.when(known).then("text").alias("text"))
    return _fold_up(table["parent"], table["text"])


def _fold_up(parent: pl.Series, values: pl.Series) -> pl.Series:
    """Add to each value those of all ancestors, before it, in steps that double; null where there is no end to them."""
    state = pl.DataFrame({"up": parent, "sum": values})
    for _ in range(parent.len().bit_length()):
        if state["up"].null_count() == parent.len():
            break
        above = state.select(pl.col("up", "sum").gather(pl.col("up")).name.suffix("_above"))
        total = pl.when(pl.col("up").is_null()).then("sum").otherwise(pl.col("sum_above") + pl.col("sum"))
        state = state.hstack(above).select(pl.col("up_above").alias("up"), total.alias("sum"))
    return state.select(pl.when(pl.col("up").is_null()).then("sum")).to_series()


def latest_enclosing(points: pl.LazyFrame, ranges: pl.LazyFrame, *, at: str, by: Sequence[str]) -> pl.LazyFrame:
    """Add to each point the range it lies in; of several, the one that started last, and of these the largest id.

    Args:
        points: Columns ``by`` and ``at`` (ns), and any others.
        ranges: Columns ``by``, ``start_ns``, ``end_ns`` (null: never ends) and ``range_id``; any overlap is allowed.
        at: Column of ``points`` that holds the time.
        by: Columns that name the track.

    Returns:
        n points in, the same n points out in their order, with ``range_id``: null where no range is open. Both frames
        are collected.
    """
    asked = points.collect()
    last = asked[at].max()
    known = ranges.select(*by, "start_ns", "end_ns", "range_id").sort("start_ns", "range_id").collect()
    closed = known.with_columns((pl.col("end_ns") - 1).fill_null(pl.lit(last, pl.Int64)))
    instants = asked.select(*by, pl.col(at).alias("start_ns"), pl.col(at).alias("end_ns"))
    placed, lane = place(closed, instants, by=by)
    lane = lane.sort("start")
    found = slices(placed, lane)
    best = known["range_id"].gather(slice_paint(found["row"], found, lane.height))
    ids = pl.repeat(None, asked.height, dtype=best.dtype, eager=True).scatter(lane["row"], best)
    return asked.with_columns(ids.alias("range_id")).lazy()
