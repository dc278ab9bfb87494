"""Shifts between two groups of runs: against brute force, and their error rates."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import ALL, examples
from tracekit.core.check.inference import compute_normal_scores, infer
from tracekit.core.check.student import compute_t_quantile

VALUE = st.integers(-20, 20).map(float)


def score_sum(a: list[float], b: list[float]) -> float:
    """The sum of the normal scores of the second group. Equal values have the score of their mean rank."""
    values = [*a, *b]
    ranks = [sum(v < x for v in values) + (sum(v == x for v in values) - 1) / 2 for x in values]
    scores = [NormalDist().inv_cdf((r + 1) / (len(values) + 1)) for r in ranks]
    mean = sum(scores) / len(scores)
    return sum(scores[len(a) :]) - len(b) * mean


def lower_end(a: list[float], b: list[float], alpha: float) -> float:
    """The smallest shift that is not rejected, by trying all of them with all divisions."""
    count = len(a) + len(b)
    scores = [NormalDist().inv_cdf((r + 1) / (count + 1)) for r in range(count)]
    sums = sorted(sum(scores[i] for i in chosen) for chosen in itertools.combinations(range(count), len(b)))
    allowed = [s for s in sums if sum(t >= s - 1e-4 for t in sums) / len(sums) > alpha]
    differences = sorted(y - x for x in a for y in b)
    between = [differences[0] - 1, *((d + e) / 2 for d, e in itertools.pairwise(differences)), differences[-1] + 1]
    k = next(k for k, shift in enumerate(between) if score_sum(a, [y - shift for y in b]) <= max(allowed) + 1e-6)
    return differences[k - 1] if k else -math.inf


@settings(max_examples=examples(60))
@given(st.lists(VALUE, min_size=1, max_size=5), st.lists(VALUE, min_size=1, max_size=5))
def test_normal_scores(a: list[float], b: list[float]) -> None:
    scores = compute_normal_scores(np.array([*a, *b])[:, None])
    assert float(scores[len(a) :].sum()) == pytest.approx(score_sum(a, b), abs=1e-9)


@settings(max_examples=examples(40))
@given(st.lists(VALUE, min_size=4, max_size=5), st.lists(VALUE, min_size=4, max_size=5))
def test_intervals_by_ranks_are_those_of_brute_force(a: list[float], b: list[float]) -> None:
    result = infer(np.array(a)[:, None], np.array(b)[:, None], 0.045)
    assert result.method == "ranks"
    assert result.low[0] == lower_end(a, b, 0.045)
    assert result.high[0] == -lower_end([-x for x in a], [-y for y in b], 0.045)
    assert result.estimate[0] == np.median([y - x for x in a for y in b])
    assert result.low[0] <= result.high[0]


def test_the_variance_is_used_if_ranks_cannot_be_significant() -> None:
    a, b = np.array([[1.0], [2.0], [3.0]]), np.array([[4.0], [5.0], [6.0]])
    result = infer(a, b, 0.045)
    assert result.method == "variance"
    assert result.estimate[0] == 3
    quantile = compute_t_quantile(1 - 0.045, 4)
    margin = quantile * math.sqrt(2 / 3)
    assert result.low[0] == pytest.approx(3 - margin, abs=1e-5)
    assert result.high[0] == pytest.approx(3 + margin, abs=1e-5)
    assert result.deviation[0] == 1
    assert result.detectable[0] == pytest.approx((quantile + 1.533206) * math.sqrt(2 / 3), abs=1e-5)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 2), (2, 3), (1, 4), (0, 5), (5, 0)])
def test_too_few_runs(n: int, m: int) -> None:
    result = infer(np.arange(n, dtype=float)[:, None], np.arange(m, dtype=float)[:, None], 0.05)
    assert result.method == "none"
    assert (result.low[0], result.high[0]) == (-math.inf, math.inf)


def test_earlier_runs_make_single_runs_testable() -> None:
    one, other = np.array([[1.0]]), np.array([[2.0]])
    earlier = [np.array([[5.0], [5.1], [4.9]]), np.array([[7.0], [7.1], [6.9]]), np.array([[0.0]])]
    result = infer(one, other, 0.05, earlier)
    assert result.method == "variance"
    assert result.deviation[0] == pytest.approx(0.1)
    assert result.low[0] == pytest.approx(1 - 2.131847 * 0.1 * math.sqrt(2), abs=1e-5)
    assert infer(one, other, 0.05, earlier[:1]).method == "none"


@pytest.mark.parametrize("n", [1, 2, 3])
def test_equal_values_do_not_make_few_runs_testable(n: int) -> None:
    equal = np.ones((n, 3))
    assert infer(equal, equal, 0.01).method == ("none" if n < 3 else "variance")


def test_one_outlier_does_not_hide_a_change() -> None:
    a = np.array([100.0, 101, 99, 100.5, 99.5, 100.2, 99.8, 1000])[:, None]
    b = np.array([110.0, 111, 109, 110.5, 109.5, 110.2, 109.8, 110.1])[:, None]
    result = infer(a, b, 0.05)
    assert 8 < result.low[0] < result.estimate[0] < result.high[0] < 12


def test_many_quantities_of_many_runs_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(8, 7)), generator.normal(size=(9, 7))
    whole = infer(a, b, 0.05)
    monkeypatch.setattr("tracekit.core.check.inference._CELLS", 150)
    parts = infer(a, b, 0.05)
    for name in ("low", "high", "estimate"):
        assert getattr(whole, name).tolist() == getattr(parts, name).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m", "columns", "tail"), [(10, 10, 1, False), (10, 10, 20, True), (5, 5, 20, False)])
def test_error_rates(n: int, m: int, columns: int, *, tail: bool) -> None:
    generator = np.random.default_rng(3)
    draw = (lambda shape: generator.standard_t(3, shape)) if tail else (lambda shape: generator.normal(size=shape))
    checks, above, below = 200 if ALL else 40, 0, 0
    for _ in range(checks):
        common = draw((n + m, 1))
        values = draw((n + m, columns)) + common
        result = infer(values[:n], values[n:], 0.05)
        above += bool((result.low > 0).any())
        below += bool((result.high < 0).any())
    limit = checks * 0.05 + 3 * math.sqrt(checks * 0.05)
    assert above <= limit
    assert below <= limit
