"""Compute the work of an op from the shapes, types and values of its arguments.

Each family of ops has a module with a table of formulas. An op that no table contains, or whose arguments were not
recorded or contradict one another, has no known work.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.core.work import attention, convolutions, matrix_products, pointwise, reductions
from tracekit.core.work.call import MAX_NUMBER, MAX_RANK, OpCall, Shape, UnknownWorkError, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

FAMILIES = (matrix_products, convolutions, attention, reductions, pointwise)
_FORMULAS = {name: formula for family in FAMILIES for name, formula in family.FORMULAS.items()}
_GENERATED = re.compile(r"^triton_(?:poi|red|per)_fused_")


def has_formula_expr(name: pl.Expr) -> pl.Expr:
    """Return an expression for whether there is a formula for an op, given its qualified name."""
    is_known = name.is_in(list(_FORMULAS)) | name.str.strip_suffix("_").is_in(list(_FORMULAS))
    return is_known | name.str.contains(_GENERATED.pattern)


def _find_formula(name: str) -> Callable[[OpCall], Work] | None:
    if _GENERATED.match(name):
        return pointwise.compute_fused_kernel
    return _FORMULAS.get(name) or _FORMULAS.get(name.removesuffix("_"))


def compute_work(call: OpCall) -> Work | None:
    """Return the work of a call of an op, or None if it is unknown."""
    formula = _find_formula(call.name)
    if formula is None or not all(map(_is_plausible, call.shapes)):
        return None
    try:
        is_of_result = call.values[:1] and call.values[0].startswith(convolutions.RESULT)
        work = convolutions.compute_from_result(call) if is_of_result else formula(call)
    except UnknownWorkError:
        return None
    numbers = (work.flop, work.read_bytes, work.written_bytes, work.model_flop)
    return None if any(n is not None and n > MAX_NUMBER for n in numbers) else work


def _is_plausible(shape: Shape | tuple[Shape, ...]) -> bool:
    """Return whether a shape, or each shape of a list of tensors, has few dimensions, and none is negative or huge."""
    return all(_is_plausible(size) if isinstance(size, tuple) else 0 <= size <= MAX_NUMBER for size in shape) and (
        len(shape) <= MAX_RANK or isinstance(shape[0], tuple)
    )
