"""Mutated files of every binary and text format end in an error of ours or in a trace, within 2 s and 1 GiB each.

``make test`` runs the first of them, ``make test-all`` all. ``NSYS_REP_FUZZ=1000`` and the like set the number;
``tests/fuzz/run.py`` says how to run one case again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.conftest import ALL
from tests.fuzz.run import ROOT, run

CASES = {
    "nsys_rep": 20_000,
    "nsys_sqlite": 600,
    "dlprof_db": 300,
    "ncu_rep": 400,
    "ncu_csv": 150,
    "kineto": 300,
    "graphdef": 600,
    "tfevents": 600,
    "xplane": 600,
    "pftrace": 600,
    "chrome_trace": 300,
    "memory_snapshot": 600,
    "nccl": 600,
    "nvprof": 600,
    "nvprof_csv": 600,
    "proton": 600,
    "nsys_jsonlines": 600,
    "rocpd": 300,
    "rpd": 300,
    "rocprofv3_json": 400,
    "rocprof_csv": 300,
    "ascend": 300,
}
PART = {
    "nsys_rep": 20,
    "nsys_sqlite": 6,
    "dlprof_db": 6,
    "ncu_rep": 8,
    "ncu_csv": 6,
    "kineto": 6,
    "graphdef": 8,
    "tfevents": 8,
    "xplane": 8,
    "pftrace": 8,
    "chrome_trace": 6,
    "memory_snapshot": 9,
    "nccl": 8,
    "nvprof": 7,
    "nvprof_csv": 5,
    "proton": 5,
    "nsys_jsonlines": 6,
    "rocpd": 6,
    "rpd": 6,
    "rocprofv3_json": 8,
    "rocprof_csv": 6,
    "ascend": 6,
}
"""The first cases, which ``make test`` runs."""
AT_ONCE = {
    "nsys_rep": 2000,
    "nsys_sqlite": 300,
    "dlprof_db": 300,
    "ncu_rep": 1000,
    "ncu_csv": 300,
    "kineto": 300,
    "graphdef": 300,
    "tfevents": 300,
    "xplane": 300,
    "pftrace": 300,
    "chrome_trace": 300,
    "memory_snapshot": 300,
    "nccl": 300,
    "nvprof": 300,
    "nvprof_csv": 300,
    "proton": 300,
    "nsys_jsonlines": 300,
    "rocpd": 300,
    "rpd": 300,
    "rocprofv3_json": 300,
    "rocprof_csv": 300,
    "ascend": 300,
}


def chunks() -> list[tuple[str, int, int]]:
    """Cases in parts that workers share: target, first case, number."""
    found = []
    for name, every in CASES.items():
        default = every if ALL else PART[name]
        cases, step = int(os.environ.get(f"{name.upper()}_FUZZ", default)), AT_ONCE[name]
        found += [(name, first, min(step, cases - first)) for first in range(0, cases, step)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "first", "number"), chunks())
def test_every_case_ends_well(name: str, first: int, number: int) -> None:
    ended = run(name, first, number)
    assert not ended.failures, "\n".join(ended.failures)
    assert ended.errors + ended.traces == number
    assert min(ended.errors, ended.traces) >= number // 10


BAD = """
import itertools
from tests.fuzz import run
calls = itertools.count()
run.read_all = lambda *_: {what} if next(calls) else []
run.main("ncu_csv", "7", "1")
"""


def bad(what: str) -> subprocess.CompletedProcess[str]:
    """Run a case of which the reading does something."""
    command = [sys.executable, "-c", BAD.format(what=what)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize(
    ("what", "said"),
    [("int('secret')", "ValueError"), ("bytes(2 << 30)", "MemoryError"), ("[0] * 10**9", "MemoryError")],
)
def test_what_must_not_be_is_told_without_its_text(what: str, said: str) -> None:
    (failure,) = json.loads(bad(what).stdout)["failures"]
    assert failure.startswith(f"case 7: {said}\n  File ")
    assert "secret" not in failure


@pytest.mark.thorough
def test_memory_is_measured() -> None:
    size, case = json.loads(bad("bytearray(b'x') * (300 << 20) and []").stdout)["largest"]
    assert size > 0.9 * (300 << 20)
    assert case == 7


@pytest.mark.thorough
def test_time_is_limited() -> None:
    assert bad("sum(itertools.count())").returncode == -signal.SIGPROF
