"""Engines apply a function to every member of a set, one member or several at a time."""

from __future__ import annotations

import os
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from tracekit import no_pandas
from tracekit.errors import TracekitError, choices_hint
from tracekit.sets.workers import call_or_return_error, call_with_warnings, check_function, start_worker
from tracekit.threads import available_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future, ProcessPoolExecutor
    from pathlib import Path

    from tracekit.sets.member import Member
    from tracekit.sets.workers import Answer

Result = TypeVar("Result")
ENGINES = ("local", "dask")
_BYTES_PER_JOB = 1 << 26
"""Size of the captures for which another process takes less time than it needs to start."""
_MEMORY_PER_JOB, _MEMORY_PER_BYTE = 1 << 28, 4
"""Memory that a process needs, and memory per byte of the capture that it reads."""


class Engine(Protocol):
    """The interface of engines.

    Attributes:
        skips_errors: Whether tables and recipes over all ranks skip captures that cannot be read, with a warning.
            Otherwise the first error is raised.
    """

    skips_errors: bool

    def map(
        self, function: Callable[[Member], Result], members: Sequence[Member]
    ) -> Iterator[tuple[Member, Result | Exception]]:
        """Yield each member, in the order of the members, with the result of the function or its error.

        Args:
            function: A function that can be pickled: a function of a module, or a ``functools.partial`` of one. Its
                result should be small, because an engine may send it to another process.
            members: The members.

        Yields:
            The member, and the result of the function or the ``TracekitError`` or ``OSError`` that it raised.
        """
        ...


@runtime_checkable
class MergingEngine(Engine, Protocol):
    """The interface of engines that merge results where they were computed, and return only the merged result."""

    def map_merged(
        self,
        function: Callable[[Member], Result],
        merge: Callable[[list[Result]], Result],
        members: Sequence[Member],
        progress: Callable[[int], None],
    ) -> tuple[Result | None, list[tuple[Member, Exception]]]:
        """Apply a function to each member, and merge the results as a tree.

        Args:
            function: The function, as for ``map``.
            merge: A function that can be pickled. It merges several results, in the order of the members, into one.
            members: The members.
            progress: Function that receives the number of members that were processed.

        Returns:
            The merged result, which is None if there is no result, and the members with errors.
        """
        ...


class LocalEngine:
    """An engine that processes the members on this machine.

    With several jobs, functions must be picklable. A script that uses them must have the guard
    ``if __name__ == "__main__"``, because each process imports it. The processes are kept for further calls, because
    they take half a second to start, and end when the engine is deleted.

    Attributes:
        jobs: Number of processes. With 1, the members are processed in this process, one at a time.
        skips_errors: False. The first error is raised.
    """

    skips_errors = False

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 1:
            raise TracekitError(
                f"jobs is {jobs}, but it must be at least 1", hint="use jobs=1 to process the captures in this process"
            )
        self.jobs = jobs
        self._pool: _Pool | None = None

    def __reduce__(self) -> tuple[type[Self], tuple[int]]:
        return type(self), (self.jobs,)

    def map(
        self, function: Callable[[Member], Result], members: Sequence[Member]
    ) -> Iterator[tuple[Member, Result | Exception]]:
        """Yield each member with the result of the function, or its error.

        Raises:
            TracekitError: The function cannot be sent to another process, or a process was killed.
        """
        jobs = min(self.jobs, len(members))
        if jobs > 1:
            return self._map_in_processes(function, members, jobs)
        return ((member, call_or_return_error(function, member)) for member in members)

    def _map_in_processes(
        self, function: Callable[[Member], Result], members: Sequence[Member], jobs: int
    ) -> Iterator[tuple[Member, Result | Exception]]:
        """Yield each member with the result of the function, or its error, computed by several processes."""
        from concurrent.futures.process import BrokenProcessPool

        check_function(function)
        pool = self._pool_of(jobs)
        pending: deque[tuple[Member, Future[Answer[Result]]]] = deque()
        left = iter(members)
        try:
            while True:
                while len(pending) < 2 * jobs and (member := next(left, None)) is not None:
                    pending.append((member, pool.submit(call_with_warnings, function, member)))
                if not pending:
                    return
                member, future = pending.popleft()
                yield member, future.result().deliver()
        except BrokenProcessPool as e:
            self._pool = None
            raise TracekitError(
                "a worker process was killed, possibly because memory ran out", hint="use fewer jobs"
            ) from e
        finally:
            for _, future in pending:
                future.cancel()

    def _pool_of(self, jobs: int) -> ProcessPoolExecutor:
        """Return the pool of this engine. It is replaced if it has too few processes."""
        if self._pool is None or self._pool.jobs < jobs:
            executor = _new_pool(jobs)
            weakref.finalize(self, executor.shutdown, cancel_futures=True)
            self._pool = _Pool(executor, jobs)
        return self._pool.executor


def find_engine(engine: Any) -> Engine:
    """Return the engine that an argument selects.

    Args:
        engine: An engine, the name of one, the address of a Dask scheduler such as ``tcp://host:8786``, a client of
            Dask, or None for the engine that processes members in this process.

    Raises:
        TracekitError: There is no such engine, or its package is not installed.
    """
    if engine is None or engine == "local":
        return LocalEngine()
    if hasattr(engine, "map") and hasattr(engine, "skips_errors"):
        found: Engine = engine
        return found
    if engine != "dask" and not hasattr(engine, "submit") and "://" not in str(engine):
        raise TracekitError(f"unknown engine {engine!r}", hint=choices_hint("engines", ENGINES, str(engine)))
    from tracekit.sets.dask_engine import DaskEngine

    return DaskEngine(None if engine == "dask" else engine)


def default_jobs(paths: Sequence[Path]) -> int:
    """Return the number of processes that read captures fastest, given their sizes, the cores and the memory."""
    sizes = [path.stat().st_size for path in paths if path.is_file()] or [0]
    memory = _MEMORY_PER_JOB + _MEMORY_PER_BYTE * max(sizes)
    return max(1, min(available_cores(), len(paths), sum(sizes) // _BYTES_PER_JOB, _memory_bytes() // 2 // memory))


def _memory_bytes() -> int:
    """Return the memory size of this machine in bytes, or 8 GiB if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30


class _Pool(NamedTuple):
    """Processes that have started or will start when they are needed, and their maximum number."""

    executor: ProcessPoolExecutor
    jobs: int


def _new_pool(jobs: int) -> ProcessPoolExecutor:
    """Return a pool of processes that do not inherit the state of this one."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    threads = max(1, available_cores() // jobs)
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, context, initializer=start_worker, initargs=(threads, no_pandas.is_hidden()))
