"""Every report reads as NVIDIA's ``ncu_report`` reads it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.builders.ncu_rep import FIXTURES, ROOT, SHARED, block, made, metric, report

CORPUS = sorted((SHARED / "corpus").glob("ncu_rep/**/*.ncu-rep"))
pytestmark = pytest.mark.skipif(importlib.util.find_spec("ncu_report") is None, reason="ncu-report is not installed")


def compared(path: Path) -> dict[str, int]:
    """Counts of what is equal and of what is not."""
    command = [sys.executable, "-m", "tests.readers.ncu_oracle", str(path)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def wrong(counts: dict[str, int]) -> dict[str, int]:
    return {name: n for name, n in counts.items() if not name.startswith("=")}


@pytest.mark.slow
@pytest.mark.many(2)
@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.stem)
def test_our_own_captures(path: Path) -> None:
    found = compared(path)
    assert found["=metrics"] > 1000
    assert wrong(found) == {}


@pytest.mark.many(1)
@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS, reason="no corpus beside the checkout")
@pytest.mark.parametrize("number", range(len(CORPUS)))
def test_public_reports(number: int) -> None:
    found = compared(CORPUS[number])
    assert found["=metrics"] > 200
    assert wrong(found) == {}


@pytest.mark.slow
def test_kinds_that_no_capture_holds(tmp_path: Path) -> None:
    names = ["name", "no unit", "text", "a", "b"]
    parts = [
        metric(0, whole=7),
        metric(1, 3, real=1.5),
        metric(2, text=b"x"),
        metric(3, single=0.5),
        metric(4, small=9),
    ]
    known = {"thread_id": 1, "api_call_id": 5, "created_s": 9, "context_id": 2, "metrics": parts}
    more = {**known, "metrics": [*parts, metric(0, whole=8)]}
    path = tmp_path / "made.ncu-rep"
    path.write_bytes(report(
        block(("command_lists", made("CommandListResult", demangled_name=b"a list", **known)), names=names, process=1),
        block(("ranges", made("RangeResult", **known)), process=1),
        block(("graphs", made("GraphResult", **more)), process=1),
    ))  # fmt: skip
    assert compared(path) == {"=launches": 3, "=metrics": 15, "=instances": 9}
