"""Compute recipes that divide the time of GPUs into computation, communication, memory operations and idle time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals
from tracekit.core.recipes.recipe import RANK, RecipeTables, recipe
from tracekit.core.recipes.sources import read_kernels
from tracekit.core.relations import CALL, STREAM, fill_process_ids, join_calls
from tracekit.core.reports.names import memcpy_label_expr, memset_label_expr, read_runtime_prefix
from tracekit.core.runtimes import COLLECTIVE_KERNEL
from tracekit.core.series import match_categories_expr

if TYPE_CHECKING:
    from tracekit.core.reports.report import Frames, Request

COMPUTATION, COMMUNICATION, MEMORY = KINDS = ("computation", "communication", "memory")
_BITS = {kind: 1 << bit for bit, kind in enumerate(KINDS)}
CAUSES = ("host_wait", "kernel_wait", "other")
_BUSY, _OVERLAPS, _ACTIVITIES, _IDLE = "busy", "overlaps", "activities", "idle"
_KIND, _CAUSE = pl.Enum(KINDS), pl.Enum(CAUSES)
_GRAPH = "CUDA graph"
_HAS_ID = pl.col("correlation_id") != 0
_TIMES = ["start_ns", "end_ns"]
_STREAM = ["process_id", *STREAM]
_STEP = "ProfilerStep"
_NS_PER_US = 1000
_SUMS = ("total", *KINDS, "overlap", "idle")


def _combine_breakdown(tables: RecipeTables) -> RecipeTables:
    overlaps = tables[_OVERLAPS]
    names = [pl.when(pl.col("kinds") & bit > 0).then(pl.lit(kind)) for kind, bit in _BITS.items()]
    overlaps = overlaps.sort("time_ns", "kinds", descending=[True, False]).select(
        pl.concat_str(names, separator=" + ", ignore_nulls=True).alias("kinds"),
        "time_ns",
        _percent_expr(pl.col("time_ns"), pl.col("time_ns").sum()).alias("percent"),
    )
    return {_OVERLAPS: overlaps, **{name: _move_rank_to_start(tables[name]) for name in (_BUSY, _ACTIVITIES, _IDLE)}}


def _sum_overlaps(rows: pl.DataFrame) -> pl.DataFrame:
    """Sum the time of each combination of kinds of activity that ran at once."""
    return rows.group_by("kinds").agg(pl.col("time_ns").sum()).sort("kinds")


@recipe(combine=_combine_breakdown, reductions={_OVERLAPS: _sum_overlaps})
def gpu_time_breakdown(request: Request) -> RecipeTables:
    """Time in which each GPU computes, communicates, copies memory or is idle, and overlaps of these activities.

    The time of a GPU extends from the start of its first activity to the end of its last one, over all streams.
    """
    rows = _select_activities_of_steps(_read_activities(request), request)
    combinations = _sum_combination_times(rows)
    spans = rows.group_by("device_id").agg(total_ns=pl.col("end_ns").max() - pl.col("start_ns").min())
    both = _BITS[COMPUTATION] | _BITS[COMMUNICATION]
    has = {**{k: pl.col("kinds") & bit > 0 for k, bit in _BITS.items()}, "overlap": pl.col("kinds") & both == both}
    sums = [pl.col("time_ns").filter(condition).sum().alias(f"{name}_ns") for name, condition in has.items()]
    busy = combinations.group_by("device_id").agg(*sums, busy_ns=pl.col("time_ns").sum())
    total = pl.col("total_ns")
    busy = spans.join(busy, on="device_id", how="left").with_columns(pl.exclude("device_id").fill_null(0))
    busy = busy.with_columns(idle_ns=total - pl.col("busy_ns")).sort("device_id")
    percents = {f"{name}_percent": _percent_expr(pl.col(f"{name}_ns"), total) for name in (*KINDS, "idle")}
    hidden = _percent_expr(pl.col("overlap_ns"), pl.col("communication_ns")).alias("overlap_percent")
    return {
        _BUSY: busy.select("device_id", *(f"{name}_ns" for name in _SUMS), hidden, **percents),
        _OVERLAPS: _sum_overlaps(combinations.select("kinds", "time_ns")),
        _ACTIVITIES: _summarize_durations_by_name(rows),
        _IDLE: _find_stream_idle_times(request, rows),
    }


def _find_stream_idle_times(request: Request, rows: pl.DataFrame) -> pl.DataFrame:
    """Return how long each stream is idle between its activities, by cause.

    The cause is ``host_wait`` if the next activity was launched after the end of the previous one, ``kernel_wait`` if
    it was launched earlier and the stream is idle for less than the option ``delay``, and ``other`` in all other cases.
    """
    calls = request.frames("api_calls").filter(_HAS_ID).select(*CALL, launch_ns="start_ns").collect()
    rows = join_calls(rows, calls, "first", "left")
    rows = rows.sort(*_STREAM, "start_ns").with_columns(previous_end=intervals.latest_end_before_expr(_STREAM))
    gaps = rows.with_columns(idle_ns=pl.col("start_ns") - pl.col("previous_end")).filter(pl.col("idle_ns") > 0)
    is_late = (pl.col("launch_ns") > pl.col("previous_end")).fill_null(value=False)
    is_short = pl.col("idle_ns") < request.get_integer("delay") * _NS_PER_US
    cause = (
        pl.when(is_late).then(pl.lit("host_wait")).when(is_short).then(pl.lit("kernel_wait")).otherwise(pl.lit("other"))
    )
    time = pl.col("idle_ns")
    sums = gaps.group_by(*_STREAM, cause=cause.cast(_CAUSE)).agg(
        pl.len().cast(pl.Int64).alias("count"),
        time.sum(),
        min_ns=time.min(),
        median_ns=time.median(),
        max_ns=time.max(),
    )
    percent = _percent_expr(time, time.sum().over(_STREAM)).alias("percent")
    numbers = ("count", "idle_ns", percent, "min_ns", "median_ns", "max_ns")
    return sums.sort(*_STREAM, "cause").select(*_STREAM, "cause", *numbers)


def _percent_expr(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """Return an expression for a part as a percentage of a whole, with two decimals.

    The percentage is null if the whole is not positive.
    """
    return pl.when(whole > 0).then(part * 100.0 / whole).round(2)


def _move_rank_to_start(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(RANK, pl.exclude(RANK))


def _read_activities(request: Request) -> pl.DataFrame:
    """Return all GPU activities of a rank, including CUDA graphs that were recorded as one activity.

    The columns are ``process_id``, ``device_id``, ``context_id``, ``stream_id``, ``correlation_id``, ``start_ns``,
    ``end_ns``, ``name`` and ``kind``.
    """
    columns = (*_STREAM, "correlation_id", *_TIMES)
    is_nccl = match_categories_expr(pl.col("name"), lambda names: names.str.contains(COLLECTIVE_KERNEL))
    kind = pl.when(is_nccl).then(pl.lit(COMMUNICATION, _KIND)).otherwise(pl.lit(COMPUTATION, _KIND))
    frames = request.frames
    prefix = read_runtime_prefix(frames)
    rows = [
        read_kernels(request, *columns).with_columns(kind=kind),
        _add_name_and_kind(frames("graph_launches"), pl.lit(_GRAPH), COMPUTATION),
        _add_name_and_kind(frames("memcpys"), memcpy_label_expr(pl.col("copy_kind"), prefix), MEMORY),
        _add_name_and_kind(frames("memsets"), memset_label_expr(prefix), MEMORY),
    ]
    return fill_process_ids(pl.concat([r.select(*columns, "name", "kind") for r in rows]).collect())


def _add_name_and_kind(rows: pl.LazyFrame, name: pl.Expr, kind: str) -> pl.LazyFrame:
    return rows.with_columns(name=name.cast(pl.Categorical), kind=pl.lit(kind, _KIND))


def _select_activities_of_steps(rows: pl.DataFrame, request: Request) -> pl.DataFrame:
    """Return the GPU activities that the option ``steps`` selects.

    With ``recorded``, the API call that launched an activity must start before the end of the last step of the PyTorch
    profiler. With ``complete``, the API call must start before the start of this step.
    """
    limit = _compute_launch_deadline(request.frames, request.get_text("steps"))
    if limit is None:
        return rows
    calls = request.frames("api_calls").filter(_HAS_ID & (pl.col("start_ns") < limit)).select(CALL).collect()
    return join_calls(rows, calls, "first", "semi")


def _compute_launch_deadline(frames: Frames, steps_option: str) -> int | None:
    """Return the time in ns before which selected activities are launched, or None if all activities are selected.

    If the capture has at most one step of the PyTorch profiler, all activities are selected.
    """
    if steps_option == "all":
        return None
    is_step = match_categories_expr(pl.col("name"), lambda names: names.str.starts_with(_STEP))
    step_ranges = frames("nvtx_ranges").filter(is_step).select("name", *_TIMES).collect()
    if step_ranges["name"].n_unique() <= 1:
        return None
    ends = int(step_ranges["end_ns"].fill_null(step_ranges["start_ns"]).max())  # type: ignore[arg-type]
    return ends + 1 if steps_option == "recorded" else int(step_ranges["start_ns"].max())  # type: ignore[arg-type]


def _sum_combination_times(rows: pl.DataFrame) -> pl.DataFrame:
    """Return how long each combination of kinds of activity runs at once on each device.

    Returns:
        One row per device and combination: ``device_id``, ``kinds`` (the sum of the bits of the running kinds) and
        ``time_ns``.
    """
    merged = intervals.merge_intervals(rows.select("device_id", "kind", *_TIMES), by=["device_id", "kind"])
    bit = pl.col("kind").cast(pl.String).replace_strict(_BITS, return_dtype=pl.Int64)
    edges = [merged.select("device_id", t=c, step=bit * sign) for c, sign in (("start_ns", 1), ("end_ns", -1))]
    sweep = pl.concat(edges).sort("device_id", "t").with_columns(kinds=pl.col("step").cum_sum())
    # No kind runs between the last edge of a device and the first one of the next device. Between edges at the same
    # time, the sum of the bits may be that of kinds that do not run.
    sweep = sweep.with_columns(time_ns=pl.col("t").shift(-1) - pl.col("t"))
    sweep = sweep.filter((pl.col("kinds") > 0) & (pl.col("time_ns") > 0))
    return sweep.group_by("device_id", "kinds").agg(pl.col("time_ns").sum())


def _summarize_durations_by_name(rows: pl.DataFrame) -> pl.DataFrame:
    """Return statistics of the durations of activities by kind and name, sorted by kind and descending total."""
    duration = pl.col("end_ns") - pl.col("start_ns")
    sums = rows.group_by("kind", "name").agg(
        count=pl.len().cast(pl.Int64),
        sum_ns=duration.sum(),
        mean_ns=duration.mean().round(1),
        std_ns=duration.std().round(1),
        min_ns=duration.min(),
        max_ns=duration.max(),
    )
    ordered = sums.with_columns(pl.col("name").cast(pl.String)).sort(
        "kind", "sum_ns", "name", descending=[False, True, False]
    )
    return ordered.select("kind", "count", "sum_ns", "mean_ns", "std_ns", "min_ns", "max_ns", "name")
