"""Select the steady steps of a process, and divide their time into the parts of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.diagnosis import ledger
from tracekit.core.diagnosis.answer import ColdSteps, LedgerPart, StepFigures
from tracekit.core.diagnosis.model import Model, build_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.diagnosis.events import Events, Step
    from tracekit.core.diagnosis.ranks import RankPlan
    from tracekit.core.rollup import Rollup

_PLACES = 3


class Basis(NamedTuple):
    """The steady steps of a process, and how their time is divided."""

    model: Model
    step: StepFigures
    parts: tuple[LedgerPart, ...]
    cold: ColdSteps | None


def select_steady_steps(events: Events) -> tuple[Step, ...]:
    """Return the steps of a process without the warm-up."""
    return tuple(s for s in events.steps if not s.is_cold) or events.steps


def measure_steps(events: Events, rollup: Rollup, plan: RankPlan | None = None) -> Basis:
    """Return the model of the steady steps of a process, and how their time is divided."""
    steady = select_steady_steps(events)
    complete = build_model(events, steady)
    rows = divide_steps(complete, plan)
    durations = np.diff(complete.bounds)
    step = StepFigures(
        name=events.key_op,
        count=len(steady),
        cold=len(events.steps) - len(steady),
        median_ns=int(np.sort(durations)[(len(durations) - 1) // 2]),
        mean_ns=int(durations.sum()) // len(durations),
        total_ns=int(durations.sum()),
        covered=rollup.step_summary.gpu_time_share,
    )
    cold = _describe_cold_steps(events, steady, step.median_ns, plan)
    return Basis(complete, step, build_ledger(rows, step.median_ns), cold)


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


def _describe_cold_steps(
    events: Events, steady: Sequence[Step], median_ns: int, plan: RankPlan | None
) -> ColdSteps | None:
    """Return the ledger of the warm-up, or None if there is none."""
    cold = tuple(s for s in events.steps if s.is_cold and s.start_ns < steady[0].start_ns)
    if not cold:
        return None
    model = build_model(events, cold)
    rows = divide_steps(model, plan)
    total = model.duration_ns
    excess = max(0, total - len(cold) * median_ns)
    return ColdSteps(len(cold), total, excess, build_ledger(rows, total), model.start_ns, model.end_ns)
