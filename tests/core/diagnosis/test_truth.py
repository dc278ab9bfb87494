"""Predictions for programs that were timed with and without their cause.

``fixtures/README.md`` describes the programs, and ``tests/why_truth.py`` the comparison.
"""

from __future__ import annotations

import html
import statistics

import pytest
from tests import why_truth
from tests.conftest import FIXTURES
from tests.why_truth import Assessment, Program
from tracekit.core.diagnosis.texts import write_explanation
from tracekit.pages.answer import build_answer
from tracekit.text import format_duration

PROGRAMS = {p.name: p for p in why_truth.read_programs(FIXTURES / "why" / "truth.jsonl")}


@pytest.fixture(scope="module")
def assessment() -> Assessment:
    return why_truth.assess(PROGRAMS.values())


@pytest.mark.slow
def test_the_true_cause_is_first(assessment: Assessment) -> None:
    firsts = assessment.firsts
    assert len(firsts) >= 14
    assert {p.capture: p.first for p in firsts if not p.is_right} == {}


def test_the_first_screen_names_the_true_cause_and_its_cost(assessment: Assessment) -> None:
    """The sentence and the first of the causes name it. Where a capture cannot show the cause, they say so."""
    for prediction in assessment.firsts:
        answer = assessment.answers[prediction.capture]
        texts = write_explanation(answer)
        screen = str(build_answer(texts))
        name = html.escape(texts.causes[0].title)
        assert screen.index(html.escape(texts.sentence)) < screen.index(f"<h4>{name}")
        if prediction.is_unknowable:
            assert "Cannot tell" in screen
            assert "unsure: may save " in screen
            continue
        cause, cost = answer.causes[0], format_duration(texts.causes[0].saving_ns)
        assert cause.cause in prediction.illness.causes
        assert cause.cause.replace("_", " ") in texts.sentence
        assert f"about {cost} ({cause.saving.likely:.0%})" in texts.sentence
        assert f">{cost}</data>" in screen
    for name in assessment.findings:
        assert "Nothing to gain" in str(build_answer(write_explanation(assessment.answers[name])))


def test_the_median_error_of_savings_is_small(assessment: Assessment) -> None:
    assert statistics.median(assessment.errors) < 0.06


def test_most_intervals_contain_the_saving_of_a_run(assessment: Assessment) -> None:
    known = [p for p in assessment.predictions if not p.is_unknowable]
    assert sum(p.is_covered for p in known) >= 0.8 * len(known)
    assert all(p.low <= p.likely <= p.high for p in known)


def test_a_healthy_program_has_no_finding(assessment: Assessment) -> None:
    assert assessment.findings
    assert max(assessment.findings.values()) < why_truth.HEALTHY


def test_graphs_of_unknown_content_are_unsure(assessment: Assessment) -> None:
    [prediction] = [p for p in assessment.predictions if p.capture == "idle_streams"]
    assert (prediction.status, prediction.is_right) == ("unsure", True)


@pytest.mark.parametrize(("name", "depends_on_cpu"), [("recommender", True), ("scratch", False)])
def test_the_time_of_a_step_without_the_profiler_narrows_intervals(
    name: str, *, depends_on_cpu: bool, assessment: Assessment
) -> None:
    """It calibrates the CPU, and changes nothing where the time of a step hardly depends on the CPU.

    The likely savings stay within the range of the runs.
    """
    program: Program = PROGRAMS[name]
    calibrated = why_truth.assess([program], with_step_time=True)
    own = [p for p in assessment.predictions if p.capture in (name, f"{name} (PyTorch)")]
    assert len(calibrated.predictions) == len(own) > 0
    for with_time, without in zip(calibrated.predictions, own, strict=True):
        width, own_width = with_time.high - with_time.low, without.high - without.low
        assert width < 0.9 * own_width if depends_on_cpu else with_time == without
        assert with_time.is_covered
        assert not depends_on_cpu or with_time.illness.low <= with_time.likely <= with_time.illness.high
