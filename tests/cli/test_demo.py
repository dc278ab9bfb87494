"""``make demo`` and the beginning of the README."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cli.conftest import ROOT

if TYPE_CHECKING:
    from tests.cli.conftest import Run

MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")


def demo_commands(out: Path) -> list[list[str]]:
    """Return the commands of ``make demo`` that run tracekit, with their output in a folder."""
    recipe = MAKEFILE.partition("\ndemo: setup\n")[2].partition("\n\n")[0].replace("\\\n", " ")
    capture = re.search(r"(?m)^DEMO := (.*)$", MAKEFILE)
    assert capture is not None
    lines = recipe.replace("$(DEMO)", capture[1]).replace(" out/", f" {out}/").splitlines()
    assert all(line.startswith("\t@") for line in lines), "make prints no command"
    return [shlex.split(line)[1:] for line in lines if line.startswith("\t@$(BIN)/tracekit ")]


@pytest.mark.slow
def test_the_demo_shows_findings_the_time_of_layers_and_a_page(run: Run, tmp_path: Path) -> None:
    findings, layers, page = demo_commands(tmp_path)
    text = run(*findings).text
    assert "  1. launch overhead in 'Backward pass': saves" in text
    shown = run(*layers).text
    assert shown.splitlines()[0].split() == ["path", "direction", "instance_count", "gpu_time_ms"]
    assert re.search(r"Forward pass/layer1/ +bprop +\d+ +\d+\.\d{3}\n", shown)
    assert run(*page).text == ""
    assert (tmp_path / "train_amp.html").read_text("utf-8").startswith("<!")
    assert not re.search(r"void |::native|<.*<", text + shown), "no wall of C++ names"
    assert len((text + shown).splitlines()) < 50


def test_the_readme_begins_with_the_question_of_its_readers() -> None:
    first, second = re.findall(r"(?m)^## (.*)$", README)[:2]
    assert first == "Why is my run slow, in five minutes"
    assert second == "What it reads and writes"
    beginning = README.partition(f"## {second}")[0]
    for text in ("tracekit diff ", "tracekit recipe ", "tracekit view ", "tk.stats(", "$ tracekit why fixtures/"):
        assert text in beginning
    lines = README.splitlines()
    first_table = next(i for i, line in enumerate(lines) if line.startswith("|"))
    assert first_table <= 80, "two screens before the tables"
    assert "| adbc-driver-manager |" not in README
