"""The permutation test against a brute force, and the frequency of its false alarms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tracekit.core.compare import permutation
from tracekit.core.compare.permutation import (
    compute_adjusted_p_values,
    compute_autocorrelation_times,
    compute_centered_ranks,
    compute_paired_p_values,
)

VALUES = st.one_of(st.integers(0, 3).map(float), st.just(math.nan))


def columns(rows: int, width: int) -> st.SearchStrategy[list[list[float]]]:
    return st.lists(st.lists(VALUES, min_size=width, max_size=width), min_size=rows, max_size=rows)


def rank(values: list[float]) -> list[float]:
    """Return the mean ranks of the values minus their mean, and 0 for NaN."""
    known = [v for v in values if not math.isnan(v)]
    mean = (len(known) - 1) / 2
    ranks = [sum(k < v for k in known) + (sum(k == v for k in known) - 1) / 2 - mean for v in values]
    return [0.0 if math.isnan(v) else r for v, r in zip(values, ranks, strict=True)]


def brute_force(a: np.ndarray, b: np.ndarray) -> list[float]:
    """Return the share of all divisions whose largest statistic is at least that of each column."""
    ranks = np.array([rank(list(column)) for column in np.concatenate([a, b]).T]).T
    rows, size = len(ranks), len(b)
    divisions = list(itertools.combinations(range(rows), size))
    sums = np.array([np.abs(ranks[list(members)].sum(axis=0)) for members in divisions])
    deviation = np.sqrt((sums**2).mean(axis=0))
    scaled = np.divide(sums, deviation, out=np.zeros_like(sums), where=deviation > 1e-9)
    observed = scaled[divisions.index(tuple(range(len(a), rows)))] / np.sqrt(
        compute_autocorrelation_times(ranks[: len(a)], ranks[len(a) :])
    )
    return [float((scaled.max(axis=1) >= o - 1e-3 * o).mean()) for o in observed]


@settings(max_examples=examples(150))
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)).flatmap(
        lambda n: st.tuples(columns(n[0], n[2]), columns(n[1], n[2]))
    )
)
def test_all_divisions_of_few_iterations(sides: tuple[list[list[float]], list[list[float]]]) -> None:
    a, b = (np.array(side) for side in sides)
    assert compute_adjusted_p_values(a, b) == pytest.approx(brute_force(a, b), abs=1e-9)


@settings(max_examples=examples(100))
@given(st.lists(VALUES, min_size=1, max_size=8))
def test_ranks(values: list[float]) -> None:
    assert compute_centered_ranks(np.array([values]).T)[:, 0].tolist() == rank(values)


def test_random_divisions_are_seeded_and_resemble_all_divisions(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(3)
    a, b = generator.normal(size=(7, 5)), generator.normal(0.9, size=(7, 5))
    every = compute_adjusted_p_values(a, b)
    assert math.comb(14, 7) < permutation.MAX_DIVISIONS
    monkeypatch.setattr(permutation, "MAX_DIVISIONS", 3000)
    some = compute_adjusted_p_values(a, b)
    assert some.tolist() == compute_adjusted_p_values(a, b).tolist() != every.tolist()
    assert some == pytest.approx(every, abs=0.03)
    assert min(some) >= 1 / 3001


def test_sides_without_iterations_or_quantities_are_not_different() -> None:
    assert compute_adjusted_p_values(np.zeros((0, 2)), np.ones((5, 2))).tolist() == [1, 1]
    assert compute_adjusted_p_values(np.zeros((5, 0)), np.ones((5, 0))).tolist() == []
    assert compute_adjusted_p_values(np.ones((9, 1)), np.ones((9, 1))).tolist() == [1]


@pytest.mark.thorough
def test_slow_changes_of_both_sides_are_no_difference() -> None:
    generator = np.random.default_rng(1)
    independent = generator.normal(size=(40, 200))
    times = compute_autocorrelation_times(independent[:20], independent[20:])
    assert (times >= 1).all()
    assert times.mean() < 1.5
    drifting = generator.normal(size=(2, 60, 100))
    for i in range(1, 60):
        drifting[:, i] += 0.8 * drifting[:, i - 1]
    assert np.median(compute_autocorrelation_times(*drifting)) > 4  # (1 + 0.8) / (1 - 0.8) = 9 without bias
    alarms = [compute_adjusted_p_values(*drifting[:, :, i : i + 1])[0] <= 0.01 for i in range(100)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutation, "compute_autocorrelation_times", lambda a, _: np.ones(a.shape[1]))
        others = [compute_adjusted_p_values(*drifting[:, :, i : i + 1])[0] <= 0.01 for i in range(100)]
    assert sum(alarms) <= 8
    assert sum(others) >= 25


def test_false_alarms_are_as_rare_as_promised() -> None:
    generator = np.random.default_rng(2)
    p_values = [compute_adjusted_p_values(*generator.normal(size=(2, 6, 20))).min() for _ in range(200)]
    assert sum(p <= 0.05 for p in p_values) <= 20  # 10 are expected


def brute_force_of_pairs(a: np.ndarray, b: np.ndarray) -> list[float]:
    """Return the share of all exchanges of pairs whose largest statistic is at least that of each column."""
    columns = []
    for before, after in zip(a.T, b.T, strict=True):
        changes = [0.0 if math.isnan(y - x) else y - x for x, y in zip(before, after, strict=True)]
        sizes = sorted(abs(c) for c in changes if c)
        ranks = [(sizes.index(abs(c)) + 1 + sizes.index(abs(c)) + sizes.count(abs(c))) / 2 if c else 0 for c in changes]
        columns.append([math.copysign(r, c) for r, c in zip(ranks, changes, strict=True)])
    ranks = np.array(columns).T
    scale = np.sqrt((ranks**2).sum(axis=0))
    signs = np.array(list(itertools.product((1, -1), repeat=len(a))))
    scaled = np.divide(np.abs(signs @ ranks), scale, out=np.zeros((len(signs), len(scale))), where=scale > 0)
    observed = scaled[0] / np.sqrt(compute_autocorrelation_times(ranks))
    return [float((scaled.max(axis=1) >= o - 1e-3 * o).mean()) for o in observed]


@settings(max_examples=examples(150))
@given(
    st.tuples(st.integers(1, 6), st.integers(1, 3)).flatmap(
        lambda n: st.tuples(columns(n[0], n[1]), columns(n[0], n[1]))
    )
)
def test_all_exchanges_of_few_pairs(sides: tuple[list[list[float]], list[list[float]]]) -> None:
    a, b = (np.array(side) for side in sides)
    assert compute_paired_p_values(a, b) == pytest.approx(brute_force_of_pairs(a, b), abs=1e-9)


@pytest.mark.slow
def test_pairs_find_changes_that_are_smaller_than_the_spread() -> None:
    generator = np.random.default_rng(4)
    a = generator.uniform(1, 20, size=(40, 5))
    b = a * [1, 1, 1.03, 1, 1] * generator.normal(1, 0.01, size=(40, 5))
    assert compute_adjusted_p_values(a, b)[2] > 0.5
    assert compute_paired_p_values(a, b)[2] < 0.001
    assert (np.delete(compute_paired_p_values(a, b), 2) > 0.05).all()
    assert compute_paired_p_values(a, b).tolist() == compute_paired_p_values(a, b).tolist()
    assert compute_paired_p_values(a[:0], b[:0]).tolist() == [1] * 5
    alarms = [compute_paired_p_values(*generator.normal(size=(2, 20, 10))).min() <= 0.05 for _ in range(100)]
    assert sum(alarms) <= 14  # 5 are expected
