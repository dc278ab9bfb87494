"""Test whether the two sides of a comparison differ more than the iterations of one side.

The test is a permutation test with the largest standardized rank sum of all quantities as its statistic (Westfall and
Young's *maxT*). If both sides come from the same distribution, the labels of the iterations are exchangeable: any
division of all iterations into two groups of the same sizes is as likely as the observed one. The adjusted p-value of a
quantity is the share of the divisions in which any quantity differs at least as much as this one does in the observed
division. It therefore accounts for the number of quantities, and for the correlations between them. Ranks instead of
times make the test robust against outliers such as the first iteration.

If both sides have equally many iterations, the iterations with the same number are also compared in pairs, because
they often have the same work, such as batches of different sizes. The statistic is then that of the Wilcoxon
signed-rank test, and the sides of any pair may be exchanged. This finds small changes of work that varies widely from
iteration to iteration.

All divisions are examined if there are fewer than ``MAX_DIVISIONS``. Otherwise, ``MAX_DIVISIONS`` random divisions are
drawn with a fixed seed, so that equal inputs have equal results.

Consecutive iterations are often similar, because clock rates and the overlap with other work change slowly. The
observed statistic of a quantity is therefore divided by the square root of its integrated autocorrelation time, which
is the number of iterations that contain as much information as one independent iteration.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

MAX_DIVISIONS = 10_000
SEED = 0
_BATCH = 256
_TOLERANCE = 1e-4
"""Relative difference below which two statistics are equal. Sums of ranks are computed as 32-bit floats."""


def compute_adjusted_p_values(a: Matrix, b: Matrix) -> Matrix:
    """Return the p-value of the difference between two sides for each quantity, adjusted for all quantities.

    Args:
        a: One row per iteration of the first side, and one column per quantity. Missing values are NaN.
        b: One row per iteration of the second side, with the same columns.

    Returns:
        One p-value per column. It is 1 for all columns if a side has no iterations.
    """
    quantities = a.shape[1]
    if not (len(a) and len(b) and quantities):
        return np.ones(quantities)
    ranks = compute_centered_ranks(np.concatenate([a, b]))
    scale = _compute_standard_deviations_of_rank_sums(ranks, len(a), len(b))
    observed = np.abs(ranks[len(a) :].sum(axis=0)) / scale
    observed /= np.sqrt(compute_autocorrelation_times(ranks[: len(a)], ranks[len(a) :]))
    largest = _compute_largest_statistics(ranks / scale, len(b))
    return _compute_p_values(largest, observed)


def compute_paired_p_values(a: Matrix, b: Matrix) -> Matrix:
    """Return the p-value of the difference between pairs of iterations for each quantity, adjusted for all quantities.

    Args:
        a: One row per iteration of the first side, and one column per quantity. Missing values are NaN.
        b: The corresponding iterations of the second side, with the same shape.

    Returns:
        One p-value per column. It is 1 for all columns if there are no iterations.
    """
    if not a.size:
        return np.ones(a.shape[1])
    change = b - a
    size = np.where((change == 0) | np.isnan(change), np.nan, np.abs(change))
    valid = ~np.isnan(size)
    ranks = np.where(valid, compute_centered_ranks(size) + (valid.sum(axis=0) + 1) / 2, 0.0) * np.where(
        change < 0, -1, 1
    )
    variance = (ranks**2).sum(axis=0)
    scale = np.where(variance > 0, np.sqrt(variance), np.inf)
    observed = np.abs(ranks.sum(axis=0)) / scale / np.sqrt(compute_autocorrelation_times(ranks))
    narrow = (ranks / scale).astype(np.float32)
    largest = np.concatenate([np.abs(signs @ narrow).max(axis=1) for signs in _generate_sign_batches(len(ranks))])
    return _compute_p_values(largest, observed)


def compute_centered_ranks(values: Matrix) -> Matrix:
    """Return the rank of each value in its column minus the mean rank. Equal values have the mean of their ranks.

    NaN values have the mean rank of their column, so that they do not affect the difference between the sides.
    """
    order = np.argsort(values, axis=0, kind="stable")  # NaN is last
    ordered = np.take_along_axis(values, order, axis=0)
    position = np.arange(len(values), dtype=np.float64)[:, None]
    is_first = np.ones(values.shape, dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    is_last = np.ones(values.shape, dtype=bool)
    is_last[:-1] = is_first[1:]
    first = np.maximum.accumulate(np.where(is_first, position, -1), axis=0)
    last = np.minimum.accumulate(np.where(is_last, position, np.inf)[::-1], axis=0)[::-1]
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, (first + last) / 2, axis=0)
    valid = ~np.isnan(values)
    mean = (valid.sum(axis=0) - 1) / 2
    return np.where(valid, ranks - mean, 0.0)


def compute_autocorrelation_times(*sides: Matrix) -> Matrix:
    """Return the integrated autocorrelation time of each column, a number of iterations of at least 1.

    The autocorrelations are summed over increasing lags until one does not exceed its standard error. The mean of each
    side is subtracted, so that a difference between the sides does not count as autocorrelation.

    Args:
        sides: The values of one or more sides, with one row per iteration.
    """
    centered = [side - side.mean(axis=0) for side in sides]
    zero = np.zeros(sides[0].shape[1])
    variance = sum(((side**2).sum(axis=0) for side in centered), start=zero)
    variance = np.where(variance > 0, variance, 1.0)
    times, growing = zero + 1, zero == 0
    for lag in range(1, max(map(len, sides)) // 2):
        products = [(side[lag:] * side[:-lag]).sum(axis=0) for side in centered if len(side) > lag]
        correlation = sum(products, start=zero) / variance
        growing &= correlation > 1 / math.sqrt(sum(map(len, sides)))
        if not growing.any():
            break
        times += 2 * np.where(growing, correlation, 0.0)
    return times


def _compute_standard_deviations_of_rank_sums(ranks: Matrix, first_side_size: int, second_side_size: int) -> Matrix:
    """Return, for each column, the standard deviation of the second side's rank sum over random divisions.

    A standard deviation of 0 is replaced with infinity, so that a statistic that is divided by it becomes 0.

    Args:
        ranks: The centered ranks of the iterations of both sides.
        first_side_size: Number of iterations of the first side.
        second_side_size: Number of iterations of the second side.
    """
    rows = first_side_size + second_side_size
    variance = (ranks**2).sum(axis=0) * first_side_size * second_side_size / (rows * max(rows - 1, 1))
    return np.where(variance > 0, np.sqrt(variance), np.inf)


def _compute_largest_statistics(ranks: Matrix, second_side_size: int) -> Matrix:
    """Return the largest absolute rank sum of each division of the iterations into two sides.

    It is the maximum over the columns of the absolute rank sum of the second side.

    Args:
        ranks: The centered ranks of the iterations of both sides, with one column per quantity, divided by the
            standard deviation of the rank sum of the column.
        second_side_size: Number of iterations of the second side.
    """
    narrow = ranks.astype(np.float32)
    return np.concatenate(
        [np.abs(members @ narrow).max(axis=1) for members in generate_divisions(len(ranks), second_side_size)]
    )


def generate_divisions(rows: int, second_side_size: int) -> Iterator[NDArray[np.float32]]:
    """Yield matrices of divisions of rows into two sides, with one row per division and one column per row.

    An element is 1 if the row is on the second side, and 0 if it is on the first side. All divisions are generated if
    there are fewer than ``MAX_DIVISIONS``, otherwise ``MAX_DIVISIONS`` random ones.

    Args:
        rows: Number of rows of both sides together.
        second_side_size: Number of rows of the second side.
    """
    if math.comb(rows, second_side_size) < MAX_DIVISIONS:
        members = np.array(list(itertools.combinations(range(rows), second_side_size)))
        batches = np.array_split(members, math.ceil(len(members) / _BATCH))
    else:
        generator = np.random.default_rng(SEED)
        batches = [
            np.argsort(generator.random((count, rows)), axis=1)[:, :second_side_size]
            for count in np.diff(np.append(np.arange(0, MAX_DIVISIONS, _BATCH), MAX_DIVISIONS))
        ]
    for batch in batches:
        yield _build_membership_matrix(batch, rows)


def _generate_sign_batches(pair_count: int) -> Iterator[NDArray[np.float32]]:
    """Yield matrices of signs, with one row per permutation and one column per pair of iterations.

    The sign is -1 if a permutation exchanges the sides of the pair, otherwise 1. All permutations are generated if
    there are fewer than ``MAX_DIVISIONS``, otherwise ``MAX_DIVISIONS`` random ones.

    Args:
        pair_count: Number of pairs of iterations.
    """
    if pair_count < MAX_DIVISIONS.bit_length() and 1 << pair_count < MAX_DIVISIONS:
        bits = np.arange(1 << pair_count)[:, None] >> np.arange(pair_count) & 1
        yield (1 - 2 * bits).astype(np.float32)
        return
    generator = np.random.default_rng(SEED)
    for start in range(0, MAX_DIVISIONS, _BATCH):
        count = min(_BATCH, MAX_DIVISIONS - start)
        yield (1 - 2 * generator.integers(0, 2, size=(count, pair_count))).astype(np.float32)


def _compute_p_values(largest_statistics: Matrix, observed_statistics: Matrix) -> Matrix:
    """Return, for each observed statistic, the share of the divisions whose largest statistic is at least as large.

    If there are ``MAX_DIVISIONS`` statistics, the divisions are random, and the observed division is counted as well.
    """
    shares = _compute_shares_at_or_above(largest_statistics, observed_statistics)
    count = len(largest_statistics)
    return shares if count < MAX_DIVISIONS else (shares * count + 1) / (count + 1)


def _build_membership_matrix(members: NDArray[np.int64], iteration_count: int) -> NDArray[np.float32]:
    """Return a matrix that states which iterations each division assigns to the second side.

    Args:
        members: The indices of the iterations that are assigned to the second side, with one row per division.
        iteration_count: Number of iterations of both sides together.

    Returns:
        One row per division and one column per iteration. An element is 1 if the iteration is on the second side, and 0
        if it is on the first side.
    """
    matrix = np.zeros((len(members), iteration_count), dtype=np.float32)
    np.put_along_axis(matrix, members, 1, axis=1)
    return matrix


def _compute_shares_at_or_above(values: Matrix, observed_values: Matrix) -> Matrix:
    """Return, for each observed value, the share of ``values`` that are at least as large."""
    ordered = np.sort(values)
    smaller = np.searchsorted(ordered, observed_values * (1 - _TOLERANCE), side="left")
    return 1 - smaller / len(values)
