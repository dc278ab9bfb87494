"""Map the tables and columns of a DLProf database to declared tables.

DLProf has five tables for CUDA API calls: one each for calls that launch kernels, memsets and memcpys, one for
synchronizations, and one for calls without GPU activity. Each call is stored in the first table that suits the call.
DLProf stores no correlation ids. Therefore, the reader computes ids that API calls share with their GPU activities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    Number = TypeVar("Number", int, pl.Expr)

CALL_TABLES = (
    "read_only_kernels",
    "read_only_memsets",
    "read_only_memcpys",
    "read_only_cuda_syncs",
    "read_only_cuda_calls",
)
CALL_KEY = ("process_id", "thread_id", "api_start", "api_stop")
"""Columns that identify an API call. Several rows may belong to one call, such as the kernels of a graph launch."""

_CALL = ("id", "process_id", "thread_id", "api_start", "api_stop", "name_id")
_GPU = ("gpu_start", "gpu_stop", "device_id")
REQUIRED_COLUMNS: Mapping[str, tuple[str, ...]] = {
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
    "expert_systems_feedback": ("id", "aggr_id", "exp_sys_id", "problem", "recommendation"),
}
"""Columns that are read, by source table."""


class Lookup(NamedTuple):
    """A column source that looks up values by id in another table.

    Attributes:
        id_column: The column of the source table that contains the id.
        table: Name of the other table.
        column: The column of the other table that contains the value.
        defaults_to_id: Whether the id itself is used as the value if the other table has no row with this id.
    """

    id_column: str
    table: str
    column: str
    defaults_to_id: bool = False


class CallId(NamedTuple):
    """A column source that computes the id of each API call from the id of the first row of the call."""

    source_table: str

    def compute_call_id(self, first_row_id: Number) -> Number:
        """Return the unique id of an API call, given the id of the first row of the call in the source table."""
        return first_row_id * len(CALL_TABLES) + CALL_TABLES.index(self.source_table)


ColumnSource = str | Lookup | CallId
"""The source of a declared column: a column of the same row, a lookup in another table, or the id of the API call."""


@dataclass(frozen=True, slots=True)
class TableMapping:
    """The mapping from a source table to a declared table.

    Attributes:
        source_table: Name of the source table in the DLProf database.
        columns: The source of each declared column that DLProf records.
        only_first: Whether only the first row of each API call becomes a row of the declared table.
    """

    source_table: str
    columns: Mapping[str, ColumnSource]
    only_first: bool = False


def _create_activity_mapping(source_table: str, columns: Mapping[str, ColumnSource]) -> TableMapping:
    """Return the mapping from a source table to a table of GPU activities, such as ``memcpys``.

    Args:
        source_table: Name of the source table.
        columns: Sources of declared columns. They extend and override the sources that all activity tables share.
    """
    common: dict[str, ColumnSource] = {
        "start_ns": "gpu_start",
        "end_ns": "gpu_stop",
        "process_id": "process_id",
        "device_id": Lookup("device_id", "read_only_gpu_infos", "device_id", defaults_to_id=True),
        "correlation_id": CallId(source_table),
    }
    return TableMapping(source_table, {**common, **columns})


_GRID_AND_BLOCK = {
    f"{name}_{axis}": Lookup(f"{name}_id", "read_only_grid_block", axis) for name in ("grid", "block") for axis in "xyz"
}

TABLES: Mapping[str, TableMapping] = {
    "kernels": _create_activity_mapping(
        "read_only_kernels", {"kernel_id": "id", "name": "long_name_id", "short_name": "name_id", **_GRID_AND_BLOCK}
    ),
    "memsets": _create_activity_mapping("read_only_memsets", {"memset_id": "id", "bytes": "num_bytes"}),
    "memcpys": _create_activity_mapping(
        "read_only_memcpys", {"memcpy_id": "id", "bytes": "num_bytes", "copy_kind": "copy_kind"}
    ),
    "syncs": _create_activity_mapping(
        "read_only_cuda_syncs",
        {
            "sync_id": "id",
            "start_ns": "api_start",
            "end_ns": "api_stop",
            "sync_type": "sync_type",
            "event_id": "event_id",
        },
    ),
    "devices": TableMapping(
        "read_only_gpu_infos",
        {
            "device_id": "device_id",
            "name": "gpu_name",
            "compute_major": "compute_capability_major",
            "compute_minor": "compute_capability_minor",
            "sm_count": "sm_count",
        },
    ),
    "findings": TableMapping(
        "expert_systems_feedback",
        {
            "finding_id": "id",
            "aggregation_id": "aggr_id",
            "rule": "exp_sys_id",
            "problem": "problem",
            "recommendation": "recommendation",
        },
    ),
}
"""Declared tables that are read from a single source table, ordered by its ids."""


def create_call_mapping(source_table: str) -> TableMapping:
    """Return the mapping from a DLProf source table to ``api_calls``.

    For the source table of kernels, the mapping omits the name of the call, because DLProf does not store the name.
    """
    columns: dict[str, ColumnSource] = {
        "api_call_id": CallId(source_table),
        "correlation_id": CallId(source_table),
        "start_ns": "api_start",
        "end_ns": "api_stop",
        "process_id": "process_id",
        "thread_id": "thread_id",
    }
    if source_table != "read_only_kernels":
        columns["name"] = "name_id"
    return TableMapping(source_table, columns, only_first=True)
