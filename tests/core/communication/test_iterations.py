"""Iterations and phases of one trace, and the rank that loses time in them."""

from __future__ import annotations

import re
import statistics
from unittest import mock

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.communication import Row, calls, nccl, nccl_range
from tests.exporters.test_chrome_trace import call, kernel, push, trace
from tracekit.core import trees
from tracekit.core.communication import match_calls
from tracekit.core.communication.analysis import compute_operation_times_by_rank
from tracekit.core.communication.stragglers import (
    compute_iteration_spread,
    compute_lost_times,
    find_iteration_shifts,
    find_stragglers,
    read_iterations_and_phases,
    summarize_stragglers,
)
from tracekit.core.iterations import find_iterations
from tracekit.core.ops import Ops

STEADY = pl.lit(value=False).alias("is_warm_up"), pl.lit(value=True).alias("is_aggregated")
NO_OPERATIONS = compute_operation_times_by_rank(match_calls(calls([]), {}))


def loop(count: int = 3) -> list[Row]:
    """Iterations of 1,000 ns with a range of 100 ns, which contains one of 50 ns, and a mark of a thread of its own."""
    ranges = []
    for n in range(count):
        start = 1000 * n
        ranges += [push(start, start + 900, f"step {n}"), push(start + 100, start + 200, "load")]
        ranges += [push(start + 110, start + 160, "read/file")]
    return ranges


def read(linked: tk.Trace) -> tuple[pl.DataFrame, pl.DataFrame]:
    return read_iterations_and_phases(linked.frame, find_iterations(Ops(linked.frame, None)))


def phases(*rows: Row, **more: list[Row]) -> dict[tuple[int, str], tuple[int, int]]:
    linked = trace(nvtx_ranges=sorted(rows, key=lambda r: int(str(r["start_ns"]))), **more).correlate()
    found = read(linked)[1]
    return {(n, path): (cpu, gpu) for n, path, cpu, gpu in found.select("iteration", "path", "cpu_ns", "gpu_ns").rows()}


def test_phases_are_relative_to_the_range_of_the_iteration() -> None:
    found = phases(*loop())
    assert found[1, ""][0] == 1000
    assert found[2, ""][0] == 900
    assert {path: times for (n, path), times in found.items() if n == 1 and path} == {
        "load": (100, 0),
        "load/read/file": (50, 0),
    }


def test_waits_do_not_count() -> None:
    waits = [call(150, 170, name="cudaStreamSynchronize_v3020"), call(120, 130, name="cudaMemcpy_v3020")]
    waits += [call(175, 195, name="cudaMemcpyAsync_v3020")]
    exchange = nccl_range(160, 180, "ncclAllReduce")
    found = phases(*loop(), exchange, api_calls=waits)
    assert found[0, "load"] == (100 - 10 - 30, 0)
    assert found[0, "load/read/file"] == (50 - 10 - 10, 0)


