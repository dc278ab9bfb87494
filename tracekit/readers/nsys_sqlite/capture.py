"""One Nsight Systems export as declared tables.

The declared schema names the source of each column, ``CUPTI_ACTIVITY_KIND_KERNEL.start``. Most tables follow from that
alone: times and numbers as they are, packed ids unpacked, string ids and enum numbers resolved. NVTX, GPU metrics and
the tables about the machine have their own modules.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import CorruptTraceError, SchemaError, first_line, warn
from tracekit.readers.nsys_sqlite import columns as col
from tracekit.readers.nsys_sqlite.database import Database
from tracekit.readers.nsys_sqlite.labels import ENUM_OF_COLUMN, LABELS
from tracekit.readers.sqlite_files import EXPORT_AGAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.registry import Source

    Resolver = tuple[tuple[str, ...], Callable[["NsysCapture", str, pa.Table], pa.Array]]
    """Which source columns a declared column is made of, and how."""

NEWEST_SCHEMA = (3, 25)
_TEXTS = ("jsonText", "binaryData", "name", "label", "chipName", "uuid", "busLocation", "pciBusId", "metricName")
TEXT_COLUMNS = frozenset((*_TEXTS, "StringIds.value", "META_DATA_EXPORT.value", "EXPORT_META_DATA.value"))
REAL_COLUMNS = frozenset({"doubleValue", "floatValue"})
PACKED = frozenset({"globalPid", "globalTid", "endGlobalTid"})


class NsysCapture:
    """An opened export: declared tables on demand, only the columns asked for."""

    def __init__(self, source: Source) -> None:
        self.path = source.path
        self.db = Database(source)
        self._labels: dict[str, col.Strings] = {}
        self._small: dict[str, pa.Table] = {}
        check_version(self)

    def names(self) -> list[str]:
        """Names of the declared tables that nsys records."""
        return [name for name, schema in schemas.tables().items() if schema.columns[0].source]

    def count(self, name: str) -> int:
        """Number of rows of a table."""
        from tracekit.readers.nsys_sqlite import machine

        if name in machine.TABLES:
            return int(self.small(name).num_rows)
        return self.db.count(source_table(name), self._where(name))

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of a table: rows in the order of the file.

        Raises:
            CorruptTraceError: The file cannot be read there, or holds a value that its format does not allow.
        """
        from tracekit.readers.nsys_sqlite import machine

        if name in machine.TABLES:
            return self.small(name).select(list(columns))
        schema = schemas.table(name)
        source = source_table(name)
        if source not in self.db.columns:
            return schemas.empty(schema, columns)
        resolvers = resolvers_of(name)
        needs = {c: resolvers[c][0] if c in resolvers else (source_column(schema[c]),) for c in columns}
        kinds = {needs[c][0]: kind_of_declared(schema[c]) for c in columns if c not in resolvers}
        raw = self.fetch(source, sorted({n for names in needs.values() for n in names}), self._where(name), kinds)
        made = {c: resolvers[c][1](self, name, raw) if c in resolvers else self.resolve(name, c, raw) for c in columns}
        return self.conform(name, made)

    def small(self, name: str) -> pa.Table:
        """Return a table about the machine; it is read whole, and once."""
        from tracekit.readers.nsys_sqlite import machine

        if name not in self._small:
            self._small[name] = self.conform(name, machine.columns(self, name))
        return self._small[name]

    def fetch(
        self, table: str, wanted: Sequence[str], where: str = "", kinds: Mapping[str, pa.DataType] | None = None
    ) -> pa.Table:
        """Read columns of a source table as numbers or text; a column that this version lacks is all null.

        Args:
            table: Source table.
            wanted: Its columns; ``rowid`` is the number of the row.
            where: Condition for the rows.
            kinds: Narrower types to read some columns as; a value that does not fit leaves its column as it is.
        """
        have = [c for c in wanted if c == "rowid" or c in self.db.columns[table]] or ["rowid"]
        types = {c: kind_of(table, c) for c in (*wanted, *have)} | dict(kinds or {})
        plain = [c for c in have if types[c] in (pa.int64(), pa.int32()) and self.db.decodes(table, c)]
        other = [c for c in have if c not in plain]
        read: dict[str, pa.ChunkedArray] = {}
        for columns in filter(None, (plain, other)):
            read |= self._columns(table, columns, where, types)
        rows = len(read[have[0]])
        if any(len(column) != rows for column in read.values()):
            counts = sorted({len(column) for column in read.values()})
            raise CorruptTraceError(f"holds {counts} rows at once", path=self.path, table=table, hint=EXPORT_AGAIN)
        absent = {c: pa.chunked_array([pa.nulls(rows, types[c])]) for c in wanted if c not in have}
        return pa.table(read | absent).select(list(wanted))

    def _columns(
        self, table: str, columns: list[str], where: str, types: Mapping[str, pa.DataType]
    ) -> dict[str, pa.ChunkedArray]:
        """Read columns of a source table in one pass."""
        at_most = self.db.at_most(table)
        made = {c: col.Numbers(types[c], at_most) if is_number(types[c]) else col.Texts() for c in columns}
        repaired: Counter[str] = Counter()

        def typed(batch: pa.RecordBatch) -> list[tuple[pa.Array, int]]:
            arrays = zip(columns, batch.columns, strict=True)
            return [self._typed(table, c, types[c], array) for c, array in arrays]

        for arrays in self.db.slices(table, columns, where, typed):
            for c, (array, broken) in zip(columns, arrays, strict=True):
                made[c].append(array)
                repaired[c] += broken
        for c, broken in (+repaired).items():
            warn(f"{broken} texts of {table}.{c} are not UTF-8: repaired", path=self.path)
        return {c: made[c].finish() for c in columns}

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
        """Resolve ids; ids of no known string become null and are counted in a warning."""
        found, missing = strings.look_up(ids)
        if missing and strings is self.strings:
            warn(f"{missing} rows of {name} name a string that is not in the file: {column} left empty", path=self.path)
        return found

    @functools.cached_property
    def strings(self) -> col.Strings:
        """The string table; of a repeated id the first one counts."""
        if "StringIds" not in self.db.columns:
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
        from tracekit.readers.nsys_sqlite import nvtx

        return nvtx.definitions(self, nvtx.DOMAIN_CREATE, "domainId")

    @functools.cached_property
    def categories(self) -> dict[tuple[int | None, ...], str]:
        """Names of the NVTX categories, by process, domain id and category id."""
        from tracekit.readers.nsys_sqlite import nvtx

        return nvtx.definitions(self, nvtx.CATEGORY, "domainId", "category")

    def labels(self, enum: str) -> col.Strings:
        """Labels of an enum: those of the file, else those of nsys 2025.3."""
        if enum not in self._labels:
            known: dict[int, str | None] = dict(enumerate(LABELS[enum]))
            if enum in self.db.columns:
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
        self.db.close()

    def _where(self, name: str) -> str:
        """Return the condition for the rows of a declared table."""
        from tracekit.readers.nsys_sqlite import machine, nvtx

        source = source_table(name)
        column, condition = {**nvtx.FILTERS, **machine.FILTERS}.get(name, ("rowid", ""))
        if source in self.db.columns and column not in (*self.db.columns[source], "rowid"):
            raise CorruptTraceError(f"has no column {column}", path=self.path, table=source, hint=EXPORT_AGAIN)
        return condition

    def _misfit(self, name: str, data: pa.Table, otherwise: str) -> CorruptTraceError:
        """Return the error for a table that does not fit its declaration."""
        source = source_table(name)
        column, what, index = first_misfit(name, data)
        from_ = "" if column is None else source_column(schemas.table(name)[column])
        if source in self.db.columns and from_.isidentifier() and from_ not in (*self.db.columns[source], "rowid"):
            what, index = f"has no column {from_}", None
        row = None if index is None else self.db.rowid(source, index, self._where(name))
        return CorruptTraceError(what or otherwise, path=self.path, table=source, row=row, hint=EXPORT_AGAIN)

    def _typed(self, table: str, column: str, kind: pa.DataType, data: pa.Array) -> tuple[pa.Array, int]:
        """Cast a slice of a column to the type it is read as: n values, and how many texts had to be repaired."""
        if kind in (pa.string(), col.DICTIONARY):
            made, broken = col.text(data)
            return (made.dictionary_encode() if kind == col.DICTIONARY else made), broken
        if not pa.types.is_integer(data.type) and not (kind == pa.float64() and pa.types.is_floating(data.type)):
            raise self.db.wrong_type(table, column, "number" if kind == pa.float64() else "integer")
        return col.narrowed(data, kind), 0


