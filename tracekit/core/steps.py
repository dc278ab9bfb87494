"""Find the windows of steps, their warm-up, and the share of the GPU work that lies in them.

The *window* of an iteration is the time in which its work is done on the CPU and the GPU. If the CPU runs ahead of the
GPU, the GPU still works on an iteration when the CPU has begun the next one. Therefore, a window begins when the CPU
has begun the iteration and the GPU has ended all earlier ones, and ends when both have ended the iteration. Windows
contain all GPU activities that their iterations launched, except those that overtake the activities of earlier
iterations on another stream.

The *warm-up* consists of the first iterations if they take much longer than the others, because modules are loaded,
functions are called for the first time, or algorithms are tuned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.ops.calls import MODULE_LOAD_PATTERN, ON_GPU, TABLES

if TYPE_CHECKING:
    from tracekit.core.correlate import Frames
    from tracekit.core.iterations import Iterations
    from tracekit.core.ops import Ops
    from tracekit.core.rollup import Rollup

MIN_COVERAGE = 0.9
"""Share of the kernels or of the GPU time below which a warning says that steps miss some of the work."""

MIN_STEPS = 3
"""Smallest number of iterations among which a warm-up can be detected."""

_SLOWDOWN, _SLOWDOWN_WITH_LOADING = 2.0, 1.2
PERCENT = 100


def add_windows(iterations: Iterations, ops: Ops) -> Iterations:
    """Add the window of each iteration, as the columns ``window_start_ns`` and ``window_end_ns``.

    The windows are found for each process. The window of an iteration extends from the first start to the last end of
    its windows in all processes. The window of a capture that is one iteration begins with its first op or GPU
    activity.
    """
    on_gpu = ops.select_calls("kind").to_series().is_in(ON_GPU).arg_true()
    calls = ops.select_calls("process_id", "start_ns", "gpu_start_ns", "gpu_end_ns", rows=on_gpu)
    launched = calls.with_columns(iteration=iterations.find_call_iterations(calls)).drop_nulls("iteration")
    key = ["process_id", "iteration"]
    gpu_ends = launched.group_by(key).agg(gpu_end=pl.col("gpu_end_ns").max())
    by_process = _list_bounds_by_process(iterations, launched).sort(key)
    by_process = by_process.join(gpu_ends, on=key, how="left", maintain_order="left", nulls_equal=True)
    done = pl.col("gpu_end").cum_max().forward_fill().over("process_id")
    windows = by_process.with_columns(
        window_start_ns=pl.max_horizontal("start_ns", done.shift(1).over("process_id")),
        window_end_ns=pl.max_horizontal("end_ns", done),
    )
    merged = windows.group_by("iteration").agg(pl.col("window_start_ns").min(), pl.col("window_end_ns").max())
    frame = iterations.frame.drop(_WINDOW).join(merged, on="iteration", how="left", maintain_order="left")
    if iterations.is_whole_capture:
        firsts = [ops.instances["start_ns"].min(), launched["gpu_start_ns"].min()]
        first = min((f for f in firsts if isinstance(f, int)), default=0)
        frame = frame.with_columns(window_start_ns=pl.lit(first, pl.Int64))
    return iterations._replace(frame=frame)


_WINDOW = ("window_start_ns", "window_end_ns")


def _list_bounds_by_process(iterations: Iterations, launched: pl.DataFrame) -> pl.DataFrame:
    """Return the bounds of iterations in each process: ``process_id``, ``iteration``, ``start_ns``, ``end_ns``.

    In processes without key ops, the bounds are those of all processes together.

    Args:
        iterations: The iterations of the capture.
        launched: The launches of GPU activities, with their ``process_id``.
    """
    common = iterations.frame.select("iteration", "start_ns", "end_ns")
    own = iterations.by_process
    others = launched.select("process_id").unique().join(own, on="process_id", how="anti", nulls_equal=True)
    if not own.height and not others.height:
        others = pl.DataFrame({"process_id": [None]}, schema={"process_id": pl.Int64})
    bounds = others.join(common, how="cross").select(own.columns)
    return pl.concat([own, bounds.cast(own.schema)])


def mark_warm_up(iterations: Iterations, frames: Frames) -> Iterations:
    """Set the column ``is_warm_up`` of iterations that have windows.

    An iteration at the beginning is warm-up if it takes more than twice as long as the median iteration. If modules are
    loaded for at least half of the additional time, it may also take less, but more than 1.2 times as long.
    """
    frame, duration = iterations.frame, pl.col("window_end_ns") - pl.col("window_start_ns")
    if frame.height < MIN_STEPS:
        return iterations
    loading = _sum_module_loading_times(iterations, frames)
    rows = frame.select("iteration", duration=duration).join(loading, on="iteration", how="left", maintain_order="left")
    median = pl.col("duration").quantile(0.5, "lower")
    excess = pl.col("duration") - median
    loads = pl.col("loading").fill_null(0) * 2 >= excess
    is_slow = pl.col("duration") > pl.when(loads).then(_SLOWDOWN_WITH_LOADING).otherwise(_SLOWDOWN) * median
    is_first = (median > 0) & is_slow & (pl.int_range(pl.len()) < pl.len() // 2)
    is_warm_up = rows.select(is_first.cast(pl.Int8).cum_min().cast(pl.Boolean)).to_series()
    return iterations._replace(frame=frame.with_columns(is_warm_up=is_warm_up))


def _sum_module_loading_times(iterations: Iterations, frames: Frames) -> pl.DataFrame:
    """Return the time of the API calls that load modules in each iteration: ``iteration``, ``loading``."""
    calls = frames("api_calls").filter(pl.col("name").cast(pl.String).str.contains(MODULE_LOAD_PATTERN))
    rows = calls.select("process_id", "start_ns", loading=pl.col("end_ns") - pl.col("start_ns")).collect()
    rows = rows.with_columns(iteration=iterations.find_call_iterations(rows))
    return rows.group_by("iteration").agg(pl.col("loading").sum())


@dataclass(frozen=True, slots=True)
class StepSummary:
    """What delimits the steps of a capture, how many there are, and how much of the GPU work lies in them.

    Attributes:
        key_op: Name of the range that delimits steps, or None if the whole capture is one step.
        steps: Number of steps.
        aggregated: Number of steps that are aggregated.
        first: Name of the first aggregated step.
        last: Name of the last aggregated step.
        warm_up: Number of the steps that are warm-up and are not aggregated.
        warm_up_ns: Time of these steps, in ns.
        kernels: Number of kernels of the capture. CUDA graphs that were recorded as a whole are included.
        kernels_in_steps: Number of the kernels that any step launched.
        gpu_time_ns: Time of all GPU activities of the capture, in ns.
        gpu_time_in_steps_ns: Time of the GPU activities that any step launched, in ns.
    """

    key_op: str | None
    steps: int
    aggregated: int
    first: str
    last: str
    warm_up: int
    warm_up_ns: int
    kernels: int
    kernels_in_steps: int
    gpu_time_ns: int
    gpu_time_in_steps_ns: int

    @property
    def kernel_share(self) -> float | None:
        """Share of the kernels that any step launched, from 0 to 1, or None if there are no kernels."""
        return self.kernels_in_steps / self.kernels if self.kernels else None

    @property
    def gpu_time_share(self) -> float | None:
        """Share of the GPU time that any step launched, from 0 to 1, or None if there is no GPU time."""
        return self.gpu_time_in_steps_ns / self.gpu_time_ns if self.gpu_time_ns else None

    @property
    def misses_work(self) -> bool:
        """Whether less than 90 % of the kernels or of the GPU time lie in steps."""
        return any(s is not None and s < MIN_COVERAGE for s in (self.kernel_share, self.gpu_time_share))

    def describe(self) -> str:
        """Describe the steps in one sentence."""
        if self.key_op is None:
            return "No range delimits steps, so the whole capture is one step" + self._describe_coverage() + "."
        count = f"{self.steps} step{'' if self.steps == 1 else 's'}, delimited by the range '{self.key_op}'"
        return count + self._describe_coverage() + self._describe_selection() + "."

    def _describe_coverage(self) -> str:
        if not self.kernels and not self.gpu_time_ns:
            return "; no GPU work was recorded"
        kernels = f"{self.kernels_in_steps:,} of {self.kernels:,} kernels"
        share = self.gpu_time_share
        return f"; {kernels}" + ("" if share is None else f" and {format_share(share)} of the GPU time lie in steps")

    def _describe_selection(self) -> str:
        parts = []
        if self.warm_up:
            names = "the first step is" if self.warm_up == 1 else f"the first {self.warm_up} steps are"
            parts.append(f"{names} warm-up and left out")
        if self.aggregated < self.steps - self.warm_up:
            parts.append(f"{self.first} to {self.last} are aggregated")
        return "".join(f"; {part}" for part in parts)


def format_share(share: float) -> str:
    """Format a share as a percentage. Only a share of exactly 1 is shown as 100 %."""
    percent = PERCENT * share
    return "100 %" if share == 1 else f"{min(percent, 99.9):.1f} %"


def summarize_steps(rollup: Rollup) -> StepSummary:
    """Return what delimits the steps of a roll-up, how many there are, and how much of the GPU work lies in them."""
    iterations, frames = rollup.iterations, rollup.measures.ops.frames
    totals = {kind: _sum_activities(frames, kind) for kind in ON_GPU}
    on_gpu = rollup.measures.select_calls("kind").to_series().is_in(ON_GPU).arg_true()
    calls = rollup.measures.select_calls("kind", "process_id", "start_ns", "gpu_start_ns", "gpu_end_ns", rows=on_gpu)
    inside = calls.filter(iterations.find_call_iterations(calls).is_not_null())
    is_kernel = pl.col("kind").is_in(["kernel", "graph"])
    time = (pl.col("gpu_end_ns") - pl.col("gpu_start_ns")).sum()
    kernels, gpu_time = inside.select(is_kernel.sum(), time.alias("time")).row(0)
    if iterations.is_whole_capture:
        kernels, gpu_time = totals["kernel"][0] + totals["graph"][0], sum(t for _, t in totals.values())
    names = iterations.aggregated.select(pl.col("name").fill_null(pl.format("step {}", "iteration"))).to_series()
    is_left_out = pl.col("is_warm_up") & ~pl.col("aggregated") & (rollup.span is None)
    left_out = iterations.frame.filter(is_left_out)
    return StepSummary(
        key_op=iterations.label if iterations.has_key_op else None,
        steps=iterations.frame.height,
        aggregated=iterations.aggregated.height,
        first=str(names[0]),
        last=str(names[-1]),
        warm_up=left_out.height,
        warm_up_ns=int(left_out.select((pl.col("window_end_ns") - pl.col("window_start_ns")).sum()).item()),
        kernels=totals["kernel"][0] + totals["graph"][0],
        kernels_in_steps=int(kernels),
        gpu_time_ns=sum(t for _, t in totals.values()),
        gpu_time_in_steps_ns=int(gpu_time),
    )


def _sum_activities(frames: Frames, kind: str) -> tuple[int, int]:
    """Return the number and the summed duration of the GPU activities of one kind."""
    row = frames(TABLES[kind]).select(pl.len(), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("time")).collect()
    return int(row["len"][0]), int(row["time"][0])
