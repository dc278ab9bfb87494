"""Forests as columns of parent pointers: the row of each row's parent, null for a root.

All functions double pointers: each round looks twice as far up, so that a depth of d takes log2(d) rounds over whole
columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

    Combine = Callable[[pl.Series, pl.Series], pl.Series]


def combine_ancestors(parent: pl.Series, values: pl.Series, combine: Combine) -> pl.Series:
    """Combine the value of each row with those of all its ancestors.

    Args:
        parent: Row of the parent, or null.
        values: One value per row.
        combine: Associative function of two columns: values of upper rows, values of the rows below them.

    Returns:
        n values in, n values out; null on and below a cycle.
    """
    up = parent.cast(pl.UInt32)
    for _ in range(len(parent).bit_length()):
        if up.null_count() == len(up):
            return values
        values = combine(values.gather(up), values).zip_with(up.is_not_null(), values)
        up = up.gather(up)
    return values.zip_with(up.is_null(), pl.repeat(None, len(values), dtype=values.dtype, eager=True))


def depths(parent: pl.Series) -> pl.Series:
    """Return the number of rows from each row up to its root, 1 for a root: n rows in, n Int32 out; null on cycles."""
    return ancestor_sums(parent, pl.repeat(1, len(parent), dtype=pl.Int32, eager=True))


def ancestor_sums(parent: pl.Series, values: pl.Series) -> pl.Series:
    """Add up the values of each row and all its ancestors: n values in, n values out; null on and below a cycle."""
    return combine_ancestors(parent, values, lambda upper, lower: upper + lower)


def ancestor_strings(parent: pl.Series, strings: pl.Series) -> pl.Series:
    """Concatenate the strings of each row's ancestors, outermost first, and its own.

    Returns:
        n strings in, n strings out; null on and below a cycle.
    """
    # Strings on a cycle would double in every round.
    on_cycle = depths(parent).is_null()
    roots_only = parent.zip_with(~on_cycle, pl.repeat(None, len(parent), dtype=parent.dtype, eager=True))
    acyclic = strings.zip_with(~on_cycle, pl.repeat(None, len(strings), dtype=strings.dtype, eager=True))
    return combine_ancestors(roots_only, acyclic, lambda upper, lower: upper + lower)


def any_ancestor(parent: pl.Series, flags: pl.Series) -> pl.Series:
    """Return whether each row or any of its ancestors is flagged: n Booleans in, n Booleans out."""
    return combine_ancestors(parent, flags, lambda upper, lower: upper | lower)


def roots(parent: pl.Series) -> pl.Series:
    """Return the root of each row, a root being its own: n rows in, n rows out (Int64)."""
    return combine_ancestors(parent, pl.int_range(len(parent), eager=True), lambda upper, _: upper)


def nearest_ancestors(parent: pl.Series, matches: pl.Series) -> pl.Series:
    """Return the nearest matching row at or above each row.

    Args:
        parent: Row of the parent, or null.
        matches: Whether each row matches; no nulls.

    Returns:
        n rows in, n rows out (Int64); null where neither the row nor an ancestor matches.
    """
    nearest = roots(parent.zip_with(~matches, pl.repeat(None, len(parent), dtype=parent.dtype, eager=True)))
    return nearest.zip_with(matches.gather(nearest), pl.repeat(None, len(nearest), dtype=pl.Int64, eager=True))
