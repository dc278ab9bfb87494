"""Find the pass of the main loop that contains the op that was chosen to delimit steps.

The chosen op is only a part of a pass in the following cases. Its enclosing op, or the outermost such op, delimits the
steps instead.

- The chosen op has a word for a pass but no number, and each instance of the enclosing op contains one of its
  instances, as in ``train/PjitFunction(train_step)``. The same applies to numbered ops that contain less than 90 % of
  the launches in the enclosing op.
- The numbers of the chosen op begin again in each instance of the enclosing op, as in ``train_step/micro_batch *`` or
  ``request/decode *``. If the chosen op itself has a word for a pass, the enclosing op needs one as well, or a word
  for an input such as "request": ``train/batch *`` has one step per batch.

The enclosing op must repeat and must not be an epoch, an evaluation, a part of a model, or an op of a framework. It may
also be a start/end range that does not overlap with others of its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.categorical import match_categories_expr
from tracekit.core.key_instances import KeyOp, find_overlapping_candidates
from tracekit.core.ops.attach import find_last_containing_intervals
from tracekit.core.ops.step_names import (
    names_epoch_expr,
    names_evaluation_expr,
    names_micro_batch_expr,
    names_model_part_expr,
    names_request_expr,
    names_step_expr,
)

if TYPE_CHECKING:
    from tracekit.core.key_instances import LoopInstances
    from tracekit.core.ops import Ops

_MAJORITY, _NEARLY_ALL = 0.5, 0.9
_MAX_LEVELS, _TRIED = 64, 8


def find_outer_pass(ops: Ops, instances: LoopInstances, labels: pl.DataFrame, key_op: KeyOp) -> KeyOp:
    """Return the op that encloses the passes of a key op, or the key op itself if it is a pass.

    Args:
        ops: The ops of the capture.
        instances: The op instances and start/end ranges of the capture.
        labels: The columns of ``read_op_labels``.
        key_op: The op that was chosen to delimit steps.
    """
    own = labels.filter(pl.col("op") == key_op.rows[0]).select(
        is_numbered=match_categories_expr(pl.col("label"), lambda text: text.str.contains("*", literal=True)),
        is_pass=match_categories_expr(
            pl.col("label"), lambda text: names_step_expr(text) & ~names_micro_batch_expr(text)
        ),
    )
    is_numbered, is_pass = own.row(0)
    if not (is_numbered or is_pass):
        return key_op
    outer_labels = _select_labels_of_passes(labels, needs_word=is_numbered and is_pass)
    ranges = ops.frames("nvtx_ranges").select("range_id", "name").unique("range_id")
    rows = instances.filter_keys(key_op).sort("start_ns").lazy()
    keys = rows.join(ranges, on="range_id", how="left", maintain_order="left").collect()
    outer, chosen = keys["parent"], key_op
    for _ in range(_MAX_LEVELS):
        if outer.null_count() or not len(outer):
            break
        op = instances.frame["op"].gather(outer).unique()
        if len(op) == 1 and op[0] in outer_labels and _are_passes(instances, keys, outer, is_numbered=is_numbered):
            chosen = KeyOp(op.to_list(), "start")
        outer = instances.frame["parent"].gather(outer)
    for row in outer_labels.filter(outer_labels >= instances.ops).head(_TRIED):
        outer = _find_enclosing_ranges(instances, keys, row)
        if not outer.null_count() and _are_passes(instances, keys, outer, is_numbered=is_numbered):
            return KeyOp([row], "start")
    return chosen


def _find_enclosing_ranges(instances: LoopInstances, keys: pl.DataFrame, row: int) -> pl.Series:
    """Return the row number of the start/end range with one label that contains each key.

    The result is null if no range contains the key, or if the ranges overlap.
    """
    rows = instances.frame.with_row_index("row").filter(pl.col("op") == row).with_columns(candidate=0)
    if find_overlapping_candidates(rows).height:
        rows = rows.clear()
    return rows["row"].cast(pl.Int64).gather(find_last_containing_intervals(keys, rows, by=["process_id"]))


def _are_passes(instances: LoopInstances, keys: pl.DataFrame, outer: pl.Series, *, is_numbered: bool) -> bool:
    """Return whether enclosing instances are the passes of which the keys are parts.

    Args:
        instances: The op instances and start/end ranges of the capture.
        keys: The instances of the op that was chosen to delimit steps, with their ``name``, in order of start.
        outer: Row number of the enclosing instance of each key.
        is_numbered: Whether the names of the keys differ in a number.
    """
    passes = keys.select("process_id", "name", outer=outer)
    if not (passes.group_by("process_id").agg(pl.col("outer").n_unique())["outer"] > 1).any():
        return False
    if passes["outer"].is_duplicated().any():
        return is_numbered and _restarts(passes)
    inside, total = (int(instances.count_launches(rows).sum()) for rows in (keys, instances.frame[outer]))
    return not is_numbered or inside < _NEARLY_ALL * total


def _select_labels_of_passes(labels: pl.DataFrame, *, needs_word: bool) -> pl.Series:
    """Return the ops that may be passes, judging by their labels.

    Args:
        labels: The columns of ``read_op_labels``.
        needs_word: Whether the label has to contain a word for a pass or an input.
    """
    label = pl.col("label")
    others = (names_epoch_expr, names_evaluation_expr, names_model_part_expr)
    is_other = pl.any_horizontal(match_categories_expr(label, names) for names in others)
    has_word = match_categories_expr(label, lambda text: names_step_expr(text) | names_request_expr(text))
    return labels.filter(~is_other & ~pl.col("is_library") & (has_word | pl.lit(not needs_word)))["op"]


def _restarts(passes: pl.DataFrame) -> bool:
    """Return whether the names of ranges begin again in most of the enclosing instances.

    Args:
        passes: The ranges in order of start: ``name``, ``outer`` (row number of the enclosing instance).
    """
    if passes.select("name", "outer").is_duplicated().any():
        return False
    first = passes.unique("outer", keep="first", maintain_order=True)["name"]
    return int(first.value_counts()["count"].max()) > _MAJORITY * len(first)  # type: ignore[arg-type]
