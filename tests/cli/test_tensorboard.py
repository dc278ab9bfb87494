"""Verbs around TensorBoard: captures become runs, and are joined with graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run

pytestmark = pytest.mark.slow

FIXTURES = Path(__file__).parents[2] / "fixtures"
TRAIN = FIXTURES / "train_amp.sqlite"


@pytest.fixture
def run_folder(run: Run, tmp_path: Path) -> Path:
    folder = tmp_path / "train.tensorboard"
    assert run("convert", TRAIN, folder).stderr == f"wrote {folder}\n"
    return folder


def test_a_capture_becomes_a_run(run: Run, run_folder: Path) -> None:
    assert [p.name for p in run_folder.iterdir()] == ["events.out.tfevents.1795227522.tracekit"]
    facts = json.loads(run("info", "--json", run_folder).text)
    assert facts["format"] == "tfevents"
    again = run("convert", TRAIN, run_folder, status=1)
    assert "the output already exists" in again.stderr


def test_options_say_what_is_written(run: Run, tmp_path: Path) -> None:
    some = ("--to", "tfevents", "--iterations", "1:2", "--option", "steps=1", "-q")
    run("convert", TRAIN, tmp_path / "some", *some)
    tags = run("rows", tmp_path / "some", "step_stats", "-n", "0", "--columns", "tag", "--format", "csv").text
    assert set(tags.split("\n")) == {"tag", "all iterations", "step 1", ""}
    wrong = run("convert", TRAIN, tmp_path / "wrong", "--to", "tfevents", "--option", "time=wall", status=1)
    assert "'wall' is not a valid value of the option 'time'" in wrong.stderr


def test_a_graph_is_summed_up(run: Run, run_folder: Path) -> None:
    done = run("stats", TRAIN, "-r", "graph_summary", "--graph", run_folder, "--format", "json")
    assert done.stderr == "the graph contains 60 of 60 ops (100.0% of GPU time), 60 by spelling\n"
    first = json.loads(done.text)[0]
    assert (first["Scope"], first["Nodes"], first["Executed"]) == ("(whole graph)", 60, 60)
    some = run("stats", TRAIN, "-r", "graph_summary", "--graph", run_folder, "--iterations", "2:3", "--format", "json")
    assert 0 < json.loads(some.text)[0]["Executed"] < 60


def test_without_a_graph_there_is_no_summary(run: Run) -> None:
    assert "Hint: join a graph with --graph FILE" in run("stats", TRAIN, "-r", "graph_summary", status=1).stderr
    other = run("stats", TRAIN, "-r", "graph_summary", "--graph", TRAIN, status=1)
    assert "the trace has no nodes of a graph to join" in other.stderr
