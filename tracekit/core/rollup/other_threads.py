"""Move ops that other threads ran during a step of the loop below this step in the tree of groups.

PyTorch runs the backward pass, including the communication between GPUs, on separate threads, on which no range of the
step is open. In the tree of groups, ops that ran on other threads while a step was open are placed below the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.forests import find_roots
from tracekit.core.intervals.axis import replace_with_null_unless
from tracekit.core.ops.attach import find_last_containing_intervals

if TYPE_CHECKING:
    from tracekit.core.ops import Ops
    from tracekit.core.trees import Tree

STEP = " *"
_THREAD = ["process_id", "thread_id"]


def move_ops_below_steps(ops: Ops, key_op_name: str, tree: Tree, nodes: pl.Series) -> tuple[Tree, pl.Series]:
    """Move ops that other threads ran during a step of the loop below this step in a tree.

    Args:
        ops: The ops of the capture.
        key_op_name: Name of the op that delimits iterations. It is regarded as a step if it is an outermost range with
            a numbered name. If it is not a step, no op is moved.
        tree: The tree of op names.
        nodes: Node of each op.

    Returns:
        The tree with added nodes, and the node of each op in it.
    """
    rows = ops.ops.select(pl.col("op_name").cast(pl.String)).with_row_index("op")
    step = rows.filter((pl.col("op_name") == key_op_name) & pl.col("op_name").str.ends_with(STEP))["op"].to_list()
    if not step or tree.nodes["level"][nodes[step[0]]] != 1:
        return tree, nodes
    moved = _find_ops_on_other_threads(ops, step[0])
    moved = moved.filter(_find_outermost_ancestors(tree, nodes.gather(moved)) != nodes[step[0]])
    tree, copies = _copy_nodes_below(tree, nodes.gather(moved), nodes[step[0]])
    return tree, nodes.scatter(moved, copies)


def _find_ops_on_other_threads(ops: Ops, step_op: int) -> pl.Series:
    """Return the ops for which more than half of the instances ran on other threads during a step.

    An instance ran on another thread during a step if it started while a step was open in its process, on a thread that
    runs no steps.
    """
    instances = ops.instances.select("op", *_THREAD, "start_ns", "end_ns")
    steps = instances.filter(pl.col("op") == step_op)
    starts = instances.with_columns(end_ns="start_ns")
    during_step = find_last_containing_intervals(starts, steps, by=_THREAD[:1]).is_not_null()
    same_thread = instances.select(_THREAD).with_row_index("row").join(steps, on=_THREAD, how="semi")["row"]
    inside = during_step & ~pl.int_range(pl.len()).is_in(same_thread.implode())
    return (
        instances.select("op", inside=inside)
        .group_by("op")
        .agg(pl.col("inside").mean())
        .filter(pl.col("inside") > 1 / 2)["op"]
        .sort()
    )


def _find_outermost_ancestors(tree: Tree, nodes: pl.Series) -> pl.Series:
    """Return the ancestor of each node at the first level below the root."""
    return find_roots(replace_with_null_unless(tree.nodes["level"] > 1, tree.nodes["up"])).gather(nodes)


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
