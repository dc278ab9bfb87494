"""Compare iterations across ranks: their spread, and the rank and phase that lost time.

A rank loses time in a phase of an iteration if it spends more time in the phase than the median of the other ranks. The
rank is the straggler of the iteration if the lost time is significant, if other ranks had to wait for this rank, and if
no other rank lost more. The lost time is significant if it exceeds a minimum share of an iteration and is much larger
than its variation from one iteration to the next. A rank can therefore be a straggler in all iterations or in only a
few.

Compare the iterations of several ranks, and find which rank lost time in which phase.

A phase of an iteration is a push/pop range of the thread that runs the loop. Two times of a phase are compared: the
time that its thread spends in it without waiting, and the GPU time of the kernels that are launched during it, on any
thread of the process. Neither contains time that a rank spends because of another rank. Waits for the GPU, calls of
NCCL and MPI, and NCCL kernels are excluded.

A rank loses time in a phase if it spends more time in the phase than the other ranks. The straggler of an iteration is
the rank that loses the most time.

Align the clocks of several traces, first by their origins in UTC, then by the ends of matched collectives.

Ends are compared, not starts: the ranks start a collective when they reach it, and wait for the last one. None of them
can complete it before all have contributed their data, so all complete it at almost the same time. This holds only for
collectives in which each rank needs data of all others, such as an all-reduce, but not for a broadcast, whose root may
complete it much earlier than the other ranks.

The offset of a clock is the median of the differences between ends. Its drift is the slope of Theil and Sen, computed
from pairs of collectives that are half of the capture apart. Both tolerate wrong values for more than a quarter of the
collectives. A drift is used only if it is much larger than the deviations, because every noisy capture has some slope.

Source: P. K. Sen, "Estimates of the Regression Coefficient Based on Kendall's Tau", 1968.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core import intervals
from tracekit.core.communication.calls import MPI, NCCL, SYNCHRONIZING, is_nccl_kernel_expr
from tracekit.core.communication.matching import MATCHED
from tracekit.core.relations import THREAD
from tracekit.core.trees import ELLIPSIS, remove_arguments_expr

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    from collections.abc import Callable

    from tracekit.core.iterations import Iterations

    Frames = Callable[[str], pl.LazyFrame]

REFERENCE, COLLECTIVES, UTC, NONE = "reference", "collectives", "UTC", "none"
MAX_RESIDUAL_NS = 1_000_000
"""Largest median deviation of the ends of common collectives after alignment.

