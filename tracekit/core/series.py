"""Convert numpy arrays to polars columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracekit import memory

if TYPE_CHECKING:
    import numpy.typing as npt


def series_from_array(values: npt.NDArray[Any]) -> pl.Series:
    """Convert a numpy array of numbers to a polars column without a name.

    Unlike ``pl.Series`` and ``pa.array``, this function does not import ``numpy.ma``, which would take 10 ms.
    """
    import pyarrow as pa

    contiguous = np.ascontiguousarray(values)
    kind = pa.from_numpy_dtype(contiguous.dtype)
    return pl.Series(pa.Array.from_buffers(kind, len(contiguous), [None, pa.py_buffer(contiguous)]))


def spill_frame(frame: pl.DataFrame) -> pl.DataFrame:
    """Return an equal frame whose columns of numbers are mapped from temporary files if they are large.

    Each column of the result has a single chunk. Otherwise, polars would copy all columns of a frame whose columns have
    different chunks.
    """
    if not memory.is_large(int(frame.estimated_size())):
        return frame
    return pl.DataFrame([_spill_column(column) for column in frame.iter_columns()])


def spill_series(values: pl.Series) -> pl.Series:
    """Return an equal column of numbers that is mapped from a temporary file if it is large."""
    return spill_frame(values.to_frame()).to_series()


def _spill_column(values: pl.Series) -> pl.Series:
    """Return an equal column that is mapped from a temporary file."""
    import pyarrow as pa

    (spilled,) = memory.spill_to_temporary_file(pa.table([values.rechunk().to_arrow()], [values.name])).columns
    return pl.Series(values.name, spilled, values.dtype)
