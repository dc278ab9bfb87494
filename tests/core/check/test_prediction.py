"""Predicted savings: what is read, and how measured ones compare."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders.check_runs import make_runs
from tracekit.core.check import PredictedSaving, check_runs, parse_prediction
from tracekit.core.check.prediction import compare_with_prediction
from tracekit.errors import CorruptTraceError, TracekitError

SAVING = {"low": 0.1, "likely": 0.2, "high": 0.3}
STEP = {"name": "step *", "mean_ns": 1000}


def why(**data: Any) -> dict[str, Any]:
    causes = [{"cause": "launch_overhead", "saving": SAVING}, {"cause": "copies", "saving": {**SAVING, "low": 0.0}}]
    return {"schema": 1, "data": {"step": STEP, "causes": causes, "together": 0.4, "device": "GPU X", **data}}


def test_the_first_cause_is_the_default() -> None:
    prediction = parse_prediction(why())
    assert prediction == PredictedSaving("launch_overhead", 1000, 0.1, 0.2, 0.3, "GPU X", "step *")
    assert parse_prediction(why(), "copies").low == 0
    assert parse_prediction(why(), "together").to_dict() == {
        **dict(zip(("low", "likely", "high"), (0.1, 0.4, 0.6), strict=True)),
        "cause": "together",
        "step_ns": 1000,
        "device": "GPU X",
        "step": "step *",
    }


def test_envelopes_of_all_answers_are_read_as_well() -> None:
    assert parse_prediction({"schema": 2, "answer": why()["data"]}) == parse_prediction(why())


def test_answers_of_what_if() -> None:
    answer = {"schema": 1, "data": {"step": STEP, "saving": 0.2, "without_profiler": SAVING, "device": 7}}
    assert parse_prediction(answer) == PredictedSaving("edits", 1000, 0.1, 0.2, 0.3, None, "step *")
    del answer["data"]["without_profiler"]
    assert parse_prediction(answer).high == 0.2


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "x",
        {},
        {"schema": 1},
        {"schema": "1", "data": {}},
        {"schema": 1, "data": []},
        why(causes=[1]),
        why(causes=[{"cause": 1}]),
        why(causes=[{"cause": "a", "saving": None}]),
        why(causes=[{"cause": "a", "saving": {"low": 1, "likely": 0, "high": 1}}]),
        why(causes=[{"cause": "a", "saving": {"low": 0, "likely": 0, "high": float("nan")}}]),
        why(causes=[{"cause": "a", "saving": {"low": 0, "likely": 0, "high": 2}}]),
        why(causes=[{"cause": "a", "saving": {"low": True, "likely": True, "high": True}}]),
        why(causes=[{"cause": "a", "saving": {"low": -(10**400), "likely": 0, "high": 0}}]),
        why(together="x"),
        why(together=float("inf")),
        why(step={"mean_ns": 0}),
        why(step={"mean_ns": 1.5}),
        why(step={"mean_ns": True}),
        why(step={"mean_ns": 10**30}),
        {"schema": 1, "data": {"step": STEP, "saving": "x"}},
    ],
)
def test_damaged_answers(value: object) -> None:
    with pytest.raises(CorruptTraceError, match="Hint: choose a file that tracekit why --format json"):
        parse_prediction(value)


def test_answers_without_a_prediction() -> None:
    for value in (why(causes=[]), why(step=None), {"schema": 1, "data": {"step": STEP}}):
        with pytest.raises(TracekitError, match="the answer predicts no saving"):
            parse_prediction(value)
    with pytest.raises(TracekitError, match="the answer has no cause 'copis'\nHint: did you mean 'copies'"):
        parse_prediction(why(), "copis")


@pytest.mark.parametrize(
    ("times", "agreement", "text"),
    [
        ([800.0], "inside", "measured 20.0 % (1 run; 800 ns instead of 1 µs): inside the predicted interval"),
        ([1000.0], "below", "measured 0.0 % (1 run; 1 µs instead of 1 µs): below the predicted interval"),
        ([500.0, 600.0], "above", "measured 45.0 % (2 runs, 40.0 % to 50.0 %; "),
        ([700.0, 800.0, 900.0], "inside", "(3 runs, 10.0 % to 30.0 %; 800 ns"),
        ([], "untestable", "no step was measured"),
    ],
)
def test_measured_savings(times: list[float], agreement: str, text: str) -> None:
    result = compare_with_prediction(parse_prediction(why()), times)
    assert result.agreement == agreement
    assert "launch_overhead: predicted a saving of 20.0 % (10.0 % to 30.0 %)" in result.sentence
    assert text in result.sentence


def test_outcomes() -> None:
    prediction = PredictedSaving("\x1b[31mcause", 50_000_000, -0.1, 0.0, 0.1)
    alone = check_runs([], make_runs(1, 1), prediction=prediction)
    assert alone.outcome == "passed"
    assert alone.prediction is not None
    assert "\x1b" not in alone.prediction.sentence
    less = PredictedSaving("cause", 50_000_000, 0.3, 0.4, 0.5)
    assert check_runs([], make_runs(1, 1), prediction=less).outcome == "failed"
    assert check_runs([], [], prediction=less).outcome == "untestable"
    assert check_runs(make_runs(1, 1), make_runs(1, 2), prediction=prediction).outcome == "untestable"
    assert check_runs(make_runs(6, 1), make_runs(6, 2), prediction=prediction).outcome == "passed"
