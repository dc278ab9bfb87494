"""Create temporary files that the system deletes, and map them into memory.

On Linux and macOS they have no name, so they vanish when the process ends, however it ends. On Windows they have a
name, and the system deletes them when they are closed: a mapped file is closed when its mapping is.
"""

from __future__ import annotations

import mmap
import os
from typing import IO

from tracekit.system.platform.modules import is_windows

_ZEROS = bytes(1 << 20)


def open_unnamed_file(*, buffering: int = -1) -> IO[bytes]:
    """Create and open an empty temporary file, which is deleted when it is closed.

    Disk space is allocated only for the bytes that are written, if the file system can do this.

    Raises:
        OSError: The file cannot be created.
    """
    import tempfile

    # the caller closes the file, or maps and closes it
    file = (
        tempfile.TemporaryFile(prefix="tracekit-")  # noqa: SIM115
        if buffering < 0
        else tempfile.TemporaryFile(prefix="tracekit-", buffering=buffering)  # noqa: SIM115
    )
    if is_windows():
        from tracekit.system.platform import windows

        windows.make_sparse(file.fileno())
    return file


def reserve_space(file: IO[bytes], size_bytes: int) -> None:
    """Extend an empty file to ``size_bytes`` bytes of zeros.

    If the disk is too full, this function raises an error. Without reserved space, the process would be killed when it
    writes to the mapped file.

    Raises:
        OSError: The disk is too full.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size_bytes)
        return
    for start in range(0, size_bytes, len(_ZEROS)):
        file.write(_ZEROS[: size_bytes - start])
    file.flush()


def drop_pages(mapped: mmap.mmap) -> None:
    """Drop the pages of a mapped file from memory, if the system can do this. They are read again from the file."""
    if hasattr(mmap, "MADV_DONTNEED") and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)
