"""Answers of ``why`` for the captures of several ranks."""

from __future__ import annotations

import pickle
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tracekit.core.diagnosis import Why
from tracekit.core.diagnosis.texts import write_explanation
from tracekit.sets.engines import LocalEngine

if TYPE_CHECKING:
    from pathlib import Path

STRAGGLER = [FIXTURES / "why" / f"ddp_straggler_rank{rank}.nsys-rep" for rank in (0, 1)]


@pytest.fixture(scope="module")
def straggler() -> Why:
    return tk.load_many(STRAGGLER).why()


@pytest.mark.slow
def test_the_late_rank_of_a_job_is_its_first_cause(straggler: Why) -> None:
    cause = straggler.causes[0]
    assert (cause.cause, cause.place.rank, cause.place.range) == ("late_rank", 1, "data")
    assert cause.evidence.text.startswith("rank 1 is late by 12 ms in every step: it loads data")
    assert cause.saving.low < 0.6746 < cause.saving.high
    assert "data_loading" not in [c.cause for c in straggler.causes]
    data = straggler.to_dict()
    assert data["causes"][0]["place"]["rank"] == 1
    assert [rank["step"]["median_ns"] // 1_000_000 for rank in data["ranks"]] == [19, 19]


class PicklingEngine(LocalEngine):
    """An engine that sends functions, members and results as to another process."""

    def map(self, function: Any, members: Any) -> Any:
        """Apply a function to copies of members."""
        for member in members:
            copied_function, copied_member = pickle.loads(pickle.dumps((function, member)))
            yield member, pickle.loads(pickle.dumps(copied_function(copied_member)))


@pytest.mark.slow
def test_other_processes_compute_the_same(straggler: Why) -> None:
    assert tk.load_many(STRAGGLER, engine=PicklingEngine()).why() == straggler


@pytest.mark.slow
def test_ranks_that_cannot_be_explained_are_stated(straggler: Why, tmp_path: Path) -> None:
    for rank, path in enumerate([*STRAGGLER, STRAGGLER[0], FIXTURES / "cpu_only.nsys-rep"]):
        shutil.copy(path, tmp_path / f"rank{rank}.nsys-rep")
    broken = tmp_path / "rank2.nsys-rep"
    broken.write_bytes(broken.read_bytes()[:100_000])
    ranks = {f"rank{rank}.nsys-rep": rank for rank in range(4)}
    with pytest.warns(tk.TracekitWarning, match="rank 2 is left out"):
        answer = tk.load_many(tmp_path, ranks=ranks).why()
    assert answer.causes == straggler.causes
    assert [rank.status for rank in answer.ranks] == ["answered", "answered", "not_recorded", "not_recorded"]
    assert answer.notes[0] == answer.ranks[2].sentence
    assert "its capture cannot be read: the report is unfinished" in answer.notes[0]
    assert answer.ranks[3].sentence.startswith("No GPU work was recorded")


def test_ranks_of_which_none_can_be_read_are_an_error(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.nsys-rep").write_bytes(STRAGGLER[rank].read_bytes()[:100_000])
    traces = tk.load_many(tmp_path, ranks={f"rank{rank}.nsys-rep": rank for rank in range(2)})
    with pytest.warns(tk.TracekitWarning), pytest.raises(tk.TracekitError, match="unfinished"):
        traces.why()


def test_one_rank_is_explained_as_a_trace() -> None:
    traces = tk.load_many(STRAGGLER).select(ranks=[1])
    assert traces.why() == tk.load(STRAGGLER[1]).why()


def test_ranks_without_gpu_work_have_a_sentence() -> None:
    answer = tk.load_many(
        [FIXTURES / "cpu_only.nsys-rep", FIXTURES / "empty.nsys-rep"],
        ranks={"cpu_only.nsys-rep": 0, "empty.nsys-rep": 1},
    ).why()
    assert [rank.rank for rank in answer.ranks] == [0, 1]
    assert answer.status in {"not_recorded", "not_applicable"}


def test_each_rank_has_a_line(straggler: Why) -> None:
    lines = write_explanation(straggler).ranks
    assert list(lines) == [f"rank {rank.rank}: {rank.sentence}" for rank in straggler.ranks]
    many = Why("", "answered", ranks=tuple(Why("it waits", "answered", rank=rank) for rank in range(20)))
    assert write_explanation(many).ranks[-1] == "4 more ranks"


@pytest.mark.slow
def test_results_of_nsight_compute_belong_to_the_ranks_beside_them(straggler: Why, tmp_path: Path) -> None:
    results = FIXTURES / "ncu" / "ncu_basic.ncu-rep"
    (timeline,) = (shutil.copy(FIXTURES / "train_amp.nsys-rep", tmp_path / "run.nsys-rep"),)
    for engine in (None, PicklingEngine()):
        answer = tk.load_many([timeline, results], engine=engine).why()
        with tk.load(timeline) as trace, tk.load(results) as measured:
            assert answer == trace.join_ncu(measured).why()
    job = tk.load_many([*STRAGGLER, results])
    assert job.ranks == [0, 1, 2]
    assert [rank.rank for rank in job.why().ranks] == [0, 1]
    assert job.why().ledger == straggler.ledger
    copies = [shutil.copy(results, tmp_path / f"rank{rank}.ncu-rep") for rank in (0, 1)]
    assert tk.load_many([*STRAGGLER, *copies]).why().ledger == straggler.ledger
    with pytest.raises(tk.TracekitError, match="the rank to which these results of Nsight Compute belong is unknown"):
        tk.load_many([*STRAGGLER, copies[0], results]).why()


def test_ranks_without_kernels_are_explained_without_results(tmp_path: Path) -> None:
    results = FIXTURES / "ncu" / "ncu_basic.ncu-rep"
    timeline = shutil.copy(FIXTURES / "cpu_only.nsys-rep", tmp_path / "run.nsys-rep")
    assert tk.load_many([timeline, results]).why().status == "not_recorded"
    ranks = {"run.nsys-rep": 0, "ncu_session.csv": 1}
    session = FIXTURES / "ncu" / "ncu_session.csv"
    timeline = shutil.copy(FIXTURES / "train_amp.nsys-rep", tmp_path / "run.nsys-rep")
    assert tk.load_many([timeline, session], ranks=ranks).why() == tk.load(timeline).why()
