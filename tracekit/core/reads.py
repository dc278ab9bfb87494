"""Determine which columns a computation reads, by running it on tables with one row."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from polars.io.plugins import register_io_source

from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    Frames = Callable[[str], pl.LazyFrame]
    Reads = dict[str, list[str]]


def reads_of(compute: Callable[[Frames], object], example: Callable[[str], pl.DataFrame]) -> Reads:
    """Return the columns that a computation reads, keyed by table.

    Args:
        compute: The computation. It takes a function that returns a table by name, and collects the tables that it
            reads. It must read the same columns whatever the rows are. If it raises a TracekitError, the columns that
            it has read until then count.
        example: Returns a table with one row. One row is needed because polars does not read what would be joined with
            an empty frame.

    Returns:
        The columns of each table, in the order of the table. The tables are in the order of their first use.
    """
    reads: dict[str, dict[str, None]] = {}

    def frame(table: str) -> pl.LazyFrame:
        data = example(table)

        def read(columns: list[str] | None, where: pl.Expr | None, rows: int | None, _: int | None):  # type: ignore[no-untyped-def]
            used = data.columns if columns is None else columns
            reads.setdefault(table, {}).update(dict.fromkeys(used))
            chosen = data.select(used or data.columns[:1])
            chosen = chosen if rows is None else chosen.head(rows)
            yield chosen if where is None else chosen.filter(where)

        return register_io_source(read, schema=data.schema)

    with contextlib.suppress(TracekitError):
        compute(frame)
    return {table: [c for c in example(table).columns if c in columns] for table, columns in reads.items() if columns}
