"""Recognize the CSV files of rocprofv3 and rocprof by their columns, and list those of a folder."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.registry.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = re.compile(
    r"(.*?)_?(?:kernel|hip|hip_api|hip_runtime|hip_runtime_api|hip_compile|hip_compiler|hip_compiler_api|hsa|hsa_api"
    r"|marker|marker_api|rccl|rccl_api|rocdecode_api|rocjpeg_api|memory_copy|memory_allocation|scratch_memory"
    r"|counter_collection|agent_info|pc_sampling_host_trap|pc_sampling_stochastic|kernel_stats|hip_api_stats|hip_stats"
    r"|hsa_api_stats|hsa_stats|memory_copy_stats|marker_api_stats|marker_stats|domain_stats|memory_allocation_stats"
    r"|scratch_memory_stats|rccl_api_stats)(?:_trace)?\.csv"
)
"""The name of a file: the name of the output, which begins with the id of the process by default, and the kind."""
MAX_FILES = 4096
KINDS = {
    "counters": {"Counter_Name", "Counter_Value", "Kernel_Name"},
    "kernels": {"Kernel_Name", "Agent_Id", "Start_Timestamp", "End_Timestamp"},
    "calls": {"Domain", "Function", "Start_Timestamp", "End_Timestamp"},
    "copies": {"Direction", "Source_Agent_Id", "Destination_Agent_Id", "Start_Timestamp", "End_Timestamp"},
    "allocations": {"Allocation_Size", "Operation", "Address", "Start_Timestamp"},
    "scratch": {"Alloc_Flags", "Operation", "Agent_Id"},
    "agents": {"Node_Id", "Logical_Node_Id", "Agent_Type"},
    "samples": {"Sample_Timestamp", "Exec_Mask"},
    "rocprof": {"KernelName", "gpu-id", "queue-id", "BeginNs", "EndNs"},
}
"""The columns by which each kind of file is recognized."""
_COLUMN = re.compile(rb'"?([A-Za-z][\w-]{0,60})"?[ \t]*(,|\r?\n|\Z)')
_MAX_COLUMNS = 100


def find_kind(head: bytes) -> str | None:
    """Return the kind of a CSV file with these first bytes, or None for other files."""
    columns, at = set[str](), 3 * head.startswith(b"\xef\xbb\xbf")
    while len(columns) < _MAX_COLUMNS and (match := _COLUMN.match(head, at)):
        columns.add(match[1].decode("ascii"))
        at = match.end()
        if match[2] != b",":
            break
    return next((kind for kind, required in KINDS.items() if required <= columns), None)


def list_files(source: Source) -> Iterator[tuple[Source, str, str]]:
    """Yield the files of a capture with their kind, and with the name that the files of a process share."""
    names = [name for name in sorted(source.names) if FILE.fullmatch(name)]
    files = [Source(source.path / name) for name in names[:MAX_FILES]] if source.names else [source]
    for file in files:
        if file.path.is_file() and (kind := find_kind(file.head)) is not None:
            match = FILE.fullmatch(file.path.name)
            yield file, kind, match[1] if match else ""
