"""Match the ops of a capture to the nodes of a graph, and sum the times of ops by node and scope.

The following steps are tried in this order:

1. An op matches the node with the same name. Two names of the op are tried: the name of its own node in the graph of
   the capture, which may end in ``_bprop`` or a number, and its path without these suffixes. Each name is first
   compared with the names of nodes as they are written, and then with the normalized names.
2. An op matches a node if the name of one of them is a suffix of the name of the other.
3. An op matches the scope with the longest path that is a suffix of the path of the op.
4. An op matches the deepest scope or node whose path is a prefix of the path of the op.

The times of an op that matches a scope but no node are added to that scope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import tensor_cores
from tracekit.core.graph.nodes import choose_op_node_names, convert_to_legal_node_names, normalize_node_names

if TYPE_CHECKING:
    from collections.abc import Iterator

MATCHES = ("name", "spelling", "suffix", "scope")
MIN_PARTS = 2
MAX_PARTS = 64
OP_COLUMNS = (
    *("op_id", "op_name", "instance_count", "kernel_count", "cpu_time_ns", "gpu_time_ns", "tensor_core_support"),
    "uses_tensor_cores",
)
NODE_COLUMNS = ("name", "op")
_SUMMED = ("instance_count", "kernel_count", "cpu_time_ns", "gpu_time_ns")
_SUPPORT = {0: "eligible", 2: "maybe", 3: "not eligible"}
_SUPPORT_CODES = {text: code for code, text in _SUPPORT.items()}


def match_ops(ops: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return the node or the scope of a graph that each op matches.

    Args:
        ops: One row per op: ``op_id`` and ``op_name``.
        nodes: One row per node: ``name``. If several nodes have the same name, the first one is used.

    Returns:
        One row per op, in the same order: ``node`` (row number in ``nodes``), ``scope`` (path of a scope, for ops that
        match no node), ``match`` (one of ``MATCHES``). All are null for an op that matches neither a node nor a scope.
    """
    named = nodes.select(pl.col("name").cast(pl.String)).with_row_index("node").cast({"node": pl.Int64})
    named = named.unique("name", keep="first", maintain_order=True)
    nodes_by_normalized_name = named.with_columns(normalize_node_names(named["name"])).unique(
        "name", keep="first", maintain_order=True
    )
    path = convert_to_legal_node_names(ops["op_name"])
    rows = ops.select(name=pl.col("op_name").cast(pl.String), node_name=choose_op_node_names(ops), path=path)
    rows = rows.with_row_index("row").cast({"row": pl.Int64})
    matches = [rows.clear().select("row", node=pl.lit(0, pl.Int64), scope=pl.lit(""), match=pl.lit(""))]
    for kind, step in _find_candidate_matches(rows, named, nodes_by_normalized_name):
        matched = pl.concat(matches)["row"]
        new = step.filter(~pl.col("row").is_in(matched.implode())).with_columns(match=pl.lit(kind))
        matches.append(new.select(matches[0].columns))
    return rows.select("row").join(pl.concat(matches), on="row", how="left", maintain_order="left").drop("row")


