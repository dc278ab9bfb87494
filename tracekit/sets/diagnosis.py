"""Explain why the steps of a job with several ranks take as long as they do."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.core.diagnosis import Why
    from tracekit.sets.trace_set import TraceSet
    from tracekit.trace import Trace


def explain_job(traces: TraceSet, step_time_ns: int | None) -> Why:
    """Return the answer for the rank whose steps take longest, with the answers of all ranks.

    Args:
        traces: The captures of the ranks.
        step_time_ns: Duration of a step without the profiler, in ns, or None.
    """
    answers = traces.map(functools.partial(_explain_rank, step_time_ns))
    ranks = tuple(replace(answer, rank=rank) for rank, answer in zip(traces.ranks, answers, strict=True))
    slowest = max(ranks, key=lambda answer: answer.step.median_ns if answer.step else -1)
    return replace(slowest, ranks=ranks) if len(ranks) > 1 else replace(slowest, rank=None)


def _explain_rank(step_time_ns: int | None, trace: Trace) -> Why:
    return trace.why(step_time_ns=step_time_ns)
