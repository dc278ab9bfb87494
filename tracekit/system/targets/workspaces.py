"""Create hidden temporary folders (workspaces) for outputs. Workspaces of killed processes are deleted later."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.system import interrupts
from tracekit.system.files import FileState
from tracekit.system.platform import locks
from tracekit.system.platform.open_files import create_for_locking, open_entry_for_locking
from tracekit.system.platform.ownership import is_own
from tracekit.system.targets.deletion import create_hidden_name, delete, delete_empty_folder
from tracekit.system.targets.rename import rename_without_replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


REPLACED = "replaced"
"""Name of the folder in a workspace that contains the old target while it is being replaced."""
_LOCK_FILE, _ABANDONED = "lock", "abandoned"
_NAME = re.compile(r"\.tracekit-[0-9a-f]{8}\.partial")
_ATTEMPTS = 100
_CREATION_TIME_S = 60.0
"""Age in seconds from which a workspace without a lock file is considered abandoned."""
_active: set[Path] = set()
"""The workspaces of this process."""


@contextlib.contextmanager
def create_workspace(parent: Path) -> Iterator[Path]:
    """Yield a new temporary folder, which is deleted at the end, even if a signal ends the program.

    Workspaces that killed processes left behind in the same parent are deleted first. A workspace in use is locked, and
    the system releases the lock when the process ends. On a system without locks, abandoned workspaces stay, because
    they cannot be detected.

    Args:
        parent: The folder in which the workspace is created.

    Yields:
        The path of the workspace.

    Raises:
        OSError: The workspace cannot be created.
    """
    _delete_abandoned_workspaces(parent)
    for _ in range(_ATTEMPTS):
        folder = parent / create_hidden_name()
        states: list[FileState | None] = []
        remove, stack = functools.partial(_remove_workspace, folder, states), contextlib.ExitStack()
        with interrupts.cleaning_up(functools.partial(_unlock_and_remove, stack, remove)), stack:
            stack.callback(remove)
            folder.mkdir(0o700)
            states.append(FileState.read_entry(folder))
            if _lock_workspace(folder, stack):
                _active.add(folder)
                stack.callback(_active.discard, folder)
                yield folder
                return
    raise OSError(errno.EAGAIN, "other processes keep deleting the temporary folders of the output")


def is_in_workspace(path: str) -> bool:
    """Return whether a path is that of a temporary folder for outputs, or is inside one."""
    return any(_NAME.fullmatch(part) for part in Path(path).parts)


def delete_from_workspace(path: Path) -> None:
    """Delete a file that this process wrote in one of its workspaces.

    Raises:
        ValueError: The path is not inside a workspace of this process.
    """
    if _active.isdisjoint(path.parents):
        raise ValueError(f"{path} is not in a workspace of this process")
    if (state := FileState.read_entry(path)) is not None:
        delete(path, state)


def _lock_workspace(folder: Path, stack: contextlib.ExitStack) -> bool:
    """Lock a workspace until the stack is closed, and return True. If another process is deleting it, return False."""
    if not locks.has_locks():
        return True
    try:
        lock = create_for_locking(folder / _LOCK_FILE)
        stack.callback(os.close, lock)
        is_locked = locks.try_to_lock(lock)
    except FileNotFoundError:
        return False
    except OSError:  # without locks, other processes do not delete it either
        return True
    return is_locked and os.path.lexists(folder / _LOCK_FILE) and not os.path.lexists(folder / _ABANDONED)


def _delete_abandoned_workspaces(parent: Path) -> None:
    """Delete those workspaces in a folder whose processes have ended."""
    if not locks.has_locks():
        return
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        candidates = [Path(e.path) for e in entries if _NAME.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
        for folder in candidates:
            with contextlib.suppress(OSError):
                _delete_if_abandoned(folder)


def _delete_if_abandoned(folder: Path) -> None:
    """Delete a workspace if this user owns it and no process has locked it.

    If an open file cannot be deleted, the lock has to be closed first. Another process that is just creating the
    workspace might lock it then, so the folder is marked before.
    """
    state = FileState.read_entry(folder)
    if state is None or not is_own(folder.lstat()):
        return
    try:
        lock = open_entry_for_locking(folder / _LOCK_FILE)
    except FileNotFoundError:  # it is being created, or its process was killed before it created the lock
        if time.time() - folder.lstat().st_mtime > _CREATION_TIME_S:
            delete_empty_folder(folder)
        return
    try:
        if not stat.S_ISREG(os.fstat(lock).st_mode) or not locks.try_to_lock(lock):
            return
        if locks.can_delete_locked_files():
            _remove_workspace(folder, [state])
            return
        (folder / _ABANDONED).touch()
    finally:
        os.close(lock)
    _remove_workspace(folder, [state])


def _unlock_and_remove(stack: contextlib.ExitStack, remove: Callable[[], None]) -> None:
    """Close the stack that holds the lock of a workspace, and delete the workspace, when a signal ends the program."""
    try:
        stack.close()
    finally:
        remove()


def _remove_workspace(folder: Path, states: list[FileState | None]) -> None:
    """Delete a workspace. If it contains an old target that was being replaced, move the target back to its path.

    Args:
        folder: The path of the workspace.
        states: The state of the workspace when it was created. If empty, only an empty folder is deleted, because a
            signal arrived while the workspace was being created.
    """
    if not states:
        delete_empty_folder(folder)
    for state in states:
        if state is None or not state.is_same_file(FileState.read_entry(folder)):
            continue
        with contextlib.suppress(OSError):
            for old in (folder / REPLACED).iterdir():
                rename_without_replacing(old, folder.parent / old.name)
        delete(folder, state)
