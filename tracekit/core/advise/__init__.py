"""Find performance problems of a program. Each finding consists of a problem, its evidence and a recommendation.

``iteration_activity`` provides the data that the rules examine: the GPU activities and ops of the aggregated
iterations. A rule is a function that takes an ``IterationActivity`` and yields findings. All rules are listed in
``RULES``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.advise import balance, code, host, kernels
from tracekit.core.advise.iteration_activity import Finding, IterationActivity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.core.diagnosis import Why
    from tracekit.core.diagnosis.answer import CauseOfTime
    from tracekit.core.rollup import Rollup

__all__ = ["RULES", "Finding", "IterationActivity", "advise", "apply_rules"]

_OF_OTHER_PROBLEMS = (kernels.overrunning_kernels, balance.imbalance, balance.variation)
"""The rules whose problems no cause of ``why`` describes."""
RULES = (
    host.data_loading,
    host.idle_by_cause,
    host.late_launches,
    host.synchronizations,
    host.module_loading,
    code.jit_compilation,
    host.copies,
    kernels.small_kernels,
    kernels.precision,
    kernels.overrunning_kernels,
    balance.imbalance,
    balance.communication,
    balance.variation,
)
SCHEMA = {
    "rule": pl.String,
    "problem": pl.String,
    "evidence": pl.String,
    "advice": pl.String,
    "time_ns": pl.Int64,
    "share": pl.Float64,
    "count": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "figures": pl.String,
}


def advise(rollup: Rollup) -> pl.DataFrame:
    """Return the performance problems of the aggregated iterations, the most expensive ones first.

    The problems are the causes that ``why`` finds, and those of the rules about other problems. If ``why`` cannot
    divide the time of steps, as in databases of DLProf, whose iterations have no ranges, all rules are applied. The
    warm-up is not examined unless the roll-up explicitly includes it.

    Returns:
        One row per finding: ``rule``, ``problem``, ``evidence``, ``advice``, ``time_ns`` (time that could be saved),
        ``share`` (``time_ns`` as a percentage of the duration of the iterations), ``count`` (number of occurrences),
        ``start_ns`` and ``end_ns`` of the longest occurrence, and ``figures`` (the numbers in the evidence, as a JSON
        object).
    """
    activity = IterationActivity(rollup.for_advice)
    if activity.duration_ns <= 0 or not activity.gpu_activities.height:
        return _build_frame([])
    answer = _explain(activity)
    if answer is None or answer.step is None:
        return apply_rules(rollup)
    causes = [_convert_cause(activity, cause) for cause in answer.causes if cause.saving.high > 0]
    return _build_frame([*causes, *(f for rule in _OF_OTHER_PROBLEMS for f in rule(activity))])


def apply_rules(rollup: Rollup) -> pl.DataFrame:
    """Return the findings of all rules, as ``advise`` does. Several rules may count the same time."""
    activity = IterationActivity(rollup.for_advice)
    is_empty = activity.duration_ns <= 0 or not activity.gpu_activities.height
    return _build_frame([] if is_empty else [f for rule in RULES for f in rule(activity)])


def _explain(activity: IterationActivity) -> Why | None:
    """Return the answer of ``why``, or None in DLProf's mode and for captures that contain the iterations of DLProf."""
    from tracekit.core.diagnosis import diagnose  # the diagnosis formats durations like the rules

    measures = activity.rollup.measures
    if measures.mode == "dlprof" or measures.ops.frames("iterations").select(pl.len()).collect().item():
        return None
    return diagnose(activity.rollup)


def _convert_cause(activity: IterationActivity, cause: CauseOfTime) -> Finding:
    from tracekit.core.diagnosis.texts import write_title

    windows, evidence = activity.windows, cause.evidence
    start = windows["start_ns"][0] if evidence.start_ns is None else evidence.start_ns
    end = windows["end_ns"][-1] if evidence.end_ns is None else evidence.end_ns
    return Finding(
        cause.cause,
        write_title(cause),
        evidence.text,
        cause.change,
        round(cause.saving.likely * activity.duration_ns),
        100 * cause.saving.likely,
        evidence.count,
        start,
        end,
        {**asdict(cause.saving), "after": cause.after, "length_ns": activity.duration_ns},
    )


def _build_frame(findings: Iterable[Finding]) -> pl.DataFrame:
    rows = [(*astuple(f)[:-1], json.dumps(f.figures)) for f in findings]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").sort("time_ns", descending=True, maintain_order=True)
