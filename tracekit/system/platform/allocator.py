"""Configure malloc of the C library of Linux (glibc). Other C libraries return large blocks by themselves."""

from __future__ import annotations

import contextlib

LARGE_BLOCK = 1 << 20
"""Size in bytes from which blocks of memory are large."""
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
"""Numbers of options in malloc.h of glibc."""


def make_malloc_return_large_blocks() -> None:
    """Configure malloc of glibc so that large blocks are returned to the system when they are freed.

    By default, each thread holds up to 64 MiB of freed memory, which other threads cannot use.
    """
    for option, value in ((_MMAP_THRESHOLD, LARGE_BLOCK), (_ARENA_MAX, 1)):
        _call_glibc("mallopt", option, value)


def return_free_blocks() -> None:
    """Return to the system the freed memory that malloc of glibc still holds."""
    _call_glibc("malloc_trim", 0)


def _call_glibc(function_name: str, *arguments: int) -> None:
    """Call a function of glibc by its name. Do nothing on systems with another C library."""
    import ctypes

    with contextlib.suppress(AttributeError, OSError, TypeError):
        getattr(ctypes.CDLL(None), function_name)(*arguments)
