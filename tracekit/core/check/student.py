"""Quantiles of Student's t-distribution, without a statistics library.

Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.5.8 and 26.7.1 (the continued fraction of the
incomplete beta function, and its relation to the t-distribution).
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

_TERMS = 500
_TINY = 1e-300
_PRECISION = 1e-15


@functools.lru_cache(maxsize=1024)
def compute_t_quantile(probability: float, degrees: int) -> float:
    """Return the value below which a t-distributed variable lies with a probability.

    Args:
        probability: The probability, between 0 and 1, both excluded.
        degrees: Degrees of freedom, at least 1.
    """
    if probability < 0.5:  # noqa: PLR2004 - the distribution is symmetric
        return -compute_t_quantile(1 - probability, degrees)
    low, high = 0.0, max(NormalDist().inv_cdf(probability), 1.0)
    while compute_upper_tail(high, degrees) > 1 - probability:
        low, high = high, high * 2
    while low < (middle := (low + high) / 2) < high:
        if compute_upper_tail(middle, degrees) > 1 - probability:
            low = middle
        else:
            high = middle
    return high


def compute_upper_tail(value: float, degrees: int) -> float:
    """Return the probability that a t-distributed variable is larger than a value."""
    if math.isinf(value):
        return 0.0 if value > 0 else 1.0
    tail = _compute_incomplete_beta(degrees / 2, 0.5, degrees / (degrees + value * value)) / 2
    return tail if value >= 0 else 1 - tail


def _compute_incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _compute_continued_fraction(a, b, x) / a
    return 1 - front * _compute_continued_fraction(b, a, 1 - x) / b


def _compute_continued_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, by the modified method of Lentz."""
    c, d = 1.0, 1 / _avoid_zero(1 - (a + b) * x / (a + 1))
    result, change, m = d, 0.0, 0
    while abs(change - 1) >= _PRECISION and m < _TERMS:
        m += 1
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _avoid_zero(1 + factor * d)
            c = _avoid_zero(1 + factor / c)
            change = c * d
            result *= change
    return result


def _avoid_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
