"""The idle time of the GPU that no cause explains."""

from __future__ import annotations

import pytest
from tests.builders.jobs import Job
from tests.builders.programs import HALF_GEMM, MS, US, Program, steps
from tracekit.core.diagnosis import Why, causes
from tracekit.core.diagnosis.answer import CauseOfTime

NAME = "gpu_idle_unexplained"


def unexplained(answer: Why) -> CauseOfTime | None:
    """Return the idle time that no cause explains."""
    return next((cause for cause in answer.causes if cause.cause == NAME), None)


def wait_for_nothing(count: int = 4) -> Program:
    """Steps with a short kernel and 2 ms of pauses that are too short to be work of the program."""
    program = Program()

    def body(_: int) -> None:
        program.launch(ns=100 * US)
        for _ in range(20):
            program.pause(100 * US)
            program.do("cudaGetDevice")

    return steps(program, count, body)


def test_idle_time_without_a_cause() -> None:
    answer = wait_for_nothing().diagnose()
    cause = unexplained(answer)
    assert cause is not None
    idle = sum(part.share for part in answer.ledger if part.group == "idle")
    assert cause.saving.high == pytest.approx(idle, abs=0.02)
    assert (cause.saving.low, cause.saving.likely, cause.after, cause.status) == (0.0, 0.0, 0.0, "unsure")
    assert cause.rows == ()
    assert (
        cause.evidence.text
        == f"no cause explains why the GPU is idle for {cause.saving.high:.0%} of the step, mostly in 'launch code'"
    )
    assert cause.missing.startswith(
        "samples of the CPU (nsys profile --sample=process-tree), calls of the operating system"
    )
    assert "Python stacks" in cause.missing
    assert cause.change == causes.get_change(NAME, "cuda")
    assert answer.status == "unsure"
    assert answer.sentence.endswith(f"and the capture does not show why it is idle for {cause.saving.high:.0%}.")
    assert answer.together == 0.0


def test_little_idle_time_is_not_reported() -> None:
    program = Program()
    assert unexplained(steps(program, 4, lambda _: program.launch(ns=10 * MS)).diagnose()) is None


def test_idle_time_that_a_cause_owns_is_explained() -> None:
    program = Program()

    def body(_: int) -> None:
        program.launch(HALF_GEMM, 5 * MS)
        program.wait()
        start = program.now
        program.pause(5 * MS)
        program.range("load batch", start, program.now)

    answer = steps(program, 5, body).diagnose()
    assert answer.causes[0].cause == "data_loading"
    assert unexplained(answer) is None


def test_without_events_of_the_cpu_all_idle_time_is_unexplained() -> None:
    program = Program()
    program.kernel(None, 0, 10 * US)
    program.kernel(None, 5 * MS, 5 * MS + 10 * US)
    answer = program.diagnose()
    cause = unexplained(answer)
    assert cause is not None
    assert [c.cause for c in answer.causes] == [NAME]
    assert cause.missing.startswith("API calls (nsys profile --trace=cuda,nvtx), samples")
    assert cause.evidence.text.endswith("mostly in time of which nothing was recorded")
    assert (cause.evidence.start_ns, cause.evidence.end_ns) == (10 * US, 5 * MS)


def test_with_all_records_ranges_are_missing() -> None:
    program = wait_for_nothing()
    for table in ("cpu_samples", "python_samples"):
        program.add(table, **{f"{table[:-1]}_id": 0, "thread_id": 1, "timestamp_ns": 10 * 1000 * MS})
    program.add("osrt_calls", osrt_call_id=0, thread_id=1, name="read", start_ns=10**12, end_ns=10**12 + 1)
    cause = unexplained(program.diagnose())
    assert cause is not None
    assert cause.missing == "NVTX ranges in the code that runs in this time"


def test_idle_time_of_a_job_is_that_of_its_slowest_rank() -> None:
    def body(job: Job, rank: int, _: int) -> None:
        program = job.ranks[rank]
        program.launch(ns=MS)
        for _ in range(20):
            program.pause(100 * US)
            program.do("cudaGetDevice")

    job = Job()
    for number in range(4):
        starts = [program.now for program in job.ranks]
        for rank in range(2):
            body(job, rank, number)
        job.all_reduce()
        for program, start in zip(job.ranks, starts, strict=True):
            program.wait()
            program.range(f"step {number}", start, program.now)
    cause = unexplained(job.diagnose())
    assert cause is not None
    assert cause.saving.high > 0.2
