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
from tracekit.system.targets.deletion import create_hidden_name, delete, delete_empty_folder
from tracekit.system.targets.rename import rename_without_replacing

try:
    import fcntl
except ImportError:  # without locks, abandoned workspaces cannot be detected and stay
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator


REPLACED = "replaced"
"""Name of the folder in a workspace that contains the old target while it is being replaced."""
_LOCK_FILE = "lock"
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
    the system releases the lock when the process ends.

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
        remove = functools.partial(_remove_workspace, folder, states)
        with interrupts.cleaning_up(remove), contextlib.ExitStack() as stack:
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
    if fcntl is None:
        return True
    try:
        lock = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:  # without locks, other processes do not delete it either
        return True
    return os.path.lexists(folder / _LOCK_FILE)


def _delete_abandoned_workspaces(parent: Path) -> None:
    """Delete those workspaces in a folder whose processes have ended."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        candidates = [Path(e.path) for e in entries if _NAME.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
        for folder in candidates:
            with contextlib.suppress(OSError):
                _delete_if_abandoned(folder)


def _delete_if_abandoned(folder: Path) -> None:
    """Delete a workspace if this user owns it and no process has locked it."""
    state = FileState.read_entry(folder)
    if state is None or folder.lstat().st_uid != os.geteuid():
        return
    try:
        lock = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # it is being created, or its process was killed before it created the lock
        if time.time() - folder.lstat().st_mtime > _CREATION_TIME_S:
            delete_empty_folder(folder)
        return
    try:
        if stat.S_ISREG(os.fstat(lock).st_mode):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_workspace(folder, [state])
    finally:
        os.close(lock)


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
