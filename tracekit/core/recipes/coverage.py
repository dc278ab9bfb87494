"""Compute how long intervals cover the time before a timestamp or between two timestamps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray


class CoveredTime:
    """The time in which at least a given number of intervals overlap.

    Args:
        intervals: The columns ``start_ns`` and ``end_ns``. Intervals without an end are ignored.
        depth: Minimum number of overlapping intervals.
    """

    def __init__(self, intervals: pl.DataFrame, depth: int = 1) -> None:
        closed = intervals.select("start_ns", "end_ns").drop_nulls().filter(pl.col("end_ns") > pl.col("start_ns"))
        edges = np.concatenate([closed["start_ns"].to_numpy(), closed["end_ns"].to_numpy()])
        order = np.argsort(edges, kind="stable")  # fast, because starts are sorted and ends nearly are
        steps = np.repeat(np.array([1, -1]), closed.height)
        self._times = edges[order]
        self._is_covered = np.cumsum(steps[order]) >= depth
        elapsed = np.diff(self._times, append=self._times[-1:])
        self._until = np.concatenate([[0], np.cumsum(elapsed * self._is_covered)])

    def compute_covered_time_before(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the total covered time in ns before each of the given times, which are in ns."""
        if not len(self._times):
            return np.zeros(len(times), np.int64)
        row = np.searchsorted(self._times, times, side="right") - 1
        known = np.maximum(row, 0)
        running = (times - self._times[known]) * self._is_covered[known]
        return np.where(row < 0, 0, self._until[known] + running)

    def compute_covered_time_between(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the covered time in ns between each start and the corresponding end."""
        return self.compute_covered_time_before(ends) - self.compute_covered_time_before(starts)
