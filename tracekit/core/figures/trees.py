"""Reduce trees of groups and of NVTX ranges to their largest nodes, for icicle charts.

A node has a value and a width. The value of a node may be smaller than the sum of the values of its children: the GPU
time of a group is the time in which at least one of its activities runs, and its children may run at the same time. The
width of a node is its value or the sum of the widths of its children, whichever is larger, so that the children fit
into their parent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.rollup import tables
from tracekit.core.series import map_categories_expr
from tracekit.core.trees import build_range_tree, compute_depths
from tracekit.errors import MissingTableError
from tracekit.plots.icicles import METRIC_NAMES

if TYPE_CHECKING:
    from tracekit.core.figures import FigureInputs
    from tracekit.core.rollup import Rollup

_GROUP = ["node", "parent", "path", "name", "direction", "op_id", "count", "value"]
MAX_DEPTH = 64
"""Largest depth of the ranges that a tree contains."""
_APPENDED_PATTERN = r", (?:seq|op_id) = .*$"


def groups(inputs: FigureInputs, *, metric: str, direction: str | None, nodes: int) -> pl.DataFrame:
    """Return the groups and ops with the largest values of a metric as a tree, with the name of the metric.

    Args:
        inputs: The trace.
        metric: Column of ``group_nodes`` with the values, such as ``gpu_time_ns``.
        direction: ``fprop`` or ``bprop``. If None, groups and ops of both directions are returned.
        nodes: Maximum number of nodes.
    """
    tree = build_group_tree(inputs.get_rollup(), metric, direction, nodes)
    if tree.is_empty():
        raise MissingTableError(f"the capture has no ops with {METRIC_NAMES[metric]}")
    return tree.with_columns(metric=pl.lit(metric))


def nvtx(inputs: FigureInputs, *, nodes: int) -> pl.DataFrame:
    """Return the paths of NVTX ranges with the largest GPU time or duration as a tree, with the name of this metric."""
    tree = build_tree_of_largest_ranges(inputs.correlated_frames("nvtx_ranges"), nodes)
    if tree.is_empty():
        raise MissingTableError("the capture has no push/pop ranges")
    return tree


def build_group_tree(rollup: Rollup, metric: str, direction: str | None, limit: int) -> pl.DataFrame:
    """Return a tree of the groups and ops of a roll-up that have the largest values of a metric.

    Args:
        rollup: The roll-up that contains the groups and ops.
        metric: Column of ``group_nodes`` and ``ops`` with the value.
        direction: ``fprop`` or ``bprop`` for the groups and ops of one direction. If None, all are returned.
        limit: Maximum number of nodes to return.

    Returns:
        The nodes as ``select_largest_nodes`` returns them, with the columns ``path``, ``name`` (the last part of the
        path, or the text after the last "/" of a shortened path), ``direction``, ``op_id`` (null for groups) and
        ``count`` (number of op instances).
    """
    groups = tables.build_group_nodes(rollup).select(
        node="group_node_id",
        parent="parent_id",
        path="path",
        direction=pl.col("direction").cast(pl.String),
        op_id=pl.lit(None, pl.String),
        count="instance_count",
        value=metric,
    )
    upper = groups.select(parent="node", upper="path")
    groups = groups.join(upper, on="parent", how="left", maintain_order="left").with_columns(
        pl.col("upper").fill_null("")
    )
    name = pl.col("path").str.slice(pl.col("upper").str.len_chars()).str.strip_suffix("/")
    is_shortened = ~pl.col("path").str.starts_with(pl.col("upper"))
    name = pl.when(is_shortened).then(pl.col("path").str.extract(r"([^/]*)/$")).otherwise(name)
    nodes = pl.concat([groups.with_columns(name=name).select(_GROUP), _build_op_leaves(rollup, groups, metric)])
    if direction is not None:
        nodes = nodes.filter((pl.col("direction") == direction) | pl.col("parent").is_null())
        nodes = _set_root_totals(nodes)
    return select_largest_nodes(nodes, limit)


def _build_op_leaves(rollup: Rollup, groups: pl.DataFrame, metric: str) -> pl.DataFrame:
    """Return one node per op, below the node of its group."""
    keys = tables.build_op_groups(rollup).select(upper="group_path", group_direction="group_direction")
    parents = groups.select(upper="path", group_direction="direction", parent="node")
    parents = parents.unique(["upper", "group_direction"], keep="first", maintain_order=True)
    known = ["upper", "group_direction"]
    parent = keys.join(parents, on=known, how="left", maintain_order="left", nulls_equal=True)
    ops = tables.build_ops(rollup).hstack(parent)
    return ops.select(
        node=pl.int_range(pl.len(), dtype=pl.Int64) + groups.height,
        parent=pl.col("parent").fill_null(0),
        path=pl.col("op_name").cast(pl.String),
        name=pl.col("op_name").cast(pl.String).str.extract(r"([^/]*)$"),
        direction=pl.col("direction").cast(pl.String),
        op_id="op_id",
        count="instance_count",
        value=metric,
    )


def build_tree_of_largest_ranges(ranges: pl.LazyFrame, limit: int) -> pl.DataFrame:
    """Return the largest paths of push/pop ranges, as a tree below a root with an empty path.

    Suffixes that PyTorch appends to the name of an op, such as ``, seq = 42``, are removed, so that the calls of an
    op are one node. Ranges at a depth of more than ``MAX_DEPTH`` are not returned. Their GPU time is included in the
    GPU time of the enclosing ranges.

    Args:
        ranges: The table ``nvtx_ranges`` of a correlated trace.
        limit: Maximum number of nodes.

    Returns:
        The nodes as ``select_largest_nodes`` returns them, with the columns ``path``, ``name``, ``direction`` (null),
        ``count`` (number of ranges) and ``metric``: ``gpu_time_ns``, or ``duration_ns`` if no activity was launched
        inside any range.
    """
    duration = (pl.col("end_ns") - pl.col("start_ns")).fill_null(0).alias("duration_ns")
    name = map_categories_expr(pl.col("name"), lambda names: names.str.replace(_APPENDED_PATTERN, ""))
    columns = ("range_id", "parent_id", "depth", name.fill_null("").alias("name"))
    rows = ranges.select(*columns, "gpu_time_ns", duration).filter(pl.col("depth") <= MAX_DEPTH).collect()
    metric = "gpu_time_ns" if rows.select((pl.col("gpu_time_ns") > 0).any()).item() else "duration_ns"
    numbers = rows.select(parent_id="range_id", up=pl.int_range(pl.len(), dtype=pl.Int64))
    parent = rows.join(numbers, on="parent_id", how="left", maintain_order="left")["up"]
    tree, node = build_range_tree(parent, compute_depths(parent), rows["name"])
    totals = pl.DataFrame({"node": node, "value": rows[metric]}).group_by("node")
    values = totals.agg(pl.col("value").sum(), pl.len().cast(pl.Int64).alias("count"))
    nodes = tree.nodes.select(node=pl.int_range(pl.len(), dtype=pl.Int64), parent="up", name="part")
    nodes = nodes.join(values, on="node", how="left", maintain_order="left")
    nodes = nodes.with_columns(pl.col("value", "count").fill_null(0), direction=pl.lit(None, pl.String))
    largest = select_largest_nodes(_set_root_totals(nodes), limit)
    paths = tree.build_paths(nodes=largest["node"]).gather(largest["node"])
    return largest.with_columns(paths.alias("path"), pl.col("name").cast(pl.String), metric=pl.lit(metric))


def _set_root_totals(nodes: pl.DataFrame) -> pl.DataFrame:
    """Replace the value and count of the root, which is node 0, with the sums over its children."""
    children = nodes.filter(pl.col("parent") == 0)
    is_root = pl.col("parent").is_null()
    return nodes.with_columns(
        pl.when(is_root).then(pl.lit(int(children[c].sum()), pl.Int64)).otherwise(pl.col(c)).alias(c)
        for c in ("value", "count")
    )


def select_largest_nodes(nodes: pl.DataFrame, limit: int) -> pl.DataFrame:
    """Reduce a tree to its largest nodes.

    Args:
        nodes: One row per node: ``node`` (distinct numbers), ``parent`` (number of the parent, null for a root) and
            ``value``.
        limit: Maximum number of returned nodes, including ancestors.

    Returns:
        The widest nodes, with all their ancestors, in descending order of width. Two columns are added: ``width`` (the
        ``value`` of the node, or the sum of the widths of its children if that is larger) and ``own`` (the width minus
        the widths of the returned children). Nodes with a width of 0 are omitted.
    """
    row = nodes.select(parent="node", up=pl.int_range(pl.len()))
    rows = nodes.join(row, on="parent", how="left", maintain_order="left")
    rows = rows.with_columns(
        depth=compute_depths(rows["up"]), number=pl.int_range(pl.len()), width=pl.col("value").clip(0)
    )
    levels = rows.select("number", "up", "width", "depth").partition_by("depth", as_dict=True, include_key=False)
    below, widths = pl.DataFrame(schema={"number": pl.Int64, "children": pl.Int64}), []
    for depth in sorted((d for (d,) in levels if d is not None), reverse=True):
        level = levels[depth,].join(below, on="number", how="left")
        level = level.with_columns(width=pl.max_horizontal("width", "children"))
        widths.append(level.select("number", "width"))
        below = level.group_by(number="up").agg(children=pl.col("width").sum())
    width = pl.concat([rows.select("number", "width").clear(), *widths])
    sized = rows.drop("width").join(width, on="number", how="inner").filter(pl.col("width") > 0)
    largest = sized.sort("width", "depth", "number", descending=[True, False, False]).head(limit)
    children = largest.group_by(node="parent").agg(children=pl.col("width").sum())
    largest = largest.join(children, on="node", how="left", maintain_order="left")
    own = pl.col("width") - pl.col("children").fill_null(0)
    return largest.with_columns(own=own).drop("up", "depth", "number", "children")
