"""One capture of Nsight Systems as declared tables.

The declared schema names the source of each column, ``CUPTI_ACTIVITY_KIND_KERNEL.start``. Most tables follow from that
alone: times and numbers as they are, packed ids unpacked, string ids and enum numbers resolved. NVTX, GPU metrics and
the tables about the machine have their own modules.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import CorruptTraceError, SchemaError, first_line, warn
from tracekit.readers import columns as col
from tracekit.readers.nsys.labels import ENUM_OF_COLUMN, LABELS
from tracekit.readers.nsys.tables import ROWID, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.readers.nsys.tables import Tables, Where

    Resolver = tuple[tuple[str, ...], Callable[["NsysCapture", str, pa.Table], pa.Array]]
    """Which source columns a declared column is made of, and how."""

_TEXTS = ("jsonText", "binaryData", "name", "label", "chipName", "uuid", "busLocation", "pciBusId", "metricName")
TEXT_COLUMNS = frozenset((*_TEXTS, "StringIds.value", "META_DATA_EXPORT.value", "EXPORT_META_DATA.value"))
REAL_COLUMNS = frozenset({"doubleValue", "floatValue"})
PACKED = frozenset({"globalPid", "globalTid", "endGlobalTid"})


class NsysCapture:
    """An opened file: declared tables on demand, only the columns asked for."""

    def __init__(self, tables: Tables) -> None:
        self.path = tables.path
        self.tables = tables
        self._labels: dict[str, col.Strings] = {}
        self._small: dict[str, pa.Table] = {}
        self._unknown: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Names of the declared tables that nsys records."""
        return [name for name, schema in schemas.tables().items() if schema.columns[0].source]

    def count(self, name: str) -> int:
        """Number of rows of a table."""
        from tracekit.readers.nsys import machine

        if name in machine.TABLES:
            return int(self.small(name).num_rows)
        return self.tables.count(source_table(name), self._where(name))

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of a table: rows in the order of the file.

        Raises:
            CorruptTraceError: The file cannot be read there, or holds a value that its format does not allow.
        """
        return self.read_many({name: columns})[name]

    def read_many(self, wanted: Mapping[str, Sequence[str]]) -> dict[str, pa.Table]:
        """Read some columns of several tables, in as few passes over the file as its format allows."""
        from tracekit.readers.nsys import machine

        events = [n for n in wanted if n not in machine.TABLES and source_table(n) in self.tables.columns]
        requests = [self._request(n, wanted[n]) for n in events]
        made = self._joined(requests)
        self._tell_unknown()
        found = {name: self.conform(name, columns) for name, columns in zip(events, made, strict=True)}
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
            return {c: col.fitted(self._make(name, c, raw), kind) for c, kind in declared.items()}

        return Request(source_table(name), read_as(schema, columns), self._where(name), work)

    def _joined(self, requests: Sequence[Request[dict[str, pa.Array]]]) -> list[dict[str, pa.Array]]:
        """Put the pieces of each request together."""
        made = [col.Joined(self.tables.at_most(r.table)) for r in requests]
        for nth, piece in self.tables.pieces(requests):
            made[nth].append(piece)
        return [m.finish() for m in made]

    def small(self, name: str) -> pa.Table:
        """Return a table about the machine; it is read whole, and once."""
        from tracekit.readers.nsys import machine

        if name not in self._small:
            self._small[name] = self.conform(name, machine.columns(self, name))
        return self._small[name]

    def fetch(self, table: str, wanted: Sequence[str], where: Where | None = None) -> pa.Table:
        """Read columns of a source table as numbers or text; a column that this version lacks is all null."""
        types = {c: kind_of(table, c) for c in wanted}

        def work(raw: pa.Table) -> dict[str, pa.Array]:
            return dict(zip(wanted, raw.columns, strict=True))

        return pa.table(self._joined([Request(table, types, where, work)])[0])

    def _make(self, name: str, column: str, raw: pa.Table) -> pa.ChunkedArray | pa.Array:
        """Make one declared column from what it is made of: n rows in, n out."""
        own = resolvers_of(name).get(column)
        return self.resolve(name, column, raw) if own is None else own[1](self, name, raw)

    def resolve(self, name: str, column: str, raw: pa.Table) -> pa.ChunkedArray | pa.Array:
        """Make one declared column from its source column."""
        declared = schemas.table(name)[column]
        from_ = source_column(declared)
        if from_ in PACKED:
            return (col.thread_id if column.endswith("thread_id") else col.process_id)(raw[from_])
        if declared.type == "dictionary":
            enum = ENUM_OF_COLUMN.get(from_)
            return self.look_up(name, column, raw[from_], self.strings if enum is None else self.labels(enum))
        return raw[from_]

    def look_up(self, name: str, column: str, ids: pa.ChunkedArray, strings: col.Strings) -> pa.DictionaryArray:
        """Resolve ids; ids of no known string become null and are counted."""
        found, missing = strings.look_up(ids)
        if missing and strings is self.strings:
            with self._lock:
                self._unknown[name, column] += missing
        return found

    @functools.cached_property
    def strings(self) -> col.Strings:
        """The string table; of a repeated id the first one counts."""
        if "StringIds" not in self.tables.columns:
            return col.Strings.of({})
        raw = self.fetch("StringIds", ["id", "value"])
        ids, values = raw["id"].combine_chunks(), raw["value"].combine_chunks()
        if repeated := len(ids) - len(ids.unique()):
            warn(f"{repeated} strings repeat an id: the first of each is used", path=self.path)
            rows = pa.table({"id": ids, "row": pa.array(range(len(ids)))})
            first = rows.group_by("id").aggregate([("row", "min")])["row_min"].combine_chunks()
            ids, values = ids.take(first), values.take(first)
        return col.Strings(ids, values)

    @functools.cached_property
    def domains(self) -> dict[tuple[int | None, ...], str]:
        """Names of the NVTX domains, by process and domain id."""
        from tracekit.readers.nsys import nvtx

        return nvtx.definitions(self, nvtx.DOMAIN_CREATE, "domainId")

    @functools.cached_property
    def categories(self) -> dict[tuple[int | None, ...], str]:
        """Names of the NVTX categories, by process, domain id and category id."""
        from tracekit.readers.nsys import nvtx

        return nvtx.definitions(self, nvtx.CATEGORY, "domainId", "category")

    def labels(self, enum: str) -> col.Strings:
        """Labels of an enum: those of the file, else those of nsys 2025.3."""
        if enum not in self._labels:
            known: dict[int, str | None] = dict(enumerate(LABELS[enum]))
            if enum in self.tables.columns:
                raw = self.fetch(enum, ["id", "label"])
                known |= {r["id"]: r["label"] for r in raw.to_pylist() if r["id"] is not None}
            self._labels[enum] = col.Strings.of(known)
        return self._labels[enum]

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

    def _tell_unknown(self) -> None:
        """Warn of ids of no known string."""
        with self._lock:
            unknown, self._unknown = self._unknown, Counter()
        for (name, column), missing in unknown.items():
            warn(f"{missing} rows of {name} name a string that is not in the file: {column} left empty", path=self.path)

    def _where(self, name: str) -> Where | None:
        """Return the condition for the rows of a declared table."""
        from tracekit.readers.nsys import machine, nvtx

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
        row = None if index is None else self.tables.rowid(source, index, self._where(name))
        return CorruptTraceError(what or otherwise, path=self.path, table=source, row=row, hint=self.tables.hint)


def kind_of(table: str, column: str) -> pa.DataType:
    """Return the Arrow type that a source column is read as."""
    if column == "text":
        return col.DICTIONARY
    if column in TEXT_COLUMNS or f"{table}.{column}" in TEXT_COLUMNS:
        return pa.string()
    return pa.float64() if column in REAL_COLUMNS else pa.int64()


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
    from tracekit.readers.nsys import machine, metrics, nvtx

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
