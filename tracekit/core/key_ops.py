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

If no op qualifies, ops of the first two kinds that have the same label but different paths are tried together. If a
capture has no GPU activities, the time inside of ranges decides between the ranges that repeat. By default, the
following ops are never key ops: ops of frameworks and libraries, such as ``aten::linear``; parts of a model, such as
``layer``; the op "…", which represents all ranges that are nested too deeply; and ops that several threads of a process
run, because a loop runs on a single thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.core.categorical import map_categories_expr, match_categories_expr
from tracekit.core.forests import compute_depths, mark_flagged_rows_and_descendants
from tracekit.core.intervals.axis import Axis
from tracekit.core.loop_iterations import find_loop_iterations
from tracekit.core.ops.calls import ON_GPU
from tracekit.core.ops.step_names import (
    names_epoch_expr,
    names_model_part_expr,
    names_numbered_step_expr,
    names_step_expr,
)
from tracekit.core.trees import ELLIPSIS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from tracekit.core.loop_iterations import KeyPosition
    from tracekit.core.ops import Ops

_FRAMEWORK = (
    r"^(?:aten|torch\w*|autograd|at|c10d?|cub|thrust|nccl|prims?|inductor|triton|fbgemm|quantized|profiler|cudnn\w*"
    r"|cublas\w*)::|^record_param_comms|Backward\d*$|^\[memory\]|^enumerate\(DataLoader\)|^nccl:|^Optimizer\."
    r"|^(?:cu|cuda|cublas|cudnn|cusparse|cufft|nccl)[A-Z]|^## Call Compiled|^TorchDynamo|^Torch-Compiled"
)
_OPTIMIZER_STEP = r"^Optimizer\.step#"
_LIBRARY_DOMAINS = ("cpu_op", "NCCL", "CCCL", "cuBLAS", "cuBLASLt", "cuDNN", "cuSPARSE", "cuSOLVER", "cuFFT")
_MAJORITY, _NEARLY_ALL = 0.5, 0.9
_TRIED = 8
_MIN_PASSES = 3
_NAMED, _COUNTED, _REPEATED, _BEGINNING, _ENDING, _EPOCHS = range(6)


class KeyOp(NamedTuple):
    """The op that delimits iterations.

    Attributes:
        rows: Row numbers in ``Ops.ops``. Several ops delimit iterations if they have the name that a user gave.
        position: Whether an instance of the op begins or ends an iteration.
    """

    rows: list[int]
    position: KeyPosition


class LoopInstances(NamedTuple):
    """The op instances of a capture, and the API calls that launched GPU activities.

    Attributes:
        frame: The op instances with the columns that ``find_loop_iterations`` needs.
        launches: One row per GPU activity: ``process_id``, and ``start_ns`` and ``end_ns``, which are both the start of
            its API call.
    """

    frame: pl.DataFrame
    launches: pl.DataFrame

    @classmethod
    def from_ops(cls, ops: Ops) -> LoopInstances:
        """Return the op instances and launches of a capture.

        The column ``ends_loop`` is true if the instance is a range or has GPU activities. Only such instances can end
        an iteration early.
        """
        calls = ops.select_calls("kind", "instance", "process_id", "start_ns").filter(pl.col("kind").is_in(ON_GPU))
        ends_loop = pl.col("associated") | pl.int_range(pl.len()).is_in(calls["instance"].unique().implode())
        columns = ["process_id", "thread_id", "start_ns", "end_ns", "op", "parent"]
        launches = calls.select("process_id", "start_ns", end_ns="start_ns")
        return cls(ops.instances.select(*columns, ends_loop=ends_loop), launches)

    def count_launches(self, intervals: pl.DataFrame) -> pl.Series:
        """Return the number of launches in each interval, bounds included, on any thread of the process.

        Args:
            intervals: The columns ``process_id``, ``start_ns`` and ``end_ns``.
        """
        intervals, launches = (f.with_columns(pl.col("process_id").fill_null(-1)) for f in (intervals, self.launches))
        axis = Axis.from_intervals(intervals, launches, by=["process_id"])
        times = axis.compute_positions(launches)["start"].sort()
        positions = axis.compute_positions(intervals)
        first = times.search_sorted(positions["start"], side="left").cast(pl.Int64)
        stop = times.search_sorted(positions["end"], side="right").cast(pl.Int64)
        counts = pl.repeat(0, intervals.height, dtype=pl.Int64, eager=True)
        return counts.scatter(positions["row"], (stop - first).clip(0))

    def find_iterations(self, key_op: KeyOp) -> pl.DataFrame:
        """Return the iterations that an op delimits, with the columns of ``find_loop_iterations``."""
        return find_loop_iterations(self.frame, self._compute_key_mask(key_op), key_op.position)

    def find_keys(self, key_op: KeyOp) -> pl.DataFrame:
        """Return the instances that delimit iterations: ``process_id``, ``iteration``, ``instance`` (row number)."""
        keys = self.frame.with_columns(instance=pl.int_range(pl.len())).filter(self._compute_key_mask(key_op))
        ordered = keys.sort("process_id", "start_ns", "end_ns", maintain_order=True)
        number = pl.int_range(pl.len(), dtype=pl.Int64).over("process_id")
        return ordered.select("process_id", "instance", iteration=number)

    def count_launches_in_keys(self, key_op: KeyOp) -> int:
        """Return the number of launches in the instances that delimit iterations."""
        return int(self.count_launches(self.frame.filter(self._compute_key_mask(key_op))).sum())

    def _compute_key_mask(self, key_op: KeyOp) -> pl.Series:
        """Return whether each instance delimits iterations. An instance inside of another one does not."""
        is_key, parent = self.frame["op"].is_in(key_op.rows), self.frame["parent"]
        is_nested = mark_flagged_rows_and_descendants(parent, is_key).gather(parent).fill_null(value=False)
        return is_key & ~is_nested


