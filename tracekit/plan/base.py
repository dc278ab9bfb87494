"""The interface through which the tables of a trace are read, and the conversion of tables to LazyFrames."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, cast

from tracekit import memory, schemas
from tracekit.forks import check_polars_can_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        """Read and cache columns of several tables, in as few passes over the file as its format allows."""

    @abstractmethod
    def release(self) -> None:
        """Free the cached columns and computed results."""

    def free_working_data(self) -> None:  # noqa: B027 - most tables have none
        """Free the data from which columns were computed. Cached columns are kept."""

    def counts(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of rows of the tables ``names``, by table name."""
        return {name: self.count(name) for name in names}


def compact_if_all_null(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column unchanged or, if all its values are null, an equal column that occupies no memory.

    The buffers of this column are zeros that are never written, for which the operating system provides no
    memory.
    """
    import pyarrow as pa

    rows, kind = len(column), column.type
    values = kind.index_type if pa.types.is_dictionary(kind) else kind
    if column.null_count < rows or not rows or not (pa.types.is_integer(values) or pa.types.is_floating(values)):
        return column
    nulls = pa.Array.from_buffers(
        values, rows, [_zero_buffer(-(-rows // 8)), _zero_buffer(rows * values.bit_width // 8)]
    )
    if values is not kind:
        nulls = pa.DictionaryArray.from_arrays(nulls, pa.array([], kind.value_type), ordered=kind.ordered)
    return pa.chunked_array([nulls], kind)


def _zero_buffer(size: int) -> pa.Buffer:
    """Return a buffer of zeros, whose memory is not allocated before it is written."""
    import numpy as np
    import pyarrow as pa

    return pa.py_buffer(np.zeros(size, np.uint8))


def to_frame(tables: Tables, name: str) -> pl.LazyFrame:
    """Return a table as a LazyFrame. Collecting it reads only the columns that the query uses."""
    from polars.io.plugins import register_io_source

    check_polars_can_run()
    schema = schemas.polars_schema(tables.schema(name))
    limit = memory.current_memory_limit()  # polars calls the function in a thread without the context of the caller

    def read(with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _: int | None):  # type: ignore[no-untyped-def]
        check_polars_can_run()
        with memory.limit_memory(limit):
            table = tables.read(name, list(schema) if with_columns is None else with_columns or list(schema)[:1])
            frame = _to_frame_without_copy(table if n_rows is None else table.slice(0, n_rows))
        yield frame if predicate is None else frame.filter(predicate)

    return register_io_source(read, schema=schema)


def _to_frame_without_copy(table: pa.Table) -> pl.DataFrame:
    """Convert a table to a frame. The chunks of a table that exceeds the memory limit are not joined."""
    import polars as pl

    if table.nbytes <= memory.memory_budget_bytes():
        return pl.DataFrame(table)
    return cast("pl.DataFrame", pl.from_arrow(table, rechunk=False))
