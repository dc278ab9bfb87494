"""Convert numpy arrays to polars columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

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
