"""Write the answer of ``why`` as texts, which are the same on the command line, in HTML pages and in the viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.core.diagnosis.ledger import WAIT_PART
from tracekit.text import format_duration, shorten_middle
from tracekit.text.explanations import (
    KERNELS_TITLE,
    REST,
    STEP_TITLE,
    CauseText,
    Explanation,
    LedgerRow,
    RankRow,
    RowsOfCause,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.core.diagnosis.answer import CauseOfTime, LedgerPart, Rows, StepFigures, Why
    from tracekit.core.diagnosis.what_if import WhatIf

MIN_SHARE = 0.005
"""Smallest share of a part that has a row of its own."""
MAX_PARTS = 12
MAX_RANKS = 16


def write_explanation(answer: Why, *, max_parts: int = MAX_PARTS) -> Explanation:
    """Return the texts of an answer.

    Args:
        answer: The answer.
        max_parts: Maximum number of parts of a ledger that have a row of their own.
    """
    cold = answer.cold
    heading = ""
    if cold is not None:
        steps = "the first step takes" if cold.count == 1 else f"the first {cold.count} steps take"
        heading = f"{steps} {format_duration(cold.total_ns)}"
    return Explanation(
        is_answered=answer.step is not None,
        sentence=answer.sentence,
        ledger=tuple(list_ledger_rows(answer.ledger, max_parts)),
        causes=tuple(_write_cause(i, cause, answer.step) for i, cause in enumerate(answer.causes)),
        together=f"all together: {answer.together:.0%}" if len(answer.causes) > 1 and answer.together else "",
        cold=heading,
        cold_ledger=() if cold is None else tuple(list_ledger_rows(cold.ledger, max_parts)),
        ranks=tuple(list_ranks(answer.ranks)),
        notes=answer.notes,
        ledger_title=KERNELS_TITLE if answer.scope == "kernels" else STEP_TITLE,
        status=answer.status,
        scope=_describe_scope(answer),
        step_ns=answer.step.median_ns if answer.step else 0,
        skew=_describe_skew(answer.ranks),
        rank_rows=tuple(_list_rank_rows(answer)),
        cold_ns=0 if cold is None else cold.total_ns,
        cold_span=None if cold is None else (cold.start_ns, cold.end_ns),
    )


def _describe_scope(answer: Why) -> str:
    """Return which steps are explained, and on which GPU."""
    step, device = answer.step, f" on {answer.device}" if answer.device else ""
    if step is None:
        return ""
    if answer.scope == "kernels":
        return f"Isolated kernels{device}"
    if step.name is None:
        return f"The whole capture{device}"
    count = "1 steady step" if step.count == 1 else f"{step.count:,} steady steps"
    cold = f"; {step.cold:,} of the warm-up {'is' if step.cold == 1 else 'are'} left out" if step.cold else ""
    return f"{count} delimited by '{step.name}'{device}{cold}"


def _list_rank_rows(answer: Why) -> Iterator[RankRow]:
    """Yield the steps of each rank. Of many ranks, those with the longest steps are listed, and the slowest one."""
    ordered = sorted(answer.ranks, key=lambda rank: (rank.rank != answer.rank, -_get_step_ns(rank)))
    for rank in sorted(ordered[:MAX_RANKS], key=lambda rank: rank.rank or 0):
        busy = sum(part.share for part in rank.ledger if part.group in ("compute", "opaque"))
        waits = [part for part in rank.ledger if part.part == WAIT_PART]
        yield RankRow(
            rank=rank.rank or 0,
            step_ns=rank.step.median_ns if rank.step else None,
            busy=busy,
            waits_ns=sum(part.ns for part in waits),
            waits=sum(part.share for part in waits),
            is_slowest=rank.rank == answer.rank,
        )


def _get_step_ns(answer: Why) -> int:
    return answer.step.median_ns if answer.step else -1


def _describe_skew(ranks: Sequence[Why]) -> str:
    """Return how the steps of ranks differ, and which rank waits longest, or "" if there are less than two ranks."""
    known = [rank for rank in ranks if rank.step is not None]
    if not known[1:]:
        return ""
    fastest, slowest = min(known, key=_get_step_ns), max(known, key=_get_step_ns)
    text = f"{len(ranks)} ranks: a step takes between {format_duration(_get_step_ns(fastest))} (rank {fastest.rank})"
    text += f" and {format_duration(_get_step_ns(slowest))} (rank {slowest.rank})"
    waits = [(sum(part.ns for part in rank.ledger if part.part == WAIT_PART), rank.rank) for rank in known]
    longest, waiting = max(waits, key=lambda wait: wait[0])
    return f"{text}; rank {waiting} waits longest for others, for {format_duration(longest)}" if longest else text


def list_ranks(ranks: Sequence[Why] | Sequence[WhatIf]) -> Iterator[str]:
    """Yield one line per rank: its sentence. Only the first ranks are listed if there are many."""
    for rank in ranks[:MAX_RANKS]:
        yield f"rank {rank.rank}: {rank.sentence}"
    if len(ranks) > MAX_RANKS:
        yield f"{len(ranks) - MAX_RANKS} more ranks"


def list_ledger_rows(parts: Sequence[LedgerPart], max_parts: int = MAX_PARTS) -> Iterator[LedgerRow]:
    """Yield the rows of a ledger. The last row is the sum of all parts without a row of their own."""
    large = sum(part.share >= MIN_SHARE for part in parts)
    count = min(large, max_parts)
    for part in parts[:count]:
        place = part.places[0][0] if part.places else ""
        name = part.part.replace("_", " ")
        yield LedgerRow(f"idle: {name}" if part.group == "idle" else name, part.group, place, part.ns, part.share)
    rest = parts[count:]
    if rest:
        yield LedgerRow(f"{len(rest)} more", REST, "", sum(p.ns for p in rest), sum(p.share for p in rest))


def write_title(cause: CauseOfTime) -> str:
    """Return the name and the place of a cause."""
    place = f" in '{shorten_middle(cause.place.range)}'" if cause.place.range else ""
    return f"{cause.cause.replace('_', ' ')}{place}"


def _write_cause(index: int, cause: CauseOfTime, step: StepFigures | None) -> CauseText:
    saving = f"saves {cause.saving.likely:.0%} ({cause.saving.low:.0%} to {cause.saving.high:.0%})"
    if cause.status == "unsure":
        saving = f"unsure: may save {cause.saving.low:.0%} to {cause.saving.high:.0%}"
    if cause.saving.high == 0:
        saving = "unsure: no saving is predicted" if cause.status == "unsure" else "healthy"
    after = f", {cause.after:.0%} after those above" if index and cause.after else ""
    functions = [shorten_middle(function) for function in cause.place.functions]
    return CauseText(
        cause=cause.cause,
        title=write_title(cause),
        saving=saving + after,
        evidence=cause.evidence.text,
        functions=f"the CPU is in {', '.join(functions)}" if functions else "",
        change=f"change: {cause.change}" if cause.change else "",
        check=f"check: {cause.check}" if cause.check else "",
        missing=f"to be sure, record: {cause.missing}" if cause.missing else "",
        count=cause.evidence.count,
        total_ns=cause.evidence.total_ns,
        start_ns=cause.evidence.start_ns,
        end_ns=cause.evidence.end_ns,
        interval=(cause.saving.low, cause.saving.likely, cause.saving.high),
        saving_ns=round(cause.saving.likely * step.mean_ns) if step else 0,
        is_unsure=cause.status == "unsure",
        event=None if cause.evidence.row_id is None else f"{cause.evidence.table}:{cause.evidence.row_id}",
        rank=cause.place.rank,
        rows=tuple(_describe_rows(rows) for rows in cause.rows),
    )


def _describe_rows(rows: Rows) -> RowsOfCause:
    ids = rows.ids if len(rows.ids) == rows.count else ()
    return RowsOfCause(rows.table, rows.count, rows.names, rows.name_count, rows.start_ns, rows.end_ns, ids)
