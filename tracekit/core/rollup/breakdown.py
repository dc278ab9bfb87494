"""Divide the time of each iteration on each device into parts.

The time of an iteration is its window, in which its GPU activities run (see ``steps``). Each point in time counts for
the first part of ``PARTS`` whose condition holds:

1. ``tensor_core``: a kernel that uses Tensor Cores runs on the device.
2. ``other_kernel``: another kernel, or a CUDA graph that was recorded as one activity, runs on the device.
3. ``memory``: memory is copied or set on the device.
4. ``dataloader``: an op that loads data runs on the CPU.
5. ``io``: an op that reads or writes files runs on the CPU.
6. ``cpu``: any other op runs on the CPU.
7. ``other``: none of these conditions holds.

Time that several iterations share counts for each of these iterations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals
from tracekit.core.categorical import match_categories_expr

if TYPE_CHECKING:
    from tracekit.core.iterations import Iterations
    from tracekit.core.rollup.measures import Measures

PARTS = ("tensor_core", "other_kernel", "memory", "dataloader", "io", "cpu", "other")
KERNEL_KINDS = ("kernel", "graph")
"""Kinds of activities that run kernels. The kernels of a CUDA graph that was recorded as one activity are unknown."""

LOADER_OP_TYPES = ("dataloader", "dali")
"""Types of the ops that load data according to DLProf, in lower case."""

_LOADER_NAME_PATTERNS = (
    r"dataloader|data[ _]?load",
    r"enumerate\(|__next__",
    r"^load(?: \*)?$",
    r"\b(?:next|fetch|get|load|read)[ _]?(?:batch|data)\b",
)
LOADER_NAME_PATTERN = "(?i)" + "|".join(_LOADER_NAME_PATTERNS)
"""Regular expression that matches the last part of the name of an op that loads data."""

_GPU_PARTS = 3
_OPEN = tuple(f"_{p}" for p in PARTS[:-1])
_SCHEMA = {"iteration": pl.Int64, "device_id": pl.Int32, **dict.fromkeys(PARTS, pl.Int64)}


def divide_iteration_times(measures: Measures, iterations: Iterations, devices: pl.Series) -> pl.DataFrame:
    """Divide the time of each iteration on each device into parts.

    Returns:
        One row per iteration and device, sorted by both. The columns are ``iteration``, ``device_id`` and, for each
        part, a time in ns.
    """
    cells = iterations.frame.select("iteration").join(pl.DataFrame({"device_id": devices}), how="cross")
    host, gpu = _compute_cpu_times_by_part(measures), _compute_gpu_times_by_part(measures)
    by_device = [
        _compute_time_by_part(pl.concat([gpu.filter(device_id=d).drop("device_id"), host]), iterations, d)
        for d in devices
    ]
    times = pl.concat([*by_device, pl.DataFrame(schema=_SCHEMA)])
    return cells.join(times, on=["iteration", "device_id"], how="left", maintain_order="left")


def _compute_gpu_times_by_part(measures: Measures) -> pl.DataFrame:
    """Return the times in which kernels or memory operations run on each device, as disjoint intervals per part.

    The columns are ``device_id``, ``part`` (number of the part), ``start_ns`` and ``end_ns``.
    """
    kernel, uses = pl.col("kind").is_in(KERNEL_KINDS), pl.col("uses_tc").fill_null(value=False)
    part = pl.when(kernel & uses).then(0).when(kernel).then(1).otherwise(2).cast(pl.Int64)
    return intervals.merge_intervals(measures.gpu_activities.with_columns(part=part), by=["device_id", "part"])


def compute_loader_op_mask(measures: Measures) -> pl.Series:
    """Return whether each op loads data, according to its type or, except in DLProf's mode, its name."""
    ops = measures.ops.ops
    by_type = match_categories_expr(pl.col("op_type"), lambda text: text.str.to_lowercase().is_in(LOADER_OP_TYPES))
    by_name = match_categories_expr(
        pl.col("op_name"), lambda text: text.str.extract(r"([^/]*)$").str.contains(LOADER_NAME_PATTERN)
    )
    return ops.select(by_type | by_name if measures.mode == "extended" else by_type).to_series()


def _compute_cpu_times_by_part(measures: Measures) -> pl.DataFrame:
    """Return the times in which ops run on the CPU, as disjoint intervals per part.

    The columns are ``part`` (number of the part), ``start_ns`` and ``end_ns``.
    """
    loads = compute_loader_op_mask(measures).gather(measures.instances["op"])
    ops = measures.instances.select("start_ns", "end_ns", "op_type", loads=loads)
    conditions = (pl.col("loads"), pl.col("op_type") == "IO", pl.lit(value=True))
    parts = [
        ops.filter(condition).select("start_ns", "end_ns", part=pl.lit(_GPU_PARTS + i))
        for i, condition in enumerate(conditions)
    ]
    merged = intervals.merge_intervals(pl.concat(parts).with_columns(pl.col("part").cast(pl.Int64)), by=["part"])
    return merged.select("part", "start_ns", "end_ns")


def _compute_time_by_part(parts: pl.DataFrame, iterations: Iterations, device: int) -> pl.DataFrame:
    """Return the time of each part in each iteration on one device, with the columns of ``_SCHEMA``.

    Args:
        parts: Disjoint intervals of each part: ``part``, ``start_ns``, ``end_ns``.
        iterations: The iterations whose time is divided.
        device: Id of the device, which is added to the result.
    """
    bounds = pl.concat([iterations.frame[c] for c in _WINDOW]).unique()
    edges = [
        parts.select("part", t="start_ns", step=pl.lit(1)),
        parts.select("part", t="end_ns", step=pl.lit(-1)),
        pl.DataFrame({"part": -1, "t": bounds, "step": 0}, schema={"part": pl.Int64, "t": pl.Int64, "step": pl.Int32}),
    ]
    steps = pl.concat([e.cast({"step": pl.Int32}) for e in edges]).sort("t")
    opened = [(pl.col("step") * (pl.col("part") == i)).cum_sum().alias(c) for i, c in enumerate(_OPEN)]
    part = pl.lit(PARTS[-1])
    for name, opening in reversed(list(zip(PARTS, _OPEN, strict=False))):
        part = pl.when(pl.col(opening) > 0).then(pl.lit(name)).otherwise(part)
    elapsed = pl.col("t") - pl.col("t").shift(1)
    steps = steps.with_columns(opened).select("t", part=part.shift(1), elapsed=elapsed.fill_null(0))
    totals = [pl.when(pl.col("part") == p).then("elapsed").otherwise(0).cum_sum().alias(p) for p in PARTS]
    until = steps.select("t", *totals).unique("t", keep="last", maintain_order=True)
    ends = [iterations.frame.select(t=c).join(until, on="t", how="left", maintain_order="left") for c in _WINDOW]
    durations = {p: ends[1][p] - ends[0][p] for p in PARTS}
    return iterations.frame.select("iteration", pl.lit(device, pl.Int32).alias("device_id"), **durations)


_WINDOW = ("window_start_ns", "window_end_ns")
