"""Work in several threads: results come in order, few of them at a time in memory, and totals go on from job to job."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Future

Job = TypeVar("Job")
Made = TypeVar("Made")

MAX_THREADS = 8


def in_order(work: Callable[[Job], Made], jobs: Iterable[Job], most: int = MAX_THREADS) -> Iterator[Made]:
    """Do some work on each job, in as many threads as there are cores: n jobs in, n results out, in their order.

    Results wait to be taken: at most two a thread are done or under way. A single job is done where it is asked for.

    Args:
        work: What to do.
        jobs: What to do it on.
        most: Threads at most; work made of many short steps in numpy gains little from more than two, for each step
            takes and gives back the interpreter's lock.
    """
    listed = list(jobs)
    if len(listed) <= 1:
        yield from map(work, listed)
        return
    threads = min(most, MAX_THREADS, cores())
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(threads, "tracekit") as pool:
        try:
            for job in listed:
                waiting.append(pool.submit(work, job))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Relay:
    """Totals that numbered jobs hand on to each other, from the first to the last, while they run in threads."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._next = 0
        self._totals: Counter[str] = Counter()
        self._failed: int | None = None

    def hand_on(self, job: int, added: Mapping[str, int]) -> Counter[str]:
        """Wait for the jobs before this one; return what they added up to, and add to it.

        Raises:
            BrokenRelayError: One of them failed.
        """
        with self._turn:
            self._turn.wait_for(lambda: self._next == job or self._is_behind_a_failure(job))
            if self._next != job:
                raise BrokenRelayError
            before = self._totals.copy()
            self._totals.update(added)
            self._next += 1
            self._turn.notify_all()
            return before

    @contextlib.contextmanager
    def holding(self, job: int) -> Iterator[None]:
        """Let no later job wait for this one if it fails; those before it go on."""
        try:
            yield
        except BaseException:
            with self._turn:
                self._failed = job if self._failed is None else min(job, self._failed)
                self._turn.notify_all()
            raise

    def _is_behind_a_failure(self, job: int) -> bool:
        return self._failed is not None and self._failed < job


class BrokenRelayError(Exception):
    """A job did not get its totals, because an earlier one failed; that one's error comes first."""