def test_kernels_count_when_they_are_launched_whatever_the_thread() -> None:
    rows = [(150, 33, "k"), (99, 1, "k"), (200, 7, "k"), (155, 1000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")]
    kernels = [kernel(5000, 5000 + d, correlation_id=n, short_name=name) for n, (_, d, name) in enumerate(rows, 1)]
    launched = [call(at, at + 1, correlation_id=n, thread_id=77) for n, (at, _, _) in enumerate(rows, 1)]
    found = phases(*loop(), kernels=kernels, api_calls=launched)
    assert found[0, "load"] == (100, 33)
    assert found[0, "load/read/file"] == (50, 33)
    assert found[0, ""][1] == 41


def test_repeated_ranges_are_one_phase_and_deep_ones_none() -> None:
    deep = [
        push(300 + n, 400 - n, name) for n, name in enumerate(["a", "b, op_id = 17", "c, seq = 3, sizes = [[1]]", "d"])
    ]
    again = push(500, 507, "a")
    found = {path: cpu for (n, path), (cpu, _) in phases(*loop(), *deep, again).items() if n == 0}
    assert found == {"": 1000, "load": 100, "load/read/file": 50, "a": 107, "a/b": 98, "a/b/c": 96}


def test_the_path_of_a_phase_with_long_names_is_shortened() -> None:
    long = [push(300, 400, "ü" * 40), push(310, 390, "é" * 40), push(320, 380, "short")]
    with mock.patch.object(trees, "MAX_PATH_CHARS", 48):
        found = {path: cpu for (n, path), (cpu, _) in phases(*loop(), *long).items() if n == 0}
        longer = phases(push(0, 900, "x" * 60), push(1000, 1900, "x" * 60), push(10, 20, "a"), push(1010, 1020, "a"))
    assert {re.sub("…[0-9a-f]{12}", "…#", path): cpu for path, cpu in found.items()} == {
        "": 1000,
        "load": 100,
        "load/read/file": 50,
        "ü" * 40: 100,
        f"{'ü' * 17}…#…{'é' * 10}": 80,
        f"{'ü' * 17}…#/short": 60,
    }
    hashes = {path for _, path in longer if path}
    assert len(hashes) == 1
    assert re.fullmatch("…[0-9a-f]{12}/a", hashes.pop())
    assert longer[0, ""][0] == 1000


def test_ranges_of_unknown_threads_are_no_phases() -> None:
    iterations, found = read(trace(nvtx_ranges=[{**r, "thread_id": None} for r in loop()]).correlate())
    assert (iterations.height, found.height) == (3, 0)


def test_a_trace_without_a_loop_has_no_iterations() -> None:
    iterations, found = read(trace().correlate())
    assert (iterations.height, found.height) == (0, 0)
    assert found.columns == ["process_id", "iteration", "path", "cpu_ns", "gpu_ns"]


def phase(rank: int, iteration: int, path: str, cpu: int, gpu: int = 0) -> Row:
    return {"rank": rank, "iteration": iteration, "path": path, "cpu_ns": cpu, "gpu_ns": gpu}


def frame(rows: list[Row]) -> pl.DataFrame:
    schema = {"rank": pl.Int64, "iteration": pl.Int64, "path": pl.String, "cpu_ns": pl.Int64, "gpu_ns": pl.Int64}
    return pl.DataFrame(rows, schema=schema)


Key = tuple[int, int, str]
value = st.tuples(st.integers(0, 4), st.integers(0, 1), st.sampled_from(["", "a", "a/b"]))


@given(st.dictionaries(value, st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=20))
def test_lost_time_is_the_difference_to_the_median_of_the_others(
    drawn: dict[tuple[int, int, str], tuple[int, int]],
) -> None:
    found = compute_lost_times(frame([phase(*key, *times) for key, times in drawn.items()]))
    assert found.height == len(drawn)
    for row in found.rows(named=True):
        n, path = row["iteration"], row["path"]
        others = {rank for rank, iteration, _ in drawn if iteration == n} - {row["rank"]}
        for index, column in enumerate(("cpu", "gpu")):
            values = sorted(drawn.get((rank, n, path), (0, 0))[index] for rank in others)
            middle = (statistics.median_low(values) + statistics.median_high(values)) // 2 if values else None
            expected = None if middle is None else row[f"{column}_ns"] - middle
            assert row[f"{column}_lost_ns"] == expected


def made(
    slow: dict[tuple[int, int], tuple[str, int]], *, ranks: int = 3, count: int = 12
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Iterations with the phases load and step/inner, in which some ranks take longer."""
    iterations, rows = [], []
    for rank in range(ranks):
        at = 7 * rank
        for n in range(count):
            path, lost = slow.get((rank, n), ("", 0))
            noise = (rank * 5 + n * 3) % 4
            times = {"load": 100, "step": 800, "step/inner": 700}
            times |= {p: times[p] + lost for p in times if path == p or path.startswith(p + "/")}
            rows += [phase(rank, n, p, t + noise) for p, t in times.items()]
            rows.append(phase(rank, n, "", sum(times.values()) - times["step/inner"] + noise))
            iterations.append({"rank": rank, "iteration": n, "start_ns": at, "end_ns": at + 1000 + lost})
            at += 1000 + lost
    return pl.DataFrame(iterations).with_columns(STEADY), frame(rows)


def test_the_straggler_is_the_rank_that_loses_time_and_its_phase_the_innermost_one() -> None:
    slow = {(1, 3): ("load", 500), (1, 8): ("load", 480), (2, 5): ("step/inner", 300)}
    spread = compute_iteration_spread(*made(slow), NO_OPERATIONS)
    found = spread.drop_nulls("straggler").select("iteration", "straggler", "phase", "lost_on", "delay_ns")
    assert found.rows() == [(3, 1, "load", "CPU", None), (5, 2, "step/inner", "CPU", None), (8, 1, "load", "CPU", None)]
    assert (spread.drop_nulls("straggler")["lost_ns"] - pl.Series([500, 300, 480])).abs().max() <= 3
    row = spread.row(3, named=True)
    facts = [row[c] for c in ("rank_count", "min_ns", "median_ns", "max_ns", "spread_ns", "slowest_rank", "wait_ns")]
    assert facts == [3, 1000, 1000.0, 1500, 500, 1, None]
    assert (row["start_ns"], row["end_ns"], row["start_spread_ns"]) == (3000, 4507, 14)
    summary = summarize_stragglers(spread)
    assert summary.select("straggler", "phase", "iteration_count", "delay_ns", "iterations").rows() == [
        (1, "load", 2, None, "3, 8"),
        (2, "step/inner", 1, None, "5"),
    ]


def test_a_rank_that_is_always_slow_is_always_the_straggler() -> None:
    spread = compute_iteration_spread(*made({(2, n): ("load", 300) for n in range(12)}), NO_OPERATIONS)
    assert spread.select("straggler", "phase").unique().rows() == [(2, "load")]


def test_the_warm_up_has_no_straggler_and_does_not_count() -> None:
    """The time that rank 1 loses in all iterations but two would vary too much if the warm-up counted."""
    slow = {(1, n): ("load", 300 if n > 1 else 90_000) for n in range(4)}
    iterations, rows = made(slow, count=4)
    complete = compute_iteration_spread(iterations, rows, NO_OPERATIONS)
    assert complete["straggler"].to_list() == [None] * 4
    is_first = pl.col("iteration") < 2
    left_out = iterations.with_columns(is_warm_up=is_first & (pl.col("rank") == 1), is_aggregated=~is_first)
    spread = compute_iteration_spread(left_out, rows, NO_OPERATIONS)
    flags = spread.select("iteration", "is_warm_up", "is_aggregated", "straggler").rows()
    assert flags == [(0, True, False, None), (1, True, False, None), (2, False, True, 1), (3, False, True, 1)]
    assert spread["max_ns"].to_list() == complete["max_ns"].to_list()
    assert summarize_stragglers(spread)["iteration_count"].to_list() == [2]


def test_time_on_the_gpu_counts_as_well() -> None:
    iterations, rows = made({})
    slow = rows.with_columns(gpu_ns=pl.when(pl.col("path") == "step", rank=1, iteration=4).then(400).otherwise(10))
    found = find_stragglers(iterations, slow, NO_OPERATIONS)
    assert found.rows() == [(4, 1, "step", 390, "GPU", None)]


def test_time_outside_of_all_phases_is_lost_in_the_iteration() -> None:
    iterations, rows = made({})
    more = pl.when(pl.col("path") == "", rank=1, iteration=4).then(400).otherwise(0)
    found = find_stragglers(iterations, rows.with_columns(pl.col("cpu_ns") + more), NO_OPERATIONS)
    assert found.select("iteration", "straggler", "phase").rows() == [(4, 1, "")]


def operation(iteration: int, starts: list[int]) -> list[Row]:
    end = 1000 * iteration + max(starts) + 10
    return [nccl(rank, 1000 * iteration + start, end) for rank, start in enumerate(starts)]


def test_a_rank_for_which_nobody_waits_is_no_straggler() -> None:
    iterations, rows = made({(1, 3): ("load", 500)}, count=6)
    iterations = iterations.with_columns(start_ns=1000 * pl.col("iteration"), end_ns=1000 * pl.col("iteration") + 1000)
    for late, expected in (([50, 550, 50], [(1, 500)]), ([50, 50, 50], [])):
        operations = [o for n in range(6) for o in operation(n, late if n == 3 else [50, 50, 50])]
        ranks = compute_operation_times_by_rank(match_calls(calls(operations), dict.fromkeys(range(3), 0)))
        spread = compute_iteration_spread(iterations, rows, ranks)
        assert spread.drop_nulls("straggler").select("straggler", "delay_ns").rows() == expected
        assert spread["wait_ns"].to_list() == [0, 0, 0, 1000 if expected else 0, 0, 0]
        assert spread["slowest_rank"].to_list() == [0, 0, 0, 1 if expected else 0, 0, 0]
        assert summarize_stragglers(spread)["delay_ns"].to_list() == [delay for _, delay in expected]


def test_the_slowest_rank_is_the_one_that_makes_others_wait() -> None:
    """Rank 0 waits for rank 1 in the operation and therefore takes longer than rank 1 by the noise of its clock."""
    iterations = pl.DataFrame(
        {"rank": r, "iteration": n, "start_ns": 1000 * n, "end_ns": 1000 * n + (905 if r == 0 else 900)}
        for r in range(3)
        for n in range(2)
    ).with_columns(STEADY)
    operations = [*operation(0, [100, 700, 150]), *operation(1, [50, 50, 50])]
    ranks = compute_operation_times_by_rank(match_calls(calls(operations), dict.fromkeys(range(3), 0)))
    spread = compute_iteration_spread(iterations, frame([]), ranks)
    assert spread.select("iteration", "slowest_rank", "max_ns", "wait_ns").rows() == [(0, 1, 905, 1150), (1, 0, 905, 0)]


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 3), st.integers(0, 3))
def test_iterations_are_aligned_by_their_operations(first: int, second: int) -> None:
    rows, iterations = [], []
    for rank, skipped in enumerate((first, second)):
        for n in range(skipped, 10):
            start = 1_000_000 * n + 1000 * (n * n * 7919 % 977)
            rows.append(nccl(rank, start + 100, start + 200))
            iterations.append({"rank": rank, "iteration": n - skipped, "start_ns": start, "end_ns": start + 900})
    ranks = compute_operation_times_by_rank(match_calls(calls(rows), {0: 0, 1: 0}))
    assert find_iteration_shifts(pl.DataFrame(iterations), ranks) == {0: 0, 1: second - first}


def test_no_iterations() -> None:
    iterations = pl.DataFrame(
        schema={"rank": pl.Int64, "iteration": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
    ).with_columns(STEADY)
    assert find_iteration_shifts(iterations, NO_OPERATIONS) == {}
    spread = compute_iteration_spread(iterations, frame([]), NO_OPERATIONS)
    assert (spread.height, summarize_stragglers(spread).height) == (0, 0)
