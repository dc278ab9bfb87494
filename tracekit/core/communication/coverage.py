"""Compute the total time that intervals cover before given times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray


def covered_time_before(times: pl.DataFrame, moments: pl.Series) -> NDArray[np.int64]:
    """Return, for each moment, the time in ns that intervals cover before it. The intervals are disjoint and sorted."""
    starts, ends, at = (s.to_numpy() for s in (times["start_ns"], times["end_ns"], moments))
    total = np.concatenate([[0], np.cumsum(ends - starts)])
    number = np.searchsorted(starts, at, side="right")
    last = np.maximum(number - 1, 0)
    beyond = np.maximum(ends[last] - at, 0) if len(ends) else np.zeros(len(at), np.int64)
    return total[number] - np.where(number > 0, beyond, 0)
