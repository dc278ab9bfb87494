"""Find the steps that frameworks for serving and training mark with ranges, and what the GPU did in them.

If one annotation lies directly in another, such as that of SGLang in a range of its profiler, both mark the same step,
which lasts as long as the outer range. An annotation with several others in it is not a step, but a part of the program
that contains steps. Annotations on GPU tracks are copies of those on the CPU, and are not read.

The *time* of a step begins when the CPU has begun it, and all earlier steps of its process have ended on the CPU and
the GPU. It ends when the CPU and the GPU have ended it. So the times of the steps of a process do not overlap, also if
the CPU runs ahead of the GPU. GPU activities belong to the step in which their API call starts: to a step on the same
thread or, if there is none, on another thread of the process.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.intervals import compute_union_durations
from tracekit.core.intervals.containment import find_last_containers, find_shortest_containers
from tracekit.core.layered import COPY_OF
from tracekit.core.ops.attach import ON_GPU, TABLES
from tracekit.core.ops.step_annotations import CAPTURE, combine_patterns, load_annotation_patterns, parse_annotation
from tracekit.core.relations import CALL, THREAD, find_first_row_numbers
from tracekit.core.trees import compute_depths, find_roots

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.core.correlate import Frames

_TIMES = ("start_ns", "end_ns")
_COUNTS = (
    *("requests", "context_requests", "context_tokens", "generation_requests", "generation_tokens"),
    "sequence_tokens",
)
_PARSED = {
    "name": pl.String,
    "framework": pl.String,
    "phase": pl.String,
    **dict.fromkeys(_COUNTS, pl.Int64),
    "is_fallback": pl.Boolean,
    "is_companion": pl.Boolean,
}
_MAX_LEVELS = 64
_BEGINS_CAPTURE = "StreamBeginCapture"
STEP_SCHEMA = {
    "process_id": pl.Int64,
    "thread_id": pl.Int64,
    "step": pl.Int64,
    **{name: _PARSED[name] for name in ("framework", "phase", *_COUNTS, "name")},
    **dict.fromkeys(("start_ns", "end_ns"), pl.Int64),
}


@dataclass(frozen=True)
class ServingSteps:
    """The steps of a capture whose ranges tell their phase, and the GPU activities in them.

    Attributes:
        frames: Function that returns the declared table with a given name.
        read_activities: Function that returns the activities of a table, with ``CALL``, ``device_id``, ``start_ns``,
            ``end_ns`` and further columns.
        launch_frames: Function like ``frames`` for the API calls, which may not be limited to a part of the capture.
    """

    frames: Frames
    read_activities: Callable[[str], pl.DataFrame]
    launch_frames: Frames

    @functools.cached_property
    def steps(self) -> pl.DataFrame:
        """One row per step, in order of process and start, with the columns of ``STEP_SCHEMA``.

        ``step`` counts the steps of a process from 0. The phase of a step that captures a CUDA graph is ``capture``.
        """
        ranges = _select_counting_ranges(_read_annotated_ranges(self.frames))
        steps = _merge_nested_ranges(ranges).sort("process_id", *_TIMES, maintain_order=True)
        steps = steps.with_columns(step=pl.int_range(pl.len(), dtype=pl.Int64).over("process_id"))
        return self._mark_captures(steps).select(*STEP_SCHEMA)

    def _mark_captures(self, steps: pl.DataFrame) -> pl.DataFrame:
        calls = self.launch_frames("api_calls").filter(pl.col("name").cast(pl.String).str.contains(_BEGINS_CAPTURE))
        starts = calls.select(*THREAD, "start_ns", end_ns="start_ns").collect()
        captured = find_last_containers(starts, steps, by=THREAD).drop_nulls()
        is_capture = pl.int_range(steps.height, eager=True).is_in(captured.implode())
        return steps.with_columns(phase=pl.when(is_capture).then(pl.lit(CAPTURE)).otherwise("phase"))

    @functools.cached_property
    def activities(self) -> pl.DataFrame:
        """The GPU activities with ``row``, the row number in ``steps`` of the step that launched them, or null."""
        calls = self.launch_frames("api_calls").select(*CALL, "thread_id", "start_ns", end_ns="start_ns").collect()
        parts = []
        for kind in ON_GPU:
            activities = self.read_activities(TABLES[kind]).drop_nulls(_TIMES)
            rows = find_first_row_numbers(calls, activities)
            launches = calls.select(pl.col(*THREAD, *_TIMES).gather(rows))
            parts.append(activities.with_columns(row=self._find_steps(launches), kind=pl.lit(kind)))
        return pl.concat(parts)

    def _find_steps(self, launches: pl.DataFrame) -> pl.Series:
        """Return the row number of the step in which each launch starts, or null."""
        own = find_last_containers(launches, self.steps, by=THREAD)
        others = own.is_null().arg_true()
        return own.scatter(others, find_last_containers(launches[others], self.steps, by=["process_id"]))

    @functools.cached_property
    def measured(self) -> pl.DataFrame:
        """The steps with their times.

        Further columns are ``cpu_ns`` (duration of the range), ``time_start_ns`` and ``time_ns`` (start and duration of
        the step), ``gpu_time_ns`` (sum of the durations of its activities), ``busy_ns`` (time in which at least one of
        them runs), ``idle_ns`` (part of ``time_ns`` in which none of them runs), and ``kernels``.
        """
        activities = self.activities.drop_nulls("row")
        totals = activities.group_by("row").agg(
            gpu_time_ns=(pl.col("end_ns") - pl.col("start_ns")).sum(),
            gpu_end_ns=pl.col("end_ns").max(),
            kernels=(pl.col("kind") == "kernel").sum().cast(pl.Int64),
        )
        steps = self.steps.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
        steps = steps.join(totals, on="row", how="left", maintain_order="left")
        done = pl.max_horizontal("end_ns", "gpu_end_ns").cum_max()
        before = done.shift(1).over("process_id")
        steps = steps.with_columns(
            time_start_ns=pl.max_horizontal("start_ns", before), time_end_ns=done.over("process_id")
        )
        own = activities.select("row", *_TIMES)
        windows = steps.select("row", low="time_start_ns", high="time_end_ns")
        bounds = {"start_ns": pl.max_horizontal("start_ns", "low"), "end_ns": pl.min_horizontal("end_ns", "high")}
        inside = own.join(windows, on="row", maintain_order="left").select("row", **bounds)
        for name, times in (("busy_ns", own), ("inside_ns", inside.filter(pl.col("start_ns") < pl.col("end_ns")))):
            durations = compute_union_durations(times, by=["row"]).rename({"duration_ns": name})
            steps = steps.join(durations, on="row", how="left", maintain_order="left")
        counted = ("gpu_time_ns", "kernels", "busy_ns", "inside_ns")
        time = pl.col("time_end_ns") - pl.col("time_start_ns")
        return steps.with_columns(
            pl.col(counted).fill_null(0), cpu_ns=pl.col("end_ns") - pl.col("start_ns")
        ).with_columns(time_ns=time, idle_ns=time - pl.col("inside_ns"))


def are_steps_annotated(frames: Frames) -> bool:
    """Return whether the capture has ranges that mark steps of serving or training.

    Args:
        frames: Function that returns the declared table with a given name.
    """
    return _select_counting_ranges(_read_annotated_ranges(frames)).height > 0


def _read_annotated_ranges(frames: Frames) -> pl.DataFrame:
    """Return the ranges that mark steps: ``THREAD``, ``start_ns``, ``end_ns`` and the columns of ``_PARSED``.

    A range without an end lasts until the last range ends.
    """
    ranges = frames("nvtx_ranges")
    if COPY_OF in ranges.collect_schema().names():  # the steps that captured a graph are copied into its replays
        ranges = ranges.filter(pl.col(COPY_OF).is_null())
    ranges = ranges.select(*THREAD, *_TIMES, pl.col("name").cast(pl.Categorical))
    latest = pl.max_horizontal(pl.col("start_ns").max(), pl.col("end_ns").max())
    ranges = ranges.with_columns(pl.col("end_ns").fill_null(latest)).filter(pl.col("end_ns") >= pl.col("start_ns"))
    names = ranges.select(pl.col("name").unique()).collect()["name"].drop_nulls().cast(pl.String)
    patterns = combine_patterns(rule["pattern"] for rule in load_annotation_patterns())
    names = names.filter(names.str.contains(patterns))
    annotations = [(name, *annotation) for name in names if (annotation := parse_annotation(name)) is not None]
    table = pl.DataFrame(annotations, schema=_PARSED, orient="row").with_columns(
        key=pl.col("name").cast(pl.Categorical)
    )
    rows = ranges.join(table.lazy(), left_on="name", right_on="key", how="inner", maintain_order="left")
    return rows.drop("name").rename({"name_right": "name"}).collect()


def _select_counting_ranges(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the annotations that count, given which others the capture has."""
    sure = ranges.filter(~pl.col("is_fallback") & ~pl.col("is_companion"))
    if not sure.height:
        return ranges.filter("is_fallback")
    is_sure = ~pl.col("is_companion") | pl.col("framework").is_in(sure["framework"].unique().implode())
    return ranges.filter(~pl.col("is_fallback") & is_sure)


