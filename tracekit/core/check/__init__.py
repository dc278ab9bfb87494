"""Check whether one group of runs is slower than another one, given how much runs differ from one another.

``runs`` reduces summaries of captures to runs, and reads their values as matrices. ``inference`` estimates shifts with
intervals, and ``gate`` derives verdicts and evaluates conditions. ``prediction`` compares a measured saving with a
predicted one. ``result`` defines the result.
"""

from __future__ import annotations

from tracekit.core.check.gate import (
    DEFAULT_ALPHA,
    DEFAULT_KINDS,
    DEFAULT_MIN_CHANGE,
    DEFAULT_RESOLUTION,
    CheckLimits,
    check_runs,
)
from tracekit.core.check.prediction import PredictedSaving, PredictionResult, parse_prediction
from tracekit.core.check.result import Check, CheckedRun, CheckRow
from tracekit.core.check.runs import compute_run_id, reduce_to_run

__all__ = [
    "DEFAULT_ALPHA",
    "DEFAULT_KINDS",
    "DEFAULT_MIN_CHANGE",
    "DEFAULT_RESOLUTION",
    "Check",
    "CheckLimits",
    "CheckRow",
    "CheckedRun",
    "PredictedSaving",
    "PredictionResult",
    "check_runs",
    "compute_run_id",
    "parse_prediction",
    "reduce_to_run",
]
