"""Read a capture of Nsight Systems as declared tables.

The declaration of a column names its source column, such as ``CUPTI_ACTIVITY_KIND_KERNEL.start``. Most columns are
computed from that source column alone: times and numbers are copied, process and thread ids are extracted from global
ids, and string ids and enum values are looked up. The columns of NVTX, of GPU metrics and of the tables about the
machine have resolver functions in separate modules.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import CorruptTraceError, SchemaError, first_line
from tracekit.interface import Capture
from tracekit.readers.common import columns as col
from tracekit.readers.nsys import ids, machine, metrics, nvtx, sampling
from tracekit.readers.nsys.lookups import Lookups, arrow_type
from tracekit.readers.nsys.tables import ROWID, Request
from tracekit.readers.nsys.versions import ENUM_OF_COLUMN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.readers.nsys.lookups import Resolver
    from tracekit.readers.nsys.tables import Tables, Where

GLOBAL_IDS = frozenset({"globalPid", "globalTid", "endGlobalTid"})


class NsysCapture(Lookups, Capture):
    """An open file whose declared tables are read on demand and by column."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._machine_tables: dict[str, pa.Table] = {}

    def names(self) -> list[str]:
        """Return the names of the declared tables that Nsight Systems records."""
        return [name for name in schemas.table_names() if self.may_have(name)]

    def may_have(self, name: str) -> bool:
        """Return whether Nsight Systems records a declared table."""
        return schemas.table(name).columns[0].source is not None

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return self.count_many([name])[name]

    def count_many(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of rows of several tables by name.

        They are counted together if the file format allows that.
        """
        events = [name for name in names if name not in machine.TABLES]
        tables = self.tables.counts([(source_table(name), self._condition(name)) for name in events])
        small = {name: int(self.machine_table(name).num_rows) for name in names if name in machine.TABLES}
        return small | dict(zip(events, tables, strict=True))

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of a table, with the rows in file order.

        Raises:
            CorruptTraceError: The file is damaged, or a value does not fit its declared type.
        """
        return self.read_many({name: columns})[name]

    def read_many(self, columns: Mapping[str, Sequence[str]]) -> dict[str, pa.Table]:
        """Read some columns of several tables. The tables are read together if the file format allows that."""
        events = [n for n in columns if n not in machine.TABLES and source_table(n) in self.tables.columns]
        definitions = nvtx.missing_definitions(self, {n: columns[n] for n in events})
        requests = [self._request(n, columns[n]) for n in events] + [d.request() for d in definitions]
        results = self.read_requests(requests)
        for definition in reversed(definitions):
            nvtx.store_names(self, definition, pa.table(results.pop()))
        self.warn_unknown_strings()
        tables = {name: self.conform(name, self._with_names(name, results.pop(0))) for name in events}
        for name, names in columns.items():
            if name in machine.TABLES:
                tables[name] = self.machine_table(name).select(list(names))
            elif name not in tables:
                tables[name] = schemas.empty(schemas.table(name), names)
        return tables

    def _request(self, name: str, columns: Sequence[str]) -> Request[dict[str, pa.Array]]:
        """Return the request that reads the source columns of declared columns and converts them."""
        schema = schemas.table(name)
        declared = {f.name: f.type for f in schemas.arrow_schema(schema, columns)}

        def convert(raw: pa.Table) -> dict[str, pa.Array]:
            return {c: col.cast_numbers(self._resolve(name, c, raw), kind) for c, kind in declared.items()}

        return Request(source_table(name), source_types(schema, columns), self._condition(name), convert)

    def machine_table(self, name: str) -> pa.Table:
        """Return a declared table about the machine. The first call reads the whole table."""
        if name not in self._machine_tables:
            self._machine_tables[name] = self.conform(name, machine.read_columns(self, name))
        return self._machine_tables[name]

    def _resolve(self, name: str, column: str, raw: pa.Table) -> pa.ChunkedArray | pa.Array:
        """Compute a declared column from the source columns of the same rows."""
        resolver = resolvers_of(name).get(column)
        return self.resolve_by_declaration(name, column, raw) if resolver is None else resolver[1](self, name, raw)

    def resolve_by_declaration(self, name: str, column: str, raw: pa.Table) -> pa.ChunkedArray | pa.Array:
        """Compute a declared column from the source column that its declaration names."""
        declared = schemas.table(name)[column]
        source = source_column(declared)
        if source in GLOBAL_IDS:
            return (ids.thread_ids if column.endswith("thread_id") else ids.process_ids)(raw[source])
        if declared.type == "dictionary":
            enum = ENUM_OF_COLUMN.get(source)
            return self.look_up(name, column, raw[source], self.strings if enum is None else self.labels(enum))
        return raw[source]

    def _with_names(self, name: str, results: dict[str, pa.Array]) -> dict[str, pa.Array]:
        """Replace the keys of NVTX domains and categories in columns of a table by their names.

        The events that define these names may come after the events that use them.
        """
        return nvtx.resolve_names(self, results) if name in nvtx.RESOLVERS else results

    def conform(self, name: str, data: Mapping[str, pa.Array]) -> pa.Table:
        """Cast columns to their declared types and return them as a table.

        Raises:
            CorruptTraceError: A value does not fit its declared type. The message names the first such row.
        """
        table = pa.table(dict(data))
        try:
            return schemas.conform(table, schemas.table(name), table.column_names)
        except SchemaError as e:
            raise self._misfit_error(name, table, first_line(e)) from e

    def close(self) -> None:
        """Close the file."""
        self.tables.close()

    def _condition(self, name: str) -> Where | None:
        """Return the filter that selects the rows of a declared table from its source table."""
        source = source_table(name)
        where = {**nvtx.FILTERS, **machine.FILTERS}.get(name)
        if where and source in self.tables.columns and where.column not in self.tables.columns[source]:
            raise CorruptTraceError(
                f"it has no column {where.column}", path=self.path, table=source, hint=self.tables.hint
            )
        return where

    def _misfit_error(self, name: str, data: pa.Table, default: str) -> CorruptTraceError:
        """Return the error for the first value of a table that does not fit its declared type."""
        source, columns = source_table(name), self.tables.columns
        column, message, index = first_misfit(name, data)
        from_column = "" if column is None else source_column(schemas.table(name)[column])
        if source in columns and from_column.isidentifier() and from_column not in (*columns[source], ROWID):
            message, index = f"it has no column {from_column}", None
        row = (
            None if index is None or source not in columns else self.tables.rowid(source, index, self._condition(name))
        )
        return CorruptTraceError(message or default, path=self.path, table=source, row=row, hint=self.tables.hint)


def source_types(schema: schemas.TableSchema, columns: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the types of the source columns from which declared columns are computed, by source column."""
    resolvers = resolvers_of(schema.name)
    plain = {source_column(schema[c]): source_type(schema[c]) for c in columns if c not in resolvers}
    needed = {n for c in columns if c in resolvers for n in resolvers[c][0]}
    return plain | {n: arrow_type(source_table(schema.name), n) for n in sorted(needed)}


def source_type(column: schemas.Column) -> pa.DataType:
    """Return the integer type for reading the source column of a declared column."""
    narrow = column.type in ("int32", "dictionary") and source_column(column) not in GLOBAL_IDS
    return pa.int32() if narrow else pa.int64()


def source_table(name: str) -> str:
    """Return the name of the source table of a declared table, which the declaration of its first column states."""
    return str(schemas.table(name).columns[0].source).partition(".")[0]


def source_column(column: schemas.Column) -> str:
    """Return the name of the source column of a declared column."""
    return str(column.source).partition(".")[2]


@functools.cache
def resolvers_of(name: str) -> dict[str, Resolver]:
    """Return the resolvers of a declared table by column. Other columns are resolved by their declaration."""
    by_table: dict[str, dict[str, Resolver]] = {
        **nvtx.RESOLVERS,
        **machine.RESOLVERS,
        **sampling.RESOLVERS,
        "gpu_metrics": metrics.RESOLVERS,
    }
    return by_table.get(name, {})


def first_misfit(name: str, data: pa.Table) -> tuple[str | None, str | None, int | None]:
    """Find the first value that does not fit its declared type.

    Return its column, an error message and the index of its row. Each of them is None if all values fit.
    """
    for field in schemas.arrow_schema(schemas.table(name), data.column_names):
        values = data[field.name]
        if not field.nullable and values.null_count:
            return field.name, f"{field.name} is null", pc.index(values.is_null(), True).as_py()
        if pa.types.is_int32(field.type) and pa.types.is_int64(values.type):
            fits = pc.and_(pc.greater_equal(values, -(1 << 31)), pc.less(values, 1 << 31))
            if (index := pc.index(fits, False).as_py()) >= 0:
                return field.name, f"{field.name} is {values[index]}, which does not fit into 32 bits", index
    return None, None, None
