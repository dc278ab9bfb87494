"""The interface for reading the tables of a trace, and the conversion of tables to polars LazyFrames."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, cast

from tracekit import schemas
from tracekit.errors import TracekitError
from tracekit.system import memory
from tracekit.system.forks import check_polars_can_run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import polars as pl
    import pyarrow as pa

    from tracekit.schemas import TableSchema


class Tables(ABC):
    """Interface for reading the declared tables of a trace by table name and column name.

    A table may have no rows. Several threads may call the methods at the same time.
    """

    @abstractmethod
    def schema(self, name: str) -> TableSchema:
        """Return the schema of a table."""

    @abstractmethod
    def count(self, name: str) -> int:
        """Return the number of rows of a table."""

    @abstractmethod
    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of a table, with all rows in the order of the file."""

    @abstractmethod
    def prefetch(self, columns: Mapping[str, Sequence[str]]) -> None:
        """Read and cache columns of several tables, in as few passes over the file as its format allows.

        Args:
            columns: Names of the columns to read, by table name.
        """

    @abstractmethod
    def release(self) -> None:
        """Free the memory of cached columns and computed results."""

    def free_working_data(self) -> None:  # noqa: B027 - most tables have none
        """Free the intermediate data from which columns were computed. The computed columns stay in memory."""

    def counts(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of rows of each table in ``names``, by table name."""
        return {name: self.count(name) for name in names}


def compact_if_all_null(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column unchanged or, if all its values are null, an equal column that occupies no physical memory.

    Only columns of numbers and dictionary-encoded columns are replaced. The buffers of the new column are zeros that
    are never written, so the operating system allocates no memory for them.
    """
    import pyarrow as pa

    rows, kind = len(column), column.type
    values = kind.index_type if pa.types.is_dictionary(kind) else kind
    if column.null_count < rows or not rows or not (pa.types.is_integer(values) or pa.types.is_floating(values)):
        return column
    nulls = pa.Array.from_buffers(
        values, rows, [_allocate_zero_buffer(-(-rows // 8)), _allocate_zero_buffer(rows * values.bit_width // 8)]
    )
    if values is not kind:
        nulls = pa.DictionaryArray.from_arrays(nulls, pa.array([], kind.value_type), ordered=kind.ordered)
    return pa.chunked_array([nulls], kind)


def _allocate_zero_buffer(size: int) -> pa.Buffer:
    """Return a buffer of ``size`` zero bytes, for which memory is allocated only when the buffer is written."""
    import numpy as np
    import pyarrow as pa

    return pa.py_buffer(np.zeros(size, np.uint8))


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


def to_frame(tables: Tables, name: str, string_columns: Collection[str] = ()) -> pl.LazyFrame:
    """Return a table as a polars LazyFrame. Collecting the frame reads only the columns that the query uses.

    Args:
        tables: The tables of the trace.
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
            table = tables.read(name, list(schema) if with_columns is None else with_columns or list(schema)[:1])
            frame = _convert_to_frame(table if n_rows is None else table.slice(0, n_rows), string_columns)
        yield frame if predicate is None else frame.filter(predicate)

    return register_io_source(read_batches, schema=schema)


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
