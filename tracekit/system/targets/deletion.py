"""Delete files and folders. No other module of tracekit deletes anything.

Only what tracekit created is deleted. The caller proves this for a file or folder with a certain device and inode
number. The file is then renamed to a random name and compared with this identity, so that another file that was moved
to its path in the meantime is put back instead of deleted. Symbolic links are never followed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from typing import TYPE_CHECKING

from tracekit.system.files import FileState
from tracekit.system.targets.rename import rename_without_replacing

if TYPE_CHECKING:
    from pathlib import Path


_ATTEMPTS = 100
_PAUSE_S = 0.01


def delete(path: Path, state: FileState) -> bool:
    """Delete the file or folder that tracekit created at a path. Errors of the operating system are ignored.

    Args:
        path: The path of the file or folder.
        state: State of the file or folder that tracekit created, whose content may have changed. If another file or
            folder is at the path, or a symbolic link, it stays.

    Returns:
        Whether the file or folder was deleted.
    """
    if not state.is_same_file(FileState.read_entry(path)):
        return False
    moved = _move_aside(path)
    if not state.is_same_file(FileState.read_entry(moved)):
        with contextlib.suppress(OSError):
            rename_without_replacing(moved, path)
        return False
    with contextlib.suppress(OSError):
        if not stat.S_ISDIR(moved.lstat().st_mode):
            moved.unlink()
            return True
        for _ in range(_ATTEMPTS):  # threads that are still writing may create files in a folder that is being deleted
            shutil.rmtree(moved, ignore_errors=True)
            if not os.path.lexists(moved):
                return True
            time.sleep(_PAUSE_S)
    return False


def delete_empty_folder(path: Path) -> None:
    """Delete a folder if it is empty. Do nothing if it has an entry, is a symbolic link, or cannot be deleted."""
    with contextlib.suppress(OSError):
        path.rmdir()


def _move_aside(path: Path) -> Path:
    """Rename a file or folder to a random name, and return its new path, or the old path if it cannot be renamed."""
    moved = path.with_name(create_hidden_name())
    try:
        rename_without_replacing(path, moved)
    except OSError:
        return path
    return moved


def create_hidden_name() -> str:
    """Return a random name for a temporary file or folder. Folders of these names are deleted if they are abandoned."""
    return f".tracekit-{os.urandom(4).hex()}.partial"
