"""Build the declared tables of a roll-up: ``ops``, ``op_instances``, ``iterations``, ``group_nodes``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.ops.attach import ON_GPU
from tracekit.core.ops.attach import TABLES as ACTIVITIES
from tracekit.core.relations import CALL, THREAD
from tracekit.core.rollup import groups
from tracekit.core.rollup.measures import PARTS

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
_PART_COLUMNS = (
    *("in_tensor_core_kernels_ns", "in_other_kernels_ns", "in_memory_ops_ns", "in_dataloader_ns", "in_io_ns"),
    *("in_cpu_ns", "in_nothing_ns"),
)
_TIMES = ("start_ns", "end_ns")
_KINDS = {ACTIVITIES[kind]: kind for kind in ON_GPU}
READ_COLUMNS: Mapping[str, tuple[str, ...]] = {
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
"""The columns that a roll-up reads, keyed by table."""


def build_ops(rollup: Rollup) -> pl.DataFrame:
    """Return the declared table ``ops``, with one row per op."""
    return rollup.ops.select(
        *["op_id", "op_name", "op_type", "direction"],
        *_empty_to_null_exprs("data_type", "stack_trace"),
        **{n: pl.col(f"{m}_sum") for n, m in _TOTALS.items()},
        is_associated="associated",
        tensor_core_support=pl.col("support").replace_strict(_SUPPORT, return_dtype=pl.String),
        uses_tensor_cores=pl.when(~pl.col("tc_unknown")).then("uses_tc"),
        instance_count="count",
        kernel_count="kernel_count",
    )


def build_op_instances(rollup: Rollup) -> pl.DataFrame:
    """Return the declared table ``op_instances``, with one row per op instance."""
    instances = rollup.measures.instances
    number = pl.int_range(pl.len())
    calls = rollup.measures.select_calls("instance", "kind")
    counts = calls.filter(pl.col("kind") == "kernel").group_by("instance").len("kernel_count")
    kernels = instances.select(instance=number).join(counts, on="instance", how="left", maintain_order="left")
    return instances.select(
        *[*_TIMES, *THREAD, "op_name", "range_id", "sequence_number", "input_names", "input_shapes", "parameters"],
        op_instance_id=number,
        op_id=rollup.ops["op_id"].cast(pl.Categorical).gather(instances["op"]),
        iteration=rollup.complete.iteration,
        parent_id="parent",
        forward_id="forward",
        output_shapes=rollup.measures.formats_and_output_shapes["output_shapes"],
        kernel_count=kernels["kernel_count"].fill_null(0),
        **{n: pl.col(m) for n, m in _TOTALS.items()},
    )


def build_iterations(rollup: Rollup) -> pl.DataFrame:
    """Return the declared table ``iterations``, with one row per iteration.

    The times of parts are means over devices. They are rounded such that their sum is the time of the window.
    """
    counts = {
        "kernel_count": "kernel_count",
        "tensor_core_kernel_count": "tc_count",
        "kernel_time_ns": "gpu_time",
        "tensor_core_kernel_time_ns": "tc_time",
    }
    totals = rollup.breakdown.group_by("iteration").agg(pl.col(PARTS).sum(), pl.len().cast(pl.Int64))
    until = [pl.sum_horizontal(PARTS[:n]) // pl.col("len") for n in range(1, len(PARTS) + 1)]
    means = {p: until[n] - (until[n - 1] if n else 0) for n, p in enumerate(PARTS)}
    parts = totals.select("iteration", **means)
    kernels = rollup.complete.kernels_by_iteration
    rows = rollup.iterations.frame.join(kernels, on="iteration", how="left", maintain_order="left")
    rows = rows.join(parts, on="iteration", how="left", maintain_order="left")
    return rows.select(
        *["iteration", *_TIMES, "name", "window_start_ns", "window_end_ns", "is_warm_up"],
        key_op=pl.lit(rollup.iterations.key if rollup.iterations.has_key_op else None, pl.Categorical),
        is_aggregated="aggregated",
        **{n: pl.col(c).fill_null(0) for n, c in counts.items()},
        **{n: pl.col(p) for n, p in zip(_PART_COLUMNS, PARTS, strict=True)},
    )


def build_group_nodes(rollup: Rollup) -> pl.DataFrame:
    """Return the declared table ``group_nodes``, with one row per group of ops, such as a scope or a loop."""
    return rollup.groups.select(
        *["path", "level", "direction", "op_count", "instance_count"],
        group_node_id=pl.int_range(pl.len()),
        parent_id="parent",
        eligible_op_count="eligible_count",
        tensor_core_op_count="uses_tc_count",
        iteration_count="cpu_count",
        **{n: pl.col(f"{m}_sum") for n, m in _TOTALS.items()},
    )


def build_op_groups(rollup: Rollup) -> pl.DataFrame:
    """Return the path and direction of the group of each op.

    The group of an op is the group of its scope. If another thread ran the op during a step of the loop, the group of
    the op is below that step.

    Returns:
        One row per op, in the order of ``ops``: ``op_id``, and ``group_path`` ("" for the root) and
        ``group_direction``, as ``path`` and ``direction`` in ``group_nodes``.
    """
    tree, group = groups.group_ops(rollup.measures.ops, rollup.measures.mode, rollup.iterations)
    path, at_root = tree.build_paths(nodes=group["node"]).gather(group["node"]), group["node"] == 0
    keys = pl.DataFrame({"path": path, "at_root": at_root, "direction": group["direction"]})
    return keys.select(
        rollup.measures.ops.ops["op_id"].cast(pl.String).alias("op_id"),
        group_path=pl.when("at_root").then(pl.lit("")).otherwise(pl.col("path") + "/"),
        group_direction=pl.col("direction").replace_strict(groups.DIRECTION_NAMES, return_dtype=pl.String),
    )


def find_activity_ops(rollup: Rollup, table: str) -> pl.DataFrame:
    """Return the op, op instance and iteration of each activity in a table such as ``kernels``, in the same order."""
    ops = rollup.measures.ops
    activities = ops.select_calls("kind", "activity", "instance", "process_id", "start_ns")
    activities = activities.filter(pl.col("kind") == _KINDS[table])
    rows = ops.frames(table).select(pl.len()).collect().item()
    columns = (activities["instance"], rollup.complete.find_call_iterations(activities))
    instance, iteration = (
        pl.repeat(None, rows, dtype=pl.Int64, eager=True).scatter(activities["activity"], values) for values in columns
    )
    op = ops.instances["op"].gather(instance)
    names = ops.ops.select("op_name", "direction", op_id=pl.col("op_id").cast(pl.Categorical))
    rows = names.select(pl.col("op_id", "op_name", "direction").gather(op))
    return rows.with_columns(op_instance_id=instance, iteration=iteration)


TABLES: Mapping[str, Callable[[Rollup], pl.DataFrame]] = {
    "ops": build_ops,
    "op_instances": build_op_instances,
    "iterations": build_iterations,
    "group_nodes": build_group_nodes,
}


def _empty_to_null_exprs(*columns: str) -> list[pl.Expr]:
    """Return expressions that replace empty strings in the given columns with null."""
    return [pl.when(pl.col(c) != "").then(pl.col(c)).alias(c) for c in columns]
