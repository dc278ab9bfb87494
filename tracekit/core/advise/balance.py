"""Rules about what should be even: the work of devices, the length of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.advise.scene import LENGTH, Finding, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.advise.scene import Scene

POINTS, VARIATION, STEPS = 10, 0.25, 4


def devices(scene: Scene) -> Iterator[Finding]:
    """Devices of which one computes longer than another; waiting for others in NCCL is not computing."""
    collective = pl.col("name").cast(pl.String).str.starts_with("nccl").fill_null(value=False)
    kernels = scene.gpu.filter((pl.col("kind") == "kernel") & ~collective)
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
    where = busiest.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    yield Finding("imbalance", problem, listed, advice, time, scene.share(time), spent.height, *where)


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
    yield Finding("variation", problem, evidence + more, advice, time, scene.share(time), slow.height, *where)
