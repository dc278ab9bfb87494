"""Every command that analyzes prints its answer in the same envelope with ``--format answer``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.answers.test_envelope import check
from tests.builders.check_runs import make_run, make_runs
from tests.cli.conftest import Run
from tests.conftest import FIXTURES
from tracekit.answers import Envelope
from tracekit.sets.comparison import write_baseline

AMP = FIXTURES / "train_amp.sqlite"


def ask(run: Run, *arguments: str | Path, status: int = 0) -> dict[str, Any]:
    """Return the envelope that a command prints, after checking its form."""
    return check(Envelope.from_dict(json.loads(run(*arguments, "--format", "answer", status=status).text)))


def test_stats(run: Run) -> None:
    values = ask(run, "stats", AMP, "-r", "cuda_gpu_kern_sum:base,osrt_sum,graph_summary", "-n", "2", "--time", "0:1s")
    assert values["question"] == {
        "command": "stats",
        "names": ["cuda_gpu_kern_sum:base", "osrt_sum", "graph_summary"],
        "scope": {"time": [0, 1_000_000_000]},
    }
    assert [result["status"] for result in values["results"]] == ["answered", "not_recorded", "not_recorded"]
    assert values["results"][2]["hint"] == "join a graph with --graph FILE or Trace.join_graph"
    assert values["inputs"][0]["steps"]["count"] == 3
    values = ask(run, "stats", AMP, "-r", "nvtx_sum", "--iterations", "1:2")
    assert values["question"]["scope"] == {"iterations": [1, 2]}
    assert "--iterations has no effect on nvtx_sum" in values["warnings"][-1]


def test_analyze_rows_and_info(run: Run) -> None:
    values = ask(run, "analyze", AMP)
    assert values["question"]["names"][0] == "cuda_memcpy_async"
    assert {result["name"]: result["status"] for result in values["results"]}["gpu_gaps"] == "nothing_found"
    values = ask(run, "rows", AMP, "kernels", "--where", "kernel_id in (53, 137)", "--columns", "kernel_id,duration_ns")
    assert values["results"][0]["rows"] == [
        {"kernel_id": 53, "duration_ns": 20063},
        {"kernel_id": 137, "duration_ns": 992},
    ]
    assert values["results"][0]["columns"][1]["unit"] == "ns"
    values = ask(run, "rows", AMP, "kernels", "--where", "kernel_id < 0")
    assert (values["status"], values["reason"]) == ("nothing_found", "no row meets the condition")
    values = ask(run, "info", AMP)
    tables = {result["name"]: result["rows"] for result in values["results"]}
    assert {"rank": None, "table": "kernels", "rows": 334} in tables["tables"]
    assert len(tables["devices"]) == 2


def test_several_inputs_of_info_are_several_answers(run: Run) -> None:
    lines = run("info", FIXTURES / "ranks", "--format", "answer").text.splitlines()
    assert [Envelope.from_dict(json.loads(line)).inputs[0].format for line in lines] == ["nsys-rep", "nsys-rep"]
    assert run("info", AMP, "--format", "json").text == run("info", AMP, "--json").text


def test_recipe_and_diff(run: Run, tmp_path: Path) -> None:
    values = ask(run, "recipe", "mpi_sum", FIXTURES / "ranks", "-n", "3")
    assert (len(values["results"][0]["rows"]), len(values["inputs"])) == (3, 2)
    copy = Path(shutil.copy(AMP, tmp_path / "copy.sqlite"))
    values = ask(run, "diff", AMP, copy, "--by", "kernels,copies", "-n", "1")
    assert [each["side"] for each in values["inputs"]] == ["a", "b"]
    assert values["inputs"][0]["content_id"] == values["inputs"][1]["content_id"]
    assert values["sentence"].startswith("A and B are equal")
    assert values["status"] == "answered"


def test_why_and_what_if(run: Run) -> None:
    values = ask(run, "why", AMP)
    assert values["status"] == values["answer"]["status"] == "answered"
    assert values["answer"]["causes"][0]["rows"][0]["table"] == "api_calls"
    values = ask(run, "what-if", AMP, "--edit", "kernel * x0.5")
    assert values["question"] == {"command": "what-if", "names": ["kernel * x0.5"], "scope": {}}
    assert ask(run, "why", FIXTURES / "cpu_only.sqlite")["status"] == "not_recorded"


def test_check(run: Run, tmp_path: Path) -> None:
    sides = {"a": make_runs(6, 1, kernels=2), "b": make_runs(6, 2, kernels=2, factor=1.2), "one": make_runs(1, 3)}
    a, b, one = (write_baseline(runs, tmp_path / f"{name}.json", overwrite=False) for name, runs in sides.items())
    values = ask(run, "check", a, b, "--fail-if", "kernel_time > 5%", "--alpha", "0.04", "-n", "2", status=3)
    assert (values["status"], values["answer"]["outcome"], values["answer"]["verdict"]) == (
        "answered",
        "failed",
        "slower",
    )
    assert values["question"] == {
        "command": "check",
        "names": ["kernel_time > 5%"],
        "scope": {"by": ["iterations", "nvtx_gpu", "ops", "kernels"], "alpha": 0.04},
    }
    assert (len(values["answer"]["rows"]), values["warnings"][-1]) == (2, "only the first 2 of 3 rows are listed")
    (runs,) = values["results"]
    assert [(row["side"], row["run"], row["input"]) for row in runs["rows"]] == [
        *(("a", i + 1, 0) for i in range(6)),
        *(("b", i + 1, 1) for i in range(6)),
    ]
    assert [(each["side"], each["steps"]["count"]) for each in values["inputs"]] == [("a", 60), ("b", 60)]
    assert ask(run, "check", a, a, "--fail-if", "slower > 0")["status"] == "nothing_found"
    values = ask(run, "check", one, b, "--fail-if", "api_time > 1%", status=4)
    assert (values["status"], values["answer"]["verdict"]) == ("unsure", "slower")  # the condition has no data
    assert values["reason"].startswith("api_time > 1% cannot be tested: ")
    none = write_baseline([make_run({("kernels", "k"): 5}, iterations=0)], tmp_path / "none.json", overwrite=False)
    values = ask(run, "check", none, none, status=4)
    assert (values["status"], values["results"][0]["rows"][0]["step_ns"]) == ("not_recorded", None)
    assert values["reason"] == "the duration of a step was not recorded in every run"


def test_the_runs_of_a_check_have_their_captures_and_steps(run: Run) -> None:
    report = FIXTURES / "train_amp.nsys-rep"
    values = ask(run, "check", AMP, report, "--by", "kernels", status=4)
    assert (values["status"], values["answer"]["outcome"]) == ("unsure", "untestable")
    assert values["reason"].startswith("the variation between runs is unknown: record at least 3 runs of each side")
    assert values["hint"].startswith("record more runs of both sides")
    (runs,) = values["results"]
    assert [values["inputs"][row["input"]]["format"] for row in runs["rows"]] == ["nsys-sqlite", "nsys-rep"]
    ids = runs["evidence"][0]
    steps = json.loads(run("rows", AMP, "iterations", "--format", "json").text)
    used = [step for step in steps if step["iteration"] in ids["ids"]]
    assert len(used) == ids["count"] == 3
    total = sum(step["end_ns"] - step["start_ns"] for step in used)
    assert runs["rows"][0]["step_ns"] == pytest.approx(total / 3, rel=1e-12)


def test_an_answer_can_be_written_to_a_file(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "answer.json"
    run("stats", AMP, "-r", "cuda_gpu_sum", "--format", "answer", "-o", out)
    assert check(Envelope.from_dict(json.loads(out.read_text("utf-8"))))["status"] == "answered"
    run("tables", AMP, "--format", "answer", status=2)


def test_the_schema_of_the_envelope_can_be_printed(run: Run) -> None:
    assert json.loads(run("schema", "answer", "--format", "json").text)["title"] == "tracekit answer"
    assert "print its JSON Schema with --format json" in run("schema", "answer", status=2).stderr
    assert "answer" in json.loads(run("schema", "--format", "json").text)["$defs"]


@pytest.mark.parametrize("secret", ["pass-w0rd"])
def test_a_url_is_shown_without_secrets(secret: str) -> None:
    from tracekit.answers.captures import _format_path

    assert secret not in _format_path(f"https://user:{secret}@host/report.nsys-rep?token={secret}")
