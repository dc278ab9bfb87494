"""Rules about what should be even, the work of devices and the length of steps, and about what devices exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals
from tracekit.core.advise.scene import LENGTH, Finding, longest, shown, total

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.advise.scene import Scene

POINTS, VARIATION, STEPS = 10, 0.25, 4
EXCHANGE, EXPOSED = 20, 10
"""From how many percent of the time in which GPUs work on NCCL is spoken of: all of it, and beside no other kernel."""

_TIMES = ("start_ns", "end_ns")
_COLLECTIVE = pl.col("name").cast(pl.String).str.starts_with("nccl").fill_null(value=False)


def devices(scene: Scene) -> Iterator[Finding]:
    """Devices of which one computes longer than another; waiting for others in NCCL is not computing."""
    kernels = scene.kernels.filter(~_COLLECTIVE)
    spent = kernels.group_by("device_id").agg(time=LENGTH.sum()).sort("time", "device_id")
    if spent.height < 2:  # noqa: PLR2004 - one device is in balance
        return
    (least, low), (most, high) = spent.row(0), spent.row(-1)
    time = high - low
    if scene.share(time) < POINTS:
        return
    listed = ", ".join(f"GPU {d} {shown(t)}" for d, t in spent.sort("device_id").iter_rows())
    problem = f"GPU {most} computes for {scene.share(high):.0f} % of the time, GPU {least} for {scene.share(low):.0f} %"
    advice = "Give every rank as much work: equal batches, sequences of like length, layers shared out evenly."
    busiest = kernels.filter(pl.col("device_id") == most)
    start, end = busiest.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    figures = {f"gpu_{d}_ns": t for d, t in spent.sort("device_id").iter_rows()} | {"length_ns": scene.length_ns}
    yield Finding("imbalance", problem, listed, advice, time, scene.share(time), spent.height, start, end, figures)


def communication(scene: Scene) -> Iterator[Finding]:
    """Time in which devices exchange data through NCCL and compute nothing meanwhile."""
    exchange, compute = scene.kernels.filter(_COLLECTIVE), scene.kernels.filter(~_COLLECTIVE)
    if not exchange.height:
        return
    by, devices = ["device_id"], scene.busy["device_id"].n_unique()
    within, busy = total(intervals.merge(exchange, by=by)), total(scene.busy)
    hidden = total(intervals.overlap(exchange.select(*by, *_TIMES), compute.select(*by, *_TIMES), by=by))
    exposed = within - hidden
    time = exposed // devices
    if 100 * within < EXCHANGE * busy or 100 * exposed < EXPOSED * busy:
        return
    evidence = (
        f"{exchange.height} kernels of NCCL take {shown(within)}, {100 * within / busy:.0f} % of the time in which "
        f"GPUs work; {100 * hidden / within:.0f} % of it overlaps with other kernels; {scene.by_op(exchange, LENGTH)}"
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
    """Steps of very different length."""
    rows = scene.rollup.iterations.chosen.with_columns(length=LENGTH)
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
        f"half of {rows.height} steps take up to {shown(typical)}, number {number[0]} took {shown(first['length'])}"
    )
    more = f"; slow ones: {', '.join(map(str, number))}" if len(number) > 1 else ""
    advice = "Leave out steps that warm up (--iterations A:B); look at the slow ones for loading, logging, checkpoints."
    where = first["start_ns"], first["end_ns"]
    figures = {"steps": rows.height, "slow_steps": slow.height, "median_ns": int(typical)}
    figures |= {"slowest_ns": first["length"], "length_ns": scene.length_ns}
    yield Finding("variation", problem, evidence + more, advice, time, scene.share(time), slow.height, *where, figures)
