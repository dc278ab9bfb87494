"""Limit the memory for columns, and map temporary files with larger columns into memory.

Temporary files have no name, so the system deletes them when the process ends, however it ends. Their mapped pages can
be dropped from memory at any time, because the system reads them again from the file.
"""

from __future__ import annotations

import contextlib
import contextvars
import mmap
import os
import threading
import weakref
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

DEFAULT_FREE_BYTES = 4 << 30
"""Free memory that is assumed if the system does not report it."""
LARGE_BLOCK = 1 << 20
"""Size in bytes from which blocks of memory are large."""
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
"""Numbers of options in malloc.h of glibc."""
_limit: contextvars.ContextVar[int | None] = contextvars.ContextVar("limit", default=None)
_lock = threading.Lock()
_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


@contextlib.contextmanager
def limit(size: int | None) -> Iterator[None]:
    """Limit the memory for columns to ``size`` bytes within the context. None means half of the free memory."""
    token = _limit.set(size)
    try:
        yield
    finally:
        _limit.reset(token)


def budget() -> int:
    """Return the number of bytes that columns may use: the value of ``limit``, or half of the free memory."""
    chosen = _limit.get()
    return free_bytes() // 2 if chosen is None else chosen


def free_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the memory that processes can still allocate without swapping, in bytes.

    Args:
        meminfo: File with which Linux reports the available memory.
    """
    try:
        lines = meminfo.read_text("ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return DEFAULT_FREE_BYTES


def hold_less_free_memory() -> None:
    """Let the C library of Linux return large blocks of this process to the system when they are freed.

    By default, each thread holds up to 64 MiB of freed memory, which other threads cannot use.
    """
    for option, value in ((_MMAP_THRESHOLD, LARGE_BLOCK), (_ARENA_MAX, 1)):
        _call_glibc("mallopt", option, value)


def return_free_memory() -> None:
    """Return memory that was freed, but that the allocators of Arrow and of the C library still hold, to the system."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    _call_glibc("malloc_trim", 0)


def _call_glibc(name: str, *arguments: int) -> None:
    """Call a function of glibc. Other C libraries do not have it."""
    import ctypes

    with contextlib.suppress(AttributeError, OSError, TypeError):
        getattr(ctypes.CDLL(None), name)(*arguments)


def release_pages() -> None:
    """Drop the pages of all mapped files from memory. They are read again when they are used."""
    if hasattr(mmap, "MADV_DONTNEED"):
        with _lock:
            maps = list(_maps)
        for mapped in maps:
            mapped.madvise(mmap.MADV_DONTNEED)


def map_file(file: IO[bytes]) -> pa.Buffer:
    """Map the content of a completely written temporary file into memory, close the file, and return the content.

    The content stays mapped until the last reference to the buffer is deleted.
    """
    import pyarrow as pa

    with file:
        file.flush()
        mapped = mmap.mmap(file.fileno(), os.fstat(file.fileno()).st_size, access=mmap.ACCESS_READ)
    with _lock:
        _maps.add(mapped)
    return pa.py_buffer(mapped)
