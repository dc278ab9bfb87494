"""Names follow the conventions in docs/contributing.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

MODULES = [
    (path, list(ast.walk(ast.parse(path.read_text("utf-8")))))
    for path in sorted((Path(__file__).parents[1] / "tracekit").rglob("*.py"))
]
PARTICIPLES = {"found", "made", "told", "given", "taken", "wanted", "kept", "said"}
SUFFIXES = {"pl.Expr": "_expr", "list[pl.Expr]": "_exprs"}
PREDICATES = ("is_", "are_", "has_", "have_", "can_")


def functions() -> Iterator[tuple[Path, ast.FunctionDef, str]]:
    """The functions of all modules, each with its return type."""
    for path, nodes in MODULES:
        for node in nodes:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
                yield path, node, ast.unparse(node.returns) if node.returns else ""


def bound_name(node: ast.AST) -> str | None:
    """The name of a variable, parameter, function or class that a node binds."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    return node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else None


def test_no_name_is_only_a_participle() -> None:
    bound = [(path, name) for path, nodes in MODULES for name in map(bound_name, nodes) if name]
    assert len(bound) > 10_000
    assert [each for each in bound if each[1].strip("_").lower() in PARTICIPLES] == []


def test_functions_that_return_expressions_say_so() -> None:
    checked = [(path, f.name, SUFFIXES[type_]) for path, f, type_ in functions() if type_ in SUFFIXES]
    assert len(checked) > 100
    assert [each for each in checked if not each[1].endswith(each[2])] == []


def test_functions_named_as_predicates_return_bool() -> None:
    checked = [
        (path, f.name, type_)
        for path, f, type_ in functions()
        if f.name.lstrip("_").startswith(PREDICATES) and not f.name.endswith(("_expr", "_exprs"))
    ]
    assert len(checked) > 50
    assert [each for each in checked if not each[2].startswith(("bool", "TypeGuard", "TypeIs"))] == []
