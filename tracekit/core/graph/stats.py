"""What nodes took in each iteration, and figures of the iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.rollup import tables

if TYPE_CHECKING:
    from tracekit.core.rollup import Rollup

_LENGTH = pl.col("end_ns") - pl.col("start_ns")
_MS, _PERCENT = 1e6, 100.0
_ON_GPU = ("in_tensor_core_kernels_ns", "in_other_kernels_ns", "in_memory_ops_ns")
_PARTS = (*_ON_GPU, "in_dataloader_ns", "in_io_ns", "in_cpu_ns", "in_nothing_ns")


def stats(rollup: Rollup, nodes: pl.DataFrame) -> pl.DataFrame:
    """Measure nodes.

    Returns:
        One row an aggregated iteration and node that was called in it, in this order: ``iteration``, ``node`` (row of
        ``nodes``), ``cpu_ns``; and of a node that ran anything on GPUs one a device, with ``device_id`` and ``gpu_ns``.
        CPU time stands in the first of its rows, and 0 in the others.
    """
    place = nodes.select("op").with_row_index("node").with_columns(pl.col("node").cast(pl.Int64))
    every = rollup.measures.instances.select("op", iteration=rollup.iteration, cpu_ns="cpu")
    called = every.drop_nulls("iteration").group_by("iteration", "op").agg(pl.col("cpu_ns").sum())
    busy = rollup.measures.busy
    of = every.select(pl.col("op", "iteration").gather(busy["instance"]))
    ran = busy.select("device_id", gpu_ns=_LENGTH).hstack(of).drop_nulls("iteration")
    ran = ran.group_by("iteration", "op", "device_id").agg(pl.col("gpu_ns").sum())
    whole = called.join(ran, on=["iteration", "op"], how="left").join(place, on="op")
    whole = whole.sort("iteration", "node", "device_id").with_columns(pl.col("gpu_ns").fill_null(0))
    first = pl.int_range(pl.len()).over("iteration", "node") == 0
    cpu = pl.when(first).then("cpu_ns").otherwise(0)
    return whole.select("iteration", "node", "device_id", "gpu_ns", cpu_ns=cpu)


def scalars(rollup: Rollup) -> pl.DataFrame:
    """Give figures of the aggregated iterations.

    Returns:
        One row an iteration and figure: ``iteration``, ``start_ns``, ``end_ns``, ``tag``, ``value`` (Float64).
    """
    rows = tables.iterations(rollup).filter("is_aggregated")
    busy, share = pl.sum_horizontal(_ON_GPU), pl.col("tensor_core_kernel_time_ns") / pl.col("kernel_time_ns")
    figures = {
        "iteration/time_ms": _LENGTH / _MS,
        "iteration/gpu_busy_ms": busy / _MS,
        "iteration/gpu_idle_ms": (_LENGTH - busy) / _MS,
        "iteration/gpu_utilization_percent": pl.when(_LENGTH > 0).then(_PERCENT * busy / _LENGTH).otherwise(0.0),
        "iteration/tensor_core_share_percent": pl.when(pl.col("kernel_time_ns") > 0)
        .then(_PERCENT * share)
        .otherwise(0.0),
        "iteration/kernel_time_ms": pl.col("kernel_time_ns") / _MS,
        "iteration/kernels": pl.col("kernel_count"),
        **{f"parts/{p.removesuffix('_ns')}_ms": pl.col(p) / _MS for p in _PARTS},
    }
    made = rows.select("iteration", "start_ns", "end_ns", *(f.cast(pl.Float64).alias(t) for t, f in figures.items()))
    return made.unpivot(index=["iteration", "start_ns", "end_ns"], variable_name="tag").sort(
        "iteration", maintain_order=True
    )
