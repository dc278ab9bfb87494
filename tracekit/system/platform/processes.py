"""Start, interrupt and end other processes, and measure their memory.

Linux and macOS end a process with all its children by its group. Windows ends only the process: the workers that
tracekit starts in it watch for its end and then end themselves.

Source: Apple, ``libproc.h`` and ``sys/resource.h`` (rusage_info_v0).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.system.platform.modules import is_windows

if TYPE_CHECKING:
    from collections.abc import Iterator

_USAGE_FIELDS, _FOOTPRINT = 12, 9
"""Size of rusage_info_v0 and the position of the physical footprint in it, in numbers of 8 bytes."""


def get_group_options() -> dict[str, Any]:
    """Return the options of ``subprocess.Popen`` for a process that Ctrl-C does not reach, with a group of its own."""
    if is_windows():
        return {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    return {"start_new_session": True}


def kill_group(process_id: int) -> None:
    """End a process that was started with ``get_group_options`` at once, and its children if the system can do this."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg") and hasattr(signal, "SIGKILL"):
            os.killpg(process_id, signal.SIGKILL)
        else:
            os.kill(process_id, signal.SIGTERM)  # on Windows, no process can handle this


def exit_with_group() -> None:
    """End this process at once, and its children too if it leads a group."""
    if _leads_group():
        kill_group(os.getpid())
    os._exit(0)


def _leads_group() -> bool:
    """Return whether this process is the first one of its group. Without groups, it is not."""
    return hasattr(os, "getpgrp") and os.getpgrp() == os.getpid()


def interrupt(process: subprocess.Popen[bytes]) -> bool:
    """Interrupt a process as Ctrl-C does, and return True. Return False if the system cannot interrupt one process."""
    if is_windows():
        return False
    process.send_signal(signal.SIGINT)
    return True


def list_processes(process_id: int) -> Iterator[int]:
    """Yield a process and, on Linux, its children."""
    yield process_id
    try:
        for task in Path(f"/proc/{process_id}/task").iterdir():
            yield from map(int, (task / "children").read_text("ascii").split())
    except (OSError, ValueError):
        return


def measure_memory(process_id: int) -> int:
    """Return the memory of a process in bytes without the pages of files, or 0 if it is unknown."""
    if is_windows():
        from tracekit.system.platform import windows

        return windows.measure_private_bytes(process_id) or 0
    if sys.platform == "darwin":
        return _measure_footprint(process_id)
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{process_id}/statm").read_text("ascii").split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * mmap.PAGESIZE


def _measure_footprint(process_id: int) -> int:
    """Return the physical footprint of a process of macOS in bytes, or 0 if it is unknown."""
    import ctypes

    usage = (ctypes.c_uint64 * _USAGE_FIELDS)()
    try:
        status = ctypes.CDLL(None).proc_pid_rusage(process_id, 0, ctypes.byref(usage))
    except (OSError, AttributeError):
        return 0
    return 0 if status else int(usage[_FOOTPRINT])
