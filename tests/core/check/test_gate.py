"""Verdicts, conditions and their limits."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING

import polars as pl
import pytest
from tests.builders.check_runs import FACTS, STEP_NS, make_run, make_runs
from tests.conftest import ALL
from tracekit.core.check import Check, CheckLimits, CheckRow, check_runs, compute_run_id, reduce_to_run
from tracekit.core.check.result import _format_bound
from tracekit.core.compare import SAMPLES, Summary, parse_condition
from tracekit.core.compare.summary import DURATION
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from collections.abc import Sequence

FEW = "the variation between runs is unknown: record at least 3 runs"


def check(a: Sequence[Summary], b: Sequence[Summary], *conditions: str, **options: object) -> Check:
    return check_runs(a, b, conditions=[parse_condition(text) for text in conditions], **options)  # type: ignore[arg-type]


def test_a_slower_program() -> None:
    result = check(make_runs(6, 1, kernels=3), make_runs(6, 2, kernels=3, factor=1.2), "kernel_time > 5%", "slower > 0")
    assert (result.verdict, result.status, result.outcome) == ("slower", "answered", "failed")
    step = result.step
    assert step is not None
    assert step.change_percent == pytest.approx(20, abs=4)
    assert step.low_percent is not None
    assert step.high_percent is not None
    assert 0 < step.low_percent < 20 < step.high_percent
    assert step.time_a_ns == pytest.approx(STEP_NS, rel=0.03)
    assert step.claim == f"slower by {step.change_percent:.2f} %"
    assert result.sentence.startswith(f"{step.claim}: a step takes ")
    assert "varies by " in result.sentence
    assert [r.status for r in result.conditions] == ["holds", "holds"]
    assert {row.level for row in result.rows} == {"step", "kernel"}
    assert result.rows[0].level == "step"
    with pytest.raises(FrozenInstanceError):
        step.verdict = "same"  # type: ignore[misc]


def test_a_faster_program_passes() -> None:
    result = check(make_runs(6, 1), make_runs(6, 2, factor=0.8), "iteration_time > 5%", "faster > 0")
    assert (result.verdict, result.status) == ("faster", "answered")
    assert [r.status for r in result.conditions] == ["does_not_hold", "holds"]
    assert check(make_runs(6, 1), make_runs(6, 2, factor=0.8)).outcome == "passed"


def test_no_change() -> None:
    result = check(make_runs(10, 1, kernels=5), make_runs(10, 2, kernels=5), "iteration_time > 5%")
    assert (result.verdict, result.status, result.outcome) == ("same", "nothing_found", "passed")
    step = result.step
    assert step is not None
    assert step.within_percent is not None
    assert step.within_percent == max(abs(step.low_percent or 0), abs(step.high_percent or 0))
    assert 0 < step.within_percent < 5
    assert result.sentence.startswith(f"same within {_format_bound(step.within_percent)} %: a step takes")
    assert result.frame().columns[:3] == ["level", "name", "verdict"]
    assert result.frame().height == len(result.rows) == 6


def test_single_runs_are_untestable_and_never_passed() -> None:
    a, b = make_runs(1, 1, kernels=2), make_runs(1, 2, kernels=2, factor=2)
    texts = ("iteration_time > 5%", "slower > 0", "new > 0", "kernels[kernel_*] > 1ms", "kernel_count > 0")
    result = check(a, b, *texts)
    assert (result.verdict, result.status, result.outcome) == ("untestable", "unsure", "untestable")
    assert [r.status for r in result.conditions] == ["untestable"] * 5
    assert all(FEW in r.reason for r in result.conditions)
    assert check(a, b).outcome == "untestable"
    assert {row.verdict for row in result.rows} == {"untestable"}
    assert {row.method for row in result.rows} == {"none"}
    assert result.rows[0].claim == "untestable"
    assert result.rows[0].interval == ""
    assert result.rows[0].change_percent == pytest.approx(100, rel=0.2)
    assert FEW in result.sentence
    assert "varies" not in result.sentence


def test_earlier_runs_make_single_runs_testable() -> None:
    a, b = make_runs(1, 1, kernels=2), make_runs(1, 2, kernels=2, factor=1.5)
    earlier = [make_runs(5, 3, kernels=2), make_runs(1, 4)]
    result = check(a, b, "kernel_time > 10%", "kernels[zz] > 1%", earlier=earlier)
    assert (result.verdict, result.earlier_runs) == ("slower", 5)
    assert {row.method for row in result.rows} == {"variance"}
    assert [r.status for r in result.conditions] == ["holds", "untestable"]
    assert "and 5 earlier ones" in result.sentence
    other = [make_run({("iterations", DURATION): t}, facts={**FACTS, "gpus": "1 × GPU Y"}) for t in range(100, 106)]
    assert check(a, b, earlier=[other]).verdict == "untestable"
    without = [make_run({("iterations", DURATION): t}) for t in range(100, 106)]
    assert check(a, b, "kernel_time > 10%", earlier=[without]).verdict == "untestable"


def test_noise_that_hides_a_change_is_untestable() -> None:
    a, b = make_runs(4, 1, variation=0.2), make_runs(4, 2, variation=0.2)
    result = check(a, b, "iteration_time > 5%", "iteration_time > 0%", "slower > 0")
    assert result.verdict == "untestable"
    assert "so much from one another that an increase of 10 % may not be shown" in result.reason
    assert [r.status for r in result.conditions] == ["untestable"] * 3
    assert "differences between runs hide changes of up to" in result.conditions[0].reason
    assert check(a, b, limits=CheckLimits(resolution_percent=1000)).verdict == "same"


@pytest.mark.parametrize(
    ("condition", "factor", "status"),
    [
        ("iteration_time > 5%", 1.03, "does_not_hold"),
        ("iteration_time > 1%", 1.03, "holds"),
        ("iteration_time >= 0%", 1.0, "does_not_hold"),
        ("iteration_time > 1ms", 1.03, "holds"),
        ("iteration_time > 2ms", 1.03, "does_not_hold"),
        ("iteration_time > 0ns", 1.03, "holds"),
        ("iteration_time > -5%", 1.0, "holds"),
        ("iteration_time > -5%", 0.9, "does_not_hold"),
        ("iteration_time < -5%", 0.9, "holds"),
        ("iteration_time < -5%", 1.0, "does_not_hold"),
        ("iteration_time < 5%", 1.0, "holds"),
        ("iteration_time < 5%", 1.1, "does_not_hold"),
        ("iteration_time > 0.1%", 1.0, "untestable"),
    ],
)
def test_conditions_on_metrics(condition: str, factor: float, status: str) -> None:
    a, b = make_runs(8, 1, variation=0.002), make_runs(8, 2, variation=0.002, factor=factor)
    (result,) = check(a, b, condition).conditions
    assert (result.text, result.status) == (condition, status)
    assert result.value.count(" to ") == 1
    assert condition in result.sentence


def test_kernels_that_are_new_or_gone() -> None:
    a = make_runs(10, 1, kernels=2)
    b = [make_run({("iterations", DURATION): 500_000_000 + i, ("kernels", "other"): 10**7 + i}) for i in range(10)]
    result = check(a, b, "new > 0", "gone > 1", "slower > 5", kinds=["kernels"])
    assert [r.status for r in result.conditions] == ["holds", "holds", "does_not_hold"]
    rows = {row.name: row for row in result.rows if row.level == "kernel"}
    assert rows["other"].presence == "new"
    assert rows["other"].claim == "slower: new"
    assert rows["other"].change_percent is None
    assert rows["kernel_0"].presence == "gone"
    assert rows["kernel_0"].verdict == "faster"


def test_small_kernels_are_tested_together() -> None:
    def runs(seed: int, factor: float) -> list[Summary]:
        names = {("kernels", f"small_{i}"): round(10 * factor) + seed + i for i in range(300)}
        return [
            make_run({("iterations", DURATION): 10**9 + k, ("kernels", "large"): 10**8 + k + seed} | names)
            for k in range(6)
        ]

    result = check(runs(1, 1), runs(2, 1), kinds=["kernels"])
    assert {(row.name, row.names) for row in result.rows[1:]} == {("large", 1), ("(others)", 300)}
    total = sum(row.time_a_ns for row in result.rows[1:])
    assert total == pytest.approx((10**8 + 3.5 + sum(range(11, 311))) / 10, rel=1e-6)


def test_thousands_of_kernels_are_limited() -> None:
    names = {("kernels", f"k{i}"): 1000 for i in range(999)}
    runs = [make_run({("iterations", DURATION): 10**7 + k} | names) for k in range(8)]
    result = check(runs[:4], runs[4:], kinds=["kernels"])
    assert len(result.rows) == 1 + 200 + 1
    assert result.rows[-1].names + 200 == 999


def test_copies_of_a_run_count_once() -> None:
    run = make_runs(1, 1)[0]
    result = check([run] * 9, make_runs(1, 2))
    assert (result.runs_a, result.verdict) == (1, "untestable")
    assert "run 9 of A is a copy of run 1, so it is left out" in result.notes
    assert [(each.side, each.run, each.copy_of) for each in result.runs][-2:] == [("a", 9, 1), ("b", 1, None)]
    assert {each.run_id for each in result.runs[:9]} == {compute_run_id(run)}
    same = make_runs(6, 1)
    assert check(same, same).verdict == "same"


def test_runs_without_variation() -> None:
    a = [make_run({("iterations", DURATION): 1000, ("kernels", "k"): 10 + i}) for i in range(5)]
    b = [make_run({("iterations", DURATION): 1100, ("kernels", "k"): 10 + i}) for i in range(5)]
    result = check(a, b, kinds=[])
    step = result.step
    assert step is not None
    assert (step.verdict, step.noise_percent) == ("slower", 0)
    assert step.low_percent == pytest.approx(10)
    assert (
        check(a, [make_run({("iterations", DURATION): 1000, ("kernels", "k"): 99 + i}) for i in range(5)]).verdict
        == "same"
    )


def test_huge_changes_and_variations() -> None:
    small = [make_run({("iterations", DURATION): 1 + i}, iterations=1) for i in range(5)]
    huge = [make_run({("iterations", DURATION): 10**17 + i}, iterations=1) for i in range(5)]
    result = check(small, huge)
    assert (result.verdict, result.rows[0].change_percent) == ("slower", None)
    assert "a step takes " in result.sentence
    assert "%" not in result.sentence.partition(".")[0]
    varied = [make_run({("iterations", DURATION): 10 ** (4 * i)}, iterations=1) for i in range(5)]
    assert "varies by " in check(varied, varied[:4]).sentence


def test_runs_with_different_numbers_of_iterations() -> None:
    a = [make_run({("iterations", DURATION): 10_000 + i}, iterations=10) for i in range(5)]
    b = [make_run({("iterations", DURATION): 20_000 + i}, iterations=20) for i in range(5)]
    result = check(a, b)
    assert result.verdict == "same"
    assert any("the numbers of iterations differ" in note for note in result.notes)


def test_what_cannot_be_compared() -> None:
    a = make_runs(5, 1)
    whole = [make_run({("iterations", DURATION): 10_000 + i}, facts={"gpus": "2 × GPU X"}) for i in range(5)]
    mixed = check(a, whole, "iteration_time > 5%", "slower > 0")
    assert (mixed.verdict, mixed.outcome, mixed.status) == ("untestable", "untestable", "unsure")
    assert all("an op delimits the iterations of some runs only" in r.reason for r in mixed.conditions)
    assert any("the GPUs differ" in note for note in mixed.notes)
    assert "the GPUs of the runs of B differ: 1 × GPU X; 2 × GPU X" in check(a, [*a, *whole]).notes
    empty = check([], a, "slower > 0")
    assert (empty.verdict, empty.status, empty.sentence) == ("untestable", "not_recorded", "untestable: A has no run.")
    assert empty.outcome == "untestable"
    nothing = [make_run({}, iterations=0) for _ in range(5)]
    unknown = check(nothing, nothing, "slower > 0", "kernel_time > 1%", kinds=["kernels"])
    assert (unknown.status, unknown.outcome) == ("not_recorded", "untestable")
    assert [r.status for r in unknown.conditions] == ["untestable", "untestable"]


def test_gpus_of_different_makers() -> None:
    names = {("iterations", DURATION): 1000, ("ops", "aten::cudnn_convolution"): 500}
    a = [make_run({k: v + i for k, v in names.items()}, facts={**FACTS, "gpus": "1 × NVIDIA H100"}) for i in range(5)]
    names = {("iterations", DURATION): 1000, ("ops", "aten::miopen_convolution"): 500}
    b = [make_run({k: v + i for k, v in names.items()}, facts={**FACTS, "gpus": "1 × AMD MI300X"}) for i in range(5)]
    result = check(a, b, kinds=["ops"])
    assert [row.name for row in result.rows] == [DURATION, "aten::convolution"]
    assert any("the makers of the GPUs differ" in note for note in result.notes)


@pytest.mark.parametrize("limits", [{"alpha": 0.0}, {"alpha": 0.5}, {"alpha": math.nan}])
def test_wrong_alpha(limits: dict[str, float]) -> None:
    with pytest.raises(TracekitError, match=r"alpha is .*, but it must be between 0 and 0\.5"):
        CheckLimits(**limits)


@pytest.mark.parametrize("name", ["min_change", "resolution"])
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_wrong_limits(name: str, value: float) -> None:
    with pytest.raises(TracekitError, match=f"{name} is {value}, but it must be 0 or more"):
        CheckLimits(**{f"{name}_percent": value})


def test_a_run_has_one_unit_and_an_id() -> None:
    rows = [
        ("kernels", "a", 0, 1, 10, None, None),
        ("kernels", "a", 1, 1, 20, None, None),
        ("kernels", "a", None, 1, 5, None, None),
    ]
    summary = Summary(pl.DataFrame(rows, schema=SAMPLES, orient="row"), (3, 2), FACTS)
    run = reduce_to_run(summary)
    assert run.units == (5,)
    assert sorted(run.samples["time_ns"].to_list()) == [5, 30]
    assert compute_run_id(run) == compute_run_id(reduce_to_run(run))
    assert compute_run_id(run) != compute_run_id(summary)
    assert reduce_to_run(make_run({}, iterations=0)).units == ()


def test_bounds_are_rounded_up() -> None:
    assert [_format_bound(x) for x in (0.301, 0.3, 1.21, 12.0, None)] == ["0.31", "0.30", "1.3", "12.0", "0.00"]


def test_rows_are_json_values() -> None:
    row = CheckRow("step", None, "same", *[None] * 4, 1.0, 2.0, None, None, "both", "none", "iterations")
    assert row.claim == "same"
    assert row.to_dict()["name"] is None


@pytest.mark.slow
def test_false_alarms_and_power() -> None:
    checks = 100 if ALL else 20
    alarms = sum(
        any(
            row.verdict == "slower"
            for row in check(make_runs(10, 2 * i, kernels=10), make_runs(10, 2 * i + 1, kernels=10)).rows
        )
        for i in range(checks)
    )
    assert alarms <= checks * 0.05
    slower = sum(
        check(make_runs(10, 2 * i), make_runs(10, 2 * i + 1, factor=1.03), kinds=[]).verdict == "slower"
        for i in range(checks)
    )
    assert slower >= checks * 0.9
