"""Convert numpy arrays to polars columns, and write large columns to temporary files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracekit.system import memory, sorting

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


def create_nullable_series(
    values: npt.NDArray[Any], is_valid: Callable[[slice], npt.NDArray[np.bool_]] | None = None
) -> pl.Series:
    """Convert a numpy array of integers to an unnamed polars column with nulls.

    Args:
        values: The integers.
        is_valid: Function that returns, for a block of rows, whether each row keeps its value. The other rows become
            null. If no function is given, negative values become null.
    """
    import pyarrow as pa

    rows = len(values)

    def compute_packed_validity(block: slice) -> npt.NDArray[np.uint8]:
        here = slice(8 * block.start, min(8 * block.stop, rows))
        return np.packbits(values[here] >= 0 if is_valid is None else is_valid(here), bitorder="little")

    validity = sorting.map_blocks(compute_packed_validity, -(-rows // 8), np.uint8)
    kind = pa.from_numpy_dtype(values.dtype)
    return pl.Series(pa.Array.from_buffers(kind, rows, [pa.py_buffer(validity), pa.py_buffer(values)]))


def spill_frame(frame: pl.DataFrame) -> pl.DataFrame:
    """Write a large frame to temporary files, and return a frame that is memory-mapped from these files.

    A small frame is returned unchanged. Otherwise, each column of the result has a single chunk, because polars would
    copy all columns of a frame whose columns have different chunks.
    """
    if not memory.is_large(int(frame.estimated_size())):
        return frame
    return pl.DataFrame([_spill_column(column) for column in frame.iter_columns()])


def spill_series(values: pl.Series) -> pl.Series:
    """Write a large column of numbers to a temporary file, and return a column that is memory-mapped from this file.

    A small column is returned unchanged.
    """
    return spill_frame(values.to_frame()).to_series()


def _spill_column(values: pl.Series) -> pl.Series:
    """Write a column to a temporary file, and return a column that is memory-mapped from this file."""
    import pyarrow as pa

    (spilled,) = memory.spill_to_temporary_file(pa.table([values.rechunk().to_arrow()], [values.name])).columns
    return pl.Series(values.name, spilled, values.dtype)
