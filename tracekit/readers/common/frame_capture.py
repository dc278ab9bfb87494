"""Provide a capture whose tables are polars frames in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit import schemas
from tracekit.errors import CorruptTraceError, SchemaError
from tracekit.registry.interface import Capture

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

_IDS = {"nvtx_ranges": "range_id", "nvtx_marks": "mark_id", "counters": "counter_id", "kernels": "kernel_id"}
"""The column of each table that contains the row number, counted from 1, unless a frame has the column already."""


def convert_frame(name: str, frame: pl.DataFrame, columns: Sequence[str], path: Path, hint: str) -> pa.Table:
    """Return the requested columns of a frame as a declared table. Columns that the frame lacks are null.

    Args:
        name: Name of the table.
        frame: The frame, whose integers may be wider than declared.
        columns: Names of the requested columns.
        path: Path of the file, for error messages.
        hint: What to do if the file is damaged.

    Raises:
        CorruptTraceError: A value does not fit its column.
    """
    declared = schemas.table(name)
    if not frame.height:
        return schemas.arrow_schema(declared, list(columns)).empty_table()
    texts = {c: t for c, t in schemas.polars_schema(declared).items() if t in (pl.String, pl.Categorical)}
    present = [column for column in columns if column in frame.columns] or frame.columns[:1]
    frame = frame.select(pl.col(c).cast(texts[c]) if c in texts else pl.col(c) for c in present)
    try:
        return schemas.conform(frame.to_arrow(), declared, list(columns))
    except SchemaError as e:
        raise CorruptTraceError(e.message, path=path, table=name, hint=hint) from e


class FrameCapture(Capture):
    """A capture whose tables are frames, which may lack declared columns.

    Attributes:
        _tables: The frames by the name of their table.
    """

    def __init__(self) -> None:
        self._tables: dict[str, pl.DataFrame] = {}

    def names(self) -> list[str]:
        """Return the names of the tables that may have rows."""
        return list(self._tables)

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        return self._tables[name].height

    def read(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the requested columns of a table."""
        frame, declared = self._tables[name], schemas.arrow_schema(schemas.table(name), columns)
        if name in _IDS and _IDS[name] not in frame.columns:
            frame = frame.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias(_IDS[name]))
        missing = [pl.lit(None).alias(column) for column in columns if column not in frame.columns]
        return frame.with_columns(missing).select(columns).to_arrow().cast(declared)
