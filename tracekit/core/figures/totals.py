"""Sum the durations of kernels by name, and of memory copies and sets by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

    Frames = Callable[[str], pl.LazyFrame]

_DURATION = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("time_ns")
_COUNT = pl.len().cast(pl.Int64).alias("count")
_LARGEST_FIRST = ["time_ns", "name"]


def summarize_kernels(frames: Frames) -> pl.DataFrame:
    """Return the duration and number of kernels by name.

    If no kernel was recorded, the kernels that Nsight Compute profiled are used.

    Returns:
        One row per name, longest first: ``name`` (String), ``time_ns`` and ``count``.
    """
    name = pl.col("name").cast(pl.String)
    rows = frames("kernels").group_by("name").agg(_DURATION, _COUNT).with_columns(name).collect()
    if rows.is_empty():
        launches = frames("ncu_launches").filter(
            pl.col("kind").cast(pl.String) != "group", pl.col("name").is_not_null()
        )
        times = pl.col("duration_ns").sum().cast(pl.Int64).alias("time_ns")
        rows = launches.group_by("name").agg(times, _COUNT).with_columns(name).collect()
    return rows.sort(_LARGEST_FIRST, descending=[True, False])


def summarize_memory_operations(frames: Frames) -> pl.DataFrame:
    """Return the duration, number and bytes of memory copies by kind, and of memory sets.

    Returns:
        One row per kind, longest first: ``name`` (null for copies of unknown kind), ``time_ns``, ``count`` and
        ``bytes``.
    """
    size = pl.col("bytes").sum()
    kind = pl.col("copy_kind").cast(pl.String).alias("name")
    copies = frames("memcpys").group_by("copy_kind").agg(_DURATION, _COUNT, size).collect()
    sets = frames("memsets").select(pl.lit("Memset").alias("name"), _DURATION, _COUNT, size).collect()
    rows = [copies.select(kind, "time_ns", "count", "bytes"), sets.filter(pl.col("count") > 0)]
    return pl.concat(rows).sort(_LARGEST_FIRST, descending=[True, False], nulls_last=True)
