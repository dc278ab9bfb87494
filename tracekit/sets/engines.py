"""Apply a function to every member of a set of captures, in this process or in several processes."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from tracekit.errors import TracekitError, create_choices_hint
from tracekit.sets.workers import call_and_collect_warnings, call_or_return_error, check_picklable, initialize_worker
from tracekit.system import no_pandas
from tracekit.system.memory import get_memory_limit
from tracekit.system.platform.cores import count_available_cores
from tracekit.system.platform.memory_size import read_total_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future, ProcessPoolExecutor
    from pathlib import Path

    from tracekit.sets.member import Member
    from tracekit.sets.workers import MemberResult

Result = TypeVar("Result")
ENGINES = ("local", "dask")
_BYTES_PER_JOB = 1 << 26
"""Bytes of captures per process. With fewer bytes, starting another process takes longer than it saves."""
_MEMORY_PER_JOB, _MEMORY_PER_BYTE = 1 << 28, 4
"""Bytes of memory that a process needs, and additional bytes of memory per byte of the capture that it reads."""


class Engine(Protocol):
    """The interface of an engine that applies a function to every member of a set of captures.

    Attributes:
        skips_errors: Whether captures that cannot be read are skipped with a warning when a table or recipe of all
            ranks is computed. If False, the first error is raised.
    """

    skips_errors: bool

    def map(
        self, function: Callable[[Member], Result], members: Sequence[Member]
    ) -> Iterator[tuple[Member, Result | Exception]]:
        """Apply a function to each member, and yield each member with its result or error, in the order of ``members``.

        Args:
            function: A function that can be pickled: a function of a module, or a ``functools.partial`` of one. Its
                result should be small, because an engine may send it to another process.
            members: The members to process.

        Yields:
            The member, and the result of the function or the ``TracekitError`` or ``OSError`` that it raised.
        """
        ...


@runtime_checkable
class MergingEngine(Engine, Protocol):
    """The interface of an engine that merges the results of members where they are computed."""

    def map_and_merge(
        self,
        function: Callable[[Member], Result],
        merge: Callable[[list[Result]], Result],
        members: Sequence[Member],
        progress: Callable[[int], None],
    ) -> tuple[Result | None, list[tuple[Member, Exception]]]:
        """Apply a function to each member, and merge all results into one.

        Args:
            function: The function, as for ``map``.
            merge: Picklable function that merges a list of results, in the order of their members, into one result.
            members: The members to process.
            progress: Callback that receives the number of processed members.

        Returns:
            The merged result, or None if all members failed, and the failed members with their errors.
        """
        ...


class LocalEngine:
    """An engine that processes the members of a set on this machine, in one or several processes.

    With several jobs, functions must be picklable, and a script must protect its main code with
    ``if __name__ == "__main__"``, because each process imports the script. The processes are reused by later calls,
    because starting them takes half a second. They end when the engine is deleted.

    Attributes:
        jobs: Number of processes. With 1, the members are processed in this process, one at a time.
        skips_errors: False. The first error is raised.
    """

    skips_errors = False

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 1:
            raise TracekitError(
                f"the number of jobs must be at least 1, but is {jobs}",
                hint="use jobs=1 to process the captures in this process",
            )
        self.jobs = jobs
        self._pool: _Pool | None = None

    def __reduce__(self) -> tuple[type[Self], tuple[int]]:
        return type(self), (self.jobs,)

    def map(
        self, function: Callable[[Member], Result], members: Sequence[Member]
    ) -> Iterator[tuple[Member, Result | Exception]]:
        """Apply a function to each member, and yield each member with its result or error, in the order of ``members``.

        Raises:
            TracekitError: The function cannot be sent to another process, or a process was killed.
        """
        jobs = min(self.jobs, len(members))
        if jobs > 1:
            return self._map_in_processes(function, members, jobs)
        return ((member, call_or_return_error(function, member)) for member in members)

    def call_in_other_process(self, function: Callable[[Member], Result], member: Member) -> Result | Exception:
        """Apply a function to one member in another process, and return its result or error.

        If the process is killed, the error says so, and this process is not affected.
        """
        try:
            return next(result for _, result in self._map_in_processes(function, [member], 1))
        except TracekitError as e:
            return e

    def _map_in_processes(
        self, function: Callable[[Member], Result], members: Sequence[Member], jobs: int
    ) -> Iterator[tuple[Member, Result | Exception]]:
        """Apply a function to each member in several processes, and yield each member with its result or error."""
        from concurrent.futures.process import BrokenProcessPool

        check_picklable(function)
        limit = get_memory_limit()
        share = None if limit is None else limit // jobs
        pool = self._get_process_pool(jobs)
        pending: deque[tuple[Member, Future[MemberResult[Result]]]] = deque()
        left = iter(members)
        try:
            while True:
                while len(pending) < 2 * jobs and (member := next(left, None)) is not None:
                    pending.append((member, pool.submit(call_and_collect_warnings, function, member, share)))
                if not pending:
                    return
                member, future = pending.popleft()
                yield member, future.result().reissue_warnings_and_get_outcome()
        except BrokenProcessPool as e:
            self._pool = None
            raise TracekitError(
                "a worker process was killed, possibly because memory ran out", hint="use fewer jobs"
            ) from e
        finally:
            for _, future in pending:
                future.cancel()

    def _get_process_pool(self, jobs: int) -> ProcessPoolExecutor:
        """Return the process pool of this engine, after replacing a pool that has fewer than ``jobs`` processes."""
        if self._pool is None or self._pool.jobs < jobs:
            executor = _create_process_pool(jobs)
            weakref.finalize(self, executor.shutdown, cancel_futures=True)
            self._pool = _Pool(executor, jobs)
        return self._pool.executor


def resolve_engine(engine: Any) -> Engine:
    """Return the engine for the argument ``engine`` of ``load_many``.

    Args:
        engine: An engine, the name ``local`` or ``dask``, the address of a Dask scheduler such as ``tcp://host:8786``,
            or a Dask client. None selects the engine that processes members in this process.

    Raises:
        TracekitError: The name of the engine is unknown.
    """
    if engine is None or engine == "local":
        return LocalEngine()
    if hasattr(engine, "map") and hasattr(engine, "skips_errors"):
        custom_engine: Engine = engine
        return custom_engine
    if engine != "dask" and not hasattr(engine, "submit") and "://" not in str(engine):
        raise TracekitError(f"there is no engine {engine!r}", hint=create_choices_hint("engines", ENGINES, str(engine)))
    from tracekit.sets.dask_engine import DaskEngine

    return DaskEngine(None if engine == "dask" else engine)


def choose_process_count(paths: Sequence[Path]) -> int:
    """Return a number of processes that suits the sizes of the captures, the CPU cores and the memory."""
    sizes = [path.stat().st_size for path in paths if path.is_file()] or [0]
    memory = _MEMORY_PER_JOB + _MEMORY_PER_BYTE * max(sizes)
    return max(
        1,
        min(
            count_available_cores(), len(paths), sum(sizes) // _BYTES_PER_JOB, read_total_memory_bytes() // 2 // memory
        ),
    )


class _Pool(NamedTuple):
    """A process pool and its maximum number of processes."""

    executor: ProcessPoolExecutor
    jobs: int


def _create_process_pool(jobs: int) -> ProcessPoolExecutor:
    """Return a pool of spawned processes. Unlike forked processes, they inherit no state of this process."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    threads = max(1, count_available_cores() // jobs)
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(
        jobs, context, initializer=initialize_worker, initargs=(threads, no_pandas.is_pandas_hidden())
    )
