"""Detect that this process was forked after polars had started its threads, so that a query would never end.

A forked process has no threads but the one that forked it. polars starts a pool of threads with its first query and
cannot start another one, so a query in a forked process waits for threads that do not exist. Arrow starts its threads
anew after a fork, and the WebAssembly code of tracekit runs in the thread that calls it.

The package imports this module first, because a fork that it does not see cannot be noticed afterwards; so it imports
next to nothing itself.
"""

from __future__ import annotations

import os
import sys

_TASKS = "/proc/self/task"
_POLARS_THREADS = (*(b"polars-%d" % digit for digit in range(10)), b"async-executor-")
"""Names of threads of its pool; it starts others when it is imported."""


class _Process:
    """What is known of polars in this process.

    Attributes:
        queried: Whether tracekit ran a query; says whether polars has threads where the system does not list them.
        forking_with_pool: Whether polars had threads when this process was last about to fork.
        orphaned: Whether polars had threads in a process that this one was forked from.
    """

    __slots__ = ("forking_with_pool", "orphaned", "queried")

    def __init__(self) -> None:
        self.queried = self.forking_with_pool = self.orphaned = False


_process = _Process()


def check_polars() -> None:
    """Check that polars can run a query in this process.

    Raises:
        TracekitError: The process was forked after polars had started its threads.
    """
    if _process.orphaned:
        from tracekit.errors import TracekitError

        hint = "start workers with multiprocessing.get_context('spawn') or 'forkserver'"
        raise TracekitError("this process was forked after polars had started threads, which it lacks", hint=hint)
    _process.queried = True


def _pool_runs() -> bool:
    """Return whether polars has started threads in this process."""
    if "polars" not in sys.modules:
        return False
    try:
        tasks = os.listdir(_TASKS)  # noqa: PTH208 - see above
    except OSError:
        return _process.queried
    return any(_name(task).startswith(_POLARS_THREADS) for task in tasks)


def _name(task: str) -> bytes:
    try:
        with open(f"{_TASKS}/{task}/comm", "rb") as file:  # noqa: PTH123 - see above
            return file.read()
    except OSError:  # the thread has ended
        return b""


def _before_fork() -> None:
    _process.forking_with_pool = _pool_runs()


def _after_fork_in_child() -> None:
    _process.orphaned = _process.orphaned or _process.forking_with_pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
