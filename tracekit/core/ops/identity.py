"""Fold instances to ops, and give each op its id.

Instances are taken in order of start. What folds is said by the timeline: the same op name, or also the k-th occurrence
of name and stack trace since the backward op before it, so that a training loop folds to one op with an instance an
iteration. An op is called by its type in capitals and a number, counted by type in order of first appearance:
``CONV2D_1``. Backward passes are called after their op, ``CONV2D_1_BPROP``; the op that computes all gradients has the
same ending.
"""

from __future__ import annotations

import polars as pl

BACKWARD_SUFFIX = "_BPROP"


def fold(instances: pl.DataFrame, folding: str) -> pl.DataFrame:
    """Number the ops of instances.

    Args:
        instances: Columns of ``INSTANCE``; unassociated ones at the end, in their own order.
        folding: As in ``Timeline``.

    Returns:
        n rows in, n rows out: ``op`` (from 0, in order of first appearance; backward passes after all others), and
        ``op_id`` of that op (String).
    """
    rows = instances.with_row_index("row").with_columns(pl.col("op_type").cast(pl.String).str.to_uppercase())
    own = _own_ops(rows.filter(pl.col("forward").is_null()), folding)
    back = _backward_ops(rows.filter(pl.col("forward").is_not_null()), own)
    return pl.concat([own, back]).sort("row").select("op", "op_id")


def _own_ops(rows: pl.DataFrame, folding: str) -> pl.DataFrame:
    """Fold instances that are no backward pass of another."""
    walked = rows.sort("start_ns", maintain_order=True)
    identity = ["op_name"]
    if folding == "occurrence":
        walked = _with_occurrence(walked)
        identity = ["op_name", "stack_trace", "ends_pass", "occurrence"]
    first = walked.unique(identity, keep="first", maintain_order=True)
    number = pl.col("op_type").cum_count().over("op_type")
    suffix = pl.when("ends_pass").then(pl.lit(BACKWARD_SUFFIX)).otherwise(pl.lit(""))
    known = first.select(*identity, op_id=pl.format("{}_{}{}", "op_type", number, suffix), op=pl.int_range(pl.len()))
    folded = walked.join(known, on=identity, how="left", maintain_order="left", nulls_equal=True)
    return folded.select("row", "op", "op_id")


def _with_occurrence(walked: pl.DataFrame) -> pl.DataFrame:
    """Count the occurrences of name and stack trace since the last op that ended a pass; null for such ops."""
    passes = pl.col("ends_pass").cast(pl.Int64).cum_sum().alias("_pass")
    counted = pl.int_range(pl.len()).over("_pass", "ends_pass", "op_name", "stack_trace")
    return walked.with_columns(passes).with_columns(occurrence=pl.when(~pl.col("ends_pass")).then(counted))


def _backward_ops(rows: pl.DataFrame, own: pl.DataFrame) -> pl.DataFrame:
    """Fold backward passes: one op for all that belong to instances of one forward op."""
    of = rows.select("row", pl.col("forward").cast(pl.UInt32)).join(
        own.rename({"row": "forward"}), on="forward", maintain_order="left"
    )
    first = of.select(forward_op=pl.col("op").unique(maintain_order=True))
    before = own["op"].max()
    start = before + 1 if isinstance(before, int) else 0
    numbered = first.with_columns(new=pl.int_range(pl.len()) + start)
    joined = of.join(numbered, left_on="op", right_on="forward_op", maintain_order="left")
    return joined.select("row", op="new", op_id=pl.col("op_id") + BACKWARD_SUFFIX)
