"""The command ``what-if``, and the methods ``what_if`` of traces and sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tracekit as tk
from schemas.generate import why_schema

if TYPE_CHECKING:
    from tests.cli.conftest import Run

FIXTURES = Path("fixtures")
CAPTURE = FIXTURES / "train_amp.sqlite"
RANKS = FIXTURES / "ranks"


@pytest.mark.slow
def test_text(run: Run) -> None:
    printed = run("what-if", CAPTURE, "--edit", "all = range * removed", "--edit", "kernel * x0.5", "-q").text
    lines = printed.splitlines()
    assert lines[0].startswith("A step would take ")
    assert lines[1].startswith("Without the profiler, the likely saving is ")
    assert lines[3] == "all = range * removed: selects 3, which take 20.1 ms on the CPU in all steps"
    assert lines[4] == "kernel * x0.5: selects 230, which take 4.9 ms on the GPU in all steps"
    assert any("launch latency" in line for line in lines)


@pytest.mark.slow
def test_json_has_the_envelope_of_why(run: Run) -> None:
    answer = json.loads(run("what-if", CAPTURE, "--edit", "call *Synchronize* removed", "--format", "json").text)
    assert why_schema.validate(answer, why_schema.WHAT_IF_FILE) == []
    why = json.loads(run("why", CAPTURE, "--format", "json").text)
    assert list(answer) == list(why)
    assert answer["tool"] == why["tool"]
    assert answer["input"] == [str(CAPTURE)]
    data = answer["data"]
    assert data["step"] == why["data"]["step"]
    assert data["replay_error"] == why["data"]["replay_error"]
    assert sum(part["ns"] for part in data["ledger"]) == data["after_ns"]
    assert data["saving"] == pytest.approx(1 - data["after_ns"] / data["before_ns"], abs=1e-6)
    assert [edit["edit"] for edit in data["edits"]] == ["call *Synchronize* removed"]


@pytest.mark.slow
def test_the_ledger_without_a_change_is_that_of_why(run: Run) -> None:
    answer = json.loads(run("what-if", CAPTURE, "--edit", "kernel * x1", "--format", "json").text)["data"]
    why = json.loads(run("why", CAPTURE, "--format", "json").text)["data"]
    assert answer["after_ns"] == answer["before_ns"] == why["step"]["median_ns"]
    before, after = ({part["part"]: part["ns"] for part in each["ledger"]} for each in (why, answer))
    assert before.keys() == after.keys()
    assert all(after[part] == pytest.approx(ns, abs=0.01 * why["step"]["median_ns"]) for part, ns in before.items())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("kernel *", "invalid edit 'kernel *': '*' is no action (character 8)"),
        ("range nothing removed", "the edit 'range nothing removed' matches nothing in the steady steps"),
        ("rank 3: kernel * x2", "the edit 'rank 3: kernel * x2' applies to no rank"),
        ("kernel \x1b]0;x\x07 x2", "matches nothing in the steady steps"),
    ],
)
def test_errors(run: Run, edit: str, message: str) -> None:
    result = run("what-if", CAPTURE, "--edit", edit, status=1)
    assert message in result.stderr
    assert "Hint: " in result.stderr
    assert "\x1b" not in result.stderr
    assert result.stdout == b""


def test_an_edit_is_required(run: Run) -> None:
    assert "Missing option '--edit'" in run("what-if", CAPTURE, status=2).stderr


@pytest.mark.slow
def test_ranks(run: Run) -> None:
    edits = ["kernel * x2", "rank 1: call * x2"]
    printed = run("what-if", RANKS, "--edit", edits[0], "--edit", edits[1], "-q").text
    assert printed.startswith("Rank 1, the slowest: A step would take ")
    assert "\nrank 0: A step would still take " in printed
    assert "note: ranks are replayed separately" in printed
    answer = tk.load_many(RANKS).what_if(edits)
    assert [rank.rank for rank in answer.ranks] == [0, 1]
    assert [[match.number for match in rank.edits] for rank in answer.ranks] == [[0], [0, 1]]
    with pytest.raises(tk.errors.UnknownFormatError, match="applies to no rank") as error:
        tk.load_many(RANKS).what_if("rank 2-9: kernel * x2")
    assert error.value.hint == "the ranks are 0, 1"


@pytest.mark.slow
def test_a_set_of_one_rank() -> None:
    traces = tk.load_many([CAPTURE], ranks={CAPTURE.name: 0})
    answer = traces.what_if("rank 0: kernel * x2")
    assert (answer.rank, answer.ranks) == (0, ())
    assert answer.after_ns == tk.load(CAPTURE).what_if("kernel * x2").after_ns


@pytest.mark.parametrize("step_time_ns", [0, -5])
def test_a_step_takes_time(step_time_ns: int, run: Run) -> None:
    """A duration without the profiler has to be positive, on the command line and in Python."""
    with tk.load(CAPTURE) as trace, pytest.raises(tk.TracekitError, match=f"cannot be {step_time_ns} ns"):
        trace.what_if("kernel * x2", step_time_ns=step_time_ns)
    with pytest.raises(tk.TracekitError, match=f"cannot be {step_time_ns} ns"):
        tk.load_many(RANKS).why(step_time_ns=step_time_ns)
    for command in (["why"], ["what-if", "--edit", "kernel * x2"]):
        assert "positive duration" in run(*command, CAPTURE, f"--step-time={step_time_ns}us", status=2).stderr


@pytest.mark.parametrize("capture", ["empty.sqlite", "cpu_only.sqlite"])
def test_captures_without_gpu_work_have_an_answer(run: Run, capture: str) -> None:
    answer = json.loads(run("what-if", FIXTURES / capture, "--edit", "kernel * x2", "--format", "json", "-q").text)
    assert why_schema.validate(answer, why_schema.WHAT_IF_FILE) == []
    why = json.loads(run("why", FIXTURES / capture, "--format", "json", "-q").text)
    assert answer["status"] == why["status"]
    assert answer["data"]["sentence"] == why["data"]["sentence"]
    assert run("what-if", FIXTURES / capture, "--edit", "kernel * x2", "-q").text.startswith(
        why["data"]["sentence"][:40]
    )
