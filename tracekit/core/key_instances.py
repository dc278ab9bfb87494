"""Measure how much GPU work is launched in the instances of ops, and in start/end ranges, that may delimit steps.

The instances of an op delimit steps together if they run one after the other, even on several threads of a process,
such as the threads of a pool. If several threads run them at the same time, such as threads that each use one GPU, the
instances on a single thread delimit the steps of the process: of the threads whose instances contain about as many
launches as those of any other thread, the one that makes the most launches itself.

Start/end ranges are not ops, because they may overlap and end on another thread. Those that do not overlap may delimit
steps as well. They have row numbers after those of ``Ops.ops``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.core.categorical import map_categories_expr, match_categories_expr
from tracekit.core.intervals.axis import Axis
from tracekit.core.loop_iterations import find_loop_iterations
from tracekit.core.ops.attach import ON_GPU, find_last_containing_intervals
from tracekit.core.ops.step_names import label_ranges
from tracekit.core.relations import THREAD
from tracekit.core.trees import ELLIPSIS, mark_flagged_rows_and_descendants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.loop_iterations import KeyPosition
    from tracekit.core.ops import Ops

_FRAMEWORK = (
    r"^(?:aten|torch\w*|autograd|at|c10d?|cub|thrust|nccl|prims?|inductor|triton|fbgemm|quantized|profiler|cudnn\w*"
    r"|cublas\w*)::|^record_param_comms|Backward\d*$|^\[memory\]|^enumerate\(DataLoader\)|^nccl:|^Optimizer\."
    r"|^(?:cu|cuda|cublas|cudnn|cusparse|cufft|nccl)[A-Z]|^## Call Compiled|^TorchDynamo|^Torch-Compiled"
)
_LIBRARY_DOMAINS = ("cpu_op", "NCCL", "CCCL", "cuBLAS", "cuBLASLt", "cuDNN", "cuSPARSE", "cuSOLVER", "cuFFT")
_MAJORITY = 0.5
_TOLERATED_OVERLAP, _AS_MANY = 0.1, 0.9
_PROCESS = ["process_id"]
_TIMES = ["start_ns", "end_ns"]


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
        inside = find_last_containing_intervals(self.launches, intervals.sort(_TIMES), by=_PROCESS)
        return self._replace(launches=self.launches.filter(inside.is_null()))

    def launches_same_kernels(self, key_op: KeyOp) -> bool:
        """Return whether most instances that delimit iterations launch the same kernels, as the passes of a loop do.

        Parts of a model launch different kernels. Instances without launches do not count.
        """
        keys = self.filter_keys(key_op).sort(_TIMES)
        key = find_last_containing_intervals(self.launches, keys, by=_PROCESS)
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


def _is_library_expr() -> pl.Expr:
    """Return an expression for whether a framework or library created ranges, judging by their domain and label."""
    is_library = match_categories_expr(pl.col("domain"), lambda text: text.is_in(_LIBRARY_DOMAINS))
    return is_library | match_categories_expr(pl.col("label"), lambda text: text.str.contains(_FRAMEWORK))
