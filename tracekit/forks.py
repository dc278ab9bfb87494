"""Detect processes that were forked after polars had started its threads, in which a query would never end.

A forked process contains only the thread that called fork. polars starts a pool of threads with its first query and
cannot start another one, so a query in a forked process waits for threads that do not exist. Arrow restarts its threads
after a fork, and the WebAssembly code of tracekit runs in the calling thread.

The package imports this module first, because it cannot detect forks that happen before. Therefore it imports as little
as possible.
"""

from __future__ import annotations

import os
import sys

_TASKS = "/proc/self/task"
_POLARS_THREADS = (*(b"polars-%d" % digit for digit in range(10)), b"async-executor-")
"""Prefixes of the names of the threads that run queries. Importing polars also starts threads with other names."""


class _PolarsState:
    """The state of polars in this process.

    Attributes:
        queried: Whether tracekit has run a query. If the system does not list the threads of a process, this flag is
            used instead.
        forking_with_pool: Whether polars had started its threads when this process last called fork.
        orphaned: Whether this process was forked from a process in which polars had started its threads.
    """

    __slots__ = ("forking_with_pool", "orphaned", "queried")

    def __init__(self) -> None:
        self.queried = self.forking_with_pool = self.orphaned = False


_state = _PolarsState()


def check_polars() -> None:
    """Check that polars can run a query in this process.

    Raises:
        TracekitError: The process was forked after polars had started its threads.
    """
    if _state.orphaned:
        from tracekit.errors import TracekitError

        hint = "start workers with multiprocessing.get_context('spawn') or 'forkserver'"
        raise TracekitError("this process was forked after polars had started threads, which it lacks", hint=hint)
    _state.queried = True


def _has_polars_threads() -> bool:
    """Return whether polars has started threads in this process."""
    if "polars" not in sys.modules:
        return False
    try:
        tasks = os.listdir(_TASKS)  # noqa: PTH208 - pathlib takes long to import
    except OSError:
        return _state.queried
    return any(_thread_name(task).startswith(_POLARS_THREADS) for task in tasks)


def _thread_name(task: str) -> bytes:
    """Return the name of a thread of this process. Return an empty name if the thread has ended."""
    try:
        with open(f"{_TASKS}/{task}/comm", "rb") as file:  # noqa: PTH123 - pathlib takes long to import
            return file.read()
    except OSError:  # the thread has ended
        return b""


def _before_fork() -> None:
    """Record, before a fork, whether polars has started its threads."""
    _state.forking_with_pool = _has_polars_threads()


def _after_fork_in_child() -> None:
    """Record, in a forked process, that polars lacks its threads if it had started them before the fork."""
    _state.orphaned = _state.orphaned or _state.forking_with_pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
