"""The interface between the file formats of Nsight Systems and the declared tables.

A format provides source tables, with the table and column names of nsys's exports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

ROWID = "rowid"
"""Name of the column of row numbers, which every source table has."""

Result = TypeVar("Result")


class Where(NamedTuple):
    """A condition on rows: a column has one of some values or, without values, is not null."""

    column: str
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Request(Generic[Result]):
    """A request to read columns of a source table.

    Attributes:
        table: Name of the source table.
        types: Columns, and the types that they are read as: integers, floats, strings. If a value does not fit, the
            column gets a wider type in that batch. A column that the file lacks is null.
        where: Condition for the rows.
        work: Function that is called with each batch, on several threads at once if there are several batches.
        row_bytes: Bytes of memory per row beside its columns, such as those of Python objects.
    """

    table: str
    types: Mapping[str, pa.DataType]
    where: Where | None
    work: Callable[[pa.Table], Result]
    row_bytes: int = 0


class Tables(Protocol):
    """The source tables of an opened file.

    Attributes:
        path: The file.
        columns: Columns of each of its source tables.
        hint: Hint of errors about a damaged file.
    """

    path: Path
    hint: str
    columns: Mapping[str, tuple[str, ...]]

    def counts(self, conditions: Sequence[tuple[str, Where | None]]) -> list[int]:
        """Return the number of rows of each table that meet a condition; 0 if there is no such table."""
        ...

    def rowid(self, table: str, index: int, where: Where | None = None) -> int | None:
        """Return the row number of the row at ``index`` of those that meet a condition; None if there is none."""
        ...

    def batches(self, requests: Sequence[Request[Result]]) -> Iterator[tuple[int, Result]]:
        """Read columns of several tables in batches.

        Yields:
            The index of a request, and what its ``work`` returned for a batch. The batches of one request come in
            order; there is at least one, which may have no rows.

        Raises:
            CorruptTraceError: The file is damaged.
        """
        ...

    def max_rows(self, table: str) -> int:
        """Return an upper bound of the number of rows of a table, for reserving memory."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...
