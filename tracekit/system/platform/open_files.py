"""Open files in binary mode, without waiting for pipes, and without following a symbolic link."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from tracekit.system.platform.modules import import_if_present

if TYPE_CHECKING:
    from pathlib import Path

MAX_OPEN_FILES = 1 << 16
_DESCRIPTORS = "/proc/self/fd"
"""Folder of Linux in which each descriptor of this process has a path. Opening it yields a position of its own.

The folder ``/dev/fd`` of other systems is not used: what is opened there shares its position with the descriptor.
"""


def open_for_reading(path: Path) -> int:
    """Open a file for reading, and return its descriptor. A named pipe without a writer does not block.

    Raises:
        OSError: The file cannot be opened.
    """
    return os.open(path, os.O_RDONLY | _get_flags("O_NONBLOCK"))


def open_entry_for_reading(path: Path) -> int:
    """Open a file for reading that is no symbolic link, and return its descriptor.

    Raises:
        OSError: The file is a symbolic link, or cannot be opened.
    """
    return _open_entry(path, os.O_RDONLY | _get_flags("O_NONBLOCK"))


def open_entry_for_locking(path: Path) -> int:
    """Open an existing file for reading and writing that is no symbolic link, and return its descriptor.

    Raises:
        OSError: The file is a symbolic link, or cannot be opened.
    """
    return _open_entry(path, os.O_RDWR)


def create_for_locking(path: Path) -> int:
    """Open a file for reading and writing, which only this user can read, and return its descriptor.

    Raises:
        OSError: The file cannot be opened.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | _get_flags(), 0o600)


def open_for_appending(path: Path) -> int:
    """Open a file for appending bytes, which is created if it does not exist, and return its descriptor.

    Raises:
        OSError: The file cannot be opened.
    """
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _get_flags(), 0o644)


def find_descriptor_path(descriptor: int) -> str | None:
    """Return a path that refers to an open file even if its name now refers to another one, or None without one."""
    path = f"{_DESCRIPTORS}/{descriptor}"
    return path if os.path.exists(path) else None  # noqa: PTH110 - called often


def allow_many_open_files() -> None:
    """Raise the number of files that this process may open to the maximum, as far as the system has such limits."""
    resource = import_if_present("resource")
    if resource is None:
        return
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
        if soft != resource.RLIM_INFINITY and soft < limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError):  # macOS allows fewer files than it states
        return


def _open_entry(path: Path, flags: int) -> int:
    """Open a file that is no symbolic link.

    Without the flag ``O_NOFOLLOW``, the status of the path is compared with that of the open file, so that a link that
    replaces the file in between is detected.
    """
    if hasattr(os, "O_NOFOLLOW"):
        return os.open(path, flags | os.O_NOFOLLOW | _get_flags())
    entry = path.lstat()
    if stat.S_ISLNK(entry.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    descriptor = os.open(path, flags | _get_flags())
    if not os.path.samestat(entry, os.fstat(descriptor)):
        os.close(descriptor)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return descriptor


def _get_flags(*names: str) -> int:
    """Return the flags that this system has: those with the given names, and those with which every file is opened."""
    flags = 0
    for name in ("O_BINARY", "O_CLOEXEC", *names):
        flags |= getattr(os, name, 0)
    return flags
