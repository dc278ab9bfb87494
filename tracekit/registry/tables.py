"""The interface through which all tables are read, and the functions that read single tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, cast

from tracekit import schemas
from tracekit.errors import TracekitError
from tracekit.system import memory
from tracekit.system.forks import check_polars_can_run
from tracekit.system.threads import unlocked_property

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import polars as pl
    import pyarrow as pa

    from tracekit.schemas import TableSchema

_MANY_STRINGS, _ROWS_PER_STRING = 1 << 14, 8


class Tables(ABC):
    """The declared tables of a capture, a trace or a set of traces, by table name and column name.

    A table may have no rows. The functions of this module read single tables.
    """

    def schema(self, name: str) -> TableSchema:
        """Return the schema of a table.

        Raises:
            SchemaError: The table does not exist.
        """
        return schemas.table(name)

    @abstractmethod
    def count_many(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return the number of rows of several tables, by table name."""

    @abstractmethod
    def read_many(self, columns: Mapping[str, Sequence[str]]) -> Mapping[str, pa.Table]:
        """Return columns of several tables, by table name, with all rows in the order of the file.

        Args:
            columns: Names of the columns to read, by table name.
        """

    def close(self) -> None:  # noqa: B027 - tables without an open file have nothing to close
        """Close the file."""


class CachedTables(Tables):
    """Tables that keep the columns that were read or computed. Several threads may use them at the same time."""

    @abstractmethod
    def prefetch(self, columns: Mapping[str, Sequence[str]]) -> None:
        """Read the recorded columns that ``read_many`` needs, in as few passes over the file as its format allows.

        Columns that are computed from the recorded columns are not computed yet.
        """

    @unlocked_property
    def categories(self) -> dict[tuple[str, str], pl.Series]:
        """The columns with many distinct strings that were converted to Categorical, by table and column."""
        return {}

    def release(self) -> None:
        """Free the memory of cached columns and computed results."""
        self.categories.clear()

    def free_working_data(self) -> None:
        """Free the intermediate data from which columns were computed. The computed columns stay in memory."""


def count_rows(tables: Tables, name: str) -> int:
    """Return the number of rows of a table.

    Raises:
        SchemaError: The table does not exist.
    """
    tables.schema(name)
    return tables.count_many([name])[name]


