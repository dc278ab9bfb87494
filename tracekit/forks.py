"""Detect that this process was forked after polars had started its threads, so that a query would never end.

A forked process has no threads but the one that forked it. polars starts a pool of threads with its first query and
cannot start another one, so a query in a forked process waits for threads that do not exist. Arrow starts its threads
anew after a fork, and the WebAssembly code of tracekit runs in the thread that calls it.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tracekit.errors import TracekitError

_TASKS = Path("/proc/self/task")
_POLARS_THREAD = re.compile(rb"polars-\d|async-executor-")


@dataclass(slots=True)
class _Process:
    """What is known of polars in this process.

    Attributes:
        queried: Whether tracekit ran a query; says whether polars has threads where the system does not list them.
        forking_with_pool: Whether polars had threads when this process was last about to fork.
        orphaned: Whether polars had threads in a process that this one was forked from.
    """

    queried: bool = False
    forking_with_pool: bool = False
    orphaned: bool = False


_process = _Process()


def check_polars() -> None:
    """Check that polars can run a query in this process.

    Raises:
        TracekitError: The process was forked after polars had started its threads.
    """
    if _process.orphaned:
        hint = "start workers with multiprocessing.get_context('spawn') or 'forkserver'"
        raise TracekitError("this process was forked after polars had started threads, which it lacks", hint=hint)
    _process.queried = True


def _pool_runs() -> bool:
    """Return whether polars has started threads in this process."""
    if "polars" not in sys.modules:
        return False
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:
        return _process.queried
    return any(_POLARS_THREAD.match(_name(task)) for task in tasks)


def _name(task: Path) -> bytes:
    try:
        return (task / "comm").read_bytes()
    except OSError:  # the thread has ended
        return b""


def _before_fork() -> None:
    _process.forking_with_pool = _pool_runs()


def _after_fork_in_child() -> None:
    _process.orphaned = _process.orphaned or _process.forking_with_pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
