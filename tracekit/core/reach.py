"""Find the last interval before a place that reaches a time, however intervals cross: by a tree of maxima of ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Reach:
    """Ends of intervals in order of their starts, and the maxima of 2, 4, 8, … neighbours.

    Attributes:
        levels: The ends, then the maxima of pairs, then those of pairs of these; each level half as long.
    """

    levels: list[Numbers]

    @classmethod
    def of(cls, ends: pl.Series) -> Reach:
        """Prepare the ends of intervals, in order of their starts."""
        levels = [ends.to_numpy()]
        while len(levels[-1]) > 1:
            low = levels[-1]
            half = low[: len(low) // 2 * 2].reshape(-1, 2).max(axis=1)
            levels.append(np.append(half, low[-1]) if len(low) % 2 else half)
        return cls(levels)

    def last(self, before: pl.Series, at_least: pl.Series) -> pl.Series:
        """Find the last interval before a place whose end is not less than a time.

        Args:
            before: Places: rows of intervals, or their number; no nulls.
            at_least: A time for each place.

        Returns:
            n places in, n rows out; null where there is none.
        """
        end, time = before.to_numpy().astype(np.int64), at_least.to_numpy()
        node, level = np.full(len(end), -1), np.full(len(end), -1)
        for height, maxima in enumerate(self.levels):
            left = np.flatnonzero((level < 0) & (end % 2 == 1))
            hit = left[maxima[end[left] - 1] >= time[left]]
            node[hit], level[hit] = end[hit] - 1, height
            end //= 2
        for height in range(len(self.levels) - 2, -1, -1):
            inside = np.flatnonzero(level > height)
            right = np.minimum(2 * node[inside] + 1, len(self.levels[height]) - 1)
            node[inside] = np.where(self.levels[height][right] >= time[inside], right, 2 * node[inside])
        return pl.Series(node).replace(-1, None)
