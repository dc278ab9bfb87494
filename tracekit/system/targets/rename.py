"""Rename files and folders: without replacing existing ones, or replacing exactly the one that was checked.

The renames are atomic if the system supports it. No other module of tracekit renames files.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import sys
from typing import TYPE_CHECKING

from tracekit.system.files import FileState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM)
_AT_FDCWD = -100
_LINUX_FLAGS = {"noreplace": 1, "exchange": 2}
_MACOS_FLAGS = {"noreplace": 4, "exchange": 2}


def rename_without_replacing(source: Path, target: Path) -> None:
    """Rename a file or folder to a path that must not exist.

    Raises:
        FileExistsError: The target exists.
    """
    if _rename_with_flag(source, target, "noreplace"):
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
        old.parent.mkdir()
        target.rename(old)
        try:
            source.rename(target)
        except BaseException:
            with contextlib.suppress(OSError):
                rename_without_replacing(old, target)
            raise


def exchange_paths(first: Path, second: Path) -> bool:
    """Exchange two files or folders atomically, and return True. If the system does not support this, return False."""
    return _rename_with_flag(first, second, "exchange")


def _rename_with_flag(source: Path, target: Path, flag: str) -> bool:
    """Rename a file by a system call with a flag, and return True. If the flag is not supported, return False."""
    rename = _find_c_rename_function()
    if rename is None:
        return False
    ctypes.set_errno(0)
    if rename(os.fsencode(source), os.fsencode(target), flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(target))


@functools.cache
def _find_c_rename_function() -> Callable[[bytes, bytes, str], int] | None:
    """Return the function of the C library that renames files with flags, or None if the library does not have it."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            macos = library.renamex_np
            return lambda source, target, flag: int(macos(source, target, ctypes.c_uint(_MACOS_FLAGS[flag])))
        linux = library.renameat2
    except (OSError, AttributeError, TypeError):
        return None
    return lambda source, target, flag: int(
        linux(_AT_FDCWD, source, _AT_FDCWD, target, ctypes.c_uint(_LINUX_FLAGS[flag]))
    )
