"""Format names as nsys prints them: API functions, memory operations, NVTX ranges, grid and block sizes, addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.makers import is_of_other_maker
from tracekit.core.series import map_categories_expr

if TYPE_CHECKING:
    from tracekit.core.correlate import Frames

CUDA = "CUDA "
"""Start of the labels of nsys."""
_SUFFIX_LENGTH = 6  # length of a version such as "_v7000"
_HEX_DIGITS = [f"{n:X}" for n in range(16)]
_DIGITS = 16


def strip_api_version_expr(name: pl.Expr) -> pl.Expr:
    """Return an expression that removes versions with four digits from API names such as ``cudaLaunchKernel_v7000``."""
    has_version = name.str.tail(_SUFFIX_LENGTH).str.starts_with("_v") & (name.str.len_chars() >= _SUFFIX_LENGTH)
    return pl.when(has_version).then(name.str.head(-_SUFFIX_LENGTH)).otherwise(name)


def read_runtime_prefix(frames: Frames) -> str:
    """Return ``CUDA`` and a space, or an empty string if the GPUs are known to be of other makers than NVIDIA."""
    return "" if is_of_other_maker(frames) else CUDA


def memcpy_label_expr(kind: pl.Expr, prefix: str = CUDA) -> pl.Expr:
    """Return an expression for nsys's label of a memory copy, such as ``[CUDA memcpy Host-to-Device]``.

    The label is null if the kind is null, as in nsys, which omits such copies. Other profilers record copies of unknown
    kind, whose label is ``[memcpy]``.

    Args:
        kind: The kind of the copy.
        prefix: The result of ``read_runtime_prefix``.
    """
    named = map_categories_expr(kind, lambda label: pl.concat_str(pl.lit(f"[{prefix}memcpy "), label, pl.lit("]")))
    return named if prefix else named.fill_null(pl.lit("[memcpy]", pl.Categorical))


def memset_label_expr(prefix: str = CUDA) -> pl.Expr:
    """Return an expression for nsys's label of memory sets, ``[CUDA memset]``."""
    return pl.lit(f"[{prefix}memset]").cast(pl.Categorical)


def range_tag_expr() -> pl.Expr:
    """Return an expression for nsys's label of an NVTX range, ``domain:name``, as the Categorical column ``tag``.

    The label is formed once for each distinct pair of a domain and a name.
    """
    keys = ["domain", "name"]

    def join_names(ranges: pl.Series) -> pl.Series:
        rows = ranges.struct.unnest().cast(pl.Categorical)
        domain, name = (pl.col(c).cast(pl.String).fill_null("") for c in keys)
        tags = rows.unique().with_columns(tag=pl.concat_str(domain, pl.lit(":"), name).cast(pl.Categorical))
        return rows.join(tags, on=keys, how="left", maintain_order="left", nulls_equal=True)["tag"]

    return pl.struct(keys).map_batches(join_names, return_dtype=pl.Categorical).alias("tag")


def format_dimensions_expr(prefix: str) -> pl.Expr:
    """Return an expression that joins the sizes of a grid or block into one string, each padded to four characters.

    ``prefix`` is ``grid`` or ``block``. The sizes are in the columns ``{prefix}_x``, ``{prefix}_y`` and ``{prefix}_z``.
    """
    sizes = (pl.col(f"{prefix}_{axis}").cast(pl.String).str.pad_start(4) for axis in "xyz")
    return pl.concat_str(*sizes, separator=" ").alias(prefix)


def format_hexadecimal_expr(values: pl.Expr) -> pl.Expr:
    """Return an expression that formats integers as unsigned hexadecimal numbers, such as ``0x7F2386F01000``."""
    unsigned = values.cast(pl.Int64).reinterpret(signed=False)
    digits = [(unsigned // 16**n % 16).replace_strict(range(16), _HEX_DIGITS) for n in reversed(range(_DIGITS))]
    text = pl.concat_str(digits).str.strip_chars_start("0")
    return pl.lit("0x") + pl.when(text == "").then(pl.lit("0")).otherwise(text)
