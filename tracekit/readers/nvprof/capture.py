"""Read a database of nvprof as declared tables. Each table is read when it is used."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tracekit import schemas
from tracekit.errors import CorruptTraceError
from tracekit.readers.common import cupti
from tracekit.readers.common.columns import StringTable, build_dictionary_array, concatenate_chunks
from tracekit.readers.nvprof import PREFIX, activities, objects
from tracekit.readers.nvprof.activities import IDS, TABLES
from tracekit.readers.nvprof.database import RECORD_AGAIN, NvprofDatabase
from tracekit.registry.interface import Capture

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from tracekit.readers.nvprof.activities import RecordedColumn, RecordedTable
    from tracekit.registry.source import Source

_MAX_ID = 0xFFFFFFFF
_PLAIN_NAME = re.compile(r"[A-Z0-9_]{1,60}")
_NESTED_NAME = re.compile(r"_ZN?[rVK]{0,3}")
_IDENTIFIER = re.compile(r"L?(\d{1,4})")
_FOLDERS = re.compile(r".*[/\\]", re.DOTALL)
_TIMELESS = "events without valid times"


class ValidRows(NamedTuple):
    """The rows of a table of the database whose times and device are known.

    Attributes:
        rows: Number of these rows.
        mask: Whether each row is one of them. None if all are.
        first_ns: Earliest start, or None if there is none.
        last_ns: Latest end, or None if there is none.
        skipped: Number of the other rows.
    """

    rows: int
    mask: npt.NDArray[np.bool_] | None
    first_ns: int | None
    last_ns: int | None
    skipped: int


class NvprofCapture(Capture):
    """An open database of nvprof."""

    def __init__(self, source: Source, path: Path | None = None) -> None:
        """Open a database, and read the times of all events.

        Args:
            source: The database.
            path: The file that errors name. If None, it is the database.

        Raises:
            CorruptTraceError: The database is damaged.
        """
        self._database = NvprofDatabase(source, RECORD_AGAIN)
        self._database.path = self._path = path or source.path
        recorded = self._database.columns
        self._parts = {n: [p for p in parts if PREFIX + p.name in recorded] for n, parts in TABLES.items()}
        self._valid = {n: [self._find_valid_rows(n, part) for part in parts] for n, parts in self._parts.items()}
        self._objects = objects.Objects(self._database)
        valid = [v for rows in self._valid.values() for v in rows if v.first_ns is not None]
        first, last = self._objects.find_bounds()
        self._origin_ns = min([v.first_ns or 0 for v in valid] + first, default=0)
        self._end_ns = max([v.last_ns or 0 for v in valid] + last, default=0)
        self._frames: dict[str, pl.DataFrame] = {}

    def names(self) -> list[str]:
        """Return the names of the tables that the database may contain."""
        return [*TABLES, *objects.TABLES]

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return sum(valid.rows for valid in self._valid[name]) if name in TABLES else self._get_frame(name).height

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return columns of a table.

        Raises:
            CorruptTraceError: The table is damaged, or a number does not fit the declared column.
        """
        if name not in TABLES:
            frame = self._get_frame(name)
            missing = [pl.lit(None).alias(c) for c in columns if c not in frame.columns]
            return self._cast(name, frame.with_columns(missing).select(columns).to_arrow())
        tables, rows = [schemas.arrow_schema(schemas.table(name), list(columns)).empty_table()], 0
        for part, valid in zip(self._parts[name], self._valid[name], strict=True):
            tables.append(self._cast(name, self._read_part(name, part, valid, columns, rows)))
            rows += valid.rows
        return pa.concat_tables(tables)

    def count_undecoded(self) -> Mapping[str, int]:
        """Return the number of events that are in no table, by kind."""
        counts = dict(self._objects.count_undecoded())
        counts[_TIMELESS] = counts.get(_TIMELESS, 0) + sum(v.skipped for rows in self._valid.values() for v in rows)
        read = dict.fromkeys((*activities.DESCRIPTIONS, *objects.SOURCES), 1 << 62)
        for name, parts in self._parts.items():
            for part, valid in zip(parts, self._valid[name], strict=True):
                read[part.name] = read.get(part.name, 0) + valid.rows + valid.skipped
        for table in self._database.columns:
            kind = table.removeprefix(PREFIX)
            if kind != table and (rows := self._database.count_table_rows(table) - read.get(kind, 0)) > 0:
                label = kind.lower().replace("_", " ") if _PLAIN_NAME.fullmatch(kind) else "other events"
                counts[label] = counts.get(label, 0) + rows
        return {kind: count for kind, count in counts.items() if count}

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _find_valid_rows(self, name: str, part: RecordedTable) -> ValidRows:
        """Read the times of a table, and find the rows that have valid times and a device."""
        columns, has_times = part.columns, "start_ns" in part.columns
        device = columns["device_id"].name if not _is_nullable(name, "device_id") else None
        read = self._database.read(part.name, ["start", "end", *([device] if device else [])], part.where)
        start, end = (concatenate_chunks(read[c].fill_null(0)).to_numpy() for c in ("start", "end"))
        valid = (start > 0) & (end >= start) if has_times else np.ones(len(start), np.bool_)
        if device:
            known = self._convert(columns["device_id"], concatenate_chunks(read[device])).fill_null(-1)
            valid &= known.to_numpy(zero_copy_only=False) >= 0
        count = int(np.count_nonzero(valid))
        mask = None if count == len(valid) else valid
        if not count or not has_times:
            return ValidRows(count, mask, None, None, len(valid) - count)
        return ValidRows(count, mask, int(start[valid].min()), int(end[valid].max()), len(valid) - count)

    def _read_part(
        self, name: str, part: RecordedTable, valid: ValidRows, columns: Sequence[str], earlier_rows: int
    ) -> pa.Table:
        """Read declared columns from a table of the database. Columns that it does not contain are null."""
        sources = {c: part.columns[c] for c in columns if c in part.columns}
        read = self._database.read(part.name, list(dict.fromkeys(c.name for c in sources.values())), part.where)
        if valid.mask is not None:
            read = {c: values.filter(pa.array(valid.mask)) for c, values in read.items()}
        arrays = {
            c: self._convert(recorded, concatenate_chunks(read[recorded.name])) for c, recorded in sources.items()
        }
        rows = valid.rows
        for column, value in part.constants.items():
            arrays[column] = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [value])
        arrays[IDS[name]] = pa.array(np.arange(earlier_rows + 1, earlier_rows + rows + 1, dtype=np.int64))
        if "process_id" not in part.columns and self._objects.process_id is not None:
            arrays["process_id"] = pa.array(np.full(rows, self._objects.process_id))
        for field in schemas.arrow_schema(schemas.table(name), list(columns)):
            arrays.setdefault(field.name, pa.nulls(rows, field.type))
        return pa.table({c: arrays[c] for c in columns})

    def _convert(self, column: RecordedColumn, values: pa.Array) -> pa.Array:
        """Convert the values of a column of the database to those of the declared column."""
        if column.labels is not None:
            return _look_up(StringTable.from_mapping(column.labels), values)
        if (convert := _CONVERSIONS_OF_STRINGS.get(column.conversion)) is not None:
            strings = _look_up(self._strings, values)
            texts = pa.array([convert(text) for text in strings.dictionary.to_pylist()], pa.string())
            return build_dictionary_array(strings.indices, texts)
        if column.conversion == activities.TIME:
            return pc.subtract(values, self._origin_ns)
        if column.conversion == activities.DEVICE_OF_CONTEXT:
            contexts, devices = self._devices_of_contexts
            return devices.take(pc.index_in(values, contexts))
        return _CONVERSIONS_OF_NUMBERS[column.conversion](values)

    @functools.cached_property
    def _strings(self) -> StringTable:
        return self._database.read_strings()

    @functools.cached_property
    def _devices_of_contexts(self) -> tuple[pa.Array, pa.Array]:
        contexts = self._database.read_frame("CONTEXT", ["contextId", "deviceId"]).drop_nulls().unique("contextId")
        return pa.array(contexts["contextId"].to_list(), pa.int64()), pa.array(
            contexts["deviceId"].to_list(), pa.int64()
        )

    def _get_frame(self, name: str) -> pl.DataFrame:
        if name not in self._frames:
            self._frames[name] = self._objects.build_table(name, self._origin_ns, self._end_ns)
        return self._frames[name]

    def _cast(self, name: str, table: pa.Table) -> pa.Table:
        """Cast columns to their declared types."""
        try:
            return table.cast(schemas.arrow_schema(schemas.table(name), table.column_names))
        except (pa.ArrowInvalid, ValueError) as e:
            what = str(e).partition("\n")[0]
            raise CorruptTraceError(what, path=self._path, table=name, hint=RECORD_AGAIN) from e


