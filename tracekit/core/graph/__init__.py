"""The ops of a capture as a graph: a node an op, its inputs, what it took in each iteration.

``names`` gives nodes the names that TensorFlow allows, ``nodes`` makes nodes and inputs, ``stats`` what they took, and
``texts`` tables to be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.core.graph import nodes, stats, texts

if TYPE_CHECKING:
    import polars as pl

    from tracekit.core.rollup import Rollup


def tables(rollup: Rollup) -> dict[str, pl.DataFrame]:
    """Make a graph of a roll-up.

    Returns:
        ``nodes`` and ``inputs`` as of ``nodes``, ``stats`` and ``scalars`` as of ``stats``, ``texts`` as of ``texts``.
    """
    made = nodes.nodes(rollup)
    return {
        "nodes": made,
        "inputs": nodes.inputs(rollup, made),
        "stats": stats.stats(rollup, made),
        "scalars": stats.scalars(rollup),
        "texts": texts.texts(rollup),
    }
