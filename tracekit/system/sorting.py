"""Compute, group and sort large columns block by block, so that only a few blocks are in memory at a time.

Large results are arrays that are mapped from temporary files (``memory.allocate_zeros``). ``create_series`` converts
arrays to polars series without copying them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracekit.system import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt
    import polars as pl

    Array = np.ndarray[tuple[int], np.dtype[Any]]
    Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]

BLOCK_ROWS = 1 << 20
"""Maximum number of rows in a block."""
_ROWS_SORTED_AT_ONCE = 1 << 22
"""Number of rows up to which arrays that are not large are sorted without buckets."""
_UINT32_ROWS = 1 << 32
_MAX_BUCKETS = 1 << 12
_SAMPLES_PER_BUCKET = 64
_PACKED_BITS = 63
"""Bits of an integer into which a key and a row number are packed. The sign bit is not used."""
_RADIX_BYTES = 2
"""Size of the integers that numpy sorts in linear time."""


class SortedRows(NamedTuple):
    """Rows in the order of their keys.

    Attributes:
        order: Row numbers in the order of the keys, or None if the rows were already in this order.
        keys: The sorted keys.
    """

    order: Array | None
    keys: list[Array]


class GroupedRows(NamedTuple):
    """Rows ordered by group. The rows of a group are in their original order.

    Attributes:
        order: Row numbers, ordered by group.
        starts: Position in ``order`` of the first row of each group, followed by the number of rows.
    """

    order: Array
    starts: Numbers


def create_series(values: npt.NDArray[Any]) -> pl.Series:
    """Convert a NumPy array of numbers or Booleans to a polars series without a name.

    Unlike ``pl.Series`` and ``pa.array``, this function does not import ``numpy.ma``, which would take 10 ms.
    """
    import polars as pl
    import pyarrow as pa

    contiguous = np.ascontiguousarray(values)
    kind = pa.from_numpy_dtype(contiguous.dtype)
    buffer = np.packbits(contiguous, bitorder="little") if pa.types.is_boolean(kind) else contiguous
    return pl.Series(pa.Array.from_buffers(kind, len(contiguous), [None, pa.py_buffer(buffer)]))


def sort_and_deduplicate(values: Array) -> Array:
    """Sort an array of numbers in place, and return its distinct values.

    Unlike ``numpy.unique``, this function does not import ``numpy.ma``.
    """
    values.sort()
    is_first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=is_first[1:])
    return values[is_first]


def iterate_row_blocks(row_count: int) -> Iterator[slice]:
    """Yield slices of at most ``BLOCK_ROWS`` rows."""
    for start in range(0, row_count, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, row_count))


def choose_row_number_type(row_count: int) -> np.dtype[Any]:
    """Return the integer type for row numbers of a table with ``row_count`` rows: uint32 if possible, or int64."""
    return np.dtype(np.uint32 if row_count <= _UINT32_ROWS else np.int64)


def map_blocks(function: Callable[[slice], Array], row_count: int, dtype: np.dtype[Any] | type) -> Array:
    """Call a function for each block of rows, and return the results as one array."""
    result = memory.allocate_zeros(row_count, dtype)
    for block in iterate_row_blocks(row_count):
        result[block] = function(block)
    return result


def take(values: Array, row_numbers: Array) -> Array:
    """Return the values in the rows with the given numbers."""
    return map_blocks(lambda block: values[row_numbers[block]], len(row_numbers), values.dtype)


def group_row_numbers(compute_groups: Callable[[slice], Array], row_count: int, group_count: int) -> GroupedRows:
    """Return the row numbers, ordered by group. Rows of the same group keep their order.

    Args:
        compute_groups: Function that returns the group number, from 0, of each row in a block.
        row_count: Number of rows.
        group_count: Number of groups.
    """
    sizes = np.zeros(group_count, np.int64)
    for block in iterate_row_blocks(row_count):
        sizes += np.bincount(compute_groups(block), minlength=group_count)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    (order,) = _distribute_to_groups(compute_groups, row_count, starts, [])
    return GroupedRows(order, starts)


def sort_rows(*keys: Array) -> SortedRows:
    """Sort rows by one or more integer keys in ascending order. Rows with equal keys keep their order.

    The rows are first distributed to buckets by their first key. Each bucket is then sorted in memory. If many rows
    have the same first key, their bucket is larger than ``BLOCK_ROWS``. Up to ``_ROWS_SORTED_AT_ONCE`` rows are sorted
    without buckets if the memory limit allows it.
    """
    rows = len(keys[0])
    if is_sorted(*keys):
        return SortedRows(None, list(keys))
    if rows <= BLOCK_ROWS or (rows <= _ROWS_SORTED_AT_ONCE and not memory.is_large(keys[0].nbytes)):
        order = compute_stable_order(*keys)
        return SortedRows(order.astype(choose_row_number_type(rows)), [key[order] for key in keys])
    bounds = _choose_bucket_bounds(keys[0])

    def compute_buckets(block: slice) -> Array:
        return np.searchsorted(bounds, keys[0][block], side="right").astype(np.uint16)

    sizes = np.zeros(len(bounds) + 1, np.int64)
    for block in iterate_row_blocks(rows):
        sizes += np.bincount(compute_buckets(block), minlength=len(sizes))
    starts = np.concatenate([[0], np.cumsum(sizes)])
    order, *ordered = _distribute_to_groups(compute_buckets, rows, starts, keys)
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        within = compute_stable_order(*(key[start:stop] for key in ordered))
        for values in (order, *ordered):
            values[start:stop] = values[start:stop][within]
    return SortedRows(order, ordered)


def is_sorted(*keys: Array) -> bool:
    """Return whether rows are in ascending order of one or more keys."""
    rows = len(keys[0])
    return all(
        _is_ascending([key[max(block.start - 1, 0) : block.stop] for key in keys]) for block in iterate_row_blocks(rows)
    )


def compute_stable_order(*keys: Array) -> Array:
    """Return the row numbers in ascending order of one or more integer keys. Rows with equal keys keep their order."""
    order = _argsort_stably(keys[0])
    return _break_ties(order, keys) if len(keys) > 1 else order


def _break_ties(order: Array, keys: Sequence[Array]) -> Array:
    """Return row numbers in ascending order of all keys, given their order by the first key."""
    key = keys[0][order]
    is_tie = key[1:] == key[:-1]
    is_tied = np.append(is_tie, False) | np.append(False, is_tie)
    tied = np.flatnonzero(is_tied)
    if len(tied):
        rows, values = order[tied], key[tied]
        within = compute_stable_order(*(other[rows] for other in keys[1:]))
        order[tied] = rows[within[_argsort_stably(values[within])]]
    return order


def _is_ascending(keys: Sequence[Array]) -> bool:
    """Return whether the rows of a block are in ascending order of their keys."""
    key, *rest = keys
    before, after = key[:-1], key[1:]
    if not rest:
        return bool((before <= after).all())
    if (before > after).any():
        return False
    ties = np.flatnonzero(before == after)
    return all(_compare_consecutive_rows(rest, ties))


def _compare_consecutive_rows(keys: Sequence[Array], first_rows: Array) -> Iterator[bool]:
    """Yield for each key whether consecutive rows with equal earlier keys are in ascending order.

    Args:
        keys: The keys.
        first_rows: Row number of the first row of each pair.
    """
    for key in keys:
        before, after = key[first_rows], key[first_rows + 1]
        yield bool((before <= after).all())
        first_rows = first_rows[before == after]


def _argsort_stably(key: Array) -> Array:
    """Return the row numbers in ascending order of an integer key. Rows with equal keys keep their order.

    If the key and the row number fit into one integer, these integers are sorted, which is several times as fast as
    ``numpy.argsort``. They are sorted by merging, which takes little time if the rows are almost in order, as events
    in most captures are.
    """
    if not len(key):
        return np.zeros(0, np.int64)
    low, high, bits = int(key.min()), int(key.max()), (len(key) - 1).bit_length()
    if (high - low).bit_length() + bits > _PACKED_BITS:
        return np.argsort(key, kind="stable")
    packed = key.astype(np.int64)
    packed -= low
    packed <<= bits
    packed |= np.arange(len(key))
    packed.sort(kind="stable")
    packed &= (1 << bits) - 1
    return packed


def _choose_bucket_bounds(key: Array) -> Array:
    """Return the smallest values of all buckets except the first. Most buckets have at most ``BLOCK_ROWS`` rows.

    The bounds are quantiles of a sample of the values.
    """
    buckets = min(-(-2 * len(key) // BLOCK_ROWS), _MAX_BUCKETS)
    step = max(len(key) // (buckets * _SAMPLES_PER_BUCKET), 1)
    sample = np.sort(np.concatenate([key[block][::step] for block in iterate_row_blocks(len(key))]))
    return np.unique(sample[:: max(len(sample) // buckets, 1)])


def _distribute_to_groups(
    compute_groups: Callable[[slice], Array], row_count: int, starts: Numbers, columns: Sequence[Array]
) -> list[Array]:
    """Return arrays of the row numbers and of the values of each column, ordered by group.

    Args:
        compute_groups: Function that returns the group number of each row in a block.
        row_count: Number of rows.
        starts: Position of the first row of each group in the result, followed by the number of rows.
        columns: The columns, in the original order of the rows.
    """
    order = memory.allocate_zeros(row_count, choose_row_number_type(row_count))
    results = [memory.allocate_zeros(row_count, column.dtype) for column in columns]
    free = starts[:-1].copy()
    for block in iterate_row_blocks(row_count):
        group = compute_groups(block)
        within = np.argsort(group, kind="stable") if group.dtype.itemsize <= _RADIX_BYTES else _argsort_stably(group)
        sizes = np.bincount(group, minlength=len(free))
        targets = np.repeat(free - (np.cumsum(sizes) - sizes), sizes) + np.arange(len(group))
        order[targets] = within + block.start
        for result, column in zip(results, columns, strict=True):
            result[targets] = column[block][within]
        free += sizes
    return [order, *results]
