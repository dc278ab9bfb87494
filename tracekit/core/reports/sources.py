"""Rows that several reports start from: kernels under the name asked for, memory operations, API calls, NVTX ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.containment import lanes, place, slice_paint, slices
from tracekit.core.reports.names import copy_name, set_name
from tracekit.core.reports.report import CALL, CALLS, RANGES, THREAD, TIMES
from tracekit.core.reports.summary import DURATION

if TYPE_CHECKING:
    from tracekit.core.reports.report import Frames, Request

MEMORY_OPS = {"memcpys": ("copy_kind", *TIMES, "bytes"), "memsets": (*TIMES, "bytes")}


def kernels(request: Request, *columns: str) -> pl.LazyFrame:
    """Read kernels, in the order of the file: ``name`` as the options want it, and further columns."""
    if "nvtx-name" not in request.options:
        return _kernels(request).select("name", *columns)
    wanted = dict.fromkeys([*CALL, *columns])
    return _under_range_names(_kernels(request).select("name", *wanted), request.frames).select("name", *columns)


def _kernels(request: Request) -> pl.LazyFrame:
    rows = request.frames("kernels")
    if "base" in request.options:
        return rows.with_columns(pl.coalesce("short_name", "name").alias("name"))
    if "mangled" in request.options:
        return rows.with_columns(pl.coalesce("mangled_name", "name").alias("name"))
    return rows


def memory_ops(frames: Frames) -> pl.LazyFrame:
    """Read copies, then sets: ``name``, ``duration_ns``, ``bytes``. Copies of a kind without label are left out."""
    copies = frames("memcpys").select(copy_name(pl.col("copy_kind")).alias("name"), DURATION, "bytes")
    sets = frames("memsets").select(set_name().alias("name"), DURATION, "bytes")
    return pl.concat([copies.filter(pl.col("name").is_not_null()), sets])


def calls(frames: Frames, *columns: str) -> pl.LazyFrame:
    """Read API calls: thread, ``correlation_id``, ``start_ns``, ``end_ns``, and further columns."""
    return frames("api_calls").select(*CALLS, *columns)


def ranges(frames: Frames) -> pl.LazyFrame:
    """Read NVTX ranges with what reports need of them."""
    return frames("nvtx_ranges").select(RANGES)


def closed(rows: pl.LazyFrame, latest_ns: int | None = None) -> pl.LazyFrame:
    """End open ranges at the latest start or end of all ranges, or at ``latest_ns``; nowhere if no range has an end."""
    start, end = pl.col("start_ns"), pl.col("end_ns")
    latest = pl.max_horizontal(start.max(), end.max(), pl.lit(latest_ns, pl.Int64))
    return rows.with_columns(end.fill_null(pl.when(end.max().is_not_null()).then(latest)))


def owning_ranges(frames: Frames) -> pl.LazyFrame:
    """Read the ranges that GPU work can belong to: those not ended by another thread; open ones end with the last."""
    return closed(ranges(frames)).filter(pl.col("end_thread_id").is_null())


def _under_range_names(rows: pl.LazyFrame, frames: Frames) -> pl.LazyFrame:
    """Name kernels ``range/kernel`` after the range around their launch; of several, the one that started last."""
    owners = owning_ranges(frames).sort("start_ns", "range_id").collect()
    named = rows.collect().with_row_index("kernel")
    launches = named.select("kernel", *CALL).join(calls(frames).collect(), on=CALL, how="inner")
    innermost = _last_started(owners, launches).group_by("kernel").agg(pl.col("range").max())
    named = named.join(innermost, on="kernel", how="left", maintain_order="left")
    named = named.with_columns(owners["name"].gather(named["range"]).alias("range_name"))
    return _joined_names(named.lazy())


def _last_started(owners: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Find, for each launch, the last row of ``owners`` that contains it: ``kernel``, ``range`` (null: none)."""
    placed, intervals = place(owners, launches, by=THREAD)
    found = []
    for lane in lanes(intervals):
        inside = slices(placed, lane)
        last = slice_paint(inside["row"], inside, lane.height)
        found.append(pl.DataFrame({"kernel": launches["kernel"].gather(lane["row"]), "range": last}))
    return pl.concat(found)


def _joined_names(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Put ``range_name`` and a slash before ``name``, where there is one; each distinct pair is joined once."""
    keys = ["range_name", "name"]
    texts = (pl.col(k).cast(pl.String) for k in keys)
    joined = pl.concat_str(*texts, separator="/").cast(pl.Categorical).alias("joined")
    pairs = rows.select(keys).unique().with_columns(joined)
    rows = rows.join(pairs, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return rows.with_columns(pl.coalesce("joined", "name").alias("name"))
