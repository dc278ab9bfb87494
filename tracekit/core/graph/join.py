"""Which node of a graph each op of a capture is, and what nodes took.

An op is looked for by its name and by its name in the letters that names of nodes have: first as its own node would be
called, with ``_bprop`` and number, then without. Of what is left, it is where one name ends in the other; then in the
longest scope that its path ends in, or the deepest scope or node that it begins with. Ops that lie in a scope and in no
node count for the scope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import tensor_cores
from tracekit.core.graph import names

if TYPE_CHECKING:
    from collections.abc import Iterator

MATCHES = ("name", "spelling", "suffix", "scope")
FEWEST_PARTS = 2
DEEPEST = 64
OP_COLUMNS = (
    *("op_id", "op_name", "instance_count", "kernel_count", "cpu_time_ns", "gpu_time_ns", "tensor_core_support"),
    "uses_tensor_cores",
)
NODE_COLUMNS = ("name", "op")
_SUMMED = ("instance_count", "kernel_count", "cpu_time_ns", "gpu_time_ns")
_SUPPORT = {0: "eligible", 2: "maybe", 3: "not eligible"}
_CODES = {text: code for code, text in _SUPPORT.items()}


def match(ops: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Find the node, or the scope, of each op.

    Args:
        ops: ``op_id`` and ``op_name``, one row an op.
        nodes: ``name``, one row a node; of equal names the first one counts.

    Returns:
        n ops in, n rows out, in order: ``node`` (row of ``nodes``), ``scope`` (path of a scope, if it is in no node;
        both null if in neither), ``match`` (one of ``MATCHES``, or null).
    """
    made = nodes.select(pl.col("name").cast(pl.String)).with_row_index("node").cast({"node": pl.Int64})
    made = made.unique("name", keep="first", maintain_order=True)
    spelt = made.with_columns(names.of_nodes(made["name"])).unique("name", keep="first", maintain_order=True)
    path = names.legal(ops["op_name"])
    rows = ops.select(name=pl.col("op_name").cast(pl.String), own=names.of_ops(ops), path=path)
    rows = rows.with_row_index("row").cast({"row": pl.Int64})
    found = [rows.clear().select("row", node=pl.lit(0, pl.Int64), scope=pl.lit(""), match=pl.lit(""))]
    for kind, step in _steps(rows, made, spelt):
        known = pl.concat(found)["row"]
        new = step.filter(~pl.col("row").is_in(known.implode())).with_columns(match=pl.lit(kind))
        found.append(new.select(found[0].columns))
    return rows.select("row").join(pl.concat(found), on="row", how="left", maintain_order="left").drop("row")


