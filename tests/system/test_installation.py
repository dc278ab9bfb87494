"""Hints that name the command that installs an optional part, as tracekit was installed."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from tracekit.system import installation
from tracekit.system.installation import create_extra_hint

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("environment", "file", "platform", "expected"),
    [
        ("project/.venv", "pyvenv.cfg", "linux", "pip install 'tracekit[view]'"),
        ("project/.venv", "pyvenv.cfg", "win32", 'pip install "tracekit[view]"'),
        ("uv/tools/tracekit", "uv-receipt.toml", "linux", "uv tool install 'tracekit[view]'"),
        ("uv/archive-v0/a1b2", "pyvenv.cfg", "darwin", "uvx --from 'tracekit[view]' tracekit view"),
        ("uv/archive-v0/a1b2", "pyvenv.cfg", "win32", 'uvx --from "tracekit[view]" tracekit view'),
        ("pipx/venvs/tracekit", "pipx_metadata.json", "linux", "pipx install --force 'tracekit[view]'"),
        (".cache/pipx/a1b2", "pipx_metadata.json", "linux", "pipx run --spec 'tracekit[view]' tracekit view"),
    ],
)
def test_the_command_is_that_of_the_installer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: str, file: str, *, platform: str, expected: str
) -> None:
    prefix = tmp_path / environment
    prefix.mkdir(parents=True)
    (prefix / file).touch()
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(installation, "is_windows", lambda: platform == "win32")
    assert create_extra_hint("view", "view") == expected
    assert create_extra_hint("dask") == expected.replace("view]", "dask]").removesuffix(" view")


def test_every_extra_has_a_hint_and_every_hint_an_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    calls, texts = [], set()
    for path in (ROOT / "tracekit").rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        statements = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "create_extra_hint":
                calls.append(ast.literal_eval(node.args[0]))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
                texts |= {path.name} if re.search(r"pipx? install|uvx", node.value) else set()
    assert sorted(calls) == sorted(extras)
    assert texts == {"installation.py"}
