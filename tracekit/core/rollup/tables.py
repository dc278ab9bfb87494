"""The declared tables that a roll-up makes: ``ops``, ``op_instances``, ``iterations``, ``group_nodes``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.correlate import CALL, THREAD
from tracekit.core.ops.calls import ON_GPU
from tracekit.core.ops.calls import TABLES as ACTIVITIES
from tracekit.core.rollup.breakdown import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.core.rollup import Rollup

_TOTALS = {
    "cpu_time_ns": "cpu",
    "gpu_time_ns": "gpu",
    "api_time_ns": "api",
    "cpu_overhead_ns": "overhead",
    "gpu_idle_ns": "idle",
}
_SUPPORT = {0: "eligible", 2: "maybe", 3: "not eligible"}
_SPENT_IN = (
    *("in_tensor_core_kernels_ns", "in_other_kernels_ns", "in_memory_ops_ns", "in_dataloader_ns", "in_io_ns"),
    *("in_cpu_ns", "in_nothing_ns"),
)
_TIMES = ("start_ns", "end_ns")
_KINDS = {ACTIVITIES[kind]: kind for kind in ON_GPU}
NEEDS: Mapping[str, tuple[str, ...]] = {
    "nvtx_ranges": ("range_id", "kind", *THREAD, "domain_id", "domain", *_TIMES, "name"),
    "api_calls": ("api_call_id", *CALL, "thread_id", *_TIMES, "name"),
    "kernels": (*CALL, *_TIMES, "device_id", "short_name", "name"),
    "memcpys": (*CALL, *_TIMES, "device_id"),
    "memsets": (*CALL, *_TIMES, "device_id"),
    "syncs": (*CALL, "device_id"),
    "graph_launches": (*CALL, *_TIMES, "device_id"),
    "osrt_calls": (*THREAD, *_TIMES, "name"),
    "devices": ("device_id", "name"),
}
"""Columns that every roll-up reads, by table."""


def ops(rollup: Rollup) -> pl.DataFrame:
    """Make ``ops``."""
    return rollup.ops.select(
        *["op_id", "op_name", "op_type", "direction"],
        *_absent_if_empty("data_type", "stack_trace"),
        **{n: pl.col(f"{m}_sum") for n, m in _TOTALS.items()},
        is_associated="associated",
        tensor_core_support=pl.col("support").replace_strict(_SUPPORT, return_dtype=pl.String),
        uses_tensor_cores=pl.when(~pl.col("tc_unknown")).then("uses_tc"),
        instance_count="count",
        kernel_count="kernel_count",
    )


def op_instances(rollup: Rollup) -> pl.DataFrame:
    """Make ``op_instances``."""
    found = rollup.measures.instances
    number = pl.int_range(pl.len())
    ran = rollup.measures.calls.filter(pl.col("kind") == "kernel").group_by("instance").len("kernel_count")
    kernels = found.select(instance=number).join(ran, on="instance", how="left", maintain_order="left")
    return found.select(
        *[*_TIMES, *THREAD, "op_name", "range_id", "sequence_number", "input_names", "input_shapes", "parameters"],
        op_instance_id=number,
        op_id=rollup.ops["op_id"].gather(found["op"]),
        iteration=rollup.iteration,
        parent_id="parent",
        forward_id="forward",
        output_shapes=rollup.measures.described["output_shapes"],
        kernel_count=kernels["kernel_count"].fill_null(0),
        **{n: pl.col(m) for n, m in _TOTALS.items()},
    )


def iterations(rollup: Rollup) -> pl.DataFrame:
    """Make ``iterations``."""
    counted = {
        "kernel_count": "kernel_count",
        "tensor_core_kernel_count": "tc_count",
        "kernel_time_ns": "gpu_time",
        "tensor_core_kernel_time_ns": "tc_time",
    }
    spent = rollup.breakdown.group_by("iteration").agg(pl.col(PARTS).sum() // pl.len().cast(pl.Int64))
    found = rollup.iterations.frame.join(rollup.kernels_by_iteration, on="iteration", how="left", maintain_order="left")
    found = found.join(spent, on="iteration", how="left", maintain_order="left")
    return found.select(
        *["iteration", *_TIMES],
        key_op=pl.lit(rollup.iterations.key if rollup.iterations.found else None, pl.String),
        is_aggregated="aggregated",
        **{n: pl.col(c).fill_null(0) for n, c in counted.items()},
        **{n: pl.col(p) for n, p in zip(_SPENT_IN, PARTS, strict=True)},
    )


def group_nodes(rollup: Rollup) -> pl.DataFrame:
    """Make ``group_nodes``."""
    return rollup.groups.select(
        *["path", "level", "direction", "op_count", "instance_count"],
        group_node_id=pl.int_range(pl.len()),
        parent_id="parent",
        eligible_op_count="eligible_count",
        tensor_core_op_count="uses_tc_count",
        iteration_count="cpu_count",
        **{n: pl.col(f"{m}_sum") for n, m in _TOTALS.items()},
    )


def of_activities(rollup: Rollup, table: str) -> pl.DataFrame:
    """Say to which op each activity of a GPU belongs: n rows of ``kernels``, ``memcpys``, … in, n rows out."""
    calls, ops = rollup.measures.calls, rollup.measures.ops
    mine = calls.filter(pl.col("kind") == _KINDS[table])
    rows = ops.frames(table).select(pl.len()).collect().item()
    instance = pl.repeat(None, rows, dtype=pl.Int64, eager=True).scatter(mine["activity"], mine["instance"])
    op = ops.instances["op"].gather(instance)
    of = ops.ops.select(pl.col("op_id", "op_name", "direction").gather(op))
    return of.with_columns(op_instance_id=instance, iteration=rollup.iteration.gather(instance))


TABLES: Mapping[str, Callable[[Rollup], pl.DataFrame]] = {
    "ops": ops,
    "op_instances": op_instances,
    "iterations": iterations,
    "group_nodes": group_nodes,
}


def _absent_if_empty(*columns: str) -> list[pl.Expr]:
    return [pl.when(pl.col(c).cast(pl.String) != "").then(pl.col(c)).alias(c) for c in columns]
