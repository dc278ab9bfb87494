"""Built-in formats use only what docs/plugins.md offers to plug-ins, and work when they are loaded as plug-ins."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tracekit as tk
from tracekit import registry

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("readers.tensorflow", "readers.tfevents", "readers.graphdef"),
    *("exporters.tfevents", "readers.chrome_trace", "readers.memory_snapshot"),
    *("readers.pftrace", "readers.nvprof", "readers.nvprof_csv"),
    *("readers.proton", "readers.xplane", "readers.nccl", "readers.ascend", "readers.rocm", "readers.nsys_jsonlines"),
)
REDACTION = "tracekit.readers.redaction."
"""Prefix of the modules that write copies of files, which readers name only by a string."""
ENTRY_POINTS = [
    importlib.metadata.EntryPoint("graphdef", "tracekit.readers.graphdef:READER", "tracekit.readers"),
    importlib.metadata.EntryPoint("tfevents", "tracekit.readers.tfevents:READER", "tracekit.readers"),
    importlib.metadata.EntryPoint("tfevents", "tracekit.exporters.tfevents:EXPORTER", "tracekit.exporters"),
]


def read_toolbox() -> set[str]:
    """The full names of everything in the table of the page on plug-ins."""
    page = (ROOT / "docs/plugins.md").read_text("utf-8")
    rows = re.findall(r"^\| `(tracekit[\w.]*)` \| ([^|]*) \|", page, re.MULTILINE)
    return {f"{module}.{name}" for module, names in rows for name in re.findall(r"`(\w+)`", names)}


def iterate_used_names(package: str) -> Iterator[str]:
    """The full names of all modules, functions and classes of tracekit outside of these packages that one imports."""
    own = tuple(f"tracekit.{each}" for each in PACKAGES)
    for path in ROOT.joinpath("tracekit", *package.split(".")).rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        names = {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in imports for alias in node.names}
        uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
        through = {names[node.value.id] + "." + node.attr for node in uses if node.value.id in names}
        modules = {name.rpartition(".")[0] for name in through}
        for name in {name for name in names.values() if name not in modules} | through:
            if name.startswith("tracekit.") and not name.startswith(own):
                yield name


def test_the_toolbox_exists_and_suffices() -> None:
    toolbox = read_toolbox()
    for name in toolbox:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
    used = {name for package in PACKAGES for name in iterate_used_names(package)}
    classes = {name for name in used if name.rpartition(".")[0] in toolbox}  # members of a class in the toolbox
    assert used - classes <= toolbox


def test_modules_that_are_named_by_strings_are_those_of_redaction() -> None:
    own = tuple(f"tracekit.{each}" for each in PACKAGES)
    named = {
        str(node.value)
        for package in PACKAGES
        for path in ROOT.joinpath("tracekit", *package.split(".")).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and re.fullmatch(r"tracekit(\.\w+)+", str(node.value))
    }
    others = {name for name in named if not name.startswith(own)}
    assert others
    assert [name for name in others if not name.startswith(REDACTION)] == []


def test_a_small_format_takes_at_most_300_lines() -> None:
    lines = [
        line for p in (ROOT / "tracekit/readers/nvprof_csv").glob("*.py") for line in p.read_text("utf-8").split("\n")
    ]
    assert 0 < len([line for line in lines if line.strip()]) <= 300


def test_the_formats_on_the_page_are_the_checked_ones() -> None:
    """The page names every format whose reader is in one of the packages, and no other."""
    page = (ROOT / "docs/plugins.md").read_text("utf-8")
    sentence = page.partition("The readers `")[2].partition(", use nothing else")[0]
    formats = {
        name
        for name, reader in registry.readers().items()
        if reader.open.__module__.startswith(tuple(f"tracekit.{each}" for each in PACKAGES))
    }
    assert set(re.findall(r"`?([\w-]+)`", sentence)) == formats


def test_the_formats_work_as_plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tk.load(ROOT / "fixtures/graph_node.sqlite")
    trace.export(tmp_path / "built_in", format="tfevents")
    expected = tk.load(tmp_path / "built_in")
    for kind in ("BUILTIN_READERS", "BUILTIN_EXPORTERS"):
        built_in = {
            name: each for name, each in getattr(registry, kind).items() if name not in ("graphdef", "tfevents")
        }
        monkeypatch.setattr(registry, kind, built_in)
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda *, group: [each for each in ENTRY_POINTS if each.group == group]
    )
    registry.readers.cache_clear()
    registry.exporters.cache_clear()
    try:
        trace.export(tmp_path / "plug_in", format="tfevents")
        (old,), (new,) = ([p.read_bytes() for p in (tmp_path / name).iterdir()] for name in ("built_in", "plug_in"))
        assert new == old
        again = tk.load(tmp_path / "plug_in")
        assert (again.format, again["scalars"]) == ("tfevents", expected["scalars"])
        assert again["graph_nodes"] == expected["graph_nodes"]
    finally:
        registry.readers.cache_clear()
        registry.exporters.cache_clear()
