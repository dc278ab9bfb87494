"""Determine which columns a computation reads, by running it on tables with one row."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

from polars.io.plugins import register_io_source

from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    import polars as pl

    Frames = Callable[[str], pl.LazyFrame]
    Reads = dict[str, list[str]]

_MAX_KNOWN = 256
_known: dict[Hashable, tuple[dict[str, pl.DataFrame], Reads]] = {}
"""The example tables that a computation requested and the columns that it reads, keyed by computation."""


def find_read_columns(
    compute: Callable[[Frames], object], get_example: Callable[[str], pl.DataFrame], *, cache_key: Hashable = None
) -> Reads:
    """Return the columns that a computation reads, by table.

    Args:
        compute: The computation. It receives a function that returns a table by name, and collects the tables. The
            columns that it reads must not depend on the rows. If it raises a TracekitError, the columns that it read
            before are returned.
        get_example: Function that returns a table with one row, given the name of the table. A table without rows is
            not sufficient, because polars does not read a table that is joined with an empty one.
        cache_key: A value that identifies the computation. The result is cached by this value for as long as
            ``get_example`` returns the same frames. If ``cache_key`` is None, the result is not cached.

    Returns:
        The names of the columns that are read, keyed by table, in the column order of the table. The tables are in the
        order in which they are first requested.
    """
    if cache_key is None:
        return _record_reads(compute, get_example)
    known = _known.get(cache_key)
    if known is not None and all(get_example(table) is frame for table, frame in known[0].items()):
        return known[1]
    examples: dict[str, pl.DataFrame] = {}

    def get_cached_example(table: str) -> pl.DataFrame:
        return examples.setdefault(table, get_example(table))

    reads = _record_reads(compute, get_cached_example)
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    _known[cache_key] = examples, reads
    return reads


def _record_reads(compute: Callable[[Frames], object], get_example: Callable[[str], pl.DataFrame]) -> Reads:
    recorder = ReadRecorder(get_example)
    with contextlib.suppress(TracekitError):
        compute(recorder.frame)
    return {
        table: [c for c in get_example(table).columns if c in columns] for table, columns in recorder.columns.items()
    }


class ReadRecorder:
    """Tables with one row that record which of their columns are read.

    Attributes:
        columns: The columns that were read, by table.
    """

    def __init__(self, get_example: Callable[[str], pl.DataFrame]) -> None:
        self.columns: dict[str, set[str]] = {}
        self._get_example = get_example

    def frame(self, table: str) -> pl.LazyFrame:
        """Return the table with a given name as a LazyFrame that records the columns that are read."""
        return register_io_source(
            functools.partial(self.record_and_read, table), schema=self._get_example(table).schema
        )

    def record_and_read(
        self,
        table: str,
        columns: list[str] | None,
        predicate: pl.Expr | None,
        limit: int | None,
        _batch_rows: int | None = None,
    ) -> Iterator[pl.DataFrame]:
        """Yield the columns that polars requests from a table (None for all columns), and record the request."""
        data = self._get_example(table)
        used = data.columns if columns is None else columns
        if used:
            self.columns.setdefault(table, set()).update(used)
        selected = data.select(used or data.columns[:1]).head(1 if limit is None else limit)
        yield selected if predicate is None else selected.filter(predicate)
