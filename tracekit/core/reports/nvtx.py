"""Reports on NVTX ranges: their own times, the kernels launched inside them, their projection on the GPU.

A range owns a call if it contains it on its thread, bounds included; all containing ranges own it, not only the
innermost. Domains do not matter to nesting. Marks, categories and payloads are in no report.

One difference from nsys: where two threads of a process create one domain id, nsys doubles the ranges of that domain
in three summaries and fails in the other reports; here each range counts once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.containment import lanes, levels, parents, paths, place, slice_members, slice_min, slices
from tracekit.core.reports.names import range_tag, text_order
from tracekit.core.reports.report import (
    CALL,
    CALLS,
    KERNEL_NAME_OPTIONS,
    LAUNCHES_IN_RANGES,
    RANGES,
    THREAD,
    TIMES,
    Request,
    report,
)
from tracekit.core.reports.sources import calls, closed, kernels, owning_ranges, ranges
from tracekit.core.reports.summary import (
    DURATION,
    largest_first,
    spread_columns,
    statistics,
    summarize,
    summary_columns,
)
from tracekit.core.reports.table import integer, mean, nanoseconds, text

if TYPE_CHECKING:
    from tracekit.core.reports.report import Frames

_STYLE = pl.when(pl.col("kind") == "push_pop").then(pl.lit("PushPop")).otherwise(pl.lit("StartEnd")).alias("style")
_CHILDREN = pl.len().alias("children")
_WORK = (*CALL, *TIMES)
_ALL_RANGES = {"nvtx_ranges": RANGES, "nvtx_marks": ("timestamp_ns",)}
_PROJECTED = {"nvtx_ranges": RANGES, "api_calls": CALLS, "kernels": _WORK, "memcpys": _WORK, "memsets": _WORK}


@report(*summary_columns("Instances"), text("Style", "style"), text("Range", "tag"), reads=_ALL_RANGES)
def nvtx_sum(request: Request) -> pl.LazyFrame:
    """NVTX ranges by name and style."""
    grouped = summarize(_all_ranges(request.frames), ["tag", "kind"])
    return largest_first(grouped.with_columns(_STYLE), "tag", "style")


@report(*summary_columns("Instances"), text("Range", "tag"), reads=_ALL_RANGES)
def nvtx_pushpop_sum(request: Request) -> pl.LazyFrame:
    """Push/pop ranges by name."""
    return largest_first(summarize(_all_ranges(request.frames).filter(pl.col("kind") == "push_pop"), ["tag"]), "tag")


@report(*summary_columns("Instances"), text("Range", "tag"), reads=_ALL_RANGES)
def nvtx_startend_sum(request: Request) -> pl.LazyFrame:
    """Start/end ranges by name."""
    return largest_first(summarize(_all_ranges(request.frames).filter(pl.col("kind") == "start_end"), ["tag"]), "tag")


@report(
    nanoseconds("Start", "start_ns"),
    nanoseconds("End", "end_ns"),
    nanoseconds("Duration", "duration_ns"),
    nanoseconds("DurChild", "children_ns"),
    nanoseconds("DurNonChild", "own_ns"),
    text("Name", "tag"),
    integer("PID", "process_id"),
    integer("TID", "thread_id"),
    integer("Lvl", "level"),
    integer("NumChild", "children"),
    integer("RangeId", "range_id"),
    integer("ParentId", "parent_id"),
    text("RangeStack", "stack"),
    text("NameTree", "indented"),
    reads={"nvtx_ranges": RANGES},
)
def nvtx_pushpop_trace(request: Request) -> pl.LazyFrame:
    """Every push/pop range with its place in the nesting, by start; at one start the shorter first."""
    rows = closed(ranges(request.frames).filter(pl.col("kind") == "push_pop"))
    tree = _with_stack(_with_parents(rows.with_columns(DURATION, range_tag()).collect()))
    tree = _with_children(tree, _CHILDREN, pl.col("duration_ns").sum().alias("children_ns"))
    rows = tree.lazy().filter(pl.col("level").is_not_null()).sort("start_ns", "duration_ns", "range_id")
    indent = pl.lit("").str.pad_start(2 * pl.col("level"), "-")
    own = pl.col("duration_ns") - pl.col("children_ns")
    indented = pl.concat_str(indent, pl.col("tag").cast(pl.String))
    return rows.with_columns(own.alias("own_ns"), indented.alias("indented"))


@report(
    text("NVTX Range", "tag"),
    text("Style", "style"),
    integer("PID", "process_id"),
    integer("TID", "thread_id"),
    integer("NVTX Inst", "ranges"),
    integer("Kern Inst", "kernels"),
    nanoseconds("Total Time", "total"),
    *spread_columns(),
    text("Kernel Name", "name"),
    options=KERNEL_NAME_OPTIONS,
    needs=LAUNCHES_IN_RANGES,
    reads={"nvtx_ranges": RANGES, "api_calls": CALLS, "kernels": _WORK},
)
def nvtx_kern_sum(request: Request) -> pl.LazyFrame:
    """Kernels by name, launching thread and containing range; kernels in no range too.

    Times run over pairs of range and kernel: inside two nested ranges of one name a kernel counts twice.
    """
    owners = owning_ranges(request.frames).collect()
    grouped = pl.concat(_kernels_by_owner(owners, _kernel_launches(request)), how="diagonal").lazy()
    style = pl.when(pl.col("kind").is_not_null()).then(_STYLE)
    order = [*map(pl.col, ("tag_order", *THREAD, "total", "style")), text_order(pl.col("name"))]
    descending = [False, False, False, True, False, False]
    return grouped.with_columns(style.alias("style")).sort(*order, descending=descending, nulls_last=descending)


@report(
    text("Name", "tag"),
    nanoseconds("Projected Start", "gpu_start_ns"),
    nanoseconds("Projected Duration", "gpu_ns"),
    nanoseconds("Orig Start", "start_ns"),
    nanoseconds("Orig Duration", "duration_ns"),
    text("Style", "style"),
    integer("PID", "process_id"),
    integer("TID", "thread_id"),
    integer("NumGPUOps", "ops"),
    integer("Lvl", "level"),
    integer("NumChild", "children"),
    integer("RangeId", "range_id"),
    integer("ParentId", "parent_id"),
    text("RangeStack", "stack"),
    reads=_PROJECTED,
)
def nvtx_gpu_proj_trace(request: Request) -> pl.LazyFrame:
    """Every range that launched GPU work, with the extent of that work, by range id."""
    return _with_stack(_projected(request.frames)).lazy().sort("range_id")


@report(
    text("Range", "tag"),
    text("Style", "style"),
    nanoseconds("Total Proj Time", "total"),
    nanoseconds("Total Range Time", "range_ns"),
    integer("Range Instances", "count"),
    *spread_columns(title="Proj "),
    integer("Total GPU Ops", "ops"),
    mean("Avg GPU Ops", "mean_ops"),
    mean("Avg Range Lvl", "mean_level"),
    mean("Avg Num Child", "mean_children"),
    reads=_PROJECTED,
)
def nvtx_gpu_proj_sum(request: Request) -> pl.LazyFrame:
    """Ranges that launched GPU work, by name and style."""
    rows = _projected(request.frames)
    means = (pl.col(c).mean().alias(f"mean_{c}") for c in ("ops", "level", "children"))
    totals = (pl.len().alias("count"), pl.col("duration_ns").sum().alias("range_ns"), pl.col("ops").sum())
    grouped = rows.lazy().group_by("tag", "style").agg(*statistics("gpu_ns"), *totals, *means)
    return largest_first(grouped, "tag", "style")


def _all_ranges(frames: Frames) -> pl.LazyFrame:
    """Read every range, those ended by another thread included; open ones end with the last NVTX event."""
    last_mark = frames("nvtx_marks").select(pl.col("timestamp_ns").max()).collect().item()
    return closed(ranges(frames), last_mark).with_columns(DURATION, range_tag())


def _with_parents(rows: pl.DataFrame) -> pl.DataFrame:
    """Add ``row``, ``parent`` (a row) and ``level`` (0 for a root; null on and below ranges that coincide)."""
    parent = parents(rows, by=THREAD)
    return rows.with_row_index("row").with_columns(parent.alias("parent"), levels(parent).alias("level"))


def _with_stack(tree: pl.DataFrame) -> pl.DataFrame:
    """Add ``parent_id`` and ``stack`` (``:id:id``, outermost first) where there is a level."""
    own = tree.select(pl.concat_str(pl.lit(":"), pl.col("range_id").cast(pl.String))).to_series()
    parent_id = tree["range_id"].gather(tree["parent"]).alias("parent_id")
    has_level = pl.col("level").is_not_null()
    return tree.with_columns(
        pl.when(has_level).then(parent_id).alias("parent_id"), paths(tree["parent"], own).alias("stack")
    )


def _with_children(tree: pl.DataFrame, *aggregates: pl.Expr) -> pl.DataFrame:
    """Add to each row of a tree what its direct children amount to; 0 if it has none."""
    children = tree.filter(pl.col("parent").is_not_null()).group_by("parent").agg(*aggregates)
    added = children.columns[1:]
    tree = tree.join(children, left_on="row", right_on="parent", how="left", maintain_order="left")
    return tree.with_columns(pl.col(added).fill_null(0))


def _kernel_launches(request: Request) -> pl.DataFrame:
    """Join kernels and their calls, one row a pair; the thread is null where the call is not known."""
    rows = kernels(request, *CALL, "start_ns", "end_ns").select(*CALL, "name", DURATION).with_row_index("kernel")
    launches = calls(request.frames).with_columns(pl.col("process_id").alias("caller"))
    joined = rows.join(launches, on=CALL, how="left")
    columns = ("kernel", "name", "duration_ns", "thread_id", "start_ns", "end_ns")
    return joined.select(*columns, process_id="caller").collect()


def _kernels_by_owner(owners: pl.DataFrame, launches: pl.DataFrame) -> list[pl.DataFrame]:
    """Sum kernels by containing range and name, then those in no range by thread and name."""
    pairs = _owned_launches(owners, launches)
    groups = _named_alike(owners, pairs["row"].unique())
    members = groups.select("group", "range").explode("range")
    group = np.zeros(owners.height, np.uint32)
    group[members["range"]] = members["group"]
    owned = launches.select("kernel", "name", "duration_ns")[pairs["member"]]
    owned = owned.with_columns(pairs["row"].alias("range"), pl.Series("group", group[pairs["row"]]))
    inside = owned.group_by("group", "name").agg(*_kernel_statistics(), pl.col("range").n_unique().alias("ranges"))
    alone = launches.with_row_index("member").join(pairs.select("member"), on="member", how="anti")
    outside = alone.group_by(*THREAD, "name").agg(*_kernel_statistics(), pl.lit(0, pl.UInt32).alias("ranges"))
    return [inside.join(groups.drop("range"), on="group", how="left").drop("group"), outside]


def _named_alike(owners: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """Group some ranges by name, kind and thread: ``group``, these, ``tag_order`` and the rows in ``range``."""
    used = owners[rows].select(range_tag(), "kind", *THREAD, rows.alias("range"))
    groups = used.group_by("tag", "kind", *THREAD).agg("range").sort("tag")
    return groups.with_columns(pl.col("tag").rle_id().alias("tag_order")).with_row_index("group")


def _kernel_statistics() -> list[pl.Expr]:
    return [*statistics("duration_ns"), pl.col("kernel").n_unique().alias("kernels")]


def _owned_launches(owners: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """List every pair of a range and a launch in it: ``row`` of the range, ``member`` (row of the launch)."""
    placed, intervals = place(owners, launches, by=THREAD)
    return _pairs(placed, intervals)


def _pairs(placed: pl.DataFrame, intervals: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([slice_members(slices(placed, lane), lane) for lane in lanes(intervals)])


def _projected(frames: Frames) -> pl.DataFrame:
    """List the ranges that launched GPU work, with its extent: ``gpu_start_ns``, ``gpu_ns``, ``ops`` and ``children``.

    ``ops`` are distinct correlation ids, so that a launch of a whole CUDA graph counts once; ``children`` are those
    that launched GPU work too. Whatever contains such a range is one of them, so they are a tree by themselves.
    """
    owners, launches = owning_ranges(frames).collect(), _launches(frames)
    placed, intervals = place(owners, launches, by=THREAD)
    parts = [_extents(placed, lane, launches) for lane in lanes(intervals)]
    extents = pl.concat(parts).group_by("row").agg(pl.col("low").min(), pl.col("high").max(), pl.col("ops").sum())
    if launches["work"].n_unique() < launches.height:
        extents = extents.drop("ops").join(_distinct_launches(placed, intervals, launches), on="row")
    gpu = extents.select("row", gpu_start_ns="low", gpu_ns=pl.col("high") - pl.col("low"), ops="ops").sort("row")
    found = owners[gpu["row"]].with_columns(DURATION, range_tag(), _STYLE).drop("domain", "name", "kind")
    return _with_children(_with_parents(found.hstack(gpu.drop("row"))), _CHILDREN)


def _launches(frames: Frames) -> pl.DataFrame:
    """Read the calls that launched GPU work, with its number and extent: ``work``, ``gpu_start_ns``, ``gpu_end_ns``."""
    tables = (frames(t) for t in ("kernels", "memcpys", "memsets"))
    work = pl.concat([t.select(*CALL, gpu_start_ns="start_ns", gpu_end_ns="end_ns") for t in tables])
    extent = work.group_by(*CALL).agg(pl.col("gpu_start_ns").min(), pl.col("gpu_end_ns").max())
    return calls(frames).join(extent.with_row_index("work"), on=CALL, how="inner").collect()


def _extents(placed: pl.DataFrame, lane: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Take, for each range, first start, last end and number of the launches of a lane in it."""
    inside = slices(placed, lane)
    starts, ends = (launches[c].gather(lane["row"]) for c in ("gpu_start_ns", "gpu_end_ns"))
    low, high = slice_min(starts, inside), -slice_min(-ends, inside)
    return inside.select("row", low.alias("low"), high.alias("high"), (pl.col("stop") - pl.col("first")).alias("ops"))


def _distinct_launches(placed: pl.DataFrame, intervals: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Count the launches in each range, those of one correlation id once: ``row``, ``ops``."""
    pairs = _pairs(placed, intervals)
    work = launches["work"].gather(pairs["member"]).alias("ops")
    return pairs.with_columns(work).group_by("row").agg(pl.col("ops").n_unique().cast(pl.Int64))
