"""Format names and numbers for figures.

plotly interprets a subset of HTML in labels and hover texts, and text between dollar signs as TeX. Names are escaped,
so that plotly displays them as text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.text import shorten_middle, to_printable

if TYPE_CHECKING:
    from collections.abc import Iterable

LABEL_LENGTH = 40
HOVER_LENGTH = 1200
HOVER_WIDTH = 90
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;"})
_UNITS = ((86_400_000_000_000, "d"), (3_600_000_000_000, "h"), (60_000_000_000, "min"))
_SECONDS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
TIME_UNITS = (*_UNITS, *_SECONDS)
"""Number of ns in each unit of times, and its name, the longest first."""
BYTE_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))
"""Number of bytes in each unit of sizes, and its name, the largest first."""


def escape_markup(text: str) -> str:
    """Return a text in which control characters, and characters that plotly would interpret, are escaped."""
    return to_printable(text).translate(_ESCAPES)


def format_short_label(name: str | None, max_length: int = LABEL_LENGTH) -> str:
    """Return a shortened and escaped name for a label, or "unknown" if the name is missing."""
    return escape_markup(shorten_middle(to_printable(name), max_length)) if name else "unknown"


def format_kernel_label(name: str | None) -> str:
    """Return a label for a kernel or function: its name without return type, template arguments and parameters."""
    return format_short_label(_extract_function_name(name) if name else None)


def _extract_function_name(signature: str) -> str:
    """Return the qualified function name in a C++ signature, or the whole signature if a bracket is not closed."""
    characters, depth = [], 0
    for character in signature.replace("(anonymous namespace)", "{anonymous}").replace("<unnamed>", "{anonymous}"):
        depth += character in "<("
        if not depth:
            characters.append(character)
        depth -= character in ">)" and depth > 0
    plain = "".join(characters).strip().removeprefix("void ").replace("{anonymous}::", "")
    return plain if plain and not depth else signature


def format_hover_name(name: str | None) -> str:
    """Return a name for a hover text, escaped and with line breaks. Names over 1,200 characters are shortened."""
    if not name:
        return "unknown"
    text = shorten_middle(to_printable(name), HOVER_LENGTH)
    return "<br>".join(escape_markup(text[i : i + HOVER_WIDTH]) for i in range(0, len(text), HOVER_WIDTH))


def format_integer(value: int) -> str:
    """Return an integer with thousands separators."""
    return f"{value:,}"


def format_nanoseconds(value: int) -> str:
    """Format a duration in ns with thousands separators, followed by its value in a larger unit in parentheses."""
    factor, unit = choose_time_unit([value])
    exact = f"{value:,} ns"
    return exact if factor == 1 else f"{exact} ({value / factor:,.3f} {unit})"


def format_bytes(value: int) -> str:
    """Format a number of bytes with thousands separators, followed by its value in a larger unit in parentheses."""
    factor, unit = choose_byte_unit([value])
    exact = f"{value:,} bytes"
    return exact if factor == 1 else f"{exact} ({value / factor:,.2f} {unit})"


def format_short_duration(nanoseconds: int) -> str:
    """Format a duration in ns with four digits in a suitable unit, for the label of a mark."""
    return _format_four_digits(nanoseconds, *choose_time_unit([nanoseconds]))


def format_short_size(size: int) -> str:
    """Format a number of bytes with four digits in a suitable unit, for the label of a mark."""
    return _format_four_digits(size, *choose_byte_unit([size]))


def _format_four_digits(value: int, factor: int, unit: str) -> str:
    number = value / factor
    return f"{number:,.4g} {unit}" if number < _FIVE_DIGITS and factor > 1 else f"{number:,.0f} {unit}"


_FIVE_DIGITS = 9999.5


def choose_time_unit(durations_ns: Iterable[int]) -> tuple[int, str]:
    """Return a suitable unit for displaying durations in ns: the number of ns in the unit, and its name.

    The result is the largest unit that does not exceed the longest duration. Minutes, hours and days are used only if
    the longest duration is at least two of these units.
    """
    longest = max(durations_ns, default=0)
    long_unit = next(((ns, name) for ns, name in _UNITS if longest >= 2 * ns), None)
    return long_unit or next(((ns, name) for ns, name in _SECONDS if longest >= ns), _SECONDS[-1])


def choose_byte_unit(sizes: Iterable[int]) -> tuple[int, str]:
    """Return a suitable binary unit for displaying sizes in bytes: the number of bytes in the unit, and its name."""
    largest = max(sizes, default=0)
    return next(((unit_bytes, name) for unit_bytes, name in BYTE_UNITS if largest >= unit_bytes), BYTE_UNITS[-1])
