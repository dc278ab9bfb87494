"""Run jobs in parallel threads, return their results in order, and share running totals between the jobs."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from tracekit.system.platform.cores import count_available_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Future

Job = TypeVar("Job")
Result = TypeVar("Result")

MAX_THREADS = 8


if TYPE_CHECKING:
    unlocked_property = functools.cached_property
else:

    class unlocked_property(functools.cached_property):  # noqa: N801 - a decorator
        """A cached property that holds no lock while its value is computed.

        Until Python 3.11, ``functools.cached_property`` has one lock for all instances of a class. If the value of one
        instance depends on that of another one, which is computed in a thread of polars, both threads wait forever.
        """

        def __get__(self, instance, owner=None):
            """Return the value, which is computed on first access."""
            if instance is None:
                return self
            if self.attrname not in instance.__dict__:
                instance.__dict__[self.attrname] = self.func(instance)
            return instance.__dict__[self.attrname]


def map_in_order(
    function: Callable[[Job], Result], jobs: Iterable[Job], max_threads: int = MAX_THREADS
) -> Iterator[Result]:
    """Call a function for each job in several threads, and yield the results in the order of the jobs.

    The threads have the context of the caller, such as its memory limit. At most two results per thread are computed
    ahead of the caller. A single job runs in the thread of the caller.

    Args:
        function: Function that is called with each job.
        jobs: The arguments of the function.
        max_threads: Maximum number of threads. Jobs of many short NumPy calls gain little from more than two threads,
            because each call acquires and releases the global interpreter lock.
    """
    job_list = list(jobs)
    if len(job_list) <= 1:
        yield from map(function, job_list)
        return
    threads = min(max_threads, MAX_THREADS, count_available_cores())
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, "tracekit") as pool:
        try:
            for job in job_list:
                waiting.append(pool.submit(contextvars.copy_context().run, function, job))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class RunningTotals:
    """Running totals over numbered jobs in several threads. Each job gets the totals of all earlier jobs."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._next = 0
        self._totals: Counter[str] = Counter()
        self._failed: int | None = None

    def add_counts_and_get_earlier_totals(self, job: int, counts: Mapping[str, int]) -> Counter[str]:
        """Wait until all earlier jobs have added their counts, then add the counts of this job.

        Returns:
            The totals of the counts of all earlier jobs.

        Raises:
            EarlierJobError: An earlier job failed.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._next == job or self._has_earlier_failure(job))
            if self._next != job:
                raise EarlierJobError
            before = self._totals.copy()
            self._totals.update(counts)
            self._next += 1
            self._condition.notify_all()
            return before

    @contextlib.contextmanager
    def open_job_context(self, job: int) -> Iterator[None]:
        """Return a context manager for running a job. If the job fails, later jobs fail instead of waiting for it."""
        try:
            yield
        except BaseException:
            with self._condition:
                self._failed = job if self._failed is None else min(job, self._failed)
                self._condition.notify_all()
            raise

    def _has_earlier_failure(self, job: int) -> bool:
        return self._failed is not None and self._failed < job


class EarlierJobError(Exception):
    """A job cannot get the totals of the earlier jobs, because an earlier job failed.

    The error of the failed job is raised first.
    """
