"""Labels of the numbers that an export keeps in ``ENUM_*`` tables.

Exports before Nsight Systems 2022.4 have no such tables; these are the labels that nsys 2025.3 writes, so that every
version reads alike. A table in the file wins over these.
"""

from __future__ import annotations

MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
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

LABELS: dict[str, tuple[str, ...]] = {
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": ("Unknown", "Regular", "Coop Single Device", "Coop Multi Device"),
    "ENUM_CUDA_MEMCPY_OPER": COPY_KINDS,
    "ENUM_CUDA_MEM_KIND": MEMORY_KINDS,
    "ENUM_CUDA_UNIF_MEM_MIGRATION": (
        "Unknown",
        "User prefetch",
        "Page fault",
        "Speculative prefecth",
        "Eviction",
        "Access counters",
    ),
    "ENUM_CUPTI_STREAM_TYPE": ("Unknown stream type", "Default stream", "Non-blocking stream", "Null stream"),
    "ENUM_CUPTI_SYNC_TYPE": ("Unknown", "Event sync", "Stream wait sync", "Stream sync", "Context sync"),
    "ENUM_NSYS_EVENT_CLASS": ("CUDA runtime", "CUDA driver"),
}

ENUM_OF_COLUMN = {
    "launchType": "ENUM_CUDA_KERNEL_LAUNCH_TYPE",
    "copyKind": "ENUM_CUDA_MEMCPY_OPER",
    "srcKind": "ENUM_CUDA_MEM_KIND",
    "dstKind": "ENUM_CUDA_MEM_KIND",
    "memKind": "ENUM_CUDA_MEM_KIND",
    "migrationCause": "ENUM_CUDA_UNIF_MEM_MIGRATION",
    "syncType": "ENUM_CUPTI_SYNC_TYPE",
    "flag": "ENUM_CUPTI_STREAM_TYPE",
    "eventClass": "ENUM_NSYS_EVENT_CLASS",
}
