"""The option ``--memory``: it configures the allocators before they are loaded, and does not change any result."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.conftest import FIXTURES

PROGRAM = """
import os, sys
from tracekit import memory
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


def test_allocators_return_memory_if_it_is_limited() -> None:
    unlimited, limited = run(), run("--memory", "1MB")
    assert (unlimited.stderr, limited.stderr.splitlines()) == ("", ["[] system"])
    assert limited.stdout == unlimited.stdout


@pytest.mark.thorough
def test_the_environment_of_the_user_stays() -> None:
    assert run("--memory", "1MB", ARROW_DEFAULT_MEMORY_POOL="mimalloc").stderr == "[] mimalloc\n"
