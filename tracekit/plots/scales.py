"""Place values on the axes of charts, choose ticks, and format and measure their labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.plots.labels import BYTE_UNITS, TIME_UNITS
from tracekit.text import shorten_middle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FONT_SIZE = 12
_LARGEST = 1e290
_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
_FIRST_PLAIN, _FIRST_PREFIXED, _LAST_PLAIN_EXPONENT = 1e-4, 1e6, -4
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NARROW, _WIDE = frozenset("iljtfrI.,:;'|!()[] -"), frozenset("mwMW@%…—")
_FIRST_FULL_WIDTH = 0x1100
_MAX_TICKS = 24


@dataclass(frozen=True, slots=True)
class Scale:
    """A mapping from the values of an axis to coordinates.

    Attributes:
        low: Value at the coordinate ``start``, or its decimal logarithm.
        high: Value at the coordinate ``end``, or its decimal logarithm. It is larger than ``low``.
        start: Coordinate of the lowest value in pixels.
        end: Coordinate of the highest value in pixels, which may be less than ``start``.
        is_log: Whether the axis is logarithmic.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return the coordinate of a value. Values outside the range of the axis are placed at its nearest end."""
        exponent = (math.log10(value) if value > 0 else self.low) if self.is_log else value
        share = min(1.0, max(0.0, (exponent - self.low) / (self.high - self.low)))
        return self.start + share * (self.end - self.start)


def read_number(value: Any) -> float | None:
    """Return a value of a figure as a finite number, or None if it is missing, infinite or not a number."""
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return None if not abs(number) <= _LARGEST else 0.0 if abs(number) < 1 / _LARGEST else number


def build_scale(
    values: Iterable[float],
    ends: tuple[float, float],
    *,
    bounds: Sequence[Any] = (),
    is_log: bool = False,
    is_reversed: bool = False,
    padding: float = 0.04,
) -> Scale:
    """Return a scale that shows all values.

    Args:
        values: The values that the axis has to show.
        ends: Coordinates of the ends of the axis.
        bounds: Lowest and highest value to show instead, as plotly has them: exponents on a logarithmic axis.
        is_log: Whether the axis is logarithmic.
        is_reversed: Whether the lowest value is at the second end.
        padding: Space beyond the values, as a share of their range. There is none below or above zero.
    """
    shown = [math.log10(v) for v in values if v > 0] if is_log else list(values)
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    if high - low <= 1e-12 * max(abs(low), abs(high)):  # one value, or differences that a float cannot show
        low, high = (low - 0.5, high + 0.5) if is_log else (min(low, 0.0), max(high, 0.0))
        high = high if high > low else low + 1
    space = padding * (high - low)
    low = low if not is_log and low == 0 else low - space
    high = high if not is_log and high == 0 else high + space
    fixed = [read_number(bound) for bound in bounds]
    if len(fixed) == 2:  # noqa: PLR2004
        is_reversed = is_reversed or (fixed[0] is not None and fixed[1] is not None and fixed[0] > fixed[1])
        lowest, highest = sorted(fixed) if None not in fixed else fixed  # type: ignore[type-var]
        low, high = low if lowest is None else lowest, high if highest is None else highest
        high = high if high > low else low + 1
    start, end = reversed(ends) if is_reversed else ends
    return Scale(low, high, start, end, is_log)


def choose_ticks(scale: Scale, count: int, *, step: Any = None, is_integer: bool = False) -> list[tuple[float, str]]:
    """Return the values of the ticks of an axis, and their labels.

    Args:
        scale: The scale of the axis.
        count: Approximate number of ticks.
        step: Distance of ticks. It is larger if there would be too many of them. If None, it is chosen.
        is_integer: Whether only integers have ticks.
    """
    if scale.is_log:
        return _choose_log_ticks(scale, count)
    width = max(_round_up((scale.high - scale.low) / max(count, 1)), read_number(step) or 0.0)
    if is_integer or (read_number(step) or 0.0) >= 1:
        width = max(1.0, width)
    first = math.ceil(scale.low / width - 1e-9)
    last = min(math.floor(scale.high / width + 1e-9), first + _MAX_TICKS)
    largest = max(abs(scale.low), abs(scale.high))
    return [(n * width, format_number(n * width, width, largest)) for n in range(first, last + 1)]


def _choose_log_ticks(scale: Scale, count: int) -> list[tuple[float, str]]:
    first, last = math.ceil(scale.low - 1e-9), math.floor(scale.high + 1e-9)
    if last - first >= 1:
        width = max(1, -(-(last - first) // max(count, 1)))
        return [(10.0**n, format_power(n)) for n in range(first, last + 1, width)]
    digits = [(m * 10.0**n, n) for n in range(first - 1, last + 2) for m in (1, 2, 5)]
    low, high = 10.0 ** max(scale.low, -290), 10.0 ** min(scale.high, 290)
    inside = [(value, n) for value, n in digits if low <= value <= high]
    if len(inside) < 2:  # noqa: PLR2004
        linear = choose_ticks(Scale(low, high, scale.start, scale.end), count)
        return [(value, text) for value, text in linear if value > 0]
    return [(value, format_number(value, 10.0**n, value)) for value, n in inside]


def _round_up(width: float) -> float:
    """Return the smallest number of the form 1, 2 or 5 times a power of ten that is not less than ``width``."""
    power = 10.0 ** math.floor(math.log10(width))
    return next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= width * (1 - 1e-9))


def format_number(value: float, step: float, largest: float) -> str:
    """Format the number at a tick with a prefix such as M if the largest number of the axis has seven digits.

    Args:
        value: The number.
        step: Distance to the next tick, which determines the number of decimals.
        largest: The largest absolute number of the axis.
    """
    if _FIRST_PLAIN <= largest < _FIRST_PREFIXED:
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        return f"{value + 0.0:,.{min(decimals, 12)}f}" if value else "0"
    group = int(math.log10(largest) + 1e-9) // 3
    if not 0 <= group < len(_PREFIXES):
        digits, _, exponent = f"{value:.1e}".partition("e")
        return f"{digits}·10{str(int(exponent)).translate(_SUPERSCRIPTS)}" if value else "0"
    divisor = 1000.0**group
    decimals = max(0, -math.floor(math.log10(step / divisor) + 1e-9))
    return f"{value / divisor:,.{min(decimals, 6)}f} {_PREFIXES[group]}" if value else "0"


def format_power(exponent: int) -> str:
    """Format a power of ten."""
    if _LAST_PLAIN_EXPONENT <= exponent < 0:
        return f"{10.0**exponent:.{-exponent}f}"
    if 0 <= exponent < math.log10(_FIRST_PREFIXED):
        return f"{10**exponent:,}"
    if 0 < exponent < 3 * len(_PREFIXES):
        return f"{10 ** (exponent % 3)} {_PREFIXES[exponent // 3]}"
    return "10" + str(exponent).translate(_SUPERSCRIPTS)


def format_value(value: float) -> str:
    """Format a number with about four digits, for the label of a mark."""
    if value == round(value) and abs(value) < _FIRST_PREFIXED:
        return f"{value:,.0f}"
    magnitude = math.floor(math.log10(abs(value)) + 1e-9)
    return format_number(value, 10.0 ** (min(magnitude - 3, 0) if magnitude < 3 else 0), abs(value))  # noqa: PLR2004


def format_quantity(value: float, unit: str) -> str:
    """Format a value of an axis with its unit, or in a smaller one that suits times and sizes better."""
    for units in (TIME_UNITS, BYTE_UNITS):
        factor = next((factor for factor, name in units if name == unit), None)
        if factor is not None and 0 < abs(value) < 1:
            smaller, name = next((u for u in units if abs(value) * factor >= u[0] * 0.9995), units[-1])
            return f"{format_value(value * factor / smaller)} {name}"
    return f"{format_value(value)} {unit}".strip()


def measure_text(text: str, size: float = FONT_SIZE) -> float:
    """Return the approximate width of a text in pixels, which differs from font to font."""
    return size * sum(
        0.33 if c in _NARROW else 0.9 if c in _WIDE or ord(c) >= _FIRST_FULL_WIDTH else 0.7 if c.isupper() else 0.6
        for c in text
    )


def fit_text(text: str, width: float, size: float = FONT_SIZE) -> str:
    """Return a text whose middle is shortened so that it is at most ``width`` pixels wide, or an empty text."""
    shown = text
    while shown and measure_text(shown, size) > width:
        length = min(len(shown) - 1, int(len(shown) * width / measure_text(shown, size)))
        shown = shorten_middle(text, length) if length > 2 else ""  # noqa: PLR2004
    return shown
