"""The declared tables: read from ``schemas/arrow`` and turned into whatever needs them.

A table is declared once, in TOML. Its Arrow and polars schema, the empty table, the JSON Schema, the documentation
page and the test strategy all come from here; ``conform`` holds a reader's output against it.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import polars as pl
    import pyarrow as pa

SCHEMA_VERSION = 1
_PACKAGED = Path(__file__).with_name("_schemas")
FOLDER = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parent.parent / "schemas"
_JSON_TYPES = {"int64": "integer", "int32": "integer", "float64": "number", "bool": "boolean", "string": "string"}


@dataclass(frozen=True, slots=True)
class Column:
    """One declared column."""

    name: str
    type: str
    doc: str
    unit: str | None = None
    nullable: bool = False
    references: str | None = None
    source: str | None = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One declared table: its columns in order, its key and which tool option records it."""

    name: str
    doc: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    recorded_by: str | None = None

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return [c.name for c in self.columns]

    def __getitem__(self, column: str) -> Column:
        for c in self.columns:
            if c.name == column:
                return c
        raise SchemaError(f"table {self.name!r} has no column {column!r}", hint=f"columns: {', '.join(self.names)}")


@functools.cache
def tables() -> dict[str, TableSchema]:
    """Return every declared table by name, in the order of the folder."""
    return {t.name: t for t in (_table(p) for p in sorted((FOLDER / "arrow").glob("[a-z]*.toml")))}


def table(name: str) -> TableSchema:
    """Return one declared table.

    Raises:
        SchemaError: No table has that name.
    """
    try:
        return tables()[name]
    except KeyError:
        raise SchemaError(f"no table is called {name!r}", hint=f"tables: {', '.join(tables())}") from None


@functools.cache
def correlated(name: str) -> TableSchema:
    """Return a table as ``Trace.correlate()`` leaves it: the declared columns and the ones that correlation adds."""
    base = table(name)
    added = [c for g in _correlation().values() if name in g["tables"] for c in g["columns"]]
    return TableSchema(base.name, base.doc, base.key, (*base.columns, *_columns(added)), base.recorded_by)


def arrow_schema(schema: TableSchema, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the Arrow schema of a table, or of some of its columns, with units and docs as field metadata."""
    import pyarrow as pa

    chosen = schema.columns if columns is None else [schema[c] for c in columns]
    return pa.schema([_arrow_field(c) for c in chosen], metadata={"tracekit.table": schema.name})


def polars_schema(schema: TableSchema, columns: Sequence[str] | None = None) -> dict[str, pl.DataType]:
    """Return the polars schema of a table, or of some of its columns."""
    import polars as pl

    types: dict[str, pl.DataType] = {
        "int64": pl.Int64(),
        "int32": pl.Int32(),
        "float64": pl.Float64(),
        "bool": pl.Boolean(),
        "string": pl.String(),
        "dictionary": pl.Categorical(),
    }
    chosen = schema.columns if columns is None else [schema[c] for c in columns]
    return {c.name: types[c.type] for c in chosen}


def empty(schema: TableSchema, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the table without rows."""
    empty_table: pa.Table = arrow_schema(schema, columns).empty_table()
    return empty_table


def conform(data: pa.Table, schema: TableSchema, columns: Sequence[str] | None = None) -> pa.Table:
    """Cast a table to its declared schema: n rows in, the same n rows out, columns in declared order.

    Args:
        data: What a reader produced; further columns are dropped.
        schema: The declared table.
        columns: The columns wanted; all of them if None.

    Raises:
        SchemaError: Columns are missing, a value does not fit its type, or a null stands where none may be.
    """
    wanted = arrow_schema(schema, columns)
    missing = [n for n in wanted.names if n not in data.column_names]
    if missing:
        raise SchemaError(f"{len(missing)} missing columns for {schema.name!r}: {', '.join(missing)}")
    return _cast(data.select(wanted.names), wanted, schema.name)


def json_schema(schema: TableSchema) -> dict[str, Any]:
    """Return the JSON Schema of one row of a table."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"tracekit:{schema.name}:v{SCHEMA_VERSION}",
        "title": schema.name,
        "description": schema.doc,
        "type": "object",
        "properties": {c.name: _json_property(c) for c in schema.columns},
        "required": [c.name for c in schema.columns if not c.nullable],
        "additionalProperties": True,
        "x-key": list(schema.key),
    }


def _table(path: Path) -> TableSchema:
    raw = tomllib.loads(path.read_text("utf-8"))
    return TableSchema(raw["name"], raw["doc"], tuple(raw["key"]), _columns(raw["columns"]), raw.get("recorded_by"))


def _columns(raw: Iterable[dict[str, Any]]) -> tuple[Column, ...]:
    return tuple(Column(**{**c, "values": tuple(c.get("values", ()))}) for c in raw)


@functools.cache
def _correlation() -> dict[str, Any]:
    return tomllib.loads((FOLDER / "arrow" / "_correlation.toml").read_text("utf-8"))


def _arrow_field(column: Column) -> pa.Field:
    import pyarrow as pa

    kinds = {"bool": pa.bool_(), "dictionary": pa.dictionary(pa.int32(), pa.string())}
    kind = kinds.get(column.type) or pa.type_for_alias(column.type)
    notes = {"doc": column.doc, "unit": column.unit, "references": column.references}
    return pa.field(column.name, kind, column.nullable, {k: v for k, v in notes.items() if v is not None})


def _cast(data: pa.Table, wanted: pa.Schema, name: str) -> pa.Table:
    import pyarrow as pa

    arrays = []
    for field, column in zip(wanted, data.columns, strict=True):
        try:
            cast = column if column.type == field.type else column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as e:
            raise SchemaError(f"column {field.name!r} of {name!r} is not {field.type}: {e}") from e
        if not field.nullable and cast.null_count:
            raise SchemaError(f"column {field.name!r} of {name!r} holds {cast.null_count} nulls; none are allowed")
        arrays.append(cast)
    return pa.table(arrays, schema=wanted)


def _json_property(column: Column) -> dict[str, Any]:
    kind = _JSON_TYPES.get(column.type, "string")
    prop: dict[str, Any] = {"type": [kind, "null"] if column.nullable else kind, "description": column.doc}
    if column.values:
        prop["enum"] = [*column.values, None] if column.nullable else list(column.values)
    extras = {"unit": column.unit, "references": column.references, "source": column.source, "arrow": column.type}
    return prop | {f"x-{k}": v for k, v in extras.items() if v is not None}