def read_chunks(tables: Tables, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a table without unifying the dictionaries of its string columns, which is faster than ``read_table``.

    Each chunk of a string column may have its own dictionary.

    Args:
        tables: The tables.
        name: Name of the table.
        columns: Names of the columns to read. If None, all columns are read.

    Raises:
        SchemaError: The table or a column does not exist.
        CorruptTraceError: The file is damaged in this table.
    """
    return tables.read_many({name: _list_column_names(tables, name, columns)})[name]


def read_table(tables: Tables, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a table in which each string column has a single dictionary. The arguments are those of ``read_chunks``.

    Raises:
        SchemaError: The table or a column does not exist.
        CorruptTraceError: The file is damaged in this table.
    """
    return read_chunks(tables, name, columns).unify_dictionaries()


def prefetch(tables: Tables, columns: Mapping[str, Sequence[str] | None]) -> None:
    """Read and cache columns of several tables, in one pass over the file if its format allows.

    Tables that cache nothing, such as those of several ranks, are not read.

    Args:
        tables: The tables.
        columns: Names of the columns to read, by table name. The value None selects all columns of a table.

    Raises:
        SchemaError: A table or column does not exist.
        CorruptTraceError: The file is damaged in these tables.
    """
    if isinstance(tables, CachedTables):
        tables.prefetch({name: _list_column_names(tables, name, names) for name, names in columns.items()})


def _list_column_names(tables: Tables, name: str, columns: Sequence[str] | None) -> list[str]:
    schema = tables.schema(name)
    return schema.names if columns is None else [schema[c].name for c in columns]


def convert_names(frame: pl.LazyFrame, names: str) -> pl.LazyFrame:
    """Return a table whose columns of repeated strings have the type that ``names`` states.

    Args:
        frame: The table.
        names: ``categorical`` for Categorical, which the columns of the table have, or ``string`` for String.

    Raises:
        TracekitError: ``names`` has another value.
    """
    import polars as pl

    if names not in ("categorical", "string"):
        raise TracekitError(f"names={names!r} is unknown", hint="choose categorical or string")
    return frame.with_columns(pl.col(pl.Categorical).cast(pl.String)) if names == "string" else frame


def scan_table(tables: Tables, name: str, string_columns: Collection[str] = ()) -> pl.LazyFrame:
    """Return a table as a polars LazyFrame. Collecting the frame reads only the columns that the query uses.

    Args:
        tables: The tables.
        name: Name of the table.
        string_columns: Names of the columns to return as String instead of Categorical. If nearly all strings of a
            column differ, its conversion to Categorical takes ten times as long as to String.
    """
    import polars as pl
    from polars.io.plugins import register_io_source

    check_polars_can_run()
    schema = schemas.polars_schema(tables.schema(name)) | dict.fromkeys(string_columns, pl.String())
    limit = memory.get_memory_limit()  # polars calls the function in a thread without the context of the caller

    def read_batches(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        check_polars_can_run()
        with memory.limit_memory(limit):
            columns = list(schema) if with_columns is None else with_columns or list(schema)[:1]
            if string_columns or n_rows is not None:
                table = tables.read_many({name: columns})[name]
                frame = _convert_to_frame(table if n_rows is None else table.slice(0, n_rows), string_columns)
            else:
                frame = _read_frame(tables, name, columns)
        yield frame if predicate is None else frame.filter(predicate)

    return register_io_source(read_batches, schema=schema)


def _read_frame(tables: Tables, name: str, columns: Sequence[str]) -> pl.DataFrame:
    """Return columns of a table. A column with many distinct strings is converted to Categorical only once.

    Its conversion takes much longer than that of all other columns, because polars looks up each distinct string.
    """
    import polars as pl

    cache = tables.categories if isinstance(tables, CachedTables) else {}
    cached = [cache[name, c] for c in columns if (name, c) in cache]
    others = [c for c in columns if (name, c) not in cache]
    if not others:
        return pl.DataFrame(cached)
    table = tables.read_many({name: others})[name]
    frame = _convert_to_frame(table)
    cache.update({(name, c): frame[c] for c in others if _has_many_distinct_strings(table[c])})
    return frame.with_columns(cached).select(columns)


def _has_many_distinct_strings(column: pa.ChunkedArray) -> bool:
    """Return whether a column is to be converted only once: its codes then take little memory beside its strings."""
    import pyarrow as pa

    strings = len(column.chunk(0).dictionary) if pa.types.is_dictionary(column.type) and column.num_chunks else 0
    return strings >= max(_MANY_STRINGS, len(column) // _ROWS_PER_STRING)


def _convert_to_frame(table: pa.Table, string_columns: Collection[str] = ()) -> pl.DataFrame:
    """Return an Arrow table as a polars DataFrame. Chunks are joined only if the table fits into the memory budget.

    The columns ``string_columns`` are returned as String. Their strings share memory with the dictionaries.
    """
    import polars as pl

    strings = [
        _convert_to_string_series(column, table[column]) for column in table.column_names if column in string_columns
    ]
    if strings:
        others = table.drop_columns([column.name for column in strings])
        frame = pl.DataFrame(strings)
        if others.column_names:
            frame = frame.hstack(_convert_to_frame(others))
        return frame.select(table.column_names)
    if table.nbytes <= memory.compute_memory_budget():
        return pl.DataFrame(table)
    return cast("pl.DataFrame", pl.from_arrow(table, rechunk=False))


def _convert_to_string_series(name: str, column: pa.ChunkedArray) -> pl.Series:
    """Return a dictionary-encoded column as a String series that shares memory with the dictionaries."""
    import polars as pl

    chunks = [pl.Series(chunk.dictionary).gather(pl.Series(chunk.indices)) for chunk in column.chunks]
    return pl.concat([pl.Series(dtype=pl.String), *chunks], rechunk=False).alias(name)
