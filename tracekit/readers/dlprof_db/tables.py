"""Map the tables and columns of a DLProf database to declared tables.

DLProf has five tables for CUDA API calls: one each for calls that launch kernels, memsets and memcpys, one for
synchronizations, and one for calls without GPU activity. Each call is stored in the first table that suits the call.
DLProf stores no correlation ids. Therefore, the reader computes ids that API calls share with their GPU activities.

Read tables of a DLProf database as polars frames.

Tables are read one by one and joined in polars. In a damaged file, the columns of a join may contain duplicates, even
if an index declares these columns unique. A join in SQLite could then return far more rows than the file contains.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import polars as pl
import pyarrow as pa

from tracekit.errors import CorruptTraceError
from tracekit.readers.common import columns as col
from tracekit.readers.common.sqlite import database

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.registry.source import Source

    Number = TypeVar("Number", int, pl.Expr)

COPY_AGAIN = "copy the database again from where DLProf wrote it"
ID = "id"
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


class DlprofFile(database.Database):
    """An open DLProf database, whose tables are read as polars frames."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, COPY_AGAIN)

    def read_rows(self, table: str, integer_columns: Sequence[str], string_columns: Sequence[str] = ()) -> pl.DataFrame:
        """Read columns of a table. The result has no rows if the table is missing.

        Args:
            table: Name of the table.
            integer_columns: Names of the integer columns to read.
            string_columns: Names of the string columns to read.

        Returns:
            All rows of the table, in the order in which they are stored.

        Raises:
            CorruptTraceError: The table is damaged, or a column has values of another type.
        """
        types = dict.fromkeys(integer_columns, pa.int64()) | dict.fromkeys(string_columns, pa.string())
        if table not in self.columns:
            return pl.DataFrame(pa.table({c: pa.array([], kind) for c, kind in types.items()}))
        columns, _ = self.read_columns(table, types)
        return pl.DataFrame(pa.table(columns))

    def require_unique_keys(self, frame: pl.DataFrame, key_columns: Sequence[str], table: str) -> pl.DataFrame:
        """Return the rows of a frame that have no null in a key column. The keys of these rows must be unique.

        Raises:
            CorruptTraceError: Several rows have the same keys.
        """
        with_keys = frame.drop_nulls(key_columns)
        repeated = with_keys.height - with_keys.select(key_columns).n_unique() if with_keys.height else 0
        if repeated:
            what = f"{repeated} rows have the same {', '.join(key_columns)} as an earlier row"
            raise CorruptTraceError(what, path=self.path, table=table, hint=COPY_AGAIN)
        return with_keys

    def read_rows_by_id(
        self, table: str, integer_columns: Sequence[str], string_columns: Sequence[str] = ()
    ) -> pl.DataFrame:
        """Read columns of a table, with the rows sorted by id. The ids must be unique.

        Raises:
            CorruptTraceError: The table is missing or damaged, or ids are missing or not unique.
        """
        if table not in self.columns:
            raise CorruptTraceError(
                "the table is missing from the DLProf database", path=self.path, table=table, hint=COPY_AGAIN
            )
        rows = self.read_rows(table, tuple(dict.fromkeys((ID, *integer_columns))), string_columns)
        with_ids = self.require_unique_keys(rows, [ID], table)
        if with_ids.height != rows.height:
            what = f"{rows.height - with_ids.height} rows have no id"
            raise CorruptTraceError(what, path=self.path, table=table, hint=COPY_AGAIN)
        return with_ids if with_ids[ID].is_sorted() else with_ids.sort(ID)

    @functools.cached_property
    def dictionary_strings(self) -> col.StringTable:
        """The strings of the table ``dictionary``, keyed by id."""
        return map_strings_by_id(self.read_rows_by_id("dictionary", (), ("string",)), "string")

    def look_up_strings(
        self,
        ids: pl.Series,
        transform: Callable[[pl.Series], pl.Series] | None = None,
        strings: col.StringTable | None = None,
    ) -> pa.DictionaryArray:
        """Replace ids with the strings that they refer to. A string is null where the id is null or unknown.

        Args:
            ids: The ids of the strings, which may be null.
            transform: A function that replaces the distinct strings, or None to leave them unchanged.
            strings: The strings by id, or None for the strings of the table ``dictionary``.
        """
        names, _ = (strings or self.dictionary_strings).look_up_strings_of_ids(pa.chunked_array([ids.to_arrow()]))
        if transform is None:
            return names
        return col.build_dictionary_array(
            names.indices, transform(pl.Series(names.dictionary)).to_arrow().cast(pa.string())
        )

    def decode_dictionary(self, names: pa.DictionaryArray, table: str) -> pa.Array:
        """Convert a dictionary-encoded column to plain strings.

        Raises:
            CorruptTraceError: The rows repeat long strings so often that the result would exceed the memory limit.
        """
        try:
            return col.decode_dictionary(names)
        except ValueError as e:
            raise CorruptTraceError(str(e), path=self.path, table=table, hint=COPY_AGAIN) from e


def map_strings_by_id(rows: pl.DataFrame, column: str) -> col.StringTable:
    """Return the strings of a column, keyed by row id."""
    return col.StringTable(rows[ID].to_arrow(), rows[column].to_arrow().cast(pa.string()))


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
