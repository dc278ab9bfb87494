"""Lock open files against other processes. The system releases the locks of a process when it ends, however it ends.

Linux and macOS lock whole files. Windows locks ranges of bytes. There, the first byte is locked, which need not exist.
"""

from __future__ import annotations

import errno
import os

from tracekit.system.platform.modules import import_if_present

fcntl = import_if_present("fcntl")
msvcrt = import_if_present("msvcrt")
_OTHERS_LOCK = (errno.EACCES, errno.EAGAIN, errno.EDEADLK, 36)
"""Numbers of the error of Windows if another process has locked a file: 36 is EDEADLOCK there."""


def has_locks() -> bool:
    """Return whether this system can lock files. Some of its file systems may be unable to."""
    return fcntl is not None or msvcrt is not None


def can_delete_locked_files() -> bool:
    """Return whether a file can be deleted while it is open, with its folder. On Windows, it has to be closed first."""
    return fcntl is not None


def try_to_lock(descriptor: int) -> bool:
    """Lock an open file, and return True. Return False if another process has locked it.

    Raises:
        OSError: The file system cannot lock files.
    """
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
    if msvcrt is None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError as e:
        if e.errno in _OTHERS_LOCK:
            return False
        raise
    return True
