"""Convert numpy arrays to polars columns, and write large columns to temporary files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracekit.system import memory, sorting

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


def map_categories_expr(column: pl.Expr, function: Callable[[pl.Expr], pl.Expr]) -> pl.Expr:
    """Return an expression that replaces the strings of a Categorical column with the results of a function.

    The function is applied once to each distinct string. The result is a Categorical column of the same length. Nulls
    stay null.

    Args:
        column: A Categorical column.
        function: Maps an expression of strings to an expression of new strings.
    """

    def apply_function_to_categories(values: pl.Series) -> pl.Series:
        old = values.unique().drop_nulls()
        new = pl.select(function(pl.lit(old).cast(pl.String)).cast(pl.Categorical)).to_series()
        return select_by_string(new, old, values)

    return column.map_batches(apply_function_to_categories, return_dtype=pl.Categorical)


def match_categories_expr(column: pl.Expr, condition: Callable[[pl.Expr], pl.Expr]) -> pl.Expr:
    """Return an expression for whether the strings of a Categorical column satisfy a condition.

    The condition is evaluated once for each distinct string. The result is false for nulls.

    Args:
        column: A Categorical column.
        condition: Maps an expression of strings to an expression of booleans.
    """

    def evaluate_condition_on_categories(values: pl.Series) -> pl.Series:
        distinct = values.unique().drop_nulls()
        matches = pl.select(condition(pl.lit(distinct).cast(pl.String))).to_series()
        return select_by_string(matches, distinct, values).fill_null(value=False)

    return column.map_batches(evaluate_condition_on_categories, return_dtype=pl.Boolean)


def string_ranks_expr(column: pl.Expr) -> pl.Expr:
    """Return an expression for the rank of each string among the distinct strings of a column.

    The column may be Categorical or String, and the ranks are UInt32. Nulls stay null. Sorting by ranks gives the same
    order as sorting by the strings, but does not copy every string.
    """

    def rank_distinct_strings(values: pl.Series) -> pl.Series:
        if values.dtype == pl.String:
            return values.rank("dense")
        ordered = values.unique().drop_nulls().sort()
        numbers = pl.int_range(ordered.len(), dtype=pl.UInt32, eager=True)
        return select_by_string(numbers, ordered, values)

    return column.map_batches(rank_distinct_strings, return_dtype=pl.UInt32)


def decode_categories_expr(column: pl.Expr) -> pl.Expr:
    """Return an expression for Categorical columns as String. Equal strings of a column share memory."""
    return column.map_batches(decode_categories, return_dtype=pl.String)


def decode_categories(values: pl.Series) -> pl.Series:
    """Return a Categorical column as String.

    Rows with equal strings share the memory of the string, whereas a cast copies the string for each row.
    """
    distinct = values.unique().drop_nulls()
    if 2 * len(distinct) > len(values):
        return values.cast(pl.String)
    return select_by_string(distinct.cast(pl.String), distinct, values)


def select_by_string(results: pl.Series, distinct: pl.Series, values: pl.Series) -> pl.Series:
    """Return the result of the string in each row of a Categorical column, or null if there is none.

    It is looked up by the code of the string, which is ten times as fast as a join or ``replace_strict``.

    Args:
        results: One result per distinct string.
        distinct: Distinct strings without nulls, Categorical or String.
        values: The column, Categorical or String.
    """
    codes, keys = (s.cast(pl.Categorical).to_physical() for s in (distinct, values))
    size = 1 + max(int(c.max() or 0) for c in (codes, keys))  # type: ignore[arg-type]
    row_of_code = pl.Series([None], dtype=pl.UInt32).new_from_index(0, size)
    row_of_code = row_of_code.scatter(codes, pl.int_range(len(codes), dtype=pl.UInt32, eager=True))
    return results.gather(row_of_code.gather(keys)).alias(values.name)


def create_nullable_series(
    values: npt.NDArray[Any], is_valid: Callable[[slice], npt.NDArray[np.bool_]] | None = None
) -> pl.Series:
    """Convert a numpy array of integers to an unnamed polars column with nulls.

    Args:
        values: The integers.
        is_valid: Function that returns, for a block of rows, whether each row keeps its value. The other rows become
            null. If no function is given, negative values become null.
    """
    import pyarrow as pa

    rows = len(values)

    def compute_packed_validity(block: slice) -> npt.NDArray[np.uint8]:
        here = slice(8 * block.start, min(8 * block.stop, rows))
        return np.packbits(values[here] >= 0 if is_valid is None else is_valid(here), bitorder="little")

    validity = sorting.map_blocks(compute_packed_validity, -(-rows // 8), np.uint8)
    kind = pa.from_numpy_dtype(values.dtype)
    return pl.Series(pa.Array.from_buffers(kind, rows, [pa.py_buffer(validity), pa.py_buffer(values)]))


def compute_frame_in_blocks(compute: Callable[[slice], pl.DataFrame], row_count: int) -> pl.DataFrame:
    """Compute a frame block by block, and return it with its columns in temporary files if they are large.

    Args:
        compute: Function that returns the rows for a block of row numbers, which are at most as many as the block has.
            All columns are integers without nulls.
        row_count: Number of rows that are computed block by block.
    """
    if row_count <= sorting.BLOCK_ROWS:
        return compute(slice(0, row_count))
    columns: dict[str, npt.NDArray[Any]] = {}
    count = 0
    for block in sorting.iterate_row_blocks(row_count):
        rows = compute(block)
        here = slice(count, count := count + rows.height)
        for values in rows.iter_columns():
            array = values.to_numpy()
            if values.name not in columns:
                columns[values.name] = memory.allocate_zeros(row_count, array.dtype)
            columns[values.name][here] = array
    return pl.DataFrame([sorting.create_series(column[:count]).alias(name) for name, column in columns.items()])


def map_frame_blocks(compute: Callable[[slice], pl.DataFrame], row_count: int) -> pl.DataFrame:
    """Compute a frame block by block, and return it with large blocks in temporary files.

    Unlike ``compute_frame_in_blocks``, this function is for columns of any type, and for any number of rows per block.
    """
    if row_count <= sorting.BLOCK_ROWS:
        return compute(slice(0, row_count))
    blocks = [spill_frame(compute(block)) for block in sorting.iterate_row_blocks(row_count)]
    return pl.concat(blocks, rechunk=False)


def sort_frame(frame: pl.DataFrame, *keys: npt.NDArray[Any]) -> pl.DataFrame:
    """Sort a frame by one or more arrays of integers, and return it with large columns in temporary files.

    Rows with equal keys keep their order. Each column of the result has a single chunk.
    """
    order = sorting.sort_rows(*keys).order
    if order is None:
        return spill_frame(frame)
    rows = sorting.create_series(order)
    return pl.DataFrame([spill_series(column.gather(rows)) for column in frame.iter_columns()])


def gather_in_blocks(values: pl.Series, row_numbers: pl.Series) -> pl.Series:
    """Return the values in the rows with the given numbers, which may be null, like ``Series.gather``.

    Many integers are gathered block by block, and stored in a temporary file if they are large.
    """
    if len(row_numbers) <= sorting.BLOCK_ROWS or not values.dtype.is_integer():
        return values.gather(row_numbers)
    is_valid = memory.allocate_zeros(len(row_numbers), np.bool_)

    def gather_block(block: slice) -> npt.NDArray[Any]:
        gathered = values.gather(row_numbers[block])
        is_valid[block] = gathered.is_not_null().to_numpy()
        return gathered.fill_null(0).to_numpy()

    result = sorting.map_blocks(gather_block, len(row_numbers), values[:0].to_numpy().dtype)
    return create_nullable_series(result, lambda block: is_valid[block]).alias(values.name)


def spill_frame(frame: pl.DataFrame) -> pl.DataFrame:
    """Write a large frame to temporary files, and return a frame that is memory-mapped from these files.

    A small frame is returned unchanged. Otherwise, each column of the result has a single chunk, because polars would
    copy all columns of a frame whose columns have different chunks.
    """
    if not memory.is_large(int(frame.estimated_size())):
        return frame
    return pl.DataFrame([_spill_column(column) for column in frame.iter_columns()])


def spill_series(values: pl.Series) -> pl.Series:
    """Write a large column of numbers to a temporary file, and return a column that is memory-mapped from this file.

    A small column is returned unchanged.
    """
    return spill_frame(values.to_frame()).to_series()


def _spill_column(values: pl.Series) -> pl.Series:
    """Write a column to a temporary file, and return a column that is memory-mapped from this file."""
    import pyarrow as pa

    (spilled,) = memory.spill_to_temporary_file(pa.table([values.rechunk().to_arrow()], [values.name])).columns
    return pl.Series(values.name, spilled, values.dtype)
