"""Rename files and folders: without replacing existing ones, or replacing exactly the one that was checked.

The renames are atomic if the system supports it. No other module of tracekit renames files.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from tracekit.system.files import FileState
from tracekit.system.platform.renames import rename_exclusively, rename_with_flag, repeat_while_in_use

if TYPE_CHECKING:
    from pathlib import Path


def rename_without_replacing(source: Path, target: Path) -> None:
    """Rename a file or folder to a path that must not exist.

    Raises:
        FileExistsError: The target exists.
    """
    if rename_exclusively(source, target):
        return
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    source.rename(target)


def replace_path(source: Path, target: Path, state: FileState, old: Path) -> None:
    """Rename a file or folder to the path of an existing file or folder, which is replaced.

    Args:
        source: The new file or folder, which is in a temporary folder. If the system can exchange two paths, the
            replaced file or folder is at this path afterwards.
        target: Path of the existing file or folder.
        state: State of the existing file or folder.
        old: Path in a temporary folder, to which a replaced folder is moved if the system cannot exchange two paths. If
            the second rename fails, the old folder is moved back at once or when the temporary folder is cleaned up.

    Raises:
        FileExistsError: Another file or folder was moved to the target in the meantime. It stays there.
    """
    if exchange_paths(source, target):
        if not state.is_same_file(FileState.from_status(source.lstat())):
            exchange_paths(source, target)
            raise FileExistsError(errno.EEXIST, "another file was moved to this path in the meantime", str(target))
    elif not target.is_dir():
        source.replace(target)
    else:
        old.parent.mkdir(exist_ok=True)
        target.rename(old)
        try:
            repeat_while_in_use(lambda: source.rename(target))
        except BaseException:
            with contextlib.suppress(OSError):
                rename_without_replacing(old, target)
            raise


def exchange_paths(first: Path, second: Path) -> bool:
    """Exchange two files or folders atomically, and return True. If the system does not support this, return False."""
    return rename_with_flag(first, second, "exchange")
