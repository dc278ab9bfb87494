"""The captures of a set and their traces, one of which is open at a time, and the tables of all of them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast

from tracekit import schemas
from tracekit.errors import TracekitError
from tracekit.registry.tables import Tables
from tracekit.sets import frames
from tracekit.sets import member as members_module
from tracekit.sets import paths as path_lists
from tracekit.sets import ranks as rank_sources
from tracekit.sets.engines import LocalEngine
from tracekit.sets.member import Member, RecordedMetadata
from tracekit.trace import Trace, get_trace_view, load, load_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from tracekit.sets.engines import Engine
    from tracekit.system.files import Input

Result = TypeVar("Result")
_LISTED = 8


@dataclass(frozen=True, slots=True)
class Operation:
    """A call of a ``Trace`` method that returns another trace: the name of the method and its arguments by name."""

    method: Literal["correlate", "rollup", "select", "with_layers"]
    arguments: Mapping[str, Any]


class MemberSet:
    """The captures of the ranks of a job, one of which is open at a time, with the operations applied to each of them.

    Attributes:
        captures: The profiles, sorted by rank. Metadata other than the rank may be unknown, because a profile is
            not opened if the user specified the ranks, or if the rank is recorded before its events.
        engine: The engine that applies functions to the profiles.
        errors: Errors of the captures that were skipped because they cannot be read. Only some engines skip captures.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        operations: Sequence[Operation] = (),
        engine: Engine | None = None,
        errors: Iterable[Exception] = (),
    ) -> None:
        self.captures = tuple(members)
        self.engine = engine or LocalEngine()
        self.errors = list(errors)
        self._operations = tuple(operations)

    @functools.cached_property
    def members(self) -> tuple[Member, ...]:
        """The profiles, sorted by rank, with their recorded metadata. Profiles whose metadata is unknown are opened.

        If the engine skips profiles that cannot be read, their metadata remains unknown.
        """
        unread = [member for member in self.captures if not member.is_read]
        read = self.results_by_member(self.engine.map(_with_recorded_metadata, unread))
        return tuple(read.get(member, member) for member in self.captures)

    @property
    def _tables(self) -> SetTables:  # not an attribute: in a cycle, copies of remote files would be deleted late
        return SetTables(self, self._operations)

    @property
    def ranks(self) -> list[int]:
        """The ranks of the profiles, in ascending order."""
        return [member.rank for member in self.captures]

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Files and folders from which this set is read. An output must not replace any of them."""
        from tracekit.system.files import Input

        return tuple(Input.from_path(member.path) for member in self.captures if member.url is None)

    def select_ranks(self, ranks: Iterable[int]) -> Self:
        """Return a set with only the given ranks, and the same operations.

        Raises:
            TracekitError: A rank does not exist.
        """
        chosen = list(ranks)
        if missing := [rank for rank in chosen if rank not in self.ranks]:
            raise self._create_missing_rank_error(missing[0])
        members = [m for m in self.captures if m.rank in chosen]
        return type(self)(members, operations=self._operations, engine=self.engine, errors=self.errors)

    def open(self, rank: int) -> Trace:
        """Open the profile of a rank, and return its trace with the operations of the set applied to it.

        The caller has to close the trace.

        Raises:
            TracekitError: The set does not have this rank, or the file cannot be read.
        """
        member = next((m for m in self.captures if m.rank == rank), None)
        if member is None:
            raise self._create_missing_rank_error(rank)
        return open_member(member, self._operations)

    def map(self, function: Callable[[Trace], Result]) -> list[Result]:
        """Apply a function to the trace of each rank, and return the results.

        Args:
            function: Function that receives a trace. It must be picklable if the engine uses other processes. Its
                result must not refer to the trace, which is closed afterwards.

        Returns:
            The results in the order of ranks.

        Raises:
            TracekitError: The function failed for a rank. The first error is raised.

        Examples:
            >>> import tracekit as tk
            >>> ranks = tk.load_many("fixtures/ranks")
            >>> ranks.map(lambda trace: trace.count("mpi_calls"))
            [72, 72]
        """
        return [_get_result_or_raise(result) for _, result in self.outcomes(function)]

    def outcomes(self, function: Callable[[Trace], Result]) -> Iterator[tuple[Member, Result | Exception]]:
        """Apply a function to the trace of each rank, and return the results. Errors are returned, not raised.

        Args:
            function: The function, as for ``map``.

        Returns:
            An iterator over the members in the order of ranks, each with the result of the function, or with the
            ``TracekitError`` or ``OSError`` that it raised.
        """
        return self.engine.map(self.function_of_member(function), self.captures)

    def function_of_member(self, function: Callable[[Trace], Result]) -> Callable[[Member], Result]:
        """Return a function that opens a member's trace, applies the set's operations, and calls ``function``."""
        return functools.partial(call_with_trace, function, self._operations)

    @property
    def rollup_arguments(self) -> Mapping[str, Any]:
        """The arguments of the last call of ``rollup``. They are empty if the set is not rolled up."""
        arguments = [operation.arguments for operation in self._operations if operation.method == "rollup"]
        return arguments[-1] if arguments else {}

    def with_operation(self, method: Literal["correlate", "rollup", "select", "with_layers"], **arguments: Any) -> Self:
        """Return a set with a further operation, which is applied to each trace."""
        operations = (*self._operations, Operation(method, arguments))
        return type(self)(self.captures, operations=operations, engine=self.engine, errors=self.errors)

    def _create_missing_rank_error(self, rank: int) -> TracekitError:
        listed = ", ".join(map(str, self.ranks[:_LISTED])) + (", …" if len(self) > _LISTED else "")
        return TracekitError(f"there is no rank {rank}", hint=f"choose one of the ranks {listed}")

    def _iterate_readable_results(self, function: Callable[[Trace], Result]) -> Iterator[tuple[Member, Result]]:
        """Apply a function to the trace of each member, and yield each member that is not skipped with its result."""
        return self.skip_unreadable(self.outcomes(function))

    def results_by_member(self, outcomes: Iterable[tuple[Member, Result | Exception]]) -> dict[Member, Result]:
        """Return the result of each member, except members with errors that the engine skips. Raise other errors."""
        skips = self.engine.skips_errors
        return {m: _get_result_or_raise(r) for m, r in outcomes if not (skips and isinstance(r, Exception))}

    def skip_unreadable(self, outcomes: Iterable[tuple[Member, Result | Exception]]) -> Iterator[tuple[Member, Result]]:
        """Yield each member with its result. Errors are raised or, if the engine skips them, appended to ``errors``."""
        errors: list[tuple[Member, Exception]] = []
        try:
            yield from skip_unreadable(self.engine, outcomes, errors)
        finally:
            self.errors += [error for _, error in errors]

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self.captures)


def skip_unreadable(
    engine: Engine, outcomes: Iterable[tuple[Member, Result | Exception]], errors: list[tuple[Member, Exception]]
) -> Iterator[tuple[Member, Result]]:
    """Yield each member with its result. Raise the first error, unless the engine skips unreadable captures.

    Args:
        engine: The engine that computed the results. Its attribute ``skips_errors`` is used.
        outcomes: The members with their results or errors.
        errors: List to which skipped members are appended, with their errors. A warning is issued for each of them.

    Raises:
        TracekitError: The first error, if the engine does not skip errors or if there are only errors.
    """
    count = 0
    for member, result in outcomes:
        if not isinstance(result, Exception):
            count += 1
            yield member, result
        elif engine.skips_errors:
            errors.append((member, result))
            path_lists.warn_about_unreadable(member.path, result)
        else:
            raise result
    if errors and not count:
        raise errors[0][1]


def _get_result_or_raise(result: Result | Exception) -> Result:
    if isinstance(result, Exception):
        raise result
    return result


def open_member(member: Member, operations: Sequence[Operation] = ()) -> Trace:
    """Open the capture of a member, and return its trace with the operations applied to it."""
    member.check_unchanged()
    if member.url is None:
        trace = load(member.path, member.format or None, via=member.via)
    else:
        kept_copy, name = member.kept_copy, member.format or None
        trace = load_remote(member.url, name, member.via, expected=member.state, kept_copy=kept_copy)
    try:
        for operation in operations:
            trace = getattr(trace, operation.method)(**operation.arguments)
    except BaseException:
        trace.close()
        raise
    return trace


def _with_recorded_metadata(member: Member) -> Member:
    """Return a member with the metadata that its capture records."""
    recorded = open_and_read_metadata(member)
    described = rank_sources.make_member(recorded, member.rank, member.source)
    return replace(described, via=member.via, url=member.url, state=member.state or described.state)


def open_and_read_metadata(member: Member) -> RecordedMetadata:
    """Open the capture of a member, and return the metadata that it records about its rank."""
    with open_member(member) as trace:
        return members_module.read_recorded_metadata(trace, member.path)


def call_with_trace(function: Callable[[Trace], Result], operations: Sequence[Operation], member: Member) -> Result:
    """Call a function with the trace of a member, and return its result. The trace is closed after the call."""
    with open_member(member, operations) as trace:
        return function(trace)


class SetTables(Tables):
    """The tables of all members of a set, with the column ``rank``. One member at a time is open."""

    def __init__(self, traces: MemberSet, operations: Sequence[Operation]) -> None:
        self._traces = traces
        self._operations = operations

    def schema(self, name: str) -> schemas.TableSchema:
        """Return the schema of a table after the operations of the set, without opening a capture."""
        trace = Trace.from_tables({})
        for operation in self._operations:
            if operation.method != "select":
                trace = getattr(trace, operation.method)(**operation.arguments)
        return frames.add_rank_to_schema(get_trace_view(trace).tables.schema(name))

    def count_many(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of rows of several tables in all members, by table name."""
        counts = self._traces.map(functools.partial(_count_many, names))
        return {name: sum(c[name] for c in counts) for name in names}

    def read_many(self, columns: Mapping[str, Sequence[str]]) -> dict[str, pa.Table]:
        """Return columns of several tables of all members. Each string column has a single dictionary."""
        import pyarrow as pa

        declared = {name: self.schema(name) for name in columns}
        recorded = {name: frames.list_recorded_columns(declared[name], names) for name, names in columns.items()}
        by_rank: dict[str, list[pa.Table]] = {
            name: [schemas.arrow_schema(declared[name], names).empty_table()] for name, names in columns.items()
        }
        outcomes = self._traces.outcomes(functools.partial(_read_many, recorded))
        for member, tables in self._traces.skip_unreadable(outcomes):
            for name, table in tables.items():
                by_rank[name].append(frames.add_rank_to_table(declared[name], columns[name], member.rank, table))
        return {name: pa.concat_tables(parts).unify_dictionaries() for name, parts in by_rank.items()}


def get_set_tables(traces: MemberSet) -> Tables:
    """Return the tables of a set, for exporters of single tables."""
    return traces._tables  # noqa: SLF001 - for functions of this package


def _count_many(names: Sequence[str], trace: Trace) -> Mapping[str, int]:
    return get_trace_view(trace).tables.count_many(names)


def _read_many(columns: Mapping[str, Sequence[str]], trace: Trace) -> Mapping[str, pa.Table]:
    return get_trace_view(trace).tables.read_many(columns)


@dataclass(frozen=True, slots=True)
class _Task(Member):
    """A member with the function that is applied to it."""

    function: Callable[[Member], Any] = field(default=repr, repr=False, compare=False)


def map_by_rank(
    traces: MemberSet, functions: Mapping[int, Callable[[Trace], Result]]
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
