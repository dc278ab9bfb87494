"""Put what other threads ran during a step of the loop below that step.

PyTorch runs the backward pass on threads of its own, and there the communication between GPUs: no range of the step is
open on them. In the tree of groups, ops that ran on other threads while a step was open hang below the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.forests import roots
from tracekit.core.intervals.axis import where
from tracekit.core.ops.attach import holders

if TYPE_CHECKING:
    from tracekit.core.ops import Ops
    from tracekit.core.trees import Tree

STEP = " *"
_THREAD = ["process_id", "thread_id"]


def below_steps(ops: Ops, key: str, tree: Tree, nodes: pl.Series) -> tuple[Tree, pl.Series]:
    """Hang ops of other threads below the step that they ran in.

    Args:
        ops: The ops.
        key: Name of the key op; it is a step if it is an outermost range that is called by a number.
        tree: The tree of op names.
        nodes: Node of each op.

    Returns:
        The tree, and the node of each op in it.
    """
    rows = ops.ops.select(pl.col("op_name").cast(pl.String)).with_row_index("op")
    step = rows.filter((pl.col("op_name") == key) & pl.col("op_name").str.ends_with(STEP))["op"].to_list()
    if not step or tree.nodes["level"][nodes[step[0]]] != 1:
        return tree, nodes
    moved = _elsewhere(ops, step[0])
    moved = moved.filter(_outermost(tree, nodes.gather(moved)) != nodes[step[0]])
    tree, there = _copied(tree, nodes.gather(moved), nodes[step[0]])
    return tree, nodes.scatter(moved, there)


def _elsewhere(ops: Ops, step: int) -> pl.Series:
    """Find the ops most of whose instances started on another thread of the process while a step was open."""
    every = ops.instances.select("op", *_THREAD, "start_ns", "end_ns")
    steps = every.filter(pl.col("op") == step)
    held = holders(every.with_columns(end_ns="start_ns"), steps, by=_THREAD[:1]).is_not_null()
    own = every.select(_THREAD).with_row_index("row").join(steps, on=_THREAD, how="semi")["row"]
    there = every.select("op", inside=held & ~pl.int_range(pl.len()).is_in(own.implode()))
    return there.group_by("op").agg(pl.col("inside").mean()).filter(pl.col("inside") > 1 / 2)["op"].sort()


def _outermost(tree: Tree, nodes: pl.Series) -> pl.Series:
    """Return the ancestor of each node at the first level."""
    return roots(where(tree.nodes["level"] > 1, tree.nodes["up"])).gather(nodes)


def _copied(tree: Tree, nodes: pl.Series, below: int) -> tuple[Tree, pl.Series]:
    """Make nodes of the same names below another node."""
    ways, here = [], pl.DataFrame({"node": nodes}).with_row_index("row").filter(pl.col("node") != 0)
    while here.height:
        ways.append(here)
        here = here.with_columns(node=tree.nodes["up"].gather(here["node"])).filter(pl.col("node") != 0)
    made = pl.repeat(below, len(nodes), dtype=pl.Int64, eager=True)
    depth = tree.nodes["level"].gather(nodes)
    for level in range(1, len(ways) + 1):
        at = pl.concat([w.filter(depth.gather(w["row"]) - step == level) for step, w in enumerate(ways)])
        part = tree.nodes["part"].gather(at["node"])
        tree, there = tree.with_children(pl.DataFrame({"up": made.gather(at["row"]), "part": part}))
        made = made.scatter(at["row"], there)
    return tree, made
