"""``tracekit why``: the answer as text and as JSON, for every kind of input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import FIXTURES

if TYPE_CHECKING:
    from tests.cli.conftest import Run

TRAIN = FIXTURES / "train_amp.sqlite"
INPUTS = sorted(
    p.relative_to(FIXTURES).as_posix()
    for pattern in ("*.sqlite", "*.nsys-rep", "*.ncu-rep", "*.trace.json.gz", "*.pb", "*.pbtxt", "events.out*", "*dir")
    for p in FIXTURES.rglob(pattern)
    if "golden" not in p.parts
)


@pytest.mark.slow
def test_an_answer(run: Run) -> None:
    """The sentence, the ledger, the causes with their changes, and the warm-up."""
    lines = run("why", TRAIN, "--quiet").text.splitlines()
    assert lines[0].startswith("Steady step ")
    assert lines[1] == ""
    assert "%" in lines[2]
    text = "\n".join(lines)
    assert "idle: launch calls in 'Backward pass'" in text
    assert "\n  1. " in text
    assert "\n     change: " in text
    assert "\nall together: " in text
    assert "\nthe first step takes 458 ms:" in text


def test_an_object(run: Run) -> None:
    envelope = json.loads(run("why", TRAIN, "--quiet", "--format", "json").text)
    assert list(envelope) == ["schema", "tool", "input", "status", "warnings", "data"]
    assert envelope["input"] == [str(TRAIN)]
    data = envelope["data"]
    assert envelope["status"] == data["status"] == "answered"
    assert sum(part["ns"] for part in data["ledger"]) == data["step"]["median_ns"]


@pytest.mark.slow
def test_the_duration_of_a_step_without_the_profiler(run: Run) -> None:
    data = json.loads(run("why", TRAIN, "--quiet", "--format", "json").text)["data"]
    step_ms = data["step"]["median_ns"] / 1e6
    timed = run("why", TRAIN, "--quiet", "--format", "json", "--step-time", f"{step_ms / 2:.3f}ms")
    calibrated = json.loads(timed.text)["data"]
    assert calibrated["ledger"] == data["ledger"]
    assert calibrated["causes"] != data["causes"]


@pytest.mark.parametrize("value", ["fast", "-1ms", "0", "5 parsecs"])
def test_invalid_durations(run: Run, value: str) -> None:
    assert "--step-time" in run("why", TRAIN, "--step-time", value, status=2).stderr


@pytest.mark.slow
def test_a_set(run: Run) -> None:
    """The answer of a job has those of its ranks."""
    ranks = [FIXTURES / "ranks" / f"mpi_rank{rank}.nsys-rep" for rank in (0, 1)]
    data = json.loads(run("why", *ranks, "--quiet", "--format", "json").text)["data"]
    assert [rank["rank"] for rank in data["ranks"]] == [0, 1]
    assert data["sentence"] in run("why", *ranks, "--quiet").text.replace("\n", " ")


@pytest.mark.many(8)
@pytest.mark.parametrize("name", INPUTS)
def test_every_input_has_an_answer(run: Run, name: str) -> None:
    done = run("why", FIXTURES / name, "--quiet", "--format", "json")
    data = json.loads(done.text)["data"]
    assert data["sentence"].endswith((".", ")."))
    assert data["status"] in {"answered", "nothing_found", "not_recorded", "not_applicable", "unsure"}
    is_without_gpu_work = data["sentence"].startswith("No GPU work was recorded")
    assert (data["step"] is None) == (is_without_gpu_work or data["status"] in {"not_recorded", "not_applicable"})
    assert sum(part["ns"] for part in data["ledger"]) == (data["step"]["median_ns"] if data["step"] else 0)


def test_results_of_nsight_compute_beside_a_timeline(run: Run) -> None:
    text = run("why", FIXTURES / "train_amp.nsys-rep", FIXTURES / "ncu" / "ncu_basic.ncu-rep", "--quiet").text
    assert "Nsight Compute measured 3 of these 15 kernels" in text


def test_other_files(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing")
    assert "Hint:" in run("why", path, status=1).stderr
