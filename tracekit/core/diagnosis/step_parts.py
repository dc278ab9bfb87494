"""Divide the time of every step of a capture into the parts of the ledger, and find the steps that are outliers.

The parts of a step add up to its duration, and those of the steady steps to the ledger of ``why``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.diagnosis.diagnose import plan_processes
from tracekit.core.diagnosis.ledger import IDLE_PARTS, PARTS, WAIT_PART, measure_busy_times
from tracekit.core.diagnosis.steady_steps import build_cold_model, divide_steps, list_steady_models
from tracekit.core.steps import is_outlier_expr
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.core.diagnosis.answer import Why
    from tracekit.core.diagnosis.model import Model
    from tracekit.core.diagnosis.ranks import RankPlan
    from tracekit.core.rollup import Rollup

COLUMN_OF_PART = {
    part: f"idle_{part}_ns" if part in IDLE_PARTS else f"{WAIT_PART if part == WAIT_PART else group}_ns"
    for part, group in PARTS.items()
}
"""The column of ``StepTimes.steps`` that contains each part of the ledger."""
PART_COLUMNS = tuple(
    dict.fromkeys(("compute_ns", "opaque_ns", "communication_ns", "communication_wait_ns", *COLUMN_OF_PART.values()))
)
"""The columns of ``StepTimes.steps`` that add up to the duration of a step."""
HIDDEN = ("hidden_communication_ns", "hidden_copy_ns")
_STEP = {
    "process_id": pl.Int64,
    "iteration": pl.Int64,
    "name": pl.String,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "is_warm_up": pl.Boolean,
    "has_known_waits": pl.Boolean,
}
_BUSY = ("all_communication_ns", "all_copy_ns")
_PART = {
    "process_id": pl.Int64,
    "iteration": pl.Int64,
    "part": pl.String,
    "group": pl.String,
    "label": pl.String,
    "ns": pl.Int64,
}


class StepTimes(NamedTuple):
    """The steps of all processes, and how their time is divided.

    Attributes:
        steps: One row per step, in order of process and time: ``process_id``, ``iteration``, ``name``, ``start_ns``,
            ``end_ns``, ``is_warm_up``, ``has_known_waits`` (whether ``communication_wait_ns`` is known, and not part of
            ``communication_ns``), ``duration_ns``, the columns ``PART_COLUMNS``, which add up to it, and the
            columns ``HIDDEN``: how long the GPU communicates and copies while it does work that comes before. Further
            columns compare the step with the steady steps of the process: ``median_ns`` (their lower median),
            ``change_ns``, ``is_outlier``, and for outliers ``mostly``, the column of ``PART_COLUMNS`` that differs most
            from its median, and ``mostly_ns``, by how much.
        parts: One row per step, part and range of the program: ``process_id``, ``iteration``, ``part``, ``group``,
            ``label`` (innermost range, or null) and ``ns``. The largest parts of a step come first.
    """

    steps: pl.DataFrame
    parts: pl.DataFrame


def compare_ledgers(a: Why, b: Why) -> pl.DataFrame:
    """Return how the parts of a step differ between two answers of ``why``.

    Returns:
        One row per part of either ledger, the largest change first: ``part``, ``group``, ``time_a_ns``, ``time_b_ns``
        (time in the median step, or 0) and ``change_ns``. The times of a side add up to its median step.
    """
    sides = [
        pl.DataFrame([(p.part, p.group, p.ns) for p in why.ledger], schema=["part", "group", name], orient="row")
        for why, name in ((a, "time_a_ns"), (b, "time_b_ns"))
    ]
    typed = [rows.cast({"part": pl.String, "group": pl.String, rows.columns[2]: pl.Int64}) for rows in sides]
    rows = typed[0].join(typed[1], on=["part", "group"], how="full", coalesce=True)
    rows = rows.with_columns(pl.col("time_a_ns", "time_b_ns").fill_null(0))
    change = pl.col("change_ns")
    rows = rows.with_columns(change_ns=pl.col("time_b_ns") - pl.col("time_a_ns"))
    return rows.sort(change.abs(), "part", descending=[True, False])


def measure_step_times(rollup: Rollup, plans: Mapping[int | None, RankPlan] | None = None) -> StepTimes:
    """Return the steps of all processes that ran GPU operations. The result is computed once per roll-up.

    Args:
        rollup: The roll-up of the capture, whose aggregated iterations are the steady steps.
        plans: What is known about the ranks in other captures, by the id of each process. The result is not cached.
    """
    if plans is not None:
        return _measure_processes(list_steady_models(rollup), plans)
    if "step_times" not in rollup.results:
        models = list_steady_models(rollup)
        plans = plan_processes(models, rollup)[0] if len(models) > 1 else {}
        rollup.results["step_times"] = _measure_processes(models, plans)
    times: StepTimes = rollup.results["step_times"]
    return times


def _measure_processes(models: Sequence[Model], plans: Mapping[int | None, RankPlan]) -> StepTimes:
    measured = [
        _measure_steps(model, plans.get(steady.events.process_id))
        for steady in sorted(models, key=lambda m: -1 if m.events.process_id is None else m.events.process_id)
        for model in (build_cold_model(steady), steady)
        if model is not None
    ]
    columns = {**_STEP, "duration_ns": pl.Int64, **dict.fromkeys((*PART_COLUMNS, *HIDDEN), pl.Int64)}
    steps = pl.concat([pl.DataFrame(schema=columns), *(times.steps for times in measured)])
    parts = pl.concat([pl.DataFrame(schema=_PART), *(times.parts for times in measured)])
    return StepTimes(_compare_with_medians(steps), parts)


def _measure_steps(model: Model, plan: RankPlan | None) -> StepTimes:
    """Return the times of consecutive steps of a process."""
    plan = None if plan is None or plan.steps is None else plan  # a process without common steps is explained alone
    on_cpu = None if plan is None else plan.list_calls_on_cpu()
    busy = [measure_busy_times(model, "communication", on_cpu), measure_busy_times(model, "copy")]
    rows = divide_steps(model, plan).with_columns(pl.col("step").cast(pl.Int64), pl.col("part").cast(pl.String))
    values = [(model.events.process_id, s.iteration, s.name, 0, 0, s.is_cold, plan is not None) for s in model.steps]
    listed = pl.DataFrame(values, schema=_STEP, orient="row").with_columns(
        create_series(model.bounds[:-1]).alias("start_ns"),
        create_series(model.bounds[1:]).alias("end_ns"),
        pl.int_range(pl.len()).alias("step"),
        duration_ns=create_series(np.diff(model.bounds)),
        **{name: create_series(times) for name, times in zip(_BUSY, busy, strict=True)},
    )
    column = pl.col("part").replace_strict(COLUMN_OF_PART)
    sums = rows.group_by("step").agg(pl.col("ns").filter(column == name).sum().alias(name) for name in PART_COLUMNS)
    divided = listed.join(sums, on="step", how="left", maintain_order="left").with_columns(
        pl.col(PART_COLUMNS).fill_null(0)
    )
    exposed = (pl.col("communication_ns") + pl.col("communication_wait_ns"), pl.col("copy_ns"))
    hidden = [(pl.col(all_) - own).alias(name) for all_, own, name in zip(_BUSY, exposed, HIDDEN, strict=True)]
    numbers = listed.select("step", "process_id", "iteration")
    parts = rows.join(numbers, on="step", how="left", maintain_order="left").with_columns(
        group=pl.col("part").replace_strict(PARTS), label=pl.col("label").replace("", None)
    )
    return StepTimes(
        divided.select(*_STEP, "duration_ns", *PART_COLUMNS, *hidden),
        parts.select(pl.col(c).cast(t) for c, t in _PART.items()),
    )


def _compare_with_medians(steps: pl.DataFrame) -> pl.DataFrame:
    """Add how each step differs from the median of the steady steps of its process, and in which part most."""
    of_process = "process_id"

    def median_expr(values: pl.Expr) -> pl.Expr:
        steady = values.filter(~pl.col("is_warm_up")).sort()
        return steady.get((steady.len() - 1) // 2).over(of_process)

    duration = pl.col("duration_ns")
    rows = steps.with_columns(median_ns=median_expr(duration)).with_columns(change_ns=duration - pl.col("median_ns"))
    rows = rows.with_columns(is_outlier=is_outlier_expr(duration, ~pl.col("is_warm_up")).over(of_process))
    sign = pl.col("change_ns").sign()
    excess = [((pl.col(c) - median_expr(pl.col(c))) * sign).alias(c) for c in PART_COLUMNS]
    largest = rows.select(pl.concat_list(excess).alias("excess"), sign.alias("sign")).select(
        mostly=pl.col("excess").list.arg_max().replace_strict(dict(enumerate(PART_COLUMNS)), return_dtype=pl.String),
        mostly_ns=pl.col("excess").list.max() * pl.col("sign"),
    )
    return rows.hstack(largest.with_columns(pl.when(rows["is_outlier"]).then(pl.all())))
