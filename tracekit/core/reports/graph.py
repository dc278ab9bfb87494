"""Compute the report on a graph that was joined to a capture: executed nodes, GPU time and use of Tensor Cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.graph import join
from tracekit.errors import MissingTableError

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request

ROOT_LABEL, OUTSIDE_LABEL = "(whole graph)", "(not in the graph)"


def graph_summary(request: Request) -> pl.LazyFrame:
    """Scopes of a joined graph: nodes, executed nodes, use of Tensor Cores, calls, kernels and GPU time."""
    nodes = request.frames("graph_nodes").select(join.NODE_COLUMNS).collect()
    if not nodes.height:
        raise MissingTableError(
            "report 'graph_summary' requires a joined graph", hint="join a graph with --graph FILE or Trace.join_graph"
        )
    ops = request.frames("ops").select(join.OP_COLUMNS).collect()
    rows = join.summarize_scopes(ops, nodes)
    total = max(int(ops["gpu_time_ns"].sum()), 1)
    path = pl.when(pl.col("path") == "").then(pl.lit(ROOT_LABEL)).otherwise(pl.col("path").fill_null(OUTSIDE_LABEL))
    return rows.lazy().with_columns(share=100.0 * pl.col("gpu_time_ns") / total, path=path)
