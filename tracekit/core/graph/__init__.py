"""Represent the ops of a capture as a graph: one node per op, with its inputs and its times per iteration.

``names`` derives node names that TensorFlow allows, ``nodes`` builds nodes and inputs, ``stats`` their times, and
``texts`` Markdown tables for readers. ``join`` matches ops to the nodes of another graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.core.graph import nodes, stats, texts

if TYPE_CHECKING:
    import polars as pl

    from tracekit.core.rollup import Rollup


def tables(rollup: Rollup) -> dict[str, pl.DataFrame]:
    """Build the tables of the graph of a roll-up.

    Returns:
        The results of ``nodes.op_nodes`` as ``nodes``, ``nodes.node_inputs`` as ``inputs``, ``stats.node_stats`` as
        ``stats``, ``stats.iteration_scalars`` as ``scalars`` and ``texts.markdown_tables`` as ``texts``.
    """
    op_nodes = nodes.op_nodes(rollup)
    return {
        "nodes": op_nodes,
        "inputs": nodes.node_inputs(rollup, op_nodes),
        "stats": stats.node_stats(rollup, op_nodes),
        "scalars": stats.iteration_scalars(rollup),
        "texts": texts.markdown_tables(rollup),
    }
