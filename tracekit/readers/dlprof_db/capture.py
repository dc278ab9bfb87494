"""One DLProf database as declared tables.

What DLProf does not keep is null; where a declared column knows no null (streams, contexts, registers, shared memory)
it is 0.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from tracekit import schemas
from tracekit.errors import CorruptTraceError, SchemaError, UnsupportedVersionError, first_line, warn
from tracekit.readers.common import columns as col
from tracekit.readers.dlprof_db import rolled
from tracekit.readers.dlprof_db.database import AGAIN, ID, Database
from tracekit.readers.dlprof_db.tables import CHILDREN, NEEDED, ONE_CALL, TABLES, CallNumber, Lookup, calls
from tracekit.readers.nsys.versions import LABELS
from tracekit.registry import Capture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.readers.dlprof_db.tables import Made, Origin
    from tracekit.registry import Source

_HIGHEST = (1 << 63) - 1
NEWEST = (1, 8)
CALLS, FACTS = "api_calls", "capture_info"
SEEN = ("processes", "threads")
"""Tables of what the rows of others name."""
_LABELLED = {"copy_kind": "ENUM_CUDA_MEMCPY_OPER", "sync_type": "ENUM_CUPTI_SYNC_TYPE"}
_SYSTEM = {
    "dlprof_version": "tool_version",
    "framework": "framework",
    "mode_string": "mode",
    "driver_version": "driver_version",
    "cuda_version": "cuda_version",
    "cudnn_version": "cudnn_version",
    "nsys_version": "nsys_version",
}
_MODEL = (
    *("num_workers", "pin_memory", "cudnn_benchmark_disabled", "detect_anomaly", "gradcheck", "gradgradcheck"),
    *("autograd_profile", "autograd_set_detect_anomaly", "emit_nvtx", "amp_enabled"),
)
_PUBLIC = {"read_only_system_config": frozenset(_SYSTEM), "read_only_model_config": frozenset(_MODEL)}
_UNKNOWN = (None, "", "UNKNOWN")


class DlprofCapture(Capture):
    """An opened database: declared tables on demand, only the columns asked for."""

    def __init__(self, source: Source) -> None:
        self.path = source.path
        self._database = Database(source)
        self._check_version()

    def names(self) -> list[str]:
        """Names of the tables that a database may hold rows for."""
        whole = all({*c} <= {*self._database.columns.get(t, ())} for t, c in rolled.NEEDED.items())
        return [*TABLES, CALLS, FACTS, *SEEN, *(rolled.TABLES if whole else ())]

    def count(self, name: str) -> int:
        """Number of rows of a table."""
        if name in TABLES:
            return self._database.count(TABLES[name].source)
        if name == CALLS:
            return sum(map(self._count_calls, CHILDREN))
        if name in ("ops", "op_instances"):
            return self._database.count(rolled.SOURCES[name])
        return int(self.read(name, schemas.table(name).key).num_rows)

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Read some columns of a table.

        Raises:
            CorruptTraceError: The database is damaged there, or holds a value that its format does not allow.
        """
        if name == FACTS:
            made = pa.table({"name": list(self._facts), "value": list(self._facts.values())})
        elif name in SEEN:
            made = self._seen(name, columns)
        elif name == CALLS:
            made = self._calls(columns)
        elif name in rolled.TABLES:
            made = rolled.table(self._database, name)
        else:
            made = self._rows(name, TABLES[name], columns)
        try:
            return schemas.conform(made, schemas.table(name), columns)
        except SchemaError as e:
            raise CorruptTraceError(first_line(e), path=self.path, hint=AGAIN) from e

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _rows(self, name: str, made: Made, columns: Sequence[str]) -> pa.Table:
        """Make columns of a declared table from one table of the database: a row each, in the order of its ids."""
        schema = schemas.table(name)
        if made.source not in self._database.columns:
            return schemas.empty(schema, columns)
        wanted = {c: made.columns[c] for c in columns if c in made.columns}
        texts = [o for c, o in wanted.items() if schema[c].type == "string" and isinstance(o, str)]
        rows = self._numbered(made, [o for o in wanted.values() if o not in texts], texts)
        values = {c: self._value(rows, origin) for c, origin in wanted.items()}
        fields = schemas.arrow_schema(schema, columns)
        return pa.table({f.name: self._resolved(f, values.get(f.name), rows.height) for f in fields})

    def _numbered(self, made: Made, origins: Sequence[Origin], texts: Sequence[str]) -> pl.DataFrame:
        """Read the rows of a table of the database; ``first`` is the first row of the call that each is of."""
        numbers = [o.by if isinstance(o, Lookup) else o for o in origins if not isinstance(o, CallNumber)]
        of_calls = made.only_first or any(isinstance(o, CallNumber) for o in origins)
        rows = self._database.by_id(made.source, (*numbers, *(ONE_CALL if of_calls else ())), texts)
        if not of_calls:
            return rows
        rows = rows.with_columns(first=pl.col(ID).min().over(ONE_CALL))
        return rows.filter(pl.col(ID) == pl.col("first")) if made.only_first else rows

    def _value(self, rows: pl.DataFrame, origin: Origin) -> pl.Series:
        """Return what a declared column is made of: n rows in, n values out."""
        if isinstance(origin, str):
            return rows[origin]
        if isinstance(origin, CallNumber):
            ends = [e for e in (rows["first"].min(), rows["first"].max()) if isinstance(e, int)]
            if any(abs(origin.of(e)) > _HIGHEST for e in ends):
                what = f"ids from {ends[0]} to {ends[1]}: too large to number calls by them"
                raise CorruptTraceError(what, path=self.path, table=origin.source, hint=AGAIN)
            return rows.select(origin.of(pl.col("first"))).to_series()
        others = self._database.by_id(origin.table, (origin.column,)).select(ID, named=origin.column)
        joined = rows.select(id=origin.by).join(others, on=ID, how="left", maintain_order="left")
        return joined.select(pl.coalesce("named", ID) if origin.or_id else "named").to_series()

    def _resolved(self, field: pa.Field, data: pl.Series | None, rows: int) -> pa.Array:
        """Make a declared column of what was read; without anything it is null, or 0 if it may not be."""
        if data is None:
            absent = pa.nulls(rows, field.type)
            return absent if field.nullable else absent.fill_null(0)
        if not pa.types.is_dictionary(field.type):
            return data.to_arrow()
        enum = _LABELLED.get(field.name)
        labels = None if enum is None else col.Strings.of(dict(LABELS[enum]))
        return self._database.named(data, of=labels)

    def _calls(self, columns: Sequence[str]) -> pa.Table:
        """Make the calls of CUDA, in order of start, from all tables that tell of one."""
        needed = list(dict.fromkeys([*columns, "start_ns", "api_call_id"]))
        sources = [s for s in CHILDREN if s in self._database.columns]
        if not sources:
            return schemas.empty(schemas.table(CALLS), needed)
        whole = pa.concat_tables([self._rows(CALLS, calls(s), needed) for s in sources]).unify_dictionaries()
        return whole.sort_by([("start_ns", "ascending"), ("api_call_id", "ascending")])

    def _count_calls(self, source: str) -> int:
        """Count the calls of CUDA that a table tells of."""
        rows = self._database.rows(source, ONE_CALL)
        return rows.n_unique() if rows.height else 0

    def _seen(self, name: str, columns: Sequence[str]) -> pa.Table:
        """List the processes or threads that rows name, in order of their numbers."""
        key = schemas.table(name).key
        listed = pl.concat([self._database.rows(t, key).unique() for t in ("read_only_op_instances", *CHILDREN)])
        rows = listed.unique().sort(key)
        fields = schemas.arrow_schema(schemas.table(name), columns)
        known = {c: rows[c] for c in key}
        return pa.table({f.name: self._resolved(f, known.get(f.name), rows.height) for f in fields})

    @functools.cached_property
    def _facts(self) -> dict[str, str]:
        """What is public of the run: versions, mode, settings of the model; no command line, user or host."""
        found = {"tool": "DLProf", "schema_version": self._version}
        system, model = (self._row(t) for t in ("read_only_system_config", "read_only_model_config"))
        found |= {fact: str(system[c]) for c, fact in _SYSTEM.items() if system.get(c) not in _UNKNOWN}
        found |= {f"model_config.{c}": str(v) for c, v in model.items() if c != "id" and v is not None}
        return {k: v for k, v in found.items() if v is not None}

    def _row(self, table: str) -> dict[str, object]:
        """Return the first row of a table; nothing if there is none."""
        columns = sorted(_PUBLIC[table] & {*self._database.columns.get(table, ())})
        return self._database.first_row(table, columns) if columns else {}

    @functools.cached_property
    def _version(self) -> str | None:
        known = "current_version" in self._database.columns.get("db_version", ())
        first = self._database.first_row("db_version", ["current_version"]) if known else {}
        return str(first["current_version"]) if first else None

    def _check_version(self) -> None:
        """Refuse a database that is laid out otherwise; warn of one that is newer than the newest known."""
        columns, version = self._database.columns, self._version or "unknown"
        lacking = [f"{t}.{c}" for t, wanted in NEEDED.items() for c in wanted if t in columns and c not in columns[t]]
        if lacking or "read_only_ops" not in columns or "dictionary" not in columns:
            what = f"has no column {lacking[0]}" if lacking else "has no ops"
            hint = "databases of DLProf 1.8 are read; let DLProf 1.8 open it, which brings it up to date"
            raise UnsupportedVersionError(f"a DLProf database of version {version}: {what}", path=self.path, hint=hint)
        numbers = tuple(int(n) for n in re.findall(r"\d{1,9}", version)[:2])
        if numbers > NEWEST:
            newest = ".".join(map(str, NEWEST))
            warn(f"version {version} is newer than {newest}, the newest known: what is known is read", path=self.path)
