"""Detect forked processes in which a query of polars would wait forever.

A forked process contains only the thread that called fork. polars starts a pool of threads with its first query and
cannot start another pool. If a process is forked after that, a query in the forked process waits for threads that do
not exist. Arrow restarts its threads after a fork, and the WebAssembly code of tracekit runs in the calling thread.

The package imports this module first, because forks before the import cannot be detected. The module itself imports as
little as possible.
"""

from __future__ import annotations

import sys

from tracekit.system.platform.threads_of_process import call_at_fork, list_thread_names

_POLARS_THREADS = (*(b"polars-%d" % digit for digit in range(10)), b"async-executor-")
"""Prefixes of the names of the threads that run queries. Importing polars also starts threads with other names."""


class _PolarsState:
    """The state of polars in this process.

    Attributes:
        has_queried: Whether tracekit has run a query. If the system does not list the threads of a process, this flag
            is used instead.
        had_threads_at_fork: Whether polars had started its threads when this process last called fork.
        lacks_threads: Whether this process was forked from a process in which polars had started its threads.
    """

    __slots__ = ("had_threads_at_fork", "has_queried", "lacks_threads")

    def __init__(self) -> None:
        self.has_queried = self.had_threads_at_fork = self.lacks_threads = False


_state = _PolarsState()


def check_polars_can_run() -> None:
    """Check that polars can run a query in this process.

    Raises:
        TracekitError: The process was forked after polars had started its threads.
    """
    if _state.lacks_threads:
        from tracekit.errors import TracekitError

        hint = "start workers with multiprocessing.get_context('spawn') or 'forkserver'"
        message = (
            "polars cannot run queries in this process, because it was forked after polars had started its threads"
        )
        raise TracekitError(message, hint=hint)
    _state.has_queried = True


def _has_polars_threads() -> bool:
    """Return whether polars has started threads in this process."""
    if "polars" not in sys.modules:
        return False
    names = list_thread_names()
    return _state.has_queried if names is None else any(name.startswith(_POLARS_THREADS) for name in names)


def _record_polars_threads_before_fork() -> None:
    """Record, before a fork, whether polars has started its threads."""
    _state.had_threads_at_fork = _has_polars_threads()


def _record_lost_polars_threads_after_fork() -> None:
    """Record, in a forked process, whether polars had started its threads before the fork."""
    _state.lacks_threads = _state.lacks_threads or _state.had_threads_at_fork


call_at_fork(before=_record_polars_threads_before_fork, after_in_child=_record_lost_polars_threads_after_fork)
