"""Labels of the enums of CUPTI, and the names of CUDA functions by the numbers that CUPTI records.

nsys, nvprof and the PyTorch profiler record GPU activities with CUPTI. The labels are those of nsys.

Sources: ``cupti_activity.h``, ``cupti_runtime_cbid.h`` and ``cupti_driver_cbid.h`` of CUDA 12.9.
"""

from __future__ import annotations

import functools

from tracekit import schemas

MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
"""Kinds of memory in the order of nsys. CUPTI counts them from 1, and 0 is Unknown."""
COPY_KINDS = (
    "Unknown",
    "Host-to-Device",
    "Device-to-Host",
    "Host-to-Array",
    "Array-to-Host",
    "Array-to-Array",
    "Array-to-Device",
    "Device-to-Array",
    "Device-to-Device",
    "Host-to-Host",
    "Peer-to-Peer",
    "Unified Host-to-Device",
    "Unified Device-to-Host",
    "Unified Device-to-Device",
)
"""Kinds of copies. CUPTI counts migrations of unified memory separately."""
LAUNCH_TYPES = ("Unknown", "Regular", "Coop Single Device", "Coop Multi Device")
"""Kinds of launches in the order of nsys. CUPTI has no Unknown and counts from Regular."""
MEMORY_OPERATIONS = ("Allocation", "Deallocation")
MIGRATION_CAUSES = (
    "Unknown",
    "User prefetch",
    "Page fault",
    "Speculative prefecth",
    "Eviction",
    "Access counters",
)
"""Causes of migrations of unified memory, with the spelling of nsys."""
MEMORY_ACCESS_TYPES = ("Unknown", "Read", "Write", "Atomic", "Prefetch")
SYNC_TYPES = ("Unknown", "Event sync", "Stream wait sync", "Stream sync", "Context sync")
STREAM_TYPES = ("Unknown stream type", "Default stream", "Non-blocking stream", "Null stream")
OVERHEAD_TYPES = (
    "Undefined",
    "Unknown",
    "Driver JIT compiler (CUDA)",
    "Buffer flush (Profiler)",
    "Instrumentation (Profiler)",
    "Resource creation/destruction (Profiler)",
    "Runtime module loading (CUDA)",
    "Lazy function loading (CUDA)",
    "Command buffer full (CUDA)",
)
"""Kinds of overheads in the order of nsys. From the fourth on, CUPTI stores 1, 2, … in the upper half."""
OPENACC_EVENT_KINDS = (
    *("Invalid", "Device init", "Device shutdown", "Runtime shutdown", "Enqueue launch", "Enqueue upload"),
    *("Enqueue download", "Wait", "Implicit wait", "Compute construct", "UPDATE", "Enter data", "Exit data"),
    *("Create", "Delete", "Alloc", "Free"),
)
OPENACC_DEVICES = (
    *("None", "Default", "Host", "Not host", "NVIDIA", "Radeon", "Xeon Phi", "PGI OpenCL", "NVIDIA OpenCL"),
    "OpenCL",
)


@functools.cache
def load_function_names(api: str) -> tuple[str, ...]:
    """Return the names of the functions of an API. The name of the function with the number ``n`` is at ``n - 1``.

    Args:
        api: The API, ``runtime`` or ``driver``.
    """
    return tuple((schemas.FOLDER / "cupti" / f"{api}.txt").read_text("ascii").split())
