"""Compute the rules for GPU utilization: long gaps, and periods in which a GPU is busy less than half of the time.

As in nsys, the activities are kernels, memory copies and memory sets, and each pair of a process and a device is
examined from the start of its first activity to the end of its last one. CUDA graphs that are traced as a whole are
ignored. Each row contains the context of one activity: for a gap, the activity after which the gap begins; for
utilization, the activity that ends last on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.intervals import latest_end_before_expr
from tracekit.core.relations import OPERATIONS
from tracekit.core.reports.numbers import quotient_expr, round_to_tenths_expr
from tracekit.core.reports.summary import sort_longest_first

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request

_DEVICE = ("process_id", "device_id")
_NS_PER_MS = 1_000_000
_STEPS = {"start_ns": 1, "end_ns": -1}


def gpu_gaps(request: Request) -> pl.DataFrame:
    """Periods of more than 500 ms in which a GPU is idle, between its first and last activity."""
    ordered = _read_gpu_activities(request).sort(*_DEVICE, "start_ns", maintain_order=True)
    previous_end, before = latest_end_before_expr(_DEVICE).alias("previous_end"), pl.col("context_id").shift(1)
    ordered = ordered.with_columns(previous_end)
    # The context of the activity with the latest end so far, in the row after that activity.
    latest = pl.when((pl.col("end_ns") > pl.col("previous_end")).fill_null(value=True)).then("context_id")
    ordered = ordered.with_columns(context_id=latest.forward_fill().over(_DEVICE)).with_columns(before.over(_DEVICE))
    gaps = ordered.filter(pl.col("start_ns") > pl.col("previous_end")).select(
        *_DEVICE, "context_id", start_ns="previous_end", duration_ns=pl.col("start_ns") - pl.col("previous_end")
    )
    return sort_longest_first(gaps.filter(pl.col("duration_ns") > request.get_integer("gap") * _NS_PER_MS), *_DEVICE)


def gpu_time_util(request: Request) -> pl.DataFrame:
    """Periods in which a GPU is busy less than half of the time.

    The time of each device is divided into equal chunks. Consecutive chunks below the threshold form one row. The
    utilization is the sum of the durations of all activities, so activities that run at the same time count twice.
    Rows are sorted by the utilization, rounded as it is printed, and then by duration.
    """
    chunks = _compute_chunk_busy_times(_read_gpu_activities(request), request.get_integer("chunks"))
    below = pl.col("busy_ns") * 100.0 < request.get_integer("threshold") * pl.col("duration_ns").cast(pl.Float64)
    runs = chunks.with_columns(below.alias("below")).with_columns(run=pl.struct(*_DEVICE, "below").rle_id())
    rows = (
        runs.filter("below")
        .group_by("run", maintain_order=True)
        .agg(pl.col(*_DEVICE, "context_id", "start_ns").first(), pl.col("duration_ns", "busy_ns").sum())
    )
    share = quotient_expr(pl.col("busy_ns") * 100.0, pl.col("duration_ns").cast(pl.Float64)).alias("share")
    return rows.with_columns(share).sort(round_to_tenths_expr(pl.col("share")), "duration_ns", "run")


def _read_gpu_activities(request: Request) -> pl.DataFrame:
    """Return the kernels, memory copies and memory sets of all devices, with only the columns that the rules need."""
    columns = (*_DEVICE, "context_id", "start_ns", "end_ns")
    return pl.concat([request.frames(table).select(columns) for table in OPERATIONS]).collect()


def _compute_chunk_busy_times(operations: pl.DataFrame, chunk_count: int) -> pl.DataFrame:
    """Divide the time of each device into chunks, and compute how long activities run in each chunk.

    Args:
        operations: Activities with the columns of the process and device, ``context_id``, ``start_ns`` and ``end_ns``.
        chunk_count: Number of chunks per device. All chunks except the last one are equally long.

    Returns:
        The columns of the process and device, ``context_id``, ``start_ns``, ``duration_ns`` and ``busy_ns``, in order
        of start. A device has no rows if all of its activities have a duration of zero.
    """
    ends = pl.col("end_ns")
    spans = operations.group_by(_DEVICE, maintain_order=True).agg(
        first=pl.col("start_ns").min(), last=ends.max(), context_id=pl.col("context_id").get(ends.arg_max())
    )
    spans = spans.filter(pl.col("last") > pl.col("first")).with_row_index("span")
    length = pl.col("last") - pl.col("first")
    spans = spans.with_columns(size=(length + (chunk_count - 1)) // chunk_count)
    number = (length + pl.col("size") - 1) // pl.col("size")
    chunks = spans.with_columns(chunk=pl.int_ranges(number)).explode("chunk")
    start = pl.col("first") + pl.col("chunk") * pl.col("size")
    chunks = chunks.with_columns(start_ns=start, end_ns=pl.min_horizontal(start + pl.col("size"), "last"))
    busy = _sum_busy_time_per_chunk(operations.join(spans, on=_DEVICE, how="inner", nulls_equal=True), chunks)
    duration = (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")
    return chunks.select(*_DEVICE, "context_id", "start_ns", duration, busy_ns=busy)


def _sum_busy_time_per_chunk(operations: pl.DataFrame, chunks: pl.DataFrame) -> pl.Series:
    """Return the total time in ns for which activities run in each chunk.

    Args:
        operations: Activities: ``span`` (number of the process and device), ``start_ns`` and ``end_ns``.
        chunks: Disjoint chunks that cover the activities, sorted by ``span`` and ``start_ns``, with ``end_ns``.
    """
    edges = [operations.select("span", t=c, step=pl.lit(s), chunk=pl.lit(None, pl.UInt32)) for c, s in _STEPS.items()]
    cuts = chunks.select("span", t="end_ns", step=pl.lit(0), chunk=pl.int_range(pl.len(), dtype=pl.UInt32))
    # Every activity that starts in a span also ends in it, so the number of open activities is 0 between spans.
    sweep = pl.concat([*edges, cuts]).sort("span", "t").with_columns(open=pl.col("step").cum_sum())
    elapsed = (pl.col("t") - pl.col("t").shift(1)) * pl.col("open").shift(1)
    total = sweep.with_columns(busy=elapsed.fill_null(0).cum_sum()).drop_nulls("chunk").sort("chunk")["busy"]
    return total - total.shift(1, fill_value=0)
