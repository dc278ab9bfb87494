"""Operations whose first call of a shape takes much longer than later ones."""

from __future__ import annotations

import pytest
import tracekit as tk
from tests.conftest import FIXTURES


def test_first_calls_are_listed_with_their_share() -> None:
    answer = tk.load(FIXTURES / "steps" / "gpt.pt.trace.json.gz").why()
    first = answer.first_calls[0]
    assert (first.name, first.shapes) == ("aten::_cudnn_attention_forward", 6)
    assert first.share == pytest.approx(first.excess_ns / answer.step.median_ns, abs=0.01) if answer.step else False
    assert 0.7 < first.share < sum(call.share for call in answer.first_calls) < 1
    excesses = [call.excess_ns for call in answer.first_calls]
    assert excesses == sorted(excesses, reverse=True)
    assert all(call.excess_ns >= 1_000_000 for call in answer.first_calls)
    assert all(call.longest_ns <= call.excess_ns * 2 for call in answer.first_calls)


def test_a_warm_program_has_no_first_calls() -> None:
    assert tk.load(FIXTURES / "why" / "scratch.nsys-rep").why().first_calls == ()
