"""Write the tables of a trace, or of several traces with the column ``rank``, to a SQLite database.

Determine which primary keys and foreign keys of the declared tables are valid in a trace.

A capture can refer to processes, threads or streams that it does not list. SQLite would report such references as
violations, so a foreign key is declared only if all rows satisfy it. A primary key is declared only if it is unique
and not null.
"""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit import schemas
from tracekit import schemas as declarations
from tracekit.exporters.databases import DatabaseWriter, translate_errors
from tracekit.registry.tables import scan_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl
    import pyarrow as pa

    from tracekit.registry.interface import Progress
    from tracekit.registry.tables import Tables
    from tracekit.schemas import Column, TableSchema
JOINED = {
    "processes": {"name": "process_name"},
    "threads": {"name": "thread_name"},
    "devices": {"name": "device_name"},
    "streams": {"name": "stream_name"},
    "api_calls": {"name": "api_call_name"},
    "nvtx_ranges": {"domain": "range_domain", "category": "range_category"},
    "ops": {"op_type": "op_type"},
}
"""Columns that a view of details adds, with their names in the view, by the table that contains the columns."""
_ACTIVITIES = dict(
    zip(
        schemas.list_tables("activity"),
        (("kernel", "name"), ("memcpy", "copy_kind"), ("memset", "memory_kind"), ("graph", None)),
        strict=True,
    )
)
"""Tables in the view ``gpu_activities``: the kind of their rows, and the column with the name."""
_SHARED = ("rank", "start_ns", "end_ns", "process_id", *schemas.get_key("stream"), "correlation_id")
_ADDED = ("api_call_id", "api_start_ns", "thread_id", "range_id", "range_name", "range_path", "op_id", "op_name")
SUMMARIES = {
    "kernel_summary": ("kernels", ("name",)),
    "memcpy_summary": ("memcpys", ("copy_kind",)),
    "api_call_summary": ("api_calls", ("api", "name")),
    "nvtx_range_summary": ("nvtx_ranges", ("domain", "kind", "name")),
    "osrt_call_summary": ("osrt_calls", ("name",)),
}
"""Views with one row per name: the table, and the columns by which its rows are grouped."""
FORMAT_VERSION = 1
"""Version of the database layout. It increases when queries for earlier versions no longer work."""
APPLICATION_ID = int.from_bytes(b"trkt")
"""Number in the header of the file that identifies databases of tracekit."""
NAME_COLUMNS = ("name", "short_name", "op_name", "text")
"""Columns whose values are also stored in the table ``names``, which supports full-text search."""
_BATCH_ROWS = 1 << 16
_TYPES = {"float64": "REAL", "string": "TEXT", "dictionary": "TEXT", "binary": "BLOB"}
_SMALL_TABLES = ("processes", "threads", "devices", "contexts", "streams")
"""Tables with few rows. Columns that refer to them need no index."""
_ANALYZED_ROWS = 1000
_TRIGRAMS = (3, 34)
"""First version of SQLite that can index parts of words. In older versions, searches find only whole words."""


