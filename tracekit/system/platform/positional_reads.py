"""Read from an offset of an open file, from several threads at once.

``pread`` leaves the position of the file unchanged. Without it, the position is set and used under a lock, because all
descriptors that were duplicated from one another share a position.
"""

from __future__ import annotations

import os
import threading

MAX_READ_BYTES = 1 << 30
"""Maximum number of bytes per read call. Linux, macOS and Windows read less than 2 GiB."""
_LOCK = threading.Lock()


def read_at(descriptor: int, offset: int, size: int) -> bytes:
    """Read at most ``size`` bytes from an offset. The result is empty at the end of the file, and may be too short.

    Raises:
        OSError: The file cannot be read.
    """
    size = min(size, MAX_READ_BYTES)
    if hasattr(os, "pread"):
        data: bytes = os.pread(descriptor, size, offset)
        return data
    with _LOCK:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)


def read_into(descriptor: int, offset: int, target: memoryview) -> int:
    """Read bytes from an offset into ``target``, and return the number of read bytes.

    Raises:
        OSError: The file cannot be read.
    """
    target = target[:MAX_READ_BYTES]
    if hasattr(os, "preadv"):
        count: int = os.preadv(descriptor, [target], offset)
        return count
    data = read_at(descriptor, offset, len(target))
    target[: len(data)] = data
    return len(data)
