"""Compute reports on CUDA API calls, the kernels that they launched, and operating system runtime calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.relations import CALL, THREAD, join_calls
from tracekit.core.reports.names import format_dimensions_expr, strip_api_version_expr
from tracekit.core.reports.numbers import round_to_tenths_expr
from tracekit.core.reports.sources import join_thread_names, read_api_calls, read_kernels, read_osrt_calls
from tracekit.core.reports.summary import (
    DURATION,
    sort_largest_total_first,
    statistics_exprs,
    summarize_groups,
)
from tracekit.core.series import map_categories_expr

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request

_SYSTEM_CALL = 107
_SIZES = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
_PHASES = {"T": "total_ns", "A": "call_ns", "Q": "queue_ns", "K": "kernel_ns"}


def cuda_api_sum(request: Request) -> pl.LazyFrame:
    """CUDA API calls by function. Versions of a function have the same printed name, but separate rows."""
    grouped = _summarize_durations_by_function(request.frames("api_calls"))
    recorded = pl.col("name").alias("recorded_name")
    return grouped.with_columns(recorded, strip_api_version_expr(pl.col("name").cast(pl.String)))


def osrt_sum(request: Request) -> pl.LazyFrame:
    """Operating system runtime calls by function."""
    return _summarize_durations_by_function(read_osrt_calls(request.frames))


def syscall_sum(request: Request) -> pl.LazyFrame:
    """System calls by function."""
    return _summarize_durations_by_function(request.frames("syscalls").filter(event_class=_SYSTEM_CALL))


def cuda_api_trace(request: Request) -> pl.LazyFrame:
    """Every CUDA API call in order of start. A call is repeated for each name of its thread."""
    rows = read_api_calls(request.frames, "name", "return_value").sort("start_ns", maintain_order=True)
    rows = join_thread_names(rows, request.frames)
    return rows.with_columns(DURATION, map_categories_expr(pl.col("name"), strip_api_version_expr))


def cuda_kern_exec_sum(request: Request) -> pl.LazyFrame:
    """Launch, queue and execution times of kernels by thread, device, function and kernel."""
    keys = (*THREAD, "device_id", "api_name", "name")
    counts = (pl.len().alias("count"), pl.col("queue_ns").count().alias("queued"))
    spreads = [s for letter, column in _PHASES.items() for s in statistics_exprs(column, prefix=f"{letter}_")]
    grouped = _read_kernel_executions(request, "device_id").group_by(keys).agg(*counts, *spreads)
    printed = round_to_tenths_expr(pl.col("T_mean"), legacy_rounding=request.legacy_rounding).alias("printed")
    order = [True] + [False] * len(keys)
    return grouped.with_columns(printed).sort("printed", *keys, descending=order, nulls_last=order)


def cuda_kern_exec_trace(request: Request) -> pl.LazyFrame:
    """Every kernel with the call that launched it, in order of the start of the call."""
    rows = _read_kernel_executions(request, "device_id", *_SIZES).sort("call_start_ns", maintain_order=True)
    queue_start = pl.when(pl.col("queue_ns").is_not_null()).then("call_end_ns")
    return rows.with_columns(
        queue_start.alias("queue_start_ns"), format_dimensions_expr("grid"), format_dimensions_expr("block")
    )


def _summarize_durations_by_function(rows: pl.LazyFrame) -> pl.LazyFrame:
    grouped = summarize_groups(rows.select("name_id", "name", DURATION), ["name_id", "name"])
    return sort_largest_total_first(grouped, "name_id")


def _read_kernel_executions(request: Request, *columns: str) -> pl.LazyFrame:
    """Return one row per pair of a kernel and the API call that launched it, in the order of kernels.

    Kernels without a call are omitted. The queue time of a kernel is the time from the end of the call to the start of
    the kernel. It is null if the kernel started before the call ended.
    """
    launches = read_api_calls(request.frames, "name").rename(
        {"name": "api_name", "start_ns": "call_start_ns", "end_ns": "call_end_ns"}
    )
    rows = read_kernels(request, *CALL, "start_ns", "end_ns", *columns)
    rows = join_calls(rows, launches, "all")
    wait = pl.col("start_ns") - pl.col("call_end_ns")
    return rows.with_columns(
        map_categories_expr(pl.col("api_name"), strip_api_version_expr),
        DURATION.alias("kernel_ns"),
        (pl.col("call_end_ns") - pl.col("call_start_ns")).alias("call_ns"),
        pl.when(wait >= 0).then(wait).alias("queue_ns"),
        (pl.max_horizontal("call_end_ns", "end_ns") - pl.col("call_start_ns")).alias("total_ns"),
    )