@dataclass(frozen=True, slots=True, order=True)
class ForeignKey:
    """A reference from columns of a table to the key of a parent table.

    Attributes:
        table: Name of the table that contains the reference.
        columns: Names of the referring columns of this table.
        parent: Name of the parent table.
        key: Names of the key columns of ``parent``, in the order of the corresponding ``columns``.
    """

    table: str
    columns: tuple[str, ...]
    parent: str
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that are valid in a trace.

    Attributes:
        unique: Names of the tables whose declared key can be a primary key, because it is unique and not null.
        foreign: The foreign keys whose references all exist.
    """

    unique: frozenset[str]
    foreign: tuple[ForeignKey, ...]

    def add_leading_column(self, name: str) -> Keys:
        """Return the keys with an additional first column, such as ``rank`` in a database of several traces.

        All tables of the database have this column. A table whose declared key already contains a column of this name
        gets no primary key, and no foreign key refers to this table.
        """
        unique = frozenset(table for table in self.unique if name not in schemas.table(table).key)
        foreign = (ForeignKey(f.table, (name, *f.columns), f.parent, (name, *f.key)) for f in self.foreign)
        return Keys(unique, tuple(f for f in foreign if f.parent in unique))

    def get_foreign_keys(self, table: str) -> list[ForeignKey]:
        """Return the foreign keys of a table."""
        return [key for key in self.foreign if key.table == table]


def find_valid_keys(tables: Tables, schemas_by_name: Mapping[str, TableSchema]) -> Keys:
    """Return the primary and foreign keys of the given tables that are valid in a trace.

    Args:
        tables: The tables of the trace.
        schemas_by_name: The schemas of the tables by name.
    """
    unique = frozenset(name for name, schema in schemas_by_name.items() if _has_unique_key(tables, schema))
    candidates = [
        key for schema in schemas_by_name.values() for key in list_declared_foreign_keys(schema, schemas_by_name)
    ]
    return Keys(
        unique, tuple(key for key in candidates if key.parent in unique and _has_only_valid_references(tables, key))
    )


def intersect_keys(keys: Iterable[Keys]) -> Keys:
    """Return the primary and foreign keys that are valid in all traces, given the valid keys of each trace."""
    first, *others = keys
    unique = first.unique.intersection(*(k.unique for k in others))
    return Keys(unique, tuple(f for f in first.foreign if f.parent in unique and all(f in k.foreign for k in others)))


def list_declared_foreign_keys(schema: TableSchema, tables: Mapping[str, TableSchema]) -> list[ForeignKey]:
    """Return the foreign keys of a table, derived from the declared references of its columns.

    A column that refers to a key column of a parent table forms a foreign key if the table also has the other columns
    of this key. Each of these other columns must have the same name as the corresponding column of the parent, and must
    refer to that parent column or to the column to which the parent column refers.
    """
    keys = set()
    for column in schema.columns:
        parent_name, _, referenced = (column.references or "").partition(".")
        parent = tables.get(parent_name)
        if parent is None or referenced not in parent.key or (parent is schema and parent.key == (column.name,)):
            continue
        own = {c.name: c.references for c in schema.columns}
        columns = tuple(column.name if k == referenced else k for k in parent.key)
        if all(k == referenced or own.get(k, "") in (parent[k].references, f"{parent_name}.{k}") for k in parent.key):
            keys.add(ForeignKey(schema.name, columns, parent_name, parent.key))
    return sorted(keys)


def _has_unique_key(tables: Tables, schema: TableSchema) -> bool:
    """Return whether the declared key of a table is unique and not null in all rows."""
    import polars as pl

    keys = _read_columns(tables, schema.name, schema.key)
    if any(keys.null_count().row(0)):
        return False
    column = keys.to_series()
    if keys.width == 1 and column.dtype == pl.Int64 and bool((column.diff() > 0).all()):
        return True
    return keys.n_unique() == keys.height


def _has_only_valid_references(tables: Tables, key: ForeignKey) -> bool:
    """Return whether all values of a foreign key exist in the parent table. Rows with nulls are ignored."""
    rows = _read_columns(tables, key.table, key.columns).drop_nulls().unique()
    if rows.is_empty():
        return True
    parents = _read_columns(tables, key.parent, key.key)
    rows = rows.cast(dict(zip(rows.columns, parents.dtypes, strict=True)))
    return rows.join(parents, left_on=rows.columns, right_on=parents.columns, how="anti").is_empty()


def _read_columns(tables: Tables, table: str, columns: Sequence[str]) -> pl.DataFrame:
    """Read the given columns of a table. Categorical columns are cast to strings."""
    import polars as pl

    return scan_table(tables, table).select(columns).with_columns(pl.col(pl.Categorical).cast(pl.String)).collect()


@dataclass(frozen=True, slots=True)
class Details:
    """An SQL view of one table, with additional columns from the tables to which the table refers.

    Attributes:
        view: Name of the view.
        table: Name of the table.
    """

    view: str
    table: str


DETAILS = (
    Details("kernel_details", "kernels"),
    Details("memcpy_details", "memcpys"),
    Details("memset_details", "memsets"),
    Details("graph_launch_details", "graph_launches"),
    Details("sync_details", "syncs"),
    Details("api_call_details", "api_calls"),
    Details("nvtx_range_details", "nvtx_ranges"),
    Details("nvtx_mark_details", "nvtx_marks"),
    Details("osrt_call_details", "osrt_calls"),
    Details("memory_event_details", "memory_events"),
    Details("mpi_call_details", "mpi_calls"),
    Details("op_instance_details", "op_instances"),
)


def quote_identifier(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def build_view_queries(schemas: Mapping[str, TableSchema], keys: Keys) -> Iterator[tuple[str, str]]:
    """Yield the name and the SQL query of each view.

    Args:
        schemas: The schemas of the tables in the database.
        keys: The valid keys. Tables without a unique key are not joined, because the join would repeat rows.
    """
    for details in DETAILS:
        if details.table in schemas:
            yield details.view, _build_details_query(schemas, details.table, keys)
    if all(table in schemas for table in _ACTIVITIES):
        yield "gpu_activities", _build_activities_query(schemas)
    for view, (table, columns) in SUMMARIES.items():
        if table in schemas:
            yield view, _build_summary_query(table, columns)


def _build_details_query(schemas: Mapping[str, TableSchema], table: str, keys: Keys) -> str:
    schema = schemas[table]
    columns, joins = ["t.*"], []
    names = {name.lower() for name in schema.names}
    if {"start_ns", "end_ns"} <= names:
        columns.append("t.end_ns - t.start_ns AS duration_ns")
    if "api_start_ns" in names:
        columns.append("t.start_ns - t.api_start_ns AS launch_latency_ns")
    for number, key in enumerate(_list_joined_keys(schemas, schema, keys)):
        added = {c: new for c, new in JOINED[key.parent].items() if new not in names}
        names.update(added.values())
        if added:
            alias = f"j{number}"
            columns += [f"{alias}.{quote_identifier(c)} AS {quote_identifier(new)}" for c, new in added.items()]
            pairs = zip(key.columns, key.key, strict=True)
            condition = " AND ".join(
                f"{alias}.{quote_identifier(theirs)} = t.{quote_identifier(own)}" for own, theirs in pairs
            )
            joins.append(f"LEFT JOIN {quote_identifier(key.parent)} AS {alias} ON {condition}")
    return " ".join([f"SELECT {', '.join(columns)} FROM {quote_identifier(table)} AS t", *joins])  # noqa: S608 - names are quoted


def _list_joined_keys(schemas: Mapping[str, TableSchema], schema: TableSchema, keys: Keys) -> Iterator[ForeignKey]:
    """Yield the foreign keys of a table whose parent tables are joined in the details view of the table."""
    for key in list_declared_foreign_keys(schema, schemas):
        is_main = key.columns == key.key
        if is_main and key.parent in JOINED and key.parent in keys.unique and key.parent != schema.name:
            yield key


def _build_activities_query(schemas: Mapping[str, TableSchema]) -> str:
    return " UNION ALL ".join(_build_activity_query(schemas[table], *_ACTIVITIES[table]) for table in _ACTIVITIES)


def _build_activity_query(schema: TableSchema, kind: str, name_column: str | None) -> str:
    shared = [quote_identifier(c) for c in (*_SHARED, *_ADDED) if c in schema.names]
    number = quote_identifier(schemas.table(schema.name).key[0])
    named = "NULL" if name_column is None else quote_identifier(name_column)
    added = f"{number} AS activity_id, {named} AS name, end_ns - start_ns AS duration_ns"
    return f"SELECT '{kind}' AS kind, {added}, {', '.join(shared)} FROM {quote_identifier(schema.name)}"  # noqa: S608 - names are quoted


def _build_summary_query(table: str, columns: Sequence[str]) -> str:
    group = ", ".join(map(quote_identifier, columns))
    durations = ("sum", "total_ns"), ("avg", "average_ns"), ("min", "min_ns"), ("max", "max_ns")
    values = ", ".join(f"{function}(end_ns - start_ns) AS {name}" for function, name in durations)
    rows = f"FROM {quote_identifier(table)} WHERE end_ns IS NOT NULL GROUP BY {group} ORDER BY total_ns DESC"
    return f"SELECT {group}, count(*) AS count, {values} {rows}"


def write_database(
    path: Path,
    schemas: Mapping[str, TableSchema],
    keys: Keys,
    tables: Iterable[tuple[str, pa.Table]],
    progress: Progress,
    *,
    total_rows: int,
) -> None:
    """Write tables to a new SQLite database, with indexes, views and descriptions.

    Args:
        path: Path of the database, which does not exist yet.
        schemas: The schema of each table to create, by table name. A table is also created if it has no rows.
        keys: The primary and foreign keys to declare.
        tables: Pairs of a table name and rows of this table. Several pairs may have the same table name.
        progress: Function that is called with the number of written rows and the total number of rows.
        total_rows: Total number of rows of all tables, which is passed to ``progress``.

    Raises:
        ExportError: The database cannot be written.
    """
    counts, names = dict.fromkeys(schemas, 0), _NameCounter()
    with DatabaseWriter(path) as database:
        database.execute(
            f"PRAGMA application_id = {APPLICATION_ID}",
            f"PRAGMA user_version = {FORMAT_VERSION}",
            *(build_create_table_statement(schema, keys) for schema in schemas.values()),
        )
        for name, table in tables:
            for batch in table.to_batches(_BATCH_ROWS):
                database.insert(name, batch)
                counts[name] += batch.num_rows
                progress(sum(counts.values()), total_rows)
            names.add_names(name, table)
    with _open_connection(path) as connection:
        _add_indexes_and_views(connection, schemas, keys, counts, names.build_name_counts())


def build_create_table_statement(schema: TableSchema, keys: Keys) -> str:
    """Return the SQL statement that creates a table."""
    columns = [f"{quote_identifier(c.name)} {_choose_column_type(c)}" for c in schema.columns]
    if schema.name in keys.unique:
        columns.append(f"PRIMARY KEY ({_join_quoted_identifiers(schema.key)})")
    columns += [
        f"FOREIGN KEY ({_join_quoted_identifiers(k.columns)}) "
        f"REFERENCES {quote_identifier(k.parent)} ({_join_quoted_identifiers(k.key)})"
        for k in keys.get_foreign_keys(schema.name)
    ]
    return f"CREATE TABLE {quote_identifier(schema.name)} ({', '.join(columns)})"


def choose_index_columns(schema: TableSchema, schemas: Mapping[str, TableSchema]) -> list[tuple[str, ...]]:
    """Return the column names of each index to create for a table.

    The indexes cover the start or timestamp, one name column, and the references to tables not in ``_SMALL_TABLES``.
    """
    foreign = [k.columns for k in list_declared_foreign_keys(schema, schemas) if k.parent not in _SMALL_TABLES]
    times = [(c,) for c in ("start_ns", "timestamp_ns") if c in schema.names]
    names = [(c,) for c in ("short_name", "name") if c in schema.names][:1]
    return list(dict.fromkeys([*foreign, *times, *names]))


def _choose_column_type(column: Column) -> str:
    """Return the SQL type of a column, with ``NOT NULL`` if the column is not nullable.

    Float columns are always nullable, because SQLite stores NaN as null.
    """
    kind = _TYPES.get(column.type, "INTEGER")
    return kind if column.nullable or column.type == "float64" else f"{kind} NOT NULL"


def _add_indexes_and_views(
    connection: sqlite3.Connection,
    schemas: Mapping[str, TableSchema],
    keys: Keys,
    row_counts: Mapping[str, int],
    name_counts: pl.DataFrame,
) -> None:
    """Add descriptions, names, indexes, views, full-text search and statistics to a database with complete tables."""
    import sqlite_utils

    db: Any = sqlite_utils.Database(connection, execute_plugins=False)
    _write_descriptions(db, schemas, row_counts)
    types = {"name_id": int, "table_name": str, "column_name": str, "name": str, "rows": int}
    db["names"].create(types, pk="name_id")
    db["names"].insert_all(name_counts.iter_rows(named=True))
    db["names"].create_index(["name"], "names_name")
    for name, schema in schemas.items():
        for columns in choose_index_columns(schema, schemas) if row_counts[name] else ():
            db[name].create_index(columns, "_".join([name, *columns]))
    for view, query in build_view_queries(schemas, keys):
        db.create_view(view, query)
    db["names"].enable_fts(["name"], tokenize="trigram" if sqlite3.sqlite_version_info >= _TRIGRAMS else None)
    connection.execute(f"PRAGMA analysis_limit = {_ANALYZED_ROWS}")
    connection.execute("ANALYZE")
    connection.commit()


def _write_descriptions(db: Any, schemas: Mapping[str, TableSchema], row_counts: Mapping[str, int]) -> None:
    """Create the tables that describe the database, its tables and their columns."""
    metadata = {
        "format": "tracekit sqlite",
        "format_version": str(FORMAT_VERSION),
        "schema_version": str(declarations.SCHEMA_VERSION),
        "time_unit": "ns",
        "time_origin": "start of the trace",
    }
    db["meta"].insert_all([{"key": k, "value": v} for k, v in metadata.items()], pk="key")
    tables = [
        {"table_name": name, "rows": row_counts[name], "key_columns": ", ".join(schema.key), "description": schema.doc}
        for name, schema in schemas.items()
    ]
    db["meta_tables"].insert_all(tables, pk="table_name")
    columns = [
        {
            "table_name": name,
            "column_name": column.name,
            "type": column.type,
            "unit": column.unit,
            "refers_to": column.references,
            "description": column.doc,
        }
        for name, schema in schemas.items()
        for column in schema.columns
    ]
    db["meta_columns"].insert_all(columns, pk=("table_name", "column_name"))


class _NameCounter:
    """Counter of the rows with each distinct name, by table and column of ``NAME_COLUMNS``."""

    def __init__(self) -> None:
        self._frames: list[pl.DataFrame] = []

    def add_names(self, table_name: str, rows: pa.Table) -> None:
        """Add the names in the given rows of a table to the counts.

        Args:
            table_name: Name of the table.
            rows: Rows of this table.
        """
        import polars as pl

        for column in NAME_COLUMNS:
            if rows.num_rows and column in rows.column_names:
                values = pl.DataFrame(rows.select([column])).rename({column: "name"})
                counts = values.group_by("name").agg(rows=pl.len().cast(pl.Int64)).drop_nulls()
                labels = (pl.lit(table_name).alias("table_name"), pl.lit(column).alias("column_name"))
                self._frames.append(counts.select(*labels, pl.col("name").cast(pl.String), "rows"))

    def build_name_counts(self) -> pl.DataFrame:
        """Return the number of rows per table, column and name, with the ids ``name_id`` from 1."""
        import polars as pl

        types = {"table_name": pl.String, "column_name": pl.String, "name": pl.String, "rows": pl.Int64}
        groups = list(types)[:3]
        counts = pl.concat([pl.DataFrame(schema=types), *self._frames]).group_by(groups).agg(pl.col("rows").sum())
        return counts.sort(groups).with_row_index("name_id", offset=1)


@contextlib.contextmanager
def _open_connection(path: Path) -> Iterator[sqlite3.Connection]:
    """Connect to a database for fast writing without a journal, and close the connection when the context ends."""
    with translate_errors(path):
        connection = sqlite3.connect(path)
        try:
            for statement in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -65536"):
                connection.execute(f"PRAGMA {statement}")
            yield connection
        finally:
            connection.close()


def _join_quoted_identifiers(names: Sequence[str]) -> str:
    return ", ".join(map(quote_identifier, names))
