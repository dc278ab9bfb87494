"""Assign a code to each combination of values in several columns, so that each combination is formatted only once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    Codes = np.ndarray[tuple[int], np.dtype[np.integer[Any]]]
    Sizes = np.ndarray[tuple[int], np.dtype[np.int64]]

_TABLE_SIZE = 1 << 16
"""Size up to which lookup tables of codes are always used. Larger tables are used only if the column has many rows."""
_TABLE_FACTOR = 4
_MAX_NUMBER = 1 << 62
_MIN_COMBINATIONS = 64
"""Number of combinations that is always allowed, even if a table has few rows."""


def distinct_combinations(rows: pl.DataFrame, names: Sequence[str]) -> tuple[Codes, pl.DataFrame]:
    """Return a code for the combination of values in each row, and a frame with one row per code."""
    columns = rows.select(list(dict.fromkeys(names)))
    codes, count = _compact_codes(*_row_codes(columns, columns.columns))
    return _narrow(codes, count), _example_rows(columns, codes, count)


def repeated_combinations(
    rows: pl.DataFrame, groups: Sequence[Sequence[str]]
) -> tuple[Codes, pl.DataFrame, frozenset[int]]:
    """Assign a code to each combination of values in groups of columns, except the groups whose values rarely repeat.

    Args:
        rows: The rows.
        groups: Names of columns by group. The first group is always used. Another group is not used if it would
            increase the number of combinations to more than a quarter of the number of rows.

    Returns:
        A code for each row, a frame with one row per code, and the positions of the groups that are used.
    """
    codes, count = np.zeros(rows.height, np.int64), 1
    used: list[int] = []
    limit = max(_MIN_COMBINATIONS, rows.height // 4)
    for nth, names in enumerate(groups):
        more, size = _compact_codes(*_row_codes(rows, names))
        if nth and size <= limit:
            more, size = _compact_codes(codes * size + more, count * size)
        if nth and size > limit:
            continue
        codes, count = more, size
        used.append(nth)
    columns = list(dict.fromkeys(name for nth in used for name in groups[nth]))
    return _narrow(codes, count), _example_rows(rows.select(columns), codes, count), frozenset(used)


def _narrow(codes: Sizes, count: int) -> Codes:
    """Convert codes below ``count`` to the smallest unsigned type that can represent them."""
    return codes.astype(np.min_scalar_type(max(count - 1, 0)))


def _row_codes(rows: pl.DataFrame, names: Sequence[str]) -> tuple[Sizes, int]:
    """Return a code for the combination of values in each row, and a number larger than all codes."""
    codes, count = np.zeros(rows.height, np.int64), 1
    for name in names:
        codes, count = _extend_codes(codes, count, rows[name])
    return codes, count


def _example_rows(columns: pl.DataFrame, codes: Sizes, count: int) -> pl.DataFrame:
    """Return one row per code, which contains the values that the code stands for, ordered by code."""
    examples = np.empty(count, np.int64)
    examples[codes] = np.arange(len(codes))
    return columns[examples]


def _extend_codes(codes: Sizes, count: int, column: pl.Series) -> tuple[Sizes, int]:
    """Extend combinations by a column, and return the new code of each row and a number larger than all codes."""
    more, size = _column_codes(column)
    if count == 1 or size == 1:
        return (more, size) if count == 1 else (codes, count)
    combined, size = codes * size + more, count * size
    return (combined, size) if size <= _TABLE_SIZE else _compact_codes(combined, size)


def _column_codes(column: pl.Series) -> tuple[Sizes, int]:
    """Return a code for the value of each row of a column, and a number larger than all codes."""
    physical = column.to_physical()
    if column.null_count() == len(column):
        return np.zeros(len(column), np.int64), 1
    low, high = (physical.min(), physical.max()) if physical.dtype.is_integer() else (None, None)
    if not isinstance(low, int) or not isinstance(high, int) or not -_MAX_NUMBER < low <= high < _MAX_NUMBER:
        encoded = pa.chunked_array([physical.to_arrow()]).combine_chunks().dictionary_encode("encode").indices
        return _compact_codes(encoded.to_numpy().astype(np.int64), len(column) + 1)
    has_nulls = column.null_count() > 0
    shifted = (physical.cast(pl.Int64, wrap_numerical=True) - (low - has_nulls)).fill_null(0).to_numpy()
    size = high - low + 1 + has_nulls
    return (shifted, size) if size <= _TABLE_SIZE else _compact_codes(shifted, size)


def _compact_codes(codes: Sizes, count: int) -> tuple[Sizes, int]:
    """Replace codes with consecutive codes from 0 in the same order. Return the new codes and the number of codes."""
    if count > max(_TABLE_SIZE, _TABLE_FACTOR * len(codes)):
        return _compact_codes_by_sorting(codes)
    is_used = np.zeros(count, np.bool_)
    is_used[codes] = True
    numbers = np.cumsum(is_used) - 1
    return numbers[codes], int(numbers[-1]) + 1


def _compact_codes_by_sorting(codes: Sizes) -> tuple[Sizes, int]:
    """Replace codes, which may be too large for a lookup table, with consecutive codes from 0 in the same order."""
    distinct, inverse = np.unique(codes, return_inverse=True)
    return inverse.astype(np.int64), len(distinct)
