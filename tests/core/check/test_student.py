"""Quantiles of Student's t-distribution, against published tables and the closed forms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core.check.student import compute_t_quantile, compute_upper_tail

TABLE = {
    (0.95, 1): 6.314,
    (0.975, 4): 2.776,
    (0.95, 18): 1.734,
    (0.995, 2): 9.925,
    (0.9995, 10): 4.587,
    (0.975, 120): 1.980,
}


@pytest.mark.parametrize(("probability", "degrees"), TABLE)
def test_published_quantiles(probability: float, degrees: int) -> None:
    quantile = compute_t_quantile(probability, degrees)
    assert quantile == pytest.approx(TABLE[probability, degrees], abs=6e-4)
    assert compute_t_quantile(1 - probability, degrees) == pytest.approx(-quantile)


@given(st.floats(-50, 50))
def test_closed_forms_of_one_and_two_degrees(value: float) -> None:
    assert compute_upper_tail(value, 1) == pytest.approx(0.5 - math.atan(value) / math.pi, abs=1e-12)
    assert compute_upper_tail(value, 2) == pytest.approx(0.5 - value / (2 * math.sqrt(2 + value**2)), abs=1e-12)


def test_ends() -> None:
    assert compute_upper_tail(math.inf, 3) == 0
    assert compute_upper_tail(-math.inf, 3) == 1
    assert compute_upper_tail(0, 7) == pytest.approx(0.5)
    assert compute_t_quantile(1 - 1e-12, 3) > 1000
    assert compute_t_quantile(0.975, 10**7) == pytest.approx(1.959964, abs=1e-5)
