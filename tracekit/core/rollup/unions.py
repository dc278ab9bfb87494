"""Unions of intervals by group, for very many small groups.

All groups are laid end to end on one axis, so that one sort and one running maximum serve them all, and no group is
ever looked at by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

_LIMIT = 1 << 62


def merge(stretches: pl.DataFrame, *, by: Sequence[str]) -> pl.DataFrame:
    """Join intervals of a group that meet or touch: n rows in, one row a gapless stretch out, sorted.

    Args:
        stretches: The columns ``by`` (whole numbers, no nulls), ``start_ns``, ``end_ns``; empty ones are left out.
        by: Columns that name the group.

    Returns:
        ``by``, ``start_ns``, ``end_ns``; as of ``intervals.merge``.
    """
    solid = stretches.select(*by, "start_ns", "end_ns").filter(pl.col("start_ns") < pl.col("end_ns"))
    if not solid.height:
        return solid
    lows = {c: _whole(solid[c].min()) for c in by}
    sizes = {c: _whole(solid[c].max()) - lows[c] + 1 for c in by}
    first, last = _whole(solid["start_ns"].min()), _whole(solid["end_ns"].max())
    width = last - first + 1
    total = width
    for size in sizes.values():
        total *= size
    if total >= _LIMIT:
        return intervals.merge(solid, by=by)
    number = pl.lit(0, pl.Int64)
    for c in by:
        number = number * sizes[c] + (pl.col(c).cast(pl.Int64) - lows[c])
    placed = solid.select(
        start=number * width + (pl.col("start_ns") - first), end=number * width + (pl.col("end_ns") - first)
    )
    return _apart(_joined(placed), lows, sizes, width, first).select(
        *(pl.col(c).cast(solid.schema[c]) for c in by), "start_ns", "end_ns"
    )


def _joined(placed: pl.DataFrame) -> pl.DataFrame:
    """Join intervals on the axis: ``start`` and ``end`` of each gapless stretch, in order."""
    ordered = placed.sort("start")
    reach = ordered["end"].cum_max()
    opens = (ordered["start"] > reach.shift(1)).fill_null(value=True)
    at = opens.arg_true().cast(pl.Int64)
    last = pl.concat([at.slice(1) - 1, pl.Series([ordered.height - 1], dtype=pl.Int64)])
    return pl.DataFrame({"start": ordered["start"].gather(at), "end": reach.gather(last)})


def _apart(joined: pl.DataFrame, lows: dict[str, int], sizes: dict[str, int], width: int, first: int) -> pl.DataFrame:
    """Read groups and times from places on the axis."""
    number, made = pl.col("start") // width, {}
    for c in reversed(list(sizes)):
        made[c] = number % sizes[c] + lows[c]
        number = number // sizes[c]
    origin = pl.col("start") // width * width - first
    return joined.select(**made, start_ns=pl.col("start") - origin, end_ns=pl.col("end") - origin)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
