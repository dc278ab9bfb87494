"""The declarations of tables and protobuf messages in ``schemas/``.

Each table is declared once, in a TOML file. Its Arrow, polars and JSON schemas, the empty table, the documentation page
and the test data generators are derived from this declaration. ``conform`` checks the output of readers against it.

Parsing TOML takes long, so the declarations are read from ``schemas/_compiled.json``. The build writes this file for
the wheel. In a checkout, it is written here whenever a declaration has changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.errors import SchemaError, create_choices_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import polars as pl
    import pyarrow as pa
    from google.protobuf.descriptor_pool import DescriptorPool

    from tracekit.text.names import TableName

SCHEMA_VERSION = 1
ALL_COLUMNS = "*"
LAYER_COLUMNS = ("capture_range_id", "capture_path", "capture_confidence")
"""Key that stands for all columns of a table that correlation computes as a whole."""
_PACKAGED = Path(__file__).parents[1] / "_schemas"
FOLDER = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parents[2] / "schemas"
_JSON_TYPES = dict.fromkeys(("int64", "int32", "uint64", "uint32"), "integer") | {
    "float64": "number",
    "bool": "boolean",
    "string": "string",
    "list<int64>": "array",
}
OTHER_COLUMNS = "*"
"""Name of a declared column of a result that stands for all columns whose names are not known in advance."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """The declaration of one column of a table.

    Attributes:
        name: Name of the column.
        type: Declared type, such as ``int64``, or ``dictionary`` for a dictionary-encoded string.
        doc: Description of the values.
        unit: Unit of the values. None if they have no unit.
        nullable: Whether values may be null.
        references: Column of another table whose values this column contains, such as ``devices.device_id``. None if
            the column refers to no other column.
        values: The allowed values. Empty if all values of the type are allowed.
        title: Title on pages, without the unit. None if it is derived from the name.
        formula: How the values are computed. None if ``doc`` says all about it.
    """

    name: str
    type: str
    doc: str
    unit: str | None = None
    nullable: bool = False
    references: str | None = None
    values: tuple[str, ...] = ()
    title: str | None = None
    formula: str | None = None


@dataclass(frozen=True, eq=False)
class TableSchema:
    """The declaration of one table.

    Declarations are compared by identity, so that functions can cache results by declaration.

    Attributes:
        name: Name of the table.
        doc: Description of one row.
        key: Names of the columns that identify a row.
        columns: The declared columns, in order.
        recorded_by: Commands or functions that record the table, separated by " or ". None if none is needed.
        optional: Whether an export of a whole trace omits the table by default, because it is large.
    """

    name: str
    doc: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    recorded_by: str | None = None
    optional: bool = False

    @property
    def names(self) -> list[str]:
        """Names of the columns, in declared order."""
        return [c.name for c in self.columns]

    def __getitem__(self, column: str) -> Column:
        try:
            return self._columns_by_name[column]
        except KeyError:
            hint = create_choices_hint("columns", self.names, column)
            raise SchemaError(f"table {self.name!r} has no column {column!r}", hint=hint) from None

    def __iter__(self) -> Iterator[Column]:
        """Iterate over the columns, in declared order."""
        return iter(self.columns)

    def __contains__(self, column: object) -> bool:
        """Return whether the table has a column with this name."""
        return column in self._columns_by_name

    @functools.cached_property
    def _columns_by_name(self) -> dict[str, Column]:
        return {c.name: c for c in self.columns}


_added_tables: dict[str, TableSchema] = {}
TABLE_LOADERS: list[Callable[[], object]] = []
"""Functions that add the tables of plug-ins. They are called when a table is not known."""


@functools.cache
def table_names() -> tuple[str, ...]:
    """Return the names of all declared tables in alphabetical order. Those of plug-ins are included once loaded."""
    built_in = (name for name in _load_compiled_schemas()["tables"] if not name.startswith("_"))
    return tuple(sorted({*built_in, *_added_tables}))


def add_table(schema: TableSchema) -> None:
    """Add the declaration of a table of a plug-in."""
    _added_tables[schema.name] = schema
    table_names.cache_clear()
    _build_table_schema.cache_clear()


def tables() -> dict[str, TableSchema]:
    """Return all declared tables by name, in alphabetical order."""
    return {name: _build_table_schema(name) for name in table_names()}


def table(name: str) -> TableSchema:
    """Return the declaration of a table.

    Raises:
        SchemaError: No table with this name is declared.
    """
    if name not in table_names():
        for load_tables in TABLE_LOADERS:
            load_tables()
    if name not in table_names():
        raise SchemaError(f"no table is called {name!r}", hint=create_choices_hint("tables", table_names(), name))
    return _build_table_schema(name)


@functools.cache
def list_tables(role: str) -> tuple[TableName, ...]:
    """Return the names of the tables with a role, in the order in which their rows are concatenated.

    Args:
        role: ``activity`` (what ran on a GPU), ``operation`` (activities that are not graphs as a whole), ``kernel``
            (kernels, also those in graphs as a whole), ``synchronization`` (synchronizations and CUDA events), or
            ``event`` (activities, API calls, NVTX ranges and calls of the OS runtime).
    """
    return tuple(_load_declaration("_relations")["roles"][role])


@functools.cache
def get_key(name: str) -> tuple[str, ...]:
    """Return the columns by which tables refer to a ``thread``, an API ``call``, or a ``stream``."""
    return tuple(_load_declaration("_relations")["keys"][name])


@functools.cache
def correlated_schema(name: str) -> TableSchema:
    """Return the schema of a table in a correlated trace, including the columns that correlation adds."""
    return add_correlation_columns_to_schema(table(name))


@functools.lru_cache(maxsize=1 << 9)
def add_correlation_columns_to_schema(base: TableSchema) -> TableSchema:
    """Return the schema of a table with the columns that correlation adds, which ``base`` may already contain."""
    added = _parse_columns(_list_added_columns("_correlation", base.name))
    names = {column.name for column in added}
    return dataclasses.replace(base, columns=(*(c for c in base.columns if c.name not in names), *added))


@functools.lru_cache(maxsize=1 << 9)
def add_layer_columns_to_schema(base: TableSchema) -> TableSchema:
    """Return the schema of a table in a layered trace.

    Memory operations and kernels have the time of the launch and those columns of correlation that describe captured
    ranges, and NVTX ranges state of which range they are copies.
    """
    added = _list_added_columns("_layers", base.name)
    if base.name in list_tables("operation"):
        added = [*added, *(c for c in _list_added_columns("_correlation", base.name) if c["name"] in LAYER_COLUMNS)]
    return dataclasses.replace(base, columns=(*base.columns, *_parse_columns(added)))


def _list_added_columns(declaration: str, name: str) -> list[dict[str, Any]]:
    """Return the declared columns that a computation adds to the table with the given name."""
    groups = _load_declaration(declaration).values()
    return [c for g in groups if name in (g.get("tables") or list_tables(g["role"])) for c in g["columns"]]


@functools.cache
def list_columns_read_by_correlation() -> Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]]:
    """Return which columns correlation reads to compute each column that it adds to a table.

    The file with these columns is written by ``schemas/generate/correlation_reads.py``, which runs the correlation on
    tables with one row.

    Returns:
        A nested mapping. ``result[TABLE][COLUMN]`` contains the columns that are read to compute the added column
        ``COLUMN`` of the table ``TABLE``: lists of column names, by name of the table to read. If correlation computes
        a table as a whole, ``COLUMN`` is ``ALL_COLUMNS``.
    """
    reads: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]]
    reads = json.loads((FOLDER / "arrow" / "_correlation_reads.json").read_text("utf-8"))
    return reads


def read_table_name(schema: pa.Schema) -> str | None:
    """Return the table name in the metadata of an Arrow schema. Return None if the metadata has no table name."""
    name = (schema.metadata or {}).get(b"tracekit.table")
    return None if name is None else name.decode("utf-8", "replace")


@functools.lru_cache(maxsize=1 << 8)
def add_rollup_columns_to_schema(base: TableSchema) -> TableSchema:
    """Return the schema of a table in a rolled-up trace, in which GPU activities have additional columns for the op."""
    declared = _load_declaration("_rollup")
    if base.name not in list_tables(declared["role"]):
        return base
    return dataclasses.replace(base, columns=(*base.columns, *_parse_columns(declared["columns"])))


def add_ncu_columns_to_schema(base: TableSchema, metrics: Iterable[Column]) -> TableSchema:
    """Return the schema of the table ``kernels`` after a join with Nsight Compute results.

    The result has the columns of ``base``, columns for the matched result and the kind of match, and one column per
    metric.
    """
    added = _parse_columns(_load_declaration("_ncu_join")["columns"])
    return dataclasses.replace(base, columns=(*base.columns, *added, *metrics))


@functools.lru_cache(maxsize=1 << 8)
def add_graph_columns_to_schema(base: TableSchema) -> TableSchema:
    """Return the schema of ``graph_nodes`` with the columns that a join with ops adds."""
    return dataclasses.replace(
        base, columns=(*base.columns, *_parse_columns(_load_declaration("_graph_join")["columns"]))
    )


def arrow_schema(schema: TableSchema, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the Arrow schema of a table, or only of ``columns``. Field metadata contains units and descriptions."""
    return _build_arrow_schema(schema, None if columns is None else tuple(columns))


