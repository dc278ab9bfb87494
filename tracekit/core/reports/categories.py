"""Compute the report on the GPU time by category of kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.categories import COPY, GRAPH, OPERATION_TEXT, category_expr
from tracekit.core.intervals import compute_union_durations
from tracekit.core.ops.attach import ON_GPU, TABLES
from tracekit.core.reports.names import CUDA, memcpy_label_expr, memset_label_expr, read_runtime_prefix
from tracekit.core.reports.numbers import percent_of_sum_expr, quotient_expr
from tracekit.core.steps import PERCENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.ops import Ops
    from tracekit.core.reports.report import Frames, Request
    from tracekit.core.rollup import Rollup

_TIMES = ("start_ns", "end_ns")
_CATEGORIES = {"memcpys": COPY, "memsets": COPY, "graph_launches": GRAPH}


def kernel_categories(request: Request) -> pl.DataFrame:
    """GPU time by category of kernel, such as attention, GEMM, mixture of experts, KV cache or communication.

    The total time is the sum of the durations, also of kernels that overlap. The busy time counts each moment once.
    """
    tables = {kind: read_categorized_activities(request.frames, TABLES[kind]) for kind in ON_GPU}
    keys = ["layer", "category"] if request.has_flag("layer") else ["category"]
    if request.has_flag("layer"):
        ops = request.get_rollup().measures.ops
        tables = {kind: rows.with_columns(_read_layers(ops, kind, rows.height)) for kind, rows in tables.items()}
    if request.has_chosen_steps:
        tables = {kind: rows[_find_activities_in_steps(request.get_rollup(), kind)] for kind, rows in tables.items()}
    return summarize_categories(pl.concat(tables.values()), keys)


def read_categorized_activities(frames: Frames, table: str, *columns: str) -> pl.DataFrame:
    """Read the activities of a table: ``name``, ``category``, ``device_id``, ``start_ns``, ``end_ns``, and others.

    Args:
        frames: Function that returns the declared table with a given name.
        table: Name of the table.
        columns: Further columns to read.
    """
    prefix = read_runtime_prefix(frames) if table in _CATEGORIES else CUDA
    names = {
        "memcpys": memcpy_label_expr(pl.col("copy_kind"), prefix).cast(pl.Categorical),
        "memsets": memset_label_expr(prefix),
        "graph_launches": pl.lit(f"{prefix}graph", pl.Categorical),
    }
    name = names.get(table, pl.col("name"))
    text = OPERATION_TEXT if table == "kernels" else pl.col("name")
    category = pl.lit(_CATEGORIES[table], pl.Categorical) if table in _CATEGORIES else category_expr(text)
    return frames(table).select(*columns, "device_id", *_TIMES, name=name, category=category).collect()


def _find_activities_in_steps(rollup: Rollup, kind: str) -> pl.Series:
    """Return the row numbers of the activities of one kind that the aggregated iterations launched."""
    columns = ("kind", "activity", "process_id", "start_ns")
    calls = rollup.measures.ops.select_calls(*columns).filter(pl.col("kind") == kind)
    its = rollup.iterations
    return calls.filter(its.select_aggregated(its.find_call_iterations(calls)).is_not_null())["activity"].sort()


def _read_layers(ops: Ops, kind: str, rows: int) -> pl.Series:
    """Return the path of the op that launched each activity of one kind, in which ``*`` replaces the number of a step.

    Args:
        ops: The ops of the capture.
        kind: Kind of the activities, such as ``kernel``.
        rows: Number of activities of this kind.
    """
    calls = ops.select_calls("kind", "activity", "instance").filter(pl.col("kind") == kind).drop_nulls()
    instances = ops.instances.select("op", "associated")[calls["instance"]]
    paths = ops.ops["op_name"].cast(pl.Categorical).gather(instances["op"])
    known = calls.select("activity", layer=paths).filter(instances["associated"])
    numbers = pl.repeat(None, rows, dtype=pl.UInt32, eager=True)
    numbers = numbers.scatter(known["activity"], pl.int_range(known.height, dtype=pl.UInt32, eager=True))
    return known["layer"].gather(numbers).alias("layer")


def summarize_categories(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the time of each group of activities and the name that takes the longest in it, the longest group first.

    Args:
        rows: One row per activity: the columns ``keys``, ``name``, ``device_id``, ``start_ns``, ``end_ns``.
        keys: Categorical columns that identify a group, which may be null.
    """
    duration = pl.col("end_ns") - pl.col("start_ns")
    by_name = rows.group_by(*keys, "name").agg(total=duration.sum(), count=pl.len().cast(pl.Int64))
    texts = by_name.with_columns(pl.col(*keys, "name").cast(pl.String))
    texts = texts.sort("total", "name", descending=[True, False])
    grouped = texts.group_by(keys, maintain_order=True).agg(
        pl.col("total").sum(), pl.col("count").sum(), top=pl.col("name").first(), longest=pl.col("total").first()
    )
    grouped = grouped.sort("total", *keys, descending=[True, *(False for _ in keys)]).with_row_index("group")
    members = rows.join(grouped.select("group", pl.col(keys).cast(pl.Categorical)), on=keys, nulls_equal=True)
    busy = compute_union_durations(members, by=["group", "device_id"])
    busy = busy.group_by("group").agg(busy_ns=pl.col("duration_ns").sum())
    top_share = quotient_expr(float(PERCENT) * pl.col("longest"), pl.col("total").cast(pl.Float64))
    return grouped.join(busy, on="group", how="left", maintain_order="left").with_columns(
        *(pl.lit(None, pl.String).alias(name) for name in ("layer",) if name not in keys),
        busy_ns=pl.col("busy_ns").fill_null(0),
        share=percent_of_sum_expr(pl.col("total")),
        top_share=pl.when(pl.col("total") != 0).then(top_share),
    )
