"""Number the combinations of values in several columns, to evaluate functions of them once per combination."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    Codes = np.ndarray[tuple[int], np.dtype[np.int64]]

_TABLE_SIZE = 1 << 16
"""Size of a table of codes that is always acceptable. Larger ones must not be larger than a few times the column."""
_TABLE_FACTOR = 4
_MAX_NUMBER = 1 << 62


def combinations(rows: pl.DataFrame, names: Sequence[str]) -> tuple[Codes, pl.DataFrame]:
    """Return a code for the combination of values in each row, and one row with the values of each code."""
    columns = rows.select(list(dict.fromkeys(names)))
    codes, count = _combination_codes(columns)
    examples = np.empty(count, np.int64)
    examples[codes] = np.arange(len(codes))
    return codes, columns[examples]


def _combination_codes(columns: pl.DataFrame) -> tuple[Codes, int]:
    """Return a code for the combination of values in each row, and the number of codes. All codes are in use."""
    codes, count = np.zeros(columns.height, np.int64), 1
    for column in columns.iter_columns():
        more, size = _column_codes(column)
        codes, count = (more, size) if count == 1 else _compact(codes * size + more, count * size)
    return codes, count


def _column_codes(column: pl.Series) -> tuple[Codes, int]:
    """Return a code for each value of a column, and the number of codes. All codes are in use."""
    physical = column.to_physical()
    low, high = (physical.min(), physical.max()) if physical.dtype.is_integer() else (None, None)
    if not isinstance(low, int) or not isinstance(high, int) or not -_MAX_NUMBER < low <= high < _MAX_NUMBER:
        encoded = pa.chunked_array([physical.to_arrow()]).combine_chunks().dictionary_encode("encode").indices
        return _compact(encoded.to_numpy().astype(np.int64), len(column) + 1)
    shifted = (physical.cast(pl.Int64, wrap_numerical=True) - (low - 1)).fill_null(0).to_numpy()
    return _compact(shifted, high - low + 2)


def _compact(codes: Codes, count: int) -> tuple[Codes, int]:
    """Number the distinct codes from 0, and return the new codes and how many there are."""
    if count > max(_TABLE_SIZE, _TABLE_FACTOR * len(codes)):
        return _sorted_codes(codes)
    is_used = np.zeros(count, np.bool_)
    is_used[codes] = True
    numbers = np.cumsum(is_used) - 1
    return numbers[codes], int(numbers[-1]) + 1


def _sorted_codes(codes: Codes) -> tuple[Codes, int]:
    """Number the distinct codes from 0 by sorting them."""
    distinct, inverse = np.unique(codes, return_inverse=True)
    return inverse.astype(np.int64), len(distinct)
