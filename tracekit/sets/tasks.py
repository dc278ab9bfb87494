"""Apply a function of its own to the trace of each rank of a set."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tracekit.sets.member import Member

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tracekit.sets.trace_set import TraceSet
    from tracekit.trace import Trace

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Task(Member):
    """A member with the function that is applied to it."""

    function: Callable[[Member], Any] = field(default=repr, repr=False, compare=False)


def map_by_rank(
    traces: TraceSet, functions: Mapping[int, Callable[[Trace], Result]]
) -> Iterator[tuple[Member, Result | Exception]]:
    """Apply functions to the traces of ranks, and yield each member with its result or error, in the order of ranks.

    Args:
        traces: The set.
        functions: The functions by rank, each as for ``TraceSet.map``. Other ranks are left out.
    """
    tasks = [
        _Task(**{f.name: getattr(m, f.name) for f in fields(Member)}, function=traces.function_of_member(function))
        for m in traces.captures
        if (function := functions.get(m.rank)) is not None
    ]
    return traces.engine.map(_run_task, tasks)


def _run_task(task: Member) -> Any:
    return cast("_Task", task).function(task)
