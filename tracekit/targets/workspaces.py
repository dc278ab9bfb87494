"""Private folders in which output is prepared, and which leave nothing behind, even after the process was killed."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import secrets
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit import interrupts
from tracekit.targets.rename import rename_new

try:
    import fcntl
except ImportError:  # a system without locks of this kind: nothing that is left behind is cleared there
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

REPLACED = "replaced"
"""What is replaced lies here for the moment that it is in neither place."""
_LOCK = "lock"
_NAME = re.compile(r"\.tracekit-[0-9a-f]{8}\.partial")
_ATTEMPTS = 100
_UNFINISHED_S = 60.0
_PAUSE_S = 0.01


@contextlib.contextmanager
def workspace(parent: Path) -> Iterator[Path]:
    """Create a private folder, and delete it at the end, also if a signal ends the program.

    What processes that were killed left in the same parent is deleted first. A lock, which ends with the process that
    holds it, tells that from the folder of a process that is still at work.

    Args:
        parent: The folder to create it in.

    Yields:
        Its path.

    Raises:
        OSError: It cannot be created.
    """
    _clear(parent)
    for _ in range(_ATTEMPTS):
        room = parent / f".tracekit-{secrets.token_hex(4)}.partial"
        with interrupts.cleaning_up(functools.partial(_remove, room)), contextlib.ExitStack() as stack:
            stack.callback(_remove, room)
            room.mkdir(0o700)
            if _is_locked(room, stack):
                yield room
                return
    raise OSError(errno.EAGAIN, "other processes keep deleting its temporary folders")


def is_in_workspace(path: str) -> bool:
    """Return whether a path leads into a workspace."""
    return any(_NAME.fullmatch(part) for part in Path(path).parts)


def _is_locked(room: Path, stack: contextlib.ExitStack) -> bool:
    """Lock a workspace for as long as the stack is open; return False if another process is already deleting it."""
    if fcntl is None:
        return True
    try:
        lock = os.open(room / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:  # a file system without locks: nothing is cleared there
        return True
    return os.path.lexists(room / _LOCK)


def _clear(parent: Path) -> None:
    """Delete the workspaces that nobody holds any more."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        left = [Path(e.path) for e in entries if _NAME.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
        for room in left:
            with contextlib.suppress(OSError):
                _clear_one(room)


def _clear_one(room: Path) -> None:
    """Delete a workspace if it is ours and nobody holds its lock."""
    if room.lstat().st_uid != os.geteuid():
        return
    try:
        lock = os.open(room / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # just being created, or killed in that moment
        if time.time() - room.lstat().st_mtime > _UNFINISHED_S:
            _remove(room)
        return
    try:
        if stat.S_ISREG(os.fstat(lock).st_mode):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(room)
    finally:
        os.close(lock)


def _remove(room: Path) -> None:
    """Delete a workspace; what was being replaced and is in neither place goes back to its own."""
    with contextlib.suppress(OSError):
        for old in (room / REPLACED).iterdir():
            rename_new(old, room.parent / old.name)
    for _ in range(_ATTEMPTS):  # threads that are still writing may put a file into a folder being deleted
        shutil.rmtree(room, ignore_errors=True)
        if not os.path.lexists(room):
            return
        time.sleep(_PAUSE_S)
