"""Summarize the events of a trace for a comparison with other traces."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.plan.tables import get_rollup
from tracekit.registry.tables import prefetch, scan_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.core.compare import Summary
    from tracekit.plan.view import TraceView


_OPS = ("nvtx_ranges", *schemas.list_tables("kernel"))
_TABLES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("kernels", "op_kernels", "categories"), ("kernels",)),
    **dict.fromkeys(("ops", "groups", "nvtx_gpu", "iterations"), _OPS),
    "nvtx": ("nvtx_ranges",),
    "api": ("api_calls",),
    "copies": ("memcpys", "memsets"),
    "idle": schemas.list_tables("activity"),
}
"""Tables from which the rows of each kind result."""
_MAX_REASON = 1000
"""Maximum number of characters of a reason, which baselines contain."""


def get_key_op(view: TraceView) -> str | None:
    """Return the name of the op that delimits the iterations of a rolled-up trace, or None if there is none."""
    iterations = get_rollup(view.plan).steady.iterations
    return iterations.key if iterations.has_key_op else None


def summarize(view: TraceView, kinds: Sequence[str], *, exact_names: bool = False) -> Summary:
    """Return the number and the times of the events of a trace, by name and iteration, without the warm-up.

    The facts of the summary state why there are no events of a kind.

    Args:
        view: The view of the correlated and rolled-up trace.
        kinds: Kinds of events to summarize, such as ``kernels``. They are keys of ``core.compare.KINDS``.
        exact_names: Whether to use names as recorded. If False, names are normalized.
    """
    from tracekit.core import compare

    prefetch(view.tables, compare.READ_COLUMNS)
    rollup = get_rollup(view.plan).steady
    source = compare.SummarySource(functools.partial(scan_table, view.tables), rollup, exact_names)
    counts = view.tables.count_many([table for tables in compare.RECORDED.values() for table in tables])
    facts = compare.collect_capture_facts(view.info, source, counts)
    summary = compare.summarize_trace(source, kinds=kinds, facts=facts)
    present = set(summary.samples["kind"])
    absences = {kind: view.explain_missing_tables(_TABLES[kind]) for kind in kinds if kind not in present}
    reasons = {compare.MISSING.format(kind): absence.sentence[:_MAX_REASON] for kind, absence in absences.items()}
    return replace(summary, facts={**summary.facts, **reasons})
