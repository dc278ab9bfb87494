"""Predict the time of the steps of a job with several ranks after edits of their events."""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit.core.diagnosis import Options, check_matches, combine, parse_edits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.core.diagnosis import WhatIf
    from tracekit.core.diagnosis.edits import StepEdit
    from tracekit.sets.member import Member
    from tracekit.sets.trace_set import TraceSet
    from tracekit.trace import Trace


def predict_job(traces: TraceSet, edits: str | Iterable[str], step_time_ns: int | None) -> WhatIf:
    """Return the prediction for the rank with the longest predicted step, with the predictions for all ranks.

    Args:
        traces: The captures of the ranks.
        edits: One or several edits.
        step_time_ns: Duration of a step without the profiler, in ns, or None.

    Raises:
        UnknownFormatError: A text is not an edit, or an edit matches nothing in any rank.
    """
    parsed = parse_edits(edits)
    groups: defaultdict[tuple[StepEdit, ...], list[Member]] = defaultdict(list)
    for member in traces.captures:
        groups[tuple(edit for edit in parsed if edit.applies_to(member.rank))].append(member)
    results: dict[Member, WhatIf] = {}
    for members in groups.values():
        # The same edits apply to all ranks of a group, so the number of any of them selects these edits.
        function = functools.partial(_predict_rank, parsed, step_time_ns, members[0].rank)
        results |= traces.results_by_member(traces.engine.map(traces.function_of_member(function), members))
    ranks = [replace(results[m], rank=m.rank) for m in traces.captures if m in results]
    answer = combine(ranks) if len(traces.captures) > 1 else ranks[0]
    check_matches(parsed, answer)
    return answer


def _predict_rank(edits: tuple[StepEdit, ...], step_time_ns: int | None, rank: int, trace: Trace) -> WhatIf:
    from tracekit.trace import get_trace_view

    return get_trace_view(trace).what_if(edits, Options(step_time_ns), rank=rank)
