"""Sum the weights of call stacks by function and by node of the call tree.

The weight of a call stack is the number of events with this stack, or a time in ns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.figures.trees import select_largest_nodes
from tracekit.schemas.callstacks import iterate_frame_batches

if TYPE_CHECKING:
    from tracekit.schemas.callstacks import Int64Array


class CallTree(NamedTuple):
    """A tree of calls. Node 0 is the root, which is not a frame. Callers precede the nodes that they call.

    Attributes:
        parents: Node of the caller of each node.
        depths: Number of frames from the outermost one to each node. Nodes are in ascending order of this number.
        labels: Row number of the function of each node. The value of the root is unused.
        own: Weight of the stacks that end at each node.
        functions: The functions, with the columns ``name`` and ``module``, which may be null.
    """

    parents: Int64Array
    depths: Int64Array
    labels: Int64Array
    own: Int64Array
    functions: pl.DataFrame


def select_heaviest_calls(call_tree: CallTree, limit: int) -> pl.DataFrame:
    """Return the heaviest nodes of a tree of calls.

    Args:
        call_tree: The tree to reduce.
        limit: Maximum number of nodes to return.

    Returns:
        The nodes as ``trees.select_largest_nodes`` returns them, with the columns ``name`` and ``module``, which are
        null for the root, and ``count``, the weight of the stacks that end at the node.
    """
    nodes = pl.DataFrame(
        {
            "node": np.arange(len(call_tree.parents)),
            "parent": call_tree.parents,
            "label": call_tree.labels,
            "value": _sum_subtree_weights(call_tree),
            "count": call_tree.own,
        }
    )
    is_root = pl.col("node") == 0
    hidden = [pl.when(~is_root).then(pl.col(c)).alias(c) for c in ("parent", "label")]
    functions = call_tree.functions.select(pl.int_range(pl.len(), dtype=pl.Int64).alias("label"), "name", "module")
    largest = select_largest_nodes(nodes.with_columns(hidden), limit)
    return largest.join(functions, on="label", how="left", maintain_order="left").drop("label")


def compute_function_totals(call_tree: CallTree) -> pl.DataFrame:
    """Return the weight of each function.

    Returns:
        One row per function, the heaviest first: ``name``, ``module``, ``self`` (weight of the stacks in which it is
        the innermost frame) and ``total`` (weight of the stacks that contain it, each of which counts once).
    """
    width = call_tree.functions.height
    own, total = np.zeros(width, np.int64), np.zeros(width, np.int64)
    nodes = np.flatnonzero(call_tree.own[1:]) + 1
    np.add.at(own, call_tree.labels[nodes], call_tree.own[nodes])
    for rows, edges, frames in iterate_frame_batches(call_tree.parents, call_tree.depths, nodes):
        weights = call_tree.own[nodes[rows]]
        row = np.repeat(np.arange(len(weights)), np.diff(edges))
        pairs = np.unique(row * width + call_tree.labels[frames])
        np.add.at(total, pairs % width, weights[pairs // width])
    sums = call_tree.functions.select("name", "module").with_columns(
        pl.Series("self", own, pl.Int64), pl.Series("total", total, pl.Int64)
    )
    return sums.filter(pl.col("total") > 0).sort("self", "total", "name", descending=[True, True, False])


def _sum_subtree_weights(call_tree: CallTree) -> Int64Array:
    """Return the weight of the stacks that end at each node or at a node below it."""
    totals = call_tree.own.copy()
    bounds = np.searchsorted(call_tree.depths, np.arange(int(call_tree.depths.max(initial=0)) + 2))
    for depth in range(len(bounds) - 2, 0, -1):
        level = slice(bounds[depth], bounds[depth + 1])
        np.add.at(totals, call_tree.parents[level], totals[level])
    return totals
