"""Numbers as people read them, with the exact value in the background."""

from __future__ import annotations

import math

import pytest
from tracekit.pages.values import BYTES, ID, NANOSECONDS, PERCENT, POINT, build_value, format_exact_value, format_value

WRITTEN = [
    (1_234_567, NANOSECONDS, "1.235 ms", "1,234,567 ns"),
    (-1_234_567, NANOSECONDS, "-1.235 ms", "-1,234,567 ns"),
    (999, NANOSECONDS, "999 ns", "999 ns"),
    (90 * 10**9, NANOSECONDS, "90.000 s", "90,000,000,000 ns"),
    (150 * 10**9, NANOSECONDS, "2.500 min", "150,000,000,000 ns"),
    (1234.5, NANOSECONDS, "1.234 µs", "1,234.5 ns"),
    (12_345_678_901, POINT, "12.345679 s", "12,345,678,901 ns"),
    (12_345_678, POINT, "12.346 ms", "12,345,678 ns"),
    ((1 << 53) + 1, "", "9,007,199,254,740,993", "9,007,199,254,740,993"),
    (12_591_104, BYTES, "12.01 MiB", "12,591,104 bytes"),
    (5, BYTES, "5 bytes", "5 bytes"),
    (12.34567, PERCENT, "12.35%", "12.34567%"),
    (0.0001, PERCENT, "<0.01%", "0.0001%"),
    (0.0, PERCENT, "0.00%", "0.0%"),
    (12345, ID, "12345", "12345"),
    (1234.56789, "", "1,234.568", "1,234.56789"),
    (0.000123456, "", "0.000123", "0.000123456"),
    (2.0, "GB/s", "2", "2.0"),
    (math.nan, NANOSECONDS, "nan", "nan ns"),
]


@pytest.mark.parametrize(("value", "unit", "shown", "exact"), WRITTEN)
def test_values_are_rounded_and_exact(value: float, unit: str, shown: str, exact: str) -> None:
    assert (format_value(value, unit), format_exact_value(value, unit)) == (shown, exact)


def test_an_element_has_both_texts() -> None:
    assert str(build_value(1_234_567, "ns")) == '<data value="1234567" title="1,234,567 ns">1.235 ms</data>'
    assert str(build_value(12)) == '<data value="12">12</data>'
