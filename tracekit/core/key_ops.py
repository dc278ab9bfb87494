"""Choose the op that delimits the steps of a capture (the key op).

The instances of a key op are passes of the main loop, so most GPU activities are launched inside of them or between
them. The following kinds of ops are tried in this order. Of the ops of one kind that qualify, the outermost one is
chosen.

1. Ranges whose name contains a word for a pass and a number, such as ``ProfilerStep#3`` or ``batch 7``.
2. Sibling ranges that differ only in the number at the end of their name, such as ``decode 0`` and ``decode 1``, and
   ranges whose name contains a word for a pass, such as ``train_step``, if most GPU activities are launched inside.
3. Ranges that repeat, inside of which most GPU activities are launched.
4. Ranges that repeat and begin a pass, such as ``forward``, if nearly all GPU activities are launched after them.
5. The ranges that PyTorch writes around each step of an optimizer. They end a pass.
6. Epochs.

If no op qualifies, ops of the first two kinds, and ops named after an input, such as ``request``, are tried together if
they have the same label but different paths. If a capture has no GPU activities, the time inside of ranges decides
between the ranges that repeat. By default, the following ops are never key ops: ops of frameworks and libraries, such
as ``aten::linear``; parts of a model, such as ``layer``; and the op "…", which represents all ranges that are nested
too deeply. Start/end ranges that do not overlap are tried like ops. See ``key_instances`` for ops that run on several
threads of a process. Of the ops of one kind, those on threads that launch nearly nothing during these ops, such as a
thread that loads batches, are tried last.

Find the pass of the main loop that contains the op that was chosen to delimit steps.

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

from tracekit.core.intervals.containment import find_last_containers
from tracekit.core.loop_iterations import KeyOp, find_overlapping_candidates, read_op_labels, read_range_names
from tracekit.core.ops.step_names import (
    ends_with_star_expr,
    names_epoch_expr,
    names_evaluation_expr,
    names_micro_batch_expr,
    names_model_part_expr,
    names_numbered_step_expr,
    names_repeated_expr,
    names_request_expr,
    names_step_expr,
    names_training_expr,
)
from tracekit.core.series import match_categories_expr
from tracekit.core.trees import compute_depths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from tracekit.core.loop_iterations import LoopInstances
    from tracekit.core.ops import Ops

_MAJORITY, _NEARLY_ALL = 0.5, 0.9
_MAX_LEVELS, _MAX_TRIED_PASSES = 64, 8
_OPTIMIZER_STEP = r"^Optimizer\.step#"
_TRIED = 8
_MIN_PASSES = 3
_FEW = 0.1
_NAMED, _COUNTED, _REPEATED, _BEGINNING, _ENDING, _EPOCHS, _TRAINING, _REQUESTS = range(8)


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
    keys = read_range_names(ops, instances.filter_keys(key_op).sort("start_ns"))
    outer, chosen = keys["parent"], key_op
    for _ in range(_MAX_LEVELS):
        if outer.null_count() or not len(outer):
            break
        op = instances.frame["op"].gather(outer).unique()
        if len(op) == 1 and op[0] in outer_labels and _are_passes(instances, keys, outer, is_numbered=is_numbered):
            chosen = KeyOp(op.to_list(), "start")
        outer = instances.frame["parent"].gather(outer)
    for row in outer_labels.filter(outer_labels >= instances.ops).head(_MAX_TRIED_PASSES):
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
    return rows["row"].cast(pl.Int64).gather(find_last_containers(keys, rows, by=["process_id"]))


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


def choose_key_op(ops: Ops, instances: LoopInstances) -> KeyOp | None:
    """Return the op that delimits the steps of a capture, or None if no op qualifies."""
    if ops.dialect.key_op == "backward":
        backward = find_backward_op_row(ops)
        return None if backward is None else KeyOp([backward], "end")
    labels = pl.concat([read_op_labels(ops), instances.range_labels])
    chosen = _choose_training_op(instances, labels) or _choose_from_labels(instances, labels, range(_EPOCHS + 1))
    return chosen and find_outer_pass(ops, instances, labels, chosen)


def _choose_training_op(instances: LoopInstances, labels: pl.DataFrame) -> KeyOp | None:
    """Return the op that delimits the steps of the training, if the capture also contains an evaluation.

    Launches in ranges of an evaluation do not count, because an evaluation may launch more than the training. The
    result is None if there is no evaluation, if it launches nearly everything, or if no op with the name of a step
    qualifies.
    """
    is_evaluation = match_categories_expr(pl.col("label"), names_evaluation_expr)
    evaluation = instances.frame.join(labels.filter(is_evaluation), on="op", how="semi")
    if not evaluation.height:
        return None
    others = instances.remove_launches(evaluation)
    if others.launches.height <= _FEW * instances.launches.height:
        return None
    return _choose_from_labels(others, labels.filter(~is_evaluation), (_NAMED, _COUNTED, _TRAINING))


def _choose_from_labels(instances: LoopInstances, labels: pl.DataFrame, kinds: Sequence[int]) -> KeyOp | None:
    """Return the first op of the given kinds that qualifies, or else several ops with the same label, or None."""
    by_op = _list_candidates(instances, labels.with_columns(candidate="op"))
    by_label = labels.with_columns(candidate=pl.col("op").min().over("label"))
    return _choose_candidate(instances, by_op, kinds) or _choose_candidate(
        instances, _list_candidates(instances, by_label), (_NAMED, _COUNTED, _REQUESTS)
    )


def _choose_candidate(instances: LoopInstances, candidates: pl.DataFrame, kinds: Sequence[int]) -> KeyOp | None:
    """Return the first of the candidates that qualifies, or None if none of them does."""
    for kind in kinds:
        for row in candidates.filter(pl.col("kind") == kind).head(_TRIED).iter_rows(named=True):
            key_op = KeyOp(row["ops"], "end" if kind == _ENDING else "start")
            if _qualifies(instances, key_op, row):
                return key_op
    return None


def find_backward_op_row(ops: Ops) -> int | None:
    """Return the row number in ``Ops.ops`` of the op of the backward pass with the most instances."""
    rows = ops.ops.with_row_index("row")
    ending = rows.filter(pl.col("ends_iteration") & (pl.col("op_type") == "backward"))
    ending = ending.sort("instance_count", "op_id", descending=[True, False])
    return int(ending["row"][0]) if ending.height else None


def _qualifies(instances: LoopInstances, key_op: KeyOp, candidate: Mapping[str, Any]) -> bool:
    """Return whether enough GPU activities are launched in the iterations that a candidate delimits."""
    kind, total, inside = candidate["kind"], instances.launches.height, candidate["inside"]
    if not total:
        return kind not in (_BEGINNING, _ENDING)
    if len(key_op.rows) > 1:
        inside = instances.count_launches_in_keys(key_op)
    if candidate["may_be_part"] and not instances.launches_same_kernels(key_op):
        return False
    if kind in (_NAMED, _COUNTED, _REPEATED, _EPOCHS, _TRAINING, _REQUESTS) and inside > _MAJORITY * total:
        return True
    if (
        kind in (_REPEATED, _TRAINING, _REQUESTS)
        or candidate["count"] == 1
        or (kind == _COUNTED and not candidate["is_numbered"])
    ):
        return False
    counts = instances.count_launches(instances.find_iterations(key_op))
    required = _NEARLY_ALL if kind == _BEGINNING else _MAJORITY
    return counts.sum() > required * total and _compute_similar_share(counts) > _MAJORITY


def _compute_similar_share(counts: pl.Series) -> float:
    """Return the share of counts that differ from the median by less than a factor of two."""
    median = float(counts.median() or 0)  # type: ignore[arg-type]
    return float(((counts >= median / 2) & (counts <= median * 2) & (counts > 0)).mean() or 0)  # type: ignore[arg-type]


def _list_candidates(instances: LoopInstances, labels: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that may delimit iterations, the preferred ones first.

    Args:
        instances: The op instances and start/end ranges of the capture.
        labels: The columns of ``read_op_labels`` and ``candidate``. Ops with the same number in this column are one
            candidate.

    Returns:
        One row per candidate and kind: ``ops`` (row numbers of its ops), ``kind``, ``count`` (largest number of
        instances in a process), ``inside`` (number of GPU activities that are launched inside the instances),
        ``is_numbered`` (whether ``*`` replaces numbers in the label), ``may_be_part`` (whether only a number at the end
        of the name indicates that the op repeats).
    """
    labels = _select_labels_of_repeating_or_numbered_ops(instances, labels)
    measured = _measure_instances(instances, labels)
    median = pl.col("inside").median()
    similar = (pl.col("inside") >= median / 2) & (pl.col("inside") <= median * 2) & (pl.col("inside") > 0)
    totals = measured.group_by("candidate").agg(
        *[pl.col("inside").sum(), pl.col("depth").min(), pl.col("start_ns").min(), similar.mean().alias("similar")],
        total=(pl.col("end_ns") - pl.col("start_ns")).sum(),
        is_beside=pl.col("own").sum() < _FEW * pl.col("inside").sum(),
    )
    counted = measured.group_by("candidate", "process_id").len().group_by("candidate").agg(count=pl.col("len").max())
    named = labels.group_by("candidate").agg(pl.col("op").sort().alias("ops"), pl.col("label", "is_library").first())
    rows = named.join(counted.join(totals, on="candidate"), on="candidate")
    has_word = match_categories_expr(pl.col("label"), lambda text: names_step_expr(text) | names_repeated_expr(text))
    is_numbered = _contains_star_expr()
    rows = rows.with_columns(kind=_list_kinds_expr(), is_numbered=is_numbered, may_be_part=is_numbered & ~has_word)
    return rows.explode("kind").drop_nulls("kind").sort(*_list_sort_exprs(instances), "candidate")


