"""Which columns of a DLProf database each declared table is made of.

Of one call of CUDA DLProf keeps one row, of the first kind that fits: kernel, memset, memcpy, synchronization, or a
call without work on the GPU. It keeps no correlation ids, so rows are numbered here: a call and its GPU activity have
the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    Number = TypeVar("Number", int, pl.Expr)

CHILDREN = (
    "read_only_kernels",
    "read_only_memsets",
    "read_only_memcpys",
    "read_only_cuda_syncs",
    "read_only_cuda_calls",
)
ONE_CALL = ("process_id", "thread_id", "api_start", "api_stop")
"""Rows that are the same in these columns are of one call: a graph of kernels is launched by one."""

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
"""Columns that are read, of each table."""


class Lookup(NamedTuple):
    """A column of the row of another table that a column names by its id.

    Attributes:
        by: The column that names it.
        table: The other table.
        column: Its column.
        or_id: Whether an id that names no row stands for itself.
    """

    by: str
    table: str
    column: str
    or_id: bool = False


class CallNumber(NamedTuple):
    """The number of the call that a row is of: by the kind of the call, and the first row that is of it."""

    source: str

    def of(self, first_id: Number) -> Number:
        """Return the number of the call whose first row has an id."""
        return first_id * len(CHILDREN) + CHILDREN.index(self.source)


Origin = str | Lookup | CallNumber
"""What a declared column is made of: a column of the same row, or one of these."""


@dataclass(frozen=True, slots=True)
class Made:
    """How a declared table is made.

    Attributes:
        source: Table that its rows come from.
        columns: What each declared column that is known is made of.
        only_first: Whether only the first row of each call counts.
    """

    source: str
    columns: Mapping[str, Origin]
    only_first: bool = False


def _activity(source: str, columns: Mapping[str, Origin]) -> Made:
    """Describe a table of GPU activities; devices are rows of a table of their own."""
    known: dict[str, Origin] = {
        "start_ns": "gpu_start",
        "end_ns": "gpu_stop",
        "process_id": "process_id",
        "device_id": Lookup("device_id", "read_only_gpu_infos", "device_id", or_id=True),
        "correlation_id": CallNumber(source),
    }
    return Made(source, {**known, **columns})


_SIZES = {
    f"{what}_{axis}": Lookup(f"{what}_id", "read_only_grid_block", axis) for what in ("grid", "block") for axis in "xyz"
}

TABLES: Mapping[str, Made] = {
    "kernels": _activity(
        "read_only_kernels", {"kernel_id": "id", "name": "long_name_id", "short_name": "name_id", **_SIZES}
    ),
    "memsets": _activity("read_only_memsets", {"memset_id": "id", "bytes": "num_bytes"}),
    "memcpys": _activity("read_only_memcpys", {"memcpy_id": "id", "bytes": "num_bytes", "copy_kind": "copy_kind"}),
    "syncs": _activity(
        "read_only_cuda_syncs",
        {
            "sync_id": "id",
            "start_ns": "api_start",
            "end_ns": "api_stop",
            "sync_type": "sync_type",
            "event_id": "event_id",
        },
    ),
    "devices": Made(
        "read_only_gpu_infos",
        {
            "device_id": "device_id",
            "name": "gpu_name",
            "compute_major": "compute_capability_major",
            "compute_minor": "compute_capability_minor",
            "sm_count": "sm_count",
        },
    ),
}
"""Declared tables that one table of the database gives, in the order of its ids."""


def calls(source: str) -> Made:
    """Describe the calls of CUDA that a table tells of; a kernel's name hides that of the call which launched it."""
    columns: dict[str, Origin] = {
        "api_call_id": CallNumber(source),
        "correlation_id": CallNumber(source),
        "start_ns": "api_start",
        "end_ns": "api_stop",
        "process_id": "process_id",
        "thread_id": "thread_id",
    }
    if source != "read_only_kernels":
        columns["name"] = "name_id"
    return Made(source, columns, only_first=True)
