"""Report differences between devices and between iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.advise.iteration_activity import DURATION, Finding, shorten_name
from tracekit.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.advise.iteration_activity import IterationActivity

MIN_IMBALANCE_PERCENT, MIN_VARIATION, MIN_ITERATIONS = 10, 0.25, 4
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
        "imbalance",
        problem,
        listed,
        advice,
        time,
        activity.compute_percentage(time),
        None,
        busy.height,
        start,
        end,
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
        None,
        slow.height,
        *where,
        figures,
    )
