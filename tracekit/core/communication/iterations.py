"""Compare the iterations of several ranks, and find which rank lost time in which phase.

A phase of an iteration is a push/pop range of the thread that runs the loop. Two times of a phase are compared: the
time that its thread spends in it without waiting, and the GPU time of the kernels that are launched during it, on any
thread of the process. Neither contains time that a rank spends because of another rank. Waits for the GPU, calls of
NCCL and MPI, and NCCL kernels are excluded.

A rank loses time in a phase if it spends more time in the phase than the other ranks. The straggler of an iteration is
the rank that loses the most time.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core import intervals
from tracekit.core.communication.calls import is_nccl_kernel_expr
from tracekit.core.communication.coverage import compute_covered_time_before
from tracekit.core.communication.kinds import MPI, NCCL
from tracekit.core.trees import ELLIPSIS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tracekit.core.iterations import Iterations

    Frames = Callable[[str], pl.LazyFrame]

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
_NUMBERS = r", (?:op_id|seq|sizes|input_op_ids) = [^/]*"
_TIMES = ("start_ns", "end_ns")
_THREAD = ("process_id", "thread_id")
_ITERATION = ("process_id", "iteration")


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
    for (process, thread), of_thread in ranges.group_by(_THREAD, maintain_order=True):
        waiting = waits.filter(process_id=process, thread_id=thread)
        launched = launches.filter(process_id=process)
        cpu = _compute_increases_during(of_thread, functools.partial(compute_covered_time_before, waiting))
        gpu = _compute_increases_during(of_thread, functools.partial(_sum_time_of_kernels_launched_before, launched))
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
    columns = ("range_id", *_THREAD, *_TIMES, "depth", "path")
    is_library = pl.col("domain").cast(pl.String).is_in([NCCL, MPI]).fill_null(value=False)
    is_range = (pl.col("kind").cast(pl.String) == "push_pop") & ~is_library
    ranges = frames("nvtx_ranges").filter(is_range).select(columns).collect().drop_nulls(["process_id", "end_ns"])
    ranges = select_rows_in_iterations(ranges, iterations, key_column="process_id")
    ranges = ranges.filter(pl.col("end_ns") <= pl.col("_end"))
    outermost = pl.col("depth") == pl.col("depth").min().over(*_ITERATION, "thread_id")
    open_for = (pl.col("end_ns") - pl.col("start_ns")).filter(outermost).sum().over(_THREAD)
    ranges = ranges.with_columns(_open=open_for).filter(pl.col("_open") == pl.col("_open").max().over("process_id"))
    ranges = ranges.filter(pl.col("thread_id") == pl.col("thread_id").min().over("process_id"))
    ranges = ranges.sort(*_ITERATION, "start_ns", pl.col("end_ns") * -1, "range_id")
    threads = ranges.select(_THREAD).unique("process_id")
    first = pl.int_range(pl.len()).over(_ITERATION) == 0
    is_last = pl.col("end_ns") == pl.col("end_ns").max().over(_ITERATION)
    ranges = ranges.with_columns(_loop=first & is_last & (pl.col("start_ns") == pl.col("_start")))
    level = pl.col("depth") - pl.col("depth").filter("_loop").first().over(_ITERATION).fill_null(0)
    ranges = ranges.filter(level <= MAX_PHASE_LEVELS)
    ranges = ranges.with_columns(loop=pl.col("path").filter("_loop").first().over(_ITERATION)).filter(~pl.col("_loop"))
    phases = ranges.select(*_THREAD, "iteration", *_TIMES, path=_compute_relative_paths(ranges.select("loop", "path")))
    whole = iterations.join(threads, on="process_id", how="left", maintain_order="left")
    whole = whole.drop_nulls("thread_id").select(*_THREAD, "iteration", *_TIMES, path=pl.lit(""))
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
    relative = pl.when(path.str.starts_with(prefix)).then(inside).otherwise(shortened).str.replace_all(_NUMBERS, "")
    return paths.join(
        distinct.with_columns(relative=relative),
        on=["loop", "path"],
        how="left",
        maintain_order="left",
        nulls_equal=True,
    )["relative"]


def select_rows_in_iterations(rows: pl.DataFrame, iterations: pl.DataFrame, *, key_column: str) -> pl.DataFrame:
    """Return the rows that start in an iteration, with ``iteration`` and its bounds ``_start`` and ``_end``.

    Iterations with the same value in the column ``key_column`` must not overlap.
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
    waits = pl.concat([t.select(*_THREAD, *_TIMES) for t in tables]).collect()
    return intervals.merge_intervals(waits, by=_THREAD)


def _read_kernel_launches(frames: Frames) -> pl.DataFrame:
    """Return the process, the launch time and the duration of all kernels except NCCL kernels."""
    kernels = frames("kernels").filter(~is_nccl_kernel_expr().fill_null(value=False))
    duration = pl.col("end_ns") - pl.col("start_ns")
    launches = kernels.select("process_id", start_ns=pl.coalesce("api_start_ns", "start_ns"), duration=duration)
    return launches.collect().sort("start_ns")


def _sum_time_of_kernels_launched_before(launches: pl.DataFrame, times: pl.Series) -> NDArray[np.int64]:
    """Return the total duration in ns of the kernels that were launched before each of the given times."""
    total = np.concatenate([[0], launches["duration"].cum_sum().to_numpy()])
    return total[np.searchsorted(launches["start_ns"].to_numpy(), times.to_numpy(), side="left")]


def _compute_increases_during(
    intervals: pl.DataFrame, compute_total_before: Callable[[pl.Series], NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Return by how much a running total increases during each interval.

    Args:
        intervals: The columns ``start_ns`` and ``end_ns``.
        compute_total_before: Function that returns the running total at each of the given times.
    """
    return compute_total_before(intervals["end_ns"]) - compute_total_before(intervals["start_ns"])
