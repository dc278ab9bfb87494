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

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.core.ops.attach import MODULE_LOAD_PATTERN, ON_GPU, TABLES
from tracekit.text import shorten_middle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.core.correlate import Frames
    from tracekit.core.iterations import Iterations
    from tracekit.core.ops import Ops

MIN_COVERAGE = 0.9
"""Share of the kernels or of the GPU time below which a warning says that steps miss some of the work."""

MIN_STEPS = 3
"""Smallest number of iterations among which a warm-up can be detected."""

MAX_RANKS = 8
"""Maximum number of ranks that a note lists."""

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


def is_outlier_expr(duration: pl.Expr, is_steady: pl.Expr) -> pl.Expr:
    """Return an expression for whether steps are outliers: steady steps that are far from their median.

    An outlier differs from the lower median of the steady steps by more than 5 %, and by more than three standard
    deviations, which are estimated from the median absolute deviation. Among fewer than 3 steady steps, none is an
    outlier.

    Args:
        duration: The durations of the steps.
        is_steady: Whether a step is steady, which warm-up is not.
    """
    median = duration.filter(is_steady).quantile(0.5, "lower")
    change = (duration - median).abs()
    deviation = change.filter(is_steady).quantile(0.5, "lower")
    is_far = (change > _OUTLIER_DEVIATIONS * deviation) & (change > _OUTLIER_SHARE * median)
    return is_steady & is_far.fill_null(value=False) & (is_steady.sum() >= MIN_STEPS)


_OUTLIER_SHARE = 0.05
_OUTLIER_DEVIATIONS = 3 * 1.4826
"""Three standard deviations of a normal distribution, in median absolute deviations."""


def _sum_module_loading_times(iterations: Iterations, frames: Frames) -> pl.DataFrame:
    """Return the time of the API calls that load modules in each iteration: ``iteration``, ``loading``."""
    calls = frames("api_calls").filter(pl.col("name").cast(pl.String).str.contains(MODULE_LOAD_PATTERN))
    rows = calls.select("process_id", "start_ns", loading=pl.col("end_ns") - pl.col("start_ns")).collect()
    rows = rows.with_columns(iteration=iterations.find_call_iterations(rows))
    return rows.group_by("iteration").agg(pl.col("loading").sum())


@dataclass(frozen=True, slots=True)
class StepSummary:
    """What delimits the steps of a capture, how many there are, and how much of the GPU work lies in them.

    The summary of several ranks has the sums of their kernels and times. All its other attributes are equal in all
    these ranks.

    Attributes:
        key_op: Name of the range that delimits steps, or None if the whole capture is one step.
        steps: Number of steps.
        aggregated: Number of steps that are aggregated.
        first: Name of the first aggregated step.
        last: Name of the last aggregated step.
        warm_up: Number of the steps that are warm-up and are not aggregated.
        warm_up_ns: Time of these steps, in ns.
        included_warm_up: Number of the steps that are warm-up and are aggregated.
        kernels: Number of kernels of the capture. CUDA graphs that were recorded as a whole are included.
        kernels_in_steps: Number of the kernels that any step launched.
        gpu_time_ns: Time of all GPU activities of the capture, in ns.
        gpu_time_in_steps_ns: Time of the GPU activities that any step launched, in ns.
        ranks: Number of ranks.
    """

    key_op: str | None
    steps: int
    aggregated: int
    first: str
    last: str
    warm_up: int
    warm_up_ns: int
    included_warm_up: int
    kernels: int
    kernels_in_steps: int
    gpu_time_ns: int
    gpu_time_in_steps_ns: int
    ranks: int = 1

    @property
    def kernel_share(self) -> float | None:
        """Share of the kernels that any step launched, from 0 to 1, or None if there are no kernels."""
        return self.kernels_in_steps / self.kernels if self.kernels else None

    @property
    def gpu_time_share(self) -> float | None:
        """Share of the GPU time that any step launched, from 0 to 1, or None if there is no GPU time."""
        return self.gpu_time_in_steps_ns / self.gpu_time_ns if self.gpu_time_ns else None

    @property
    def has_gpu_work(self) -> bool:
        """Whether the capture contains kernels or other GPU activities."""
        return self.kernels > 0 or self.gpu_time_ns > 0

    @property
    def misses_work(self) -> bool:
        """Whether less than 90 % of the kernels or of the GPU time lie in steps."""
        return any(s is not None and s < MIN_COVERAGE for s in (self.kernel_share, self.gpu_time_share))

    def describe(self) -> str:
        """Describe the steps in one sentence."""
        if self.key_op is None:
            return "No range delimits steps, so the whole capture is one step" + self._describe_coverage() + "."
        each = " each" if self.ranks > 1 else ""
        key_op = shorten_middle(self.key_op)
        count = f"{self.steps:,} step{'' if self.steps == 1 else 's'}{each}, delimited by the range '{key_op}'"
        return count + self._describe_coverage() + self._describe_selection() + "."

    def _describe_coverage(self) -> str:
        if not self.has_gpu_work:
            return "; no GPU work was recorded"
        kernels = f"{self.kernels_in_steps:,} of {self.kernels:,} kernels"
        share = self.gpu_time_share
        return f"; {kernels}" + ("" if share is None else f" and {format_share(share)} of the GPU time lie in steps")

    def _describe_selection(self) -> str:
        parts = []
        for number, treatment in ((self.warm_up, "left out"), (self.included_warm_up, "included")):
            if number:
                names = "the first step is" if number == 1 else f"the first {number} steps are"
                parts.append(f"{names} warm-up and {treatment}")
        if self.aggregated < self.steps - self.warm_up:
            parts.append(f"{shorten_middle(self.first)} to {shorten_middle(self.last)} are aggregated")
        return "".join(f"; {part}" for part in parts)

    @classmethod
    def get_schema(cls) -> dict[str, type[pl.DataType]]:
        """Return the types of the columns of ``to_frame``, by name."""
        names = [field.name for field in dataclasses.fields(cls) if field.name != "ranks"]
        return {name: pl.String if name in _TEXTS else pl.Int64 for name in names}

    def to_frame(self) -> pl.DataFrame:
        """Return the summary of one rank as a frame with one row, whose columns are the attributes except ``ranks``."""
        schema = self.get_schema()
        return pl.DataFrame([{name: getattr(self, name) for name in schema}], schema=schema)

    @property
    def note(self) -> str:
        """The description of the steps, which begins with "Warning" if steps miss much of the work."""
        return self.format_note("")

    def format_note(self, subject: str) -> str:
        """Return ``note`` about a subject, such as "rank 1", which comes before the description."""
        about = f"{subject}: " if subject else ""
        text = ("Warning: " if self.misses_work else "") + about + self.describe()
        return text[:1].upper() + text[1:]


