"""Find the iterations of a capture, which are the repetitions of the main loop.

The instances of a *key op* delimit iterations (see ``key_ops``). If the default key op of a dialect is the backward
pass, each instance ends an iteration, even if the user chooses another key op. Otherwise, each instance begins an
iteration, except for the steps of an optimizer. Each process is divided by the instances in this process. Activities
and ops outside the iterations that ``find_loop_iterations`` returns are not part of any iteration. A capture without a
key op is one iteration.

DLProf divided all processes at the same times and included the whole capture: its first iteration begins at 0, and the
time after the last key op is one more iteration. The mode ``dlprof`` does the same.

An op instance is part of the iteration in which it ends, that is, for which ``start < end_ns <= end``. A GPU activity
is part of the iteration that launched it, that is, in which its API call starts. In DLProf's mode, it is part of the
iteration of its op instance.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Literal, NamedTuple

import polars as pl

from tracekit.core import intervals
from tracekit.core.intervals.axis import replace_with_null_unless
from tracekit.core.key_ops import choose_key_op, find_backward_op_row
from tracekit.core.loop_iterations import BOUNDS, KeyOp, LoopInstances, read_op_labels, read_range_names
from tracekit.core.ops.step_names import STAR, remove_number_at_end_expr, remove_star_expr
from tracekit.core.relations import ACTIVITIES
from tracekit.core.series import decode_categories_expr, map_categories_expr, match_categories_expr
from tracekit.core.trees import ELLIPSIS
from tracekit.errors import TracekitError, create_choices_hint

if TYPE_CHECKING:
    from tracekit.core.loop_iterations import KeyPosition
    from tracekit.core.ops import Ops
    from tracekit.core.tensor_cores import Mode

    Span = tuple[int | None, int | None]

_TWO = 2
_WINDOW = {"start_ns": "window_start_ns", "end_ns": "window_end_ns"}
_COMPARED, _DIGITS = 5000, 19
_MAX_NAME_CHARS = 1 << 10


class Iterations(NamedTuple):
    """The iterations of a capture.

    Attributes:
        frame: One row per iteration: ``iteration`` (from 0), ``start_ns``, ``end_ns``, ``aggregated``, ``name`` (the
            name of its range, or null if there is none), ``window_start_ns``, ``window_end_ns`` (see ``steps``; equal
            to the other times in DLProf's mode), ``is_warm_up``. An iteration that several processes run extends from
            the first start to the last end, so iterations may overlap.
        key: Name of the key op, either requested or chosen by default. It is "" if no name was requested and no op is
            suitable.
        has_key_op: Whether the capture has the key op. It is false if no op is suitable. In DLProf's mode, it is also
            false if no op has the requested name.
        by_process: The bounds of iterations in each process with key ops: ``process_id``, ``iteration``, ``start_ns``,
            ``end_ns``. In processes without key ops, the bounds of ``frame`` apply.
        key_ops: Row numbers in ``Ops.ops`` of the ops that delimit iterations. They all have the same label. There are
            none if start/end ranges delimit iterations.
        label: Last part of the name of the key op, such as ``step *``, or "" if there is none.
        mode: How the capture was divided.
    """

    frame: pl.DataFrame
    key: str
    has_key_op: bool
    by_process: pl.DataFrame
    key_ops: tuple[int, ...] = ()
    label: str = ""
    mode: Mode = "extended"

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
        """The union of the windows of aggregated iterations as disjoint, sorted intervals: ``start_ns``, ``end_ns``."""
        return intervals.merge_intervals(self.aggregated.select(**_WINDOW), by=[])

    @property
    def is_whole_capture(self) -> bool:
        """Whether the capture has no key op, so that all of it is one iteration."""
        return self.mode == "extended" and not self.has_key_op

    def find_instance_iterations(self, instances: pl.DataFrame) -> pl.Series:
        """Return the number of the aggregated iteration of each op instance, or null outside of these iterations.

        Args:
            instances: The columns ``process_id`` and ``end_ns``.
        """
        return self.select_aggregated(self._find_iterations(instances, "end_ns", "left"))

    def find_call_iterations(self, calls: pl.DataFrame) -> pl.Series:
        """Return the number of the iteration in which each API call starts, or null outside of all iterations.

        Args:
            calls: The columns ``process_id`` and ``start_ns``.
        """
        return self._find_iterations(calls, "start_ns", "right")

    def select_aggregated(self, numbers: pl.Series) -> pl.Series:
        """Replace the numbers of iterations that are not aggregated with null."""
        return replace_with_null_unless(numbers.is_in(self.aggregated["iteration"].implode()), numbers)

    def _find_iterations(self, rows: pl.DataFrame, column: str, side: Literal["left", "right"]) -> pl.Series:
        """Return the number of the iteration of each row, as ``_find_iterations_at_times`` does."""
        if self.is_whole_capture:
            return pl.zeros(rows.height, pl.Int64, eager=True)
        times = rows[column]
        number = _find_iterations_at_times(self.frame, times, side)
        for (process,), bounds in self.by_process.group_by("process_id"):
            in_process = rows["process_id"].eq_missing(pl.Series([process], dtype=pl.Int64))
            number = _find_iterations_at_times(bounds, times, side).zip_with(in_process, number)
        return number


def _find_iterations_at_times(bounds: pl.DataFrame, times: pl.Series, side: Literal["left", "right"]) -> pl.Series:
    """Return the number of the iteration that contains each of the given times.

    If several iterations overlap at a time, only the one that started last is considered. The result is null if no
    iteration has started, or if the one that started last has already ended.

    Args:
        bounds: The columns ``iteration``, ``start_ns``, ``end_ns``.
        times: Times in ns.
        side: ``right`` for the iteration with ``start <= time < end``, ``left`` for the one with
            ``start < time <= end``.
    """
    ordered = bounds.sort("start_ns", maintain_order=True)
    row = ordered["start_ns"].search_sorted(times, side=side).cast(pl.Int64) - 1
    row = replace_with_null_unless(row >= 0, row)
    ends = ordered["end_ns"].gather(row)
    is_inside = times < ends if side == "right" else times <= ends
    return ordered["iteration"].gather(replace_with_null_unless(is_inside, row))


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
    its = _divide_into_loop_iterations(ops, key_op) if mode == "extended" else _divide_as_dlprof(ops, key_op)
    first, last = _choose_aggregated_iterations(span, its.frame.height - 1, mode)
    is_recorded = span is None and "aggregated" in its.frame.columns
    frame = its.frame.with_columns(
        aggregated=pl.col("aggregated") if is_recorded else pl.col("iteration").is_between(first, last),
        window_start_ns="start_ns",
        window_end_ns="end_ns",
        is_warm_up=pl.lit(value=False),
    )
    return its._replace(frame=frame)


def _divide_as_dlprof(ops: Ops, name: str | None) -> Iterations:
    """Divide the whole capture into iterations without gaps, as DLProf does."""
    row = _find_key_op_row(ops, name)
    frame = _divide_into_contiguous_iterations(ops, row, "dlprof").with_columns(name=pl.lit(None, pl.String))
    key = name or ("" if row is None else str(ops.ops["op_name"][row]))
    rows = () if row is None else (row,)
    no_bounds = pl.DataFrame(schema=BOUNDS)
    return Iterations(frame, key, row is not None, no_bounds, key_ops=rows, label=key, mode="dlprof")


def _divide_into_loop_iterations(ops: Ops, name: str | None) -> Iterations:
    """Divide each process into the iterations of its loop. A capture without a key op is one iteration."""
    instances = LoopInstances.from_ops(ops)
    key_op = choose_key_op(ops, instances) if name is None else _find_named_key_op(ops, instances, name)
    if key_op is None:
        if (recorded := _read_recorded_iterations(ops)) is not None:
            return recorded
        frame = _divide_into_contiguous_iterations(ops, None, "extended").with_columns(name=pl.lit(None, pl.String))
        return Iterations(frame, "", has_key_op=False, by_process=pl.DataFrame(schema=BOUNDS))
    by_process = instances.find_iterations(key_op)
    frame = by_process.group_by("iteration").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("iteration")
    names = _read_iteration_names(ops, instances.find_keys(key_op))
    frame = frame.join(names, on="iteration", how="left", maintain_order="left")
    first, op_rows = key_op.rows[0], tuple(row for row in key_op.rows if row < instances.ops)
    labels = pl.concat([read_op_labels(ops), instances.range_labels]).filter(pl.col("op") == first)["label"]
    op_name = str(ops.ops["op_name"][first]) if op_rows else str(labels[0])
    label = labels[0] if len(labels) else op_name
    return Iterations(frame, name or op_name, has_key_op=True, by_process=by_process, key_ops=op_rows, label=label)


def _read_recorded_iterations(ops: Ops) -> Iterations | None:
    """Return the iterations that a profiler recorded, as DLProf does, or None if there are less than two.

    The column ``aggregated`` of the frame says which of them the profiler aggregated.
    """
    columns = ("start_ns", "end_ns", "name", "key_op", "is_aggregated")
    rows = ops.frames("iterations").select(columns).filter(pl.col("end_ns") > pl.col("start_ns")).collect()
    if rows.height < _TWO:
        return None
    label = next(iter(rows["key_op"].drop_nulls().cast(pl.String)), "iteration")
    is_aggregated = pl.col("is_aggregated") | ~pl.col("is_aggregated").any()
    frame = rows.sort(_TIMES, maintain_order=True).select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("iteration"),
        *_TIMES,
        pl.col("name").cast(pl.String),
        aggregated=is_aggregated,
    )
    return Iterations(frame, label, has_key_op=True, by_process=pl.DataFrame(schema=BOUNDS), label=label)


def _read_iteration_names(ops: Ops, keys: pl.DataFrame) -> pl.DataFrame:
    """Return the names that the program gave to iterations: ``iteration``, ``name``.

    If several iterations have the same name, their numbers are added in brackets, and long names are cut.

    Args:
        ops: The ops of the capture.
        keys: The instances that delimit iterations: ``process_id``, ``iteration``, ``range_id``.
    """
    first = keys.sort("process_id", maintain_order=True).unique("iteration", keep="first").sort("iteration")
    named = read_range_names(ops, first.select("iteration", "range_id"))
    if named["name"].n_unique() < named.height:
        short = map_categories_expr(pl.col("name"), lambda text: text.str.head(_MAX_NAME_CHARS))
        named = named.with_columns(name=pl.format("{} [{}]", decode_categories_expr(short), "iteration"))
    return named.select("iteration", pl.col("name").cast(pl.String))


def _find_named_key_op(ops: Ops, instances: LoopInstances, name: str) -> KeyOp:
    """Return the key op that a user named.

    The name is the id or the name of an op, or a label that may belong to several ops, with or without its number or
    the ``*`` in place of it, or the whole name of a range.

    Raises:
        TracekitError: No op has this id, name or label.
    """
    rows = ops.ops.select(pl.int_range(pl.len()).alias("op"), "op_id", "op_name")
    labels = pl.concat([read_op_labels(ops), instances.range_labels])
    label = pl.col("label")
    conditions = (
        (rows, pl.col("op_id") == name),
        (rows, pl.col("op_name") == name),
        (labels, (label == name) | (remove_star_expr(label) == name)),
        (labels, match_categories_expr(label, lambda s: remove_number_at_end_expr(s) == name.removesuffix(STAR))),
        (labels, pl.col("op").is_in(_find_ops_of_ranges(ops, instances, name))),
    )
    for frame, condition in conditions:
        matches = frame.filter(condition)["op"].to_list()
        if matches:
            return KeyOp(matches, _find_key_op_position(ops))
    raise TracekitError(
        f"the capture has no op {name!r}, which was requested as key op",
        hint=_create_op_names_hint(ops, instances, name),
    )


def _find_ops_of_ranges(ops: Ops, instances: LoopInstances, name: str) -> list[int]:
    """Return the numbers in ``LoopInstances.frame`` of the ops to which the ranges with a given name belong."""
    ranges = ops.frames("nvtx_ranges").filter(pl.col("name") == name).select("range_id").collect()
    rows = instances.frame.filter(pl.col("range_id").is_in(ranges["range_id"].implode()))
    return rows["op"].unique().sort().to_list()


def _find_key_op_position(ops: Ops) -> KeyPosition:
    """Return whether the key op is at the start or at the end of iterations in the dialect of the capture."""
    return "end" if ops.dialect.key_op == "backward" else "start"


def _create_op_names_hint(ops: Ops, instances: LoopInstances, name: str) -> str:
    """Return a hint that lists the names of ops and of start/end ranges.

    It begins with the name that is most similar to the given one.
    """
    rows = ops.ops.select(decode_categories_expr(pl.col("op_name")), "op_id")
    labels = instances.range_labels.select(
        op_name=pl.col("label").cast(pl.String), op_id=pl.col("label").cast(pl.String)
    )
    rows = pl.concat([rows, labels])
    names = rows.select(pl.concat_list("op_name", "op_id")).to_series().explode()
    compared = names.unique(maintain_order=True).head(_COMPARED).to_list()
    near = difflib.get_close_matches(name, compared, n=1)
    listed = [*near, *(n for n in rows["op_name"].unique(maintain_order=True) if n not in near)]
    return create_choices_hint("ops", listed, name)


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
    """Return the duration of the capture in ns. If it was not recorded, it is the end of the last GPU activity."""
    frames = ops.capture.frames
    values = frames("capture_info").filter(pl.col("name") == "duration_ns").select("value").collect()
    text = next((v for v in values["value"] if v), "")
    if text.isdecimal() and len(text) < _DIGITS:
        return max(int(text), 1)
    ends = pl.concat([frames(table).select("end_ns") for table in ACTIVITIES]).select(pl.col("end_ns").max())
    last = ends.collect().item()
    return max(last, 1) if isinstance(last, int) else 1


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
        matches = [rows.filter(pl.col(c) == key_op)["row"] for c in ("op_id", "op_name")]
        return next((int(m[0]) for m in matches if len(m)), None)
    if ops.dialect.key_op == "backward":
        return find_backward_op_row(ops)
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
        & (pl.col("direction") == "bprop").fill_null(value=False).not_()
        & ~pl.col("op_name").cat.ends_with(f"/{ELLIPSIS}")
    )
    by_process = ops.instances.group_by("op", "process_id").agg(pl.len(), threads=pl.col("thread_id").n_unique())
    by_op = by_process.group_by("op").agg(pl.col("len", "threads").max())
    repeated = by_op.filter(pl.col("len") > 1, pl.col("threads") == 1)["op"]
    candidates = candidates.with_columns(pl.col("row").cast(pl.Int64))
    candidates = candidates.filter(pl.col("row").is_in(repeated.implode())).join(totals, left_on="row", right_on="op")
    depth = decode_categories_expr(pl.col("op_name")).str.count_matches("/", literal=True)
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
