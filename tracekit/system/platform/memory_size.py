"""Determine the memory of this machine, and how much of it this process can still allocate.

Linux reports both, and limits a process by control groups. Windows reports both by a function. macOS reports only the
size of the memory, so that an amount of free memory is assumed.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.system.platform.control_groups import PROCESS_FOLDER, read_free_memory_bytes, read_memory_limit_bytes
from tracekit.system.platform.modules import is_windows

if TYPE_CHECKING:
    from tracekit.system.platform import windows

DEFAULT_FREE_BYTES = 4 << 30
"""Free memory that is assumed if the system does not report it."""
DEFAULT_TOTAL_BYTES = 8 << 30
"""Memory size that is assumed if the system does not report it."""


def read_available_memory_bytes(meminfo: Path = Path("/proc/meminfo"), process_folder: Path = PROCESS_FOLDER) -> int:
    """Return the memory that this process can still allocate without swapping, in bytes.

    A limit of the container or of the cluster job is taken into account if a control group of Linux enforces it.

    Args:
        meminfo: File with which Linux reports the available memory.
        process_folder: The folder of the process in ``/proc``.
    """
    try:
        lines = meminfo.read_text("ascii").splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        reported = _read_windows_memory()
        half = read_total_memory_bytes(process_folder) // 2
        free = min(DEFAULT_FREE_BYTES, half) if reported is None else reported.free_bytes
    allowed = read_free_memory_bytes(process_folder)
    return free if allowed is None else min(free, allowed)


def read_total_memory_bytes(process_folder: Path = PROCESS_FOLDER) -> int:
    """Return the memory size of this machine in bytes, or the limit of its control groups if it is smaller.

    Args:
        process_folder: The folder of the process in ``/proc``.
    """
    total = _read_physical_memory()
    if total is None:
        reported = _read_windows_memory()
        total = DEFAULT_TOTAL_BYTES if reported is None else reported.total_bytes
    limit = read_memory_limit_bytes(process_folder)
    return total if limit is None else min(total, limit)


def _read_physical_memory() -> int | None:
    """Return the size of the memory of this machine in bytes, or None if the system does not list its pages."""
    if not hasattr(os, "sysconf"):
        return None
    try:
        pages: int = os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    return pages * mmap.PAGESIZE if pages > 0 else None


def _read_windows_memory() -> windows.MemorySizes | None:
    """Return the memory that Windows reports, or None on another system."""
    if not is_windows():
        return None
    from tracekit.system.platform import windows

    return windows.read_memory_sizes()
