"""Which ranks are late and where they lose time: planted delays, and no alarms without them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.watched_ranks import PHASES, Delay, build_tables
from tracekit.core.watch import CaptureSummary, Limits, compare_ranks, merge_summaries, summarize_capture
from tracekit.core.watch.comparison import (
    LATE_RANK,
    LOST_TIME,
    SLOW_PHASE,
    PhaseLoss,
    compare_times,
    compute_medians_of_others,
    compute_statistics,
    compute_student_quantile,
)

MS = 1_000_000


def reduced(ranks: int, *delays: Delay, window: int = 0, **options: Any) -> CaptureSummary:
    tables = build_tables(window, range(ranks), delays=delays, **options)
    return summarize_capture(tables, {rank: rank for rank in range(ranks)}, ranks)


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
@pytest.mark.parametrize(("on", "phase"), [("cpu", "forward"), ("cpu", "data"), ("gpu", "optimizer")])
def test_a_late_rank_is_named_with_its_phase(ranks: int, on: str, phase: str) -> None:
    (finding,) = compare_ranks(reduced(ranks, Delay(1, phase, 1500, on=on)))
    assert (finding.kind, finding.rank, finding.steps, finding.ranks) == (LATE_RANK, 1, 8, ranks)
    assert finding.low_ns < finding.lost_ns < finding.high_ns
    assert finding.lost_ns == pytest.approx(8 * 1.5 * MS, rel=0.35)  # without the waits for the last step
    (cause,) = finding.causes
    assert (cause.phase, cause.on, cause.is_steady) == (phase, on, True)
    assert cause.low_ns < cause.lost_ns < cause.high_ns
    assert cause.own_ns - cause.others_ns == pytest.approx(1.5 * MS, rel=0.05)
    assert finding.communicator == "NCCL 0"


def test_without_collectives_it_is_unknown_whether_others_wait() -> None:
    (slow,) = compare_ranks(reduced(8, Delay(5, "data", 800), collectives=False))
    assert (slow.kind, slow.rank, slow.causes[0].phase) == (SLOW_PHASE, 5, "data")
    (lost,) = compare_ranks(reduced(8, Delay(5, "data", 4000, every=4), collectives=False))
    assert (lost.kind, lost.rank, lost.causes[0].phase, lost.causes[0].is_steady) == (LOST_TIME, 5, "data", False)
    assert lost.lost_ns == pytest.approx(2 * 4 * MS, rel=0.05)


def test_a_delay_on_an_idle_gpu_costs_no_time() -> None:
    assert compare_ranks(reduced(8, Delay(1, "forward", 800, on="gpu"))) == []


def test_intervals_contain_the_true_loss() -> None:
    hits = 0
    for window in range(20):
        (finding,) = compare_ranks(reduced(8, Delay(1, "forward", 1500), window=window))
        hits += finding.causes[0].low_ns <= 8 * 1.5 * MS <= finding.causes[0].high_ns
    assert hits >= 16  # the interval has 95 %


def test_several_ranks_are_late_in_different_phases() -> None:
    found = compare_ranks(reduced(16, Delay(3, "data", 900), Delay(9, "backward", 2000), Delay(12, "optimizer", 2600)))
    assert {(f.rank, f.causes[0].phase) for f in found} == {(3, "data"), (9, "backward"), (12, "optimizer")}
    assert [f.lost_ns for f in found] == sorted((f.lost_ns for f in found), reverse=True)


@pytest.mark.parametrize("ranks", [2, 4, 5, 8, 64])
@pytest.mark.parametrize("collectives", [True, False])
def test_equal_ranks_raise_no_alarm(ranks: int, collectives: bool) -> None:
    for window in range(5):
        assert compare_ranks(reduced(ranks, window=window, collectives=collectives, seed=ranks)) == []


def test_small_losses_do_not_count() -> None:
    summary = reduced(8, Delay(3, "forward", 150), rank_noise=0.0, noise=0.001)
    assert compare_ranks(summary) == []
    (finding,) = compare_ranks(summary, Limits(min_share=0.005))
    assert (finding.rank, finding.causes[0].phase) == (3, "forward")


def test_nothing_is_compared_with_itself() -> None:
    assert compare_ranks(reduced(1)) == []
    assert compare_ranks(merge_summaries([])) == []
    tables = build_tables(0, range(2), steps=1)
    tables["iterations"] = tables["iterations"].clear()
    assert compare_ranks(summarize_capture(tables, {0: 0, 1: 1})) == []


def test_a_rank_for_which_nobody_waits_costs_no_time() -> None:
    summary = reduced(4, Delay(1, "data", 3000))
    early = pl.when((pl.col("rank") == 2) & (pl.col("on") == "gpu") & (pl.col("phase") == "backward"))
    slower = summary.times.with_columns(sum_ns=early.then(pl.col("sum_ns") * 3 // 2).otherwise("sum_ns"))
    assert [f.rank for f in compare_ranks(CaptureSummary(summary.ranks, slower))] == [1]
    without = slower.filter(pl.col("on") != "wait")
    assert {f.rank for f in compare_ranks(CaptureSummary(summary.ranks, without))} == {1, 2}


def test_victims_of_a_small_communicator_are_not_late() -> None:
    """Rank 0 is late. Rank 1 waits for it in a communicator of two, and is then late in that of all ranks."""
    tables = build_tables(0, range(8), noise=0.0, rank_noise=0.0)
    calls = tables["calls"]
    late = pl.when(pl.col("process_id") < 2).then(100_000).otherwise(3_100_000)
    world = calls.with_columns(end_ns=pl.col("start_ns") + late)
    pair = calls.filter(pl.col("process_id") < 2).with_columns(
        communicator=pl.lit("1"),
        kernel_id=pl.col("kernel_id") + 1000,
        end_ns=pl.col("start_ns") + pl.when(pl.col("process_id") == 0).then(100_000).otherwise(3_100_000),
    )
    tables["calls"] = pl.concat([world, pair])
    found = compare_ranks(summarize_capture(tables, {r: r for r in range(8)}))
    assert [(f.kind, f.rank, f.causes) for f in found] == [(LATE_RANK, 0, ())]
    assert found[0].lost_ns == pytest.approx(8 * 3 * MS, rel=0.01)


def test_phases_inside_phases_share_no_time() -> None:
    tables = build_tables(0, range(6), noise=0.001, rank_noise=0.0, collectives=False)
    forward = tables["phases"].filter(path="forward")
    share = {"cpu_ns": pl.col("cpu_ns") // 3, "gpu_ns": pl.lit(0, pl.Int64)}
    parts = [forward.with_columns(path=pl.lit(f"forward/{name}"), **share) for name in ("attention", "mlp")]
    phases = pl.concat([tables["phases"], *parts])

    def add(path: str, ns: int) -> None:
        nonlocal phases
        is_slow = (pl.col("process_id") == 2) & (pl.col("path") == path)
        phases = phases.with_columns(cpu_ns=pl.col("cpu_ns") + pl.when(is_slow).then(ns).otherwise(0))

    def named() -> list[tuple[str, ...]]:
        summary = summarize_capture({**tables, "phases": phases}, {r: r for r in range(6)})
        return sorted(tuple(c.phase for c in f.causes) for f in compare_ranks(summary))

    for path in ("", "forward", "forward/mlp"):
        add(path, 2 * MS)
    assert named() == [("forward/mlp",)]
    for path in ("", "forward"):  # more than half of the loss is in no inner phase
        add(path, 4 * MS)
    assert named() == [("forward",)]
    for path in ("", "data"):
        add(path, 3 * MS)
    assert named() == [("data",), ("forward",)]
    add("", 40 * MS)
    assert named() == [("",)]


def test_phases_that_were_left_out_are_not_zero() -> None:
    summary = reduced(6, collectives=False)
    times = summary.times.filter(~((pl.col("rank") == 4) & (pl.col("phase") == "forward")))
    absent = CaptureSummary(summary.ranks, times)
    assert {f.rank for f in compare_ranks(absent)} == set()
    row = compute_statistics(absent).filter(rank=4, phase="forward", on="cpu").row(0, named=True)
    assert (row["mean"], row["steps"]) == (0.0, 8)
    cut = CaptureSummary(summary.ranks.with_columns(is_cut=pl.col("rank") == 4), times)
    assert compute_statistics(cut).filter(rank=4, phase="forward", on="cpu").is_empty()


@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=12))
def test_the_median_of_the_others(values: list[float]) -> None:
    array = np.array(values)
    expected = [float(np.median(np.delete(array, i))) for i in range(len(values))]
    assert compute_medians_of_others(array).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [(0.025, 10, 2.228139), (0.025, 1, 12.706205), (0.05, 2, 2.919986), (0.0005, 30, 3.645959), (1e-6, 1e6, 4.7534243)],
)
def test_quantiles_of_student(probability: float, freedom: float, value: float) -> None:
    assert compute_student_quantile(probability, freedom) == pytest.approx(value, rel=1e-5)


def test_quantiles_of_tiny_probabilities_are_finite() -> None:
    assert 6 < compute_student_quantile(1e-12, 1000.0) < 8
    assert math.isfinite(compute_student_quantile(1e-9, 1.0))


def test_false_alarms_are_as_rare_as_requested() -> None:
    """With a limit of one false alarm per window, some comparisons exceed it, but few."""
    counts = []
    for window in range(16):
        statistics = compute_statistics(reduced(16, window=window, rank_noise=0.01, collectives=False))
        compared = compare_times(statistics, 1.0)
        counts.append(compared.filter(pl.col("excess") > pl.col("limit")).height)
    assert 0 < sum(counts) / len(counts) <= 1.5


def test_a_finding_is_a_record() -> None:
    (finding,) = compare_ranks(reduced(4, Delay(2, PHASES[0], 2000)))
    assert isinstance(finding.causes[0], PhaseLoss)
    with pytest.raises(AttributeError):
        finding.rank = 3  # type: ignore[misc]
