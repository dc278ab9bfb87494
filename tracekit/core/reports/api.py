"""Reports on CPU calls: CUDA API, what it launched, and the operating system runtime."""

from __future__ import annotations

import polars as pl

from tracekit.core.reports.names import dimensions, relabelled, without_version
from tracekit.core.reports.numbers import tenths
from tracekit.core.reports.report import CALL, CALLS, KERNEL_OPTIONS, THREAD, TIMES, Request, report
from tracekit.core.reports.sources import calls, kernels
from tracekit.core.reports.summary import (
    DURATION,
    largest_first,
    spread_columns,
    statistics,
    summarize,
    summary_columns,
)
from tracekit.core.reports.table import Column, integer, nanoseconds, text

_TRACED_CALL = 27  # event class of what osrt traces; others are samples and blocked states
_SIZES = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
_PHASES = {"T": "total_ns", "A": "call_ns", "Q": "queue_ns", "K": "kernel_ns"}


@report(*summary_columns("Num Calls"), text("Name", "name"), reads={"api_calls": ("name_id", "name", *TIMES)})
def cuda_api_sum(request: Request) -> pl.LazyFrame:
    """CUDA API calls by function; versions of a function apart, though their names look alike."""
    grouped = _by_function(request.frames("api_calls"))
    return grouped.with_columns(without_version(pl.col("name").cast(pl.String)))


@report(
    *summary_columns("Num Calls"),
    text("Name", "name"),
    reads={"osrt_calls": ("event_class", "name_id", "name", *TIMES)},
)
def osrt_sum(request: Request) -> pl.LazyFrame:
    """Operating system runtime calls by function."""
    return _by_function(request.frames("osrt_calls").filter(event_class=_TRACED_CALL))


@report(
    nanoseconds("Start", "start_ns"),
    nanoseconds("Duration", "duration_ns"),
    text("Name", "name"),
    integer("Result", "return_value"),
    integer("CorrID", "correlation_id"),
    integer("Pid", "process_id"),
    integer("Tid", "thread_id"),
    integer("T-Pri", "priority"),
    text("Thread Name", "thread_name"),
    reads={"api_calls": (*CALLS, "name", "return_value")},
)
def cuda_api_trace(request: Request) -> pl.LazyFrame:
    """Every CUDA API call by start; one line for each name of its thread."""
    threads = request.frames("threads").select(*THREAD, "priority", thread_name="name")
    rows = calls(request.frames, "name", "return_value").sort("start_ns", maintain_order=True)
    rows = rows.join(threads, on=THREAD, how="left", maintain_order="left_right")
    return rows.with_columns(DURATION, relabelled(pl.col("name"), without_version))


def _phase_columns() -> list[Column]:
    return [c for letter in _PHASES for c in spread_columns(prefix=f"{letter}_", title=letter)]


@report(
    integer("PID", "process_id"),
    integer("TID", "thread_id"),
    integer("DevId", "device_id"),
    integer("Count", "count"),
    integer("QCount", "queued"),
    *_phase_columns(),
    text("API Name", "api_name"),
    text("Kernel Name", "name"),
    options=KERNEL_OPTIONS,
    reads={"kernels": (*CALL, *TIMES, "device_id"), "api_calls": (*CALLS, "name")},
)
def cuda_kern_exec_sum(request: Request) -> pl.LazyFrame:
    """Launch, queue and execution times of kernels by thread, device, function and kernel."""
    keys = (*THREAD, "device_id", "api_name", "name")
    counts = (pl.len().alias("count"), pl.col("queue_ns").count().alias("queued"))
    spreads = [s for letter, column in _PHASES.items() for s in statistics(column, prefix=f"{letter}_")]
    grouped = _executions(request, "device_id").group_by(keys).agg(*counts, *spreads)
    printed = tenths(pl.col("T_mean"), legacy=request.legacy_rounding).alias("printed")
    order = [True] + [False] * len(keys)
    return grouped.with_columns(printed).sort("printed", *keys, descending=order, nulls_last=order)


@report(
    nanoseconds("API Start", "call_start_ns"),
    nanoseconds("API Dur", "call_ns"),
    nanoseconds("Queue Start", "queue_start_ns"),
    nanoseconds("Queue Dur", "queue_ns"),
    nanoseconds("Kernel Start", "start_ns"),
    nanoseconds("Kernel Dur", "kernel_ns"),
    nanoseconds("Total Dur", "total_ns"),
    integer("PID", "process_id"),
    integer("TID", "thread_id"),
    integer("DevId", "device_id"),
    text("API Function", "api_name"),
    text("GridXYZ", "grid"),
    text("BlockXYZ", "block"),
    text("Kernel Name", "name"),
    options=KERNEL_OPTIONS,
    reads={"kernels": (*CALL, *TIMES, "device_id", *_SIZES), "api_calls": (*CALLS, "name")},
)
def cuda_kern_exec_trace(request: Request) -> pl.LazyFrame:
    """Every kernel with the call that launched it, by start of the call."""
    rows = _executions(request, "device_id", *_SIZES).sort("call_start_ns", maintain_order=True)
    queue_start = pl.when(pl.col("queue_ns").is_not_null()).then("call_end_ns")
    return rows.with_columns(queue_start.alias("queue_start_ns"), dimensions("grid"), dimensions("block"))


def _by_function(rows: pl.LazyFrame) -> pl.LazyFrame:
    grouped = summarize(rows.select("name_id", "name", DURATION), ["name_id", "name"])
    return largest_first(grouped, "name_id")


def _executions(request: Request, *columns: str) -> pl.LazyFrame:
    """Join kernels and their calls: one row a pair, in the order of kernels; kernels without a call are left out.

    A kernel waits in the queue from the end of the call to its own start; not if it started before the call ended.
    """
    launches = calls(request.frames, "name").rename(
        {"name": "api_name", "start_ns": "call_start_ns", "end_ns": "call_end_ns"}
    )
    rows = kernels(request, *CALL, "start_ns", "end_ns", *columns)
    rows = rows.join(launches, on=CALL, how="inner", maintain_order="left_right")
    wait = pl.col("start_ns") - pl.col("call_end_ns")
    return rows.with_columns(
        relabelled(pl.col("api_name"), without_version),
        DURATION.alias("kernel_ns"),
        (pl.col("call_end_ns") - pl.col("call_start_ns")).alias("call_ns"),
        pl.when(wait >= 0).then(wait).alias("queue_ns"),
        (pl.max_horizontal("call_end_ns", "end_ns") - pl.col("call_start_ns")).alias("total_ns"),
    )
