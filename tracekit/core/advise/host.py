"""Report the time that GPUs lose while the CPU loads data, launches activities, synchronizes, or copies memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import idle, intervals
from tracekit.core.advise.iteration_activity import (
    DURATION,
    Finding,
    find_longest_interval,
    shorten_name,
    sum_durations,
)
from tracekit.core.idle import WAIT_PATTERN
from tracekit.core.ops.calls import MODULE_LOAD_PATTERN
from tracekit.core.rollup import breakdown
from tracekit.text import format_duration, format_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.advise.iteration_activity import IterationActivity

MIN_LOADING, MIN_IDLE, MIN_LATE, MIN_WAITING, MIN_COPYING, MIN_MODULE_LOADING = 5, 20, 10, 5, 2, 5
"""For each rule, the smallest percentage of the time of the iterations at which it reports a finding."""

MAX_LAUNCHING_NS = 100_000
"""Largest CPU time per launch, in ns, at which launching is regarded as the cause of idle time."""

_CAUSES = {
    "dataloader": "a data loader ran",
    "io": "files were read or written",
    "cpu": "ops ran on the CPU",
    "other": "no op ran",
}
_ADVICE = {
    "dataloader": "Give the loader more workers, prefetch, or decode on the GPU.",
    "io": "Read ahead in another thread, or keep the data in memory.",
    "other": "Add NVTX ranges to the code that runs in this time, and record the program again.",
}
_GRAPHS = "CUDA graphs, "


def format_launch_advice(activity: IterationActivity) -> str:
    """Return advice on how to launch fewer GPU activities.

    The advice mentions CUDA graphs unless the program already uses them.
    """
    return f"{'' if activity.has_cuda_graphs else _GRAPHS}torch.compile, larger batches, fewer and fused ops"


def data_loading(activity: IterationActivity) -> Iterator[Finding]:
    """Report the time in which data is loaded while no GPU is busy."""
    measures = activity.rollup.measures
    is_loader = breakdown.compute_loader_op_mask(measures).gather(measures.instances["op"])
    loads = measures.instances.filter(is_loader & activity.rollup.iteration.is_not_null())
    merged = intervals.merge_intervals(loads, by=[])
    if not merged.height:
        return
    lost = intervals.intersect_unions(merged, activity.times_with_all_devices_idle, by=[])
    time = sum_durations(lost)
    percent = activity.compute_percentage(time)
    if percent < MIN_LOADING:
        return
    count = activity.iteration_count
    iteration_ns = activity.duration_ns / count
    summary = (
        f"loading data takes {format_duration(sum_durations(merged) / count)} per iteration of "
        f"{format_duration(iteration_ns)}"
    )
    evidence = (
        f"{summary}, {format_duration(time / count)} of it with idle GPUs; "
        f"{format_number(1e9 / iteration_ns)} iterations/s; {activity.describe_largest_ops(loads, DURATION)}"
    )
    advice = "Load data in other processes, in advance: num_workers, prefetch_factor, pin_memory; cache decoded data."
    figures = {
        "loading_ns": sum_durations(merged),
        "idle_loading_ns": time,
        "iterations": count,
        "length_ns": activity.duration_ns,
    }
    problem, where = "The GPUs wait for data", find_longest_interval(lost)
    yield Finding("data_loading", problem, evidence, advice, time, percent, loads.height, *where, figures)


def idle_by_cause(activity: IterationActivity) -> Iterator[Finding]:
    """Report the idle time of each device, broken down by what the CPU does in this time."""
    for row in activity.time_by_part.iter_rows(named=True):
        yield from _report_idle(activity, row["device_id"], {c: row[c] for c in _CAUSES})


def _report_idle(activity: IterationActivity, device: int, times_by_cause: dict[str, int]) -> Iterator[Finding]:
    """Report the idle time of one device.

    Args:
        activity: The GPU activities and ops of the aggregated iterations.
        device: Device id.
        times_by_cause: Idle time in ns for each cause in ``_CAUSES``.
    """
    busy = activity.busy_times_by_device.filter(pl.col("device_id") == device)
    gaps = activity.find_uncovered_times(busy)
    time = sum_durations(gaps)
    if activity.compute_percentage(time) < MIN_IDLE or not busy.height:
        return
    launches = activity.launches.filter(
        (pl.col("device_id") == device) & pl.col("kind").is_in(breakdown.KERNEL_KINDS)
    ).height
    main = max(times_by_cause, key=lambda c: times_by_cause[c])
    parts = ", ".join(f"{_CAUSES[c]} for {format_duration(t)}" for c, t in times_by_cause.items() if t)
    where = find_longest_interval(gaps)
    gaps_of_device = gaps.with_columns(device_id=pl.lit(device, pl.Int32))
    idle_times = idle.sum_idle_times(activity.rollup.measures.ops.frames, gaps_of_device)
    problem = f"GPU {device} is idle for {activity.compute_percentage(time):.0f} % of the time of the iterations"
    longest = format_duration(where[1] - where[0])
    evidence = f"{parts}; {_describe_main_cause(idle_times)}; {launches} launches; the longest gap took {longest}"
    advice = _ADVICE.get(main) or format_cpu_advice(activity, times_by_cause["cpu"], launches)
    figures = {"device_id": device, "idle_ns": time, "gaps": gaps.height, "launches": launches}
    figures |= {"length_ns": activity.duration_ns, **{f"{c}_ns": t for c, t in times_by_cause.items()}}
    figures |= {f"idle_{cause}_ns": time_ns for cause, time_ns in idle_times.totals.iter_rows()}
    yield Finding(
        "idle_by_cause",
        problem,
        evidence,
        advice,
        time,
        activity.compute_percentage(time),
        gaps.height,
        *where,
        figures,
    )


def _describe_main_cause(idle_times: idle.IdleTimeTotals) -> str:
    """Describe the main cause of idle time, for example ``main cause: memory management (cudaMalloc), 1.25 ms``."""
    cause, time = idle_times.totals.row(0)
    inside = f" ({shorten_name(idle_times.main_name)})" if idle_times.main_name else ""
    return f"main cause: {cause.replace('_', ' ')}{inside}, {format_duration(time)}"


def format_cpu_advice(activity: IterationActivity, cpu_ns: int, launch_count: int) -> str:
    """Return advice for a GPU that is idle while ops run on the CPU.

    Args:
        activity: The GPU activities and ops of the aggregated iterations.
        cpu_ns: Time in ns in which ops run on the CPU while the GPU is idle.
        launch_count: Number of launches on the GPU.
    """
    if cpu_ns <= MAX_LAUNCHING_NS * launch_count:
        return f"Reduce the number of launches: {format_launch_advice(activity)}."
    return "Find out what the ops do on the CPU between launches: load modules earlier, or compute in other threads."


def late_launches(activity: IterationActivity) -> Iterator[Finding]:
    """Report gaps in which a device is idle while the CPU is still launching the next activity."""
    previous_end = intervals.latest_end_before_expr("device_id")
    ordered = activity.gpu_activities.sort("device_id", "start_ns").with_columns(previous_end=previous_end)
    first = ordered.unique(["call", "device_id"], keep="first", maintain_order=True)
    gaps = first.filter((pl.col("start_ns") > pl.col("previous_end")) & (pl.col("api_end_ns") > pl.col("previous_end")))
    gaps = activity.clip_to_windows(gaps.select("op", "device_id", start_ns="previous_end", end_ns="start_ns"))
    devices = max(1, activity.busy_times_by_device["device_id"].n_unique())
    time = sum_durations(gaps) // devices
    if activity.compute_percentage(time) < MIN_LATE:
        return
    evidence = (
        f"there are {gaps.height} gaps before {activity.describe_largest_ops(gaps, DURATION)}; "
        f"half of them are longer than {format_duration(gaps.select(DURATION.median()).item())}"
    )
    advice = f"Reduce the time that launches take: {format_launch_advice(activity)}."
    problem = "The CPU launches too late: the GPU has no work left when the next kernel is launched"
    figures = {
        "gaps": gaps.height,
        "gap_ns": sum_durations(gaps),
        "devices": devices,
        "length_ns": activity.duration_ns,
    }
    where = find_longest_interval(gaps)
    yield Finding(
        "late_launches",
        problem,
        evidence,
        advice,
        time,
        activity.compute_percentage(time),
        gaps.height,
        *where,
        figures,
    )


def synchronizations(activity: IterationActivity) -> Iterator[Finding]:
    """Report the API calls in which the CPU waits for the GPU during the aggregated iterations."""
    calls = activity.rollup.select_calls("call", "op", "name", "start_ns", "end_ns").drop_nulls("iteration")
    calls = calls.filter(pl.col("name").cast(pl.String).str.contains(WAIT_PATTERN), DURATION > 0)
    waits = calls.unique("call", maintain_order=True).sort("start_ns")
    time = sum_durations(intervals.merge_intervals(waits, by=[]))
    if not waits.height or activity.compute_percentage(time) < MIN_WAITING:
        return
    names = ", ".join(sorted(waits["name"].cast(pl.String).unique()))
    evidence = (
        f"{waits.height} calls ({names}) in {activity.describe_largest_ops(waits, DURATION)}; "
        f"{format_number(waits.height / activity.iteration_count)} per iteration"
    )
    advice = "Avoid .item(), .cpu(), print and comparisons of tensors in the iteration; synchronize only to measure."
    problem, where = "The CPU waits for the GPU within the iteration", find_longest_interval(waits)
    figures = {
        "calls": waits.height,
        "wait_ns": time,
        "iterations": activity.iteration_count,
        "length_ns": activity.duration_ns,
    }
    yield Finding(
        "synchronizations",
        problem,
        evidence,
        advice,
        time,
        activity.compute_percentage(time),
        waits.height,
        *where,
        figures,
    )


def module_loading(activity: IterationActivity) -> Iterator[Finding]:
    """Report the API calls that load code onto a GPU during the aggregated iterations.

    CUDA loads code when a kernel is first used.
    """
    calls = activity.api_calls.filter(pl.col("name").str.contains(MODULE_LOAD_PATTERN), DURATION > 0).collect()
    iterations = activity.rollup.iterations
    loads = calls.filter(iterations.select_aggregated(iterations.find_call_iterations(calls)).is_not_null())
    loads = loads.sort("start_ns")
    time = sum_durations(intervals.merge_intervals(loads, by=[]))
    if not loads.height or (percent := activity.compute_percentage(time)) < MIN_MODULE_LOADING:
        return
    by_name = loads.group_by("name").agg(length=DURATION.sum()).sort("length", "name", descending=[True, False])
    named = ", ".join(f"{name} {format_duration(length)}" for name, length in by_name.iter_rows())
    evidence = f"{loads.height} calls: {named}; the iterations take {format_duration(activity.duration_ns)}"
    advice = (
        "Run warm-up iterations and exclude them from the measurement (--iterations A:B); in production, load all code "
        "at start-up with CUDA_MODULE_LOADING=EAGER."
    )
    problem = "Code is loaded onto the GPU within the iterations"
    figures = {
        "calls": loads.height,
        "call_ns": sum_durations(loads),
        "loading_ns": time,
        "length_ns": activity.duration_ns,
    }
    where = find_longest_interval(loads)
    yield Finding("module_loading", problem, evidence, advice, time, percent, loads.height, *where, figures)


def copies(activity: IterationActivity) -> Iterator[Finding]:
    """Report memory copies between host and device within the aggregated iterations, separately for each direction."""
    rows = activity.gpu_activities.filter(pl.col("kind") == "memcpy")
    columns = ["copy_kind", "src_memory_kind", "dst_memory_kind"]
    copies = activity.rollup.measures.ops.frames("memcpys").select("bytes", pl.col(columns).cast(pl.String)).collect()
    rows = rows.hstack(copies.select(pl.all().gather(rows["activity"])))
    for kind, advice in _DIRECTIONS.items():
        in_direction = rows.filter(pl.col("copy_kind") == kind)
        if in_direction.height:
            yield from _report_copies_in_direction(
                activity, in_direction, f"Copies within the iteration, {kind.lower().replace('-', ' ')}", advice
            )


_DIRECTIONS = {
    "Host-to-Device": "Copy from pinned memory with non_blocking=True, before the iteration; keep constant data on the "
    "GPU.",
    "Device-to-Host": "Keep results on the GPU and fetch them rarely: each such copy makes the CPU wait.",
}


def _report_copies_in_direction(
    activity: IterationActivity, rows: pl.DataFrame, problem: str, advice: str
) -> Iterator[Finding]:
    """Report memory copies in one direction that take long, use pageable memory, or make the CPU wait.

    Copies from the device are assumed to make the CPU wait if there is at least one per iteration.
    """
    pageable = (pl.col("src_memory_kind") == "Pageable") | (pl.col("dst_memory_kind") == "Pageable")
    unpinned = rows.filter(pageable.fill_null(value=False)).height
    time, moved = sum_durations(intervals.merge_intervals(rows, by=[])), int(rows["bytes"].sum())
    unknown = rows["bytes"].null_count()
    count = activity.iteration_count
    waits = rows["copy_kind"][0] == "Device-to-Host" and rows.height >= count > 1
    if activity.compute_percentage(time) < MIN_COPYING and not (waits or unpinned):
        return
    subject = "1 copy" if rows.height == 1 else f"{rows.height} copies"
    size = f"{format_number(moved / count)} bytes in total"
    if unknown:
        size = "an unknown number of bytes" if unknown == rows.height else f"{size} (unknown for {unknown} copies)"
    evidence = (
        f"{subject}, {format_number(rows.height / count)} per iteration with {size}, "
        f"{unpinned} with pageable memory; {activity.describe_largest_ops(rows, DURATION)}"
    )
    figures = {"copies": rows.height, "pageable_copies": unpinned, "copy_ns": time}
    figures |= {} if unknown == rows.height else {"bytes": moved}
    figures |= {"iterations": count, "length_ns": activity.duration_ns}
    where = find_longest_interval(rows)
    yield Finding(
        "copies", problem, evidence, advice, time, activity.compute_percentage(time), rows.height, *where, figures
    )
