"""Names of kernels as different tools and versions spell them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

UNNAMED = "<unnamed>"


def plain(names: pl.Expr) -> pl.Expr:
    """Write names of kernels so that all spellings of one are equal: n texts in, n texts out; null stays null.

    Nsight Compute leaves out more and more: casts of template arguments (``(int)8`` is ``8``) and some namespaces
    (``at::native::X`` is ``at::X``). Here all casts and all namespaces go, the type returned, and blanks.
    """
    named = names.str.replace_all("(anonymous namespace)", UNNAMED, literal=True)
    bare = named.str.replace(r"^\s*void\s+", "").str.replace_all(rf"(?:[A-Za-z_]\w*|{UNNAMED})::", "")
    values = bare.str.replace_all(r"\([A-Za-z_][\w ]*\)(-?\d)", "${1}").str.replace_all(r"(\d)[uUlL]+\b", "${1}")
    return values.str.replace_all(r"\s+", "")
