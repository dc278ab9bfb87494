"""Group op instances into ops, and number the ops.

Instances are processed in order of start. ``Timeline.folding`` determines which instances form an op. With ``path``, an
op consists of all instances with the same name. With ``occurrence``, each occurrence of a name and stack trace in an
iteration is a separate op, so that an op of a training loop has one instance per iteration.

The id of an op is its type in capitals and a number that counts the ops of this type in order of first appearance:
``CONV2D_1``. The type is cut after ``MAX_ID_TYPE_CHARS`` characters. The id of a backward pass is the id of its forward
op followed by ``_BPROP``. The op that computes all gradients has the same suffix.

Build the timelines of frameworks that write their ops into their own NVTX domain, inside the ranges of the program.

The *scopes* around an op are the enclosing ranges that are not ops: ranges of the program, and ranges of the framework
that contain ops. The path of an op starts with its scopes. Enclosing ops are not in the path, because the name of an op
already contains its position within the framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.ops.dialect import (
    DialectTables,
    Timeline,
    build_op_tree_and_paths,
    build_timeline_instances,
    select_ops,
)
from tracekit.core.ops.step_names import remove_star_expr
from tracekit.core.relations import THREAD
from tracekit.core.series import decode_categories_expr, map_categories_expr
from tracekit.core.trees import find_nearest_matching_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY = ["domain", "text"]
BACKWARD_SUFFIX = "_BPROP"
MAX_ID_TYPE_CHARS = 1 << 14
"""Maximum number of characters of a type in the id of an op. Types with the same beginning are numbered together."""


def read_domain_texts(capture: DialectTables, domain: str) -> pl.DataFrame:
    """Return the distinct names of the ranges in one domain, in the column ``text`` (String)."""
    return capture.texts.filter(pl.col("domain") == domain).select("text").drop_nulls()


def build_domain_timeline(
    capture: DialectTables,
    domain: str,
    parsed: pl.DataFrame,
    *,
    prepend_scopes: bool = True,
    ignored_domains: Sequence[str] = (),
) -> Timeline:
    """Return a timeline with one op instance per push/pop range.

    Args:
        capture: The capture that contains the ranges.
        domain: NVTX domain of the ops.
        parsed: One row per name in the domain: ``text`` (the name), ``label`` (path of an op, or null if the range
            contains ops), ``scope`` (name of a range that contains ops, or null to use ``text``), ``type``, and
            optionally ``direction``, ``parameters``, ``input_shapes`` and ``data_type``.
        prepend_scopes: Whether to put the scopes around an op before its label. If false, the label is the full path.
        ignored_domains: NVTX domains whose ranges are neither ops nor scopes.
    """
    parsed = parsed.with_columns(pl.lit(domain).alias("domain")).with_columns(pl.col(KEY).cast(pl.Categorical))
    ranges = capture.ranges.join(parsed, on=KEY, how="left", maintain_order="left")
    parent, is_op = capture.nested_ranges.parent, ranges["label"].is_not_null()
    is_used = (~ranges["domain"].is_in(list(ignored_domains))).fill_null(value=True)
    if not is_used.all():
        parent = find_nearest_matching_rows(parent, is_used).gather(parent)
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
    times = ["start_ns", "end_ns", *THREAD, "range_id"]
    rows = ranges.select(*times, *optional).with_columns(parent=parent).hstack(named)
    return Timeline(build_timeline_instances(rows if is_used.all() else select_ops(rows, is_used)), tree=tree)


def assign_op_numbers(instances: pl.DataFrame, folding: str) -> pl.DataFrame:
    """Group op instances into ops, and return the number and the id of the op of each instance.

    Args:
        instances: Columns of ``INSTANCE``. Unassociated instances are at the end, in the order in which they are
            numbered.
        folding: How instances are grouped, ``path`` or ``occurrence``. See ``Timeline``.

    Returns:
        One row per instance: ``op`` (a number from 0 in order of first appearance, with backward passes after all other
        ops), and ``op_id`` (String).
    """
    columns = ["op_name", "op_type", "forward", "start_ns", "ends_iteration", "stack_trace"]
    rows = instances.select(columns).with_row_index("row").with_columns(_id_type_expr(pl.col("op_type")))
    forward = _assign_forward_op_numbers(rows.filter(pl.col("forward").is_null()), folding)
    backward = _assign_backward_op_numbers(rows.filter(pl.col("forward").is_not_null()), forward)
    return pl.concat([forward, backward]).sort("row").select("op", "op_id")


def _id_type_expr(op_type: pl.Expr) -> pl.Expr:
    """Return an expression for the type of an op (Categorical) as in ids: in capitals, and not too long."""
    return map_categories_expr(op_type, lambda text: text.str.to_uppercase().str.head(MAX_ID_TYPE_CHARS))


def _assign_forward_op_numbers(rows: pl.DataFrame, folding: str) -> pl.DataFrame:
    """Assign each instance to an op, and number the ops. The instances must not include backward passes.

    Returns:
        One row per instance: ``row`` (row number of the instance), ``op`` (number of the op) and ``op_id``.
    """
    by_start = rows.sort("start_ns", maintain_order=True)
    identity = ["op_name"]
    if folding == "occurrence":
        by_start = _add_occurrence_numbers(by_start)
        identity = ["op_name", "stack_trace", "ends_iteration", "occurrence"]
    first = by_start.unique(identity, keep="first", maintain_order=True)
    number = pl.col("op_type").cum_count().over("op_type")
    suffix = pl.when("ends_iteration").then(pl.lit(BACKWARD_SUFFIX)).otherwise(pl.lit(""))
    ops = first.select(
        *identity,
        op_id=pl.format("{}_{}{}", decode_categories_expr(pl.col("op_type")), number, suffix),
        op=pl.int_range(pl.len()),
    )
    folded = by_start.join(ops, on=identity, how="left", maintain_order="left", nulls_equal=True)
    return folded.select("row", "op", "op_id")


def _add_occurrence_numbers(instances: pl.DataFrame) -> pl.DataFrame:
    """Add the column ``occurrence``, which numbers instances with the same name and stack trace in each iteration.

    The instances must be in order of start. Numbers start from 0. The number is null for instances that end an
    iteration.
    """
    iteration = pl.col("ends_iteration").cast(pl.Int64).cum_sum().alias("_iteration")
    counted = pl.int_range(pl.len()).over("_iteration", "ends_iteration", "op_name", "stack_trace")
    return instances.with_columns(iteration).with_columns(occurrence=pl.when(~pl.col("ends_iteration")).then(counted))


def _assign_backward_op_numbers(rows: pl.DataFrame, forward: pl.DataFrame) -> pl.DataFrame:
    """Group the backward passes of each forward op into one op, and number these ops.

    Returns:
        One row per backward pass: ``row`` (row number of the instance), ``op`` (number of the op) and ``op_id``.
    """
    pairs = rows.select("row", pl.col("forward").cast(pl.UInt32)).join(
        forward.rename({"row": "forward"}), on="forward", maintain_order="left"
    )
    forward_ops = pairs.select(forward_op=pl.col("op").unique(maintain_order=True))
    last = forward["op"].max()
    start = last + 1 if isinstance(last, int) else 0
    numbers = forward_ops.with_columns(backward_op=pl.int_range(pl.len()) + start)
    joined = pairs.join(numbers, left_on="op", right_on="forward_op", maintain_order="left")
    return joined.select("row", op="backward_op", op_id=pl.col("op_id") + BACKWARD_SUFFIX)