def choose_key_op(ops: Ops, instances: LoopInstances) -> KeyOp | None:
    """Return the op that delimits the steps of a capture, or None if no op qualifies."""
    if ops.dialect.key_op == "backward":
        backward = find_backward_op_row(ops)
        return None if backward is None else KeyOp([backward], "end")
    labels = read_op_labels(ops)
    by_op = _list_candidates(ops, instances, labels.with_columns(candidate="op"))
    by_label = labels.with_columns(candidate=pl.col("op").min().over("label"))
    return _choose_candidate(instances, by_op, range(_EPOCHS + 1)) or _choose_candidate(
        instances, _list_candidates(ops, instances, by_label), (_NAMED, _COUNTED)
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
    if kind in (_NAMED, _COUNTED, _REPEATED, _EPOCHS) and inside > _MAJORITY * total:
        return True
    if kind == _REPEATED or candidate["count"] == 1 or (kind == _COUNTED and not candidate["is_numbered"]):
        return False
    counts = instances.count_launches(instances.find_iterations(key_op))
    required = _NEARLY_ALL if kind == _BEGINNING else _MAJORITY
    return counts.sum() > required * total and _compute_similar_share(counts) > _MAJORITY


def _compute_similar_share(counts: pl.Series) -> float:
    """Return the share of counts that differ from the median by less than a factor of two."""
    median = float(counts.median() or 0)  # type: ignore[arg-type]
    return float(((counts >= median / 2) & (counts <= median * 2) & (counts > 0)).mean() or 0)  # type: ignore[arg-type]


def _list_candidates(ops: Ops, instances: LoopInstances, labels: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that may delimit iterations, the preferred ones first.

    Args:
        ops: The ops of the capture.
        instances: Their instances.
        labels: The result of ``read_op_labels`` and the column ``candidate``. Ops with the same number in this column
            are one candidate.

    Returns:
        One row per candidate and kind: ``ops`` (row numbers in ``Ops.ops``), ``kind``, ``count`` (largest number of
        instances in a process), ``inside`` (number of GPU activities that are launched inside the instances),
        ``is_numbered`` (whether ``*`` replaces numbers in the label).
    """
    frame, columns = instances.frame, ["process_id", "start_ns", "end_ns"]
    inside = instances.count_launches(frame.select(columns))
    labels = _select_labels_of_repeating_or_numbered_ops(ops, labels)
    measured = frame.with_columns(inside=inside, depth=compute_depths(frame["parent"]))
    measured = measured.filter(ops.instances["associated"])
    measured = measured.join(labels.select("op", "candidate"), on="op", maintain_order="left")
    by_process = measured.group_by("candidate", "process_id").agg(pl.len(), threads=pl.col("thread_id").n_unique())
    median = pl.col("inside").median()
    similar = (pl.col("inside") >= median / 2) & (pl.col("inside") <= median * 2) & (pl.col("inside") > 0)
    totals = measured.group_by("candidate").agg(
        *[pl.col("inside").sum(), pl.col("depth").min(), pl.col("start_ns").min(), similar.mean().alias("similar")],
        total=(pl.col("end_ns") - pl.col("start_ns")).sum(),
    )
    counted = by_process.group_by("candidate").agg(count=pl.col("len").max(), threads=pl.col("threads").max())
    named = labels.group_by("candidate").agg(pl.col("op").sort().alias("ops"), pl.col("label", "is_library").first())
    rows = named.join(counted.join(totals, on="candidate"), on="candidate").filter(pl.col("threads") == 1)
    rows = rows.with_columns(kind=_list_kinds_expr(), is_numbered=_contains_star_expr())
    return rows.explode("kind").drop_nulls("kind").sort(*_list_sort_exprs(instances), "candidate")


def _select_labels_of_repeating_or_numbered_ops(ops: Ops, labels: pl.DataFrame) -> pl.DataFrame:
    """Return the labels of candidates that have several instances, and of single steps with a number.

    No other candidate delimits iterations. Captures may have millions of ranges with distinct names.
    """
    counted = labels.with_columns(instances=ops.ops["instance_count"].gather(labels["op"]))
    repeats = pl.col("instances").sum().over("candidate") > 1
    return counted.filter(repeats | match_categories_expr(pl.col("label"), names_numbered_step_expr))


def _list_sort_exprs(instances: LoopInstances) -> list[pl.Expr]:
    """Return the expressions by which candidates of one kind are sorted, the preferred ones first."""
    depth, total, start = pl.col("depth"), pl.col("total"), pl.col("start_ns")
    if not instances.launches.height:
        return [pl.when(pl.col("kind") == _REPEATED).then(-total).otherwise(0), depth, -total]
    return [depth, pl.when(pl.col("kind") == _BEGINNING).then(start).otherwise(-pl.col("inside")), start]


def _list_kinds_expr() -> pl.Expr:
    """Return an expression for the list of kinds of key op that an op may be."""
    label, repeats = pl.col("label"), pl.col("count") > 1
    named, epoch = (match_categories_expr(label, f) for f in (names_step_expr, names_epoch_expr))
    numbered = match_categories_expr(label, names_numbered_step_expr)
    free = ~pl.col("is_library") & ~match_categories_expr(label, names_model_part_expr)
    passes = pl.col("count") >= _MIN_PASSES
    conditions = (
        named & ((repeats & _contains_star_expr()) | numbered),
        (free & repeats & label.cat.ends_with("*") & ~epoch) | (named & repeats),
        free & repeats & ((pl.col("similar") > _MAJORITY) | (pl.col("inside") == 0)) & ~epoch,
        free & passes,
        match_categories_expr(label, lambda text: text.str.contains(_OPTIMIZER_STEP)) & passes,
        free & repeats & epoch,
    )
    kinds = [pl.when(condition).then(kind) for kind, condition in enumerate(conditions)]
    return pl.concat_list(kinds)


def _contains_star_expr() -> pl.Expr:
    """Return an expression for whether ``*`` replaces numbers in the label of an op."""
    return match_categories_expr(pl.col("label"), lambda text: text.str.contains("*", literal=True))


def read_op_labels(ops: Ops) -> pl.DataFrame:
    """Return the ops that are not in the backward or forward pass of a framework.

    Returns:
        One row per op: ``op`` (row number in ``Ops.ops``), ``label`` (last part of its name, Categorical), and
        ``is_library`` (whether a framework or library created its ranges).
    """
    rows = ops.ops.select(pl.int_range(pl.len()).alias("op"), "op_name", "direction", "associated", "node")
    rows = rows.filter(pl.col("associated") & pl.col("direction").is_null())
    tree = ops.timeline.tree
    part = (
        tree.nodes["part"].gather(rows["node"])
        if tree is not None
        else pl.Series([None] * rows.height, dtype=pl.Categorical)
    )
    last = map_categories_expr(pl.col("op_name"), lambda text: text.str.extract(r"([^/]+)$"))
    label = pl.coalesce(part.alias("part"), last)
    first = ops.instances.select("op", "range_id").drop_nulls().unique("op", keep="first", maintain_order=True)
    ranges = ops.frames("nvtx_ranges").select("range_id", "domain")
    domains = first.lazy().join(ranges, on="range_id", how="left").unique("op").select("op", "domain").collect()
    rows = rows.with_columns(label=label).join(domains, on="op", how="left", maintain_order="left")
    is_library = match_categories_expr(pl.col("domain"), lambda text: text.is_in(_LIBRARY_DOMAINS))
    is_library |= match_categories_expr(pl.col("label"), lambda text: text.str.contains(_FRAMEWORK))
    return rows.filter(pl.col("label") != ELLIPSIS).select("op", "label", is_library=is_library)
