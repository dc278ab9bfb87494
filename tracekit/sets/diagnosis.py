"""Explain why the steps of a job with several ranks take as long as they do.

Each capture is read twice, one at a time in each process: the first time to profile the rank and to match its
communication, the second time to diagnose it, given what is known about the other ranks.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from tracekit.errors import TracekitError, TracekitWarning
from tracekit.sets.communication import concat_rank_tables
from tracekit.sets.tasks import map_by_rank
from tracekit.trace import call_with_tables, get_trace_view

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import polars as pl

    from tracekit.core.diagnosis import Examination, Options, Plan, Profile, Why
    from tracekit.sets.member import Member
    from tracekit.sets.trace_set import TraceSet
    from tracekit.trace import Trace

Result = TypeVar("Result")


def explain_job(traces: TraceSet, options: Options) -> Why:
    """Return the answer of the job: the ledger of its slowest rank, its causes, and the answers of all ranks.

    A rank whose capture cannot be read has the error as its answer, and the others are explained without it.

    Args:
        traces: The captures of the ranks.
        options: Options.

    Raises:
        TracekitError: No capture can be read.
    """
    from tracekit.core.communication import Communication
    from tracekit.core.diagnosis import explain_job as combine
    from tracekit.core.diagnosis import plan_ranks

    if len(traces.ranks) == 1:
        return traces.map(functools.partial(_explain_rank, options))[0]
    errors: dict[int, Exception] = {}
    profiled = _collect(traces.outcomes(_profile_rank), errors)
    if not profiled:
        raise next(iter(errors.values()))
    ranked = concat_rank_tables(list(profiled), [tables for _, tables in profiled.values()])
    communication = Communication(ranked, ignores_missing_ranks=True)
    plans, notes = plan_ranks({rank: profiles for rank, (profiles, _) in profiled.items()}, communication)
    functions = {rank: functools.partial(_examine_rank, options, plans[rank]) for rank in profiled}
    examined: dict[int, list[Examination] | Why] = _collect(map_by_rank(traces, functions), errors)
    examinations = [e for of_rank in examined.values() if isinstance(of_rank, list) for e in of_rank]
    others = [replace(answer, rank=rank) for rank, answer in examined.items() if not isinstance(answer, list)]
    others += [_describe_error(rank, error) for rank, error in errors.items()]
    return combine(examinations, others, [*notes, *(a.sentence for a in others if a.rank in errors)])


def _collect(outcomes: Iterable[tuple[Member, Result | Exception]], errors: dict[int, Exception]) -> dict[int, Result]:
    """Return the results by rank. Errors are added to ``errors``, and a warning is issued for each of them."""
    results = {}
    for member, result in outcomes:
        if isinstance(result, Exception):
            errors[member.rank] = result
            warnings.warn(f"rank {member.rank} is left out: {result}", TracekitWarning, stacklevel=3)
        else:
            results[member.rank] = result
    return results


def _describe_error(rank: int, error: Exception) -> Why:
    """Return the answer of a rank whose capture cannot be read."""
    from tracekit.core.diagnosis import Why

    text = error.message if isinstance(error, TracekitError) else str(error)
    return Why(f"Rank {rank} is left out, because its capture cannot be read: {text}.", "not_recorded", rank=rank)


def _profile_rank(trace: Trace) -> tuple[list[Profile], dict[str, pl.DataFrame]]:
    from tracekit.core.communication import read_call_tables

    tables = call_with_tables(trace, read_call_tables, key=read_call_tables)
    return get_trace_view(trace).profile_processes(), tables


def _examine_rank(options: Options, plans: Mapping[int | None, Plan], trace: Trace) -> list[Examination] | Why:
    """Return the results for the processes of a rank, or its answer if it has no GPU work."""
    return get_trace_view(trace).examine_processes(options, plans) if plans else _explain_rank(options, trace)


def _explain_rank(options: Options, trace: Trace) -> Why:
    return get_trace_view(trace).why(options)