def _merge_nested_ranges(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return one row per step: ranges in which at most one other range directly lies are merged with it.

    What the outermost range with known requests tells counts first, and then what the others tell.
    """
    ranges = ranges.sort(*THREAD, "start_ns", "end_ns", descending=[False, False, False, True], maintain_order=True)
    ranges = ranges.with_columns(twins=pl.struct(*THREAD, *_TIMES).rle_id())
    single = ranges.unique("twins", keep="first", maintain_order=True)
    parent = find_shortest_containers(single, by=THREAD).cast(pl.Int64)
    children = parent.drop_nulls().value_counts()
    branches = children.filter(pl.col("count") > 1).to_series(0)
    contains_steps = pl.int_range(single.height, eager=True).is_in(_list_with_ancestors(parent, branches).implode())
    kept_parent = parent.zip_with(~contains_steps.gather(parent).fill_null(value=False), _nulls(len(parent)))
    chains = single.select("twins", chain=find_roots(kept_parent), depth=compute_depths(parent)).filter(~contains_steps)
    rows = ranges.join(chains, on="twins").sort("chain", pl.col("requests").is_null(), "depth", maintain_order=True)
    innermost = pl.col("framework").sort_by("depth", maintain_order=True).last()
    facts = [pl.col(name).drop_nulls().first() for name in ("phase", *_COUNTS)]
    bounds = [pl.col("start_ns").min(), pl.col("end_ns").max()]
    return rows.group_by("chain").agg(pl.col(*THREAD, "name").first(), innermost, *facts, *bounds)


def _list_with_ancestors(parent: pl.Series, rows: pl.Series) -> pl.Series:
    """Return the given rows of a forest and their ancestors, up to a maximum number of levels."""
    levels = [rows.cast(pl.Int64)]
    for _ in range(_MAX_LEVELS):
        levels.append(parent.gather(levels[-1]).drop_nulls().unique())
    return pl.concat(levels)


def _nulls(number: int) -> pl.Series:
    return pl.repeat(None, number, dtype=pl.Int64, eager=True)