If the deviation is larger, the collectives are assumed to be matched incorrectly, and are not used.
"""
MIN_PAIRS_FOR_DRIFT = 16
_SIGNIFICANT = 2
CLOCKS: dict[str, type[pl.DataType]] = {
    "rank": pl.Int64,
    "method": pl.String,
    "offset_ns": pl.Int64,
    "utc_offset_ns": pl.Int64,
    "drift_ppm": pl.Float64,
    "collective_count": pl.Int64,
    "residual_ns": pl.Int64,
    "max_residual_ns": pl.Int64,
}
"""Columns of ``align_clocks``."""
MAX_PHASE_LEVELS = 3
ITERATION_COLUMNS: dict[str, type[pl.DataType]] = {
    "process_id": pl.Int64,
    "iteration": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "is_warm_up": pl.Boolean,
    "is_aggregated": pl.Boolean,
}
PHASE_COLUMNS: dict[str, type[pl.DataType]] = {
    "process_id": pl.Int64,
    "iteration": pl.Int64,
    "path": pl.String,
    "cpu_ns": pl.Int64,
    "gpu_ns": pl.Int64,
}
_TIMES = ("start_ns", "end_ns")
_ITERATION = ("process_id", "iteration")
MIN_LOST_SHARE = 0.1
"""Smallest time that a straggler loses, as a share of the median duration of an iteration."""
MIN_DEVIATIONS = 5
"""Smallest time that a straggler loses, in standard deviations of the lost time of this rank in the same phase."""
MIN_DELAY_SHARE = 0.5
"""Smallest delay with which a straggler starts operations after all other ranks, as a share of its lost time."""
INNER_SHARE = 0.8
"""Smallest share of the lost time of a phase at which an inner range is reported instead of the phase."""
_NORMAL = 1.4826
"""Standard deviation of a normal distribution divided by its median absolute deviation."""
_PHASE = ("iteration", "path")
_FLAGS = ("is_warm_up", "is_aggregated")


class FittedLine(NamedTuple):
    """A line that approximates the differences between a clock and the reference clock.

    Attributes:
        offset_ns: The difference at time 0 in ns.
        drift: The slope of the line in ns per ns.
        residuals_ns: The absolute residual of each event in ns.
    """

    offset_ns: int
    drift: float
    residuals_ns: Numbers


def align_clocks(matched_calls: pl.DataFrame, origins: Mapping[int, int | None]) -> pl.DataFrame:
    """Return the conversion of the times of each trace to the clock of the first trace.

    A time ``t`` of a trace is ``t + offset_ns + drift_ppm * t / 1e6`` on the common clock, which is the clock of the
    first trace.

    Args:
        matched_calls: The result of ``match_calls``.
        origins: Maps the rank of each trace to its origin in UTC in ns, or to None if the origin was not recorded.

    Returns:
        One row per trace, in order of ``rank``, with the columns ``CLOCKS``. ``method`` is reference (the first trace),
        collectives, UTC (the trace has no collective in common with the aligned traces, or their ends contradict each
        other), or none (the trace cannot be aligned, and its offset is null). ``utc_offset_ns`` is the offset according
        to the origins alone. ``residual_ns`` and ``max_residual_ns`` are the median and the largest absolute deviation
        of the ends of ``collective_count`` collectives after alignment.
    """
    ranks = sorted(origins)
    if not ranks:
        return pl.DataFrame(schema=CLOCKS)
    reference = ranks[0]
    utc = {rank: _compute_origin_offset(origins[rank], origins[reference]) for rank in ranks}
    rows: dict[int, tuple[object, ...]] = {reference: (reference, REFERENCE, 0, 0, 0.0, 0, None, None)}
    remaining = _collect_collective_ends(matched_calls)
    common = remaining.filter(trace_rank=reference).select("collective_id", common="end_ns")
    remaining = remaining.filter(pl.col("trace_rank") != reference)
    while (pairs := _select_traces_to_align(remaining, common)).height:
        lines = []
        for (rank,), of_rank in pairs.group_by("trace_rank", maintain_order=True):
            fit = _fit_clock(of_rank)
            if fit is None:
                rows[rank] = (rank, UTC, utc[rank], utc[rank], 0.0, of_rank.height, None, None)
                continue
            offset, drift, residuals = fit
            lines.append((rank, offset, drift))
            middle, largest = int(np.median(residuals)), int(residuals.max())
            rows[rank] = (rank, COLLECTIVES, offset, utc[rank], 1e6 * drift, of_rank.height, middle, largest)
        fits = pl.DataFrame(lines, {"trace_rank": pl.Int64, "offset": pl.Int64, "drift": pl.Float64}, orient="row")
        aligned = remaining.join(fits, on="trace_rank", maintain_order="left")
        moved = pl.col("end_ns") + pl.col("offset") + (pl.col("end_ns") * pl.col("drift")).round().cast(pl.Int64)
        common = pl.concat([common, aligned.select("collective_id", common=moved)])
        common = common.unique("collective_id", keep="first", maintain_order=True)
        remaining = remaining.join(pairs.select("trace_rank").unique(), on="trace_rank", how="anti")
    for rank in ranks:
        known = rows.get(rank, (rank, UTC, utc[rank], utc[rank], 0.0, 0, None, None))
        rows[rank] = known if known[1] != UTC or utc[rank] is not None else (rank, NONE, *known[2:])
    return pl.DataFrame([rows[rank] for rank in ranks], schema=CLOCKS, orient="row")


def _compute_origin_offset(origin_ns: int | None, reference_ns: int | None) -> int | None:
    """Return the origin of a trace minus that of the reference, or None if one of them is unknown."""
    return None if origin_ns is None or reference_ns is None else origin_ns - reference_ns


def _collect_collective_ends(matched_calls: pl.DataFrame) -> pl.DataFrame:
    """Return, for each trace, the end of each complete collective that synchronizes all ranks.

    If a trace contains several ranks, the end is that of the last rank. Collectives that only one trace contains are
    omitted. Nonblocking calls are omitted, because a rank may wait for them long after they are complete.
    """
    rows = matched_calls.filter(pl.col("kind").is_in(SYNCHRONIZING), pl.col("status") == MATCHED)
    is_exact = pl.when(pl.col("library") == NCCL).then(pl.col("kernel_id").is_not_null())
    rows = rows.filter(is_exact.otherwise(pl.col("end_ns") == pl.col("call_end_ns"))).drop_nulls("end_ns")
    rows = rows.filter(pl.col("trace_rank").n_unique().over("collective_id") > 1)
    of = ["trace_rank", "collective_id"]
    return rows.group_by(of).agg(pl.col("end_ns").max()).sort(of)


def _select_traces_to_align(unaligned_ends: pl.DataFrame, aligned_ends: pl.DataFrame) -> pl.DataFrame:
    """Select the traces to align next, and return the ends of the collectives that they share with aligned traces.

    A trace is selected if it shares at least half as many collectives as the trace that shares the most. Other traces
    are aligned later, because they may share more collectives with the traces that are aligned now.

    Args:
        unaligned_ends: The ends of the collectives of the traces that are not yet aligned, on their own clocks.
        aligned_ends: The ends of the collectives of the aligned traces on the common clock, one row per collective.
    """
    pairs = unaligned_ends.join(aligned_ends, on="collective_id")
    count = pl.len().over("trace_rank")
    pairs = pairs.with_columns(_count=count).filter(2 * pl.col("_count") >= pl.col("_count").max())
    return pairs.sort("trace_rank", "end_ns", "collective_id")


def _fit_clock(end_pairs: pl.DataFrame) -> FittedLine | None:
    """Return the result of ``fit_robust_line`` for a clock, or None if the median residual exceeds the limit."""
    times, others = end_pairs["end_ns"].to_numpy(), end_pairs["common"].to_numpy()
    line = fit_robust_line(times, others - times)
    return None if np.median(line.residuals_ns) > MAX_RESIDUAL_NS else line


def fit_robust_line(times: Numbers, differences: Numbers) -> FittedLine:
    """Fit a line to the differences between a clock and the reference clock.

    Args:
        times: Times of one or more events on the clock in ns, in ascending order.
        differences: Time of each event on the reference clock minus its time on the clock, in ns.
    """
    base = int(differences[0])
    relative = differences - base
    level = round(float(np.median(relative)))
    constant = np.abs(relative - level)
    half = len(times) // 2
    spans = times[half:] - times[: len(times) - half]
    pairs = (spans > 0).nonzero()[0]
    if len(times) < MIN_PAIRS_FOR_DRIFT or not len(pairs):
        return FittedLine(base + level, 0.0, constant)
    drift = float(np.median((relative[half:] - relative[: len(times) - half])[pairs] / spans[pairs]))
    if abs(drift) * float(times[-1] - times[0]) <= _SIGNIFICANT * float(np.median(constant)):
        return FittedLine(base + level, 0.0, constant)
    slope = np.round(drift * times).astype(np.int64)
    offset = round(float(np.median(relative - slope)))
    return FittedLine(base + offset, drift, np.abs(relative - slope - offset))


def convert_to_common_clock(
    rows: pl.DataFrame, clocks: pl.DataFrame, time_columns: Sequence[str], *, rank_column: str = "rank"
) -> pl.DataFrame:
    """Convert times of several traces to the common clock.

    Args:
        rows: Rows of several traces.
        clocks: The result of ``align_clocks``.
        time_columns: The columns with times. Times of traces that cannot be aligned become null.
        rank_column: The column with the rank of the trace.
    """
    facts = clocks.select(pl.col("rank").alias(rank_column), _offset="offset_ns", _drift=pl.col("drift_ppm") / 1e6)
    joined = rows.join(facts, on=rank_column, how="left", maintain_order="left")
    drifts = [
        pl.when(pl.col("_drift") == 0).then(0).otherwise((pl.col(c) * pl.col("_drift")).round()) for c in time_columns
    ]
    times = [pl.col(c) + pl.col("_offset") + d.cast(pl.Int64) for c, d in zip(time_columns, drifts, strict=True)]
    return joined.with_columns(times).drop("_offset", "_drift")


def read_iterations_and_phases(frames: Frames, iterations_of_trace: Iterations) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the iterations of the processes of one trace, and the times of their phases.

    Args:
        frames: Function that returns a table of a correlated trace, given the name of the table.
        iterations_of_trace: The iterations of the trace.

    Returns:
        Two tables. The first contains the iterations: ``process_id``, ``iteration``, ``start_ns``, ``end_ns``,
        ``is_warm_up`` and ``is_aggregated`` (false if the iteration is warm-up that is left out). The second has one
        row per process, iteration and path of ranges: ``path``, ``cpu_ns`` (the time in these ranges without waits) and
        ``gpu_ns`` (the time of the kernels that were launched during them). Paths are relative to the range of the
        iteration, whose own row has the path "". A range nested deeper than ``MAX_PHASE_LEVELS`` has no row.
    """
    flags = iterations_of_trace.frame.select("iteration", "is_warm_up", is_aggregated="aggregated")
    bounds = iterations_of_trace.by_process.drop_nulls("process_id")
    iterations = bounds.join(flags, on="iteration", maintain_order="left").select(*ITERATION_COLUMNS)
    if not iterations.height:
        return iterations, pl.DataFrame(schema=PHASE_COLUMNS)
    ranges = _read_ranges_in_iterations(frames, iterations)
    waits = _find_waiting_times(frames)
    launches = _read_kernel_launches(frames)
    phases = [pl.DataFrame(schema=PHASE_COLUMNS)]
    for (process, thread), of_thread in ranges.group_by(THREAD, maintain_order=True):
        waiting = waits.filter(process_id=process, thread_id=thread)
        launched = launches.filter(process_id=process)
        starts, ends = of_thread["start_ns"].to_numpy(), of_thread["end_ns"].to_numpy()
        cpu = intervals.CoveredTime(waiting).compute_covered_time_between(starts, ends)
        launched_before = functools.partial(_sum_time_of_kernels_launched_before, launched)
        gpu = launched_before(ends) - launched_before(starts)
        own = of_thread["end_ns"] - of_thread["start_ns"] - pl.Series(cpu)
        phases.append(of_thread.select(*_ITERATION, "path", cpu_ns=own, gpu_ns=pl.Series(gpu)))
    totals = pl.concat(phases).group_by(*_ITERATION, "path", maintain_order=True)
    return iterations, totals.agg(pl.col("cpu_ns", "gpu_ns").sum())


