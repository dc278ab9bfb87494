"""Simulate Windows in a process of Linux: its modules and functions exist, and those of Linux do not."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import types
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tracekit.system.platform import locks, modules, open_files, renames, windows

FUNCTIONS = (
    *("pread", "preadv", "posix_fallocate", "geteuid", "killpg", "getpgrp", "sysconf", "sched_getaffinity"),
    *("register_at_fork", "fork", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "link"),
)
"""Functions and flags of ``os`` that Windows lacks, as far as tracekit uses them on Linux.

Windows has ``os.link``, but tracekit does not use it there.
"""
SIGNALS = ("SIGKILL", "SIGHUP")


class Kernel32:
    """The functions of the library of Windows that tracekit calls.

    Attributes:
        total, free, private: The sizes in bytes that it reports.
        calls: Number of calls by function.
        fails: Whether all functions report an error.
    """

    def __init__(self) -> None:
        self.total, self.free, self.private = 64 << 30, 48 << 30, 123 << 20
        self.calls: Counter[str] = Counter()
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        function = getattr(type(self), f"call_{name}")

        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            return 0 if self.fails else int(function(self, *arguments))

        return call

    def call_GlobalMemoryStatusEx(self, pointer: Any) -> int:  # noqa: N802 - a name of Windows
        status = pointer._obj
        assert status.length == ctypes.sizeof(status) == 64
        status.total, status.free = self.total, self.free
        return 1

    def call_OpenProcess(self, access: int, inherit: int, process_id: int) -> int:  # noqa: N802
        return 42 if process_id == os.getpid() and access == 0x1000 and not inherit else 0

    def call_K32GetProcessMemoryInfo(self, handle: Any, pointer: Any, size: int) -> int:  # noqa: N802
        counters = pointer._obj
        assert handle.value == 42
        assert size == counters.size == ctypes.sizeof(counters) == 80
        counters.private = self.private
        return 1

    def call_CloseHandle(self, handle: Any) -> int:  # noqa: N802
        return int(handle.value == 42)

    def call_DeviceIoControl(self, handle: Any, code: int, *_: Any) -> int:  # noqa: N802
        return int(os.fstat(handle.value).st_size == 0 and code == 0x900C4)

    def call_GetConsoleMode(self, handle: Any, pointer: Any) -> int:  # noqa: N802
        pointer._obj.value = 3
        return int(os.fstat(handle.value) is not None)

    def call_SetConsoleMode(self, handle: Any, mode: int) -> int:  # noqa: N802
        return int(os.fstat(handle.value) is not None and mode == 7)


def install_windows(
    set_attribute: Callable[[Any, str, Any], object],
    delete_attribute: Callable[[Any, str], object],
    signals: Sequence[str] = SIGNALS,
) -> Kernel32:
    """Replace the modules and functions of Linux by those of Windows, and return the library of Windows.

    Args:
        set_attribute: Function that sets an attribute, such as that of ``monkeypatch``.
        delete_attribute: Function that deletes an attribute.
        signals: Names of the signals that are missing. Python itself needs SIGKILL to end processes on Linux.
    """
    kernel = Kernel32()
    msvcrt = types.ModuleType("msvcrt")
    msvcrt.LK_NBLCK, msvcrt.locking, msvcrt.get_osfhandle = 2, _lock, int  # type: ignore[attr-defined]
    real = modules.import_if_present
    present = {"msvcrt": msvcrt, "fcntl": None, "resource": None}
    for module in (modules, windows, open_files):
        set_attribute(module, "import_if_present", lambda name: present[name] if name in present else real(name))
    set_attribute(locks, "fcntl", None)
    set_attribute(locks, "msvcrt", msvcrt)
    set_attribute(renames, "_find_c_rename_function", lambda: None)
    set_attribute(ctypes, "WinDLL", lambda name: {"kernel32": kernel}[name])
    set_attribute(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200)
    for name in FUNCTIONS:
        delete_attribute(os, name)
    for name in signals:
        delete_attribute(signal, name)
    return kernel


def _lock(descriptor: int, mode: int, size: int) -> None:
    """Lock the first bytes of a file, as ``msvcrt.locking`` does, also against other descriptors of this process."""
    import fcntl

    if (mode, size) != (2, 1) or os.lseek(descriptor, 0, os.SEEK_CUR) != 0:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES)) from None
