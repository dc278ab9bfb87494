"""Aggregate ops by group. The groups are the inner nodes of the tree of op names.

A metric of a group has one value per aggregated iteration in which the group has instances. CPU time, API time and CPU
overhead are sums over its instances. GPU time is the time in which any activity of the group runs, summed over devices.
GPU idle time is the time in which at least one instance is between the start of its first and the end of its last
activity on a device, summed over devices, minus the GPU time.

Ops that other threads ran during a step of the loop are placed below that step (``other_threads``). A scope has one
group for each direction of its ops, and the root has one group for all directions. In the style of DLProf, no op is
moved, directions are ignored, and every "/" in the name of an op separates levels.

Values and intervals are added to a group and to all groups that contain it (``cells``), so memory use is proportional
to the number of groups and ops.

Move ops that other threads ran during a step of the loop below this step in the tree of groups.

PyTorch runs the backward pass, including the communication between GPUs, on separate threads, on which no range of the
step is open. In the tree of groups, ops that ran on other threads while a step was open are placed below the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import polars as pl

from tracekit.core.intervals.containment import find_last_containers
from tracekit.core.ops.step_names import STAR
from tracekit.core.relations import THREAD
from tracekit.core.rollup.cells import GROUP_KEY, GroupCells
from tracekit.core.rollup.measures import METRICS
from tracekit.core.trees import Tree, mark_flagged_rows_and_descendants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.iterations import Iterations
    from tracekit.core.ops import Ops
    from tracekit.core.rollup.measures import Measures

STATISTICS = ("count", "max", "min", "sum")
Style = Literal["extended", "dlprof"]
_SUMMED = ("cpu", "api", "overhead")
_COUNTED = ("op_count", "instance_count", "eligible_count", "uses_tc_count")
_DIRECTIONS = {"fprop": 1, "bprop": 2}
DIRECTION_NAMES = {0: None, 1: "fprop", 2: "bprop"}
"""Names of directions, keyed by the number that ``group_ops`` returns."""


def summarize_metrics(frame: pl.DataFrame, keys: Sequence[str], metrics: Sequence[str]) -> pl.DataFrame:
    """Return the count, maximum, minimum and sum of metrics by group.

    Returns:
        The columns ``keys`` and, for each metric, ``{metric}_count``, ``_max``, ``_min`` and ``_sum``.
    """
    return frame.group_by(keys, maintain_order=True).agg(metric_summary_exprs(metrics))


def metric_summary_exprs(metrics: Sequence[str]) -> list[pl.Expr]:
    """Return expressions for the count, maximum, minimum and sum of metrics in a group. Nulls are ignored."""
    expressions = []
    for metric in metrics:
        value = pl.col(metric)
        statistics = value.count().cast(pl.Int64), value.max(), value.min(), value.sum()
        expressions += [e.alias(f"{metric}_{s}") for s, e in zip(STATISTICS, statistics, strict=True)]
    return expressions


def fill_missing_with_zero_exprs(metrics: Sequence[str]) -> list[pl.Expr]:
    """Return expressions that replace nulls in the statistics of metrics with 0."""
    return [pl.col(f"{m}_{s}").fill_null(0) for m in metrics for s in STATISTICS]


def move_ops_below_steps(ops: Ops, key_ops: Sequence[int], tree: Tree, nodes: pl.Series) -> tuple[Tree, pl.Series]:
    """Move ops that other threads ran during a step of the loop below this step in a tree.

    Args:
        ops: The ops of the capture.
        key_ops: Row numbers of the ops that delimit iterations. Ops are moved below the first of them if its name is
            numbered.
        tree: The tree of op names.
        nodes: Node of each op.

    Returns:
        The tree with added nodes, and the node of each op in it.
    """
    if not key_ops or not str(ops.ops["op_name"][key_ops[0]]).endswith(STAR):
        return tree, nodes
    step = int(nodes[key_ops[0]])
    is_below = mark_flagged_rows_and_descendants(tree.nodes["up"], pl.int_range(tree.nodes.height, eager=True) == step)
    moved = _find_ops_on_other_threads(ops, key_ops[0])
    moved = moved.filter(~is_below.gather(nodes.gather(moved)))
    tree, copies = _copy_nodes_below(tree, nodes.gather(moved), step)
    return tree, nodes.scatter(moved, copies)


def _find_ops_on_other_threads(ops: Ops, step_op: int) -> pl.Series:
    """Return the ops for which more than half of the instances ran on other threads during a step.

    An instance ran on another thread during a step if it started while a step was open in its process, on a thread that
    runs no steps.
    """
    instances = ops.instances.select("op", *THREAD, "start_ns", "end_ns")
    steps = instances.filter(pl.col("op") == step_op)
    starts = instances.with_columns(end_ns="start_ns")
    during_step = find_last_containers(starts, steps, by=THREAD[:1]).is_not_null()
    same_thread = instances.select(THREAD).with_row_index("row").join(steps, on=THREAD, how="semi")["row"]
    inside = during_step & ~pl.int_range(pl.len()).is_in(same_thread.implode())
    return (
        instances.select("op", inside=inside)
        .group_by("op")
        .agg(pl.col("inside").mean())
        .filter(pl.col("inside") > 1 / 2)["op"]
        .sort()
    )


def _copy_nodes_below(tree: Tree, nodes: pl.Series, parent: int) -> tuple[Tree, pl.Series]:
    """Copy nodes, with their ancestors, into a tree as descendants of the node ``parent``.

    Returns:
        The new tree, and the copy of each node.
    """
    ancestors, here = [], pl.DataFrame({"node": nodes}).with_row_index("row").filter(pl.col("node") != 0)
    while here.height:
        ancestors.append(here)
        here = here.with_columns(node=tree.nodes["up"].gather(here["node"])).filter(pl.col("node") != 0)
    copies = pl.repeat(parent, len(nodes), dtype=pl.Int64, eager=True)
    depth = tree.nodes["level"].gather(nodes)
    for level in range(1, len(ancestors) + 1):
        at_level = pl.concat([a.filter(depth.gather(a["row"]) - step == level) for step, a in enumerate(ancestors)])
        part = tree.nodes["part"].gather(at_level["node"])
        tree, children = tree.add_children(pl.DataFrame({"up": copies.gather(at_level["row"]), "part": part}))
        copies = copies.scatter(at_level["row"], children)
    return tree, copies


def aggregate_groups(
    measures: Measures, iterations: Iterations, devices: pl.Series, ops: pl.DataFrame, style: Style = "extended"
) -> pl.DataFrame:
    """Aggregate the counts and times of ops by group, over the aggregated iterations.

    Args:
        measures: Times of the ops.
        iterations: The iterations.
        devices: Ids of the devices over which GPU time is summed.
        ops: One row per op: ``count`` (number of aggregated instances), ``eligible``, ``uses_tc``.
        style: How groups are formed: by scope (``extended``), or from the parts of op names (``dlprof``).

    Returns:
        One row per group in order of its path (compared as bytes) and direction, with the root (``path`` "") first:
        ``path``, ``level``, ``direction``, ``parent`` (row number in this frame), ``op_count``, ``instance_count``,
        ``eligible_count``, ``uses_tc_count``, and the statistics of ``METRICS``.
    """
    tree, group = group_ops(measures.ops, style, iterations)
    iteration = iterations.find_instance_iterations(measures.ops.instances)
    counts = ops.select(
        op_count=pl.lit(1, pl.Int64),
        instance_count=pl.col("count"),
        eligible_count=(pl.col("eligible") & (pl.col("count") > 0)).cast(pl.Int64),
        uses_tc_count=pl.col("uses_tc").cast(pl.Int64),
    )
    counts = GroupCells.from_rows(tree, group).sum(counts)
    cells = GroupCells.from_rows(
        tree, group.select(pl.all().gather(measures.instances["op"])).with_columns(iteration=iteration)
    )
    gpu, extent = (cells.measure_unions(i, devices) for i in (measures.gpu_busy_times, measures.gpu_extents))
    times = cells.sum(measures.instances.select(_SUMMED)).with_columns(gpu=gpu, idle=extent - gpu)
    metrics = summarize_metrics(times, GROUP_KEY, METRICS)
    rows = counts.join(metrics, on=GROUP_KEY, how="left").with_columns(fill_missing_with_zero_exprs(METRICS))
    return _add_paths(tree, rows)


def compute_group_times(
    measures: Measures, iterations: Iterations, devices: pl.Series, style: Style = "extended"
) -> pl.DataFrame:
    """Return the number of instances and the GPU time of each group in each aggregated iteration.

    Args:
        measures: Times of the ops.
        iterations: The iterations.
        devices: Ids of the devices over which GPU time is summed.
        style: How groups are formed: by scope (``extended``), or from the parts of op names (``dlprof``).

    Returns:
        One row per group and iteration in which it has instances: ``path``, ``direction`` (null if the group has
        none), ``iteration``, ``instance_count``, ``gpu``.
    """
    tree, group = group_ops(measures.ops, style, iterations)
    iteration = iterations.find_instance_iterations(measures.ops.instances)
    cells = GroupCells.from_rows(
        tree, group.select(pl.all().gather(measures.instances["op"])).with_columns(iteration=iteration)
    )
    times = cells.sum(measures.instances.select(instance_count=pl.repeat(1, pl.len(), dtype=pl.Int64)))
    times = times.with_columns(gpu=cells.measure_unions(measures.gpu_busy_times, devices))
    paths = pl.DataFrame({"path": tree.build_paths(nodes=times["node"]).gather(times["node"])})
    direction_names = {number: name for name, number in _DIRECTIONS.items()}
    direction = pl.col("direction").replace_strict(direction_names, default=None, return_dtype=pl.String)
    return paths.hstack(times).select("path", direction, "iteration", "instance_count", "gpu")


def group_ops(ops: Ops, style: Style, iterations: Iterations) -> tuple[Tree, pl.DataFrame]:
    """Return the tree of groups of ops, and the group of each op.

    Args:
        ops: The ops of the capture.
        style: Levels of the tree: the scopes in which the ops ran (``extended``), or the parts of op names
            (``dlprof``).
        iterations: The iterations of the capture.

    Returns:
        The tree of groups, and one row per op: ``node`` (of its group) and ``direction`` (a number, 0 for no
        direction).
    """
    rows, tree = ops.ops, Tree.create_with_root()
    name = rows["op_name"]
    if style == "dlprof":
        tree, node = tree.add_names(pl.zeros(rows.height, pl.Int64, eager=True), name)
        direction = pl.zeros(rows.height, pl.Int64, eager=True)
    else:
        has_no_node = rows["node"].is_null()
        names = name.filter(has_no_node)
        tree, nodes = (ops.timeline.tree or tree).add_names(pl.zeros(len(names), pl.Int64, eager=True), names)
        tree, node = move_ops_below_steps(
            ops, iterations.key_ops, tree, rows["node"].scatter(has_no_node.arg_true(), nodes)
        )
        direction = rows["direction"].cast(pl.String).replace_strict(_DIRECTIONS, default=0, return_dtype=pl.Int64)
    group = tree.nodes["up"].gather(node).fill_null(0)
    at_root = group == 0
    return tree, pl.DataFrame({"node": group, "direction": direction.zip_with(~at_root, direction * 0)})


def _add_paths(tree: Tree, groups: pl.DataFrame) -> pl.DataFrame:
    """Add the path, level, direction and parent of each group, and sort the groups."""
    paths = tree.build_paths(nodes=groups["node"])
    path, level, up = (s.gather(groups["node"]) for s in (paths, tree.nodes["level"], tree.nodes["up"]))
    direction_names = {number: name for name, number in _DIRECTIONS.items()}
    rows = groups.with_columns(
        path=pl.when(level > 0).then(path + "/").otherwise(pl.lit("")),
        level=level,
        up=up,
        upper=pl.when(level > 1).then("direction").otherwise(pl.lit(0, pl.Int64)),
    ).sort("path", "direction", "node")
    parents = rows.select(up="node", upper="direction", parent=pl.int_range(pl.len()))
    rows = rows.join(parents, on=["up", "upper"], how="left", maintain_order="left")
    direction = pl.col("direction").replace_strict(direction_names, default=None, return_dtype=pl.String)
    first = ["path", "level", "direction", "parent", *_COUNTED]
    return rows.with_columns(direction=direction).select(*first, pl.exclude(*first, *GROUP_KEY, "up", "upper"))
