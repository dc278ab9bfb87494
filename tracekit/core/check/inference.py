"""Estimate by how much quantities differ between two groups of runs, with intervals, at a common error rate.

The unit of observation is a run, because the iterations of one run share what differs between runs: clock rates,
temperatures, addresses, and other programs. Two methods are used:

``ranks``
    The permutation test of van der Waerden's normal scores. If the two groups do not differ, each division of all runs
    into groups of the same sizes is equally likely, whatever the distribution of the values is. Scores depend only on
    the order of the values, so that one outlier counts as much as the largest usual value. Under normal distributions,
    the test is asymptotically as powerful as Student's. For several quantities, the statistic is the largest score sum
    of all quantities (Westfall and Young's *maxT*). The interval contains the shifts of the second group for which the
    test does not reject, and the estimate is the median of all differences between the groups (Hodges and Lehmann).

``variance``
    Student's test with the pooled variance, for groups that are too small for ranks: with 3 runs per group, the
    smallest p-value of any permutation test is 1/20. It assumes normal distributions and equal variances. The variance
    of earlier groups of runs may be added, so that even single runs can be compared. For several quantities, the error
    rate is divided by their number (Bonferroni).

Both methods are one-sided: one error rate applies to increases, and another one to decreases.

Source: van der Waerden, Order tests for the two-sample problem (1952); Hodges and Lehmann, Estimates of location based
on rank tests (1963); Westfall and Young, Resampling-based multiple testing (1993).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np

from tracekit.core.check.student import compute_t_quantile
from tracekit.core.compare.permutation import MAX_DIVISIONS, compute_centered_ranks, generate_divisions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

Method = Literal["ranks", "variance", "none"]
MIN_DEGREES = 4
"""Smallest number of degrees of freedom of a variance that is used: 6 runs, or 5 runs and a single one."""
POWER = 0.9
"""Probability with which a detectable change is shown."""
_CELLS = 1 << 22
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Inference:
    """The differences of quantities between two groups of runs: one value per quantity.

    Attributes:
        method: The method, or ``none`` if there are too few runs.
        estimate: Estimated shift from the first to the second group.
        low: Lower end of the interval. With the error rate, the shift of any quantity is below its lower end. It is
            -inf if there are too few runs.
        high: Upper end of the interval, inf if there are too few runs.
        deviation: Standard deviation between the runs of a group, NaN if no group has several runs.
        detectable: Shift that is shown with the probability ``POWER``, inf if there are too few runs.
    """

    method: Method
    estimate: Matrix
    low: Matrix
    high: Matrix
    deviation: Matrix
    detectable: Matrix


def infer(a: Matrix, b: Matrix, alpha: float, earlier: Sequence[Matrix] = ()) -> Inference:
    """Estimate the shift of each quantity from one group of runs to another.

    Args:
        a: One row per run of the first group, and one column per quantity. All values are finite.
        b: The runs of the second group, with the same columns.
        alpha: Probability that any quantity without a change has a lower end above 0. The same applies to upper ends
            below 0.
        earlier: Groups of earlier runs, whose variances are the same. They are used only by the method ``variance``.
    """
    n, m = len(a), len(b)
    estimate = _compute_median_differences(a, b)
    squares, degrees = _sum_squares((a, b))
    deviation = np.sqrt(squares / degrees) if degrees else np.full(a.shape[1], np.nan)
    unknown = np.full(a.shape[1], np.inf)
    if not (n and m and a.shape[1]):
        return Inference("none", estimate, -unknown, unknown, deviation, unknown)
    if (ranks := _infer_by_ranks(a, b, alpha)) is not None:
        detectable = _compute_detectable_shift(deviation, degrees, alpha / a.shape[1], n, m)
        return Inference("ranks", estimate, *ranks, deviation, detectable)
    earlier_squares, earlier_degrees = _sum_squares(earlier, a.shape[1])
    squares, degrees = squares + earlier_squares, degrees + earlier_degrees
    if degrees < MIN_DEGREES:
        return Inference("none", estimate, -unknown, unknown, deviation, unknown)
    deviation = np.sqrt(squares / degrees)
    difference = b.mean(axis=0) - a.mean(axis=0)
    margin = compute_t_quantile(1 - alpha / a.shape[1], degrees) * deviation * math.sqrt(1 / n + 1 / m)
    detectable = _compute_detectable_shift(deviation, degrees, alpha / a.shape[1], n, m)
    low, high = difference - margin, difference + margin
    return Inference("variance", difference, low, high, deviation, detectable)


def _sum_squares(groups: Sequence[Matrix], columns: int = 0) -> tuple[Matrix, int]:
    """Return the squared deviations from the means of the groups, one sum per column, and their degrees of freedom."""
    total: Matrix = np.zeros(groups[0].shape[1] if groups else columns)
    degrees = 0
    for group in groups:
        if len(group) > 1:
            total = total + ((group - group.mean(axis=0)) ** 2).sum(axis=0)
            degrees += len(group) - 1
    return total, degrees


def _compute_detectable_shift(deviation: Matrix, degrees: int, alpha: float, n: int, m: int) -> Matrix:
    """Return the shift that Student's test shows with the probability ``POWER``."""
    factor = compute_t_quantile(1 - alpha, degrees) + compute_t_quantile(POWER, degrees)
    shift: Matrix = deviation * (factor * math.sqrt(1 / n + 1 / m))
    return shift


