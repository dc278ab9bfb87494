"""Clocks are aligned by the ends of collectives, within their noise, whatever a few of them say."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.communication import Row, calls, nccl
from tests.builders.nsys_rep import SHARED
from tracekit.core.communication import align_clocks, convert_to_common_clock, match_calls, read_communication_calls
from tracekit.core.communication.stragglers import fit_robust_line

MORE = SHARED / "captures" / "h200_more"


def clocks(rows: list[Row], origins: dict[int, int | None]) -> pl.DataFrame:
    return align_clocks(match_calls(calls(rows), origins), origins)


def collectives(rank: int, clock: int, numbers: range, **more: object) -> list[Row]:
    ends = [1_000_000 * n + 37_000 * (n * n % 11) + clock for n in numbers]
    return [nccl(rank, end - 1000 - 10 * rank, end, **more) for end in ends]


def test_the_offset_is_the_difference_between_ends() -> None:
    rows = collectives(0, 0, range(20)) + collectives(1, 5_000, range(20))
    found = clocks(rows, {0: 1000, 1: 1000 - 4_900})
    assert found.row(1) == (1, "collectives", -5_000, -4_900, 0.0, 20, 0, 0)
    assert found.row(0) == (0, "reference", 0, 0, 0.0, 0, None, None)


@settings(max_examples=30)
@given(st.integers(-(10**10), 10**10), st.floats(-50, 50), st.integers(0, 2**32), st.integers(30, 200))
def test_offset_and_drift_are_recovered_in_spite_of_outliers(offset: int, ppm: float, seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    times = np.sort(random.integers(0, 10**10, count))
    noise = random.integers(-3_000, 3_001, count)
    outliers = random.choice(count, count // 8, replace=False)
    noise[outliers] += random.integers(-(10**7), 10**7, len(outliers))
    differences = offset + np.round(times * ppm / 1e6).astype(np.int64) + noise
    found, drift, residuals = fit_robust_line(times, differences)
    expected = offset + times * ppm / 1e6
    assert np.abs(found + drift * times - expected).max() < 12_000
    assert np.median(residuals) < 12_000


def test_noise_is_no_drift() -> None:
    times = np.arange(0, 10**9, 10**7)
    noise = np.random.default_rng(1).integers(-3_000, 3_001, len(times))
    assert fit_robust_line(times, noise)[1] == 0


def test_few_collectives_or_one_time_give_no_drift() -> None:
    times = np.arange(8, dtype=np.int64) * 10**9
    assert fit_robust_line(times, times // 10**5)[1] == 0
    assert fit_robust_line(np.zeros(40, np.int64), np.arange(40, dtype=np.int64))[:2] == (20, 0.0)


def test_a_rank_is_aligned_through_another_one() -> None:
    rows = collectives(0, 0, range(20), communicator="a")
    rows += collectives(1, 500, range(20), communicator="a") + collectives(1, 500, range(50, 70), communicator="b")
    rows += collectives(2, -800, range(50, 70), communicator="b")
    found = clocks(rows, {0: 0, 1: 0, 2: 0})
    assert found.select("method", "offset_ns").rows() == [("reference", 0), ("collectives", -500), ("collectives", 800)]


def test_what_has_no_collectives_in_common_is_aligned_by_utc_or_not_at_all() -> None:
    rows = collectives(0, 0, range(20)) + collectives(3, 500, range(20))
    found = clocks(rows, {0: 10, 1: 30, 2: None, 3: None})
    assert found.select("method", "offset_ns", "utc_offset_ns").rows() == [
        ("reference", 0, 0),
        ("UTC", 20, 20),
        ("none", None, None),
        ("collectives", -500, None),
    ]


def test_ends_that_contradict_each_other_are_not_believed() -> None:
    first, second = collectives(0, 0, range(30)), collectives(1, 0, range(30))
    for n, row in enumerate(second):
        row["end_ns"] = row["kernel_end_ns"] = int(str(row["end_ns"])) + n * n % 17 * 10_000_000
    assert clocks(first + second, {0: 0, 1: 7}).row(1) == (1, "UTC", 7, 7, 0.0, 30, None, None)


@pytest.mark.parametrize("more", [{"kind": "broadcast"}, {"kernel_id": None}, {"communicator_size": 3}])
def test_only_complete_collectives_that_synchronize_count(more: Row) -> None:
    rows = collectives(0, 0, range(20), **more) + collectives(1, 500, range(20), **more)
    assert clocks(rows, {0: 0, 1: 0})["method"].to_list() == ["reference", "UTC"]


def test_calls_of_mpi_count_if_they_block() -> None:
    rows = [
        {**r, "library": "MPI", "kernel_id": None} for r in collectives(0, 0, range(4)) + collectives(1, 50, range(4))
    ]
    for row in rows:
        row["call_end_ns"] = row["end_ns"]
    assert clocks(rows, {0: 0, 1: 0})["offset_ns"].to_list() == [0, -50]
    for row in rows:
        row["call_end_ns"] = row["start_ns"]
    assert clocks(rows, {0: 0, 1: 0})["method"].to_list() == ["reference", "UTC"]


def test_times_are_converted_to_the_common_clock() -> None:
    rows = {"rank": [0, 1, 2], "t": [10, 10**9, 5], "u": [1, None, 1]}
    facts = {"rank": [0, 1, 2], "offset_ns": [0, -7, None], "drift_ppm": [0.0, 2.0, 0.0]}
    converted = convert_to_common_clock(pl.DataFrame(rows), pl.DataFrame(facts), ["t", "u"])
    assert converted.to_dict(as_series=False) == {
        "rank": [0, 1, 2],
        "t": [10, 10**9 + 1993, None],
        "u": [1, None, None],
    }


def test_no_traces() -> None:
    assert clocks([], {}).height == 0


@pytest.mark.skipif(not MORE.exists(), reason="the captures are not here")
@pytest.mark.parametrize(("name", "count", "bound"), [("straggler", 490, 50_000), ("mpi", 20, 5_000)])
def test_captures_of_two_ranks(name: str, count: int, bound: int) -> None:
    """Both ranks ran on one machine, so that the origins in UTC are nearly right already."""
    rows, origins = [], {}
    for rank in range(2):
        with tk.load(MORE / f"{name}_rank{rank}.nsys-rep") as trace:
            rows.append(read_communication_calls(trace.correlate().frame).with_columns(rank=pl.lit(rank, pl.Int64)))
            info = dict(itertools.zip_longest(*trace.frame("capture_info").collect()))
            origins[rank] = int(info["origin_utc_ns"])
    matched = match_calls(pl.concat(rows), origins)
    row = align_clocks(matched, origins).row(1, named=True)
    assert (row["method"], row["collective_count"], row["drift_ppm"]) == ("collectives", count, 0.0)
    assert row["max_residual_ns"] <= bound
    assert abs(row["offset_ns"] - row["utc_offset_ns"]) < 10_000
    if name == "straggler":
        assert matched["status"].unique().to_list() == ["matched"]
        assert matched.group_by("kind").len().sort("kind").rows() == [
            ("all_gather", 20),
            ("all_reduce", 960),
            ("recv", 4),
            ("send", 4),
        ]