def kind_of(table: str, column: str) -> pa.DataType:
    """Return the Arrow type that a source column is read as."""
    if column == "text":
        return col.DICTIONARY
    if column in TEXT_COLUMNS or f"{table}.{column}" in TEXT_COLUMNS:
        return pa.string()
    return pa.float64() if column in REAL_COLUMNS else pa.int64()


def kind_of_declared(column: schemas.Column) -> pa.DataType:
    """Return the type that the source of a declared column is best read as."""
    narrow = column.type in ("int32", "dictionary") and source_column(column) not in PACKED
    return pa.int32() if narrow else pa.int64()


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def source_table(name: str) -> str:
    """Return the source table that the key of a declared table comes from."""
    return str(schemas.table(name).columns[0].source).partition(".")[0]


def source_column(column: schemas.Column) -> str:
    """Return the source column of a declared column."""
    return str(column.source).partition(".")[2]


@functools.cache
def resolvers_of(name: str) -> dict[str, Resolver]:
    """Return the resolvers of a declared table by column; the other columns follow from their declaration."""
    from tracekit.readers.nsys_sqlite import machine, metrics, nvtx

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


def check_version(capture: NsysCapture) -> None:
    """Warn of an export newer than the newest known one; what is known of it is read."""
    facts = {r["name"]: r["value"] for r in capture.small("capture_info").to_pylist()}
    version = facts.get("schema_version", "")
    numbers = tuple(int(n) for n in re.findall(r"\d{1,9}", version)[:2])
    if numbers > NEWEST_SCHEMA:
        newest = ".".join(map(str, NEWEST_SCHEMA))
        warn(
            f"schema {version} is newer than {newest}, the newest known: what is known of it is read", path=capture.path
        )
