"""Report imbalances between devices and between iterations, and time spent on communication between devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals
from tracekit.core.advise.iteration_activity import (
    DURATION,
    Finding,
    find_longest_interval,
    shorten_name,
    sum_durations,
)
from tracekit.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.advise.iteration_activity import IterationActivity

MIN_IMBALANCE_PERCENT, MIN_VARIATION, MIN_ITERATIONS = 10, 0.25, 4
MIN_NCCL_PERCENT, MIN_EXPOSED_PERCENT = 20, 10
"""Smallest percentages of GPU busy time at which NCCL is reported: in total, and without overlapping computation."""

_TIMES = ("start_ns", "end_ns")
_COLLECTIVE = pl.col("name").cast(pl.String).str.starts_with("nccl").fill_null(value=False)


def imbalance(activity: IterationActivity) -> Iterator[Finding]:
    """Report an imbalance if one device computes for much longer than another.

    NCCL kernels do not count as computation, because they wait for other devices.
    """
    kernels = activity.kernels.filter(~_COLLECTIVE)
    busy = kernels.group_by("device_id").agg(time=DURATION.sum()).sort("time", "device_id")
    if busy.height < 2:  # noqa: PLR2004 - a single device cannot be imbalanced
        return
    (least, low), (most, high) = busy.row(0), busy.row(-1)
    time = high - low
    if activity.compute_percentage(time) < MIN_IMBALANCE_PERCENT:
        return
    listed = ", ".join(f"GPU {d} {format_duration(t)}" for d, t in busy.sort("device_id").iter_rows())
    high_percent, low_percent = (
        activity.compute_percentage(high),
        activity.compute_percentage(low),
    )
    problem = f"GPU {most} computes for {high_percent:.0f} % of the time, GPU {least} for {low_percent:.0f} %"
    advice = (
        "Give every rank the same amount of work: equal batches, sequences of similar length, layers divided evenly."
    )
    busiest = kernels.filter(pl.col("device_id") == most)
    start, end = busiest.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    figures = {f"gpu_{d}_ns": t for d, t in busy.sort("device_id").iter_rows()} | {"length_ns": activity.duration_ns}
    yield Finding(
        "imbalance", problem, listed, advice, time, activity.compute_percentage(time), busy.height, start, end, figures
    )


def communication(activity: IterationActivity) -> Iterator[Finding]:
    """Report the time in which devices exchange data through NCCL without computing."""
    exchange, compute = activity.kernels.filter(_COLLECTIVE), activity.kernels.filter(~_COLLECTIVE)
    if not exchange.height:
        return
    by, devices = ["device_id"], activity.busy_times_by_device["device_id"].n_unique()
    within, busy = (
        sum_durations(intervals.merge_intervals(exchange, by=by)),
        sum_durations(activity.busy_times_by_device),
    )
    hidden = sum_durations(
        intervals.intersect_unions(exchange.select(*by, *_TIMES), compute.select(*by, *_TIMES), by=by)
    )
    exposed = within - hidden
    time = exposed // devices
    if 100 * within < MIN_NCCL_PERCENT * busy or 100 * exposed < MIN_EXPOSED_PERCENT * busy:
        return
    evidence = (
        f"{exchange.height} NCCL kernels take {format_duration(within)}, {100 * within / busy:.0f} % of the time in "
        f"which GPUs are busy; {100 * hidden / within:.0f} % of this time overlaps with other kernels; "
        f"{activity.describe_largest_ops(exchange, DURATION)}"
    )
    advice = (
        "Overlap the exchange with the backward pass (bucket_cap_mb, gradient_as_bucket_view), exchange less data and "
        "exchange it less often (no_sync, larger batches, bfloat16), and look for ranks that start late."
    )
    figures = {"nccl_kernels": exchange.height, "nccl_ns": within, "overlapped_ns": hidden, "busy_ns": busy}
    figures |= {"devices": devices, "length_ns": activity.duration_ns}
    problem, where = "GPUs exchange data without computing at the same time", find_longest_interval(exchange)
    yield Finding(
        "communication",
        problem,
        evidence,
        advice,
        time,
        activity.compute_percentage(time),
        exchange.height,
        *where,
        figures,
    )


def variation(activity: IterationActivity) -> Iterator[Finding]:
    """Report iterations that take much longer than the median iteration."""
    rows = activity.rollup.iterations.aggregated.with_columns(
        name=pl.col("name").fill_null(pl.format("iteration {}", "iteration")),
        length=pl.col("window_end_ns") - pl.col("window_start_ns"),
    )
    mean, deviation = rows.select(mean=pl.col("length").mean(), deviation=pl.col("length").std(ddof=0)).row(0)
    if rows.height < MIN_ITERATIONS or not mean or deviation / mean <= MIN_VARIATION:
        return
    typical = rows.select(pl.col("length").median()).item()
    slow = rows.filter(pl.col("length") > (1 + MIN_VARIATION) * typical).sort("length", descending=True)
    if not slow.height:
        return
    time = int((slow["length"] - typical).sum())
    names, first = [shorten_name(name) for name in slow["name"].head(5)], slow.row(0, named=True)
    problem = "Some iterations take much longer than the others"
    longest = format_duration(first["length"])
    evidence = (
        f"the median duration of {rows.height} iterations is {format_duration(typical)}, but {names[0]} took {longest}"
    )
    more = f"; slow iterations: {', '.join(names)}" if len(names) > 1 else ""
    advice = (
        "Exclude warm-up iterations (--iterations A:B); look for data loading, logging and checkpoints in the slow "
        "iterations."
    )
    where = first["window_start_ns"], first["window_end_ns"]
    figures = {"iterations": rows.height, "slow_iterations": slow.height, "median_ns": int(typical)}
    figures |= {"slowest_ns": first["length"], "length_ns": activity.duration_ns}
    yield Finding(
        "variation",
        problem,
        evidence + more,
        advice,
        time,
        activity.compute_percentage(time),
        slow.height,
        *where,
        figures,
    )
