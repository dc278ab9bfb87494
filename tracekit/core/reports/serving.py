"""Compute the reports on the phases and steps of serving, such as prefill and decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.intervals import compute_union_durations
from tracekit.core.relations import CALL
from tracekit.core.reports.categories import read_categorized_activities
from tracekit.core.reports.numbers import percent_of_sum_expr, quotient_expr
from tracekit.core.reports.sources import OF_LAUNCHES
from tracekit.core.serving import ServingSteps
from tracekit.core.steps import PERCENT

if TYPE_CHECKING:
    from tracekit.core.reports.report import Request

_COUNTS = ("requests", "context_requests", "context_tokens", "generation_requests", "generation_tokens")
_TIMES = ("time_ns", "cpu_ns", "gpu_time_ns", "busy_ns", "idle_ns")
_NS_PER_S = 1_000_000_000.0
_CATEGORIES = ("attention", "gemm", "moe", "kv_cache", "sampling", "communication")
_P99 = 0.99
OUTSIDE = "outside"
"""Phase of GPU work that a process launched outside of its steps."""


def serving_steps(request: Request) -> pl.DataFrame:
    """Steps of serving with their phase, requests, tokens and times."""
    return _select_chosen_steps(request, _find_steps(request).measured)


def serving_phases(request: Request) -> pl.DataFrame:
    """Phases of serving, such as prefill and decode: steps, requests, tokens, times and rates.

    A sum is null if the number of one of the steps is not known. What a process launched outside of its steps has a row
    of its own, which has only GPU times.
    """
    serving = _find_steps(request)
    batch = pl.col("requests") if request.has_flag("batch") else pl.lit(None, pl.Int64)
    steps = _select_chosen_steps(request, serving.measured).with_columns(batch=batch)
    keys = ["process_id", "framework", "phase", "batch"]
    time, is_known = pl.col("time_ns"), pl.col("sequence_tokens").is_not_null() & (pl.col("requests") > 0)
    sequence = (pl.col("sequence_tokens").filter(is_known).sum(), pl.col("requests").filter(is_known).sum())
    phases = steps.group_by(keys).agg(
        *(pl.when(~pl.col(name).has_nulls()).then(pl.col(name).sum()).alias(name) for name in _COUNTS),
        *(pl.col(name).sum() for name in _TIMES if name != "time_ns"),
        steps=pl.len().cast(pl.Int64),
        total=time.sum(),
        mean=time.mean(),
        median=time.median(),
        p99=time.quantile(_P99, "linear"),
        sequence=quotient_expr(sequence[0].cast(pl.Float64), sequence[1].cast(pl.Float64)),
    )
    activities = _select_activities(request, serving, steps.select("row", *keys))
    outside = _sum_outside(activities.filter(pl.col("phase") == OUTSIDE), keys)
    phases = pl.concat([phases, outside], how="diagonal")
    phases = phases.join(_measure_shares(activities, keys), on=keys, how="left", nulls_equal=True)
    tokens = pl.col("context_tokens") + pl.col("generation_tokens")
    rate = quotient_expr(_NS_PER_S * tokens, pl.col("total").cast(pl.Float64))
    phases = phases.with_columns(
        share=percent_of_sum_expr(pl.col("total")),
        tokens_per_s=pl.when(pl.col("total") > 0).then(rate),
        sequence=pl.when(pl.col("sequence").is_finite()).then("sequence"),
    )
    return phases.sort("process_id", pl.col("total").neg(), "framework", "phase", "batch", nulls_last=True)


def _find_steps(request: Request) -> ServingSteps:
    def read(table: str) -> pl.DataFrame:
        return read_categorized_activities(request.frames, table, *CALL)

    return ServingSteps(request.frames, read, request.get_frames_without(*OF_LAUNCHES))


def _select_chosen_steps(request: Request, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that begin in the iterations that the user has chosen, or all steps."""
    if not request.has_chosen_steps:
        return steps
    its = request.get_rollup().iterations
    return steps.filter(its.select_aggregated(its.find_call_iterations(steps)).is_not_null())


def _select_activities(request: Request, serving: ServingSteps, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the activities of steps, and those that the processes of these steps launched outside of all steps.

    Args:
        request: The request of the report.
        serving: The steps and activities of the capture.
        steps: The steps to select, with ``row`` and the columns that identify a phase, which are added to activities.
    """
    activities = serving.activities
    of_steps = activities.drop("process_id").join(steps, on="row")
    if request.has_chosen_steps:
        return of_steps
    others = activities.filter(pl.col("row").is_null()).join(
        steps.select("process_id").unique(), on="process_id", how="semi", nulls_equal=True
    )
    return pl.concat([of_steps, others.with_columns(phase=pl.lit(OUTSIDE))], how="diagonal")


def _sum_outside(activities: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the GPU time of activities outside of steps by process: the columns ``keys`` and times."""
    busy = compute_union_durations(activities, by=["process_id"]).rename({"duration_ns": "busy_ns"})
    duration = pl.col("end_ns") - pl.col("start_ns")
    totals = activities.group_by(keys).agg(gpu_time_ns=duration.sum())
    return totals.join(busy, on="process_id", how="left", nulls_equal=True)


def _measure_shares(activities: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the share of each category in the GPU time of each phase: the columns ``keys`` and categories.

    The shares of all categories that have no column of their own are ``rest``. The shares of a phase add up to 100.
    """
    names = pl.col("category").cast(pl.String)
    name = pl.when(names.is_in(_CATEGORIES)).then(names).otherwise(pl.lit("rest"))
    duration = pl.col("end_ns") - pl.col("start_ns")
    activities = activities.select(*keys, name=name, duration=duration)
    total = pl.col("duration").sum().cast(pl.Float64)
    shares = activities.group_by(keys).agg(
        quotient_expr(float(PERCENT) * pl.col("duration").filter(pl.col("name") == n).sum(), total).alias(n)
        for n in (*_CATEGORIES, "rest")
    )
    return shares.with_columns(pl.col(*_CATEGORIES, "rest").fill_nan(None))
