"""The report on a graph that a capture was joined with: what of it ran, and where GPU time went."""

from __future__ import annotations

import polars as pl

from tracekit.core.graph import join
from tracekit.core.reports.report import Request, report
from tracekit.core.reports.table import integer, nanoseconds, share, text
from tracekit.errors import MissingTableError

WHOLE, OUTSIDE = "(whole graph)", "(not in the graph)"


@report(
    share("GPU Time", "share"),
    nanoseconds("GPU Time", "gpu_time_ns"),
    integer("Nodes", "node_count"),
    integer("Executed", "executed_count"),
    integer("TC Eligible", "eligible_count"),
    integer("Using TC", "tensor_core_count"),
    integer("Calls", "instance_count"),
    integer("Kernels", "kernel_count"),
    text("Scope", "path"),
    reads={"ops": join.OP_COLUMNS, "graph_nodes": join.NODE_COLUMNS},
)
def graph_summary(request: Request) -> pl.LazyFrame:
    """Scopes of a graph: nodes, those executed, Tensor Cores, and GPU time, of a capture that was joined with it."""
    nodes = request.frames("graph_nodes").select(join.NODE_COLUMNS).collect()
    if not nodes.height:
        raise MissingTableError("no graph was joined", hint="give it: --graph FILE, or Trace.join_graph")
    ops = request.frames("ops").select(join.OP_COLUMNS).collect()
    rows = join.summary(ops, nodes)
    total = max(int(ops["gpu_time_ns"].sum()), 1)
    named = pl.when(pl.col("path") == "").then(pl.lit(WHOLE)).otherwise(pl.col("path").fill_null(OUTSIDE))
    return rows.lazy().with_columns(share=100.0 * pl.col("gpu_time_ns") / total, path=named)
