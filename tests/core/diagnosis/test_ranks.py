"""Causes across ranks, on jobs whose late rank is known."""

from __future__ import annotations

import pytest
from tests.core.diagnosis.jobs import Job, straggle
from tests.core.diagnosis.programs import MS, US


def test_a_late_rank_is_named_with_its_range_and_its_saving() -> None:
    answer = straggle().diagnose()
    cause = answer.causes[0]
    assert (cause.cause, cause.place.range, cause.place.rank) == ("late_rank", "data", 1)
    assert cause.evidence.text.startswith("rank 1 is late by 7.95 ms in every step: it loads data, it works on the CPU")
    assert cause.saving.low < 7.95 / 9.71 < cause.saving.high
    assert "data_loading" not in [c.cause for c in answer.causes]
    assert "late rank (rank 1) in 'data' costs about" in answer.sentence


def test_ranks_have_their_own_steps_and_waits() -> None:
    answer = straggle().diagnose()
    assert [rank.rank for rank in answer.ranks] == [0, 1]
    waits = [{p.part: p.ns for p in rank.ledger}.get("communication_wait", 0) for rank in answer.ranks]
    assert waits == [7_950_000, 0]
    for rank in answer.ranks:
        assert rank.step is not None
        assert sum(part.ns for part in rank.ledger) == rank.step.median_ns
        assert sum(part.total_ns for part in rank.ledger) == rank.step.total_ns
    assert "the rank waits for others for 7.95 ms (82%)" in answer.ranks[0].sentence
    assert answer.rank == 1
    assert [rank["rank"] for rank in answer.to_dict()["ranks"]] == [0, 1]


def test_a_rank_that_is_late_in_some_steps_is_named_with_the_steps() -> None:
    answer = straggle(4, late=2, every=5, count=20, offsets=(0, 7 * MS, 1000 * MS, 3)).diagnose()
    cause = next(c for c in answer.causes if c.cause == "late_rank")
    assert cause.place.rank == 2
    assert "rank 2 is late by 7.95 ms in 4 of 20 steps (every fifth step)" in cause.evidence.text


def test_ranks_that_are_late_in_turn_are_cured_together() -> None:
    def body(job: Job, number: int) -> None:
        job.work("data", [8 * MS if number % 2 == rank else 50 * US for rank in range(2)])
        job.compute([MS, MS])
        job.all_reduce()
        job.synchronize()

    answer = Job().steps(12, body).diagnose()
    cause = answer.causes[0]
    assert cause.cause == "late_rank"
    assert cause.saving.likely > 0.7
    waits = [{p.part: p.share for p in rank.ledger}["communication_wait"] for rank in answer.ranks]
    assert waits == pytest.approx([0.42, 0.42], abs=0.02)


def test_processes_of_one_capture_are_ranks() -> None:
    apart, together = straggle().diagnose(), straggle().merge().diagnose()
    assert together.causes[0].place.rank == 1
    assert [c.saving for c in together.causes] == [c.saving for c in apart.causes]
    assert [rank.ledger for rank in together.ranks] == [rank.ledger for rank in apart.ranks]


def test_more_work_on_the_gpu_of_one_rank_is_an_imbalance() -> None:
    def body(job: Job, number: int) -> None:
        job.compute([2 * MS, 6 * MS])
        job.all_reduce()
        job.synchronize()

    answer = Job().steps(10, body).diagnose()
    cause = answer.causes[0]
    assert (cause.cause, cause.place.range, cause.place.rank) == ("imbalance", "forward", 1)
    assert "its GPU works for 6 ms per step, those of the others for 2 ms" in cause.evidence.text
    assert cause.saving.likely == pytest.approx(2 / 6.55, abs=0.03)
    assert cause.saving.high > 4 / 6.55


def test_equal_ranks_have_no_late_rank() -> None:
    answer = straggle(late=-1).diagnose()
    assert not {c.cause for c in answer.causes} & {"late_rank", "imbalance", "barrier"}
