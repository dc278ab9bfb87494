"""Find the last row before a given row whose value is at least a given minimum, with a tree of maxima."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]


class MaximumTree(NamedTuple):
    """A column of integers, and the maxima of its blocks of 2, 4, 8, … consecutive values.

    Attributes:
        levels: One column per block size. The first level contains the integers, and each further level contains the
            maxima of pairs of values of the previous level, so it is half as long.
    """

    levels: list[Numbers]

    @classmethod
    def from_values(cls, values: pl.Series) -> MaximumTree:
        """Return the tree of maxima of a column of integers without nulls."""
        levels = [values.to_numpy()]
        while len(levels[-1]) > 1:
            below = levels[-1]
            pairs = below[: len(below) // 2 * 2].reshape(-1, 2).max(axis=1)
            levels.append(np.append(pairs, below[-1]) if len(below) % 2 else pairs)
        return cls(levels)

    def find_last_at_least(self, minimum: pl.Series, *, before: pl.Series) -> pl.Series:
        """Find the last row before a given row whose value is at least a given minimum.

        Args:
            minimum: The minimum value, one per search.
            before: The row before which each search ends. It may equal the number of rows, but must not be null.

        Returns:
            One row number per search. It is null if all earlier values are less than the minimum.
        """
        end, least = before.to_numpy().astype(np.int64), minimum.to_numpy()
        node, level = np.full(len(end), -1), np.full(len(end), -1)
        for height, maxima in enumerate(self.levels):
            left = np.flatnonzero((level < 0) & (end % 2 == 1))
            hit = left[maxima[end[left] - 1] >= least[left]]
            node[hit], level[hit] = end[hit] - 1, height
            end //= 2
        for height in range(len(self.levels) - 2, -1, -1):
            inside = np.flatnonzero(level > height)
            right = np.minimum(2 * node[inside] + 1, len(self.levels[height]) - 1)
            node[inside] = np.where(self.levels[height][right] >= least[inside], right, 2 * node[inside])
        return pl.Series(node).replace(-1, None)
