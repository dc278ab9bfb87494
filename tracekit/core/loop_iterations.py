"""Find the iterations of a loop in each process.

The iterations are delimited by *keys*, which are the instances of an op that runs once per iteration (the key op). If a
key starts an iteration, the iteration lasts until the next key starts. It ends earlier if an op runs that is not part
of the loop, such as an evaluation. An op is part of the loop if it runs in most of the *slots*, which are the times
before, between and after the keys of a process. No key follows the last iteration, so that iteration ends with its last
op that is part of the loop.

If a key ends an iteration, the same rules apply with time reversed, with two exceptions. Between two keys, an iteration
is not shortened by ops that are not part of the loop. If no process has more than one key, all ops before a key are
part of its iteration.

Measure how much GPU work is launched in the instances of ops, and in start/end ranges, that may delimit steps.

The instances of an op delimit steps together if they run one after the other, even on several threads of a process,
such as the threads of a pool. If several threads run them at the same time, such as threads that each use one GPU, the
instances on a single thread delimit the steps of the process: of the threads whose instances contain about as many
launches as those of any other thread, the one that makes the most launches itself.

Start/end ranges are not ops, because they may overlap and end on another thread. Those that do not overlap may delimit
steps as well. They have row numbers after those of ``Ops.ops``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import polars as pl

from tracekit.core.intervals.axis import Axis
from tracekit.core.intervals.containment import find_last_containers
from tracekit.core.ops.attach import ON_GPU
from tracekit.core.ops.step_names import label_ranges
from tracekit.core.relations import THREAD
from tracekit.core.series import map_categories_expr, match_categories_expr
from tracekit.core.trees import ELLIPSIS, mark_flagged_rows_and_descendants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.ops import Ops

_FRAMEWORK = (
    r"^(?:aten|torch\w*|autograd|at|c10d?|cub|thrust|nccl|prims?|inductor|triton|fbgemm|quantized|profiler|cudnn\w*"
    r"|cublas\w*)::|^record_param_comms|Backward\d*$|^\[memory\]|^enumerate\(DataLoader\)|^nccl:|^Optimizer\."
    r"|^(?:cu|cuda|cublas|cudnn|cusparse|cufft|nccl|hip|musa|mu)[A-Z]|^## Call Compiled|^TorchDynamo|^Torch-Compiled"
)
_LIBRARY_DOMAINS = ("cpu_op", "NCCL", "CCCL", "cuBLAS", "cuBLASLt", "cuDNN", "cuSPARSE", "cuSOLVER", "cuFFT")
_MAJORITY = 0.5
_TOLERATED_OVERLAP, _AS_MANY = 0.1, 0.9
_PROCESS = ["process_id"]
_TIMES = ["start_ns", "end_ns"]
KeyPosition = Literal["start", "end"]
BOUNDS = {"process_id": pl.Int64, "iteration": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
_SLOT = ["process_id", "slot"]


class KeyOp(NamedTuple):
    """The op that delimits iterations.

    Attributes:
        rows: Row numbers in ``LoopInstances.labels``. Several ops delimit iterations if they have the name that a user
            gave.
        position: Whether an instance of the op begins or ends an iteration.
    """

    rows: list[int]
    position: KeyPosition


class LoopInstances(NamedTuple):
    """The op instances and start/end ranges of a capture, and the API calls that launched GPU activities.

    Attributes:
        frame: The op instances, followed by the start/end ranges, with the columns that ``find_loop_iterations`` needs,
            ``range_id`` and ``associated``.
        launches: One row per GPU activity: ``process_id``, ``thread_id``, ``name`` (of the kernel or API function), and
            ``start_ns`` and ``end_ns``, which are both the start of its API call.
        ops: Number of ops. The numbers of start/end ranges in the column ``op`` are not below it.
        range_labels: The distinct labels of start/end ranges, with the columns of ``read_op_labels``.
    """

    frame: pl.DataFrame
    launches: pl.DataFrame
    ops: int
    range_labels: pl.DataFrame

    @classmethod
    def from_ops(cls, ops: Ops) -> LoopInstances:
        """Return the op instances, start/end ranges and launches of a capture.

        The column ``ends_loop`` is true if the instance is a range or has GPU activities. Only such instances can end
        an iteration early.
        """
        calls = ops.select_calls("kind", "instance", *THREAD, "name", "start_ns").filter(pl.col("kind").is_in(ON_GPU))
        ends_loop = pl.col("associated") | pl.int_range(pl.len()).is_in(calls["instance"].unique().implode())
        columns = [*THREAD, *_TIMES, "op", "parent", "range_id", "associated"]
        frame = ops.instances.select(*columns, ends_loop=ends_loop)
        launches = calls.select(*THREAD, "name", "start_ns", end_ns="start_ns")
        ranges, labels = _read_start_end_ranges(ops)
        if ranges.height:
            rows = ranges.select(pl.col(c).cast(t) for c, t in frame.schema.items())
            frame = pl.concat([frame, rows])
        return cls(frame, launches, ops.ops.height, labels)

    def count_launches(self, intervals: pl.DataFrame, by: Sequence[str] = _PROCESS) -> pl.Series:
        """Return the number of launches in each interval, bounds included.

        Args:
            intervals: The columns ``by``, ``start_ns`` and ``end_ns``.
            by: Columns whose values an interval and the launches in it share. By default, launches on any thread of the
                process count.
        """
        intervals, launches = (f.with_columns(pl.col(by).fill_null(-1)) for f in (intervals, self.launches))
        axis = Axis.from_intervals(intervals, launches, by=by)
        times = axis.compute_positions(launches)["start"].sort()
        positions = axis.compute_positions(intervals)
        first = times.search_sorted(positions["start"], side="left").cast(pl.Int64)
        stop = times.search_sorted(positions["end"], side="right").cast(pl.Int64)
        counts = pl.repeat(0, intervals.height, dtype=pl.Int64, eager=True)
        return counts.scatter(positions["row"], (stop - first).clip(0))

    def add_launch_counts(self, intervals: pl.DataFrame) -> pl.DataFrame:
        """Add the number of launches in each interval on any thread (``inside``) and on its own thread (``own``)."""
        return intervals.with_columns(inside=self.count_launches(intervals), own=self.count_launches(intervals, THREAD))

    def remove_launches(self, intervals: pl.DataFrame) -> LoopInstances:
        """Return the instances without the launches in intervals: ``process_id``, ``start_ns``, ``end_ns``."""
        inside = find_last_containers(self.launches, intervals.sort(_TIMES), by=_PROCESS)
        return self._replace(launches=self.launches.filter(inside.is_null()))

    def launches_same_kernels(self, key_op: KeyOp) -> bool:
        """Return whether most instances that delimit iterations launch the same kernels, as the passes of a loop do.

        Parts of a model launch different kernels. Instances without launches do not count.
        """
        keys = self.filter_keys(key_op).sort(_TIMES)
        key = find_last_containers(self.launches, keys, by=_PROCESS)
        names = self.launches.select("name").with_columns(key=key).drop_nulls("key").unique()
        sets = names.group_by("key").agg(pl.col("name").cast(pl.Categorical).to_physical().sort())
        return not sets.height or int(sets.group_by("name").len()["len"].max()) > _MAJORITY * sets.height  # type: ignore[arg-type]

    def find_iterations(self, key_op: KeyOp) -> pl.DataFrame:
        """Return the iterations that an op delimits, with the columns of ``find_loop_iterations``."""
        is_key = self._compute_key_mask(key_op)
        is_row = is_key | (self.frame["op"] < self.ops)
        return find_loop_iterations(self.frame.filter(is_row), is_key.filter(is_row), key_op.position)

    def find_keys(self, key_op: KeyOp) -> pl.DataFrame:
        """Return the instances that delimit iterations: ``process_id``, ``iteration``, ``range_id``."""
        keys = self.filter_keys(key_op)
        ordered = keys.sort("process_id", *_TIMES, maintain_order=True)
        number = pl.int_range(pl.len(), dtype=pl.Int64).over("process_id")
        return ordered.select("process_id", "range_id", iteration=number)

    def filter_keys(self, key_op: KeyOp) -> pl.DataFrame:
        """Return the rows of ``frame`` that delimit iterations."""
        return self.frame.filter(self._compute_key_mask(key_op))

    def count_launches_in_keys(self, key_op: KeyOp) -> int:
        """Return the number of launches in the instances that delimit iterations."""
        return int(self.count_launches(self.filter_keys(key_op)).sum())

    def _compute_key_mask(self, key_op: KeyOp) -> pl.Series:
        """Return whether each instance delimits iterations. An instance inside of another one does not."""
        is_key, parent = self.frame["op"].is_in(key_op.rows), self.frame["parent"]
        is_nested = mark_flagged_rows_and_descendants(parent, is_key).gather(parent).fill_null(value=False)
        keys = self.frame.with_row_index("row").filter(is_key & ~is_nested).with_columns(candidate=0)
        keys = self.select_threads(self.add_launch_counts(keys))
        return pl.int_range(self.frame.height, eager=True).is_in(keys["row"].implode())

    def select_threads(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the instances of candidates without those that run at the same time as others on another thread.

        Args:
            rows: The instances: ``candidate``, ``process_id``, ``thread_id``, ``start_ns``, ``end_ns``, ``inside``
                and ``own`` (see ``add_launch_counts``).
        """
        in_process = ["candidate", *_PROCESS]
        threads = rows.group_by(in_process).agg(pl.col("thread_id").n_unique()).filter(pl.col("thread_id") > 1)
        several = rows.join(threads, on=in_process, how="semi", nulls_equal=True)
        parallel = several.join(find_overlapping_candidates(several), on=in_process, how="semi", nulls_equal=True)
        if not parallel.height:
            return rows
        by_thread = parallel.group_by("candidate", *THREAD).agg(
            *[pl.col("inside", "own").sum(), pl.col("start_ns").min()],
            total=(pl.col("end_ns") - pl.col("start_ns")).sum(),
        )
        by_thread = by_thread.filter(pl.col("inside") >= _AS_MANY * pl.col("inside").max().over(in_process))
        by_thread = by_thread.sort("own", "total", "start_ns", "thread_id", descending=[True, True, False, False])
        chosen = by_thread.unique(in_process, keep="first", maintain_order=True)
        others = parallel.select("candidate", *THREAD).unique()
        others = others.join(chosen, on=["candidate", *THREAD], how="anti", nulls_equal=True)
        return rows.join(others, on=["candidate", *THREAD], how="anti", nulls_equal=True, maintain_order="left")


