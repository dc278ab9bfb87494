"""Find the iterations of a capture, which are the repetitions of the main loop.

The instances of a *key op* delimit iterations. If the default key op of a dialect is the backward pass, each instance
ends an iteration, even if the user chooses another key op. In all other dialects, the default key op is a range that
repeats, and each instance begins an iteration. Each process is divided by the instances in this process. Activities and
ops outside the iterations that ``find_loop_iterations`` returns are not part of any iteration.

DLProf divided all processes at the same times and included the whole capture: its first iteration begins at 0, and the
time after the last key op is one more iteration. The mode ``dlprof`` does the same.

An op instance is part of the iteration in which it ends, that is, for which ``start < end_ns <= end``.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.core import intervals
from tracekit.core.intervals.axis import replace_with_null_unless
from tracekit.core.loop_iterations import BOUNDS, find_loop_iterations
from tracekit.core.ops.calls import ON_GPU
from tracekit.core.trees import ELLIPSIS
from tracekit.errors import TracekitError, create_choices_hint

if TYPE_CHECKING:
    from tracekit.core.loop_iterations import KeyPosition
    from tracekit.core.ops import Ops
    from tracekit.core.tensor_cores import Mode

    Span = tuple[int | None, int | None]

_TWO = 2
_COMPARED, _DIGITS = 5000, 19


class Iterations(NamedTuple):
    """The iterations of a capture.

    Attributes:
        frame: One row per iteration: ``iteration`` (from 0), ``start_ns``, ``end_ns``, ``aggregated``. An iteration
            that several processes run extends from the first start to the last end, so iterations may overlap.
        key: Name of the key op, either requested or chosen by default. It is "" if no name was requested and no op is
            suitable.
        has_key_op: Whether the capture has the key op. It is false if no op is suitable. In DLProf's mode, it is also
            false if no op has the requested name.
        by_process: The bounds of iterations in each process with key ops: ``process_id``, ``iteration``, ``start_ns``,
            ``end_ns``. In processes without key ops, the bounds of ``frame`` apply.
    """

    frame: pl.DataFrame
    key: str
    has_key_op: bool
    by_process: pl.DataFrame

    @property
    def aggregated(self) -> pl.DataFrame:
        """The rows of ``frame`` for the iterations that are aggregated."""
        return self.frame.filter("aggregated")

    @property
    def first(self) -> int:
        """Number of the first aggregated iteration. Iterations of the capture are numbered from 0."""
        return int(self.aggregated["iteration"][0])

    @property
    def last(self) -> int:
        """Number of the last aggregated iteration. Iterations of the capture are numbered from 0."""
        return int(self.aggregated["iteration"][-1])

    @property
    def merged_times(self) -> pl.DataFrame:
        """The union of the aggregated iterations as disjoint, sorted intervals: ``start_ns``, ``end_ns``."""
        return intervals.merge_intervals(self.aggregated.select(_TIMES), by=[])

    def find_instance_iterations(self, instances: pl.DataFrame) -> pl.Series:
        """Return the number of the aggregated iteration of each op instance, or null outside of these iterations.

        Args:
            instances: The columns ``process_id`` and ``end_ns``.
        """
        ends = instances["end_ns"]
        number = _find_iterations_at(self.frame, ends)
        for (process,), bounds in self.by_process.group_by("process_id"):
            in_process = instances["process_id"].eq_missing(pl.Series([process], dtype=pl.Int64))
            number = _find_iterations_at(bounds, ends).zip_with(in_process, number)
        return replace_with_null_unless(number.is_in(self.aggregated["iteration"].implode()), number)


def _find_iterations_at(bounds: pl.DataFrame, times: pl.Series) -> pl.Series:
    """Return the number of the iteration that contains each of the given times.

    If several iterations overlap at a time, only the one that started last is considered. The result is null if no
    iteration has started, or if the one that started last has already ended.
    """
    ordered = bounds.sort("start_ns", maintain_order=True)
    row = ordered["start_ns"].search_sorted(times, side="left").cast(pl.Int64) - 1
    row = replace_with_null_unless(row >= 0, row)
    return ordered["iteration"].gather(replace_with_null_unless(times <= ordered["end_ns"].gather(row), row))


def find_iterations(
    ops: Ops, *, key_op: str | None = None, span: Span | None = None, mode: Mode = "extended"
) -> Iterations:
    """Find the iterations of a capture.

    Args:
        ops: The ops of the capture.
        key_op: Id or name of the key op, or None for the default of the dialect.
        span: First and last iteration to aggregate, both included. The last one need not exist.
        mode: How to divide the capture. ``dlprof`` divides it as DLProf 1.8.0 did. It ignores a key op that does not
            exist, and replaces iterations beyond the last one with the last one.

    Raises:
        TracekitError: No op has the requested id or name, the span begins below 0 or ends before it begins, or the
            capture does not have the first iteration of the span.
    """
    row = _find_key_op_row(ops, key_op)
    if row is None and key_op and mode == "extended":
        raise TracekitError(
            f"the capture has no op {key_op!r}, which was requested as key op", hint=_create_op_names_hint(ops, key_op)
        )
    by_process = pl.DataFrame(schema=BOUNDS)
    if row is not None and mode == "extended":
        by_process = find_loop_iterations(_select_loop_instances(ops), row, _find_key_op_position(ops))
        frame = by_process.group_by("iteration").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("iteration")
    else:
        frame = _divide_into_contiguous_iterations(ops, row, mode)
    first, last = _choose_aggregated_iterations(span, frame.height - 1, mode)
    frame = frame.with_columns(aggregated=pl.col("iteration").is_between(first, last))
    key = key_op or ("" if row is None else str(ops.ops["op_name"][row]))
    return Iterations(frame, key, row is not None, by_process)


def _find_key_op_position(ops: Ops) -> KeyPosition:
    """Return whether the key op is at the start or at the end of iterations in the dialect of the capture."""
    return "end" if ops.dialect.key_op == "backward" else "start"


def _create_op_names_hint(ops: Ops, name: str) -> str:
    """Return a hint that lists the names of ops, beginning with the name that is most similar to the given one."""
    names = ops.ops.select(pl.concat_list(pl.col("op_name").cast(pl.String), "op_id")).to_series().explode()
    compared = names.unique(maintain_order=True).head(_COMPARED).to_list()
    near = difflib.get_close_matches(name, compared, n=1)
    listed = [*near, *(n for n in ops.ops["op_name"].cast(pl.String).unique(maintain_order=True) if n not in near)]
    return create_choices_hint("ops", listed, name)


def _select_loop_instances(ops: Ops) -> pl.DataFrame:
    """Return the op instances with the columns that ``find_loop_iterations`` needs.

    The column ``ends_loop`` is true if the instance is a range or has GPU activities. Only such instances can end an
    iteration early.
    """
    active = ops.select_calls("kind", "instance").filter(pl.col("kind").is_in(ON_GPU))["instance"].unique()
    ends_loop = pl.col("associated") | pl.int_range(pl.len()).is_in(active.implode())
    return ops.instances.select("process_id", "thread_id", *_TIMES, "op", "parent", ends_loop=ends_loop)


def _divide_into_contiguous_iterations(ops: Ops, key_op_row: int | None, mode: Mode) -> pl.DataFrame:
    """Divide the whole capture into iterations without gaps: ``iteration``, ``start_ns``, ``end_ns``.

    A capture without ops has one iteration that lasts for the whole capture, because DLProf's viewer cannot draw an
    empty iteration.
    """
    last_end = ops.instances["end_ns"].max()
    last = last_end if isinstance(last_end, int) else _compute_capture_duration(ops) if mode == "extended" else 0
    if key_op_row is None:
        bounds = [0, last]
    else:
        keys = ops.instances.filter(pl.col("op") == key_op_row)
        at_end = _find_key_op_position(ops) == "end"
        bounds = (
            _compute_bounds_from_key_op_ends(keys, last)
            if at_end
            else _compute_bounds_from_key_op_starts(keys, ops.instances, last)
        )
    frame = pl.DataFrame({"start_ns": bounds[:-1], "end_ns": bounds[1:]}, schema=dict.fromkeys(_TIMES, pl.Int64))
    return frame.select(pl.int_range(pl.len(), dtype=pl.Int64).alias("iteration"), *_TIMES)


def _compute_capture_duration(ops: Ops) -> int:
    """Return the duration of the capture in ns. It is 1 if the duration is unknown."""
    values = ops.capture.frames("capture_info").filter(pl.col("name") == "duration_ns").select("value").collect()
    text = next((v for v in values["value"] if v), "")
    return max(int(text), 1) if text.isdecimal() and len(text) < _DIGITS else 1


_TIMES = ("start_ns", "end_ns")


def _choose_aggregated_iterations(span: Span | None, last_iteration: int, mode: Mode) -> tuple[int, int]:
    """Return the first and the last iteration to aggregate. Both exist in the capture."""
    low, high = span or (None, None)
    first, stop = low or 0, last_iteration if high is None else high
    if (first > stop and not (high is None and first > last_iteration)) or first < 0:
        raise TracekitError(
            f"invalid range of iterations {first}:{stop}: the range has a negative start or ends before it starts",
            hint=f"pass A:B with 0 <= A <= B <= {last_iteration}",
        )
    if first > last_iteration and mode == "extended":
        requested = f"{first} and later" if high is None else f"{first}:{stop}"
        existing = f"only iterations 0 to {last_iteration}" if last_iteration else "only iteration 0"
        raise TracekitError(
            f"iterations {requested} were requested, but the capture has {existing}",
            hint="choose iterations within this range",
        )
    return min(first, last_iteration), min(stop, last_iteration)


def _find_key_op_row(ops: Ops, key_op: str | None) -> int | None:
    """Return the row number of the key op in ``Ops.ops``, or None if there is no key op."""
    rows = ops.ops.with_row_index("row")
    if key_op:
        matches = [rows.filter(pl.col(c).cast(pl.String) == key_op)["row"] for c in ("op_id", "op_name")]
        return next((int(m[0]) for m in matches if len(m)), None)
    if ops.dialect.key_op == "backward":
        ending = rows.filter(pl.col("ends_iteration") & (pl.col("op_type").cast(pl.String) == "backward"))
        ending = ending.sort("instance_count", "op_id", descending=[True, False])
        return int(ending["row"][0]) if ending.height else None
    return _find_longest_repeated_op_row(ops, rows)


def _find_longest_repeated_op_row(ops: Ops, rows: pl.DataFrame) -> int | None:
    """Return the row number of the repeated op with the longest total duration, or None if no op is suitable.

    An op is repeated if one process runs it more than once. Three kinds of op are excluded: ops of the backward pass;
    ops with instances on several threads of one process, because a training loop runs on a single thread; and the op
    "…", which represents all ranges that are nested too deeply. If several ops have the same total duration, the
    outermost one is returned.
    """
    totals = ops.instances.group_by("op").agg(total=(pl.col("end_ns") - pl.col("start_ns")).sum())
    candidates = rows.filter(
        pl.col("associated")
        & (pl.col("direction").cast(pl.String) == "bprop").fill_null(value=False).not_()
        & ~pl.col("op_name").cast(pl.String).str.ends_with(f"/{ELLIPSIS}")
    )
    by_process = ops.instances.group_by("op", "process_id").agg(pl.len(), threads=pl.col("thread_id").n_unique())
    by_op = by_process.group_by("op").agg(pl.col("len", "threads").max())
    repeated = by_op.filter(pl.col("len") > 1, pl.col("threads") == 1)["op"]
    candidates = candidates.with_columns(pl.col("row").cast(pl.Int64))
    candidates = candidates.filter(pl.col("row").is_in(repeated.implode())).join(totals, left_on="row", right_on="op")
    depth = pl.col("op_name").cast(pl.String).str.count_matches("/", literal=True)
    candidates = candidates.sort(pl.col("total") * -1, depth, "op_id")
    return int(candidates["row"][0]) if candidates.height else None


def _compute_bounds_from_key_op_ends(keys: pl.DataFrame, last_end_ns: int) -> list[int]:
    """Return the bounds of iterations that end with a key op, in ns.

    The bounds are 0, the ends of the key ops, and the end of the last op if it is later than these. If all processes
    have the same number of key ops, the n-th key ops of all processes give one bound, at which the last of them ends.
    If one process has more key ops than the others, see ``_find_latest_key_op_ends``.
    """
    counts = keys.group_by("process_id").len()["len"]
    sizes = counts.unique().sort().to_list()
    if len(counts) > 1 and len(sizes) == 1:
        cuts = _assign_key_op_numbers(keys, "end_ns").group_by("nth").agg(pl.col("end_ns").max())["end_ns"]
    elif len(counts) > 1 and len(sizes) == _TWO and (counts == sizes[1]).sum() == 1:
        cuts = _find_latest_key_op_ends(keys, sizes[1])
    else:
        cuts = keys["end_ns"]
    bounds = [0, *(c for c in cuts.unique().sort().to_list() if c >= 0)]
    return [*bounds, last_end_ns] if last_end_ns > bounds[-1] or len(bounds) == 1 else bounds


def _compute_bounds_from_key_op_starts(keys: pl.DataFrame, instances: pl.DataFrame, last_end_ns: int) -> list[int]:
    """Return the bounds of iterations that start with a key op, in ns.

    The bounds are the start of the first op, the starts of all key ops except the first one, and the end of the last
    op. If all processes have the same number of key ops, the n-th key ops of all processes give one bound, at
    which the first of them starts.
    """
    counts = keys.group_by("process_id").len()["len"]
    same = len(counts) > 1 and counts.n_unique() == 1
    starts = _assign_key_op_numbers(keys, "start_ns").group_by("nth").agg(pl.col("start_ns").min()) if same else keys
    first_start = instances["start_ns"].min()
    first = first_start if isinstance(first_start, int) else 0
    cuts = [c for c in starts["start_ns"].unique().sort().to_list()[1:] if first < c < last_end_ns]
    return [first, *cuts, last_end_ns]


def _assign_key_op_numbers(keys: pl.DataFrame, column: str) -> pl.DataFrame:
    """Number the instances of the key op in each process from 0, in order of the given time.

    Args:
        keys: The instances of the key op.
        column: Column of the times, ``start_ns`` or ``end_ns``.

    Returns:
        The columns ``process_id``, ``column`` and ``nth`` (the number).
    """
    return keys.sort(column).select("process_id", column, nth=pl.int_range(pl.len()).over("process_id"))


def _find_latest_key_op_ends(keys: pl.DataFrame, max_count: int) -> pl.Series:
    """Return, for each n, the time at which all processes have ended their n-th key op.

    This function is used if one process has more key ops than the others. Of the key ops of this process, the one that
    ends nearest to the n-th key ops of the other processes is regarded as the n-th.

    Args:
        keys: The instances of the key op in all processes.
        max_count: Number of key ops of the process that has more key ops than the others.
    """
    ends = _assign_key_op_numbers(keys, "end_ns").with_columns(count=pl.len().over("process_id"))
    late = ends.filter(pl.col("count") != max_count).group_by("nth").agg(pl.col("end_ns").max()).sort("end_ns")
    primary = ends.filter(pl.col("count") == max_count).select("end_ns", nearest="end_ns").sort("end_ns")
    pairs = late.join_asof(primary, on="end_ns", strategy="nearest")
    return pairs.select(pl.max_horizontal("end_ns", "nearest")).to_series()
