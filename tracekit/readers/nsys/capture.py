"""Read an Nsight Systems capture as declared tables.

The mapping of a table (``mapping.py``) names the source column of each declared column. Most columns are computed from
that source column alone: times and numbers are copied, process and thread ids are extracted from global ids, and string
ids and enum values are looked up. The columns of NVTX, of GPU metrics and of the tables about the machine have resolver
functions in separate modules.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import CorruptTraceError, SchemaError, get_first_line_of_message
from tracekit.readers.common import columns as col
from tracekit.readers.common.builders import Builder, ChunkBuilder, RowCounter, concatenate
from tracekit.readers.nsys import counters, ids, machine, nvtx, paths, stacks
from tracekit.readers.nsys.lookups import INLINE_NAMES, Lookups, create_source_request, find_arrow_type
from tracekit.readers.nsys.machine import read_launch_metadata
from tracekit.readers.nsys.mapping import LABEL, SOURCES
from tracekit.readers.nsys.tables import FRAMES, ROWID, ColumnsRequest
from tracekit.readers.nsys.versions import ENUM_OF_COLUMN
from tracekit.registry.interface import Capture
from tracekit.system import memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.readers.nsys.lookups import Resolver
    from tracekit.readers.nsys.tables import SourceTables, Where
    from tracekit.registry.interface import LaunchMetadata
GPU_MASK = 0xFF
GPU_METRICS = "TARGET_INFO_GPU_METRICS"
GLOBAL_IDS = frozenset({"globalPid", "globalTid", "endGlobalTid"})
_WHOLE_TABLES = frozenset({*machine.TABLES, stacks.TABLE, stacks.PYTHON_TABLE})
"""Declared tables that are computed as a whole rather than read by column from a source table."""


def resolve_scheduled_in_flags(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return whether each context switch schedules a thread in (True) or out (False).

    nsys exports a nonzero number for a switch that schedules a thread in.
    """
    return pc.not_equal(source_rows["isSchedIn"], 0)


SCHEDULING_RESOLVERS: dict[str, dict[str, Resolver]] = {
    "cpu_scheduling": {"is_scheduled_in": (("isSchedIn",), resolve_scheduled_in_flags)},
}


def resolve_overhead_types(lookups: Lookups, table: str, source_rows: pa.Table) -> pa.Array:
    """Return the kind of each profiler overhead.

    Exports up to schema version 3.23 store the kind in the column ``returnValue``, and later exports in
    ``overheadType``.
    """
    numbers = col.coalesce(source_rows["overheadType"], source_rows["returnValue"])
    return lookups.look_up_strings(
        table, "overhead_type", numbers, lookups.read_enum_labels("ENUM_CUPTI_OVERHEAD_TYPE")
    )


OVERHEAD_RESOLVERS: dict[str, dict[str, Resolver]] = {
    "overheads": {"overhead_type": (("overheadType", "returnValue"), resolve_overhead_types)},
}


