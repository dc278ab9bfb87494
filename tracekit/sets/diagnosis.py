"""Explain why the steps of a job with several ranks take as long as they do.

Each capture is read twice, one at a time in each process: the first time to profile the rank and to match its
communication, the second time to diagnose it, given what is known about the other ranks.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from tracekit.core.diagnosis import check_matches, combine, parse_edits
from tracekit.errors import TracekitError, TracekitWarning
from tracekit.registry import detection
from tracekit.registry.source import Source
from tracekit.sets.communication import concat_rank_tables
from tracekit.sets.member_set import map_by_rank, open_member
from tracekit.sets.ranks import RESULT_FORMATS, parse_ranks_in_file_name
from tracekit.trace import call_with_tables, get_trace_view

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import polars as pl

    from tracekit.core.diagnosis import Examination, Options, RankPlan, RankProfile, WhatIf, Why
    from tracekit.core.diagnosis.edits import StepEdit
    from tracekit.sets.member import Member
    from tracekit.sets.member_set import MemberSet
    from tracekit.trace import Trace

Result = TypeVar("Result")


def explain_job(traces: MemberSet, options: Options) -> Why:
    """Return the answer of the job: the ledger of its slowest rank, its causes, and the answers of all ranks.

    A rank whose capture cannot be read has the error as its answer, and the others are explained without it.

    Args:
        traces: The captures of the ranks.
        options: Options.

    Raises:
        TracekitError: No capture can be read.
    """
    from tracekit.core.communication import LOGGED
    from tracekit.core.diagnosis import explain_hang
    from tracekit.core.diagnosis import explain_job as combine

    traces, results = _separate_results(traces)
    if len(traces.ranks) == 1:
        (rank,) = traces.ranks
        return traces.map(functools.partial(_explain_rank, options, results.get(rank)))[0]
    errors: dict[int, Exception] = {}
    profiled = _collect(traces.outcomes(_profile_rank), errors)
    if not profiled:
        raise next(iter(errors.values()))
    plans, notes = _plan_profiled_ranks(profiled)
    functions = {rank: functools.partial(_examine_rank, options, plans[rank], results.get(rank)) for rank in profiled}
    examined: dict[int, list[Examination] | Why] = _collect(map_by_rank(traces, functions), errors)
    examinations = [e for of_rank in examined.values() if isinstance(of_rank, list) for e in of_rank]
    others = [replace(answer, rank=rank) for rank, answer in examined.items() if not isinstance(answer, list)]
    others += [_describe_error(rank, error) for rank, error in errors.items()]
    answer = combine(examinations, others, [*notes, *(a.sentence for a in others if a.rank in errors)])
    ranked = concat_rank_tables(list(profiled), [tables for _, tables in profiled.values()])
    return explain_hang(answer, ranked[LOGGED])


def plan_job(traces: MemberSet) -> dict[int, dict[int | None, RankPlan]]:
    """Return what is known about the other ranks of a job, by rank and id of the process.

    Ranks whose captures cannot be read are left out.
    """
    outcomes = traces.outcomes(_profile_rank)
    profiled = {member.rank: result for member, result in outcomes if not isinstance(result, Exception)}
    return _plan_profiled_ranks(profiled)[0] if profiled else {}


def _plan_profiled_ranks(
    profiled: Mapping[int, tuple[list[RankProfile], dict[str, pl.DataFrame]]],
) -> tuple[dict[int, dict[int | None, RankPlan]], list[str]]:
    """Return the plans by rank and id of the process, and notes about the job, given the profile of each rank."""
    from tracekit.core.communication import Communication
    from tracekit.core.diagnosis import plan_ranks

    ranked = concat_rank_tables(list(profiled), [tables for _, tables in profiled.values()])
    communication = Communication(ranked, ignores_missing_ranks=True)
    return plan_ranks({rank: profiles for rank, (profiles, _) in profiled.items()}, communication)


def _separate_results(traces: MemberSet) -> tuple[MemberSet, dict[int, Member]]:
    """Return the captures of timelines, and the results of Nsight Compute that belong to each of them, by rank.

    A single file of results belongs to all ranks. Several ones belong to the ranks in their file names. A set of only
    results is returned as it is.

    Raises:
        TracekitError: The rank to which results belong is unknown.
    """
    of_kernels = [member for member in traces.captures if _detect_format(member) in RESULT_FORMATS]
    ranks = [member.rank for member in traces.captures if member not in of_kernels]
    if not of_kernels or not ranks:
        return traces, {}
    timelines = traces.select_ranks(ranks)
    if len(of_kernels) == 1:
        return timelines, dict.fromkeys(ranks, of_kernels[0])
    results: dict[int, Member] = {}
    for member in of_kernels:
        named = parse_ranks_in_file_name(member.name)
        if len(named) != 1 or not named <= set(ranks) or named & results.keys():
            raise TracekitError(
                "the rank to which these results of Nsight Compute belong is unknown",
                path=member.path,
                hint="pass one file of results, or one per rank with a name such as rank0.ncu-rep",
            )
        results[named.pop()] = member
    return timelines, results


def _detect_format(member: Member) -> str:
    """Return the format of a capture, which is detected if it was not opened yet."""
    if member.format or member.url is not None:
        return member.format
    return detection.detect_reader(Source(member.path)).format


@contextlib.contextmanager
def _join_results(trace: Trace, results: Member | None) -> Iterator[Trace]:
    """Yield the trace with the results of Nsight Compute joined to its kernels, if there are both."""
    if results is None or not trace.count("kernels"):
        yield trace
        return
    with open_member(results) as measured:
        yield trace.join_ncu(measured, metrics=()) if measured.count("ncu_launches") else trace


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


def _profile_rank(trace: Trace) -> tuple[list[RankProfile], dict[str, pl.DataFrame]]:
    from tracekit.core.communication import LOGGED, read_call_tables, read_logged_states

    tables = call_with_tables(trace, read_call_tables, key=read_call_tables)
    tables[LOGGED] = call_with_tables(trace, read_logged_states, key=read_logged_states)
    return get_trace_view(trace).profile_processes(), tables


def _examine_rank(
    options: Options, plans: Mapping[int | None, RankPlan], results: Member | None, trace: Trace
) -> list[Examination] | Why:
    """Return the results for the processes of a rank, or its answer if it has no GPU work."""
    with _join_results(trace, results) as joined:
        view = get_trace_view(joined)
        return view.examine_processes(options, plans) if plans else view.why(options)


def _explain_rank(options: Options, results: Member | None, trace: Trace) -> Why:
    with _join_results(trace, results) as joined:
        return get_trace_view(joined).why(options)


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
