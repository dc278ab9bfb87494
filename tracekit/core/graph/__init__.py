"""Represent the ops of a capture as a graph: one node per op, with its inputs and its times per iteration.

``names`` derives node names that TensorFlow allows, ``nodes`` builds the nodes and their inputs, ``stats`` computes the
times of the nodes, and ``texts`` writes Markdown tables. ``join`` matches ops to the nodes of another graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.core.graph import nodes

if TYPE_CHECKING:
    import polars as pl

    from tracekit.core.rollup import Rollup


def build_graph_tables(rollup: Rollup) -> dict[str, pl.DataFrame]:
    """Build the tables of the graph of a roll-up.

    Returns:
        The tables, keyed by name: ``nodes`` (see ``nodes.build_op_nodes``), ``inputs`` (``nodes.build_node_inputs``),
        ``stats`` (``stats.compute_node_stats``), ``scalars`` (``stats.compute_iteration_scalars``) and ``texts``
        (``texts.build_markdown_tables``).
    """
    op_nodes = nodes.build_op_nodes(rollup)
    return {
        "nodes": op_nodes,
        "inputs": nodes.build_node_inputs(rollup, op_nodes),
        "stats": nodes.compute_node_stats(rollup, op_nodes),
        "scalars": nodes.compute_iteration_scalars(rollup),
        "texts": nodes.build_markdown_tables(rollup),
    }
