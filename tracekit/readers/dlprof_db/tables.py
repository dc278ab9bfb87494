"""Which columns of a DLProf database each declared table is made of.

Of one call of CUDA DLProf keeps one row, of the first kind that fits: kernel, memset, memcpy, synchronization, or a
call without work on the GPU. It keeps no correlation ids, so rows are numbered here: a call and its GPU activity have
the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

CHILDREN = (
    "read_only_kernels",
    "read_only_memsets",
    "read_only_memcpys",
    "read_only_cuda_syncs",
    "read_only_cuda_calls",
)
_CALL = ("id", "process_id", "thread_id", "api_start", "api_stop", "name_id")
_GPU = ("gpu_start", "gpu_stop", "device_id")
NEEDED: Mapping[str, tuple[str, ...]] = {
    "dictionary": ("id", "string"),
    "read_only_gpu_infos": (
        "id",
        "device_id",
        "gpu_name",
        "compute_capability_major",
        "compute_capability_minor",
        "sm_count",
    ),
    "read_only_grid_block": ("id", "x", "y", "z"),
    "read_only_kernels": (*_CALL, *_GPU, "long_name_id", "grid_id", "block_id"),
    "read_only_memsets": (*_CALL, *_GPU, "num_bytes"),
    "read_only_memcpys": (*_CALL, *_GPU, "num_bytes", "copy_kind"),
    "read_only_cuda_syncs": (*_CALL, "sync_type", "event_id", "device_id"),
    "read_only_cuda_calls": _CALL,
    "read_only_op_instances": ("id", "read_only_ops_id", "cpu_start", "cpu_stop", "process_id", "thread_id"),
    "read_only_ops": ("id", "op_id_id", "op_name"),
}
"""Columns that the queries name, of the tables that they read."""


@dataclass(frozen=True, slots=True)
class Made:
    """How a declared table is made.

    Attributes:
        source: Table that its rows come from, as ``t``.
        joins: What is joined to it.
        columns: An SQL expression for each declared column that is known.
    """

    source: str
    joins: str
    columns: Mapping[str, str]


_ONE_CALL = "process_id, thread_id, api_start, api_stop"
FIRST_ROWS = "SELECT min(id) FROM {} GROUP BY " + _ONE_CALL  # noqa: S608 - ours
"""The first row of each call: of a graph of kernels one call launched many."""


def _number(source: str) -> str:
    """Number the call of a row: by its kind, and the first row that tells of it."""
    first = f"min(t.id) OVER (PARTITION BY {', '.join(f't.{c}' for c in _ONE_CALL.split(', '))})"
    return f"({first}) * {len(CHILDREN)} + {CHILDREN.index(source)}"


def _activity(source: str, **columns: str) -> Made:
    """Describe a table of GPU activities; devices are rows of a table of their own."""
    known = {
        "start_ns": "t.gpu_start",
        "end_ns": "t.gpu_stop",
        "process_id": "t.process_id",
        "device_id": "coalesce(d.device_id, t.device_id)",
        "correlation_id": _number(source),
    }
    return Made(source, "LEFT JOIN read_only_gpu_infos d ON d.id = t.device_id", {**known, **columns})


_SIZES = {f"{what}_{axis}": f"{what[0]}.{axis}" for what in ("grid", "block") for axis in "xyz"}
_KERNEL = _activity("read_only_kernels", kernel_id="t.id", name="t.long_name_id", short_name="t.name_id", **_SIZES)
_GRIDS = " LEFT JOIN read_only_grid_block g ON g.id = t.grid_id LEFT JOIN read_only_grid_block b ON b.id = t.block_id"

TABLES: Mapping[str, Made] = {
    "kernels": Made(_KERNEL.source, _KERNEL.joins + _GRIDS, _KERNEL.columns),
    "memsets": _activity("read_only_memsets", memset_id="t.id", bytes="t.num_bytes"),
    "memcpys": _activity("read_only_memcpys", memcpy_id="t.id", bytes="t.num_bytes", copy_kind="t.copy_kind"),
    "syncs": _activity(
        "read_only_cuda_syncs",
        sync_id="t.id",
        start_ns="t.api_start",
        end_ns="t.api_stop",
        sync_type="t.sync_type",
        event_id="t.event_id",
    ),
    "devices": Made(
        "read_only_gpu_infos",
        "",
        {
            "device_id": "t.device_id",
            "name": "t.gpu_name",
            "compute_major": "t.compute_capability_major",
            "compute_minor": "t.compute_capability_minor",
            "sm_count": "t.sm_count",
        },
    ),
}
"""Declared tables that one table of the database gives, in the order of its ids."""

_CALLED = {
    "api_call_id": "",
    "correlation_id": "",
    "start_ns": "t.api_start",
    "end_ns": "t.api_stop",
    "process_id": "t.process_id",
    "thread_id": "t.thread_id",
    "name": "t.name_id",
}


def calls(source: str) -> Made:
    """Describe the calls of CUDA that a table tells of; a kernel's name hides that of the call which launched it."""
    number = f"t.id * {len(CHILDREN)} + {CHILDREN.index(source)}"
    name = {"name": "NULL"} if source == "read_only_kernels" else {}
    first = f"WHERE t.id IN ({FIRST_ROWS.format(source)})"
    return Made(source, first, {**_CALLED, "api_call_id": number, "correlation_id": number, **name})
