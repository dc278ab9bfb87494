"""The interface through which the tables of a trace are read, and the conversion of tables to LazyFrames."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.forks import check_polars

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

    def counts(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of rows of the tables ``names``, by table name."""
        return {name: self.count(name) for name in names}


def to_frame(tables: Tables, name: str) -> pl.LazyFrame:
    """Return a table as a LazyFrame. Collecting it reads only the columns that the query uses."""
    import polars as pl
    from polars.io.plugins import register_io_source

    check_polars()
    schema = schemas.polars_schema(tables.schema(name))

    def read(with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _: int | None):  # type: ignore[no-untyped-def]
        check_polars()
        table = tables.read(name, list(schema) if with_columns is None else with_columns or list(schema)[:1])
        frame = pl.DataFrame(table if n_rows is None else table.slice(0, n_rows))
        yield frame if predicate is None else frame.filter(predicate)

    return register_io_source(read, schema=schema)
