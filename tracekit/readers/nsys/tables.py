"""The interface between the file formats of Nsight Systems and the declared tables.

Each format provides source tables, with the table and column names of nsys exports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

ROWID = "rowid"
"""Name of the column of row numbers. Every source table has this column."""

Result = TypeVar("Result")


class Where(NamedTuple):
    """A filter that keeps the rows in which a column has one of several values.

    Without values, it keeps non-null rows.
    """

    column: str
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Request(Generic[Result]):
    """A request to read columns of a source table.

    Attributes:
        table: Name of the source table.
        types: Columns to read and their types: integers, floats or strings. If a value does not fit, the column has a
            wider type in that batch. A column that the file lacks is null.
        where: Filter applied to the rows.
        work: Function that is called with each batch, possibly in several threads at once.
        row_bytes: Bytes of memory per row in addition to its columns, for example for Python objects.
    """

    table: str
    types: Mapping[str, pa.DataType]
    where: Where | None
    work: Callable[[pa.Table], Result]
    row_bytes: int = 0


class Tables(Protocol):
    """The source tables of an open file.

    Attributes:
        path: Path of the file.
        columns: Column names of each source table.
        hint: Hint for errors about a damaged file.
    """

    path: Path
    hint: str
    columns: Mapping[str, tuple[str, ...]]

    def counts(self, conditions: Sequence[tuple[str, Where | None]]) -> list[int]:
        """Return the number of rows of each table that match its filter. The number is 0 if the table is missing."""
        ...

    def rowid(self, table: str, index: int, where: Where | None = None) -> int | None:
        """Return the row number of the row at ``index`` among the rows that match a filter.

        The result is None if there are too few rows.
        """
        ...

    def batches(self, requests: Sequence[Request[Result]]) -> Iterator[tuple[int, Result]]:
        """Read columns of several tables in batches.

        Yields:
            The index of a request, and the result of its ``work`` for a batch. The batches of one request are in order.
            Each request has at least one batch, which may have no rows.

        Raises:
            CorruptTraceError: The file is damaged.
        """
        ...

    def max_rows(self, table: str) -> int:
        """Return an upper limit for the number of rows of a table, for reserving memory."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...
