"""State what a reader of the captures of several ranks has to know first, and why data of ranks is missing."""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING

from tracekit.errors import warn
from tracekit.registry.absence import describe_undecoded
from tracekit.registry.interface import Undecoded
from tracekit.registry.notices import explain_missing_advice, list_notices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracekit.registry.absence import Absence
    from tracekit.sets.member_set import MemberSet
    from tracekit.trace import Trace


def list_notices_of_ranks(traces: MemberSet) -> list[str]:
    """Return sentences about the warnings of the profiler and about missing GPU work, with the number of ranks."""
    return merge_sentences(traces.map(_list_notices_of_rank))


def explain_missing_advice_of_ranks(traces: MemberSet) -> list[str]:
    """Return sentences that state why the report ``advise`` has no rows, with the number of ranks."""
    return merge_sentences(traces.map(_explain_missing_advice_of_rank))


def explain_missing_recipes(traces: MemberSet, recipes: Sequence[str]) -> dict[str, list[str]]:
    """Return sentences that state why some recipes have no rows, by recipe, with the number of ranks."""
    by_rank = traces.map(functools.partial(_explain_recipes_of_rank, recipes)) if recipes else []
    return {recipe: merge_sentences([rank[number]] for rank in by_rank) for number, recipe in enumerate(recipes)}


def explain_missing_rows(trace: Trace | MemberSet, name: str) -> list[Absence]:
    """Return the reasons why a table, a report, a rule or a recipe has no rows in a trace or in the ranks of a set."""
    from tracekit.trace import Trace

    if isinstance(trace, Trace):
        return [trace.explain_missing_rows(name)]
    return list(dict.fromkeys(trace.map(functools.partial(_explain_missing_rows_of_rank, name))))


def _explain_missing_rows_of_rank(name: str, trace: Trace) -> Absence:
    return trace.explain_missing_rows(name)


class MissingEvents:
    """The events that an output of several ranks lacks, because they are recorded, but not decoded."""

    def __init__(self, tables: Iterable[str] | None) -> None:
        """Create an empty collection.

        Args:
            tables: Names of the tables in the output. If None, the output contains all tables that are selected.
        """
        self._tables = None if tables is None else frozenset(tables)
        self._counts, self._ranks, self._total = Counter[str](), 0, 0

    def add(self, counts: Mapping[str, int]) -> None:
        """Add the result of ``count`` for one rank."""
        self._counts.update(counts)
        self._ranks += bool(counts)
        self._total += 1

    def count(self, trace: Trace) -> dict[str, int]:
        """Return the number of events, by class, that the output lacks of the trace of one rank."""
        from tracekit.trace import get_trace_view

        view, counts = get_trace_view(trace), Counter[str]()
        for source in view.plan.sources:
            listed = source.list_events_missing_in_output(self._tables or view.selected_tables)
            counts.update({name: size.count for name, size in listed.items()})
        return dict(counts)

    def warn(self) -> None:
        """Warn if there are such events, with their numbers in all ranks."""
        if self._counts:
            undecoded = describe_undecoded({name: Undecoded(count) for name, count in self._counts.items()})
            where = "" if self._ranks == self._total else f" ({self._ranks:,} of {self._total:,} ranks)"
            warn(f"the output is incomplete, because {undecoded}{where}")


def merge_sentences(by_rank: Iterable[Sequence[str]]) -> list[str]:
    """Return the distinct sentences of all ranks, each with the number of ranks to which it applies.

    Args:
        by_rank: The sentences of each rank.
    """
    ranks, total = Counter[str](), 0
    for sentences in by_rank:
        ranks.update(dict.fromkeys(sentences, 1))
        total += 1
    return [text if total == 1 else f"{count:,} of {total:,} ranks: {text}" for text, count in ranks.items()]


def _list_notices_of_rank(trace: Trace) -> list[str]:
    from tracekit.trace import get_trace_view

    return list_notices(get_trace_view(trace))


def _explain_missing_advice_of_rank(trace: Trace) -> list[str]:
    from tracekit.trace import get_trace_view

    return [explain_missing_advice(get_trace_view(trace))]


def _explain_recipes_of_rank(recipes: Sequence[str], trace: Trace) -> list[str]:
    return [trace.explain_missing_rows(recipe).sentence for recipe in recipes]
