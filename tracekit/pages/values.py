"""Write values for people: with a suitable unit, and with the exact value in the background.

Each number is a ``<data>`` element. Its text is the rounded value, its attribute ``value`` the exact number, and its
title the exact value with its unit. ``page.js`` shows either all rounded or all exact values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tracekit.plots.labels import choose_byte_unit, choose_time_unit
from tracekit.text.elements import tag

if TYPE_CHECKING:
    from tracekit.text.elements import Element

NANOSECONDS, BYTES, PERCENT = "ns", "bytes", "%"
POINT = "ns since the start"
"""Unit of points in time, which are written with a resolution of 1 µs. Other times have three decimals."""
ID = "id"
"""Unit of numbers that identify something, which are written without thousands separators."""
_WRITTEN_UNITS = {NANOSECONDS: " ns", POINT: " ns", BYTES: " bytes", PERCENT: "%"}
_SECOND = 1_000_000_000
_SMALLEST_PERCENTAGE = 0.005


def build_value(value: float, unit: str = "") -> Element:
    """Return a number as an element that shows the rounded value and contains the exact one.

    Args:
        value: The number.
        unit: Its unit: one of the constants of this module, or "" for a count. Other units are not written.
    """
    shown, exact = format_value(value, unit), format_exact_value(value, unit)
    return tag.data(shown, value=repr(value), title=None if shown == exact else exact)


def format_value(value: float, unit: str = "") -> str:
    """Return a number in a unit that suits its size: 1,234,567 ns as ``1.235 ms``.

    Args:
        value: The number.
        unit: Its unit, as in ``build_value``.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    size = abs(value)
    if unit in (NANOSECONDS, POINT):
        return _format_time(value, *choose_time_unit([int(size)]), is_point=unit == POINT)
    if unit == BYTES:
        factor, name = choose_byte_unit([int(size)])
        return f"{value:,.0f} bytes" if factor == 1 else f"{value / factor:,.2f} {name}"
    if unit == PERCENT:
        return f"{value:,.2f}%" if size >= _SMALLEST_PERCENTAGE or not value else "<0.01%"
    if isinstance(value, int):
        return str(value) if unit == ID else f"{value:,}"
    return f"{value:,.3f}".rstrip("0").rstrip(".") if size >= 1 or not value else f"{value:.3g}"


def _format_time(value: float, factor: int, unit: str, *, is_point: bool) -> str:
    if is_point and factor >= _SECOND:
        return f"{value / _SECOND:,.6f} s"
    return f"{value:,.0f} ns" if factor == 1 else f"{value / factor:,.3f} {unit}"


def format_exact_value(value: float, unit: str = "") -> str:
    """Return a number without rounding, with its unit.

    Args:
        value: The number.
        unit: Its unit, as in ``build_value``.
    """
    number = str(value) if unit == ID else f"{value:,}"
    return number + _WRITTEN_UNITS.get(unit, "")
