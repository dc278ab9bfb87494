"""Answers are equal to those that are built from their dictionaries, and dictionaries of other things are errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import tracekit as tk
from tests.builders.check_runs import make_runs
from tests.builders.jobs import straggle
from tests.builders.programs import GEMM, MS, Program, steps
from tests.conftest import FIXTURES
from tracekit.core.check import Check, check_runs
from tracekit.core.diagnosis import Options, WhatIf, parse_edits, predict
from tracekit.core.diagnosis.answer import Why
from tracekit.errors import SchemaError

if TYPE_CHECKING:
    from tracekit.core.diagnosis.answer import Answer


def through_json(answer: Answer) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(answer.to_dict()))
    return values


def test_why() -> None:
    answer = straggle().diagnose()
    values = through_json(answer)
    assert through_json(Why.from_dict(values)) == values
    del values["ranks"][0]["ledger"][0]["places"]
    with pytest.raises(SchemaError, match="a part of a ledger has no places"):
        Why.from_dict(values)


def test_what_if() -> None:
    program = Program()

    def body(_: int) -> None:
        program.launch(GEMM, 2 * MS)
        program.wait()

    steps(program, 4, body)
    answer = predict(program.rollup(), parse_edits("kernel * x0.5"), Options(None))
    assert WhatIf.from_dict(through_json(answer)) == answer


def test_check() -> None:
    check = check_runs(make_runs(5, 1), make_runs(5, 2, factor=1.2))
    values = through_json(check)
    assert through_json(Check.from_dict(values)) == values
    with pytest.raises(SchemaError, match="the outcome of the check is 'passed', but it must be 'failed'"):
        Check.from_dict({**values, "outcome": "passed"})


def test_ranges_are_not_compared_by_the_time_of_gpus_without_any() -> None:
    path = FIXTURES / "cpu_only.sqlite"
    diff = tk.diff(path, path, by=["nvtx_gpu", "nvtx"])
    assert (diff.frame("nvtx_gpu").height, diff.frame("nvtx").height > 0) == (0, True)
