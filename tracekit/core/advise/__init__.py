"""List what makes the steps of a program slow: the causes that ``why`` finds, and problems that only rules measure.

``iteration_activity`` provides the data that the rules examine: the kernels of the aggregated iterations. A rule is a
function that takes an ``IterationActivity`` and yields findings. All rules are listed in ``RULES``. They measure, and
predict no saving: what makes a step slow is only stated by ``why``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.advise import kernels
from tracekit.core.advise.kernels import Finding, IterationActivity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.diagnosis import Why
    from tracekit.core.diagnosis.answer import CauseOfTime
    from tracekit.core.rollup import Rollup

__all__ = ["RULES", "Finding", "IterationActivity", "advise", "explain"]

RULES = (kernels.overrunning_kernels, kernels.imbalance, kernels.variation)
"""The rules whose problems no cause of ``why`` describes."""
_CAUSES_OF_IMBALANCE = {"imbalance", "late_rank"}
SCHEMA = {
    "rule": pl.String,
    "problem": pl.String,
    "evidence": pl.String,
    "advice": pl.String,
    "time_ns": pl.Int64,
    "share": pl.Float64,
    "after": pl.Float64,
    "count": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "figures": pl.String,
}


def advise(rollup: Rollup) -> pl.DataFrame:
    """Return the causes that ``why`` finds in the steady steps, in its order, and then the findings of the rules.

    The warm-up is not examined unless the roll-up explicitly includes it.

    Returns:
        One row per finding: ``rule``, ``problem``, ``evidence``, ``advice``, ``time_ns``, ``share`` (``time_ns`` as a
        percentage of the duration of the iterations), ``after``, ``count`` (number of occurrences), ``start_ns`` and
        ``end_ns`` of the longest occurrence, and ``figures`` (the numbers in the evidence, as a JSON object).

        ``time_ns`` is what the cure of a cause would save if it were the only one, so these times may overlap.
        ``after`` is the percentage that it saves in addition to the cures of the causes above it, so the sum is what
        all of them save together. For the findings of rules, ``time_ns`` is measured, and ``after`` is null.
    """
    answer = explain(rollup)
    activity = IterationActivity(rollup.for_advice)
    findings = [_convert_cause(activity, answer, cause) for cause in answer.causes if cause.saving.high > 0]
    if activity.duration_ns > 0 and activity.kernels.height:
        measured = [finding for rule in RULES for finding in rule(activity)]
        findings += sorted(_drop_explained_imbalance(measured, answer), key=lambda finding: -finding.time_ns)
    rows = [(*astuple(finding)[:-1], json.dumps(finding.figures)) for finding in findings]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def explain(rollup: Rollup) -> Why:
    """Return the answer of ``why`` for the steady steps of a roll-up."""
    from tracekit.core.diagnosis import diagnose  # the diagnosis formats durations like the rules

    return diagnose(rollup.for_advice)


def _drop_explained_imbalance(findings: list[Finding], answer: Why) -> Iterator[Finding]:
    """Yield findings, without the imbalance of devices if the answer explains that of their ranks."""
    is_explained = any(cause.cause in _CAUSES_OF_IMBALANCE for cause in answer.causes)
    yield from (finding for finding in findings if finding.rule != "imbalance" or not is_explained)


def _convert_cause(activity: IterationActivity, answer: Why, cause: CauseOfTime) -> Finding:
    from tracekit.core.diagnosis.texts import write_title

    evidence, windows = cause.evidence, activity.windows
    length = evidence.total_ns if answer.step is None else answer.step.total_ns
    start = windows["start_ns"][0] if evidence.start_ns is None else evidence.start_ns
    end = windows["end_ns"][-1] if evidence.end_ns is None else evidence.end_ns
    return Finding(
        cause.cause,
        write_title(cause),
        evidence.text,
        cause.change,
        round(cause.saving.likely * length),
        100 * cause.saving.likely,
        100 * cause.after,
        evidence.count,
        start,
        end,
        {**asdict(cause.saving), "after": cause.after, "length_ns": length},
    )
