"""Kernels without calls, and kernels that run over the next one, against plain loops."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.test_advise import GEMM, Program, busy
from tracekit.core.advise.kernels import MAX_OVERLAP_NS, MAX_ROUNDING_NS, READ, find_overrunning_activities
from tracekit.core.relations import KernelsWithoutCalls, count_kernels_without_calls

KEYS = {"process_id": pl.Int64, "correlation_id": pl.Int64}
Key = tuple[int | None, int | None]


def counted_by_a_loop(kernels: list[Key], calls: list[Key]) -> KernelsWithoutCalls:
    counts = {"without_id": 0, "without_process": 0, "earlier": 0, "other": 0}
    for process, number in kernels:
        known = [n for p, n in calls if p == process and n is not None]
        if number is None or number == 0:
            counts["without_id"] += 1
        elif process is None:
            counts["without_process"] += 1
        elif number not in known:
            counts["earlier" if known and number < min(known) else "other"] += 1
    return KernelsWithoutCalls(len(kernels), **counts)


def counted(kernels: list[Key], calls: list[Key]) -> KernelsWithoutCalls:
    frames = (pl.DataFrame(rows, KEYS, orient="row") for rows in (kernels, calls))
    return count_kernels_without_calls(*frames)


IDS = st.none() | st.integers(0, 12) | st.sampled_from([10**9, 2**63 - 1, -(2**63), -5])


@given(
    kernels=st.lists(st.tuples(st.none() | st.integers(1, 3), IDS), max_size=12),
    calls=st.lists(st.tuples(st.none() | st.integers(1, 3), IDS), max_size=12),
)
def test_kernels_without_calls(kernels: list[Key], calls: list[Key]) -> None:
    assert counted(kernels, calls) == counted_by_a_loop(kernels, calls)


def test_kernels_without_calls_whose_ids_are_far_apart() -> None:
    calls: list[Key] = [(1, 5), (1, 10**12)]
    assert counted([(1, 5), (1, 7), (1, 2), (1, 10**12)], calls) == KernelsWithoutCalls(4, 0, 0, 1, 1)


def test_ids_of_zero_are_no_ids_even_if_calls_have_them() -> None:
    kernels: list[Key] = [(1, 0), (1, 3), (2, 0), (None, 0)]
    for calls in ([(1, 0)], [(3, 0)], []):
        assert counted(kernels, [*calls, (1, 2)]) == counted_by_a_loop(kernels, [*calls, (1, 2)])


def test_kernels_without_calls_of_many_processes() -> None:
    calls: list[Key] = [(p, 10 * p + n) for p in range(1, 30) for n in range(3, 6)]
    kernels: list[Key] = [(p, 10 * p + n) for p in range(1, 40) for n in range(8)]
    expected = counted_by_a_loop(kernels, calls)
    assert counted(kernels, calls) == expected
    assert expected.count == 29 * 5 + 10 * 8


def test_the_reasons_are_described() -> None:
    counts = KernelsWithoutCalls(2000, 1, 2, 3, 1004)
    assert counts.describe(7) == (
        "the API calls of 1,010 of 2,000 kernels cannot be found, so these kernels are not attributed to calls, ranges "
        "and ops: 1 have no correlation id; 2 have a correlation id that belongs to calls of several processes or of "
        "none; 3 were probably launched before the recording began, because their correlation ids are lower than those "
        "of all recorded calls; 1,004 have a correlation id that no recorded call has"
    )
    assert counts.describe(0).endswith("ranges and ops: the capture contains no API calls")


# Overruns


def overrunning_by_a_loop(kernels: list[dict[str, Any]]) -> list[int]:
    found = []
    for n, kernel in enumerate(kernels):
        if kernel["graph_node_id"] or kernel["stream_id"] is None:
            continue
        same = [
            (k["start_ns"], k["end_ns"], i)
            for i, k in enumerate(kernels)
            if not k["graph_node_id"]
            and k["process_id"] == kernel["process_id"]
            and k["stream_id"] == kernel["stream_id"]
        ]
        later = sorted(k for k in same if k > (kernel["start_ns"], kernel["end_ns"], n))
        if later:
            overlap = kernel["end_ns"] - later[0][0]
            is_inside = overlap > MAX_ROUNDING_NS and kernel["end_ns"] > later[0][1]
            if overlap > MAX_OVERLAP_NS or is_inside:
                found.append(n)
    return found


@given(
    data=st.lists(
        st.tuples(
            st.none() | st.integers(1, 2),
            st.sampled_from([0, 1, None]),
            st.integers(0, 8).map(lambda n: 40_000 * n),
            st.sampled_from([0, 500, 1000, 1001, 40_000, 40_500, 90_000, 150_000]),
            st.sampled_from([None, None, 0, 5]),
        ),
        max_size=12,
    )
)
def test_overrunning_kernels(data: list[tuple[int | None, int | None, int, int, int | None]]) -> None:
    kernels = [
        {
            "process_id": process,
            "device_id": 0,
            "context_id": 1,
            "stream_id": stream,
            "start_ns": start,
            "end_ns": start + length,
            "graph_node_id": node,
        }
        for process, stream, start, length, node in data
    ]
    rows = find_overrunning_activities(pl.DataFrame(kernels, dict.fromkeys(READ, pl.Int64)))
    assert rows["row"].to_list() == overrunning_by_a_loop(kernels)


def test_a_kernel_with_a_wrong_end_is_reported() -> None:
    program = busy(Program())
    name, start, _, *rest = program.kernels[3]
    program.kernels[3] = (GEMM, start, start + 1_600_000_000, *rest)
    finding = program.found()["overrunning_kernels"]
    assert finding["count"] == 1
    assert (finding["start_ns"], finding["end_ns"]) == (start, start + 1_600_000_000)
    assert finding["evidence"] == (
        f"1 kernel runs over the start of the next kernel of the same stream, by up to 1.6 s ({GEMM})"
    )
    assert finding["time_ns"] == start + 1_600_000_000 - program.kernels[4][1]
    assert name != GEMM


def test_several_kernels_with_wrong_ends_are_counted() -> None:
    program = busy(Program())
    for n in (3, 5):
        name, start, _, *rest = program.kernels[n]
        program.kernels[n] = (name, start, start + 300_000, *rest)
    assert str(program.found()["overrunning_kernels"]["evidence"]).startswith("2 kernels run over the start")


@pytest.mark.parametrize(("length", "evidence"), [(5_000, None), (1_000_000_000, "2 activities run over the start")])
def test_copies_with_wrong_ends_are_reported(length: int, evidence: str | None) -> None:
    program = busy(Program())
    for n in (3, 5):
        start = program.kernels[n][1] + 10
        program.kernels[n] = (*program.kernels[n][:1], start + length - 1, start + length, *program.kernels[n][3:])
        program.copy("Device-to-Host", "Device", start, start + length)
    finding = program.found().get("overrunning_kernels")
    assert (finding is None) == (evidence is None)
    if finding is not None:
        assert str(finding["evidence"]).startswith(f"{evidence} of the next activity of the same stream")
        assert finding["problem"] == "Activities overlap the next activity of their stream"


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [0, 8_000])
def test_kernels_that_start_early_are_normal(overlap: int) -> None:
    program = busy(Program())
    program.kernels = [(name, start, end + overlap, *rest) for name, start, end, *rest in program.kernels]
    assert "overrunning_kernels" not in program.found()