def resolve_device_ids(_lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the device id of each GPU metric sample: the lowest byte of the type id of the sample."""
    return pc.bit_wise_and(source_rows["typeId"], GPU_MASK)


def resolve_metric_names(lookups: Lookups, _table: str, source_rows: pa.Table) -> pa.Array:
    """Return the metric name of each GPU metric sample, given its type id and metric id."""
    names: dict[tuple[int | None, ...], str] = {}
    if GPU_METRICS in lookups.tables.columns:
        types, metrics, listed = (
            c.to_pylist() for c in lookups.fetch(GPU_METRICS, ["typeId", "metricId", "metricName"])
        )
        names = dict(zip(zip(types, metrics, strict=True), listed, strict=True))
    numbers, keys = col.encode_rows(source_rows["typeId"], source_rows["metricId"])
    return col.build_dictionary_array(numbers, pa.array([names.get(k) for k in keys], pa.string()))


GPU_METRIC_RESOLVERS: dict[str, Resolver] = {
    "device_id": (("typeId",), resolve_device_ids),
    "metric": (("typeId", "metricId"), resolve_metric_names),
}


class InvalidValue(NamedTuple):
    """A value that does not fit the type of its declared column.

    Attributes:
        column: Name of the declared column.
        message: Error message.
        row_index: Index of the row, counted from 0.
    """

    column: str
    message: str
    row_index: int


class NsysCapture(Lookups, Capture):
    """An open Nsight Systems file. Its declared tables are read on demand, column by column."""

    def __init__(self, tables: SourceTables) -> None:
        super().__init__(tables)
        self._machine_tables: dict[str, pa.Table] = {}
        self._stacks: stacks.Stacks | None = None
        self._python_samples: dict[str, pa.Array] = {}

    def read_launch_metadata(self) -> LaunchMetadata:
        """Return the host name, and the variables with which launchers number processes, such as ``RANK``."""
        return read_launch_metadata(self)

    def names(self) -> list[str]:
        """Return the names of the declared tables that Nsight Systems can record, including those without rows."""
        return [name for name in schemas.table_names() if self.may_have(name)]

    def may_have(self, name: str) -> bool:
        """Return whether Nsight Systems can record a declared table, even if it has no rows in this file."""
        return name in SOURCES

    def count_many(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of rows of several tables, by name.

        If the file format allows it, all tables are counted in one pass over the file.
        """
        sources = [
            (name, table)
            for name in names
            if name in SOURCES and name not in _WHOLE_TABLES
            for table in SOURCES[name].labels
        ]
        counts = dict.fromkeys(names, 0)
        conditions = [(table, self._create_row_filter(name, table)) for name, table in sources]
        rows = (
            self._count_rows_and_cache_stacks(conditions)
            if stacks.TABLE in names
            else self.tables.count_rows(conditions)
        )
        for (name, _), number in zip(sources, rows, strict=True):
            counts[name] += number
        counts |= {name: int(self.read_machine_table(name).num_rows) for name in names if name in machine.TABLES}
        if stacks.PYTHON_TABLE in names:
            counts[stacks.PYTHON_TABLE] = len(self.read_python_samples()["python_sample_id"])
        return counts | {name: len(self._read_stacks([])[0]) for name in names if name == stacks.TABLE}

    def _count_rows_and_cache_stacks(self, conditions: Sequence[tuple[str, Where | None]]) -> list[int]:
        """Return the number of matching rows for each pair of source table and filter, and cache the call stacks.

        For a report, one pass over the file counts the rows and reads the call stacks. The rows of an export are
        counted without being read, so its call stacks are read and cached later.
        """
        chains = [table for table in stacks.CHAIN_TABLES if table in self.tables.columns]
        if self._stacks is not None or not any(FRAMES in self.tables.columns[table] for table in chains):
            return self.tables.count_rows(conditions)
        counters = [RowCounter() for _ in conditions]
        known = [nth for nth, (table, _) in enumerate(conditions) if table in self.tables.columns]
        requests = [create_source_request(conditions[nth][0], [ROWID], conditions[nth][1]) for nth in known]
        self._read_stacks(requests, [counters[nth] for nth in known])
        return [counter.rows for counter in counters]

    def read_many(self, columns: Mapping[str, Sequence[str]]) -> dict[str, pa.Table]:
        """Read some columns of several tables, in one pass over the file if the file format allows it.

        Raises:
            CorruptTraceError: The file is damaged, or a value does not fit its declared type.
        """
        events = [n for n in columns if n not in _WHOLE_TABLES]
        recorded = [n for n in events if n in SOURCES]
        sources = [(n, table) for n in recorded for table in SOURCES[n].labels if table in self.tables.columns]
        definitions = nvtx.list_unread_name_definitions(self, {n: columns[n] for n, _ in sources})
        requests = [self._create_conversion_request(n, table, columns[n]) for n, table in sources] + [
            d.create_request() for d in definitions
        ]
        builders = [ChunkBuilder() if SOURCES[n].is_union else None for n, _ in sources]
        with_stacks = any(n == stacks.TABLE or "stack_id" in columns[n] for n in columns)
        call_stacks, results = (
            self._read_stacks(requests, builders) if with_stacks else (None, self.read_requests(requests, builders))
        )
        for definition in reversed(definitions):
            nvtx.store_defined_names(self, definition, pa.table(results.pop()))
        parts: dict[str, list[pa.Table]] = {n: [] for n in events}
        for name, table in sources:
            data = stacks.replace_chain_ids_with_stack_ids(
                call_stacks, name, self._replace_keys_with_names(name, results.pop(0))
            )
            parts[name].append(self.cast_to_declared_types(name, data, table))
            memory.release_pages()
        tables = {
            name: self.read_machine_table(name).select(list(names))
            for name, names in columns.items()
            if name in machine.TABLES
        }
        if call_stacks is not None and stacks.TABLE in columns:
            data = call_stacks.build_columns(self, columns[stacks.TABLE])
            tables[stacks.TABLE] = self.cast_to_declared_types(stacks.TABLE, data, SOURCES[stacks.TABLE].first_table)
        if stacks.PYTHON_TABLE in columns:
            tables[stacks.PYTHON_TABLE] = self._read_python_samples_columns(columns[stacks.PYTHON_TABLE], call_stacks)
        self.warn_about_unknown_strings()
        return {n: tables[n] if n in tables else join_source_tables(n, names, parts[n]) for n, names in columns.items()}

    def _read_stacks(
        self, requests: Sequence[ColumnsRequest[dict[str, pa.Array]]], builders: Sequence[Builder | None] = ()
    ) -> tuple[stacks.Stacks, list[dict[str, pa.Array]]]:
        """Return all call stacks, and the resulting columns of each request. Only the first call reads the stacks."""
        if self._stacks is not None:
            return self._stacks, self.read_requests(requests, builders)
        builder = stacks.StackBuilder(self, self.python_domains)
        results = self.read_requests(requests, builders, builder.collectors)
        self._stacks = builder.finish()
        return self._stacks, results

    @functools.cached_property
    def python_domains(self) -> stacks.Domains:
        """The kind of the Python samples in each NVTX domain that contains them, by process id and domain id.

        A kind is an index of ``python_stacks.KINDS``.
        """
        return stacks.find_python_domains(self)

    def read_python_samples(self) -> dict[str, pa.Array]:
        """Return all columns of ``python_samples`` except ``stack_id``. Only the first call reads the file."""
        if not self._python_samples:
            self._python_samples = stacks.read_python_samples(self, self.python_domains)
        return self._python_samples

    def _read_python_samples_columns(self, columns: Sequence[str], call_stacks: stacks.Stacks | None) -> pa.Table:
        """Return the requested columns of the declared table ``python_samples``."""
        data = dict(self.read_python_samples())
        if call_stacks is not None:
            data["stack_id"] = call_stacks.look_up_stack_ids(stacks.PYTHON_TABLE, data["python_sample_id"])
        return self.cast_to_declared_types(stacks.PYTHON_TABLE, {c: data[c] for c in columns}, nvtx.SOURCE_TABLE)

    def _create_conversion_request(
        self, table_name: str, source_table: str, columns: Sequence[str]
    ) -> ColumnsRequest[dict[str, pa.Array]]:
        """Return the request that reads a source table and converts it to columns of a declared table."""
        declared = {f.name: f.type for f in schemas.arrow_schema(schemas.table(table_name), columns)}

        def convert(source_rows: pa.Table) -> dict[str, pa.Array]:
            return {
                c: col.cast_numbers(self._resolve_column(table_name, source_table, c, source_rows), kind)
                for c, kind in declared.items()
            }

        return ColumnsRequest(
            source_table,
            find_source_column_types(table_name, source_table, columns),
            self._create_row_filter(table_name, source_table),
            convert,
        )

    def read_machine_table(self, table_name: str) -> pa.Table:
        """Return a declared table about the capture or its machine, such as ``devices``.

        The first call reads the table. Later calls return the same table.
        """
        if table_name not in self._machine_tables:
            self._machine_tables[table_name] = self.cast_to_declared_types(
                table_name, machine.read_machine_columns(self, table_name), SOURCES[table_name].first_table
            )
        return self._machine_tables[table_name]

    def _resolve_column(
        self, table_name: str, source_table: str, column: str, source_rows: pa.Table
    ) -> pa.ChunkedArray | pa.Array:
        """Compute a declared column from rows of a source table. The column has one value per source row."""
        resolver = find_column_resolvers(table_name).get(column)
        if resolver is None:
            return self.convert_source_column(table_name, source_table, column, source_rows)
        return resolver[1](self, table_name, source_rows)

    def convert_source_column(
        self, table_name: str, source_table: str, column: str, source_rows: pa.Table
    ) -> pa.ChunkedArray | pa.Array:
        """Compute a declared column from the source column that the mapping of its table names."""
        schema, sources = schemas.table(table_name), SOURCES[table_name]
        source = sources.find_column(source_table, column)
        if source == LABEL:
            labels = pa.array([sources.labels[source_table]], pa.string())
            return pa.DictionaryArray.from_arrays(col.build_number_array(np.zeros(len(source_rows), np.int32)), labels)
        if source is None:
            return col.build_null_array(len(source_rows), schemas.arrow_schema(schema, [column])[0].type)
        if source in GLOBAL_IDS:
            return (ids.extract_thread_ids if column.endswith("thread_id") else ids.extract_process_ids)(
                source_rows[source]
            )
        if schema[column].type == "dictionary" and f"{source_table}.{source}" not in INLINE_NAMES:
            enum = find_enum_name(source_table, source)
            return self.look_up_strings(
                table_name, column, source_rows[source], self.strings if enum is None else self.read_enum_labels(enum)
            )
        return source_rows[source]

    def _replace_keys_with_names(self, table_name: str, columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        """Replace the keys of NVTX domains and categories in the columns of a table with names.

        This is a separate step because the events that define the names may come after the events that use them.
        """
        return nvtx.replace_name_keys_with_names(self, columns) if table_name in nvtx.RESOLVERS else columns

    def cast_to_declared_types(self, table_name: str, columns: Mapping[str, pa.Array], source_table: str) -> pa.Table:
        """Cast columns that were computed from a source table to their declared types, and return them as a table.

        Raises:
            CorruptTraceError: A value does not fit its declared type. The error names the row of the first such value.
        """
        table = pa.table(dict(columns))
        required = [c for c in SOURCES[table_name].required if c in columns and columns[c].null_count]
        try:
            conformed = schemas.conform(table, schemas.table(table_name), table.column_names)
        except SchemaError as e:
            raise self._create_invalid_value_error(table_name, source_table, table, get_first_line_of_message(e)) from e
        if required:
            raise self._create_invalid_value_error(table_name, source_table, table, f"{required[0]} is null")
        return conformed

    def close(self) -> None:
        """Close the file."""
        self.tables.close()

    def _create_row_filter(self, table_name: str, source_table: str) -> Where | None:
        """Return the filter that selects the rows of a declared table from a source table, or None for all rows."""
        where = {**nvtx.FILTERS, **machine.FILTERS}.get(table_name)
        if where and source_table in self.tables.columns and where.column not in self.tables.columns[source_table]:
            raise CorruptTraceError(
                f"the table has no column {where.column}", path=self.path, table=source_table, hint=self.tables.hint
            )
        return where

    def _create_invalid_value_error(
        self, table_name: str, source_table: str, converted: pa.Table, default_message: str
    ) -> CorruptTraceError:
        """Return the error for the first value from a source table that does not fit its declared type.

        Args:
            table_name: Name of the declared table.
            source_table: Name of the source table.
            converted: The converted columns before they are cast to their declared types.
            default_message: Message of the error if no invalid value is found.
        """
        columns = self.tables.columns
        invalid = find_first_invalid_value(table_name, converted)
        column = None if invalid is None else invalid.column
        message = default_message if invalid is None else invalid.message
        index = None if invalid is None else invalid.row_index
        sources = SOURCES[table_name]
        is_here = column is not None and sources.is_column_of(source_table, column)
        from_column = (sources.find_column(source_table, column) if column is not None and is_here else None) or ""
        if (
            source_table in columns
            and from_column.isidentifier()
            and from_column not in (*columns[source_table], ROWID)
        ):
            message, index = f"the table has no column {from_column}", None
        row = (
            None
            if index is None or source_table not in columns
            else self.tables.find_rowid(source_table, index, self._create_row_filter(table_name, source_table))
        )
        return CorruptTraceError(message, path=self.path, table=source_table, row=row, hint=self.tables.hint)


def join_source_tables(table_name: str, columns: Sequence[str], source_tables: list[pa.Table]) -> pa.Table:
    """Concatenate the rows of all source tables of a declared table.

    The row numbers of a declared table with several source tables (a union) are counted from 1 across all of them. The
    list ``source_tables`` is emptied in order to free each column of the source tables once it is joined.
    """
    schema = schemas.table(table_name)
    if not source_tables:
        return schemas.empty(schema, columns)
    if not SOURCES[table_name].is_union:
        return source_tables[0]
    rows, declared = sum(table.num_rows for table in source_tables), schemas.arrow_schema(schema, columns)
    chunks = {column: [chunk for table in source_tables for chunk in table[column].chunks] for column in columns}
    source_tables.clear()
    joined = {}
    for field in declared:
        if SOURCES[table_name].columns[field.name] == ROWID:
            joined[field.name] = col.build_number_array(np.arange(1, rows + 1))
        else:
            joined[field.name] = concatenate(chunks.pop(field.name), field.type)
    return pa.table(joined, schema=declared)


def find_source_column_types(table_name: str, source_table: str, columns: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the Arrow types of the source columns from which declared columns are computed, by column name.

    The result has at least one column, because the number of rows of a batch without columns is unknown.
    """
    schema, resolvers = schemas.table(table_name), find_column_resolvers(table_name)
    names = {c: SOURCES[table_name].find_column(source_table, c) for c in columns if c not in resolvers}
    plain = {
        n: find_source_column_type(schema[c], source_table, n) for c, n in names.items() if n is not None and n != LABEL
    }
    needed = {n for c in columns if c in resolvers for n in resolvers[c][0]}
    types = plain | {n: find_arrow_type(source_table, n) for n in sorted(needed)}
    return types or {ROWID: pa.int64()}


def find_source_column_type(column: schemas.Column, source_table: str, source_column: str) -> pa.DataType:
    """Return the Arrow type with which the source column of a declared column is read."""
    if f"{source_table}.{source_column}" in INLINE_NAMES:
        return col.DICTIONARY
    if column.type in ("string", "float64"):
        return pa.string() if column.type == "string" else pa.float64()
    narrow = column.type in ("int32", "dictionary") and source_column not in GLOBAL_IDS
    return pa.int32() if narrow else pa.int64()


def find_enum_name(table: str, column: str) -> str | None:
    """Return the name of the enum whose values a source column holds, or None if the column holds string ids."""
    return ENUM_OF_COLUMN.get(f"{table}.{column}") or ENUM_OF_COLUMN.get(column)


@functools.cache
def find_column_resolvers(table_name: str) -> dict[str, Resolver]:
    """Return the resolvers of a declared table, by declared column.

    A resolver consists of the source columns to read and a function that computes the declared column from them. All
    other columns of the table are computed from the source columns that the mapping of the table names.
    """
    by_table: dict[str, dict[str, Resolver]] = {
        **nvtx.RESOLVERS,
        **machine.RESOLVERS,
        **SCHEDULING_RESOLVERS,
        **OVERHEAD_RESOLVERS,
        **paths.RESOLVERS,
        **stacks.RESOLVERS,
        **counters.RESOLVERS,
        "gpu_metrics": GPU_METRIC_RESOLVERS,
    }
    return by_table.get(table_name, {})


def find_first_invalid_value(table_name: str, converted: pa.Table) -> InvalidValue | None:
    """Return the first value that does not fit its declared type, or None if every value fits."""
    for field in schemas.arrow_schema(schemas.table(table_name), converted.column_names):
        values = converted[field.name]
        is_required = not field.nullable or field.name in SOURCES[table_name].required
        if is_required and values.null_count:
            return InvalidValue(field.name, f"{field.name} is null", pc.index(values.is_null(), True).as_py())
        if pa.types.is_int32(field.type) and pa.types.is_int64(values.type):
            fits = pc.and_(pc.greater_equal(values, -(1 << 31)), pc.less(values, 1 << 31))
            if (index := pc.index(fits, False).as_py()) >= 0:
                message = f"{field.name} is {values[index]}, which does not fit into 32 bits"
                return InvalidValue(field.name, message, index)
    return None
