"""The seam between a file of Nsight Systems and the declared tables: source tables, named as its exports name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

ROWID = "rowid"
"""The number of a row, which every source table has."""

Made = TypeVar("Made")


class Where(NamedTuple):
    """Rows in which a column has one of some values; with no values, rows in which it is not null."""

    column: str
    values: tuple[int, ...] = ()


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

    def count(self, table: str, where: Where | None = None) -> int:
        """Number of rows of a table that meet a condition; 0 if there is no such table."""
        ...

    def rowid(self, table: str, index: int, where: Where | None = None) -> int | None:
        """Number of the row at ``index`` among the rows of a table that meet a condition; None if there is none."""
        ...

    def pieces(
        self,
        table: str,
        types: Mapping[str, pa.DataType],
        where: Where | None,
        work: Callable[[pa.Table], Made],
    ) -> Iterator[Made]:
        """Read columns of a table, a piece of its rows at a time, in order.

        Args:
            table: One of the source tables.
            types: Columns and what they are read as: integers, reals, texts. A number that its type cannot hold leaves
                its column of the piece wider; a column that the file lacks is null.
            where: Condition for the rows.
            work: What to do with a piece; runs in several threads at once where there are several pieces.

        Yields:
            What the work made of each piece; at least one, which may have no rows.

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
