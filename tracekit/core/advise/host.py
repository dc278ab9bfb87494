"""Find time that GPUs lose while the CPU loads data, launches activities, waits for a GPU, or copies memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals
from tracekit.core.advise.scene import DURATION, Finding, as_text, longest, total_duration
from tracekit.core.rollup import breakdown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.advise.scene import Scene

WAITS = r"Synchronize|cuEventQuery|cudaEventQuery"
LOADS_MODULES = r"^cu(?:da)?(?:Library|Module)Load"
LOADING, IDLE, LATE, WAITING, COPYING, MODULES = 5, 20, 10, 5, 2, 5
"""Smallest percentage of the time of the iterations for which each rule reports a finding."""

LAUNCHING_NS = 100_000
"""Largest CPU time per launch, in ns, for which launching itself is regarded as the cause of idle time."""

_CAUSES = {
    "dataloader": "a data loader ran",
    "io": "files were read or written",
    "cpu": "ops ran on the CPU",
    "other": "no op was open",
}
_ADVICE = {
    "dataloader": "Give the loader more workers, prefetch, or decode on the GPU.",
    "io": "Read ahead in another thread, or keep the data in memory.",
    "other": "Put ranges around what the program does there, and record again.",
}
_GRAPHS = "CUDA graphs, "


def launch_advice(scene: Scene) -> str:
    """Return advice on how to launch fewer activities. It mentions CUDA graphs unless the program already uses them."""
    return f"{'' if scene.graphs else _GRAPHS}torch.compile, larger batches, fewer and fused ops"


def data_loading(scene: Scene) -> Iterator[Finding]:
    """Report the time in which data is loaded while no GPU is busy."""
    measures = scene.rollup.measures
    loads = scene.clipped(measures.instances.filter(breakdown.loads_data(measures).gather(measures.instances["op"])))
    merged = intervals.merge(loads, by=[])
    if not merged.height:
        return
    lost = intervals.overlap(merged, scene.idle, by=[])
    time = total_duration(lost)
    if scene.share(time) < LOADING:
        return
    step_ns, steps = scene.length_ns / scene.iterations, scene.iterations
    summary = f"loading data takes {as_text(total_duration(merged) / steps)} per step of {as_text(step_ns)}"
    evidence = (
        f"{summary}, {as_text(time / steps)} of it with idle GPUs; {1e9 / step_ns:.3g} steps/s; "
        f"{scene.largest_ops(loads, DURATION)}"
    )
    advice = (
        "Load in other processes and ahead of time: num_workers, prefetch_factor, pin_memory; cache or decode less."
    )
    figures = {
        "loading_ns": total_duration(merged),
        "idle_loading_ns": time,
        "steps": steps,
        "length_ns": scene.length_ns,
    }
    problem, where = "The GPUs wait for data", longest(lost)
    yield Finding("data_loading", problem, evidence, advice, time, scene.share(time), loads.height, *where, figures)


def idle_by_cause(scene: Scene) -> Iterator[Finding]:
    """Report the idle time of each device, divided by what the CPU does in the meantime."""
    for row in scene.spent.iter_rows(named=True):
        yield from _idle(scene, row["device_id"], {c: row[c] for c in _CAUSES})


def _idle(scene: Scene, device: int, causes: dict[str, int]) -> Iterator[Finding]:
    """Report the idle time of one device. ``causes`` maps what the CPU did meanwhile to a duration in ns."""
    busy = scene.busy.filter(pl.col("device_id") == device)
    gaps = scene.windows_without(busy)
    time = total_duration(gaps)
    if scene.share(time) < IDLE or not busy.height:
        return
    launches = scene.launches.filter((pl.col("device_id") == device) & pl.col("kind").is_in(breakdown.KERNELS)).height
    main = max(causes, key=lambda c: causes[c])
    parts = ", ".join(f"{_CAUSES[c]} {as_text(t)}" for c, t in causes.items() if t)
    where = longest(gaps)
    problem = f"GPU {device} is idle for {scene.share(time):.0f} % of the time"
    evidence = f"{parts}; {launches} launches; the longest gap took {as_text(where[1] - where[0])}"
    advice = _ADVICE.get(main) or cpu_advice(scene, causes["cpu"], launches)
    figures = {"device_id": device, "idle_ns": time, "gaps": gaps.height, "launches": launches}
    figures |= {"length_ns": scene.length_ns, **{f"{c}_ns": t for c, t in causes.items()}}
    yield Finding("idle_by_cause", problem, evidence, advice, time, scene.share(time), gaps.height, *where, figures)


def cpu_advice(scene: Scene, cpu_ns: int, launches: int) -> str:
    """Return advice for ops that keep the CPU busy: launch fewer activities, or compute on other threads."""
    if cpu_ns <= LAUNCHING_NS * launches:
        return f"Launch less and more at once: {launch_advice(scene)}."
    return "Find what the ops do on the CPU between launches: load modules before, or compute in other threads."


def late_launches(scene: Scene) -> Iterator[Finding]:
    """Report gaps before kernels that the CPU launched only after the device had finished all earlier activities."""
    previous_end = intervals.latest_end_before("device_id")
    ordered = scene.gpu.sort("device_id", "start_ns").with_columns(previous_end=previous_end)
    first = ordered.unique(["call", "device_id"], keep="first", maintain_order=True)
    gaps = first.filter((pl.col("start_ns") > pl.col("previous_end")) & (pl.col("api_end_ns") > pl.col("previous_end")))
    gaps = scene.clipped(gaps.select("op", "device_id", start_ns="previous_end", end_ns="start_ns"))
    devices = max(1, scene.busy["device_id"].n_unique())
    time = total_duration(gaps) // devices
    if scene.share(time) < LATE:
        return
    evidence = (
        f"{gaps.height} gaps, half of them longer than {as_text(gaps.select(DURATION.median()).item())}, "
        f"before {scene.largest_ops(gaps, DURATION)}"
    )
    advice = f"Launch faster than the GPU works: {launch_advice(scene)}."
    problem = "The CPU launches too late: the GPU has finished before the next kernel comes"
    figures = {"gaps": gaps.height, "gap_ns": total_duration(gaps), "devices": devices, "length_ns": scene.length_ns}
    where = longest(gaps)
    yield Finding("late_launches", problem, evidence, advice, time, scene.share(time), gaps.height, *where, figures)


def synchronizations(scene: Scene) -> Iterator[Finding]:
    """Report API calls within steps that make the CPU wait for the GPU, and the GPU then wait for the CPU."""
    calls = scene.rollup.measures.calls.filter(pl.col("name").cast(pl.String).str.contains(WAITS))
    waits = scene.clipped(calls.unique("call").select("op", "name", "start_ns", "end_ns"))
    time = total_duration(intervals.merge(waits, by=[]))
    if not waits.height or scene.share(time) < WAITING:
        return
    names = ", ".join(sorted(waits["name"].cast(pl.String).unique()))
    evidence = (
        f"{waits.height} calls ({names}) in {scene.largest_ops(waits, DURATION)}; "
        f"{waits.height / scene.iterations:.3g} per step"
    )
    advice = "Avoid .item(), .cpu(), print and comparisons of tensors in the step; synchronize only to measure."
    problem, where = "The CPU waits for the GPU within the step", longest(waits)
    figures = {"calls": waits.height, "wait_ns": time, "steps": scene.iterations, "length_ns": scene.length_ns}
    yield Finding("synchronizations", problem, evidence, advice, time, scene.share(time), waits.height, *where, figures)


def module_loading(scene: Scene) -> Iterator[Finding]:
    """Report API calls within steps that load code onto a GPU, as CUDA does when a kernel is first used."""
    calls = scene.calls.filter(pl.col("name").str.contains(LOADS_MODULES)).collect()
    loads = scene.clipped(calls.filter(pl.col("end_ns") > pl.col("start_ns")).sort("start_ns"))
    time = total_duration(intervals.merge(loads, by=[]))
    if not loads.height or scene.share(time) < MODULES:
        return
    by_name = loads.group_by("name").agg(length=DURATION.sum()).sort("length", "name", descending=[True, False])
    named = ", ".join(f"{name} {as_text(length)}" for name, length in by_name.iter_rows())
    evidence = f"{loads.height} calls: {named}, of {as_text(scene.length_ns)}"
    advice = (
        "Run steps that warm up before the measurement and leave them out (--iterations A:B); in production load at "
        "start, CUDA_MODULE_LOADING=EAGER."
    )
    problem = "Code is loaded onto the GPU within the steps"
    figures = {
        "calls": loads.height,
        "call_ns": total_duration(loads),
        "loading_ns": time,
        "length_ns": scene.length_ns,
    }
    where = longest(loads)
    yield Finding("module_loading", problem, evidence, advice, time, scene.share(time), loads.height, *where, figures)


def copies(scene: Scene) -> Iterator[Finding]:
    """Report memory copies between host and device within steps, by direction."""
    rows = scene.gpu.filter(pl.col("kind") == "memcpy")
    columns = ["copy_kind", "src_memory_kind", "dst_memory_kind"]
    copies = scene.rollup.measures.ops.frames("memcpys").select("bytes", pl.col(columns).cast(pl.String)).collect()
    rows = rows.hstack(copies.select(pl.all().gather(rows["activity"])))
    for kind, advice in _DIRECTIONS.items():
        in_direction = rows.filter(pl.col("copy_kind") == kind)
        if in_direction.height:
            yield from _copies_in_direction(
                scene, in_direction, f"Copies within the step, {kind.lower().replace('-', ' ')}", advice
            )


_DIRECTIONS = {
    "Host-to-Device": "Copy from pinned memory with non_blocking=True, ahead of the step; keep on the GPU what stays.",
    "Device-to-Host": "Keep results on the GPU and fetch them rarely: each such copy makes the CPU wait.",
}


def _copies_in_direction(scene: Scene, rows: pl.DataFrame, problem: str, advice: str) -> Iterator[Finding]:
    """Report memory copies in one direction that take long, use pageable memory, or make the CPU wait in every step."""
    pageable = (pl.col("src_memory_kind") == "Pageable") | (pl.col("dst_memory_kind") == "Pageable")
    unpinned = rows.filter(pageable.fill_null(value=False)).height
    time, moved = total_duration(intervals.merge(rows, by=[])), int(rows["bytes"].sum())
    waits = rows["copy_kind"][0] == "Device-to-Host" and rows.height >= scene.iterations > 1
    if scene.share(time) < COPYING and not (waits or unpinned):
        return
    evidence = (
        f"{rows.height} copies, {rows.height / scene.iterations:.3g} per step with {moved / scene.iterations:.4g} "
        f"bytes in total, {unpinned} with pageable memory; {scene.largest_ops(rows, DURATION)}"
    )
    figures = {"copies": rows.height, "bytes": moved, "pageable_copies": unpinned, "copy_ns": time}
    figures |= {"steps": scene.iterations, "length_ns": scene.length_ns}
    where = longest(rows)
    yield Finding("copies", problem, evidence, advice, time, scene.share(time), rows.height, *where, figures)
