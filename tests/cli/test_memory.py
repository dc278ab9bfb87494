"""The option ``--memory``: it configures the allocators before they are loaded, and does not change any result."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import tracekit as tk
from click.testing import CliRunner
from tests.conftest import FIXTURES
from tracekit import cli
from tracekit.sets import LocalEngine
from tracekit.system import memory

PROGRAM = """
import os, sys
from tracekit.system import memory
from tracekit.__main__ import main
names = {"polars", "pyarrow"}
def check():
    print(sorted(names & set(sys.modules)), os.environ["ARROW_DEFAULT_MEMORY_POOL"], file=sys.stderr)
    original()
original, memory.make_malloc_return_large_blocks = memory.make_malloc_return_large_blocks, check
main()
"""
COMMAND = ("stats", str(FIXTURES / "train_amp.sqlite"), "--report", "cuda_gpu_kern_sum", "--format", "csv")


def run(*more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *COMMAND, *more]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.mark.slow
def test_allocators_return_memory_if_it_is_limited() -> None:
    unlimited, limited = run(), run("--memory", "1MB")
    assert (unlimited.stderr, limited.stderr.splitlines()) == ("", ["[] system"])
    assert limited.stdout == unlimited.stdout


@pytest.mark.thorough
def test_the_environment_of_the_user_stays() -> None:
    assert run("--memory", "1MB", ARROW_DEFAULT_MEMORY_POOL="mimalloc").stderr == "[] mimalloc\n"


READING = {
    "": ("{path}",),
    "analyze": ("analyze", "{path}"),
    "check": ("check", "{path}", "--save", "{out}.json"),
    "convert": ("convert", "{path}", "{out}.csv", "--table", "kernels"),
    "correlate": ("correlate", "{path}", "-o", "{out}.csv"),
    "diff": ("diff", "{path}", "{path}"),
    "info": ("info", "{path}"),
    "recipe": ("recipe", "{path}", "-r", "cuda_gpu_kern_sum"),
    "redact": ("redact", "{path}", "{out}.sqlite"),
    "rows": ("rows", "{path}", "kernels"),
    "stats": ("stats", "{path}", "-r", "cuda_gpu_kern_sum"),
    "tables": ("tables", "{path}"),
    "view": ("view", "{path}", "--no-browser", "--port", "0"),
    "what-if": ("what-if", "{path}", "--edit", "kernel * x0.5"),
    "why": ("why", "{path}"),
}
"""The commands that read captures."""


def test_every_command_that_reads_captures_is_listed() -> None:
    """The commands mcp and watch read captures in processes of their own."""
    assert set(cli.COMMANDS) - {"cache", "formats", "mcp", "schema", "watch"} == set(READING) - {""}


@pytest.mark.parametrize("name", READING)
def test_every_command_that_reads_captures_limits_its_memory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit applies to all threads of the command, and ends with it."""
    limits: list[int | None] = []

    def observe(*_: Any, **__: Any) -> None:
        thread = threading.Thread(target=lambda: limits.append(memory.get_memory_limit()))
        thread.start()
        thread.join()
        raise tk.TracekitError("observed")

    for target in (
        "tracekit.registry.detection.detect_reader",
        "tracekit.readers.redaction.redact",
        "tracekit.view.open_viewer",
    ):
        monkeypatch.setattr(target, observe)
    monkeypatch.setattr(memory, "return_freed_memory", lambda: None)
    words = [word.format(path=FIXTURES / "train_amp.sqlite", out=tmp_path / "out") for word in READING[name]]
    CliRunner().invoke(cli.cli, [*words, "--memory", "7MB"])
    assert set(limits) == {7_000_000}
    assert memory.get_memory_limit() is None


def read_limit(_: tk.Trace) -> int | None:
    return memory.get_memory_limit()


@pytest.mark.slow
def test_processes_divide_the_memory_among_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = tk.load_many(FIXTURES / "ranks", engine=LocalEngine(2))
    monkeypatch.setattr(memory, "return_freed_memory", lambda: None)
    with memory.limit_memory_of_process(7_000_000):
        assert ranks.map(read_limit) == [3_500_000, 3_500_000]
    assert ranks.map(read_limit) == [None, None]


def test_a_limit_of_a_context_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "return_freed_memory", lambda: None)
    with memory.limit_memory_of_process(7), memory.limit_memory(5):
        assert (memory.get_memory_limit(), memory.compute_memory_budget()) == (5, 5)