def _steps(rows: pl.DataFrame, made: pl.DataFrame, spelt: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Look for ops one way after the other: the way, and ``row``, ``node``, ``scope`` of those it finds."""
    nowhere = pl.lit(None, pl.String).alias("scope")
    plain = rows.filter(pl.col("own") == pl.col("path"))
    for asked, column in ((plain, "own"), (rows, "path")):
        yield "name", asked.join(made, on="name").with_columns(nowhere)
        yield "spelling", rows.join(spelt, left_on=column, right_on="name").with_columns(nowhere)
    for step in (_ending_in_ops(rows, spelt), _ops_ending_in(rows, spelt)):
        yield "suffix", step.with_columns(nowhere)
    scopes = _scopes(spelt)
    yield "scope", _longest_ending(rows, scopes)
    yield "scope", _inside(rows, spelt, scopes)


def _ending_in_ops(rows: pl.DataFrame, spelt: pl.DataFrame) -> pl.DataFrame:
    """Find ops whose path is how the name of one node ends, and of no other."""
    endings = _parts(spelt, "name", of_end=True).filter(pl.col("text") != pl.col("name"))
    one = endings.filter(pl.col("count") >= FEWEST_PARTS).filter(pl.len().over("text") == 1)
    return rows.select("row", "path").join(one.select("node", "text"), left_on="path", right_on="text")


def _ops_ending_in(rows: pl.DataFrame, spelt: pl.DataFrame) -> pl.DataFrame:
    """Find ops whose path ends in the name of a node, the longest there is."""
    return _longest_ending(rows, spelt.rename({"name": "text"}))


def _longest_ending(rows: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """Find the longest ``text`` of places, of parts enough, that paths end in."""
    endings = _parts(rows, "path", of_end=True).filter(pl.col("count") >= FEWEST_PARTS)
    found = endings.join(places, on="text")
    return found.sort("row", -pl.col("count")).unique("row", keep="first", maintain_order=True)


def _scopes(spelt: pl.DataFrame) -> pl.DataFrame:
    """List the scopes of nodes that are no nodes themselves: ``text``, ``node`` (null), ``scope``."""
    above = _parts(spelt, "name", of_end=False).filter(pl.col("text") != pl.col("name"))
    scopes = above.select("text", node=pl.lit(None, pl.Int64), scope="text").unique("text")
    return scopes.join(spelt.select(text="name"), on="text", how="anti")


def _inside(rows: pl.DataFrame, spelt: pl.DataFrame, scopes: pl.DataFrame) -> pl.DataFrame:
    """Find the deepest node or scope that paths begin with; if it is both, it is the node."""
    nodes = spelt.select(text="name", node="node", scope=pl.lit(None, pl.String))
    found = _parts(rows, "path", of_end=False).join(pl.concat([nodes, scopes]), on="text")
    return found.sort("row", -pl.col("count")).unique("row", keep="first", maintain_order=True)


def _parts(rows: pl.DataFrame, column: str, *, of_end: bool) -> pl.DataFrame:
    """List how texts begin or end: ``rows`` with ``text``, and ``count`` of its parts, up to ``DEEPEST``."""
    parts = rows.with_columns(part=pl.col(column).str.split("/"))
    counts = pl.int_ranges(1, pl.col("part").list.len().clip(upper_bound=DEEPEST) + 1)
    pairs = parts.with_columns(count=counts).explode("count")
    part = pl.col("part").list.tail("count") if of_end else pl.col("part").list.head("count")
    some = pairs.select(part).to_series().cast(pl.List(pl.String))  # polars before 2.1 makes a list of nulls of no rows
    return pairs.with_columns(some.list.join("/").alias("text")).drop("part")


def columns(ops: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Say of each node which op it is and what it took.

    Args:
        ops: Columns ``OP_COLUMNS``.
        nodes: Columns ``NODE_COLUMNS``.

    Returns:
        n nodes in, n rows out in order: the columns that ``schemas/arrow/_graph_join.toml`` declares.
    """
    return _columns(ops.hstack(match(ops, nodes)), nodes)


def _columns(found: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Say of each node what it took, of ops whose nodes are found."""
    rows = found.with_columns(pl.col("op_id").cast(pl.String), support=_code())
    rank = pl.col("match").replace_strict(MATCHES, range(len(MATCHES)), return_dtype=pl.Int64)
    rows = rows.drop_nulls("node").sort(rank, -pl.col("gpu_time_ns"), "op_id")
    by_node = rows.group_by("node", maintain_order=True).agg(
        pl.col("op_id", "match").first(),
        pl.col(_SUMMED).sum(),
        pl.col("support").min(),
        pl.col("uses_tensor_cores").any(ignore_nulls=False),
        op_count=pl.len().cast(pl.Int64),
    )
    whole = nodes.select("op").with_row_index("node").cast({"node": pl.Int64})
    whole = whole.join(by_node, on="node", how="left", maintain_order="left")
    kind = pl.col("op").cast(pl.String)
    by_type = [tensor_cores.support(kind, framework="tensorflow"), tensor_cores.support(kind)]
    code = pl.coalesce("support", pl.min_horizontal(by_type).cast(pl.Int8))
    return whole.select(
        "op_id",
        pl.col("match").cast(pl.Categorical).alias("op_match"),
        pl.col("op_count", *_SUMMED).fill_null(0),
        code.replace_strict(_SUPPORT, return_dtype=pl.String).cast(pl.Categorical).alias("tensor_core_support"),
        pl.when(pl.col("op_id").is_null())
        .then(pl.lit(value=False))
        .otherwise("uses_tensor_cores")
        .alias("uses_tensor_cores"),
    )


def _code() -> pl.Expr:
    return pl.col("tensor_core_support").cast(pl.String).replace_strict(_CODES, return_dtype=pl.Int8)


def counted(ops: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Count the ops that were found, by the way.

    Returns:
        One row a value of ``match``, null for those that were not found: ``match``, ``ops``, ``gpu_time_ns``, and its
        ``share`` of the GPU time of all ops.
    """
    rows = match(ops, nodes).hstack(ops.select("gpu_time_ns"))
    total = max(int(ops["gpu_time_ns"].sum()), 1)
    found = rows.group_by("match").agg(ops=pl.len().cast(pl.Int64), gpu_time_ns=pl.col("gpu_time_ns").sum())
    rank = pl.col("match").replace_strict(MATCHES, range(len(MATCHES)), default=len(MATCHES), return_dtype=pl.Int64)
    return found.sort(rank).with_columns(share=pl.col("gpu_time_ns") / total)


def summary(ops: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Sum up the scopes of a graph.

    Returns:
        One row a scope in order of its path, the whole graph (``path`` "") first: ``path``, ``node_count``,
        ``executed_count``, ``eligible_count``, ``tensor_core_count`` (of nodes), and of their ops and those of the
        scope ``instance_count``, ``kernel_count``, ``gpu_time_ns``. The last row, whose path is null, is of ops that
        are not in the graph.
    """
    eligible = pl.col("tensor_core_support").cast(pl.String) == "eligible"
    found = ops.hstack(match(ops, nodes))
    known = nodes.select(pl.col("name").cast(pl.String)).hstack(_columns(found, nodes))
    inner = names.of_nodes(known["name"]).str.extract(r"^(.*)/[^/]*$").fill_null("")
    counts = {
        "node_count": pl.lit(1, pl.Int64),
        "executed_count": (pl.col("instance_count") > 0).cast(pl.Int64),
        "eligible_count": eligible.cast(pl.Int64),
        "tensor_core_count": pl.col("uses_tensor_cores").cast(pl.Int64),
    }
    totals = ["instance_count", "kernel_count", "gpu_time_ns"]
    own = known.select(scope=inner, **counts, **{t: pl.col(t) for t in totals})
    loose = found.filter(pl.col("scope").is_not_null()).select("scope", *totals)
    whole = pl.concat([own, loose], how="diagonal").with_columns(pl.exclude("scope").fill_null(0))
    summed = whole.group_by("scope").agg(pl.all().sum())
    above = _parts(summed, "scope", of_end=False).filter(pl.col("text") != "").with_columns(path=pl.col("text") + "/")
    every = pl.concat([summed.with_columns(path=pl.lit("")), above.select("path", *summed.columns)], how="diagonal")
    by_scope = every.group_by("path").agg(pl.exclude("scope").sum()).sort("path")
    outside = found.filter(pl.col("node").is_null() & pl.col("scope").is_null())
    last = outside.select(path=pl.lit(None, pl.String), **{t: pl.col(t).sum() for t in totals}).head(1)
    made = pl.concat([by_scope, last], how="diagonal")
    return made.with_columns(pl.exclude("path").fill_null(0)) if outside.height else by_scope
