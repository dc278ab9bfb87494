"""Move ops that other threads ran during a step of the loop below this step in the tree of groups.

PyTorch runs the backward pass, including the communication between GPUs, on separate threads, on which no range of the
step is open. In the tree of groups, ops that ran on other threads while a step was open are placed below the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.forests import mark_flagged_rows_and_descendants
from tracekit.core.ops.attach import find_last_containing_intervals
from tracekit.core.ops.step_names import STAR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.ops import Ops
    from tracekit.core.trees import Tree

_THREAD = ["process_id", "thread_id"]


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
