"""One capture of Nsight Systems as declared tables.

The declared schema names the source of each column, ``CUPTI_ACTIVITY_KIND_KERNEL.start``. Most tables follow from that
alone: times and numbers as they are, packed ids unpacked, string ids and enum numbers resolved. NVTX, GPU metrics and
the tables about the machine have their own modules.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import CorruptTraceError, SchemaError, first_line
from tracekit.readers.common import columns as col
from tracekit.readers.nsys import ids, machine, metrics, nvtx
from tracekit.readers.nsys.lookups import Lookups, kind_of
from tracekit.readers.nsys.tables import ROWID, Request
from tracekit.readers.nsys.versions import ENUM_OF_COLUMN
from tracekit.registry import Capture

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.readers.nsys.lookups import Resolver
    from tracekit.readers.nsys.tables import Tables, Where

PACKED = frozenset({"globalPid", "globalTid", "endGlobalTid"})


class NsysCapture(Lookups, Capture):
    """An opened file: declared tables on demand, only the columns asked for."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._small: dict[str, pa.Table] = {}

    def names(self) -> list[str]:
        """Names of the declared tables that nsys records."""
        return [name for name, schema in schemas.tables().items() if schema.columns[0].source]

    def count(self, name: str) -> int:
        """Number of rows of a table."""
        return self.count_many([name])[name]

    def count_many(self, names: Sequence[str]) -> dict[str, int]:
        """Number of rows of several tables, in as few passes over the file as its format allows."""
        events = [name for name in names if name not in machine.TABLES]
        found = self.tables.counts([(source_table(name), self._where(name)) for name in events])
        small = {name: int(self.small(name).num_rows) for name in names if name in machine.TABLES}
        return small | dict(zip(events, found, strict=True))

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of a table: rows in the order of the file.

        Raises:
            CorruptTraceError: The file cannot be read there, or holds a value that its format does not allow.
        """
        return self.read_many({name: columns})[name]

    def read_many(self, wanted: Mapping[str, Sequence[str]]) -> dict[str, pa.Table]:
        """Read some columns of several tables, in as few passes over the file as its format allows."""
        events = [n for n in wanted if n not in machine.TABLES and source_table(n) in self.tables.columns]
        definitions = nvtx.unknown(self, {n: wanted[n] for n in events})
        requests = [self._request(n, wanted[n]) for n in events] + [d.request() for d in definitions]
        made = self.joined(requests)
        for definition in reversed(definitions):
            nvtx.learn(self, definition, pa.table(made.pop()))
        self.tell_unknown()
        found = {name: self.conform(name, self._told(name, made.pop(0))) for name in events}
        for name, columns in wanted.items():
            if name in machine.TABLES:
                found[name] = self.small(name).select(list(columns))
            elif name not in found:
                found[name] = schemas.empty(schemas.table(name), columns)
        return found

    def _request(self, name: str, columns: Sequence[str]) -> Request[dict[str, pa.Array]]:
        """Ask for what columns of a declared table are made of, and for them to be made."""
        schema = schemas.table(name)
        declared = {f.name: f.type for f in schemas.arrow_schema(schema, columns)}

        def work(raw: pa.Table) -> dict[str, pa.Array]:
            return {c: col.cast_numbers(self._make(name, c, raw), kind) for c, kind in declared.items()}

        return Request(source_table(name), read_as(schema, columns), self._where(name), work)

    def small(self, name: str) -> pa.Table:
        """Return a table about the machine; it is read whole, and once."""
        if name not in self._small:
            self._small[name] = self.conform(name, machine.columns(self, name))
        return self._small[name]

    def _make(self, name: str, column: str, raw: pa.Table) -> pa.ChunkedArray | pa.Array:
        """Make one declared column from what it is made of: n rows in, n out."""
        own = resolvers_of(name).get(column)
        return self.resolve(name, column, raw) if own is None else own[1](self, name, raw)

    def resolve(self, name: str, column: str, raw: pa.Table) -> pa.ChunkedArray | pa.Array:
        """Make one declared column from its source column."""
        declared = schemas.table(name)[column]
        from_ = source_column(declared)
        if from_ in PACKED:
            return (ids.thread_id if column.endswith("thread_id") else ids.process_id)(raw[from_])
        if declared.type == "dictionary":
            enum = ENUM_OF_COLUMN.get(from_)
            return self.look_up(name, column, raw[from_], self.strings if enum is None else self.labels(enum))
        return raw[from_]

    def _told(self, name: str, made: dict[str, pa.Array]) -> dict[str, pa.Array]:
        """Put the names there that are known only when all is read."""
        return nvtx.tell_names(self, made) if name in nvtx.RESOLVERS else made

    def conform(self, name: str, data: Mapping[str, pa.Array]) -> pa.Table:
        """Cast to the declared types, naming the first row that does not fit."""
        made = pa.table(dict(data))
        try:
            return schemas.conform(made, schemas.table(name), made.column_names)
        except SchemaError as e:
            raise self._misfit(name, made, first_line(e)) from e

    def close(self) -> None:
        """Close the file."""
        self.tables.close()

    def _where(self, name: str) -> Where | None:
        """Return the condition for the rows of a declared table."""
        source = source_table(name)
        where = {**nvtx.FILTERS, **machine.FILTERS}.get(name)
        if where and source in self.tables.columns and where.column not in self.tables.columns[source]:
            raise CorruptTraceError(
                f"has no column {where.column}", path=self.path, table=source, hint=self.tables.hint
            )
        return where

    def _misfit(self, name: str, data: pa.Table, otherwise: str) -> CorruptTraceError:
        """Return the error for a table that does not fit its declaration."""
        source, columns = source_table(name), self.tables.columns
        column, what, index = first_misfit(name, data)
        from_ = "" if column is None else source_column(schemas.table(name)[column])
        if source in columns and from_.isidentifier() and from_ not in (*columns[source], ROWID):
            what, index = f"has no column {from_}", None
        row = None if index is None or source not in columns else self.tables.rowid(source, index, self._where(name))
        return CorruptTraceError(what or otherwise, path=self.path, table=source, row=row, hint=self.tables.hint)


def read_as(schema: schemas.TableSchema, columns: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the source columns that declared columns are made of, and what they are read as."""
    own = resolvers_of(schema.name)
    plain = {source_column(schema[c]): kind_of_declared(schema[c]) for c in columns if c not in own}
    needed = {n for c in columns if c in own for n in own[c][0]}
    return plain | {n: kind_of(source_table(schema.name), n) for n in sorted(needed)}


