"""Assign an integer code to each combination of values in columns, so that each combination is formatted only once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.system.sorting import BLOCK_ROWS, create_series, iterate_row_blocks, map_blocks, sort_and_deduplicate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.exporters.timeline.blocks import BlockRows

    Codes = np.ndarray[tuple[int], np.dtype[np.integer[Any]]]
    Sizes = np.ndarray[tuple[int], np.dtype[np.int64]]

_TABLE_SIZE = 1 << 16
"""Size up to which lookup tables of codes are always used. Larger tables are used only if the column has many rows."""
_UINT32_CODES = 1 << 32
_MAX_NUMBER = 1 << 62
_MIN_COMBINATIONS = 64
"""Number of combinations that is always allowed, even if a table has few rows."""


class Combinations(NamedTuple):
    """The distinct combinations of values in the rows of a table.

    Attributes:
        codes: Code of the combination in each row. It depends on the codes of Categorical columns, which may differ
            between processes.
        examples: One row per combination, ordered by code.
        order: All codes, ordered by the last row that contains their combination.
    """

    codes: Codes
    examples: pl.DataFrame
    order: Codes


def find_distinct_combinations(rows: BlockRows, names: Sequence[str]) -> Combinations:
    """Return the distinct combinations of values in the given columns."""
    distinct = list(dict.fromkeys(names))
    codes, count = _compact_codes(*_compute_row_codes(rows, distinct))
    return Combinations(codes, *_select_example_rows(rows, distinct, codes, count))


class _TooManyCombinationsError(Exception):
    """Error that is raised if there are more combinations of values than allowed."""


class GroupCombinations(NamedTuple):
    """The combinations of values in the groups of columns that are used.

    Attributes:
        codes: Code of the combination in each row.
        examples: One row per combination, ordered by code.
        used_groups: Indexes of the groups that are used.
    """

    codes: Codes
    examples: pl.DataFrame
    used_groups: frozenset[int]


def assign_codes_to_combinations(rows: BlockRows, groups: Sequence[Sequence[str]]) -> GroupCombinations:
    """Assign a code to each combination of values in groups of columns. Groups whose values rarely repeat are omitted.

    Args:
        rows: The rows that contain the values.
        groups: Names of the columns of each group. The first group is always used. Another group is omitted if it would
            increase the number of combinations to more than a quarter of the number of rows (or 64 if that is larger).
    """
    codes, count = _create_zero_codes(rows.height), 1
    used: list[int] = []
    limit = max(_MIN_COMBINATIONS, rows.height // 4)
    for nth, names in enumerate(groups):
        with contextlib.suppress(_TooManyCombinationsError):
            most = limit if nth else None
            group_codes, group_count = _compact_codes(*_compute_row_codes(rows, names, most), most)
            combined = _combine_codes(codes, group_codes, group_count)
            codes, count = _compact_codes(combined, count * group_count, most)
            used.append(nth)
    columns = list(dict.fromkeys(name for nth in used for name in groups[nth]))
    examples, _ = _select_example_rows(rows, columns, codes, count)
    return GroupCombinations(codes, examples, frozenset(used))


class _LazyCodes(NamedTuple):
    """Codes that are computed in blocks.

    Attributes:
        rows: Number of rows.
        compute_block: Function that returns the codes of the rows in a block as 64-bit integers.
    """

    rows: int
    compute_block: Callable[[slice], Codes]

    def to_array(self, count: int) -> Codes:
        """Return the codes of all rows as an array of the smallest unsigned type for codes below ``count``."""
        return map_blocks(self.compute_block, self.rows, np.min_scalar_type(max(count - 1, 0)))


def _create_lazy_codes(codes: Codes) -> _LazyCodes:
    """Return the codes of an array as lazy codes, which are read in blocks."""
    return _LazyCodes(len(codes), lambda block: codes[block].astype(np.int64))


def _combine_codes(first: Codes, second: Codes, second_count: int) -> _LazyCodes:
    """Combine two codes per row into one. Different pairs of codes result in different codes.

    Args:
        first: One code per row.
        second: Another code per row.
        second_count: A number larger than all codes in ``second``.
    """
    return _LazyCodes(len(first), lambda block: first[block].astype(np.int64) * second_count + second[block])


def _create_zero_codes(row_count: int) -> Codes:
    """Return an array with the code 0 for each row, which takes almost no memory."""
    return np.broadcast_to(np.zeros(1, np.uint8), row_count)


def _compute_row_codes(rows: BlockRows, names: Sequence[str], limit: int | None = None) -> tuple[_LazyCodes, int]:
    """Return a code for the combination of values in each row, and a number larger than all codes.

    Raises:
        _TooManyCombinationsError: There are more combinations than ``limit``.
    """
    codes, count = _create_lazy_codes(_create_zero_codes(rows.height)), 1
    for name in names:
        codes, count = _combine_codes_with_column(codes, count, rows, name, limit)
    return codes, count


def _select_example_rows(rows: BlockRows, names: Sequence[str], codes: Codes, count: int) -> tuple[pl.DataFrame, Codes]:
    """Return the named columns of the last row with each code.

    Returns:
        A data frame with one row per code, ordered by code, and the codes ordered by their last rows.
    """
    examples = np.zeros(count, np.int64)
    for block in iterate_row_blocks(rows.height):
        examples[codes[block]] = np.arange(block.start, block.stop)
    frames = [rows.read_block(slice(0, 0), names)]
    order = np.argsort(examples, kind="stable")  # fast for rows that are almost in order
    ordered = examples[order]
    for block in iterate_row_blocks(rows.height):
        first, stop = np.searchsorted(ordered, [block.start, block.stop]).tolist()
        if first < stop:
            frames.append(rows.read_block(block, names)[create_series(ordered[first:stop] - block.start)])
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    return pl.concat(frames)[create_series(place)], order


def _combine_codes_with_column(
    codes: _LazyCodes, count: int, rows: BlockRows, name: str, limit: int | None
) -> tuple[_LazyCodes, int]:
    """Combine codes with the values of a column. Return the new code of each row and a number larger than all codes."""
    column_codes, column_count = _compute_column_codes(rows, name, limit)
    if count == 1 or column_count == 1:
        return (column_codes, column_count) if count == 1 else (codes, count)
    both = _LazyCodes(
        codes.rows, lambda block: codes.compute_block(block) * column_count + column_codes.compute_block(block)
    )
    if count * column_count <= _TABLE_SIZE:
        return both, count * column_count
    compacted, compacted_count = _compact_codes(both, count * column_count, limit)
    return _create_lazy_codes(compacted), compacted_count


def _compute_column_codes(rows: BlockRows, name: str, limit: int | None) -> tuple[_LazyCodes, int]:
    """Return a code for the value of each row of a column, and a number larger than all codes."""
    low, high, nulls, is_integer = _summarize_column(rows, name)
    if nulls == rows.height:
        return _create_lazy_codes(_create_zero_codes(rows.height)), 1
    if not is_integer or not -_MAX_NUMBER < low <= high < _MAX_NUMBER:
        return _compute_value_codes(rows, name)

    def shift_values(block: slice) -> Codes:
        values = _get_physical_values(rows.read_block(block, [name]).to_series()).cast(pl.Int64, wrap_numerical=True)
        codes = values - (low - (nulls > 0))
        return (codes.fill_null(0) if nulls else codes).to_numpy()

    codes, size = _LazyCodes(rows.height, shift_values), high - low + 1 + (nulls > 0)
    if size <= _TABLE_SIZE:
        return _create_lazy_codes(codes.to_array(size)), size
    compacted, size = _compact_codes(codes, size, limit)
    return _create_lazy_codes(compacted), size


class _ColumnSummary(NamedTuple):
    """Summary of the physical values of a column.

    Attributes:
        low: The smallest value, or 0 if the column has no integers.
        high: The largest value, or 0 if the column has no integers.
        null_count: Number of nulls.
        is_integer: Whether all values are integers.
    """

    low: int
    high: int
    null_count: int
    is_integer: bool


def _summarize_column(rows: BlockRows, name: str) -> _ColumnSummary:
    """Return a summary of a column, which is read in blocks."""
    extremes: list[Any] = []
    nulls, is_integer = 0, True
    for block in iterate_row_blocks(rows.height):
        values = _get_physical_values(rows.read_block(block, [name]).to_series())
        nulls += values.null_count()
        is_integer &= values.dtype.is_integer()
        if is_integer and values.null_count() < len(values):
            extremes += values.min(), values.max()
    return _ColumnSummary(min(extremes, default=0), max(extremes, default=0), nulls, is_integer)


def _get_physical_values(values: pl.Series) -> pl.Series:
    """Return the physical values of a column. An integer column is returned unchanged."""
    return values if values.dtype.is_integer() else values.to_physical()


def _compute_value_codes(rows: BlockRows, name: str) -> tuple[_LazyCodes, int]:
    """Return a code for the value of each row of a column of any type, and a number larger than all codes."""
    values = rows.read_block(slice(0, rows.height), [name]).to_series().to_physical()
    encoded = pa.chunked_array([values.to_arrow()]).combine_chunks().dictionary_encode("encode").indices
    compacted, size = _compact_codes(_create_lazy_codes(encoded.to_numpy()), rows.height + 1)
    return _create_lazy_codes(compacted), size


def _compact_codes(codes: _LazyCodes, count: int, limit: int | None = None) -> tuple[Codes, int]:
    """Replace codes with consecutive codes from 0 in the same order. Return the new codes and the number of codes.

    Raises:
        _TooManyCombinationsError: There are more codes than ``limit``.
    """
    if count > max(_TABLE_SIZE, codes.rows):
        return _compact_sparse_codes(codes, limit)
    is_used = np.zeros(count, np.bool_)
    for block in iterate_row_blocks(codes.rows):
        is_used[codes.compute_block(block)] = True
    size = int(is_used.sum())
    _check_limit(size, limit)
    numbers: Codes = np.cumsum(is_used, dtype=np.uint32 if count < _UINT32_CODES else np.int64)
    numbers = numbers - 1
    return _LazyCodes(codes.rows, lambda block: numbers[codes.compute_block(block)]).to_array(size), size


def _compact_sparse_codes(codes: _LazyCodes, limit: int | None) -> tuple[Codes, int]:
    """Return the same result as ``_compact_codes`` for codes that are too large for a lookup table."""
    distinct, pending = np.zeros(0, np.int64), 0
    parts = [distinct]
    for block in iterate_row_blocks(codes.rows):
        parts.append(create_series(codes.compute_block(block)).unique().to_numpy())
        pending += len(parts[-1])
        if pending > max(len(distinct), BLOCK_ROWS) or block.stop == codes.rows:
            distinct, pending = sort_and_deduplicate(np.concatenate(parts)), 0
            parts = [distinct]
            _check_limit(len(distinct), limit)
    numbers = _LazyCodes(codes.rows, lambda block: np.searchsorted(distinct, codes.compute_block(block)))
    return numbers.to_array(len(distinct)), len(distinct)


def _check_limit(size: int, limit: int | None) -> None:
    """Raise an error if the number of combinations exceeds ``limit``, unless the limit is None."""
    if limit is not None and size > limit:
        raise _TooManyCombinationsError