def _find_candidate_matches(
    rows: pl.DataFrame, nodes_by_name: pl.DataFrame, nodes_by_normalized_name: pl.DataFrame
) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the candidate matches of ops to a graph, step by step in order of precedence.

    Only the first match of each op is used.

    Yields:
        The kind of the matches, and one row per match with the columns ``row``, ``node`` and ``scope``.
    """
    no_scope = pl.lit(None, pl.String).alias("scope")
    unnumbered = rows.filter(pl.col("node_name") == pl.col("path"))
    for candidates, column in ((unnumbered, "node_name"), (rows, "path")):
        yield "name", candidates.join(nodes_by_name, on="name").with_columns(no_scope)
        yield "spelling", rows.join(nodes_by_normalized_name, left_on=column, right_on="name").with_columns(no_scope)
    for step in (
        _match_by_node_suffix(rows, nodes_by_normalized_name),
        _match_by_op_suffix(rows, nodes_by_normalized_name),
    ):
        yield "suffix", step.with_columns(no_scope)
    scopes = _list_scope_paths(nodes_by_normalized_name)
    yield "scope", _match_by_longest_suffix(rows, scopes)
    yield "scope", _match_by_prefix(rows, nodes_by_normalized_name, scopes)


def _match_by_node_suffix(rows: pl.DataFrame, nodes_by_normalized_name: pl.DataFrame) -> pl.DataFrame:
    """Match each op to the node whose name ends with the path of the op, if there is exactly one such node."""
    suffixes = _list_sub_paths(nodes_by_normalized_name, "name", from_end=True).filter(
        pl.col("sub_path") != pl.col("name")
    )
    unambiguous = suffixes.filter(pl.col("count") >= MIN_PARTS).filter(pl.len().over("sub_path") == 1)
    return rows.select("row", "path").join(unambiguous.select("node", "sub_path"), left_on="path", right_on="sub_path")


def _match_by_op_suffix(rows: pl.DataFrame, nodes_by_normalized_name: pl.DataFrame) -> pl.DataFrame:
    """Match each op to the node with the longest name that is a suffix of the path of the op."""
    return _match_by_longest_suffix(rows, nodes_by_normalized_name.rename({"name": "sub_path"}))


def _match_by_longest_suffix(rows: pl.DataFrame, candidates: pl.DataFrame) -> pl.DataFrame:
    """Match each op to the node or scope with the longest path that is a suffix of the path of the op.

    Suffixes with fewer than ``MIN_PARTS`` parts are ignored.

    Args:
        rows: One row per op, with the column ``path``.
        candidates: Nodes or scopes, with their paths in the column ``sub_path``.
    """
    suffixes = _list_sub_paths(rows, "path", from_end=True).filter(pl.col("count") >= MIN_PARTS)
    matches = suffixes.join(candidates, on="sub_path")
    return matches.sort("row", -pl.col("count")).unique("row", keep="first", maintain_order=True)


def _list_scope_paths(nodes_by_normalized_name: pl.DataFrame) -> pl.DataFrame:
    """Return the paths of the scopes of a graph that are not also nodes: ``sub_path``, ``node`` (null), ``scope``."""
    ancestors = _list_sub_paths(nodes_by_normalized_name, "name", from_end=False).filter(
        pl.col("sub_path") != pl.col("name")
    )
    scopes = ancestors.select("sub_path", node=pl.lit(None, pl.Int64), scope="sub_path").unique("sub_path")
    return scopes.join(nodes_by_normalized_name.select(sub_path="name"), on="sub_path", how="anti")


def _match_by_prefix(rows: pl.DataFrame, nodes_by_normalized_name: pl.DataFrame, scopes: pl.DataFrame) -> pl.DataFrame:
    """Match each op to the deepest node or scope whose path is a prefix of the path of the op.

    If a node and a scope are equally deep, the node is used.
    """
    nodes = nodes_by_normalized_name.select(sub_path="name", node="node", scope=pl.lit(None, pl.String))
    matches = _list_sub_paths(rows, "path", from_end=False).join(pl.concat([nodes, scopes]), on="sub_path")
    return matches.sort("row", -pl.col("count")).unique("row", keep="first", maintain_order=True)


def _list_sub_paths(rows: pl.DataFrame, column: str, *, from_end: bool) -> pl.DataFrame:
    """Return the prefixes or suffixes of each path, with up to ``MAX_PARTS`` parts.

    Returns:
        One row per row of ``rows`` and number of parts: the columns of ``rows``, ``sub_path``, and ``count`` (the
        number of parts).
    """
    parts = rows.with_columns(part=pl.col(column).str.split("/"))
    counts = pl.int_ranges(1, pl.col("part").list.len().clip(upper_bound=MAX_PARTS) + 1)
    pairs = parts.with_columns(count=counts).explode("count")
    part = pl.col("part").list.tail("count") if from_end else pl.col("part").list.head("count")
    # The cast is needed for zero rows, for which polars before 2.1 infers a list of nulls.
    lists = pairs.select(part).to_series().cast(pl.List(pl.String))
    return pairs.with_columns(lists.list.join("/").alias("sub_path")).drop("part")


def compute_node_columns(ops: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that a join adds to nodes: the matching op, counts, times and the use of Tensor Cores.

    Args:
        ops: One row per op, with the columns ``OP_COLUMNS``.
        nodes: One row per node, with the columns ``NODE_COLUMNS``.

    Returns:
        One row per node, in the same order, with the columns that ``schemas/arrow/_graph_join.toml`` declares.
    """
    return _compute_node_columns_of_matches(ops.hstack(match_ops(ops, nodes)), nodes)


