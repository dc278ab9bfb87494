"""Compute the total time that intervals cover before given points in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray


def compute_covered_time_before(intervals: pl.DataFrame, times: pl.Series) -> NDArray[np.int64]:
    """Return the total time in ns that intervals cover before each of the given times.

    Args:
        intervals: Disjoint intervals, sorted by time, with the columns ``start_ns`` and ``end_ns``.
        times: Times in ns.
    """
    starts, ends, at = (s.to_numpy() for s in (intervals["start_ns"], intervals["end_ns"], times))
    total = np.concatenate([[0], np.cumsum(ends - starts)])
    number = np.searchsorted(starts, at, side="right")
    last = np.maximum(number - 1, 0)
    beyond = np.maximum(ends[last] - at, 0) if len(ends) else np.zeros(len(at), np.int64)
    return total[number] - np.where(number > 0, beyond, 0)