def kind_of_declared(column: schemas.Column) -> pa.DataType:
    """Return the type that the source of a declared column is best read as."""
    narrow = column.type in ("int32", "dictionary") and source_column(column) not in PACKED
    return pa.int32() if narrow else pa.int64()


def source_table(name: str) -> str:
    """Return the source table that the key of a declared table comes from."""
    return str(schemas.table(name).columns[0].source).partition(".")[0]


def source_column(column: schemas.Column) -> str:
    """Return the source column of a declared column."""
    return str(column.source).partition(".")[2]


@functools.cache
def resolvers_of(name: str) -> dict[str, Resolver]:
    """Return the resolvers of a declared table by column; the other columns follow from their declaration."""
    known: dict[str, dict[str, Resolver]] = {**nvtx.RESOLVERS, **machine.RESOLVERS, "gpu_metrics": metrics.RESOLVERS}
    return known.get(name, {})


def first_misfit(name: str, data: pa.Table) -> tuple[str | None, str | None, int | None]:
    """Find the first value that its declared type cannot hold: column, what is wrong, index of the row."""
    for field in schemas.arrow_schema(schemas.table(name), data.column_names):
        values = data[field.name]
        if not field.nullable and values.null_count:
            return field.name, f"{field.name} is null", pc.index(values.is_null(), True).as_py()
        if pa.types.is_int32(field.type) and pa.types.is_int64(values.type):
            fits = pc.and_(pc.greater_equal(values, -(1 << 31)), pc.less(values, 1 << 31))
            if (index := pc.index(fits, False).as_py()) >= 0:
                return field.name, f"{field.name} is {values[index]}, more than 32 bits", index
    return None, None, None
