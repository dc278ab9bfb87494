"""Rules about what the CPU does while a GPU could work: loading, launching, waiting, copying."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals
from tracekit.core.advise.scene import LENGTH, Finding, longest, shown, total

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.advise.scene import Scene

_LOADS = (
    r"dataloader|data[ _]?load",
    r"enumerate\(|__next__",
    r"^load(?: \*)?$",
    r"\b(?:next|fetch|get|load|read)[ _]?(?:batch|data)\b",
)
LOADER = "(?i)" + "|".join(_LOADS)
WAITS = r"Synchronize|cuEventQuery|cudaEventQuery"
LOADING, IDLE, LATE, WAITING, COPYING = 5, 20, 10, 5, 2
"""From how many percent of the time on rules speak."""

_CAUSES = {
    "dataloader": ("a data loader ran", "Give the loader more workers, prefetch, or decode on the GPU."),
    "io": ("files were read or written", "Read ahead in another thread, or keep the data in memory."),
    "cpu": ("ops ran on the CPU", "Launch less and more at once: CUDA graphs, torch.compile, fused optimizers."),
    "other": ("no op was open", "Put ranges around what the program does there, and record again."),
}


def data_loading(scene: Scene) -> Iterator[Finding]:
    """Time of a step in which data is loaded and no GPU works."""
    named = scene.rollup.measures.instances.with_columns(
        leaf=pl.col("op_name").cast(pl.String).str.extract(r"([^/]*)$")
    )
    loads = scene.clipped(named.filter(pl.col("leaf").str.contains(LOADER)))
    merged = intervals.merge(loads, by=[])
    if not merged.height:
        return
    lost = intervals.overlap(merged, scene.idle, by=[])
    time = total(lost)
    if scene.share(time) < LOADING:
        return
    a_step, steps = scene.length_ns / scene.iterations, scene.iterations
    said = f"data was loaded for {shown(total(merged) / steps)} of a step of {shown(a_step)}"
    evidence = (
        f"{said}, {shown(time / steps)} of it with idle GPUs; {1e9 / a_step:.3g} steps/s; {scene.by_op(loads, LENGTH)}"
    )
    advice = (
        "Load in other processes and ahead of time: num_workers, prefetch_factor, pin_memory; cache or decode less."
    )
    problem = "The GPUs wait for data"
    yield Finding("data_loading", problem, evidence, advice, time, scene.share(time), loads.height, *longest(lost))


def idle_by_cause(scene: Scene) -> Iterator[Finding]:
    """Time in which a device does nothing, by what the CPU does meanwhile."""
    chosen = scene.rollup.iterations.chosen.select("iteration")
    spent = scene.rollup.breakdown.join(chosen, on="iteration", how="semi").group_by("device_id").agg(
        pl.col(_CAUSES).sum()
    )  # fmt: skip
    for row in spent.sort("device_id").iter_rows(named=True):
        mine = scene.busy.filter(pl.col("device_id") == row["device_id"])
        time = scene.length_ns - total(mine)
        causes = {c: row[c] for c in _CAUSES}
        if scene.share(time) < IDLE or not mine.height:
            continue
        main = max(causes, key=lambda c: causes[c])
        parts = ", ".join(f"{_CAUSES[c][0]} {shown(t)}" for c, t in causes.items() if t)
        gaps = scene.without(mine)
        where = longest(gaps)
        problem = f"GPU {row['device_id']} is idle for {scene.share(time):.0f} % of the time"
        evidence = f"{parts}; the longest gap took {shown(where[1] - where[0])}"
        yield Finding(
            "idle_by_cause", problem, evidence, _CAUSES[main][1], time, scene.share(time), gaps.height, *where
        )


def late_launches(scene: Scene) -> Iterator[Finding]:
    """Gaps before kernels that the CPU launched only when the device had nothing left to do."""
    kernels = scene.gpu.sort("device_id", "start_ns")
    done = pl.col("end_ns").cum_max().shift(1).over("device_id")
    gaps = kernels.with_columns(done=done).filter(
        (pl.col("start_ns") > pl.col("done")) & (pl.col("api_end_ns") > pl.col("done"))
    )
    gaps = gaps.select("op", "device_id", start_ns="done", end_ns="start_ns")
    devices = max(1, scene.busy["device_id"].n_unique())
    time = total(gaps) // devices
    if scene.share(time) < LATE:
        return
    evidence = (
        f"{gaps.height} gaps, half of them longer than {shown(gaps.select(LENGTH.median()).item())}, "
        f"before {scene.by_op(gaps, LENGTH)}"
    )
    advice = "Launch faster than the GPU works: CUDA graphs, torch.compile, larger batches, fewer and fused ops."
    problem = "The CPU launches too late: the GPU has finished before the next kernel comes"
    yield Finding("late_launches", problem, evidence, advice, time, scene.share(time), gaps.height, *longest(gaps))


def synchronizations(scene: Scene) -> Iterator[Finding]:
    """Calls within steps in which the CPU waits for the GPU, after which the GPU waits for the CPU."""
    calls = scene.rollup.measures.calls.filter(pl.col("name").cast(pl.String).str.contains(WAITS))
    waits = scene.clipped(calls.unique("call").select("op", "name", "start_ns", "end_ns"))
    if not waits.height or scene.share(total(intervals.merge(waits, by=[]))) < WAITING:
        return
    time = total(intervals.merge(waits, by=[]))
    names = ", ".join(sorted(waits["name"].cast(pl.String).unique()))
    evidence = (
        f"{waits.height} calls ({names}) in {scene.by_op(waits, LENGTH)}; {waits.height / scene.iterations:.3g} a step"
    )
    advice = "Avoid .item(), .cpu(), print and comparisons of tensors in the step; synchronize only to measure."
    problem = "The CPU waits for the GPU within the step"
    yield Finding("synchronizations", problem, evidence, advice, time, scene.share(time), waits.height, *longest(waits))


def copies(scene: Scene) -> Iterator[Finding]:
    """Copies between host and device within steps, by direction."""
    rows = scene.gpu.filter(pl.col("kind") == "memcpy")
    columns = ["copy_kind", "src_memory_kind", "dst_memory_kind"]
    known = scene.rollup.measures.ops.frames("memcpys").select("bytes", pl.col(columns).cast(pl.String)).collect()
    found = rows.hstack(known.select(pl.all().gather(rows["activity"])))
    for kind, advice in _DIRECTIONS.items():
        mine = found.filter(pl.col("copy_kind") == kind)
        if mine.height:
            yield from _copied(scene, mine, f"Copies within the step, {kind.lower().replace('-', ' ')}", advice)


_DIRECTIONS = {
    "Host-to-Device": "Copy from pinned memory with non_blocking=True, ahead of the step; keep on the GPU what stays.",
    "Device-to-Host": "Keep results on the GPU and fetch them rarely: each such copy makes the CPU wait.",
}


def _copied(scene: Scene, rows: pl.DataFrame, problem: str, advice: str) -> Iterator[Finding]:
    """Speak of copies in one direction if they take long, are of pageable memory, or make the CPU wait every step."""
    pageable = (pl.col("src_memory_kind") == "Pageable") | (pl.col("dst_memory_kind") == "Pageable")
    unpinned = rows.filter(pageable.fill_null(value=False)).height
    time = total(intervals.merge(rows, by=[]))
    waits = rows["copy_kind"][0] == "Device-to-Host" and rows.height >= scene.iterations > 1
    if scene.share(time) < COPYING and not (waits or unpinned):
        return
    a_step, moved = rows.height / scene.iterations, rows["bytes"].sum() / scene.iterations
    evidence = (
        f"{rows.height} copies, {a_step:.3g} a step of {moved:.4g} bytes together, {unpinned} of pageable memory; "
        f"{scene.by_op(rows, LENGTH)}"
    )
    yield Finding("copies", problem, evidence, advice, time, scene.share(time), rows.height, *longest(rows))
