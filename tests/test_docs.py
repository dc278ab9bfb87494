"""The documentation: examples work, the site builds, and nothing private is in it.

``make check`` tests that the generated parts are up to date.
"""

from __future__ import annotations

import doctest
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.builders.reports import REPORTS_OF_NSYS
from tracekit import cli, registry, schemas

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
WRITTEN = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "fixtures" / "README.md"]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PRIVATE = re.compile(r"(?<![\w.])/work\b|/tmp/|/root\b|/home/|localhost|\.internal\b|\bindex-url\b", re.IGNORECASE)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """``docs/generate.py``."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to write in, from which the paths of the fixtures resolve as from the repository."""
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", [p for p in PAGES if PYTHON.search(p.read_text("utf-8"))], ids=lambda p: p.stem)
def test_python_examples(page: Path, folder: Path) -> None:
    source = page.read_text("utf-8")
    examples = [b for b in PYTHON.findall(source) if b.startswith(">>> ")]
    test = doctest.DocTestParser().get_doctest("\n".join(examples), {}, page.name, str(page), 0)
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


def test_stale_pages_are_written_or_reported(
    generator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo new\nold\n```\n")
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    monkeypatch.setattr(generator, "PAGES", [page])
    assert generator.main("--check") == 1
    assert capsys.readouterr().out == "out of date, run docs/generate.py: page.md\n"
    assert generator.main() == 0
    assert page.read_text() == "```console\n$ echo new\nnew\n```\n"
    assert generator.main("--check") == 0


@pytest.mark.thorough
def test_the_site_builds_without_warnings_and_needs_no_network(tmp_path: Path) -> None:
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= len(DOCS)
    loaded = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?:https?:)?//", re.IGNORECASE)
    assert [p.name for p in pages if loaded.search(p.read_text("utf-8"))] == []
    api = (tmp_path / "site" / "api.html").read_text("utf-8")
    assert 'id="tracekit.load"' in api
    assert '<span class="kn">import</span>' in api
    assert (tmp_path / "site" / "search.json").stat().st_size > 100_000


def test_every_page_is_in_the_navigation() -> None:
    nav = str(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    assert [p.name for p in DOCS if p.name not in nav] == []


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_nothing_private_and_no_dead_links(page: Path) -> None:
    text = page.read_text("utf-8")
    assert not PRIVATE.search(text), PRIVATE.search(text)
    targets = [t.partition("#")[0] for t in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in t]
    assert [t for t in targets if t and not (page.parent / t).exists()] == []


def test_the_reference_is_complete() -> None:
    text = {p.stem: p.read_text("utf-8") for p in DOCS}
    assert [t for t in schemas.tables() if f"\n## {t}\n" not in text["tables"]] == []
    assert [r for r in REPORTS_OF_NSYS if f"\n### {r}\n" not in text["reports"]] == []
    assert [v for v in cli.COMMANDS if f"\n## {v}\n" not in text["cli"]] == []
    formats = {*registry.readers(), *registry.exporters()}
    assert [f for f in formats if not re.search(rf"^## .*\b{f}\b", text["formats"], re.MULTILINE)] == []


def test_every_capture_has_its_provenance() -> None:
    text = (ROOT / "fixtures" / "README.md").read_text("utf-8")
    assert [p.stem for p in (ROOT / "fixtures").glob("*.sqlite") if f"`{p.stem}`" not in text] == []
    assert [p.name for p in (ROOT / "fixtures" / "programs").glob("*.py") if f"`{p.name}`" not in text] == []


def test_the_newest_schema_of_the_matrix_is_that_of_the_reader() -> None:
    from tracekit.readers.nsys.versions import NEWEST_SCHEMA

    assert f", {'.'.join(map(str, NEWEST_SCHEMA))} |" in (ROOT / "docs" / "formats.md").read_text("utf-8")


def test_no_list_of_options_is_empty() -> None:
    shown = (ROOT / "docs" / "reports.md").read_text("utf-8")
    assert "Options: `" in shown
    assert "Options: ." not in shown


def test_what_is_read_is_not_said_to_be_passed_over() -> None:
    shown = (ROOT / "docs" / "formats.md").read_text("utf-8")
    assert "instance values are passed over" not in shown
    assert not re.search(r"Not read:[^.]*(PyTorch|Kineto)", shown)
