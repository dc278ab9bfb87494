"""Causes across ranks, on jobs whose late rank is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.builders.jobs import Job, straggle
from tests.builders.programs import MS, US
from tracekit.core.diagnosis import Why, explain_job, ranks


@pytest.fixture(scope="module")
def straggler() -> Why:
    """The answer for two ranks of which rank 1 loads data for 8 ms in every step."""
    return straggle().diagnose()


@pytest.mark.slow
def test_a_late_rank_is_named_with_its_range_and_its_saving(straggler: Why) -> None:
    answer = straggler
    cause = answer.causes[0]
    assert (cause.cause, cause.place.range, cause.place.rank) == ("late_rank", "data", 1)
    assert cause.evidence.text.startswith("rank 1 is late by 7.95 ms in every step: it loads data, it works on the CPU")
    assert cause.saving.low < 7.95 / 9.71 < cause.saving.high
    assert "data_loading" not in [c.cause for c in answer.causes]
    assert answer.sentence.startswith("Steady step 9.71 ms (rank 1, the slowest of 2); the GPU computes 12% of it: ")
    assert "late rank in 'data' (rank 1 is late by 7.95 ms in every step) costs about" in answer.sentence
    rows = next(rows for rows in cause.rows if rows.table == "nvtx_ranges")
    assert rows.names == ("data",)


def test_ranks_have_their_own_steps_and_waits(straggler: Why) -> None:
    answer = straggler
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


@pytest.mark.slow
def test_a_rank_that_is_late_in_some_steps_is_named_with_the_steps() -> None:
    answer = straggle(4, late=2, every=5, count=20, offsets=(0, 7 * MS, 1000 * MS, 3)).diagnose()
    cause = next(c for c in answer.causes if c.cause == "late_rank")
    assert cause.place.rank == 2
    assert "rank 2 is late by 7.95 ms in 4 of 20 steps (every fifth step)" in cause.evidence.text
    assert cause.evidence.brief == "rank 2 is late by 7.95 ms every fifth step"


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


def test_processes_of_one_capture_are_ranks(straggler: Why) -> None:
    apart, together = straggler, straggle().merge().diagnose()
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


@pytest.mark.slow
def test_equal_ranks_have_no_late_rank() -> None:
    answer = straggle(late=-1).diagnose()
    assert not {c.cause for c in answer.causes} & {"late_rank", "imbalance", "barrier"}


def test_a_rank_that_does_other_work_longer_is_named_with_it() -> None:
    def body(job: Job, number: int) -> None:
        job.compute([MS, MS])
        job.work("save checkpoint", [20 * US, 3 * MS])
        job.all_reduce()
        job.synchronize()

    cause = Job().steps(8, body).diagnose().causes[0]
    assert "it writes files, it works on the CPU for 3 ms per step, the others for 20 µs" in cause.evidence.text


def test_the_work_that_all_ranks_do_is_a_cause_of_its_own() -> None:
    def body(job: Job, number: int) -> None:
        job.work("data", [4 * MS, 6 * MS])
        job.compute([MS, MS])
        job.all_reduce()
        job.synchronize()

    answer = Job().steps(8, body).diagnose()
    by_name = {c.cause: c for c in answer.causes}
    assert by_name["late_rank"].saving.likely == pytest.approx(2 / 7.66, abs=0.05)
    assert by_name["data_loading"].saving.likely > 0.6
    assert answer.together <= 1
    assert answer.together == pytest.approx(sum(c.after for c in answer.causes))


@pytest.mark.slow
def test_several_late_ranks_of_many_are_all_late() -> None:
    def body(job: Job, number: int) -> None:
        job.work("data", [5 * MS if rank in (1, 4) else 50 * US for rank in range(5)])
        job.compute([MS] * 5)
        job.all_reduce()
        job.synchronize()

    job = Job(5).steps(6, body)
    plans, _ = job.plan()
    assert [rank for rank, plan in plans.items() if plan[rank + 1].excesses] == [1, 4]
    cause = job.diagnose().causes[0]
    assert (cause.cause, cause.saving.likely > 0.6) == ("late_rank", True)


def test_a_rank_that_is_late_for_unknown_reasons_is_no_cause() -> None:
    def body(job: Job, number: int) -> None:
        for rank, program in enumerate(job.ranks):
            program.launch("k", MS, delay=7 * US if rank == 0 else 4 * MS, device_id=rank)
        job.all_reduce()
        job.synchronize()

    job = Job().steps(6, body)
    assert not job.plan()[0][1][2].excesses
    assert "late_rank" not in {c.cause for c in job.diagnose().causes}


def test_missing_ranks_are_named_and_the_others_are_compared() -> None:
    job = straggle(3, late=2, communicator_size=4)
    job.create_communicator()
    answer = job.diagnose()
    assert answer.causes[0].place.rank == 2
    start = "a communicator has 4 ranks, but the captures contain only 3 of them: rank 3 of it is missing"
    assert answer.notes[0] == f"{start}, so others may be later"


def test_many_missing_ranks_are_counted() -> None:
    job = straggle(2, communicator_size=64)
    job.create_communicator()
    [note] = job.plan()[1]
    assert "contain only 2 of them: ranks 2, 3, 4, 5, 6, 7, 8, 9, … of it are missing" in note


def test_programs_without_communication_are_separate() -> None:
    def body(job: Job, number: int) -> None:
        job.work("data", [MS, 3 * MS])
        job.compute([MS, MS])
        job.synchronize()

    answer = Job().steps(6, body).diagnose()
    assert answer.notes[0] == "the ranks have no communication in common, so they are treated as separate programs"
    assert [rank.causes[0].cause for rank in answer.ranks] == ["data_loading", "data_loading"]
    assert answer.rank == 1


def test_clocks_that_nothing_aligns_are_stated() -> None:
    def body(job: Job, number: int) -> None:
        job.compute([MS, MS])
        job.all_reduce(kind="Broadcast")
        job.synchronize()

    answer = Job().steps(6, body).diagnose()
    assert answer.notes[0].startswith("the clocks of the ranks cannot be aligned by collectives")


def test_ranks_with_different_numbers_of_steps_are_compared_in_common_ones() -> None:
    job = straggle(count=12)
    job.cut(1, 4, 8)
    answer = job.diagnose()
    assert [rank.step.count for rank in answer.ranks if rank.step] == [12, 8]
    assert answer.causes[0].cause == "late_rank"
    assert "in every step" in answer.causes[0].evidence.text
    assert "savings are predicted from 8 of 12 steps" in answer.ranks[0].notes


@pytest.mark.slow
def test_ranks_without_common_steps_are_explained_on_their_own() -> None:
    job = straggle(3, count=12)
    job.cut(1, 0, 4)
    job.cut(2, 8, 4)
    answer = job.diagnose()
    assert answer.notes[0] == "the ranks have no steps in common, so each one is explained on its own"
    assert len(answer.ranks) == 3


def test_jobs_with_many_events_are_predicted_from_some_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    job = straggle(every=4, count=12)
    size = job.plan()[0][0][1].steps
    assert size == (0, 11)
    monkeypatch.setattr(ranks, "MAX_ITEMS", 40)
    first, last = job.plan()[0][0][1].steps or (0, 0)
    assert 1 <= last - first + 1 < 12


def test_the_time_without_the_profiler_calibrates_all_ranks() -> None:
    answer = straggle().diagnose(step_ns=6 * MS)
    cause = answer.causes[0]
    assert cause.cause == "late_rank"
    assert 0.5 < cause.saving.likely < 7.95 / 9.71


@pytest.mark.parametrize("barriers", [True, False])
def test_ranks_that_are_slow_in_turn_wait_in_barriers(barriers: bool) -> None:
    """Between two barriers, the job is as slow as the slowest rank, and without them only in each step."""

    def body(job: Job, number: int) -> None:
        for part in range(4):
            job.work("data", [MS, 3 * MS] if part % 2 else [3 * MS, MS])
            job.compute([100 * US, 100 * US])
            job.all_reduce(20 * US, size=4 if barriers else 1 << 20)
            if barriers:
                job.synchronize()

    causes = {c.cause: c.saving for c in Job().steps(6, body).diagnose().causes}
    assert ("barrier" in causes) == barriers
    if barriers:
        assert 0.28 < causes["barrier"].likely < 0.38


def test_barriers_that_some_ranks_lack() -> None:
    """Ranks with different numbers of barriers are compared by steps."""

    def body(job: Job, number: int) -> None:
        job.work("data", [MS, 3 * MS])
        job.compute([100 * US, 100 * US])
        job.all_reduce(20 * US, size=4)
        if number:
            job.synchronize()
        else:
            job.ranks[0].wait()

    examinations, _ = Job().steps(6, body).examine()
    assert examinations[0].unit_starts != examinations[1].unit_starts
    merged = [e.merge_units() for e in examinations]
    for before, after in zip(examinations, merged, strict=True):
        assert after.unit_starts == tuple(range(6))
        assert before.base is not None
        assert after.base is not None
        assert after.base.sum(axis=-1).tolist() == before.base.sum(axis=-1).tolist()
    answer = explain_job(examinations)
    assert answer.causes[0].cause == "late_rank"
    assert replace(examinations[0], base=None).merge_units().base is None


def test_barriers_of_nccl_are_named() -> None:
    def body(job: Job, number: int) -> None:
        for _ in range(4):
            job.compute([100 * US, 100 * US])
            job.all_reduce(20 * US, size=4)
            job.synchronize()

    cause = next(c for c in Job().steps(6, body).diagnose().causes if c.cause == "barrier")
    assert cause.evidence.text.startswith("the ranks wait for one another in barriers 4 times per step")
    assert cause.saving.likely > 0.02
    assert cause.evidence.table == "kernels"


def test_barriers_of_mpi_are_named() -> None:
    def body(job: Job, number: int) -> None:
        job.compute([100 * US, 100 * US])
        job.synchronize()
        starts = [program.now for program in job.ranks]
        job.mpi(ns=300 * US)
        for program, start in zip(job.ranks, starts, strict=True):
            program.range("barrier", start, program.now)

    answer = Job().steps(6, body).diagnose()
    cause = next(c for c in answer.causes if c.cause == "barrier")
    assert (cause.place.range, cause.evidence.table) == ("barrier", "api_calls")
    assert {p.part: p.group for p in answer.ledger}["communication"] == "communication"


def test_waits_in_calls_of_mpi_are_part_of_the_ledger() -> None:
    def body(job: Job, number: int) -> None:
        job.compute([100 * US, 100 * US])
        job.synchronize()
        job.work("data", [300 * US, 2 * MS])
        job.mpi("MPI_Allreduce", 200 * US)

    answer = Job().steps(6, body).diagnose()
    parts = [{p.part: p.ns for p in rank.ledger} for rank in answer.ranks]
    assert parts[0]["communication_wait"] == 1_700_000
    assert "communication_wait" not in parts[1]
    assert [p["communication"] for p in parts] == [200_000, 200_000]
    assert answer.causes[0].cause == "late_rank"


def test_communication_is_exposed_for_each_communicator() -> None:
    def body(job: Job, number: int) -> None:
        job.compute([2 * MS, 2 * MS])
        job.all_reduce(MS, communicator=5)
        job.compute([2 * MS, 2 * MS], "backward")
        job.all_reduce(2 * MS, communicator=6)

    answer = Job().steps(8, body).diagnose()
    texts = [c.evidence.text for c in answer.causes if c.cause == "communication_exposed"]
    assert sorted(t.split(":")[0][-14:] for t in texts) == ["communicator 5", "communicator 6"]
    assert all(c.status == "answered" for c in answer.causes)


def test_many_small_messages_are_named_without_their_waits() -> None:
    def body(job: Job, number: int) -> None:
        job.work("data", [50 * US, MS])
        job.compute([MS, MS])
        for _ in range(20):
            job.all_reduce(20 * US, size=4096)
        job.synchronize()

    cause = next(c for c in Job().steps(6, body).diagnose().causes if c.cause == "small_messages")
    assert cause.evidence.text.startswith("20 collectives per step transfer data for less than 50 µs each")


@pytest.mark.slow
def test_a_job_takes_as_long_as_recorded() -> None:
    """The steps of the slowest ranks, without waiting, are those that were recorded."""
    for job in (straggle(every=3, count=9), straggle(4, late=0, count=4)):
        examinations, _ = job.examine()
        steps = [e.base[0] for e in examinations if e.base is not None]
        recorded = [e.answer.step.total_ns for e in examinations if e.answer.step is not None]
        assert np.max(np.stack(steps), axis=0).sum() == pytest.approx(recorded[0], rel=0.01)


def test_savings_of_a_job_are_shares_of_it(straggler: Why) -> None:
    for answer in (straggler, straggle(every=3, count=9).diagnose()):
        assert answer.together <= 1
        for cause in answer.causes:
            assert 0 <= cause.saving.low <= cause.saving.likely <= cause.saving.high <= 1
            assert cause.after <= cause.saving.high


def test_communication_beside_computation_is_no_cause() -> None:
    def body(job: Job, number: int) -> None:
        job.compute([4 * MS, 4 * MS])
        job.all_reduce(MS, stream=9)
        job.synchronize()

    answer = Job().steps(6, body).diagnose()
    assert "communication_exposed" not in {c.cause for c in answer.causes}
    assert "communication" not in {p.part for p in answer.ledger}


def test_a_rank_that_cannot_be_replayed_is_left_out_of_the_prediction() -> None:
    first, second = straggle().examine()[0]
    answer = explain_job([replace(first, base=None, cures=()), second])
    assert (answer.rank, answer.causes[0].cause, len(answer.ranks)) == (1, "late_rank", 2)
    neither = explain_job([replace(e, base=None, cures=()) for e in (first, second)])
    assert (neither.causes, len(neither.ranks)) == ((), 2)
