"""Build the declared tables from a DLProf database.

DLProf does not record some columns, such as streams, contexts, registers and shared memory. These columns are null, or
0 if they are not nullable.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from tracekit import schemas
from tracekit.errors import CorruptTraceError, SchemaError, UnsupportedVersionError, get_first_line_of_message, warn
from tracekit.readers.common import columns as col
from tracekit.readers.dlprof_db import rollup
from tracekit.readers.dlprof_db.tables import (
    CALL_KEY,
    CALL_TABLES,
    COPY_AGAIN,
    ID,
    REQUIRED_COLUMNS,
    TABLES,
    CallId,
    DlprofFile,
    Lookup,
    create_call_mapping,
)
from tracekit.readers.nsys.versions import LABELS
from tracekit.registry.interface import Capture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.readers.dlprof_db.tables import ColumnSource, TableMapping
    from tracekit.registry.source import Source

_MAX_INT64 = (1 << 63) - 1
NEWEST_VERSION = (1, 8)
CALLS, CAPTURE_INFO = "api_calls", "capture_info"
KEY_TABLES = ("processes", "threads")
"""Tables whose rows contain only keys, which are collected from other tables."""
_LABEL_ENUMS = {"copy_kind": "ENUM_CUDA_MEMCPY_OPER", "sync_type": "ENUM_CUPTI_SYNC_TYPE"}
_SYSTEM_METADATA = {
    "dlprof_version": "tool_version",
    "framework": "framework",
    "mode_string": "mode",
    "driver_version": "driver_version",
    "cuda_version": "cuda_version",
    "cudnn_version": "cudnn_version",
    "nsys_version": "nsys_version",
}
_MODEL_METADATA = (
    *("num_workers", "pin_memory", "cudnn_benchmark_disabled", "detect_anomaly", "gradcheck", "gradgradcheck"),
    *("autograd_profile", "autograd_set_detect_anomaly", "emit_nvtx", "amp_enabled"),
)
_PUBLIC_COLUMNS = {
    "read_only_system_config": frozenset(_SYSTEM_METADATA),
    "read_only_model_config": frozenset(_MODEL_METADATA),
}
_UNKNOWN = (None, "", "UNKNOWN")


class DlprofCapture(Capture):
    """An open DLProf database, whose declared tables are built when they are read."""

    def __init__(self, source: Source) -> None:
        self.path = source.path
        self._database = DlprofFile(source)
        self._check_version()

    def names(self) -> list[str]:
        """Return the names of the declared tables that may have rows."""
        has_rollup = all({*c} <= {*self._database.columns.get(t, ())} for t, c in rollup.REQUIRED_COLUMNS.items())
        return [*TABLES, CALLS, CAPTURE_INFO, *KEY_TABLES, *(rollup.TABLES if has_rollup else ())]

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        if name in TABLES:
            return self._database.count_table_rows(TABLES[name].source_table)
        if name == CALLS:
            return sum(map(self._count_distinct_calls, CALL_TABLES))
        if name in ("ops", "op_instances"):
            return self._database.count_table_rows(rollup.SOURCES[name])
        return int(self.read(name, schemas.table(name).key).num_rows)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of a table.

        Raises:
            CorruptTraceError: The database is damaged where the table is stored, or contains an invalid value.
        """
        if name == CAPTURE_INFO:
            table = pa.table(
                {"name": list(self._capture_info_values), "value": list(self._capture_info_values.values())}
            )
        elif name in KEY_TABLES:
            table = self._build_process_or_thread_table(name, columns)
        elif name == CALLS:
            table = self._build_call_table(columns)
        elif name in rollup.TABLES:
            table = rollup.build_table(self._database, name)
        else:
            table = self._build_table(name, TABLES[name], columns)
        try:
            return schemas.conform(table, schemas.table(name), columns)
        except SchemaError as e:
            raise CorruptTraceError(get_first_line_of_message(e), path=self.path, hint=COPY_AGAIN) from e

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _build_table(self, name: str, mapping: TableMapping, columns: Sequence[str]) -> pa.Table:
        """Build the requested columns of a declared table from one source table. Rows are ordered by id."""
        schema = schemas.table(name)
        if mapping.source_table not in self._database.columns:
            return schemas.empty(schema, columns)
        sources = {c: mapping.columns[c] for c in columns if c in mapping.columns}
        string_columns = [o for c, o in sources.items() if schema[c].type == "string" and isinstance(o, str)]
        rows = self._read_source_rows(mapping, [o for o in sources.values() if o not in string_columns], string_columns)
        values = {c: self._compute_column_values(rows, source) for c, source in sources.items()}
        for column, source in sources.items():
            if isinstance(source, Lookup) and (unknown := values[column].null_count()):
                what = f"column {column!r} of table {name!r} has no value in {unknown} rows"
                why = f"{source.table} has no row with their {source.id_column}"
                raise CorruptTraceError(f"{what}, because {why}", path=self.path, hint=COPY_AGAIN)
        fields = schemas.arrow_schema(schema, columns)
        return pa.table({f.name: self._build_column(f, values.get(f.name), rows.height) for f in fields})

    def _read_source_rows(
        self, mapping: TableMapping, sources: Sequence[ColumnSource], string_columns: Sequence[str]
    ) -> pl.DataFrame:
        """Read the columns of a source table that are needed to compute declared columns.

        If the ids of API calls or only the first rows of API calls are needed, the column ``first`` is added. It
        contains, for each row, the id of the first row of the same API call.

        Args:
            mapping: The mapping from the source table to the declared table.
            sources: The sources of the declared columns that are not read from string columns.
            string_columns: Names of the string columns to read.
        """
        numbers = [o.id_column if isinstance(o, Lookup) else o for o in sources if not isinstance(o, CallId)]
        needs_first = mapping.only_first or any(isinstance(o, CallId) for o in sources)
        rows = self._database.read_rows_by_id(
            mapping.source_table, (*numbers, *(CALL_KEY if needs_first else ())), string_columns
        )
        if not needs_first:
            return rows
        rows = rows.with_columns(first=pl.col(ID).min().over(CALL_KEY))
        return rows.filter(pl.col(ID) == pl.col("first")) if mapping.only_first else rows

    def _compute_column_values(self, rows: pl.DataFrame, source: ColumnSource) -> pl.Series:
        """Return the value of a declared column for each row of its source table."""
        if isinstance(source, str):
            return rows[source]
        if isinstance(source, CallId):
            extremes = [e for e in (rows["first"].min(), rows["first"].max()) if isinstance(e, int)]
            if any(abs(source.compute_call_id(e)) > _MAX_INT64 for e in extremes):
                what = f"the ids from {extremes[0]} to {extremes[1]} are too large to derive ids of calls from them"
                raise CorruptTraceError(what, path=self.path, table=source.source_table, hint=COPY_AGAIN)
            return rows.select(source.compute_call_id(pl.col("first"))).to_series()
        others = self._database.read_rows_by_id(source.table, (source.column,)).select(ID, referenced=source.column)
        joined = rows.select(id=source.id_column).join(others, on=ID, how="left", maintain_order="left")
        return joined.select(pl.coalesce("referenced", ID) if source.defaults_to_id else "referenced").to_series()

    def _build_column(self, field: pa.Field, data: pl.Series | None, row_count: int) -> pa.Array:
        """Convert values to an Arrow array for a declared column.

        If ``data`` is None, all values are null, or 0 if the column is not nullable.
        """
        if data is None:
            missing = pa.nulls(row_count, field.type)
            return missing if field.nullable else missing.fill_null(0)
        if not pa.types.is_dictionary(field.type):
            return data.to_arrow()
        enum = _LABEL_ENUMS.get(field.name)
        labels = None if enum is None else col.StringTable.from_mapping(dict(LABELS[enum]))
        return self._database.look_up_strings(data, strings=labels)

    def _build_call_table(self, columns: Sequence[str]) -> pa.Table:
        """Build the table of CUDA API calls from all source tables that record calls, ordered by start."""
        needed = list(dict.fromkeys([*columns, "start_ns", "api_call_id"]))
        sources = [s for s in CALL_TABLES if s in self._database.columns]
        if not sources:
            return schemas.empty(schemas.table(CALLS), needed)
        table = pa.concat_tables(
            [self._build_table(CALLS, create_call_mapping(s), needed) for s in sources]
        ).unify_dictionaries()
        return table.sort_by([("start_ns", "ascending"), ("api_call_id", "ascending")])

    def _count_distinct_calls(self, source_table: str) -> int:
        """Return the number of distinct CUDA API calls in a source table."""
        rows = self._database.read_rows(source_table, CALL_KEY)
        return rows.n_unique() if rows.height else 0

    def _build_process_or_thread_table(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Build the table ``processes`` or ``threads`` from the ids in other tables. Rows are ordered by id."""
        key = schemas.table(name).key
        keys = pl.concat([self._database.read_rows(t, key).unique() for t in ("read_only_op_instances", *CALL_TABLES)])
        rows = keys.unique().sort(key)
        fields = schemas.arrow_schema(schemas.table(name), columns)
        key_columns = {c: rows[c] for c in key}
        return pa.table({f.name: self._build_column(f, key_columns.get(f.name), rows.height) for f in fields})

    @functools.cached_property
    def _capture_info_values(self) -> dict[str, str]:
        """The versions, the mode and the model settings, keyed by their names in ``capture_info``.

        Private metadata, such as the command line, is omitted.
        """
        metadata = {"tool": "DLProf", "schema_version": self._database_version}
        system, model = (self._read_first_row(t) for t in ("read_only_system_config", "read_only_model_config"))
        metadata |= {name: str(system[c]) for c, name in _SYSTEM_METADATA.items() if system.get(c) not in _UNKNOWN}
        metadata |= {f"model_config.{c}": str(v) for c, v in model.items() if c != "id" and v is not None}
        return {k: v for k, v in metadata.items() if v is not None}

    def _read_first_row(self, table: str) -> dict[str, object]:
        """Return the public values in the first row of a table, by column name.

        The result is empty if the table has no rows.
        """
        columns = sorted(_PUBLIC_COLUMNS[table] & {*self._database.columns.get(table, ())})
        return self._database.read_first_row(table, columns) if columns else {}

    @functools.cached_property
    def _database_version(self) -> str | None:
        has_version = "current_version" in self._database.columns.get("db_version", ())
        first = self._database.read_first_row("db_version", ["current_version"]) if has_version else {}
        return str(first["current_version"]) if first else None

    def _check_version(self) -> None:
        """Raise an error if required tables or columns are missing, and warn if the version is not supported yet."""
        columns, version = self._database.columns, self._database_version or ""
        missing = [
            f"{t}.{c}"
            for t, required in REQUIRED_COLUMNS.items()
            for c in required
            if t in columns and c not in columns[t]
        ]
        missing_tables = [t for t in ("read_only_ops", "dictionary") if t not in columns]
        if missing or missing_tables:
            what = f"column {missing[0]}" if missing else f"table {missing_tables[0]}"
            database = f"the DLProf database ({f'version {version}' if version else 'unknown version'})"
            hint = "open the database once with DLProf 1.8, which migrates it to the supported version"
            raise UnsupportedVersionError(f"{database} has no {what}", path=self.path, hint=hint)
        numbers = tuple(int(n) for n in re.findall(r"\d{1,9}", version)[:2])
        if numbers > NEWEST_VERSION:
            newest = ".".join(map(str, NEWEST_VERSION))
            warn(
                f"the database version {version} is newer than {newest}, the newest supported version: "
                "unknown columns are skipped",
                path=self.path,
            )