def _measure_instances(instances: LoopInstances, labels: pl.DataFrame) -> pl.DataFrame:
    """Return the instances of candidates that do not overlap.

    Args:
        instances: The op instances and start/end ranges of the capture.
        labels: The columns ``op`` and ``candidate``.

    Returns:
        The columns of ``instances``, and ``candidate``, ``depth``, ``inside`` (number of GPU activities that are
        launched in the instance, on any thread) and ``own`` (on its thread).
    """
    frame = instances.frame
    measured = frame.with_columns(depth=compute_depths(frame["parent"])).filter("associated")
    measured = measured.join(labels.select("op", "candidate"), on="op", maintain_order="left")
    measured = instances.select_threads(instances.add_launch_counts(measured))
    overlapping = find_overlapping_candidates(measured.filter(pl.col("op") >= instances.ops))
    return measured.join(overlapping, on="candidate", how="anti", maintain_order="left")


def _select_labels_of_repeating_or_numbered_ops(instances: LoopInstances, labels: pl.DataFrame) -> pl.DataFrame:
    """Return the labels of candidates that have several instances, and of single steps with a number.

    Of the ops of libraries, only steps are returned. No other candidate delimits iterations. Captures may have millions
    of ranges with distinct names.
    """
    is_step = match_categories_expr(
        pl.col("label"), lambda text: names_step_expr(text) | text.str.contains(_OPTIMIZER_STEP)
    )
    labels = labels.filter(is_step | (~pl.col("is_library")).any().over("candidate"))
    counts = instances.frame.group_by("op").agg(instances=pl.len())
    counted = labels.join(counts, on="op", how="left", maintain_order="left")
    repeats = pl.col("instances").sum().over("candidate") > 1
    return counted.filter(repeats | match_categories_expr(pl.col("label"), names_numbered_step_expr))


