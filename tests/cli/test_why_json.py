"""``tracekit why --format json``."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from schemas.generate import why_schema
from tests.conftest import FIXTURES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run


@pytest.mark.slow
@pytest.mark.every
@pytest.mark.parametrize("path", ["fixtures/train_amp.sqlite", "fixtures/cpu_only.sqlite"])
def test_the_command_prints_the_declared_object(path: str, run: Run) -> None:
    printed = json.loads(run("why", path, "--format", "json", "--quiet").stdout)
    assert why_schema.validate(printed) == []
    assert printed["input"] == [path]


@pytest.mark.slow
def test_warnings_are_part_of_the_object(run: Run, tmp_path: Path) -> None:
    """Those of the profiler, and those of tracekit, which are shown as well."""
    printed = json.loads(run("why", "fixtures/train_amp.sqlite", "--format", "json", "--quiet").stdout)
    assert printed["warnings"][0].startswith("Warning recorded by Nsight Systems: Not all ")
    for rank in (0, 1):
        shutil.copy(FIXTURES / "why" / f"ddp_straggler_rank{rank}.nsys-rep", tmp_path)
    path = tmp_path / "ddp_straggler_rank1.nsys-rep"
    path.write_bytes(path.read_bytes()[:100_000])
    result = run("why", tmp_path, "--format", "json", "--quiet")
    assert "cannot be read" in json.loads(result.stdout)["warnings"][0]
    assert "tracekit: warning:" in result.stderr
