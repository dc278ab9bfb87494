"""One Nsight Systems export as declared tables.

The declared schema names the source of each column, ``CUPTI_ACTIVITY_KIND_KERNEL.start``. Most tables follow from that
alone: times and numbers as they are, packed ids unpacked, string ids and enum numbers resolved. NVTX, GPU metrics and
the tables about the machine have their own modules.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import CorruptTraceError, SchemaError, warn
from tracekit.readers.nsys_sqlite import columns as col
from tracekit.readers.nsys_sqlite.database import Database, quote
from tracekit.readers.nsys_sqlite.labels import ENUM_OF_COLUMN, LABELS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.registry import Source

NEWEST_SCHEMA = (3, 25)
_EXPORT_AGAIN = "export it again: nsys export --type sqlite REPORT"


class NsysCapture:
    """An opened export: declared tables on demand, only the columns asked for."""

    def __init__(self, source: Source) -> None:
        self.path = source.path
        self.db = Database(source)
        check_version(self)

    def names(self) -> list[str]:
        """Names of the declared tables that nsys records."""
        return list(schemas.tables())

    def count(self, name: str) -> int:
        """Number of rows of a table."""
        from tracekit.readers.nsys_sqlite import machine, nvtx

        if name in machine.TABLES:
            return machine.TABLES[name](self).num_rows
        return self.db.count(source_table(name), f"WHERE {where}" if (where := nvtx.FILTERS.get(name)) else "")

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of a table: rows in the order of the file.

        Raises:
            CorruptTraceError: The file cannot be read there, or holds a value that its format does not allow.
        """
        from tracekit.readers.nsys_sqlite import machine, metrics, nvtx

        if name in machine.TABLES:
            return machine.TABLES[name](self).select(list(columns))
        resolvers = {**nvtx.RESOLVERS, "gpu_metrics": metrics.RESOLVERS}
        return self.table(name, columns, resolvers.get(name, {}), nvtx.FILTERS.get(name, ""))

    def table(
        self,
        name: str,
        columns: Sequence[str],
        resolvers: dict[str, tuple[tuple[str, ...], Callable[[NsysCapture, str, pa.Table], pa.Array]]],
        where: str = "",
    ) -> pa.Table:
        """Read a table whose columns come from one source table, each by its resolver or by its declaration."""
        schema = schemas.table(name)
        source = source_table(name)
        if source not in self.db.columns:
            return schemas.empty(schema, columns)
        needs = {c: resolvers[c][0] if c in resolvers else (source_column(schema[c]),) for c in columns}
        raw = self.fetch(source, sorted({n for names in needs.values() for n in names}), where)
        made = {c: resolvers[c][1](self, name, raw) if c in resolvers else self.resolve(name, c, raw) for c in columns}
        return self.conform(name, pa.table(made))

    def fetch(self, table: str, wanted: Sequence[str], where: str = "") -> pa.Table:
        """Read columns of a source table as int64, float64 or text; a column that this version lacks is all null."""
        have = [c for c in wanted if c == "rowid" or c in self.db.columns[table]]
        batches = list(self.db.slices(table, [f"{quote(c)} AS {quote(c)}" for c in have], where))
        arrays: dict[str, pa.ChunkedArray] = {}
        for i, c in enumerate(have):
            chunks = [self._typed(table, c, b.column(i)) for b in batches]
            arrays[c] = pa.chunked_array([pa.concat_arrays(chunks)])
        rows = sum(b.num_rows for b in batches)
        absent = {c: pa.chunked_array([pa.nulls(rows, pa.int64())]) for c in wanted if c not in have}
        return pa.table(arrays | absent)

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
        order = pc.sort_indices(raw["id"])
        ids, values = raw["id"].take(order).combine_chunks(), raw["value"].take(order).combine_chunks()
        if len(ids) > 1 and (repeated := pc.equal(ids[1:], ids[:-1])).true_count:
            warn(f"{repeated.true_count} strings repeat an id: the first of each is used", path=self.path)
            keep = pa.concat_arrays([pa.array([True]), pc.invert(repeated)])
            ids, values = ids.filter(keep), values.filter(keep)
        return col.Strings(ids, values)

    @functools.cache  # noqa: B019 - lives as long as the capture
    def labels(self, enum: str) -> col.Strings:
        """Labels of an enum: those of the file, else those of nsys 2025.3."""
        known: dict[int, str | None] = dict(enumerate(LABELS[enum]))
        if {"id", "label"} <= set(self.db.columns.get(enum, ())):
            known |= {i: s for i, s in self.db.query(f"SELECT id, label FROM {quote(enum)}") if isinstance(i, int)}  # noqa: S608 - quoted
        return col.Strings.of(known)

    def conform(self, name: str, data: pa.Table) -> pa.Table:
        """Cast to the declared types, naming the first row that does not fit."""
        try:
            return schemas.conform(data, schemas.table(name), data.column_names)
        except SchemaError as e:
            place, row = first_misfit(name, data)
            raise CorruptTraceError(
                str(e).splitlines()[0] if place is None else place,
                path=self.path,
                table=source_table(name),
                row=row,
                hint=_EXPORT_AGAIN,
            ) from e

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    def _typed(self, table: str, column: str, data: pa.Array) -> pa.Array:
        if f"{table}.{column}" in TEXT_COLUMNS:
            repaired, broken = col.text(data)
            if broken:
                warn(f"{broken} texts of {table}.{column} are not UTF-8: repaired", path=self.path)
            return repaired
        if column in REAL_COLUMNS and (pa.types.is_floating(data.type) or data.null_count == len(data)):
            return data.cast(pa.float64())
        if not pa.types.is_integer(data.type):
            raise self.db.wrong_type(table, column, "'integer', 'null'")
        return data


TEXT_COLUMNS = frozenset({"StringIds.value", "NVTX_EVENTS.text", "NVTX_EVENTS.jsonText", "NVTX_EVENTS.binaryData"})
REAL_COLUMNS = frozenset({"doubleValue", "floatValue"})
PACKED = frozenset({"globalPid", "globalTid", "endGlobalTid"})


def source_table(name: str) -> str:
    """Return the source table that the key of a declared table comes from."""
    return str(schemas.table(name).columns[0].source).partition(".")[0]


def source_column(column: schemas.Column) -> str:
    """Return the source column of a declared column."""
    return str(column.source).partition(".")[2]


def first_misfit(name: str, data: pa.Table) -> tuple[str | None, int | None]:
    """Find the first value that its declared type cannot hold; row from 1."""
    for field in schemas.arrow_schema(schemas.table(name), data.column_names):
        values = data[field.name]
        if not field.nullable and values.null_count:
            return f"{field.name} is null", pc.index(values.is_null(), True).as_py() + 1
        if pa.types.is_int32(field.type) and pa.types.is_int64(values.type):
            fits = pc.and_(pc.greater_equal(values, -(1 << 31)), pc.less(values, 1 << 31))
            if (row := pc.index(fits, False).as_py()) >= 0:
                return f"{field.name} is {values[row]}, more than 32 bits", row + 1
    return None, None


def check_version(capture: NsysCapture) -> None:
    """Warn of an export newer than the newest known one; what is known of it is read."""
    from tracekit.readers.nsys_sqlite.machine import facts

    version = facts(capture).get("schema_version") or ""
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if numbers > NEWEST_SCHEMA:
        newest = ".".join(map(str, NEWEST_SCHEMA))
        warn(f"schema {version} is newer than {newest}, the newest known: what is known of it is read", path=capture.path)