def _list_sort_exprs(instances: LoopInstances) -> list[pl.Expr]:
    """Return the expressions by which candidates of one kind are sorted, the preferred ones first."""
    depth, total, start = pl.col("depth"), pl.col("total"), pl.col("start_ns")
    if not instances.launches.height:
        return [pl.when(pl.col("kind") == _REPEATED).then(-total).otherwise(0), depth, -total]
    return [
        pl.col("is_beside"),
        depth,
        pl.when(pl.col("kind") == _BEGINNING).then(start).otherwise(-pl.col("inside")),
        start,
    ]


def _list_kinds_expr() -> pl.Expr:
    """Return an expression for the list of kinds of key op that an op may be."""
    label, repeats = pl.col("label"), pl.col("count") > 1
    named, epoch = (match_categories_expr(label, f) for f in (names_step_expr, names_epoch_expr))
    numbered = match_categories_expr(label, names_numbered_step_expr)
    free = ~pl.col("is_library") & ~match_categories_expr(label, names_model_part_expr)
    passes = pl.col("count") >= _MIN_PASSES
    repeated = free & repeats & ((pl.col("similar") > _MAJORITY) | (pl.col("inside") == 0)) & ~epoch
    conditions = (
        named & ((repeats & _contains_star_expr()) | numbered),
        (free & repeats & match_categories_expr(label, ends_with_star_expr) & ~epoch) | (named & repeats),
        repeated,
        free & passes,
        match_categories_expr(label, lambda text: text.str.contains(_OPTIMIZER_STEP)) & passes,
        free & repeats & epoch,
        repeated & match_categories_expr(label, names_training_expr),
        repeated & match_categories_expr(label, names_request_expr),
    )
    kinds = [pl.when(condition).then(kind) for kind, condition in enumerate(conditions)]
    return pl.concat_list(kinds)


def _contains_star_expr() -> pl.Expr:
    """Return an expression for whether ``*`` replaces numbers in the label of an op."""
    return match_categories_expr(pl.col("label"), lambda text: text.str.contains("*", literal=True))