def find_overlapping_candidates(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the candidates with instances that overlap in a process: ``candidate``, ``process_id``.

    A new instance may begin shortly before the last one ends, but not by more than a tenth of its duration.

    Args:
        rows: The instances: ``candidate``, ``process_id``, ``start_ns``, ``end_ns``.
    """
    key = ["candidate", *_PROCESS]
    ordered = rows.select(*key, *_TIMES).sort(_TIMES)
    overlap = pl.col("end_ns").cum_max().shift(1).over(key) - pl.col("start_ns")
    overlaps = overlap > _TOLERATED_OVERLAP * (pl.col("end_ns") - pl.col("start_ns"))
    return ordered.filter(overlaps.fill_null(value=False)).select(key).unique()


def _read_start_end_ranges(ops: Ops) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the start/end ranges that are not ops, in order of start, and the distinct labels of these ranges.

    The frames have the columns of ``LoopInstances.frame`` and ``LoopInstances.range_labels``.
    """
    columns = [*THREAD, *_TIMES, "range_id", "name", "domain"]
    ranges = (
        ops.frames("nvtx_ranges").filter(pl.col("kind") == "start_end").select(columns).drop_nulls("name").collect()
    )
    if ranges.height:
        ranges = ranges.join(ops.instances.select("range_id").drop_nulls(), on="range_id", how="anti")
        ranges = ranges.with_columns(pl.col("end_ns").fill_null(ops.capture.last_ns)).sort(_TIMES, maintain_order=True)
    no_parent = pl.repeat(None, ranges.height, dtype=pl.Int64, eager=True)
    ranges = ranges.with_columns(label=label_ranges(no_parent, ranges["name"], ranges.select(_PROCESS)))
    labels = ranges.select("label", "domain").unique("label", keep="first", maintain_order=True)
    first = ops.ops.height
    labels = labels.with_columns(op=pl.int_range(pl.len(), dtype=pl.Int64) + first)
    ranges = ranges.join(labels.select("label", "op"), on="label", how="left", maintain_order="left")
    flags = [pl.lit(value=True).alias("associated"), pl.lit(value=False).alias("ends_loop")]
    return ranges.with_columns(*flags, parent=None), labels.select("op", "label", is_library=_is_library_expr())


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
    return rows.filter(pl.col("label") != ELLIPSIS).select("op", "label", is_library=_is_library_expr())


def read_range_names(ops: Ops, instances: pl.DataFrame) -> pl.DataFrame:
    """Return the names of ranges, which the column ``range_id`` identifies: ``name`` is added."""
    ranges = ops.frames("nvtx_ranges").filter(pl.col("range_id").is_in(instances["range_id"].implode()))
    names = ranges.select("range_id", "name").unique("range_id")
    return instances.lazy().join(names, on="range_id", how="left", maintain_order="left").collect()


def _is_library_expr() -> pl.Expr:
    """Return an expression for whether a framework or library created ranges, judging by their domain and label."""
    is_library = match_categories_expr(pl.col("domain"), lambda text: text.is_in(_LIBRARY_DOMAINS))
    return is_library | match_categories_expr(pl.col("label"), lambda text: text.str.contains(_FRAMEWORK))


def find_loop_iterations(instances: pl.DataFrame, is_key: pl.Series, key_position: KeyPosition) -> pl.DataFrame:
    """Return the iterations of the loop in each process.

    Args:
        instances: One row per op instance, in order of start: ``process_id``, ``thread_id``, ``start_ns``, ``end_ns``,
            ``op``, ``parent`` (row number in this frame), ``ends_loop`` (whether the instance ends an iteration early
            if its op is not part of the loop).
        is_key: Whether each instance delimits iterations. These instances are *keys*.
        key_position: Whether the key op is at the start or at the end of an iteration.

    Returns:
        One row per process and iteration, sorted by both. The columns are ``process_id``, ``iteration`` (from 0 in each
        process), ``start_ns`` and ``end_ns``. The iterations of one process do not overlap.
    """
    if key_position == "start":
        return _find_iterations_starting_with_key_op(instances, is_key, ends_early=True)
    mirrored = _find_iterations_starting_with_key_op(_reverse_time(instances), is_key, ends_early=False)
    last = pl.col("iteration").max().over("process_id")
    return _reverse_time(mirrored).with_columns(last - pl.col("iteration")).sort("process_id", "iteration")


def _reverse_time(frame: pl.DataFrame) -> pl.DataFrame:
    """Negate the times of intervals, which reverses the direction of time. The order of the rows does not change."""
    return frame.with_columns(start_ns=-pl.col("end_ns"), end_ns=-pl.col("start_ns"))


def _find_iterations_starting_with_key_op(
    instances: pl.DataFrame, is_key: pl.Series, *, ends_early: bool
) -> pl.DataFrame:
    """Return the iterations of a loop, each of which starts with a key.

    If ``ends_early`` is true, an iteration ends at the first op that is not part of the loop.
    """
    keys = _assign_key_op_numbers(instances.filter(is_key))
    between = _find_outermost_instances_between_key_ops(instances, keys)
    looped = _find_loop_ops(between, keys) if ends_early or (keys["slot"] > 0).any() else between["op"].unique()
    others = between.filter(pl.col("ends_loop") & ~pl.col("op").is_in(looped.implode()))
    first_other = others.group_by(_SLOT).agg(other=pl.col("start_ns").min())
    slots = keys.join(first_other, on=_SLOT, how="left", maintain_order="left", nulls_equal=True)
    slots = slots.with_columns(other=pl.col("other") if ends_early else pl.lit(None, pl.Int64))
    within = between.filter(pl.col("op").is_in(looped.implode())).join(slots, on=_SLOT, nulls_equal=True)
    within = within.filter((pl.col("end_ns") <= pl.col("other")).fill_null(value=True))
    slots = slots.join(within.group_by(_SLOT).agg(loop=pl.col("end_ns").max()), on=_SLOT, how="left", nulls_equal=True)
    last = pl.max_horizontal("end_ns", "loop")
    end = pl.when(pl.col("next").is_null()).then(last).otherwise(pl.coalesce("other", "next"))
    bounds = slots.select("process_id", "slot", "start_ns", end)
    return bounds.rename({"slot": "iteration"}).cast(BOUNDS).sort("process_id", "iteration")  # type: ignore[arg-type]


def _assign_key_op_numbers(keys: pl.DataFrame) -> pl.DataFrame:
    """Number the instances of the key op in each process from 0, in order of time.

    The columns are ``process_id``, ``thread_id``, ``start_ns``, ``end_ns``, ``slot`` (the number) and ``next`` (start
    of the next instance of the key op).
    """
    ordered = keys.sort("process_id", "start_ns", "end_ns", maintain_order=True)
    following = pl.col("start_ns").shift(-1).over("process_id")
    numbered = ordered.select(
        *[*THREAD, "start_ns", "end_ns"],
        slot=pl.int_range(pl.len(), dtype=pl.Int64).over("process_id"),
        next=following,
    )
    return numbered.with_columns(end_ns=pl.min_horizontal("end_ns", "next"))


def _find_outermost_instances_between_key_ops(instances: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost op instances between the instances of the key op, on the threads that run the key op.

    The columns are those of ``instances``, ``row`` (row number in ``instances``) and ``slot``, which is the number of
    the preceding instance of the key op, or -1 if there is none.
    """
    rows = instances.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    rows = rows.join(keys.select(THREAD).unique(), on=THREAD, nulls_equal=True)
    by_process = keys.group_by("process_id", maintain_order=True)
    between = pl.concat([_find_instances_between_key_ops(rows, process_keys) for _, process_keys in by_process]).sort(
        "row"
    )
    return between.filter(pl.col("parent").is_null() | ~pl.col("parent").is_in(between["row"].implode()))


def _find_instances_between_key_ops(rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Return the op instances of one process that overlap none of its instances of the key op.

    The column ``slot`` is added: the number of the preceding instance of the key op, or -1 if there is none.
    """
    instances = rows.filter(pl.col("process_id").eq_missing(pl.lit(keys["process_id"][0], pl.Int64)))
    slot = keys["start_ns"].search_sorted(instances["start_ns"], side="right").cast(pl.Int64) - 1
    key_bounds = keys.select("slot", key_end="end_ns", next="next")
    bounds = pl.DataFrame({"slot": slot}).join(key_bounds, on="slot", how="left")
    bounds = bounds.with_columns(next=pl.when(pl.col("slot") < 0).then(keys["start_ns"][0]).otherwise("next"))
    beside = (pl.col("start_ns") >= pl.col("key_end")).fill_null(value=True)
    beside &= (pl.col("end_ns") <= pl.col("next")).fill_null(value=True)
    return instances.hstack(bounds).filter(beside).drop("key_end", "next")


def _find_loop_ops(instances_between: pl.DataFrame, keys: pl.DataFrame) -> pl.Series:
    """Return the ops that are part of the loop.

    The instances of the key op divide the time of each process into *slots*: the time before the first instance, the
    times between consecutive instances, and the time after the last one. An op is part of the loop if it runs in more
    than half of all slots.

    Args:
        instances_between: The op instances outside of the instances of the key op, with their ``slot``.
        keys: The instances of the key op.
    """
    slots = keys.height + keys["process_id"].n_unique()
    counts = instances_between.unique([*_SLOT, "op"]).group_by("op").len("slots")
    return counts.filter(2 * pl.col("slots") > slots)["op"]
