"""List the threads of this process, and call functions when it forks. Only Linux does the former, and Windows neither.

The module imports as little as possible, because the package imports it first.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TASKS = "/proc/self/task"
"""Folder in which Linux lists the threads of this process."""


def list_thread_names() -> list[bytes] | None:
    """Return the names of the threads of this process, or None if the system does not list them.

    The name of a thread that has ended in the meantime is empty.
    """
    try:
        tasks = os.listdir(TASKS)  # noqa: PTH208 - pathlib takes long to import
    except OSError:
        return None
    return [_read_thread_name(task) for task in tasks]


def call_at_fork(before: Callable[[], None], after_in_child: Callable[[], None]) -> None:
    """Call a function before each fork of this process, and another one in the forked process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_child=after_in_child)


def _read_thread_name(thread_id: str) -> bytes:
    """Return the name of a thread of this process. Return an empty name if the thread has ended."""
    try:
        with open(f"{TASKS}/{thread_id}/comm", "rb") as file:  # noqa: PTH123 - pathlib takes long to import
            return file.read()
    except OSError:  # the thread has ended
        return b""
