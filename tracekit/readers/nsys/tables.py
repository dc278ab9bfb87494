"""The interface between the Nsight Systems file formats and the declared tables of tracekit.

Each file format provides source tables. The tables and their columns have the names that nsys uses in exports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

ROWID = "rowid"
"""Name of the column of row numbers, which can be requested from every source table."""

FRAMES = "frames"
"""Name of the column of call stacks. The tables of call chains of a report have it instead of one row per frame.

A stack is binary data in an encoding of the file, which ``StackTables`` decodes. Equal stacks have equal bytes.
The stacks of a batch are dictionary-encoded in the order in which they first occur.
"""
Result = TypeVar("Result")


class Where(NamedTuple):
    """A filter that keeps the rows in which a column has one of several values.

    If no values are given, the filter keeps the rows in which the column is not null.
    """

    column: str
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnsRequest(Generic[Result]):
    """A request to read columns of a source table.

    Attributes:
        table: Name of the source table.
        types: Types of the columns to read, by name: integers, floats or strings. If a value of a batch does not fit an
            integer type, the column has the type int64 in that batch. All values of a column that the file lacks are
            null.
        where: Filter applied to the rows.
        convert: Function that converts a batch to a result. Several threads may call it at once.
        row_bytes: Bytes of memory to reserve per row in addition to its columns, for example for Python objects.
    """

    table: str
    types: Mapping[str, pa.DataType]
    where: Where | None
    convert: Callable[[pa.Table], Result]
    row_bytes: int = 0


class SourceTables(Protocol):
    """The source tables of an open file.

    Attributes:
        path: Path of the file.
        columns: Column names of each source table.
    """

    path: Path
    columns: Mapping[str, tuple[str, ...]]

    @property
    def hint(self) -> str:
        """Hint of the error that is raised if the file is damaged."""
        ...

    def count_rows(self, conditions: Sequence[tuple[str, Where | None]]) -> list[int]:
        """Return the number of matching rows for each pair of a table and a filter, or 0 for a missing table."""
        ...

    def find_rowid(self, table: str, index: int, where: Where | None = None) -> int | None:
        """Return the row number of the row at position ``index``, counted from 0, among the rows that match a filter.

        Return None if at most ``index`` rows match.
        """
        ...

    def read_batches(self, requests: Sequence[ColumnsRequest[Result]]) -> Iterator[tuple[int, Result]]:
        """Read columns of several tables in batches.

        Yields:
            The index of a request, and the result of its function ``convert`` for a batch. The batches of a request
            are in row order. Each request has at least one batch, which may have no rows.

        Raises:
            CorruptTraceError: The file is damaged.
        """
        ...

    def compute_max_rows(self, table: str) -> int:
        """Return an upper limit for the number of rows of a table. The limit is used to reserve memory."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class StackTables(SourceTables, Protocol):
    """The source tables of a file that stores the frames of each call chain in one column, ``FRAMES``."""

    def decode_stacks(self, table: str, stacks: pa.BinaryArray) -> pa.ListArray:
        """Decode stacks from the column ``FRAMES`` of a source table.

        Returns:
            One list of frames per stack, from the innermost frame to the outermost one. Frames are
            dictionary-encoded. A frame is a struct of 64-bit integers. Its fields have the column names of exports.

        Raises:
            Damage: A stack is invalid, or the frames take more memory than tracekit allows for the file size.
        """
        ...
