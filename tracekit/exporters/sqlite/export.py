"""Write the tables of a trace, or of several traces with the column ``rank``, to a SQLite database."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any

from tracekit import schemas as declarations
from tracekit.exporters.databases import DatabaseWriter, translate_errors
from tracekit.exporters.sqlite.keys import list_declared_foreign_keys
from tracekit.exporters.sqlite.views import build_view_queries, quote_identifier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl
    import pyarrow as pa

    from tracekit.exporters.sqlite.keys import Keys
    from tracekit.registry.interface import Progress
    from tracekit.schemas import Column, TableSchema

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
