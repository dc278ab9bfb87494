"""Predict the time of the steps of a job with several ranks after edits of their events."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tracekit.core.diagnosis import check_matches, combine, parse_edits
from tracekit.sets.member_set import map_by_rank
from tracekit.trace import get_trace_view

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.core.diagnosis import Options, WhatIf
    from tracekit.core.diagnosis.edits import StepEdit
    from tracekit.sets.member_set import MemberSet
    from tracekit.trace import Trace


def predict_job(traces: MemberSet, edits: str | Iterable[str], options: Options) -> WhatIf:
    """Return the prediction for the rank with the longest predicted step, with the predictions for all ranks.

    Args:
        traces: The captures of the ranks.
        edits: One or several edits.
        options: Options.

    Raises:
        UnknownFormatError: A text is not an edit, or an edit matches nothing in any rank.
    """
    parsed = parse_edits(edits)
    functions = {rank: functools.partial(_predict_rank, parsed, options, rank) for rank in traces.ranks}
    ranks = [result for _, result in traces.skip_unreadable(map_by_rank(traces, functions))]
    answer = combine(ranks) if len(traces.captures) > 1 else ranks[0]
    check_matches(parsed, answer)
    return answer


def _predict_rank(edits: tuple[StepEdit, ...], options: Options, rank: int, trace: Trace) -> WhatIf:
    return get_trace_view(trace).what_if(edits, options, rank=rank)
