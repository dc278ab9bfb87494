"""Summarize the events of a trace for a comparison with other traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.plan.tables import get_rollup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.compare import Summary
    from tracekit.plan.view import TraceView


def summarize(view: TraceView, kinds: Sequence[str], *, exact_names: bool = False) -> Summary:
    """Return the number and the times of the events of a trace, by name and iteration.

    Args:
        view: The view of the correlated and rolled-up trace.
        kinds: Kinds of events to summarize, such as ``kernels``. They are keys of ``core.compare.KINDS``.
        exact_names: Whether to use names as recorded. If False, names are normalized.
    """
    from tracekit.core import compare

    view.prefetch(compare.READ_COLUMNS)
    rollup = get_rollup(view.plan)
    source = compare.Source(view.frame, rollup, exact_names)
    counts = {table: view.count(table) for tables in compare.RECORDED.values() for table in tables}
    facts = compare.collect_capture_facts(view.info, source, counts)
    return compare.summarize_trace(source, kinds=kinds, facts=facts)
