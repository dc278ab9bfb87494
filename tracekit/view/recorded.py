"""Join the kernels and ops of captures that contain a roll-up, such as DLProf databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import schemas

if TYPE_CHECKING:
    from tracekit.trace import Trace

_THREAD = schemas.get_key("thread")


def has_recorded_rollup(trace: Trace) -> bool:
    """Return whether the table ``ops`` of a trace was read from the capture instead of computed."""
    return "op_id" not in trace.frame("kernels").collect_schema() and trace.count("ops") > 0


def read_iteration_kernels(trace: Trace) -> pl.DataFrame:
    """Return the kernel launches with their ops, in the columns of the report ``iteration``.

    Returns:
        One row per kernel launch: the iteration, op, kernel, device, times in ns, grid and block. The op is the one
        whose instance contains the API call of the kernel, or null if no instance contains it. ``uses_tc`` states
        whether the op uses Tensor Cores. This does not mean that the kernel itself uses them.
    """
    own = ("op_id", "iteration", "input_shapes", "output_shapes", "parameters")
    calls = trace.frame("op_instances").select(*_THREAD, *own, call="start_ns", call_end="end_ns")
    ops = trace.frame("ops").select("op_id", "op_name", "direction", "op_type", "data_type", "uses_tensor_cores")
    shape = [f"{prefix}_{axis}" for prefix in ("grid", "block") for axis in "xyz"]
    kernels = trace.frame("kernels").select(
        *_THREAD,
        pl.col("short_name").alias("kernel_name"),
        "device_id",
        pl.col("start_ns").alias("gpu_start_time_ns"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("gpu_duration_ns"),
        pl.col("api_start_ns").alias("api_call_start_ns"),
        (pl.col("api_end_ns") - pl.col("api_start_ns")).alias("api_call_time_ns"),
        *shape,
        pl.col("name").alias("long_kernel_name"),
    )
    joined = kernels.sort("api_call_start_ns", nulls_last=True).join_asof(
        calls.sort("call"),
        left_on="api_call_start_ns",
        right_on="call",
        by=_THREAD,
        strategy="backward",
        check_sortedness=False,
    )
    inside = pl.col("call_end") >= pl.col("api_call_start_ns") + pl.col("api_call_time_ns")
    joined = joined.with_columns(pl.when(inside).then(pl.col(c)).alias(c) for c in own)
    joined = joined.with_columns(pl.col("op_id").cast(pl.String))
    rows = joined.join(ops.with_columns(pl.col("op_id").cast(pl.String)), on="op_id", how="left")
    return (
        rows.rename({"data_type": "data_types", "uses_tensor_cores": "uses_tc"})
        .drop(*_THREAD, "call", "call_end", strict=False)
        .sort("gpu_start_time_ns")
        .collect()
    )


def read_op_kernels(trace: Trace) -> pl.DataFrame:
    """Return one row per op and kernel name, with the columns of the report ``kernel``."""
    time, api = pl.col("gpu_duration_ns"), pl.col("api_call_time_ns")
    return (
        read_iteration_kernels(trace)
        .group_by("kernel_name", "op_id", "op_name", "direction", "uses_tc", maintain_order=True)
        .agg(
            calls=pl.len().cast(pl.Int64),
            total_gpu_time_ns=time.sum(),
            avg_gpu_time_ns=time.mean(),
            min_gpu_time_ns=time.min(),
            max_gpu_time_ns=time.max(),
            total_api_time_ns=api.sum(),
        )
    )
