"""The seam between a file of Nsight Systems and the declared tables: source tables, named as its exports name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

ROWID = "rowid"
"""The number of a row, which every source table has."""

Made = TypeVar("Made")


class Where(NamedTuple):
    """Rows in which a column has one of some values; with no values, rows in which it is not null."""

    column: str
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Request(Generic[Made]):
    """Columns of a table that are wanted.

    Attributes:
        table: One of the source tables.
        types: Columns and what they are read as: integers, reals, texts. A number that its type cannot hold leaves its
            column of the piece wider; a column that the file lacks is null.
        where: Condition for the rows.
        work: What to do with a piece; runs in several threads at once where there are several pieces.
        row_bytes: Memory that a row takes beside its columns, as Python objects do.
    """

    table: str
    types: Mapping[str, pa.DataType]
    where: Where | None
    work: Callable[[pa.Table], Made]
    row_bytes: int = 0


class Tables(Protocol):
    """An opened file as source tables.

    Attributes:
        path: The file.
        columns: Columns of each source table it has.
        hint: What to do about a damaged file.
    """

    path: Path
    hint: str
    columns: Mapping[str, tuple[str, ...]]

    def counts(self, wanted: Sequence[tuple[str, Where | None]]) -> list[int]:
        """Numbers of rows of tables that meet conditions; 0 if there is no such table."""
        ...

    def rowid(self, table: str, index: int, where: Where | None = None) -> int | None:
        """Number of the row at ``index`` among the rows of a table that meet a condition; None if there is none."""
        ...

    def pieces(self, requests: Sequence[Request[Made]]) -> Iterator[tuple[int, Made]]:
        """Read columns of tables, a piece of their rows at a time.

        Yields:
            Which request it is, and what its work made of a piece: those of one request in order, at least one, which
            may have no rows.

        Raises:
            CorruptTraceError: The file is damaged there.
        """
        ...

    def at_most(self, table: str) -> int:
        """About how many rows a table has at most: to set memory aside, which is taken as they come."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...
