"""Determine which kernels run on Tensor Cores from their names, and which ops could run on them from their types.

Most captures do not record whether a kernel used Tensor Cores, so its name is the only evidence. The rules are in
``schemas/tensor_cores.toml``. They include DLProf's rules, so that its statistics can be reproduced exactly.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from tracekit import schemas
from tracekit.core.series import decode_categories_expr, map_categories_expr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Mode = Literal["extended", "dlprof"]
Framework = Literal["pytorch", "tensorflow"]
ELIGIBLE, MAYBE, NOT_ELIGIBLE = 0, 2, 3
_DECORATION = r"^(?:autograd::engine::evaluate_function: )?(?:aten::|torch::)?|backward\d+$"


def uses_tensor_cores_expr(name: pl.Expr, *, mode: Mode = "extended") -> pl.Expr:
    """Return an expression for whether each kernel runs on Tensor Cores, according to its name.

    Args:
        name: Demangled kernel names, as strings or dictionary-encoded. Each distinct name is examined once.
        mode: ``extended`` covers the libraries from Volta to Blackwell. ``dlprof`` uses the rules of DLProf 1.8.0.

    Returns:
        Booleans. They are null for missing names. In ``extended`` mode they are also null if the name does not show
        whether the kernel uses matrix instructions. Examples are matrix products that XLA or Inductor generates in
        Triton, and kernels of the program itself whose names mention a matrix product.

    Raises:
        ValueError: The mode is unknown.
    """
    if mode not in ("extended", "dlprof"):
        raise ValueError(f"unknown mode {mode!r}: the mode must be 'extended' or 'dlprof'")
    classify = _classify_by_extended_rules if mode == "extended" else _classify_by_dlprof_rules
    return name.map_batches(
        lambda names: _classify_distinct_names(names, classify), return_dtype=pl.Boolean, is_elementwise=True
    )


def support_status_expr(op_type: pl.Expr, *, framework: Framework = "pytorch", mode: Mode = "extended") -> pl.Expr:
    """Return an expression for DLProf's code that states whether an op type can run on Tensor Cores.

    Args:
        op_type: Op types such as ``conv2d``. Upper and lower case are equivalent.
        framework: Framework of the ops.
        mode: ``dlprof`` uses the op types that DLProf 1.8.0 listed. ``extended`` uses further op types, including the
            names in PyTorch's own ranges (``aten::addmm``, ``AddmmBackward0``) and in XLA.

    Returns:
        DLProf's ``tc_support_status`` (Int8): 0 for eligible, 2 if it depends on the ops that the op consists of, 3 for
        not eligible. Nulls stay null.
    """
    lists = [
        _load_op_types_by_support(framework),
        *([_load_op_types_by_support("extended")] if mode == "extended" else []),
    ]
    eligible, maybe = ([t for types in lists for t in types[status]] for status in ("eligible", "maybe"))

    def undecorated_expr(text: pl.Expr) -> pl.Expr:
        text = text.str.to_lowercase()
        return text.str.replace_all(_DECORATION, "") if mode == "extended" else text

    plain = decode_categories_expr(map_categories_expr(op_type.cast(pl.Categorical), undecorated_expr))
    is_eligible, is_maybe = (plain.is_in(list(types)).cast(pl.Int8) for types in (eligible, set(maybe) - set(eligible)))
    return is_eligible * (ELIGIBLE - NOT_ELIGIBLE) + is_maybe * (MAYBE - NOT_ELIGIBLE) + NOT_ELIGIBLE


def is_eligible_expr(op_type: pl.Expr, *, framework: Framework = "pytorch", mode: Mode = "extended") -> pl.Expr:
    """Return an expression for whether ops of each type can run on Tensor Cores. Nulls stay null.

    Only the type is considered. An op whose kernels use Tensor Cores is eligible for them even if this function returns
    false for its type. The arguments are those of ``support_status_expr``.
    """
    return support_status_expr(op_type, framework=framework, mode=mode) == ELIGIBLE


def load_extended_kernel_rules() -> list[dict[str, str]]:
    """Return the rules by which the mode ``extended`` recognizes kernels that use Tensor Cores from their names.

    Each rule has the entries ``regex``, ``doc``, ``since`` and ``evidence``.
    """
    return [dict(p) for p in schemas.load_tensor_core_rules()["uses"]]


def _classify_distinct_names(names: pl.Series, classify: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """Classify each distinct name once, and return one Boolean per name, which is null for a missing name.

    Args:
        names: Kernel names, as strings or dictionary-encoded.
        classify: Function that returns one Boolean or null per name (String).
    """
    distinct = names.unique().drop_nulls()
    results = pl.DataFrame(
        {"name": distinct, "uses": classify(distinct.cast(pl.String))}, schema_overrides={"uses": pl.Boolean}
    )
    return pl.DataFrame({"name": names}).join(results, on="name", how="left", maintain_order="left")["uses"]


def _classify_by_extended_rules(names: pl.Series) -> pl.Series:
    """Return whether each kernel uses Tensor Cores by the extended rules, or null if its name is not conclusive."""
    never, uses, unknown = (
        pl.any_horizontal(map(_matches_rule_expr, schemas.load_tensor_core_rules()[k]))
        for k in ("never", "uses", "unknown")
    )
    uses_or_null = pl.when(never).then(pl.lit(value=False)).when(uses).then(pl.lit(value=True))
    return names.to_frame("name").select(uses_or_null.when(~unknown).then(pl.lit(value=False))).to_series()


def _matches_rule_expr(rule: Mapping[str, str]) -> pl.Expr:
    """Return an expression for whether ``name`` matches the ``regex`` of a rule but not its optional ``unless``."""
    matches = pl.col("name").str.contains(rule["regex"])
    return matches & ~pl.col("name").str.contains(rule["unless"]) if "unless" in rule else matches


def _classify_by_dlprof_rules(names: pl.Series) -> pl.Series:
    """Return whether each kernel uses Tensor Cores by the rules of DLProf 1.8.0."""
    rules: Mapping[str, Any] = schemas.load_tensor_core_rules()["dlprof"]
    instead: Mapping[str, Any] = rules["instead"]
    is_exception = names.str.contains(instead["when"], literal=True)
    return _compute_match_mask(names, instead).zip_with(is_exception, _compute_match_mask(names, rules))


def _compute_match_mask(names: pl.Series, rules: Mapping[str, Any]) -> pl.Series:
    """Return whether each name contains one of the required substrings and none of the excluded ones.

    Args:
        names: Kernel names (String).
        rules: ``any`` lists required substrings, ``sizes`` lists groups of required substrings for
            ``_expand_sized_substrings``, and ``none`` lists excluded substrings.
    """
    contains_any = pl.col("name").str.contains_any([*rules["any"], *_expand_sized_substrings(rules["sizes"])])
    return names.to_frame("name").select(contains_any & ~pl.col("name").str.contains_any(rules["none"])).to_series()


def _expand_sized_substrings(groups: Iterable[Mapping[str, Any]]) -> list[str]:
    """Replace ``{n}`` in each substring with each number of its group, and return the resulting substrings.

    Args:
        groups: Each group has ``any``, a list of substrings, and ``n``, a list of numbers.
    """
    return [s.replace("{n}", str(n)) for g in groups for s, n in itertools.product(g["any"], g["n"])]


def _load_op_types_by_support(framework: str) -> Mapping[str, list[str]]:
    """Return the lists ``eligible`` and ``maybe`` of the op types of a framework.

    The list ``eligible`` contains op types that can use Tensor Cores. For the op types in the list ``maybe``, this
    depends on the ops that an op consists of.
    """
    types: Mapping[str, Mapping[str, list[str]]] = schemas.load_tensor_core_rules()["ops"]
    return types[framework]
