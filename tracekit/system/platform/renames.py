"""Rename files by the special calls of some systems: without replacing another file, or exchanging two paths.

Linux and macOS have such a call, but not for every file system. A file can otherwise be given a second name, which
fails if the name exists. On Windows, the ordinary rename replaces nothing, but fails while another program has the file
open.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Result = TypeVar("Result")

_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM)
_NO_SECOND_NAME = (*_UNSUPPORTED, errno.EMLINK, errno.EACCES, errno.EXDEV)
_AT_FDCWD = -100
_LINUX_FLAGS = {"noreplace": 1, "exchange": 2}
_MACOS_FLAGS = {"noreplace": 4, "exchange": 2}
_IN_USE = (5, 32, 33)
"""Numbers of the errors of Windows if another program, such as a virus scanner, has a file open."""
_ATTEMPTS, _PAUSE_S = 50, 0.02


def rename_exclusively(source: Path, target: Path) -> bool:
    """Rename a file or folder atomically to a path that must not exist. Return False if the system cannot do this.

    Raises:
        FileExistsError: The target exists.
        OSError: The file or folder cannot be renamed.
    """
    return rename_with_flag(source, target, "noreplace") or _rename_by_second_name(source, target)


def rename_with_flag(source: Path, target: Path, flag: str) -> bool:
    """Rename a file by a system call with a flag, and return True. If the flag is not supported, return False.

    Args:
        source: Path of a file or folder.
        target: The other path.
        flag: ``noreplace`` to replace nothing, or ``exchange`` to exchange two existing files or folders.

    Raises:
        OSError: The file or folder cannot be renamed.
    """
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


def _rename_by_second_name(source: Path, target: Path) -> bool:
    """Rename a regular file by a second name, which must not exist. Return False if files can have only one name."""
    if not hasattr(os, "link") or sys.platform == "win32" or source.is_symlink() or not source.is_file():
        return False
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError as e:
        if e.errno in _NO_SECOND_NAME:
            return False
        raise
    os.unlink(source)  # noqa: PTH108 - the file stays, with its second name
    return True


def repeat_while_in_use(action: Callable[[], Result]) -> Result:
    """Return the result of an action on a file. On Windows, repeat it for up to a second while the file is in use.

    Raises:
        OSError: The error of the last attempt.
    """
    for _ in range(_ATTEMPTS):
        try:
            return action()
        except PermissionError as e:
            if getattr(e, "winerror", None) not in _IN_USE:
                raise
        time.sleep(_PAUSE_S)
    return action()


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
