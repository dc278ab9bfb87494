"""Causes in copies and in the allocation of memory."""

from __future__ import annotations

import pytest
from tests.builders.programs import HALF_GEMM, MS, US, Program, find_cure, steps


def run(body: object, count: int = 4) -> Program:
    program = Program()
    return steps(program, count, lambda _: body(program))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("count", "ns", "is_cause"), [(3, 5 * US, True), (2, 5 * US, False), (1, MS, True), (0, 0, False)]
)
def test_allocations(count: int, ns: int, is_cause: bool) -> None:
    def body(program: Program) -> None:
        program.launch(HALF_GEMM, 5 * MS)
        for _ in range(count):
            program.do("cudaMalloc_v3020", ns)
            program.pause(20 * US)

    program = run(body)
    assert ("memory_allocation" in program.causes()) == is_cause
    if is_cause:
        cure = find_cure(program, "memory_allocation")
        calls = "1 call" if count == 1 else f"{count} calls"
        assert cure.evidence.startswith(f"{calls} per step to allocate or free memory, for")
        assert len(cure.items[0][0]) == 4 * count


def test_steps_without_duration_have_no_allocations() -> None:
    program = Program()
    program.kernel(None, 5, 5)
    assert program.causes() == []


@pytest.mark.parametrize("size", [70_000_000, 70_000, 1000])
@pytest.mark.parametrize("follows", [True, False])
def test_pageable_copies(size: int, follows: bool) -> None:
    def body(program: Program) -> None:
        program.transfer(blocks=True, ns=10 * MS, bytes=size, src_memory_kind="Pageable")
        if follows:
            program.do("cudaGetLastError_v3020")
            program.wait("cudaStreamSynchronize_v3020")
        program.launch(HALF_GEMM, MS)

    program = run(body)
    assert ("pageable_copy" in program.causes()) == (size >= 65_536)
    if size == 70_000_000:
        cure = find_cure(program, "pageable_copy")
        assert cure.evidence == "1 copy per step uses pageable memory, so that the CPU waits: 70 MB per step at 7 GB/s"
        assert [stay[0] for stay in cure.operations[0][1]] == [70_000_000 // 22, int(0.3 * 70_000_000 / 45), 0]
        assert len(cure.waits) == (8 if follows else 4)


def test_pinned_copies_are_not_pageable() -> None:
    assert "pageable_copy" not in run(lambda p: p.transfer(bytes=10**6)).causes()


@pytest.mark.parametrize(("count", "is_cause"), [(17, True), (16, False)])
def test_small_copies(count: int, is_cause: bool) -> None:
    def body(program: Program) -> None:
        for number in range(count):
            program.transfer(blocks=True, ns=2 * US, bytes=1000, src_memory_kind="Pageable")
            program.pause(3 * US)
            if number % 2:
                program.wait("cudaStreamSynchronize_v3020")
                program.pause(3 * US)
        program.launch(HALF_GEMM, MS)

    program = run(body)
    assert ("small_copies" in program.causes()) == is_cause
    if is_cause:
        cure = find_cure(program, "small_copies")
        assert cure.evidence == "17 copies per step of less than 64 KiB, each with a call of its own"
        assert len(cure.operation_rows) == 4 * count
        assert len(cure.waits) == 4 * (count + count // 2)


def test_many_synchronizations_end_the_search() -> None:
    """Only calls and pauses in between are skipped, and the last call of the capture has none after it."""
    program = Program()
    for _ in range(20):
        program.transfer(blocks=True, ns=2 * US, bytes=1000, src_memory_kind="Pageable")
    assert len(find_cure(program, "small_copies").waits) == 20


def test_exposed_copies() -> None:
    def body(program: Program) -> None:
        program.transfer(ns=MS, bytes=10**7)
        program.launch(HALF_GEMM, 2 * MS)

    cure = find_cure(run(body), "exposed_copy")
    assert cure.evidence == "1 copy per step runs while no kernel runs, for 1 ms per step, at 10 GB/s"
    assert [stay[0] for stay in cure.operations[0][1]] == [600_000, 50_000, 0]


def test_copies_that_take_longer_than_kernels() -> None:
    """Kernels of 1 ms can hide 1 of 3 ms."""

    def body(program: Program) -> None:
        program.transfer(ns=3 * MS, bytes=10**7)
        program.launch("my_kernel", MS)
        program.wait()

    (low, likely, high) = find_cure(run(body), "exposed_copy").operations[0][1]
    assert low[0] == pytest.approx(2.6 * MS, rel=0.01)
    assert likely[0] == pytest.approx(2.05 * MS, rel=0.01)
    assert high[0] == pytest.approx(2 * MS, rel=0.01)


def test_copies_without_kernels() -> None:
    program = Program()
    program.copy(None, 0, MS, bytes=10**6)
    assert "exposed_copy" not in program.causes()


@pytest.mark.parametrize("kind", ["Host-to-Device", "Device-to-Device"])
def test_hidden_copies(kind: str) -> None:
    """A third of the copy is exposed."""

    def body(program: Program) -> None:
        program.launch(HALF_GEMM, MS)
        program.transfer(kind, 1500 * US, bytes=10**7, stream=8)
        program.wait()

    assert "exposed_copy" not in run(body).causes()