def polars_schema(schema: TableSchema, columns: Sequence[str] | None = None) -> dict[str, pl.DataType]:
    """Return the polars data types of the columns of a table, or only of ``columns``, by column name."""
    import polars as pl

    types: dict[str, pl.DataType] = {
        "int64": pl.Int64(),
        "int32": pl.Int32(),
        "float64": pl.Float64(),
        "bool": pl.Boolean(),
        "string": pl.String(),
        "binary": pl.Binary(),
        "dictionary": pl.Categorical(),
    }
    chosen = schema.columns if columns is None else [schema[c] for c in columns]
    return {c.name: types[c.type] for c in chosen}


def empty(schema: TableSchema, columns: Sequence[str] | None = None) -> pa.Table:
    """Return an Arrow table without rows that has all columns of a schema, or only ``columns``."""
    return _build_empty_table(schema, None if columns is None else tuple(columns))


@functools.cache
def create_example_frame(schema: TableSchema) -> pl.DataFrame:
    """Return an example table with one row.

    Each value is the first allowed value of its column or, if any value is allowed, 0, False or "".
    """
    import polars as pl

    dtypes = polars_schema(schema)
    row = {c.name: _create_example_value(c, dtypes[c.name]) for c in schema.columns}
    return pl.DataFrame({name: [value] for name, value in row.items()}, schema=dtypes)


