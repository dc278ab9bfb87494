"""Compute the depth and the root of each row of a forest, and combine values of the row and its ancestors.

A forest is represented by a column with the row number of each row's parent, which is null for a root. The functions
use pointer jumping: in each round, every row refers to an ancestor twice as far up as in the previous round. A forest
of depth d therefore takes about log2(d) rounds, each of which computes on whole columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.core.series import create_nullable_series
from tracekit.system import sorting
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Combine = Callable[[pl.Series, pl.Series], pl.Series]


def combine_with_ancestors(parent: pl.Series, values: pl.Series, combine: Combine) -> pl.Series:
    """Combine the value of each row with the values of all its ancestors.

    Args:
        parent: Row number of the parent of each row, null for a root.
        values: One value per row.
        combine: Associative function that combines two columns: the values of ancestors, and the values of the rows
            below them.

    Returns:
        One combined value per row, null on and below a cycle.
    """
    if len(parent) > sorting.BLOCK_ROWS and values.dtype.is_integer() and not values.null_count():
        return _combine_numbers(parent, values, combine)
    up = parent.cast(pl.UInt32)
    for _ in range(len(parent).bit_length()):
        if up.null_count() == len(up):
            return values
        values = combine(values.gather(up), values).zip_with(up.is_not_null(), values)
        up = up.gather(up)
    return values.zip_with(up.is_null(), pl.repeat(None, len(values), dtype=values.dtype, eager=True))


def _combine_numbers(parent: pl.Series, values: pl.Series, combine: Combine) -> pl.Series:
    """Return the result of ``combine_with_ancestors`` for numbers, replacing blocks of rows in place.

    The value and the reference of a row always belong together: the value combines the row with its ancestors below the
    row that it refers to. Rows may therefore use the results of the same round.
    """
    rows = len(parent)
    up = sorting.map_blocks(lambda block: parent[block].fill_null(-1).to_numpy(), rows, np.int64)
    combined = sorting.map_blocks(
        lambda block: values[block].to_numpy(), rows, values.to_physical().head(0).to_numpy().dtype
    )
    for _ in range(rows.bit_length()):
        is_done = True
        for block in sorting.iterate_row_blocks(rows):
            pending = np.flatnonzero(up[block] >= 0) + block.start
            if len(pending):
                is_done, upper = False, up[pending]
                both = (create_series(combined[numbers]) for numbers in (upper, pending))
                combined[pending] = combine(*both).to_numpy()
                up[pending] = up[upper]
        if is_done:
            return create_series(combined)
    return create_nullable_series(combined, lambda block: up[block] < 0)


def compute_depths(parent: pl.Series) -> pl.Series:
    """Return the depth of each row of a forest as Int32: 1 for a root, null on and below a cycle."""
    return sum_over_ancestors(parent, pl.repeat(1, len(parent), dtype=pl.Int32, eager=True))


def sum_over_ancestors(parent: pl.Series, values: pl.Series) -> pl.Series:
    """Return, for each row of a forest, the sum of the values of it and its ancestors (null on and below a cycle)."""
    return combine_with_ancestors(parent, values, lambda upper, lower: upper + lower)


def concat_strings_from_root(parent: pl.Series, strings: pl.Series) -> pl.Series:
    """Concatenate the strings of the ancestors of each row, from the root downwards, and the string of the row itself.

    Returns:
        One string per row, null on and below a cycle.
    """
    # The length of strings on a cycle would double in every round.
    on_cycle = compute_depths(parent).is_null()
    roots_only = parent.zip_with(~on_cycle, pl.repeat(None, len(parent), dtype=parent.dtype, eager=True))
    acyclic = strings.zip_with(~on_cycle, pl.repeat(None, len(strings), dtype=strings.dtype, eager=True))
    return combine_with_ancestors(roots_only, acyclic, lambda upper, lower: upper + lower)


def skip_middle_ancestors(parent: pl.Series, max_depth: int) -> tuple[pl.Series, pl.Series]:
    """Limit the depth of a forest: attach each row that is too deep to one of its ancestors.

    Args:
        parent: Row number of the parent of each row, null for a root.
        max_depth: Largest depth. A deeper row is attached to its ancestor at the depth ``max_depth`` - 1.

    Returns:
        The parent of each row in the limited forest, and whether ancestors of the row were skipped.
    """
    depth = compute_depths(parent)
    is_deep = (depth > max_depth).fill_null(value=False)
    if not is_deep.any():
        return parent, is_deep
    outer = find_nearest_matching_rows(parent, (depth < max_depth).fill_null(value=True))
    return parent.cast(pl.Int64).zip_with(~is_deep, outer), is_deep


def mark_flagged_rows_and_descendants(parent: pl.Series, flags: pl.Series) -> pl.Series:
    """Return, for each row of a forest, whether it or any of its ancestors is flagged (null on and below a cycle)."""
    return combine_with_ancestors(parent, flags, lambda upper, lower: upper | lower)


def find_roots(parent: pl.Series) -> pl.Series:
    """Return the row number of the root of each row of a forest (Int64), null on and below a cycle.

    A root is its own root.
    """
    return combine_with_ancestors(parent, pl.int_range(len(parent), eager=True), lambda upper, _: upper)


def find_nearest_matching_rows(parent: pl.Series, matches: pl.Series) -> pl.Series:
    """Return the nearest matching row of each row of a forest: the row itself, or its nearest matching ancestor.

    Args:
        parent: Row number of the parent of each row, null for a root.
        matches: Whether each row matches. It must not have nulls.

    Returns:
        One row number per row (Int64). It is null if neither the row nor any of its ancestors matches.
    """
    nearest = find_roots(_replace_with_null_unless(parent, ~matches))
    return _replace_with_null_unless(nearest, matches.gather(nearest))


def _replace_with_null_unless(row_numbers: pl.Series, condition: pl.Series) -> pl.Series:
    """Replace row numbers with null where a condition is not true."""

    def compute_row_numbers_with_null_marker(block: slice) -> npt.NDArray[np.int64]:
        here = row_numbers[block].cast(pl.Int64).fill_null(-1)
        return here.zip_with(condition[block].fill_null(value=False), pl.Series([-1])).to_numpy()

    return create_nullable_series(sorting.map_blocks(compute_row_numbers_with_null_marker, len(row_numbers), np.int64))