def _read_ranges_in_iterations(frames: Frames, iterations: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges within iterations on the thread of the loop, and the iterations themselves.

    The columns are ``process_id``, ``thread_id``, ``iteration``, ``start_ns``, ``end_ns`` and ``path``, which is
    relative to the range of the iteration, and "" for an iteration itself. The thread of the loop is the one whose
    ranges are open for the longest time.
    """
    columns = ("range_id", *THREAD, *_TIMES, "depth", "path")
    is_library = pl.col("domain").cast(pl.String).is_in([NCCL, MPI]).fill_null(value=False)
    is_range = (pl.col("kind").cast(pl.String) == "push_pop") & ~is_library
    ranges = frames("nvtx_ranges").filter(is_range).select(columns).collect().drop_nulls(["process_id", "end_ns"])
    ranges = select_rows_in_iterations(ranges, iterations, key_column="process_id")
    ranges = ranges.filter(pl.col("end_ns") <= pl.col("_end"))
    outermost = pl.col("depth") == pl.col("depth").min().over(*_ITERATION, "thread_id")
    open_for = (pl.col("end_ns") - pl.col("start_ns")).filter(outermost).sum().over(THREAD)
    ranges = ranges.with_columns(_open=open_for).filter(pl.col("_open") == pl.col("_open").max().over("process_id"))
    ranges = ranges.filter(pl.col("thread_id") == pl.col("thread_id").min().over("process_id"))
    ranges = ranges.sort(*_ITERATION, "start_ns", pl.col("end_ns") * -1, "range_id")
    threads = ranges.select(THREAD).unique("process_id")
    first = pl.int_range(pl.len()).over(_ITERATION) == 0
    is_last = pl.col("end_ns") == pl.col("end_ns").max().over(_ITERATION)
    ranges = ranges.with_columns(_loop=first & is_last & (pl.col("start_ns") == pl.col("_start")))
    level = pl.col("depth") - pl.col("depth").filter("_loop").first().over(_ITERATION).fill_null(0)
    ranges = ranges.filter(level <= MAX_PHASE_LEVELS)
    ranges = ranges.with_columns(loop=pl.col("path").filter("_loop").first().over(_ITERATION)).filter(~pl.col("_loop"))
    phases = ranges.select(*THREAD, "iteration", *_TIMES, path=_compute_relative_paths(ranges.select("loop", "path")))
    whole = iterations.join(threads, on="process_id", how="left", maintain_order="left")
    whole = whole.drop_nulls("thread_id").select(*THREAD, "iteration", *_TIMES, path=pl.lit(""))
    return pl.concat([whole, phases])


def _compute_relative_paths(paths: pl.DataFrame) -> pl.Series:
    """Return the path of each range relative to the range of its iteration, without numbers.

    The start of a shortened path is not the path of the iteration. Its relative path begins with the ellipsis.

    Args:
        paths: The paths of the range (``path``) and of its iteration (``loop``, null if the iteration is no range), as
            Categorical.
    """
    distinct = paths.unique()
    path, prefix = pl.col("path").cast(pl.String), (pl.col("loop").cast(pl.String) + "/").fill_null("")
    inside = path.cast(pl.Binary).bin.slice(prefix.str.len_bytes().cast(pl.Int64)).cast(pl.String, strict=False)
    shortened = pl.coalesce(path.str.extract(f"({ELLIPSIS}[^{ELLIPSIS}]*)$"), path)
    relative = remove_arguments_expr(pl.when(path.str.starts_with(prefix)).then(inside).otherwise(shortened))
    return paths.join(
        distinct.with_columns(relative=relative),
        on=["loop", "path"],
        how="left",
        maintain_order="left",
        nulls_equal=True,
    )["relative"]


def select_rows_in_iterations(rows: pl.DataFrame, iterations: pl.DataFrame, *, key_column: str) -> pl.DataFrame:
    """Return the rows that start in an iteration, with ``iteration`` and its bounds ``_start`` and ``_end``.

    Iterations with the same value in the column ``key_column`` must not overlap. Unlike
    ``Iterations.find_call_iterations``, this function divides many ranks in one pass, and rows of ranks without
    iterations are in none.
    """
    bounds = iterations.select(key_column, "iteration", _start="start_ns", _end="end_ns").sort("_start")
    joined = rows.sort("start_ns").join_asof(
        bounds, left_on="start_ns", right_on="_start", by=key_column, strategy="backward", check_sortedness=False
    )
    return joined.filter(pl.col("start_ns") < pl.col("_end"))


def _find_waiting_times(frames: Frames) -> pl.DataFrame:
    """Return the disjoint intervals in which each thread waits for the GPU or for other ranks."""
    name = pl.col("name").cast(pl.String)
    is_wait = name.str.contains("Synchronize") | (name.str.contains("emcpy") & ~name.str.contains("Async"))
    ranges = frames("nvtx_ranges").filter(pl.col("domain").cast(pl.String) == NCCL)
    tables = [frames("api_calls").filter(is_wait), ranges, frames("mpi_calls")]
    waits = pl.concat([t.select(*THREAD, *_TIMES) for t in tables]).collect()
    return intervals.merge_intervals(waits, by=THREAD)


def _read_kernel_launches(frames: Frames) -> pl.DataFrame:
    """Return the process, the launch time and the duration of all kernels except NCCL kernels."""
    kernels = frames("kernels").filter(~is_nccl_kernel_expr().fill_null(value=False))
    duration = pl.col("end_ns") - pl.col("start_ns")
    launches = kernels.select("process_id", start_ns=pl.coalesce("api_start_ns", "start_ns"), duration=duration)
    return launches.collect().sort("start_ns")


def _sum_time_of_kernels_launched_before(launches: pl.DataFrame, times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the total duration in ns of the kernels that were launched before each of the given times."""
    total = np.concatenate([[0], launches["duration"].cum_sum().to_numpy()])
    return total[np.searchsorted(launches["start_ns"].to_numpy(), times, side="left")]


def find_iteration_shifts(iterations: pl.DataFrame, operation_times: pl.DataFrame) -> dict[int, int]:
    """Return the number to add to the iteration numbers of each rank to make them agree across ranks.

    Captures may begin in different iterations. Iterations of two ranks correspond if they contain the same operations.

    Args:
        iterations: ``rank``, ``iteration``, ``start_ns``, ``end_ns`` on the common clock.
        operation_times: The result of ``compute_operation_times_by_rank``.
    """
    numbered = select_operations_in_iterations(iterations, operation_times).select("operation_id", "rank", "iteration")
    order = iterations["rank"].unique().sort().to_list()
    shifts = dict.fromkeys(order, 0)
    if order:
        reference = numbered.filter(rank=order[0]).select("operation_id", first="iteration")
        shared = numbered.filter(pl.col("rank") != order[0]).join(reference, on="operation_id")
        middle = (pl.col("first") - pl.col("iteration")).median().round().cast(pl.Int64)
        shifts |= dict(shared.group_by("rank").agg(middle).iter_rows())
    return shifts


def select_operations_in_iterations(iterations: pl.DataFrame, operation_times: pl.DataFrame) -> pl.DataFrame:
    """Return the operations that each rank started during an iteration, with the number of the iteration.

    Args:
        iterations: ``rank``, ``iteration``, ``start_ns``, ``end_ns`` on the common clock.
        operation_times: The result of ``compute_operation_times_by_rank``.

    Returns:
        One row per operation and rank: ``operation_id``, ``rank``, ``delay_ns``, ``wait_ns``, ``start_ns`` (start of
        the call), and the columns that ``select_rows_in_iterations`` adds.
    """
    calls = operation_times.select("operation_id", "rank", "delay_ns", "wait_ns", start_ns="call_start_ns").drop_nulls(
        "start_ns"
    )
    return select_rows_in_iterations(calls, iterations, key_column="rank")


def compute_lost_times(phases: pl.DataFrame) -> pl.DataFrame:
    """Return how much longer each rank takes than the other ranks in each phase of each iteration.

    Args:
        phases: ``rank``, ``iteration``, ``path``, ``cpu_ns``, ``gpu_ns``. A missing phase of a rank counts as 0 ns.

    Returns:
        The rows of ``phases`` with ``cpu_lost_ns`` and ``gpu_lost_ns``: the time of the rank minus the median time of
        the other ranks in the same phase and iteration. They are null if there are no other ranks.
    """
    present = pl.col("rank").n_unique().over("iteration").cast(pl.Int64)
    rows = phases.with_columns(_ranks=present)
    for column in ("cpu", "gpu"):
        rows = rows.sort(*_PHASE, f"{column}_ns")
        position = pl.int_range(pl.len()).over(_PHASE) + pl.col("_ranks") - pl.len().over(_PHASE).cast(pl.Int64)
        rows = rows.with_columns(_position=position, _row=pl.int_range(pl.len()))
        rows = rows.with_columns(
            (pl.col(f"{column}_ns") - _compute_medians_of_other_ranks(rows, f"{column}_ns")).alias(f"{column}_lost_ns")
        )
    return rows.drop("_ranks", "_position", "_row")


def _compute_medians_of_other_ranks(rows: pl.DataFrame, column: str) -> pl.Series:
    """Return, for each row, the median of a column over all ranks except the rank of the row.

    The rows must be sorted by phase and value. Ranks without the phase have the value 0. The column ``_position`` is
    the position of a row among the values of all ranks.
    """
    values, position, number, row = (rows[c].to_numpy() for c in (column, "_position", "_ranks", "_row"))
    others = number - 1
    middle = []
    for index in ((others - 1) // 2, others // 2):
        target = np.clip(index + (position <= index), 0, None)
        at = row - position + target
        first_present = row - position + (number - rows.select(pl.len().over(_PHASE)).to_series().to_numpy())
        middle.append(np.where(at >= first_present, values[np.clip(at, 0, len(values) - 1)], 0))
    median = pl.Series((middle[0] + middle[1]) // 2, dtype=pl.Int64)
    return (
        pl.DataFrame({"median": median, "others": others})
        .select(pl.when(pl.col("others") > 0).then("median"))
        .to_series()
    )


def find_stragglers(iterations: pl.DataFrame, phases: pl.DataFrame, operation_times: pl.DataFrame) -> pl.DataFrame:
    """Return the straggler of each iteration that has one.

    Args:
        iterations: ``rank``, ``iteration``, ``start_ns``, ``end_ns`` on the common clock.
        phases: ``rank``, ``iteration``, ``path``, ``cpu_ns``, ``gpu_ns``.
        operation_times: The result of ``compute_operation_times_by_rank``. In iterations without operations, it is
            unknown whether other ranks waited, so only the lost time is considered.

    Returns:
        One row per iteration with a straggler: ``iteration``, ``straggler`` (its rank), ``phase`` (the path),
        ``lost_ns``, ``lost_on`` (CPU or GPU), ``delay_ns`` (by how much the straggler started operations of this
        iteration later than all other ranks, or null if the iteration has no operations).
    """
    typical = iterations.select((pl.col("end_ns") - pl.col("start_ns")).median()).item() or 0
    lost = pl.max_horizontal("cpu_lost_ns", "gpu_lost_ns")
    rows = (
        compute_lost_times(phases)
        .with_columns(lost_ns=lost, lost_on=_processor_with_larger_loss_expr())
        .drop_nulls("lost_ns")
    )
    of = ["rank", "path"]
    deviation = (pl.col("lost_ns") - pl.col("lost_ns").median().over(of)).abs().median().over(of) * _NORMAL
    delays = (
        select_operations_in_iterations(iterations, operation_times)
        .group_by("rank", "iteration")
        .agg(pl.col("delay_ns").sum())
    )
    rows = rows.with_columns(_deviation=deviation).join(
        delays, on=["rank", "iteration"], how="left", maintain_order="left"
    )
    is_large = (pl.col("lost_ns") >= MIN_LOST_SHARE * typical) & (pl.col("lost_ns") > 0)
    is_cause = (pl.col("delay_ns") >= MIN_DELAY_SHARE * pl.col("lost_ns")).fill_null(value=True)
    significant = rows.filter(is_large & is_cause, pl.col("lost_ns") > MIN_DEVIATIONS * pl.col("_deviation"))
    order = [pl.col("path") == "", pl.col("lost_ns") * -1, pl.col("rank"), pl.col("path")]
    worst = significant.sort("iteration", *order).unique("iteration", keep="first", maintain_order=True)
    outer = worst.select("iteration", "rank", _path="path", _lost="lost_ns")
    inner = significant.join(outer, on=["iteration", "rank"])
    prefix = pl.col("_path") + "/"
    is_inner = (pl.col("path") == pl.col("_path")) | (pl.col("path").str.starts_with(prefix) & (pl.col("_path") != ""))
    inner = inner.filter(is_inner & (pl.col("lost_ns") >= INNER_SHARE * pl.col("_lost")))
    depth = pl.col("path").str.len_bytes()
    named = inner.sort("iteration", depth, pl.col("path"), descending=[False, True, False])
    named = named.unique("iteration", keep="first", maintain_order=True)
    return named.select("iteration", "lost_ns", "lost_on", "delay_ns", straggler="rank", phase="path").select(
        *("iteration", "straggler", "phase", "lost_ns", "lost_on", "delay_ns")
    )


def _processor_with_larger_loss_expr() -> pl.Expr:
    """Return an expression for the processor on which a rank lost more time in a phase: "CPU" or "GPU"."""
    return pl.when(pl.col("gpu_lost_ns") > pl.col("cpu_lost_ns")).then(pl.lit("GPU")).otherwise(pl.lit("CPU"))


def compute_iteration_spread(
    iterations: pl.DataFrame, phases: pl.DataFrame, operation_times: pl.DataFrame
) -> pl.DataFrame:
    """Return the differences between the ranks in each iteration, and the straggler of the iteration.

    Args:
        iterations: ``rank``, ``iteration``, ``start_ns``, ``end_ns`` on the common clock, ``is_warm_up`` and
            ``is_aggregated``.
        phases: ``rank``, ``iteration``, ``path``, ``cpu_ns``, ``gpu_ns``.
        operation_times: The result of ``compute_operation_times_by_rank``.

    Returns:
        One row per iteration: ``iteration``, ``rank_count``, ``start_ns`` (of the first rank), ``end_ns`` (of the last
        rank), ``start_spread_ns`` (from the first to the last start), ``min_ns``, ``median_ns`` and ``max_ns`` (of the
        durations), ``spread_ns`` (longest minus shortest duration), ``slowest_rank``, ``wait_ns`` (total time for
        which ranks waited in operations, or null without operations), the columns of ``find_stragglers``, which are
        null in iterations without a straggler, ``is_warm_up`` and ``is_aggregated``. Iterations that are not aggregated
        have no straggler, and do not count for the stragglers of other iterations. ``slowest_rank`` is the rank with
        the longest duration without the time for which it waited in operations, because a rank that waits for a slow
        rank takes as long as the slow one.
    """
    duration = pl.col("end_ns") - pl.col("start_ns")
    operations = select_operations_in_iterations(iterations, operation_times)
    waits = operations.group_by("iteration").agg(pl.col("wait_ns").sum())
    waits_by_rank = operations.group_by("iteration", "rank").agg(_waiting=pl.col("wait_ns").sum())
    timed = iterations.with_columns(_duration=duration).join(waits_by_rank, on=["iteration", "rank"], how="left")
    rows = timed.sort("iteration", "rank").group_by("iteration", maintain_order=True)
    length = pl.col("_duration")
    own = length - pl.col("_waiting").fill_null(0)
    spread = rows.agg(
        rank_count=pl.len().cast(pl.Int64),
        start_ns=pl.col("start_ns").min(),
        end_ns=pl.col("end_ns").max(),
        start_spread_ns=pl.col("start_ns").max() - pl.col("start_ns").min(),
        min_ns=length.min(),
        median_ns=length.median(),
        max_ns=length.max(),
        spread_ns=length.max() - length.min(),
        slowest_rank=pl.col("rank").get(own.arg_max()),
        is_warm_up=pl.col("is_warm_up").any(),
        is_aggregated=pl.col("is_aggregated").all(),
    )
    spread = spread.join(waits, on="iteration", how="left", maintain_order="left")
    steady = iterations.filter("is_aggregated")
    stragglers = find_stragglers(steady, phases.join(steady, on="iteration", how="semi"), operation_times)
    joined: pl.DataFrame = spread.join(stragglers, on="iteration", how="left", maintain_order="left")
    return joined.select(pl.exclude(_FLAGS), *_FLAGS)


def summarize_stragglers(spread: pl.DataFrame) -> pl.DataFrame:
    """Return the phases in which ranks were stragglers, with the time that the ranks lost in them.

    Args:
        spread: The result of ``compute_iteration_spread``.

    Returns:
        One row per rank and phase, largest loss first: ``straggler``, ``phase``, ``lost_on``, ``iteration_count``,
        ``lost_ns`` (sum), ``median_lost_ns``, ``delay_ns`` (sum, or null without operations), ``iterations`` (their
        numbers, joined by ", ").
    """
    by = ["straggler", "phase", "lost_on"]
    rows = spread.drop_nulls("straggler").group_by(by, maintain_order=True)
    delay = pl.when(pl.col("delay_ns").is_not_null().any()).then(pl.col("delay_ns").sum())
    summary = rows.agg(
        iteration_count=pl.len().cast(pl.Int64),
        lost_ns=pl.col("lost_ns").sum(),
        median_lost_ns=pl.col("lost_ns").median(),
        delay_ns=delay,
        iterations=pl.col("iteration").cast(pl.String).str.join(", "),
    )
    return summary.sort("lost_ns", descending=True, maintain_order=True)
