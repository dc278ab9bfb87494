"""Names as reports show them. Text columns are Categorical: a text is worked on once, however many rows have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

_SUFFIX = 6  # of "_v7000"


def relabelled(names: pl.Expr, change: Callable[[pl.Expr], pl.Expr]) -> pl.Expr:
    """Change each distinct text once: n Categorical in, n Categorical out; null stays null.

    Args:
        names: A Categorical column.
        change: Makes the new text from the old.
    """

    def change_distinct(column: pl.Series) -> pl.Series:
        old = column.unique().drop_nulls()
        new = pl.select(change(pl.lit(old).cast(pl.String)).cast(pl.Categorical)).to_series()
        return column.replace_strict(old, new, default=None, return_dtype=pl.Categorical)

    return names.map_batches(change_distinct, return_dtype=pl.Categorical)


def text_order(names: pl.Expr) -> pl.Expr:
    """Rank texts: n Categorical or String in, n numbers out that sort as the texts do; null stays null.

    Sorting by several columns copies every text; numbers are cheap.
    """

    def ranks(column: pl.Series) -> pl.Series:
        if column.dtype == pl.String:
            return column.rank("dense")
        ordered = column.unique().drop_nulls().sort()
        numbers = pl.int_range(ordered.len(), dtype=pl.UInt32, eager=True)
        return column.to_physical().replace_strict(ordered.to_physical(), numbers, return_dtype=pl.UInt32)

    return names.map_batches(ranks, return_dtype=pl.UInt32)


def without_version(name: pl.Expr) -> pl.Expr:
    """Cut ``_vNNNN`` off API names: ``cudaLaunchKernel_v7000``, but not ``cuMemcpyHtoDAsync_v2``."""
    has = name.str.tail(_SUFFIX).str.starts_with("_v") & (name.str.len_chars() >= _SUFFIX)
    return pl.when(has).then(name.str.head(-_SUFFIX)).otherwise(name)


def copy_name(kind: pl.Expr) -> pl.Expr:
    """Name copies by their direction: ``[CUDA memcpy Host-to-Device]``; null where that has no label."""
    return relabelled(kind, lambda label: pl.concat_str(pl.lit("[CUDA memcpy "), label, pl.lit("]")))


def set_name() -> pl.Expr:
    """Name memsets."""
    return pl.lit("[CUDA memset]").cast(pl.Categorical)


def range_tag() -> pl.Expr:
    """Name NVTX ranges as reports do, ``domain:text``, from the columns ``domain`` and ``name``: ``tag``, as text."""
    domain, name = (pl.col(c).cast(pl.String).fill_null("") for c in ("domain", "name"))
    return pl.concat_str(domain, pl.lit(":"), name).alias("tag")


def dimensions(prefix: str) -> pl.Expr:
    """Write the columns ``prefix_x``, ``_y``, ``_z`` as one text, each number right-aligned to four."""
    sizes = (pl.col(f"{prefix}_{axis}").cast(pl.String).str.pad_start(4) for axis in "xyz")
    return pl.concat_str(*sizes, separator=" ").alias(prefix)
