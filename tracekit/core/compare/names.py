"""Normalize the names of events, so that two runs of one program have the same names.

A name may contain parts that differ between runs or builds of the same program: hashes, addresses, numbers in template
arguments, and the numbers of generated kernels and of iterations. Each of them is replaced with ``*``. Names of ops
that run on GPUs of different makers may also contain the library of one maker, such as cuDNN, which is removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.core.series import map_categories_expr

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

ANY = "*"
"""Replacement for the variable parts of a name."""

_ADDRESS = (r"(^|[^0-9A-Za-z])0x[0-9a-fA-F]+\b", f"${{1}}{ANY}")
_UUID = (r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", ANY)
_HASH = (r"(^|[^0-9A-Za-z])[0-9a-f]{8,}($|[^0-9A-Za-z])", f"${{1}}{ANY}${{2}}")
_RUST_HASH = (r"17h[0-9a-f]{16}E", f"17h{ANY}E")
_TEMPLATE_NUMBER = (r"([<(,]\s*(?:\([a-z ]+\))?)-?[0-9]+(?:[uU]?[lL]{0,2})\b", f"${{1}}{ANY}")
_GENERATED_NUMBER = (r"^((?:triton_|fusion|gemm_fusion|loop_|input_|wrapped_)\w*?)[._][0-9]+$", f"${{1}}_{ANY}")
_LONE_NUMBER = (r"(^|[^\w.])[0-9]+(?:\.[0-9]+)*\b", f"${{1}}{ANY}")
_COUNTED = (r"(?i)\b(iteration|iter|step|epoch|batch|microbatch|replay)([_\-:= #]*)[0-9]+\b", f"${{1}}${{2}}{ANY}")
_LIBRARY = (r"(^|[/: ]_?)(?:cudnn|miopen|mkldnn|mkl|mps|xpu|npu|hpu|musa)_", "${1}")
_LIBRARY_OF_BACKWARD = (r"\b(?:Cudnn|Miopen|Mkldnn)([A-Z])", "${1}")
_ATTENTION = (
    r"(_scaled_dot_product|)_(?:flash|efficient|cudnn|fused|mem_eff|math)_attention(?:_for_[a-z]+)?",
    f"${{1}}_{ANY}_attention",
)
_VERSION = (r"_v[0-9]+(?:_pt[sd]z?)?$|_pt[sd]z$", "")

RULES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "kernel": (_ADDRESS, _UUID, _RUST_HASH, _HASH, _TEMPLATE_NUMBER, _GENERATED_NUMBER),
    "range": (_ADDRESS, _UUID, _HASH, _COUNTED, _LONE_NUMBER),
    "call": (_VERSION,),
    "maker": (_ATTENTION, _LIBRARY, _LIBRARY_OF_BACKWARD),
    "exact": (),
}
"""Regular expressions and their replacements, by kind of name. The replacements are applied in order."""


def normalize_names_expr(name: pl.Expr, rules: str) -> pl.Expr:
    """Return an expression that replaces the parts of names that differ between runs of the same program.

    Args:
        name: Expression for the names (String).
        rules: Key of ``RULES``.
    """
    for pattern, replacement in RULES[rules]:
        name = name.str.replace_all(pattern, replacement)
    return name


def normalize_categorical_names_expr(column: pl.Expr, rules: str) -> pl.Expr:
    """Return an expression for the normalized names of a Categorical column. Each distinct name is processed once."""
    return map_categories_expr(column, lambda names: normalize_names_expr(names, rules)) if RULES[rules] else column