def _infer_by_ranks(a: Matrix, b: Matrix, alpha: float) -> tuple[Matrix, Matrix] | None:
    """Return the lower ends and the upper ends of the intervals by ranks, or None if there are too few runs."""
    n, m = len(a), len(b)
    scores = compute_normal_scores(np.concatenate([a, b]))
    untied = _compute_untied_sums(n, m)
    largest = untied if a.shape[1] == 1 else _compute_extreme_sums(scores, m)
    thresholds = [max(_find_threshold(sums, alpha) for sums in ends) for ends in zip(largest, untied, strict=True)]
    largest_possible = float(_list_scores(n + m)[::2][n:].sum())
    if max(thresholds) >= largest_possible - _TOLERANCE:
        return None
    low, high = np.empty(a.shape[1]), np.empty(a.shape[1])
    width = max(1, _CELLS // (n * m))
    for start in range(0, a.shape[1], width):
        part = slice(start, start + width)
        low[part] = _compute_lower_ends(a[:, part], b[:, part], thresholds[0])
        high[part] = -_compute_lower_ends(-a[:, part], -b[:, part], thresholds[1])
    return low, high


def compute_normal_scores(values: Matrix) -> Matrix:
    """Return the normal scores of the values of each column: the normal quantiles of their ranks, with mean 0.

    Equal values have the score of their mean rank.
    """
    ranks = compute_centered_ranks(values) + (len(values) - 1) / 2
    scores = _list_scores(len(values))[np.rint(2 * ranks).astype(np.int64)]
    centered: Matrix = scores - scores.mean(axis=0)
    return centered


@functools.lru_cache(maxsize=16)
def _list_scores(count: int) -> Matrix:
    """Return the normal quantiles of the ranks 0, 1/2, 1 and so on of a number of values."""
    normal = NormalDist()
    return np.array([normal.inv_cdf((i / 2 + 1) / (count + 1)) for i in range(2 * count - 1)])


@functools.lru_cache(maxsize=64)
def _compute_untied_sums(first_group_size: int, second_group_size: int) -> tuple[Matrix, Matrix]:
    """Return the sorted score sums of a single quantity without equal values, as ``_compute_extreme_sums`` does."""
    scores = _list_scores(first_group_size + second_group_size)[::2, None]
    return _compute_extreme_sums(scores, second_group_size)


def _compute_extreme_sums(scores: Matrix, second_group_size: int) -> tuple[Matrix, Matrix]:
    """Return the largest score sum of the second group over all columns for each division, and that of the negatives.

    Both are sorted in ascending order.
    """
    narrow = scores.astype(np.float32)
    largest, smallest = [], []
    for members in generate_divisions(len(scores), second_group_size):
        sums = members @ narrow
        largest.append(sums.max(axis=1))
        smallest.append(-sums.min(axis=1))
    first, second = (np.sort(np.concatenate(parts).astype(np.float64)) for parts in (largest, smallest))
    return first, second


def _find_threshold(ordered: Matrix, alpha: float) -> float:
    """Return the largest of the sums of divisions whose p-value exceeds ``alpha``. Larger sums are significant."""
    p_values = _compute_p_values(ordered, ordered)
    return float(ordered[p_values > alpha].max())


def _compute_p_values(ordered: Matrix, observed: Matrix) -> Matrix:
    """Return, for each observed sum, the share of the divisions whose sum is at least as large.

    If the divisions are random, the observed division is counted as well (Phipson and Smyth, 2010).
    """
    count = len(ordered)
    larger = count - np.searchsorted(ordered, observed - 1e-4, side="left")
    p_values: Matrix = larger / count if count < MAX_DIVISIONS else (larger + 1) / (count + 1)
    return p_values


def _compute_median_differences(a: Matrix, b: Matrix) -> Matrix:
    """Return the median of all differences between values of the second and of the first group, for each column."""
    if not (len(a) and len(b)):
        return np.full(a.shape[1], np.nan)
    medians = np.empty(a.shape[1])
    width = max(1, _CELLS // (len(a) * len(b)))
    for start in range(0, a.shape[1], width):
        part = slice(start, start + width)
        medians[part] = np.median(_list_differences(a[:, part], b[:, part]), axis=0)
    return medians


def _list_differences(a: Matrix, b: Matrix) -> Matrix:
    """Return the differences between all values of the second and of the first group, sorted, for each column."""
    return np.sort((b[:, None] - a[None]).reshape(len(a) * len(b), a.shape[1]), axis=0)


def _compute_lower_ends(a: Matrix, b: Matrix, threshold: float) -> Matrix:
    """Return the smallest shift of each column for which the score sum of the second group is not above a threshold.

    The score sum changes only where a shifted value passes another one, at one of the differences. It decreases with
    the shift, so a binary search over the sorted differences finds the smallest shift.
    """
    differences = _list_differences(a, b)
    count, columns = len(differences), np.arange(a.shape[1])
    between = np.empty((count + 1, a.shape[1]))
    between[0], between[-1] = differences[0] - 1, differences[-1] + 1
    between[1:-1] = (differences[:-1] + differences[1:]) / 2
    first, last = np.zeros(a.shape[1], dtype=np.int64), np.full(a.shape[1], count)
    while (first < last).any():
        middle = (first + last) // 2
        shifted = np.concatenate([a, b - between[middle, columns]])
        is_below = compute_normal_scores(shifted)[len(a) :].sum(axis=0) <= threshold + _TOLERANCE
        last = np.where(is_below, middle, last)
        first = np.where(is_below, first, np.minimum(middle + 1, last))
    ends: Matrix = differences[np.maximum(first - 1, 0), columns]
    return ends
