"""Group op instances into ops, and number the ops.

Instances are processed in order of start. ``Timeline.folding`` determines which instances form an op. With ``path``, an
op consists of all instances with the same name. With ``occurrence``, each occurrence of a name and stack trace in an
iteration is a separate op, so that an op of a training loop has one instance per iteration.

The id of an op is its type in capitals and a number that counts the ops of this type in order of first appearance:
``CONV2D_1``. The type is cut after ``MAX_ID_TYPE_CHARS`` characters. The id of a backward pass is the id of its forward
op followed by ``_BPROP``. The op that computes all gradients has the same suffix.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.categorical import decode_categories_expr, map_categories_expr

BACKWARD_SUFFIX = "_BPROP"
MAX_ID_TYPE_CHARS = 1 << 14
"""Maximum number of characters of a type in the id of an op. Types with the same beginning are numbered together."""


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
    rows = instances.with_row_index("row").with_columns(_id_type_expr(pl.col("op_type")))
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
