"""Compute the times of nodes in each iteration, and statistics of each iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.rollup import tables

if TYPE_CHECKING:
    from tracekit.core.rollup import Rollup

_DURATION = pl.col("end_ns") - pl.col("start_ns")
_MS, _PERCENT = 1e6, 100.0
_ON_GPU = ("in_tensor_core_kernels_ns", "in_other_kernels_ns", "in_memory_ops_ns")
_PARTS = (*_ON_GPU, "in_dataloader_ns", "in_io_ns", "in_cpu_ns", "in_nothing_ns")


def compute_node_stats(rollup: Rollup, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return the CPU and GPU time of each node in each aggregated iteration.

    Returns:
        One row for each iteration, node and GPU on which the node ran an activity, sorted by these three. The columns
        are ``iteration``, ``node`` (row number in ``nodes``), ``device_id``, ``gpu_ns`` and ``cpu_ns``. If a node ran
        in an iteration without GPU activities, it has one row with a null ``device_id``. If it has several rows in an
        iteration, the first row contains its CPU time and the other rows contain 0.
    """
    node_rows = nodes.select("op").with_row_index("node").with_columns(pl.col("node").cast(pl.Int64))
    instances = rollup.measures.instances.select("op", iteration=rollup.iteration, cpu_ns="cpu")
    called = instances.drop_nulls("iteration").group_by("iteration", "op").agg(pl.col("cpu_ns").sum())
    busy = rollup.measures.gpu_busy_times
    owners = instances.select(pl.col("op", "iteration").gather(busy["instance"]))
    ran = busy.select("device_id", gpu_ns=_DURATION).hstack(owners).drop_nulls("iteration")
    ran = ran.group_by("iteration", "op", "device_id").agg(pl.col("gpu_ns").sum())
    rows = called.join(ran, on=["iteration", "op"], how="left").join(node_rows, on="op")
    rows = rows.sort("iteration", "node", "device_id").with_columns(pl.col("gpu_ns").fill_null(0))
    first = pl.int_range(pl.len()).over("iteration", "node") == 0
    cpu = pl.when(first).then("cpu_ns").otherwise(0)
    return rows.select("iteration", "node", "device_id", "gpu_ns", cpu_ns=cpu)


def compute_iteration_scalars(rollup: Rollup) -> pl.DataFrame:
    """Return statistics of each aggregated iteration, such as its duration and GPU utilization.

    Returns:
        One row per iteration and statistic: ``iteration``, ``start_ns``, ``end_ns``, ``tag`` (name of the statistic),
        ``value`` (Float64).
    """
    rows = tables.build_iterations(rollup).filter("is_aggregated")
    busy, share = pl.sum_horizontal(_ON_GPU), pl.col("tensor_core_kernel_time_ns") / pl.col("kernel_time_ns")
    figures = {
        "iteration/time_ms": _DURATION / _MS,
        "iteration/gpu_busy_ms": busy / _MS,
        "iteration/gpu_idle_ms": (_DURATION - busy) / _MS,
        "iteration/gpu_utilization_percent": pl.when(_DURATION > 0).then(_PERCENT * busy / _DURATION).otherwise(0.0),
        "iteration/tensor_core_share_percent": pl.when(pl.col("kernel_time_ns") > 0)
        .then(_PERCENT * share)
        .otherwise(0.0),
        "iteration/kernel_time_ms": pl.col("kernel_time_ns") / _MS,
        "iteration/kernels": pl.col("kernel_count"),
        **{f"parts/{p.removesuffix('_ns')}_ms": pl.col(p) / _MS for p in _PARTS},
    }
    values = rows.select("iteration", "start_ns", "end_ns", *(f.cast(pl.Float64).alias(t) for t, f in figures.items()))
    return values.unpivot(index=["iteration", "start_ns", "end_ns"], variable_name="tag").sort(
        "iteration", maintain_order=True
    )
