"""Find performance problems of a program. Each finding consists of a problem, its evidence and a recommendation.

``iteration_activity`` provides the data that the rules examine: the GPU activities and ops of the aggregated
iterations. A rule is a function that takes an ``IterationActivity`` and yields findings. All rules are listed in
``RULES``.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.advise import balance, code, host, kernels
from tracekit.core.advise.iteration_activity import Finding, IterationActivity

if TYPE_CHECKING:
    from tracekit.core.rollup import Rollup

__all__ = ["RULES", "Finding", "IterationActivity", "advise"]

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

    The warm-up is not examined unless the roll-up explicitly includes it.

    Returns:
        One row per finding: ``rule``, ``problem``, ``evidence``, ``advice``, ``time_ns`` (upper bound of the time that
        could be saved), ``share`` (``time_ns`` as a percentage of the duration of the iterations), ``count`` (number of
        occurrences), ``start_ns`` and ``end_ns`` of the longest occurrence, and ``figures`` (the numbers in the
        evidence, as a JSON object).
    """
    activity = IterationActivity(rollup.for_advice)
    findings = (
        [f for rule in RULES for f in rule(activity)]
        if activity.duration_ns > 0 and activity.gpu_activities.height
        else []
    )
    rows = [(*astuple(f)[:-1], json.dumps(f.figures)) for f in findings]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").sort("time_ns", descending=True, maintain_order=True)
