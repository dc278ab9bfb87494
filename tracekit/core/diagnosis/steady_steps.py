"""Select the steady steps of a process, and divide their time into the parts of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.diagnosis import ledger
from tracekit.core.diagnosis.answer import ColdSteps, LedgerPart, StepFigures
from tracekit.core.diagnosis.events import read_events
from tracekit.core.diagnosis.model import Model, build_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.diagnosis.events import JoinedResults
    from tracekit.core.diagnosis.ranks import RankPlan
    from tracekit.core.rollup import Rollup

_PLACES = 3


class Basis(NamedTuple):
    """The steady steps of a process, and how their time is divided."""

    model: Model
    step: StepFigures
    parts: tuple[LedgerPart, ...]
    cold: ColdSteps | None


def list_steady_models(rollup: Rollup, joined: JoinedResults | None = None) -> list[Model]:
    """Return the models that ``build_steady_models`` yields. They are built once per roll-up."""
    key = ("steady models", joined and joined.key)
    models: list[Model] | None = rollup.working_data.get(key)
    if models is None:
        models = rollup.working_data[key] = list(build_steady_models(rollup, joined))
    return models


def build_steady_models(rollup: Rollup, joined: JoinedResults | None = None) -> Iterator[Model]:
    """Yield the model of the steps without the warm-up of each process that ran GPU operations, as ``read_events``."""
    for events in read_events(rollup, joined):
        yield build_model(events, tuple(s for s in events.steps if not s.is_cold) or events.steps)


def build_cold_model(steady: Model) -> Model | None:
    """Return the model of the warm-up of a process, given that of its steady steps, or None if there is none."""
    cold = tuple(s for s in steady.events.steps if s.is_cold and s.start_ns < steady.steps[0].start_ns)
    return build_model(steady.events, cold) if cold else None


def measure_steps(complete: Model, rollup: Rollup, plan: RankPlan | None = None) -> Basis:
    """Return the model of the steady steps of a process, and how their time is divided."""
    events, rows = complete.events, divide_steps(complete, plan)
    durations = np.diff(complete.bounds)
    step = StepFigures(
        name=events.key_op,
        count=len(complete.steps),
        cold=len(events.steps) - len(complete.steps),
        median_ns=int(np.sort(durations)[(len(durations) - 1) // 2]),
        mean_ns=int(durations.sum()) // len(durations),
        total_ns=int(durations.sum()),
        covered=rollup.step_summary.gpu_time_share,
    )
    cold = build_cold_model(complete)
    described = None if cold is None else _describe_cold_steps(cold, step.median_ns, plan)
    return Basis(complete, step, build_ledger(rows, step.median_ns), described)


def divide_steps(model: Model, plan: RankPlan | None) -> pl.DataFrame:
    """Return the parts of the steps of a model, with the waits for other ranks if they are known."""
    if plan is None:
        return ledger.divide_steps(model)
    return ledger.divide_steps(model, plan.find_late_times(model), plan.list_calls_on_cpu())


def build_ledger(rows: pl.DataFrame, step_ns: int) -> tuple[LedgerPart, ...]:
    """Return the parts of all steps, the largest first, given the rows of ``ledger.divide_steps``."""
    totals = rows.group_by("part").agg(pl.col("ns").sum()).sort("ns", "part", descending=[True, False])
    if totals.is_empty():
        return ()
    total = int(totals["ns"].sum())
    exact = [int(ns) * step_ns for ns in totals["ns"]]
    whole = [value // total for value in exact]
    missing = step_ns - sum(whole)
    by_rest = sorted(range(len(exact)), key=lambda i: (-(exact[i] % total), i))
    for i in by_rest[:missing]:
        whole[i] += 1
    places = rows.group_by("part", "label").agg(pl.col("ns").sum()).sort("ns", "label", descending=[True, False])
    listed: dict[str, list[tuple[str, int]]] = {}
    for part, label, ns in places.iter_rows():
        listed.setdefault(str(part), []).append((label, int(ns)))
    return tuple(
        LedgerPart(part, ledger.PARTS[part], ns, int(all_ns) / total, int(all_ns), tuple(listed[part][:_PLACES]))
        for (part, all_ns), ns in zip(totals.iter_rows(), whole, strict=True)
    )


def _describe_cold_steps(cold: Model, median_ns: int, plan: RankPlan | None) -> ColdSteps:
    """Return the ledger of the warm-up."""
    count, total = len(cold.steps), cold.duration_ns
    ledger_parts = build_ledger(divide_steps(cold, plan), total)
    return ColdSteps(count, total, max(0, total - count * median_ns), ledger_parts, cold.start_ns, cold.end_ns)
