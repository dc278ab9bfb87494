"""Summarize a roll-up: utilization of each GPU, parts of the iterations, time by kind of activity, and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.dlprof.model import ModelSummary
from tracekit.core.relations import ACTIVITIES
from tracekit.core.rollup import tables
from tracekit.core.rollup.measures import KERNEL_KINDS
from tracekit.core.steps import is_outlier_expr
from tracekit.errors import MissingTableError

if TYPE_CHECKING:
    from tracekit.core.figures import FigureInputs
    from tracekit.core.rollup import Rollup

PART_COLUMNS = {
    "tensor_core": "in_tensor_core_kernels_ns",
    "other_kernel": "in_other_kernels_ns",
    "memory": "in_memory_ops_ns",
    "dataloader": "in_dataloader_ns",
    "io": "in_io_ns",
    "cpu": "in_cpu_ns",
    "other": "in_nothing_ns",
}
"""The parts into which iterations are divided, and the columns of ``iterations`` that contain them."""

_AGGREGATED = pl.col("is_aggregated")
_FLAGS = ("is_aggregated", "is_warm_up")


def gpu_utilization(inputs: FigureInputs) -> pl.DataFrame:
    """Return how long each GPU ran kernels in the aggregated iterations, in ns and in percent of their duration."""
    return compute_device_utilization(_get_rollup_with_gpu_activities(inputs))


def time_breakdown(inputs: FigureInputs) -> pl.DataFrame:
    """Return the time of the aggregated iterations by part, such as Tensor Core kernels or I/O."""
    return compute_time_breakdown(_get_nonempty_rollup(inputs))


def kernel_time(inputs: FigureInputs) -> pl.DataFrame:
    """Return the total duration and the number of GPU activities of each kind in the aggregated iterations."""
    return sum_activity_times_by_kind(_get_rollup_with_gpu_activities(inputs))


def iteration_table(inputs: FigureInputs) -> pl.DataFrame:
    """Return the rows of the table ``iterations`` of the roll-up."""
    return tables.build_iterations(_get_nonempty_rollup(inputs))


def iterations(inputs: FigureInputs, *, bins: int) -> pl.DataFrame:
    """Return the iterations, merged into bins if there are more than ``bins``, with one column per part."""
    return merge_iterations_into_bins(iteration_table(inputs), bins).rename(
        {c: part for part, c in PART_COLUMNS.items()}
    )


def top_ops(inputs: FigureInputs) -> pl.DataFrame:
    """Return the rows of the table ``ops`` of the roll-up, by descending GPU time or, without it, by CPU time."""
    rows = tables.build_ops(inputs.get_rollup())
    if rows.is_empty():
        raise MissingTableError("the capture has no ops")
    metric = "gpu_time_ns" if rows["gpu_time_ns"].sum() else "cpu_time_ns"
    return rows.sort(metric, "op_id", descending=[True, False])


def op_groups(inputs: FigureInputs) -> pl.DataFrame:
    """Return the group of each op, with one row per op, as ``core.rollup.tables.build_op_groups`` computes it."""
    return tables.build_op_groups(inputs.get_rollup())


def _get_rollup_with_gpu_activities(inputs: FigureInputs) -> Rollup:
    if not any(inputs.view.tables.count_many(ACTIVITIES).values()):
        raise MissingTableError("the capture has no GPU activities")
    return inputs.get_rollup()


def _get_nonempty_rollup(inputs: FigureInputs) -> Rollup:
    rollup = inputs.get_rollup()
    if not has_ops_or_gpu_activities(rollup):
        raise MissingTableError("the capture has no ops or GPU activities")
    return rollup


def has_ops_or_gpu_activities(rollup: Rollup) -> bool:
    """Return whether a roll-up has ops or GPU activities.

    A roll-up with neither ops nor GPU activities has one iteration, which only shows the duration of the capture.
    """
    return bool(rollup.measures.ops.ops.height or rollup.measures.gpu_activities.height)


def compute_device_utilization(rollup: Rollup) -> pl.DataFrame:
    """Return the time in which each GPU ran kernels, as a share of the duration of the aggregated iterations.

    Returns:
        One row per GPU, in order of ``device_id``. The columns are ``device_id``, ``name`` (null if unknown),
        ``busy_ns``, ``total_ns`` (the sum of the durations of the iterations) and ``percent``. GPUs that were not used
        have a row if the capture lists them.
    """
    summary = ModelSummary(rollup)
    iterations = rollup.iterations.aggregated.select("iteration")
    busy = rollup.breakdown.join(iterations, on="iteration", how="semi").group_by("device_id")
    busy_ns = busy.agg(busy_ns=(pl.col("tensor_core") + pl.col("other_kernel")).sum())
    name = pl.col("name").cast(pl.String) if "name" in rollup.devices.columns else pl.lit(None, pl.String).alias("name")
    rows = rollup.devices.select(pl.col("device_id"), name).join(busy_ns, on="device_id", how="left")
    total = sum(summary.iteration_durations)
    share = pl.col("busy_ns") * 100.0 / total if total else pl.lit(0.0)
    filled = rows.with_columns(pl.col("busy_ns").fill_null(0), total_ns=pl.lit(total, pl.Int64))
    return filled.with_columns(percent=share).sort("device_id")


def compute_time_breakdown(rollup: Rollup) -> pl.DataFrame:
    """Return how the time of the aggregated iterations is divided into parts, averaged over the used GPUs.

    Returns:
        One row per part, in the order of ``PART_COLUMNS``: ``part``, ``time_ns`` (the sum of the part's column in the
        table ``iterations``) and ``percent`` of the duration of the iterations.
    """
    sums = tables.build_iterations(rollup).filter(_AGGREGATED).select(PART_COLUMNS.values()).sum().row(0)
    percentages = ModelSummary(rollup).part_percentages
    columns = {"part": list(PART_COLUMNS), "time_ns": sums, "percent": [percentages[p] for p in PART_COLUMNS]}
    return pl.DataFrame(columns, schema={"part": pl.String, "time_ns": pl.Int64, "percent": pl.Float64})


def sum_activity_times_by_kind(rollup: Rollup) -> pl.DataFrame:
    """Return the summed durations of GPU activities in the aggregated iterations, by kind.

    Returns:
        One row per kind: ``kind``, ``time_ns`` and ``count``. The kinds are ``tensor_core`` and ``other_kernel`` for
        kernels, ``graph`` for CUDA graphs whose kernels were not recorded, and ``memory`` for copies and sets.
    """
    time = (pl.col("gpu_end_ns") - pl.col("gpu_start_ns")).sum().alias("time_ns")
    is_kernel, uses = pl.col("kind") == "kernel", pl.col("uses_tc").fill_null(value=False)
    calls = rollup.select_calls("kind", "gpu_start_ns", "gpu_end_ns", "uses_tc")
    calls = calls.filter(pl.col("iteration").is_not_null())
    conditions = {
        "tensor_core": is_kernel & uses,
        "other_kernel": is_kernel & ~uses,
        "graph": pl.col("kind").is_in([k for k in KERNEL_KINDS if k != "kernel"]),
        "memory": pl.col("kind").is_in(["memcpy", "memset"]),
    }
    rows = [
        calls.filter(condition).select(pl.lit(kind).alias("kind"), time, pl.len().cast(pl.Int64).alias("count"))
        for kind, condition in conditions.items()
    ]
    return pl.concat(rows)


def merge_iterations_into_bins(iterations: pl.DataFrame, limit: int) -> pl.DataFrame:
    """Merge consecutive iterations to limit the number of bars in a chart, and find outliers.

    Only aggregated iterations that are not warm-up can be outliers, as ``core.steps.is_outlier_expr`` defines them.

    Args:
        iterations: The table ``iterations``.
        limit: Maximum number of rows to return, except for the additional rows described below.

    Returns:
        One row per iteration, or per group of consecutive iterations if there are more than ``limit``: ``first`` and
        ``last`` (numbers of iterations), ``duration_ns``, ``is_aggregated``, ``is_warm_up``, the columns of
        ``PART_COLUMNS``, ``longest`` (number of the longest iteration of the group), ``longest_ns`` (its duration),
        ``longest_name`` (its name, or null) and ``longest_is_outlier``, the same of the ``shortest`` iteration, and
        ``outlier_count``. Other times of a group are means over its iterations. The iterations of a group are either
        all aggregated or none of them, and either all warm-up or none of them, so there may be up to three additional
        rows.
    """
    size = -(-iterations.height // limit) or 1
    rows = iterations.sort("iteration").with_columns(
        duration_ns=pl.col("window_end_ns") - pl.col("window_start_ns"),
        group=pl.col("iteration") // size,
        run=pl.struct(*_FLAGS).rle_id(),
    )
    rows = rows.with_columns(is_outlier=is_outlier_expr(pl.col("duration_ns"), _AGGREGATED & ~pl.col("is_warm_up")))
    duration = pl.col("duration_ns")
    extremes = {
        f"{kind}{suffix}": pl.col(column).get(row)
        for kind, row in (("longest", duration.arg_max()), ("shortest", duration.arg_min()))
        for suffix, column in _EXTREME_COLUMNS.items()
    }
    times = ["duration_ns", *PART_COLUMNS.values()]
    grouped = rows.group_by("group", "run", maintain_order=True).agg(
        pl.col("iteration").first().alias("first"),
        pl.col("iteration").last().alias("last"),
        pl.col(_FLAGS).first(),
        *((pl.col(c).sum() // pl.len().cast(pl.Int64)).alias(c) for c in times),
        **extremes,
        outlier_count=pl.col("is_outlier").sum().cast(pl.Int64),
    )
    columns = ("first", "last", "duration_ns", *_FLAGS, *PART_COLUMNS.values(), *extremes, "outlier_count")
    return grouped.select(columns)


_EXTREME_COLUMNS = {"": "iteration", "_ns": "duration_ns", "_name": "name", "_is_outlier": "is_outlier"}
