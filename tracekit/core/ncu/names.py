"""Normalize kernel names, whose spelling depends on the tool and its version."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

UNNAMED = "<unnamed>"


def normalize_kernel_names_expr(names: pl.Expr) -> pl.Expr:
    """Return an expression that converts different spellings of a kernel name to one spelling.

    Newer Nsight Compute versions omit casts of template arguments (``(int)8`` becomes ``8``) and some namespaces
    (``at::native::X`` becomes ``at::X``). This function removes all casts, suffixes of numbers, namespaces, return
    types and blanks.
    """
    unified = names.str.replace_all("(anonymous namespace)", UNNAMED, literal=True)
    unqualified = unified.str.replace(r"^\s*void\s+", "").str.replace_all(rf"(?:[A-Za-z_]\w*|{UNNAMED})::", "")
    without_casts = unqualified.str.replace_all(r"\([A-Za-z_][\w ]*\)(-?\d)", "${1}").str.replace_all(
        r"(\d)[uUlL]+\b", "${1}"
    )
    return without_casts.str.replace_all(r"\s+", "")
