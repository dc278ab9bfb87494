"""Conditions of ``--fail-if``: their grammar, and their values against sums of the tables."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import training_runs
from tests.conftest import examples
from tests.core.compare.test_diff import SLOW, summary_of
from tracekit.core import compare
from tracekit.core.compare import METRICS, ROW_COUNTS, parse_condition
from tracekit.errors import MissingTableError, UnknownFormatError


def holds(text: str, diff: compare.Diff) -> bool:
    return parse_condition(text).is_met_by(diff)


@pytest.mark.parametrize(
    ("text", "metric", "comparison", "limit", "relative"),
    [
        ("gpu_time > 5%", "gpu_time", ">", Fraction(5), True),
        (" kernel_time>=1.5 % ", "kernel_time", ">=", Fraction(3, 2), True),
        ("idle_time<-2ms", "idle_time", "<", Fraction(-2_000_000), False),
        ("api_time <= +0.5us", "api_time", "<=", Fraction(500), False),
        ("api_time <= 7ns", "api_time", "<=", Fraction(7), False),
        ("iteration_time > 1 s", "iteration_time", ">", Fraction(10**9), False),
        ("kernel_count > 0", "kernel_count", ">", Fraction(0), False),
        ("slower > 3", "slower", ">", Fraction(3), False),
    ],
)
def test_grammar(text: str, metric: str, comparison: str, limit: Fraction, relative: bool) -> None:
    condition = parse_condition(text)
    assert (condition.metric, condition.comparison, condition.limit) == (metric, comparison, limit)
    assert condition.is_relative == relative
    assert condition.pattern is None
    assert condition.text == text.strip()


def test_patterns() -> None:
    condition = parse_condition("kernels[*gemm<[a-z], *] x>] > 2us")
    assert (condition.metric, condition.pattern, condition.required_kinds) == (
        "kernels",
        "*gemm<[a-z], *] x>",
        ("kernels",),
    )
    assert parse_condition("nvtx_gpu[*]>1%").required_kinds == ("nvtx_gpu",)
    assert parse_condition("gpu_time > 1%").required_kinds == ("kernels", "copies")
    assert parse_condition("slower > 1").required_kinds == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a condition\nHint: write METRIC > LIMIT"),
        ("gpu_time", "is not a condition"),
        ("gpu_time == 5%", "is not a condition"),
        ("gpu_time > 5% or 1", "is not a condition"),
        ("gpu_time > 1e9%", "is not a condition"),
        ("gpu_time > nan%", "is not a condition"),
        ("gpu_time > __import__('os')", "is not a condition"),
        ("gpu_tme > 5%", "unknown metric 'gpu_tme' in 'gpu_tme > 5%'\nHint: did you mean 'gpu_time'"),
        ("gpu_time[x] > 5%", "unknown kind 'gpu_time' in 'gpu_time[x] > 5%'\nHint: choose one of these kinds: "),
        (
            "gpu_time > 5",
            "has no unit, which gpu_time does not allow\nHint: write the limit of gpu_time in %, ns, us, µs, ms, s",
        ),
        (
            "kernel_count > 5ms",
            "has the unit 'ms', which kernel_count does not allow\nHint: write the limit of kernel_count without a",
        ),
        (
            "slower > 5%",
            "has the unit '%', which slower does not allow\nHint: write the limit of slower without a unit",
        ),
        ("kernels[x] > 5", "write the limit of kernels in %, ns"),
    ],
)
def test_wrong_conditions(text: str, message: str) -> None:
    with pytest.raises(UnknownFormatError) as raised:
        parse_condition(text)
    assert message in str(raised.value)


@settings(max_examples=examples(150))
@given(st.text(alphabet="gpu_time kernels[]*><=%0123456789.-msn", max_size=30))
def test_any_text_is_a_condition_or_an_error(text: str) -> None:
    try:
        condition = parse_condition(text)
    except UnknownFormatError:
        return
    assert condition.text == text.strip()


@pytest.mark.slow
def test_values() -> None:
    slow_run = {"slow": ((SLOW, 2.0),)}
    diff = tk.diff(training_runs.summary(1), training_runs.summary(2, **slow_run))
    sums = []
    for trace in (training_runs.run(1), training_runs.run(2, **slow_run)):
        kernels, copies = (trace.frame(t).collect() for t in ("kernels", "memcpys"))
        sums.append([int((f["end_ns"] - f["start_ns"]).sum()) for f in (kernels, copies)])
    change = sum(sums[1]) - sum(sums[0])
    assert parse_condition("gpu_time > 0ns").compute_observed_value(diff) == change
    assert parse_condition("gpu_time > 0%").compute_observed_value(diff) == Fraction(change * 100, sum(sums[0]))
    assert parse_condition("kernel_time > 0ns").compute_observed_value(diff) == sums[1][0] - sums[0][0]
    assert parse_condition("copy_time > 0ns").compute_observed_value(diff) == sums[1][1] - sums[0][1]
    assert (
        parse_condition("copy_bytes > 0").compute_observed_value(diff)
        == parse_condition("kernel_count > 0").compute_observed_value(diff)
        == 0
    )
    assert (
        parse_condition("slower > 0").compute_observed_value(diff)
        == diff.significant().filter(status="slower").height
        > 0
    )
    assert parse_condition("gone > 0").compute_observed_value(diff) == 0
    slow = diff.frame("kernels").row(0, named=True)
    assert parse_condition("kernels[kernel_f<*] > 0%").compute_observed_value(diff) == Fraction(
        slow["change_ns"] * 100, slow["time_a_ns"]
    )
    for name in METRICS:
        assert isinstance(parse_condition(f"{name} > 0%").compute_observed_value(diff), Fraction)
    for name in ROW_COUNTS:
        assert not holds(f"{name} < 0", diff)
    duration = diff.frame("iterations").filter(name="(duration)")["change_ns"][0]
    assert parse_condition("iteration_time > 0ns").compute_observed_value(diff) == duration


def test_comparisons() -> None:
    diff = compare.compare(summary_of([("a", 0, 1, 100)]), summary_of([("a", 0, 1, 105)]), ["kernels"])
    expected = {
        ">": [True, False, False],
        ">=": [True, True, False],
        "<": [False, False, True],
        "<=": [False, True, True],
    }
    for comparison, results in expected.items():
        assert [holds(f"kernel_time {comparison} {limit}%", diff) for limit in ("4.999", "5", "5.001")] == results
        assert [holds(f"kernel_time {comparison} {limit}ns", diff) for limit in ("4", "5", "6")] == results


def test_values_are_per_iteration_if_the_numbers_of_iterations_differ() -> None:
    a = summary_of([("a", 0, 1, 100), ("a", 1, 1, 100), ("a", None, 1, 1000)], (1, 1))
    b = summary_of([("a", 0, 3, 330)], (3,))
    diff = compare.compare(a, b, ["kernels"])
    assert parse_condition("kernel_time > 0%").compute_observed_value(diff) == 10
    assert parse_condition("kernel_count > 0%").compute_observed_value(diff) == 0


def test_changes_from_nothing_are_infinite() -> None:
    none, some = summary_of([("a", 0, 1, 0)]), summary_of([("a", 0, 1, 5)])
    assert (
        parse_condition("kernel_time > 5%").compute_observed_value(compare.compare(none, some, ["kernels"])) == math.inf
    )
    assert parse_condition("kernel_time > 5%").compute_observed_value(compare.compare(none, none, ["kernels"])) == 0
    assert parse_condition("kernel_time > 5%").compute_observed_value(compare.compare(some, none, ["kernels"])) == -100


def test_a_side_without_data_is_an_error() -> None:
    some = summary_of([("a", 0, 1, 5)])
    nothing = compare.Summary(pl.DataFrame(schema=compare.SAMPLES))
    with pytest.raises(MissingTableError, match="side B has no data for gpu_time"):
        holds("gpu_time > 5%", compare.compare(some, nothing, ["kernels"]))
    with pytest.raises(MissingTableError, match="side A has no data for api_time"):
        holds("api_time > 5%", compare.compare(some, some, ["kernels"]))
    for sides in ((some, nothing), (nothing, some)):
        side = "A" if sides[0] is nothing else "B"
        with pytest.raises(MissingTableError, match=f"side {side} has no data for kernels\nHint: compare captures"):
            holds("kernels[a] > 5%", compare.compare(*sides, ["kernels"]))


UNTESTABLE = {
    "too few iterations": ("slower > 0", [("a", 0, 1, 5)], [("a", 0, 1, 9)], (1,) * 3, "iterations are too few"),
    "kernels outside": ("new > 0", [("a", None, 1, 5)], [("a", None, 1, 9)], (1,) * 20, "rows of kernels are outside"),
    "no rows": ("gone > 0", [], [], (1,) * 20, "neither side has any rows"),
    "no size": ("copy_bytes > 5", [], [], (1,) * 20, "side A has no data for copy_bytes"),
}


@pytest.mark.parametrize("case", UNTESTABLE)
def test_conditions_that_cannot_be_tested_are_errors(case: str) -> None:
    text, a, b, units, message = UNTESTABLE[case]
    diff = compare.compare(summary_of(a, units), summary_of(b, units), ["kernels"])
    with pytest.raises(MissingTableError, match=message):
        holds(text, diff)


def copies_of(rows: list[tuple[str, int | None, int | None]], units: tuple[int, ...] = (1, 1)) -> compare.Summary:
    """A summary of events of 7 ns: kind, unit and bytes."""
    samples = [(kind, "a", unit, 1, 7, size, None) for kind, unit, size in rows]
    return compare.Summary(pl.DataFrame(samples, schema=compare.SAMPLES, orient="row"), units)


def test_a_sum_without_values_is_no_measurement() -> None:
    sized, unsized = copies_of([("copies", 0, 5)]), copies_of([("copies", 0, None)])
    with pytest.raises(MissingTableError, match="side B has no data for copy_bytes"):
        holds("copy_bytes > 5", compare.compare(sized, unsized, ["copies"]))
    with pytest.raises(MissingTableError, match="sides A and B have no data for copy_bytes"):
        holds("copy_bytes > 5", compare.compare(unsized, unsized, ["copies"]))
    both = copies_of([("kernels", 0, None), ("copies", 0, 5)])
    with pytest.raises(MissingTableError, match="side B has no data for gpu_time"):
        holds("gpu_time > 5%", compare.compare(both, sized, ["copies"]))
    kernels = copies_of([("kernels", 0, None)])
    for sides, change in (((sized, sized), 0), ((both, kernels), -50)):
        diff = compare.compare(*sides, ["copies"])
        assert parse_condition("gpu_time > 5%").compute_observed_value(diff) == change


def test_a_metric_per_iteration_needs_events_in_iterations() -> None:
    inside, outside = copies_of([("copies", 0, 5)]), copies_of([("copies", None, 5)], (1,))
    diff = compare.compare(inside, outside, ["copies"])
    with pytest.raises(MissingTableError, match="side B has no data for copy_time in its iterations"):
        holds("copy_time > 5%", diff)
    assert parse_condition("copies[a] > 5%").compute_observed_value(diff) == -100
    diff = compare.compare(copies_of([("copies", None, 5)]), outside, ["copies"])
    with pytest.raises(MissingTableError, match="sides A and B have no data for copies in its iterations"):
        holds("copies[a] > 5%", diff)


def test_a_whole_capture_is_not_compared_with_an_iteration() -> None:
    """If no op delimits iterations, the whole capture is one iteration."""
    rows = [("k", i, 1, 10) for i in range(20)]
    loop, whole = summary_of(rows, (1,) * 20), summary_of([("k", 0, 20, 230)], (1,))
    loop = dataclasses.replace(loop, facts={"key_op": "step"})
    for sides, side in (((whole, loop), "A"), ((loop, whole), "B")):
        diff = compare.compare(*sides, ["kernels"])
        assert not diff.is_per_iteration
        (note,) = diff.notes
        assert note.startswith(f"no op delimits iterations in {side}, so its iterations are not compared; name one")
        assert f"because no op delimits iterations in {side}; the time in kernels changed by " in diff.verdict
        for text in ("iteration_time > 5%", "iterations[*] > 5%"):
            both = [side_with_durations(each) for each in sides]
            with pytest.raises(MissingTableError, match=f"but no op delimits iterations in {side}"):
                holds(text, compare.compare(*both, ["iterations"]))
        with pytest.raises(MissingTableError, match=f"but no op delimits iterations in {side}"):
            holds("slower > 0", diff)
        change = parse_condition("kernel_time > 0ns").compute_observed_value(diff)
        assert change == (-30 if side == "A" else 30)


def side_with_durations(side: compare.Summary) -> compare.Summary:
    """A side whose samples are durations of iterations."""
    rows = side.samples.with_columns(kind=pl.lit("iterations"), name=pl.lit("(duration)"))
    return dataclasses.replace(side, samples=rows)


def test_formatted_values() -> None:
    expected = {
        "gpu_time > 5%": ("+1,234.50 %", Fraction(2469, 2)),
        "gpu_time > 5ms": ("+1,234,567 ns", Fraction(1234567)),
        "gpu_time > 5ns": ("-0.50 ns", Fraction(-1, 2)),
        "copy_bytes > 5": ("+4,096 bytes", Fraction(4096)),
        "kernel_count > 5": ("-7", Fraction(-7)),
        "slower > 5": ("7", Fraction(7)),
        "kernels[x] > 5us": ("+7 ns", Fraction(7)),
    }
    for text, (shown, value) in expected.items():
        assert parse_condition(text).format_value(value) == shown
    assert parse_condition("gpu_time > 5%").format_value(math.inf) == "+inf %"


def test_a_pattern_has_to_match_a_name() -> None:
    a, b = summary_of([("a", 0, 1, 5), ("same", 0, 1, 5)]), summary_of([("b", 0, 1, 5), ("same", 0, 1, 5)])
    diff = compare.compare(a, b, ["kernels"])
    with pytest.raises(MissingTableError) as raised:
        holds("kernels[*typo*] > 3%", diff)
    assert str(raised.value) == (
        "no name in A or B matches the pattern in 'kernels[*typo*] > 3%'\n"
        "Hint: list the names with tracekit diff A B --by kernels --format csv"
    )
    assert parse_condition("kernels[a] > 5%").compute_observed_value(diff) == -100
    assert parse_condition("kernels[b] > 5%").compute_observed_value(diff) == math.inf


def test_results_state_the_value_or_the_reason() -> None:
    diff = compare.compare(summary_of([("a", 0, 1, 100)]), summary_of([("a", 0, 1, 110)]), ["kernels"])
    results = [parse_condition(text).evaluate(diff) for text in ("kernel_time > 5%", "kernel_time > 20%", "slower > 0")]
    assert [result.status for result in results] == ["holds", "does_not_hold", "untestable"]
    assert results[0].sentence == "kernel_time > 5% holds (the value is +10.00 %)"
    assert results[1].sentence == "kernel_time > 20% does not hold (the value is +10.00 %)"
    assert results[2].sentence.startswith("slower > 0 cannot be tested: slower counts significant rows, but ")
    assert results[2].to_dict()["value"] == ""
