"""Build the timelines of frameworks that write their ops into their own NVTX domain, inside the ranges of the program.

The *scopes* around an op are the enclosing ranges that are not ops: ranges of the program, and ranges of the framework
that contain ops. The path of an op starts with its scopes. Enclosing ops are not in the path, because the name of an op
already contains its position within the framework.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.ops.dialect import DialectTables, Timeline, build_op_tree_and_paths, build_timeline_instances
from tracekit.core.ops.step_names import remove_star_expr
from tracekit.core.relations import THREAD
from tracekit.core.trees import find_nearest_matching_rows

KEY = ["domain", "text"]


def read_domain_texts(capture: DialectTables, domain: str) -> pl.DataFrame:
    """Return the distinct names of the ranges in one domain, in the column ``text`` (String)."""
    return capture.texts.filter(pl.col("domain") == domain).select("text").drop_nulls()


def build_domain_timeline(
    capture: DialectTables, domain: str, parsed: pl.DataFrame, *, prepend_scopes: bool = True
) -> Timeline:
    """Return a timeline with one op instance per push/pop range.

    Args:
        capture: The capture that contains the ranges.
        domain: NVTX domain of the ops.
        parsed: One row per name in the domain: ``text`` (the name), ``label`` (path of an op, or null if the range
            contains ops), ``scope`` (name of a range that contains ops, or null to use ``text``), ``type``, and
            optionally ``direction``, ``parameters``, ``input_shapes`` and ``data_type``.
        prepend_scopes: Whether to put the scopes around an op before its label. If false, the label is the full path.
    """
    parsed = parsed.with_columns(pl.lit(domain).alias("domain")).with_columns(pl.col(KEY).cast(pl.Categorical))
    ranges = capture.ranges.join(parsed, on=KEY, how="left", maintain_order="left")
    parent, is_op = capture.nested_ranges.parent, ranges["label"].is_not_null()
    outer = find_nearest_matching_rows(parent, ~is_op).gather(parent)
    scope_names = ranges.select(text=pl.coalesce(pl.col("scope").cast(pl.Categorical), "text"))["text"]
    tree, scopes = build_op_tree_and_paths(outer, scope_names, capture.ranges.select(THREAD))
    base = (scopes["node"] if prepend_scopes else pl.zeros(len(is_op), pl.Int64, eager=True)).gather(outer).fill_null(0)
    tree, nodes = tree.add_names(base.filter(is_op), ranges["label"].filter(is_op))
    node = scopes["node"].scatter(is_op.arg_true(), nodes)
    scope_type = scopes.select(remove_star_expr(pl.col("label"))).to_series()
    named = ranges.select(
        op_name=tree.build_paths().cast(pl.Categorical).gather(node),
        op_type=pl.when(is_op).then(pl.col("type").cast(pl.Categorical)).otherwise(scope_type),
        node=node,
    )
    optional = [c for c in parsed.columns if c in ("direction", "parameters", "input_shapes", "data_type")]
    times = ["start_ns", "end_ns", "process_id", "thread_id", "range_id"]
    rows = ranges.select(*times, *optional).with_columns(parent=parent).hstack(named)
    return Timeline(build_timeline_instances(rows), tree=tree)
