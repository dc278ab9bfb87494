"""Classify kernels by their names: by category, such as attention or KV cache, and by class of ``tracekit why``.

The rules are in ``schemas/kernel_categories.toml``. A name is classified once, however often it occurs.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit import schemas
from tracekit.core.series import map_categories_expr

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

OTHER, GRAPH, COPY, COMMUNICATION = "other", "graph", "copy", "communication"
OTHER_CLASS = "other_kernel"
OPERATION_TEXT = pl.coalesce("operation", "name")
"""What tells the category of a row of ``kernels``: the kind of operation that was recorded, or the name."""


class KernelKind(NamedTuple):
    """What the name of a kernel tells about it.

    Attributes:
        category: Category, such as ``attention``, or ``other`` if it is not known.
        diagnosis_class: Class of GPU work in ``tracekit why``, such as ``matmul_fp32``.
    """

    category: str
    diagnosis_class: str


class _Rule(NamedTuple):
    """A rule of the table. The class of a kernel can depend on the use of Tensor Cores and on its precision."""

    category: str
    pattern: re.Pattern[str]
    unless: re.Pattern[str] | None
    diagnosis_class: str | None
    class_without_tensor_cores: str | None
    class_in_fp32: str | None


@functools.lru_cache(maxsize=1 << 12)
def classify_kernel(name: str) -> KernelKind:
    """Return the category and the class of a kernel, given its name."""
    text, arguments = _split_arguments(name.lower())
    category = diagnosis_class = None
    for rule in _load_rules():
        if category is not None and (diagnosis_class is not None or rule.diagnosis_class is None):
            continue
        if rule.pattern.search(text) and not (rule.unless and rule.unless.search(text)):
            category = category or rule.category
            diagnosis_class = diagnosis_class or _choose_class(rule, text, arguments)
    return KernelKind(category or OTHER, diagnosis_class or OTHER_CLASS)


def category_expr(name: pl.Expr) -> pl.Expr:
    """Return an expression for the categories of kernels, as strings in a Categorical column.

    Args:
        name: Categorical names of kernels. The category of a null is ``other``.
    """

    def classify(names: pl.Series) -> pl.Series:
        texts = names.to_list()
        return pl.Series([None if t is None else classify_kernel(t).category for t in texts], dtype=pl.String)

    categories = map_categories_expr(name, lambda text: text.map_batches(classify, return_dtype=pl.String))
    return categories.fill_null(pl.lit(OTHER, pl.Categorical))


@functools.cache
def _load_rules() -> tuple[_Rule, ...]:
    return tuple(_compile_rule(rule) for rule in schemas.load_kernel_rules()["rules"])


def _compile_rule(rule: Mapping[str, Any]) -> _Rule:
    unless = re.compile("|".join(rule["unless"])) if "unless" in rule else None
    classes = [rule.get(key) for key in ("class", "class_without_tensor_cores", "class_in_fp32")]
    return _Rule(rule["category"], re.compile("|".join(rule["patterns"])), unless, *classes)


@functools.cache
def _load_precision_patterns() -> Mapping[str, re.Pattern[str]]:
    return {key: re.compile(pattern) for key, pattern in schemas.load_kernel_rules()["precision"].items()}


def _choose_class(rule: _Rule, text: str, arguments: str) -> str | None:
    """Return the class of a kernel to which a rule applies, by its name and the list of its arguments."""
    if not (rule.class_without_tensor_cores or rule.class_in_fp32):
        return rule.diagnosis_class
    patterns = _load_precision_patterns()
    if patterns["tensor_cores"].search(text) or patterns["tensor_core_arguments"].search(arguments):
        return rule.diagnosis_class
    is_fp32 = patterns["fp32"].search(text) or patterns["fp32_arguments"].search(arguments)
    in_fp32 = rule.class_in_fp32 if is_fp32 else None
    return rule.class_without_tensor_cores or in_fp32 or rule.diagnosis_class


def _split_arguments(text: str) -> tuple[str, str]:
    """Return the name of a C++ function with its template arguments, and the list of its arguments or ""."""
    if not text.endswith(")"):
        return text, ""
    depth = 0
    for position in range(len(text) - 1, -1, -1):
        depth += (text[position] == ")") - (text[position] == "(")
        if not depth:
            return text[:position], text[position:]
    return text, ""
