"""Find imbalances between devices and between steps, and time spent on communication between devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals
from tracekit.core.advise.scene import DURATION, Finding, as_text, longest, total_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.advise.scene import Scene

POINTS, VARIATION, STEPS = 10, 0.25, 4
EXCHANGE, EXPOSED = 20, 10
"""Smallest percentages of GPU busy time at which NCCL is reported: in total, and without overlapping computation."""

_TIMES = ("start_ns", "end_ns")
_COLLECTIVE = pl.col("name").cast(pl.String).str.starts_with("nccl").fill_null(value=False)


def devices(scene: Scene) -> Iterator[Finding]:
    """Report an imbalance if one device computes for longer than another.

    NCCL kernels do not count as computation, because they wait for other devices.
    """
    kernels = scene.kernels.filter(~_COLLECTIVE)
    busy = kernels.group_by("device_id").agg(time=DURATION.sum()).sort("time", "device_id")
    if busy.height < 2:  # noqa: PLR2004 - one device is in balance
        return
    (least, low), (most, high) = busy.row(0), busy.row(-1)
    time = high - low
    if scene.share(time) < POINTS:
        return
    listed = ", ".join(f"GPU {d} {as_text(t)}" for d, t in busy.sort("device_id").iter_rows())
    problem = f"GPU {most} computes for {scene.share(high):.0f} % of the time, GPU {least} for {scene.share(low):.0f} %"
    advice = "Give every rank as much work: equal batches, sequences of like length, layers shared out evenly."
    busiest = kernels.filter(pl.col("device_id") == most)
    start, end = busiest.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    figures = {f"gpu_{d}_ns": t for d, t in busy.sort("device_id").iter_rows()} | {"length_ns": scene.length_ns}
    yield Finding("imbalance", problem, listed, advice, time, scene.share(time), busy.height, start, end, figures)


def communication(scene: Scene) -> Iterator[Finding]:
    """Report the time in which devices exchange data through NCCL without computing."""
    exchange, compute = scene.kernels.filter(_COLLECTIVE), scene.kernels.filter(~_COLLECTIVE)
    if not exchange.height:
        return
    by, devices = ["device_id"], scene.busy["device_id"].n_unique()
    within, busy = total_duration(intervals.merge(exchange, by=by)), total_duration(scene.busy)
    hidden = total_duration(intervals.overlap(exchange.select(*by, *_TIMES), compute.select(*by, *_TIMES), by=by))
    exposed = within - hidden
    time = exposed // devices
    if 100 * within < EXCHANGE * busy or 100 * exposed < EXPOSED * busy:
        return
    evidence = (
        f"{exchange.height} kernels of NCCL take {as_text(within)}, {100 * within / busy:.0f} % of the time in which "
        f"GPUs work; {100 * hidden / within:.0f} % of it overlaps with other kernels; "
        f"{scene.largest_ops(exchange, DURATION)}"
    )
    advice = (
        "Let the exchange overlap with the backward pass (bucket_cap_mb, gradient_as_bucket_view), exchange less often "
        "or less (no_sync, larger batches, bfloat16), and look for ranks that come late."
    )
    figures = {"nccl_kernels": exchange.height, "nccl_ns": within, "overlapped_ns": hidden, "busy_ns": busy}
    figures |= {"devices": devices, "length_ns": scene.length_ns}
    problem, where = "GPUs exchange data while they compute nothing", longest(exchange)
    yield Finding("communication", problem, evidence, advice, time, scene.share(time), exchange.height, *where, figures)


def steps(scene: Scene) -> Iterator[Finding]:
    """Report steps that take much longer than the median step."""
    rows = scene.rollup.iterations.aggregated.with_columns(length=DURATION)
    mean, deviation = rows.select(mean=pl.col("length").mean(), deviation=pl.col("length").std(ddof=0)).row(0)
    if rows.height < STEPS or not mean or deviation / mean <= VARIATION:
        return
    typical = rows.select(pl.col("length").median()).item()
    slow = rows.filter(pl.col("length") > (1 + VARIATION) * typical).sort("length", descending=True)
    if not slow.height:
        return
    time = int((slow["length"] - typical).sum())
    number, first = slow["iteration"].head(5).to_list(), slow.row(0, named=True)
    problem = "Some steps take much longer than the others"
    evidence = (
        f"half of {rows.height} steps take up to {as_text(typical)}, number {number[0]} took {as_text(first['length'])}"
    )
    more = f"; slow ones: {', '.join(map(str, number))}" if len(number) > 1 else ""
    advice = "Leave out steps that warm up (--iterations A:B); look at the slow ones for loading, logging, checkpoints."
    where = first["start_ns"], first["end_ns"]
    figures = {"steps": rows.height, "slow_steps": slow.height, "median_ns": int(typical)}
    figures |= {"slowest_ns": first["length"], "length_ns": scene.length_ns}
    yield Finding("variation", problem, evidence + more, advice, time, scene.share(time), slow.height, *where, figures)
