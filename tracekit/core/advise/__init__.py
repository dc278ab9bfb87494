"""What a capture shows that could be faster: findings, each with its evidence and what to try.

``scene`` is what rules look at, the GPU work and the ops of the aggregated iterations. A rule is a function of it that
gives findings, and a name in ``RULES``.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.advise import balance, host, kernels
from tracekit.core.advise.scene import Finding, Scene

if TYPE_CHECKING:
    from tracekit.core.rollup import Rollup

__all__ = ["RULES", "Finding", "Scene", "advise"]

RULES = (
    host.data_loading,
    host.idle_by_cause,
    host.late_launches,
    host.synchronizations,
    host.module_loading,
    host.copies,
    kernels.small_kernels,
    kernels.precision,
    balance.devices,
    balance.communication,
    balance.steps,
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
    """Look for what could be faster in the aggregated iterations.

    Returns:
        One row a finding, what costs most time first: ``rule``, ``problem``, ``evidence``, ``advice``, ``time_ns`` (at
        stake), ``share`` (of the time of the iterations, in percent), ``count`` (of what was found), ``start_ns`` to
        ``end_ns``, where the greatest example is, and ``figures``: the numbers behind the evidence, as a JSON object.
    """
    scene = Scene(rollup)
    found = [f for rule in RULES for f in rule(scene)] if scene.length_ns > 0 and scene.gpu.height else []
    made = pl.DataFrame([(*astuple(f)[:-1], json.dumps(f.figures)) for f in found], schema=SCHEMA, orient="row")
    return made.sort("time_ns", descending=True, maintain_order=True)
