"""Report the time that programs lose while code is compiled for the GPU during the iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals
from tracekit.core.advise.iteration_activity import (
    DURATION,
    Finding,
    find_longest_interval,
    sum_durations,
)
from tracekit.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.advise.iteration_activity import IterationActivity

MIN_COMPILING = 1
"""The smallest percentage of the time of the iterations at which ``jit_compilation`` reports a finding."""
_OPERATION = pl.coalesce(pl.col("operation_type", "entry_type", "name").cast(pl.String), pl.lit("unknown operation"))


def jit_compilation(activity: IterationActivity) -> Iterator[Finding]:
    """Report the operations of the just-in-time compiler of CUDA during the aggregated iterations.

    The driver compiles code when a program loads code that was not compiled for the GPU on which it runs.
    """
    columns = ("start_ns", "end_ns", "operation_type", "entry_type", "name")
    recorded = activity.rollup.measures.ops.frames("jit_operations").select(columns).collect()
    rows = recorded.select("start_ns", "end_ns", operation=_OPERATION)
    rows = activity.clip_to_windows(rows.filter(DURATION > 0).sort("start_ns"))
    time = sum_durations(intervals.merge_intervals(rows, by=[]))
    if not rows.height or (percent := activity.compute_percentage(time)) < MIN_COMPILING:
        return
    by_type = rows.group_by("operation").agg(length=DURATION.sum(), count=pl.len())
    by_type = by_type.sort("length", "operation", descending=[True, False])
    named = ", ".join(f"{count} × {name} {format_duration(length)}" for name, length, count in by_type.iter_rows())
    evidence = f"{rows.height} operations: {named}; the iterations take {format_duration(activity.duration_ns)}"
    advice = (
        "Compile the code for this GPU in advance (nvcc -gencode, TORCH_CUDA_ARCH_LIST), keep the cache of the driver "
        "between runs (CUDA_CACHE_PATH, CUDA_CACHE_MAXSIZE), and exclude warm-up iterations from the measurement "
        "(--iterations A:B)."
    )
    problem = "The driver compiles code for the GPU within the iterations"
    figures = {
        "operations": rows.height,
        "operation_ns": sum_durations(rows),
        "compiling_ns": time,
        "length_ns": activity.duration_ns,
    }
    where = find_longest_interval(rows)
    yield Finding("jit_compilation", problem, evidence, advice, time, percent, rows.height, *where, figures)