def _is_nullable(name: str, column: str) -> bool:
    """Return whether a declared column is missing or may be null."""
    declared = {c.name: c for c in schemas.table(name).columns}
    return column not in declared or declared[column].nullable


def _look_up(table: StringTable, values: pa.Array) -> pa.DictionaryArray:
    return table.look_up_strings_of_ids(pa.chunked_array([values])).strings


@functools.cache
def _create_function_table(api: str) -> StringTable:
    return StringTable.from_mapping(dict(enumerate(cupti.load_function_names(api), 1)))


def keep_mangled_name(name: str) -> str | None:
    """Return a name if it is mangled."""
    return name if name.startswith("_Z") else None


def find_base_name(name: str) -> str:
    """Return the name of a function without namespaces, parameters and template arguments, given its mangled name.

    A name that is not mangled is returned unchanged.
    """
    start = _NESTED_NAME.match(name)
    at, base = start.end() if start else 0, ""
    while start and (size := _IDENTIFIER.match(name, at)):
        at = size.end() + int(size[1])
        base = name[size.end() : at]
    return base or name


def find_file_name(path: str) -> str:
    """Return the name of a file without its folders."""
    return _FOLDERS.sub("", path)


def _keep(name: str) -> str:
    return name


_CONVERSIONS_OF_NUMBERS: Mapping[str, Callable[[pa.Array], pa.Array]] = {
    activities.NUMBER: lambda values: values,
    activities.OPTIONAL: lambda values: pc.if_else(
        pc.or_(pc.less(values, 0), pc.equal(values, _MAX_ID)), pa.scalar(None, pa.int64()), values
    ),
    activities.THREAD: lambda values: pc.bit_wise_and(values, _MAX_ID),
    activities.RUNTIME: lambda values: _look_up(_create_function_table("runtime"), values),
    activities.DRIVER: lambda values: _look_up(_create_function_table("driver"), values),
}
_CONVERSIONS_OF_STRINGS: Mapping[str, Callable[[str], str | None]] = {
    activities.STRING: _keep,
    activities.SHORT_NAME: find_base_name,
    activities.MANGLED_NAME: keep_mangled_name,
    activities.FILE_NAME: find_file_name,
}
