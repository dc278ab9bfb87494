"""Which thread and process does what: launching threads, workers, and the functions that wait."""

from __future__ import annotations

import pytest
from tests.builders.programs import HALF_GEMM, MS, US, Program, find_cure, steps

WORKER, LAUNCHING = 8, 2


def stack(program: Program, *symbols: str) -> int:
    """Add a stack, with the innermost frame first, and return its id."""
    rows = program.tables["stacks"]
    parent = None
    for depth, symbol in enumerate(reversed(symbols)):
        rows.append({"stack_id": len(rows), "parent_id": parent, "depth": depth + 1, "symbol": symbol})
        parent = len(rows) - 1
    return len(rows) - 1


def sample(program: Program, time: int, stack_id: int, table: str = "cpu_samples", **row: object) -> None:
    values = {"thread_id": 1, "timestamp_ns": time, "stack_id": stack_id, **row}
    program.add(table, **{f"{table[:-1]}_id": len(program.tables[table])}, **values)


def os_call(program: Program, name: str, start: int, end: int, **row: object) -> None:
    program.add("osrt_calls", start_ns=start, end_ns=end, name=name, **{"thread_id": 1, **row})


def test_workers_do_not_name_the_pauses_of_the_main_process() -> None:
    program = Program()
    decoding, waiting = stack(program, "jpeg_decode"), stack(program, "wait_for_batch")

    def body(_: int) -> None:
        program.launch(HALF_GEMM)
        start = program.now
        program.pause(3 * MS)
        sample(program, start + MS, waiting)
        for process, thread in ((1, WORKER), (9, 1), (9, 9)):  # a thread, and a process with the same thread id
            program.process = process
            for k in range(3):
                sample(program, start + k * MS, decoding, thread_id=thread)
            os_call(program, "write", start, program.now, thread_id=thread)
        program.process = 1
        program.launch(HALF_GEMM)

    cure = find_cure(steps(program, 5, body), "cpu_work")
    assert cure.functions == ["wait_for_batch"]
    assert "write" not in cure.evidence


def launch_elsewhere(busy: int | None, evidence: str) -> Program:
    """Steps of one thread, in which another one launches all kernels, and one of both works in pauses."""
    program = Program()
    work = stack(program, "prepare")

    def body(_: int) -> None:
        program.thread = LAUNCHING
        program.launch(HALF_GEMM)
        start = program.now
        program.pause(3 * MS)
        program.range("own", start, program.now)
        for thread in (1, LAUNCHING):
            if evidence == "samples" and thread == busy:
                sample(program, start + MS, work, thread_id=thread)
            elif evidence == "calls":
                os_call(
                    program, "read" if thread == busy else "pthread_cond_wait", start, program.now, thread_id=thread
                )
            elif evidence == "scheduling":
                sample(program, start + MS, work if thread == busy else 99, thread_id=thread)
                times = [(start, thread == busy), (program.now, True)]
                for time, runs in times:
                    program.add("cpu_scheduling", timestamp_ns=time, thread_id=thread, is_scheduled_in=runs)
        program.launch(HALF_GEMM)
        program.pause(50 * US)
        program.thread = 1

    return steps(program, 5, body)


@pytest.mark.parametrize("busy", [1, LAUNCHING])
@pytest.mark.parametrize("evidence", ["samples", "calls", "scheduling"])
def test_the_thread_that_works_names_the_pauses_of_a_launching_thread(busy: int, evidence: str) -> None:
    program = launch_elsewhere(busy, evidence)
    assert program.events().main_thread == 1
    cure = find_cure(program, "cpu_work")
    assert cure.evidence.endswith(", mostly in read") == (evidence == "calls")
    assert cure.functions == ([] if evidence == "calls" else ["prepare"])
    assert (cure.place, cure.missing) == ("own", "")
    parts = {part.part: part.ns for part in program.diagnose().ledger}
    assert parts["cpu_work"] > 2.8 * MS
    assert parts["launch_calls"] > 0


def test_many_launches_of_another_thread() -> None:
    """The thread of the steps waits for the GPU from before the first launch of the other thread on."""
    program = Program()

    def body(_: int) -> None:
        begin = program.now
        program.pause(10 * US)
        program.thread = LAUNCHING
        for _ in range(60):
            program.launch("k", US)
            program.pause(5 * US)
        program.range("execute", begin + US, program.now)
        program.thread = 1
        program.wait()
        program.tables["api_calls"][-1]["start_ns"] = begin + 5 * US

    answer = steps(program, 6, body).diagnose()
    assert answer.replay_error == 0
    assert answer.causes[0].cause == "launch_overhead"
    assert answer.causes[0].place.range == "execute"
    parts = {part.part: part.ns for part in answer.ledger}
    assert parts["synchronization"] <= 10 * US
    assert parts["launch_calls"] > 200 * US


FUNCTIONS = [
    ("cpu_samples", ["clock_gettime", "cuStreamSynchronize", "cudaDeviceSynchronize", "validate", "main"], "validate"),
    ("python_samples", ["synchronize", "measure", "main"], "measure"),
    (
        "ranges",
        ["<built-in method item>", "torch/cuda/__init__.py(7): synchronize", "/home/x/a.py(3): log"],
        "a.py(3): log",
    ),
]


@pytest.mark.parametrize(("table", "symbols", "function"), FUNCTIONS)
def test_the_function_that_waits(table: str, symbols: list[str], function: str) -> None:
    program = Program()
    innermost = stack(program, *symbols)

    def body(_: int) -> None:
        program.launch(HALF_GEMM, MS)
        start = program.now
        program.wait()
        if table == "ranges":
            for depth, name in enumerate(symbols, 1):
                program.range(name, start - depth, program.now + depth, domain="python_function")
        else:
            sample(program, start + 10 * US, innermost, table)
        program.pause(20 * US)

    assert find_cure(steps(program, 5, body), "synchronization").functions == [function]


def test_the_functions_of_a_round_trip() -> None:
    program = Program()
    work, copy = stack(program, "filter"), stack(program, "cudaMemcpy", "to_numpy")

    def body(_: int) -> None:
        program.launch(HALF_GEMM)
        start = program.now
        program.transfer("Device-to-Host", MS, blocks=True, bytes=4_000_000, dst_memory_kind="Pageable")
        sample(program, program.now - 10 * US, copy)
        program.pause(3 * MS)
        sample(program, program.now - MS, work)
        program.transfer(blocks=True, bytes=4_000_000, src_memory_kind="Pageable")
        program.range("filter on the CPU", start, program.now)
        program.launch(HALF_GEMM)

    assert find_cure(steps(program, 5, body), "host_round_trip").functions == ["filter", "to_numpy"]