def conform(
    data: pa.Table,
    schema: TableSchema,
    columns: Sequence[str] | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
) -> pa.Table:
    """Return a table whose columns are cast to their declared types and checked against the declaration.

    The rows and their order do not change. Nullable columns that the table lacks are filled with nulls.

    Args:
        data: The table to check. Columns that are not requested are dropped.
        schema: The declaration of the table.
        columns: Names of the requested columns, in the order of the result. If None, all columns are requested in
            declared order.
        path: File that the table comes from, for error messages.

    Raises:
        SchemaError: ``data`` is not an Arrow table, a column is repeated, a column that is not nullable is missing, or
            a value does not fit the declared type, is not one of the declared values, or is null in a column that is
            not nullable. The error names the row of the first such value, counted from 0.
    """
    import pyarrow as pa

    if not isinstance(data, pa.Table):
        raise SchemaError(f"table {schema.name!r} is a {type(data).__name__}, not a pyarrow.Table", path=path)
    target = arrow_schema(schema, columns)
    counts = Counter(data.column_names)
    if missing := [f.name for f in target if not f.nullable and f.name not in counts]:
        raise SchemaError(f"table {schema.name!r} lacks required columns: {', '.join(missing)}", path=path)
    if repeated := [n for n in target.names if counts[n] > 1]:
        raise SchemaError(f"table {schema.name!r} has repeated columns: {', '.join(repeated)}", path=path)
    try:
        arrays = [
            _cast_column(data[f.name], f, schema[f.name]) if f.name in counts else pa.nulls(data.num_rows, f.type)
            for f in target
        ]
    except _ColumnMismatchError as e:
        raise SchemaError(f"column {e.args[0]!r} of table {schema.name!r} {e.args[1]}", path=path) from e.__cause__
    return pa.table(arrays, schema=target)


