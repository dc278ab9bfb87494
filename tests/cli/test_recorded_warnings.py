"""Warnings that the profiler recorded come before everything else, on a terminal and in a pipe."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tracekit as tk
from tests.cli.test_terminal import FIXTURES
from tracekit.registry.notices import MAX_WARNINGS

if TYPE_CHECKING:
    from tests.cli.conftest import Run, Show

EVENTS = ("NVTX", "CUDA")
CAPTURES = ("gpu_metrics.nsys-rep", "gpu_metrics.sqlite")
NO_WARNINGS = (FIXTURES / "ranks" / "mpi_rank0.nsys-rep", FIXTURES / "kineto" / "train.pt.trace.json.gz")
COMMANDS = {
    "stats": ("stats", "IN", "-r", "cuda_gpu_kern_sum"),
    "advise": ("stats", "IN", "-r", "advise"),
    "analyze": ("analyze", "IN", "-r", "gpu_gaps"),
    "correlate": ("correlate", "IN", "-o", "OUT.csv"),
    "convert": ("convert", "IN", "OUT.json"),
    "page": ("convert", "IN", "OUT.html"),
}
"""Commands that print the warnings to standard error."""


def sentences(start: str = "warning") -> list[str]:
    return [f"{start} recorded by Nsight Systems: Not all {name} events might have been collected." for name in EVENTS]


def fill(command: tuple[str, ...], path: Path, folder: Path) -> list[str]:
    return [str(path) if part == "IN" else part.replace("OUT", str(folder / "out")) for part in command]


@pytest.mark.many(7)
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_begin_with_them_on_a_terminal(name: str, capture: str, show: Show, tmp_path: Path) -> None:
    lines = show(*fill(COMMANDS[name], FIXTURES / capture, tmp_path), columns=200).splitlines()
    assert lines[:2] == sentences()
    assert len(lines) > 2


def test_quiet_commands_do_not_print_them(show: Show, tmp_path: Path) -> None:
    shown = show(*fill(COMMANDS["stats"], FIXTURES / CAPTURES[0], tmp_path), "-q", columns=200)
    assert "recorded by" not in shown
    assert shown


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_pipes_contain_only_data(name: str, run: Run, tmp_path: Path) -> None:
    result = run(*fill(COMMANDS[name], FIXTURES / CAPTURES[1], tmp_path))
    assert "recorded by" not in f"{result.text}{result.stderr}"
    assert result.text or result.stderr.startswith(("wrote ", "gpu_gaps: the rule found nothing"))


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("command", [(), ("info",)], ids=str)
def test_descriptions_begin_with_them(command: tuple[str, ...], capture: str, run: Run, show: Show) -> None:
    path = FIXTURES / capture
    expected = [str(path), *(f"  {sentence}" for sentence in sentences("Warning"))]
    assert run(*command, path).text.splitlines()[:3] == expected
    shown = show(*command, path, columns=200)
    assert "\n".join(expected) in shown
    assert not re.search(r"\w", shown.partition(str(path))[0].replace("computing", ""))


@pytest.mark.slow
@pytest.mark.parametrize("capture", CAPTURES)
def test_metadata_and_pages_contain_them(capture: str, run: Run, tmp_path: Path) -> None:
    path = FIXTURES / capture
    recorded = json.loads(run("info", path, "--json").text)["recorded_warnings"]
    assert [warning["message"] for warning in recorded] == [text.partition(": ")[2] for text in sentences()]
    run("convert", path, tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text("utf-8")
    body = page[page.index("<body") :]
    first, second = (body.index(f"<p>{sentence}</p>") for sentence in sentences("Warning"))
    assert first < second < body.index("<h2")


@pytest.mark.parametrize("path", NO_WARNINGS, ids=lambda path: path.name)
def test_captures_without_warnings(path: Path, show: Show, tmp_path: Path) -> None:
    assert "recorded by" not in show(*fill(COMMANDS["stats"], path, tmp_path), columns=200)


@pytest.mark.slow
def test_many_warnings_with_markup_are_limited(show: Show, tmp_path: Path) -> None:
    path = Path(shutil.copyfile(FIXTURES / CAPTURES[1], tmp_path / "many.sqlite"))
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        (columns,) = [[row[1] for row in db.execute("PRAGMA table_info(DIAGNOSTIC_EVENT)")]]
        row = dict(zip(columns, db.execute("SELECT * FROM DIAGNOSTIC_EVENT").fetchone(), strict=True))
        (level,) = db.execute("SELECT id FROM ENUM_DIAGNOSTIC_SEVERITY_LEVEL WHERE label = 'Error'").fetchone()
        for number in range(1000):
            changed = row | {"severity": level, "text": f"[red]{number}\x1b[31m" + "x" * 1000}
            db.execute(f"INSERT INTO DIAGNOSTIC_EVENT VALUES ({','.join('?' * len(columns))})", list(changed.values()))
    for name in ("stats", "convert"):
        lines = show(*fill(COMMANDS[name], path, tmp_path), columns=5000, color=True).splitlines()
        assert lines[0].startswith("error recorded by Nsight Systems: [red]0")
        assert "\x1b[31m" not in lines[0]
        assert lines[MAX_WARNINGS] == "992 more warnings of the profiler are in the table diagnostics."
    assert tk.load(path).count("diagnostics") > 1000
