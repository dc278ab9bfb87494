"""Call functions of Windows that Python does not offer. Other modules import this one on Windows only.

Each function returns None or False if Windows reports an error, because tracekit can do without its answer.

Source: Microsoft, Windows API reference (MEMORYSTATUSEX, PROCESS_MEMORY_COUNTERS_EX, SetConsoleMode, FSCTL_SET_SPARSE).
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from tracekit.system.platform.modules import import_if_present

_FSCTL_SET_SPARSE = 0x900C4
_PROCESS_QUERY_LIMITED_INFORMATION = 0x1000
_ENABLE_VIRTUAL_TERMINAL_PROCESSING = 4


class MemorySizes(NamedTuple):
    """The memory of a machine.

    Attributes:
        total_bytes: Size of the memory in bytes.
        free_bytes: Bytes that can be allocated without swapping.
    """

    total_bytes: int
    free_bytes: int


class _MemoryStatus(ctypes.Structure):
    """The structure MEMORYSTATUSEX."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("free", ctypes.c_uint64),
        *((f"other_{number}", ctypes.c_uint64) for number in range(5)),
    )


class _MemoryCounters(ctypes.Structure):
    """The structure PROCESS_MEMORY_COUNTERS_EX."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("page_faults", ctypes.c_uint32),
        *((f"other_{number}", ctypes.c_size_t) for number in range(8)),
        ("private", ctypes.c_size_t),
    )


def read_memory_sizes() -> MemorySizes | None:
    """Return the size of the memory of this machine, and how much of it is free."""
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    if not _load_kernel32().GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return MemorySizes(status.total, status.free)


def measure_private_bytes(process_id: int) -> int | None:
    """Return the memory of a process in bytes that it shares with no other process."""
    library, counters = _load_kernel32(), _MemoryCounters(size=ctypes.sizeof(_MemoryCounters))
    library.OpenProcess.restype = ctypes.c_void_p
    process = library.OpenProcess(_PROCESS_QUERY_LIMITED_INFORMATION, 0, process_id)
    if not process:
        return None
    handle = ctypes.c_void_p(process)
    try:
        is_read = library.K32GetProcessMemoryInfo(handle, ctypes.byref(counters), ctypes.sizeof(counters))
    finally:
        library.CloseHandle(handle)
    return counters.private if is_read else None


def make_sparse(descriptor: int) -> bool:
    """Let the file system allocate no space for bytes of a file that are not written, and return whether it can."""
    count = ctypes.c_uint32()
    arguments = (_FSCTL_SET_SPARSE, None, 0, None, 0, ctypes.byref(count), None)
    return bool(_load_kernel32().DeviceIoControl(_get_handle(descriptor), *arguments))


def enable_escape_sequences(descriptor: int) -> bool:
    """Let a console interpret escape sequences, and return whether it does."""
    mode, console, library = ctypes.c_uint32(), _get_handle(descriptor), _load_kernel32()
    if not library.GetConsoleMode(console, ctypes.byref(mode)):
        return False
    return bool(library.SetConsoleMode(console, mode.value | _ENABLE_VIRTUAL_TERMINAL_PROCESSING))


def _load_kernel32() -> Any:
    """Return the library that contains the functions."""
    return getattr(ctypes, "WinDLL")("kernel32")  # noqa: B009 - only Windows has it


def _get_handle(descriptor: int) -> ctypes.c_void_p:
    """Return the handle of Windows of an open file."""
    return ctypes.c_void_p(import_if_present("msvcrt").get_osfhandle(descriptor))
