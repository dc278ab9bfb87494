"""Names follow the conventions in docs/contributing.md."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import ROOT
from tests.unmeasured import UNMEASURED

PARTICIPLES = {"found", "made", "told", "given", "taken", "wanted", "kept", "said"}
SUFFIXES = {"pl.Expr": "_expr", "list[pl.Expr]": "_exprs"}
PREDICATES = ("is_", "are_", "has_", "have_", "can_")


@functools.cache
def names() -> tuple[list[tuple[Path, str]], list[tuple[Path, str, str]]]:
    """The names that modules bind, and their functions with the return types. The syntax trees are not kept."""
    bound, functions = [], []
    for path, node in nodes():
        if name := bound_name(node):
            bound.append((path, name))
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
            functions.append((path, node.name, ast.unparse(node.returns) if node.returns else ""))
    return bound, functions


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    """The nodes of the syntax trees of all modules."""
    for path in sorted((ROOT / "tracekit").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            yield path, node


def bound_name(node: ast.AST) -> str | None:
    """The name of a variable, parameter, function or class that a node binds."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    return node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else None


@pytest.mark.slow
def test_no_name_is_only_a_participle() -> None:
    bound, _ = names()
    assert len(bound) > 10_000
    assert [each for each in bound if each[1].strip("_").lower() in PARTICIPLES] == []


def test_functions_that_return_expressions_say_so() -> None:
    _, functions = names()
    checked = [(path, name, SUFFIXES[type_]) for path, name, type_ in functions if type_ in SUFFIXES]
    assert len(checked) > 100
    assert [each for each in checked if not each[1].endswith(each[2])] == []


def test_functions_named_as_predicates_return_bool() -> None:
    _, functions = names()
    checked = [
        (path, name, type_)
        for path, name, type_ in functions
        if name.lstrip("_").startswith(PREDICATES) and not name.endswith(("_expr", "_exprs"))
    ]
    assert len(checked) > 50
    assert [each for each in checked if not each[2].startswith(("bool", "TypeGuard", "TypeIs"))] == []


def test_the_name_of_a_class_means_one_thing() -> None:
    """No other module defines a public class or the alias of a type with the same name."""
    modules: defaultdict[str, set[Path]] = defaultdict(set)
    classes = set()
    for path, node in nodes():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            classes.add(node.name)
            modules[node.name].add(path)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not isinstance(node.value, ast.Call):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                modules[target.id].add(path)
    assert len(classes) > 500
    assert {name: modules[name] for name in classes if len(modules[name]) > 1} == {}


def test_tests_whose_coverage_is_not_measured_exist() -> None:
    """See tests/unmeasured.py."""
    listed = UNMEASURED.read_text("utf-8").splitlines()
    texts = {name: (ROOT / name).read_text("utf-8") for name in {test.partition("::")[0] for test in listed}}
    assert [test for test in listed if f"def {test.rpartition('::')[2]}(" not in texts[test.partition("::")[0]]] == []