_TEXTS = ("key_op", "first", "last")


def list_notes_by_rank(summaries: Mapping[int, StepSummary]) -> list[str]:
    """Return sentences about the steps of several ranks, one for all ranks whose steps agree.

    Steps agree if they are delimited by the same range, if the same steps are aggregated, and if the warning about
    missing work applies to all of these ranks or to none.

    Args:
        summaries: The summary of each rank.
    """
    agreeing: dict[StepSummary, list[int]] = {}
    for rank, summary in summaries.items():
        key = _replace_sums(summary, {**dict.fromkeys(_SUMMED, 0), "kernels": int(summary.misses_work)})
        agreeing.setdefault(key, []).append(rank)
    notes = []
    for ranks in agreeing.values():
        merged = _merge_summaries([summaries[rank] for rank in ranks])
        if len(summaries) == 1:
            subject = ""
        elif len(agreeing) == 1:
            subject = f"all {len(ranks):,} ranks"
        else:
            more = f" and {len(ranks) - MAX_RANKS:,} more" if len(ranks) > MAX_RANKS else ""
            subject = f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks[:MAX_RANKS]))}{more}"
        notes.append(merged.format_note(subject))
    return notes


_SUMMED = ("warm_up_ns", "kernels", "kernels_in_steps", "gpu_time_ns", "gpu_time_in_steps_ns", "ranks")


def _merge_summaries(summaries: Sequence[StepSummary]) -> StepSummary:
    """Return the summary of several ranks whose steps agree."""
    sums = {name: sum(getattr(summary, name) for summary in summaries) for name in _SUMMED}
    return _replace_sums(summaries[0], sums)


def _replace_sums(summary: StepSummary, values: Mapping[str, Any]) -> StepSummary:
    return dataclasses.replace(summary, **values)


def read_summaries(rows: pl.DataFrame) -> dict[int, StepSummary]:
    """Return the summary of each rank, or of rank 0 if there is no column ``rank``.

    Args:
        rows: One row per rank, with the columns of ``StepSummary.to_frame``.
    """
    names = StepSummary.get_schema()
    return {row.get("rank", 0): StepSummary(**{name: row[name] for name in names}) for row in rows.rows(named=True)}


def format_share(share: float) -> str:
    """Format a share as a percentage. Only a share of exactly 1 is shown as 100 %."""
    percent = PERCENT * share
    return "100 %" if share == 1 else f"{min(percent, 99.9):.1f} %"


def summarize_recorded_steps(frames: Frames) -> StepSummary:
    """Return the summary of the iterations that DLProf recorded, which include all of the capture.

    Args:
        frames: Function that returns the declared table with a given name. The table ``iterations`` has rows.
    """
    iterations = frames("iterations").select("iteration", "name", "key_op", "is_aggregated").collect()
    aggregated = iterations.filter("is_aggregated")
    names = aggregated.select(pl.col("name").fill_null(pl.format("step {}", "iteration"))).to_series()
    totals = {kind: sum_activities(frames, kind) for kind in ON_GPU}
    kernels, gpu_time = totals["kernel"][0] + totals["graph"][0], sum(t for _, t in totals.values())
    return StepSummary(
        key_op=next(iter(iterations["key_op"].drop_nulls().cast(pl.String)), None),
        steps=iterations.height,
        aggregated=aggregated.height,
        first=next(iter(names), ""),
        last=next(iter(names.tail(1)), ""),
        warm_up=0,
        warm_up_ns=0,
        included_warm_up=0,
        kernels=kernels,
        kernels_in_steps=kernels,
        gpu_time_ns=gpu_time,
        gpu_time_in_steps_ns=gpu_time,
    )


def sum_activities(frames: Frames, kind: str) -> tuple[int, int]:
    """Return the number and the summed duration of the GPU activities of one kind."""
    row = frames(TABLES[kind]).select(pl.len(), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("time")).collect()
    return int(row["len"][0]), int(row["time"][0])
