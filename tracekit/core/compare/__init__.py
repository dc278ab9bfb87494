"""Compare two sides. A side is a capture, a set of captures or a saved summary.

``summary`` reduces a side to counts and times by name and iteration. ``changes`` computes the changes, and
``permutation`` tests whether they are larger than the differences between iterations. ``notes`` describes limits of
the comparison, and ``makers`` which names GPUs of different makers have in common. ``conditions`` evaluates
conditions on the changes, with which a build can be checked.
"""

from __future__ import annotations

from tracekit.core.compare.conditions import METRICS, ROW_COUNTS, Condition, ConditionResult, parse_condition
from tracekit.core.compare.diff import DEFAULT_ALPHA, EVIDENCE, Diff, check_kinds, compare
from tracekit.core.compare.makers import choose_kinds
from tracekit.core.compare.summary import (
    KINDS,
    MISSING,
    READ_COLUMNS,
    RECORDED,
    SAMPLES,
    Summary,
    SummarySource,
    collect_capture_facts,
    combine_summaries,
    summarize_trace,
)

__all__ = [
    "DEFAULT_ALPHA",
    "EVIDENCE",
    "KINDS",
    "METRICS",
    "MISSING",
    "READ_COLUMNS",
    "RECORDED",
    "ROW_COUNTS",
    "SAMPLES",
    "Condition",
    "ConditionResult",
    "Diff",
    "Summary",
    "SummarySource",
    "check_kinds",
    "choose_kinds",
    "collect_capture_facts",
    "combine_summaries",
    "compare",
    "parse_condition",
    "summarize_trace",
]
