"""Kernels that run at the same time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.programs import GEMM, MS, Program, steps
from tracekit.core.diagnosis import model
from tracekit.core.diagnosis.kinds import NUMBERS
from tracekit.core.diagnosis.operations import Operations

COMPUTE, COPY = NUMBERS["other_kernel"], NUMBERS["copy_h2d"]


def create_operations(times: list[tuple[int, int]], classes: list[int] | None = None) -> Operations:
    start, end = np.array(times, np.int64).reshape(-1, 2).T
    zeros = np.zeros(len(start), np.int64)
    cls = np.array(classes or [COMPUTE] * len(start), np.int8)
    lane = np.arange(len(start), dtype=np.int32)
    return Operations(start, end, zeros, zeros, lane, cls, end - start, zeros, zeros, lane - lane - 1, zeros)


def shorten(times: list[tuple[int, int]], edited: dict[int, int], classes: list[int] | None = None) -> list[int]:
    ops = create_operations(times, classes)
    found = model.find_contention(ops)
    durations = ops.duration.copy()
    durations[list(edited)] = list(edited.values())
    return durations.tolist() if found is None else found.shorten_others(ops.duration, durations).tolist()


def test_a_kernel_becomes_shorter_with_the_kernel_beside_it() -> None:
    # Both share the GPU for 100 µs; then the second one has it for itself.
    times = [(0, 100_000), (0, 200_000)]
    assert shorten(times, {0: 20_000}) == [20_000, 100_000 * (1 + 0.2) / 2 + 100_000 + 1]
    assert shorten(times, {}) == [100_000, 200_000]


def test_kernels_that_become_longer_change_no_others() -> None:
    assert shorten([(0, 100_000), (0, 200_000)], {0: 300_000}) == [300_000, 200_000]


def test_kernels_one_after_another_and_copies_share_nothing() -> None:
    assert model.find_contention(create_operations([])) is None
    assert model.find_contention(create_operations([(0, 9), (9, 20), (20, 30)])) is None
    assert shorten([(0, 100_000), (0, 200_000)], {0: 1}, [COPY, COMPUTE]) == [1, 200_000]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), min_size=1, max_size=8),
    st.lists(st.integers(0, 10), min_size=8, max_size=8),
)
def test_shared_times_like_brute_force(drawn: list[tuple[int, int]], tenths: list[int]) -> None:
    unit = 10_000
    times = [(unit * start, unit * (start + length)) for start, length in drawn]
    edited = {i: (end - start) * tenths[i] // 10 for i, (start, end) in enumerate(times) if i % 2}
    result = shorten(times, edited)
    for i, (start, end) in enumerate(times):
        if edited.get(i, end - start) < end - start:
            assert result[i] == edited[i]
            continue
        expected = 0.0
        for moment in range(start, end, unit):
            running = [k for k, (s, e) in enumerate(times) if s <= moment < e]
            ratios = [edited.get(k, times[k][1] - times[k][0]) / (times[k][1] - times[k][0]) for k in running]
            expected += unit * sum(ratios) / len(ratios)
        assert abs(result[i] - expected) <= 2


def test_a_cure_shortens_kernels_beside_its_own() -> None:
    """Two streams work side by side: FP32 products on one, and other kernels, which they slow down, on the other."""
    program = Program()

    def body(_: int) -> None:
        for _ in range(4):
            program.launch(GEMM, MS, stream=7)
            program.launch("k", MS, stream=13)
        program.wait()

    cause = steps(program, 6, body).diagnose().causes[0]
    assert cause.cause == "precision"
    assert cause.saving.likely > 0.35