def build_json_schema(schema: TableSchema, name: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema of one row of a table, which is identified by ``name`` or by the name of the table."""
    properties = {c.name: _build_json_property(c) for c in schema.columns}
    others: dict[str, Any] | bool = properties.pop(OTHER_COLUMNS, True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"tracekit:{name or schema.name}:v{SCHEMA_VERSION}",
        "title": name or schema.name,
        "description": schema.doc,
        "type": "object",
        "properties": properties,
        "required": [c.name for c in schema.columns if not c.nullable],
        "additionalProperties": others,
        "x-key": list(schema.key),
    }


def _create_example_value(column: Column, dtype: pl.DataType) -> object:
    if column.values:
        return column.values[0]
    if dtype.is_numeric():
        return 0
    return {"Boolean": False, "Binary": b""}.get(str(dtype), "")


@functools.cache
def _build_table_schema(name: str) -> TableSchema:
    """Return the declaration of a table, which is built once and cached."""
    if name in _added_tables:
        return _added_tables[name]
    raw = _load_declaration(name)
    key, columns = tuple(raw["key"]), _parse_columns(raw["columns"])
    return TableSchema(raw["name"], raw["doc"], key, columns, raw.get("recorded_by"), raw.get("optional", False))


def _parse_columns(declarations: Iterable[dict[str, Any]]) -> tuple[Column, ...]:
    return tuple(Column(**{**c, "values": tuple(c.get("values", ()))}) for c in declarations)


def _load_declaration(name: str) -> dict[str, Any]:
    declaration: dict[str, Any] = _load_compiled_schemas()["tables"][name]
    return declaration


@functools.cache
def _load_compiled_schemas() -> dict[str, dict[str, Any]]:
    file = FOLDER / "_compiled.json"
    compiled: dict[str, Any] = {}
    if FOLDER == _PACKAGED:
        compiled |= json.loads(file.read_text("utf-8"))
        return compiled
    stamp = _stamp_declarations()
    with contextlib.suppress(OSError, ValueError):
        compiled |= json.loads(file.read_text("utf-8"))
    return compiled if compiled.get("stamp") == stamp else _compile_declarations(stamp)


def _stamp_declarations() -> str:
    """Return the names, sizes and times of the files from which the declarations are compiled, in 0.3 ms."""
    folders = [FOLDER, *(FOLDER / name for name in ("arrow", "analyses", "proto", "generate"))]
    entries = [entry for folder in folders for entry in os.scandir(folder)]
    sources = [e for e in entries if e.name.endswith((".toml", ".binpb")) or e.name == "compiled.py"]
    stats = ((e.name, e.stat()) for e in sorted(sources, key=lambda e: e.path))
    return " ".join(f"{name}:{status.st_size}:{status.st_mtime_ns}" for name, status in stats)


def _compile_declarations(stamp: str) -> dict[str, dict[str, Any]]:
    from runpy import run_path

    compiled: dict[str, dict[str, Any]] = run_path(str(FOLDER / "generate" / "compiled.py"))["refresh"](FOLDER, stamp)
    return compiled


def load_declared_analyses() -> Mapping[str, Mapping[str, Any]]:
    """Return the declarations of analyses in ``schemas/analyses``, by name of the file."""
    return _load_compiled_schemas()["analyses"]


def load_tensor_core_rules() -> Mapping[str, Any]:
    """Return the rules in ``schemas/tensor_cores.toml``, which state which kernels use Tensor Cores."""
    return _load_rules("tensor_cores")


def load_peak_rates() -> Mapping[str, Any]:
    """Return the peak rates of GPUs in ``schemas/peaks.toml``."""
    return _load_rules("peaks")


def load_kernel_rules() -> Mapping[str, Any]:
    """Return the rules in ``schemas/kernel_categories.toml``, which classify kernels by name."""
    return _load_rules("kernel_categories")


def load_serving_annotations() -> Mapping[str, Any]:
    """Return the names of ranges that mark steps of serving, as ``schemas/serving_annotations.toml`` declares them."""
    return _load_rules("serving_annotations")


def load_profilers() -> Sequence[Mapping[str, Any]]:
    """Return how profilers other than Nsight Systems record data, as ``schemas/profilers.toml`` declares it."""
    profilers: Sequence[Mapping[str, Any]] = _load_rules("profilers")["profilers"]
    return profilers


def get_command_of_profiler(profiler: Mapping[str, Any], table: str, activity: str = "") -> str:
    """Return the command or function with which a profiler records a table.

    Args:
        profiler: A profiler, as ``load_profilers`` returns it.
        table: Name of the table.
        activity: Name in ``ProfilerActivity`` of the devices of the capture, or "" for CUDA devices.
    """
    command = str(profiler["tables"].get(table, profiler["default"]))
    return command.replace("ProfilerActivity.CUDA", f"ProfilerActivity.{activity}") if activity else command


def _load_rules(file: str) -> Mapping[str, Any]:
    rules: Mapping[str, Any] = _load_compiled_schemas()["rules"][file]
    return rules


def load_declared_fields(file: str, message: str) -> Mapping[str, tuple[int, str | None]]:
    """Return the number and the message type of each field of a protobuf message in ``schemas/proto``, by field name.

    The message type of a field that contains no message is None.

    Args:
        file: Name of the schema file, without suffix.
        message: Name of the message.
    """
    fields: Mapping[str, tuple[int, str | None]] = _load_compiled_schemas()["messages"][file][message]
    return fields


@functools.lru_cache(maxsize=1 << 10)
def _build_arrow_schema(schema: TableSchema, columns: tuple[str, ...] | None) -> pa.Schema:
    import pyarrow as pa

    chosen = schema.columns if columns is None else [schema[c] for c in columns]
    return pa.schema([_build_arrow_field(c) for c in chosen], metadata={"tracekit.table": schema.name})


@functools.lru_cache(maxsize=1 << 10)
def _build_empty_table(schema: TableSchema, columns: tuple[str, ...] | None) -> pa.Table:
    return _build_arrow_schema(schema, columns).empty_table()


def _build_arrow_field(column: Column) -> pa.Field:
    import pyarrow as pa

    kinds = {"bool": pa.bool_(), "dictionary": pa.dictionary(pa.int32(), pa.string())}
    kind = kinds.get(column.type) or pa.type_for_alias(column.type)
    notes = {"doc": column.doc, "unit": column.unit, "references": column.references}
    return pa.field(column.name, kind, column.nullable, {k: v for k, v in notes.items() if v is not None})


class _ColumnMismatchError(Exception):
    """A column does not match its declaration. The arguments are the column name and the reason."""


def _cast_column(column: pa.ChunkedArray, field: pa.Field, declared: Column) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    def cast_values(values: pa.ChunkedArray) -> pa.ChunkedArray:
        if declared.type == "dictionary":
            return _dictionary_encode(values)
        return values if values.type == field.type else values.cast(field.type)

    try:
        cast = cast_values(column)
    except pa.ArrowInvalid as e:
        row = _find_first_invalid_row(column, cast_values)
        raise _ColumnMismatchError(field.name, f"cannot be cast to {field.type}: {e} (row {row})") from e
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as e:
        raise _ColumnMismatchError(field.name, f"cannot be cast to {field.type}: {e}") from e
    if not field.nullable and cast.null_count:
        row = pc.index(cast.is_null(), True).as_py()
        raise _ColumnMismatchError(field.name, f"is not nullable, but it has {cast.null_count} nulls (row {row})")
    if declared.values and (undeclared := _find_undeclared_values(cast, declared.values)):
        allowed = ", ".join(declared.values)
        row = pc.index(pc.is_in(cast.cast(pa.string()), pa.array(undeclared)), True).as_py()
        values = f"contains {', '.join(undeclared)}, but only these values are declared: {allowed}"
        raise _ColumnMismatchError(field.name, f"{values} (row {row})")
    return cast


def _find_first_invalid_row(column: pa.ChunkedArray, cast: Callable[[pa.ChunkedArray], object]) -> int:
    """Return the index of the first value that cannot be cast, by bisection."""
    import pyarrow as pa

    first, end = 0, len(column)
    while end - first > 1:
        middle = (first + end) // 2
        try:
            cast(column.slice(first, middle - first))
            first = middle
        except pa.ArrowInvalid:
            end = middle
    return first


def check_rows(data: pa.Table, schema: TableSchema, *, path: str | os.PathLike[str] | None = None) -> None:
    """Check that no two rows of a table have the same key, and that no row ends before it starts.

    Only columns that ``data`` has are checked.

    Raises:
        SchemaError: The table has such rows. The error names the column and the first of these rows, from 0.
    """
    import polars as pl

    frame = pl.DataFrame(data)
    rows: dict[str, pl.Expr] = {}
    if {"start_ns", "end_ns"} <= {*frame.columns}:
        rows["column 'end_ns' of table {} is less than 'start_ns'"] = pl.col("end_ns") < pl.col("start_ns")
    if {*schema.key} <= {*frame.columns}:
        columns = ", ".join(map(repr, schema.key))
        rows[f"the key {columns} of table {{}} is not unique"] = ~pl.struct(schema.key).is_first_distinct()
    for problem, is_invalid in rows.items():
        if (invalid := frame.select(pl.arg_where(is_invalid)).to_series()).len():
            what = f"{problem.format(repr(schema.name))} in {invalid.len()} rows (row {invalid[0]})"
            raise SchemaError(what, path=path)


def _dictionary_encode(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a string column as a dictionary-encoded column with int32 codes.

    If the column is already dictionary-encoded, its dictionaries are reused, and codes and strings are cast to the
    declared types. The column is encoded again only if a dictionary has nulls.
    """
    import pyarrow as pa

    kind = pa.dictionary(pa.int32(), pa.string())
    if pa.types.is_dictionary(column.type):
        if not any(c.dictionary.null_count for c in column.chunks):
            return column if column.type == kind else pa.chunked_array(map(_cast_dictionary, column.chunks), kind)
        column = column.cast(column.type.value_type)
    encoded = column.cast(pa.string()).dictionary_encode()
    return encoded if encoded.num_chunks else encoded.cast(kind)


def _cast_dictionary(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return a dictionary array whose codes are cast to int32 and whose values are cast to strings."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(array.indices.cast(pa.int32()), array.dictionary.cast(pa.string()))


def _find_undeclared_values(column: pa.ChunkedArray, allowed: Sequence[str]) -> list[str]:
    used = column.unique().drop_null().cast(column.type.value_type).to_pylist()
    return sorted({v for v in used if v not in allowed})


def _build_json_property(column: Column) -> dict[str, Any]:
    kind = _JSON_TYPES.get(column.type, "string")
    prop: dict[str, Any] = {"type": [kind, "null"] if column.nullable else kind, "description": column.doc}
    if column.values:
        prop["enum"] = [*column.values, None] if column.nullable else list(column.values)
    if column.type == "binary":
        prop["contentEncoding"] = "base16"
    if kind == "array":
        prop["items"] = {"type": "integer"}
    extras = {"unit": column.unit, "references": column.references, "arrow": column.type}
    return prop | {f"x-{k}": v for k, v in extras.items() if v is not None}


@functools.cache
def load_message_class(file: str, name: str) -> Any:
    """Return the class of a protobuf message that is declared in ``schemas/proto``.

    The compiled declarations are loaded into a separate descriptor pool. Generated code would not work with protobuf
    runtimes that are older than the compiler, and its message names could clash with those of other packages.

    Args:
        file: Name of the file in ``schemas/proto``, without its suffix.
        name: Name of the message.
    """
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_load_descriptor_pool(file).FindMessageTypeByName(f"tracekit.{file}.{name}"))


@functools.cache
def _load_descriptor_pool(file: str) -> DescriptorPool:
    from google.protobuf import descriptor_pb2, descriptor_pool

    compiled = descriptor_pb2.FileDescriptorSet.FromString((FOLDER / "proto" / f"{file}.binpb").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for part in compiled.file:
        pool.AddSerializedFile(part.SerializeToString())
    return pool
