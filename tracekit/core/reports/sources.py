"""Read the kernels, memory operations, API calls and NVTX ranges on which several reports are based."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.relations import CALL, LAUNCH, THREAD, join_calls, list_launch_columns, move_launches
from tracekit.core.reports.names import memcpy_label_expr, memset_label_expr, read_runtime_prefix
from tracekit.core.reports.report import CALL_COLUMNS, RANGE_COLUMNS
from tracekit.core.reports.summary import DURATION
from tracekit.core.select import FILTERS

if TYPE_CHECKING:
    from tracekit.core.reports.report import Frames, Request

OF_LAUNCHES = [name for name in FILTERS if name != "domains"]
"""Filters that do not apply to launches, because a kernel can be selected without its launch."""
_TRACED_CALL = 27  # event class of traced calls; other rows are samples and blocked states


def read_kernels(request: Request, *columns: str) -> pl.LazyFrame:
    """Read the ``name`` and the given columns of kernels, in file order.

    The options of the request determine whether ``name`` is the full, short or mangled name, and whether the name of
    the enclosing NVTX range precedes it.
    """
    if not request.has_flag("nvtx-name"):
        return _read_kernels_with_selected_name(request).select("name", *columns)
    needed = dict.fromkeys([*CALL, *list_launch_columns(request.frames("kernels")), *columns])
    rows = _read_kernels_with_selected_name(request).select("name", *needed)
    return _add_range_name_prefixes(rows, request.get_frames_without(*OF_LAUNCHES)).select("name", *columns)


def _read_kernels_with_selected_name(request: Request) -> pl.LazyFrame:
    rows = request.frames("kernels")
    if request.has_flag("base"):
        return rows.with_columns(pl.coalesce("short_name", "name").alias("name"))
    if request.has_flag("mangled"):
        return rows.with_columns(pl.coalesce("mangled_name", "name").alias("name"))
    return rows


def read_memory_operations(frames: Frames) -> pl.LazyFrame:
    """Read memory copies, followed by memory sets: ``name``, ``duration_ns``, ``bytes``.

    Copies whose kind is null are omitted.
    """
    prefix = read_runtime_prefix(frames)
    copies = frames("memcpys").select(memcpy_label_expr(pl.col("copy_kind"), prefix).alias("name"), DURATION, "bytes")
    sets = frames("memsets").select(memset_label_expr(prefix).alias("name"), DURATION, "bytes")
    return pl.concat([copies.filter(pl.col("name").is_not_null()), sets])


def read_api_calls(frames: Frames, *columns: str) -> pl.LazyFrame:
    """Read API calls, with the columns ``CALL_COLUMNS`` (thread, correlation id and times) and the given columns."""
    return frames("api_calls").select(*CALL_COLUMNS, *columns)


def read_osrt_calls(frames: Frames) -> pl.LazyFrame:
    """Read the operating system runtime calls that were traced, without those that were sampled."""
    return frames("osrt_calls").filter(event_class=_TRACED_CALL)


def join_thread_names(calls: pl.LazyFrame, frames: Frames) -> pl.LazyFrame:
    """Add the columns ``thread_name`` and ``priority`` to calls.

    A call is repeated for each name of its thread, in the order of the ids of the names. If the thread has no name, the
    call has one row.
    """
    threads = frames("threads").sort("name_id", "priority", maintain_order=True)
    threads = threads.select(*THREAD, "priority", thread_name="name")
    return calls.join(threads, on=THREAD, how="left", maintain_order="left_right")


def read_ranges(frames: Frames) -> pl.LazyFrame:
    """Read all NVTX ranges with the columns ``RANGE_COLUMNS``, such as name, domain, times, thread and kind."""
    return frames("nvtx_ranges").select(RANGE_COLUMNS)


def set_open_range_ends(rows: pl.LazyFrame, latest_ns: int | None = None) -> pl.LazyFrame:
    """Set the end of open ranges to the latest start or end of any range, or to ``latest_ns`` if that is later.

    If all ranges are open, their ends stay null, as in nsys.
    """
    start, end = pl.col("start_ns"), pl.col("end_ns")
    latest = pl.max_horizontal(start.max(), end.max(), pl.lit(latest_ns, pl.Int64))
    return rows.with_columns(end.fill_null(pl.when(end.max().is_not_null()).then(latest)))


def read_attributable_ranges(frames: Frames) -> pl.LazyFrame:
    """Read the NVTX ranges to which nsys attributes GPU activities: all ranges that no other thread ended.

    Open ranges end at the latest start or end of any range.
    """
    return set_open_range_ends(read_ranges(frames)).filter(pl.col("end_thread_id").is_null())


def _add_range_name_prefixes(rows: pl.LazyFrame, frames: Frames) -> pl.LazyFrame:
    """Prefix the name of each kernel with the name of the NVTX range in which the kernel was launched.

    If a kernel was launched in several ranges, the range that started last is used.
    """
    ranges = read_attributable_ranges(frames).sort("start_ns", "range_id").collect()
    named = rows.collect().with_row_index("kernel")
    keys = ["kernel", *CALL, *(c for c in named.columns if c == LAUNCH)]
    launches = move_launches(join_calls(named.select(keys), read_api_calls(frames).collect(), "all"))
    launches = launches.select("kernel", find_last_started_ranges(ranges, launches).alias("range"))
    innermost = launches.group_by("kernel").agg(pl.col("range").max())
    named = named.join(innermost, on="kernel", how="left", maintain_order="left")
    named = named.with_columns(ranges["name"].gather(named["range"]).alias("range_name"))
    return _prepend_range_name(named.lazy())


def find_last_started_ranges(ranges: pl.DataFrame, launches: pl.DataFrame) -> pl.Series:
    """Return the last of the NVTX ranges that contain each launch, bounds included, as nsys attributes launches.

    Correlation attributes a launch to the ranges that are open when its API call starts instead.

    Args:
        ranges: Ranges in order of start: ``process_id``, ``thread_id``, ``start_ns`` and ``end_ns``.
        launches: API calls, with the columns of ``ranges``.

    Returns:
        One row number of ``ranges`` per launch. It is null if no range contains the launch.
    """
    from tracekit.core.intervals.containment import find_last_containers

    return find_last_containers(launches, ranges, by=THREAD, allow_inverted=True)


def _prepend_range_name(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Prepend ``range_name`` and a slash to ``name`` where ``range_name`` is not null.

    To save time, each distinct pair of names is joined only once.
    """
    keys = ["range_name", "name"]
    strings = (pl.col(k).cast(pl.String) for k in keys)
    joined = pl.concat_str(*strings, separator="/").cast(pl.Categorical).alias("joined")
    pairs = rows.select(keys).unique().with_columns(joined)
    rows = rows.join(pairs, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return rows.with_columns(pl.coalesce("joined", "name").alias("name"))