def _compute_node_columns_of_matches(matched: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return the result of ``compute_node_columns`` for ops that have already been matched by ``match_ops``."""
    rows = matched.with_columns(pl.col("op_id").cast(pl.String), support=_tensor_core_support_code_expr())
    rank = pl.col("match").replace_strict(MATCHES, range(len(MATCHES)), return_dtype=pl.Int64)
    rows = rows.drop_nulls("node").sort(rank, -pl.col("gpu_time_ns"), "op_id")
    by_node = rows.group_by("node", maintain_order=True).agg(
        pl.col("op_id", "match").first(),
        pl.col(_SUMMED).sum(),
        pl.col("support").min(),
        pl.col("uses_tensor_cores").any(ignore_nulls=False),
        op_count=pl.len().cast(pl.Int64),
    )
    rows = nodes.select("op").with_row_index("node").cast({"node": pl.Int64})
    rows = rows.join(by_node, on="node", how="left", maintain_order="left")
    kind = pl.col("op").cast(pl.String)
    by_type = [tensor_cores.support_status_expr(kind, framework="tensorflow"), tensor_cores.support_status_expr(kind)]
    code = pl.coalesce("support", pl.min_horizontal(by_type).cast(pl.Int8))
    return rows.select(
        "op_id",
        pl.col("match").cast(pl.Categorical).alias("op_match"),
        pl.col("op_count", *_SUMMED).fill_null(0),
        code.replace_strict(_SUPPORT, return_dtype=pl.String).cast(pl.Categorical).alias("tensor_core_support"),
        pl.when(pl.col("op_id").is_null())
        .then(pl.lit(value=False))
        .otherwise("uses_tensor_cores")
        .alias("uses_tensor_cores"),
    )


def _tensor_core_support_code_expr() -> pl.Expr:
    """Return an expression for the code with which DLProf represents the value of ``tensor_core_support``."""
    return pl.col("tensor_core_support").cast(pl.String).replace_strict(_SUPPORT_CODES, return_dtype=pl.Int8)


def count_matches_by_kind(ops: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return the number and GPU time of ops by the kind of their match to a graph.

    Returns:
        One row per value of ``match``, which is null for unmatched ops: ``match``, ``ops`` (the number of ops),
        ``gpu_time_ns``, and ``share`` (of the GPU time of all ops).
    """
    rows = match_ops(ops, nodes).hstack(ops.select("gpu_time_ns"))
    total = max(int(ops["gpu_time_ns"].sum()), 1)
    counts = rows.group_by("match").agg(ops=pl.len().cast(pl.Int64), gpu_time_ns=pl.col("gpu_time_ns").sum())
    rank = pl.col("match").replace_strict(MATCHES, range(len(MATCHES)), default=len(MATCHES), return_dtype=pl.Int64)
    return counts.sort(rank).with_columns(share=pl.col("gpu_time_ns") / total)


def summarize_scopes(ops: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Count the nodes of each scope, and sum the executions and GPU times of the ops that match them.

    Returns:
        One row per scope in order of its path, preceded by a row for the whole graph, whose ``path`` is "". The columns
        are ``path``, the numbers of nodes ``node_count``, ``executed_count``, ``eligible_count`` and
        ``tensor_core_count``, and the sums ``instance_count``, ``kernel_count`` and ``gpu_time_ns`` over the ops that
        match the scope or a node in it. If some ops are not in the graph, the last row has their sums and a null path.
    """
    eligible = pl.col("tensor_core_support").cast(pl.String) == "eligible"
    matched = ops.hstack(match_ops(ops, nodes))
    joined = nodes.select(pl.col("name").cast(pl.String)).hstack(_compute_node_columns_of_matches(matched, nodes))
    scope = normalize_node_names(joined["name"]).str.extract(r"^(.*)/[^/]*$").fill_null("")
    counts = {
        "node_count": pl.lit(1, pl.Int64),
        "executed_count": (pl.col("instance_count") > 0).cast(pl.Int64),
        "eligible_count": eligible.cast(pl.Int64),
        "tensor_core_count": pl.col("uses_tensor_cores").cast(pl.Int64),
    }
    totals = ["instance_count", "kernel_count", "gpu_time_ns"]
    by_node = joined.select(scope=scope, **counts, **{t: pl.col(t) for t in totals})
    in_scope = matched.filter(pl.col("scope").is_not_null()).select("scope", *totals)
    terms = pl.concat([by_node, in_scope], how="diagonal").with_columns(pl.exclude("scope").fill_null(0))
    summed = terms.group_by("scope").agg(pl.all().sum())
    ancestors = (
        _list_sub_paths(summed, "scope", from_end=False)
        .filter(pl.col("sub_path") != "")
        .with_columns(path=pl.col("sub_path") + "/")
    )
    contributions = pl.concat(
        [summed.with_columns(path=pl.lit("")), ancestors.select("path", *summed.columns)], how="diagonal"
    )
    by_scope = contributions.group_by("path").agg(pl.exclude("scope").sum()).sort("path")
    outside = matched.filter(pl.col("node").is_null() & pl.col("scope").is_null())
    last = outside.select(path=pl.lit(None, pl.String), **{t: pl.col(t).sum() for t in totals}).head(1)
    rows = pl.concat([by_scope, last], how="diagonal")
    return rows.with_columns(pl.exclude("path").fill_null(0)) if outside.height else by_scope
