"""Rename a file without replacing an existing one, and exchange two files, atomically if the system supports it."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
from typing import TYPE_CHECKING

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
