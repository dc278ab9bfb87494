"""Parse numbers that Nsight Compute printed with the separators of a locale and in scaled units.

A value is computed from the printed digits and a power of ten, so that ``5.184000`` us is exactly 5184 ns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

_MISSING = ("", "n/a", "N/A", "no data", "-")
_INSTANCES = r"(?s)^([^()]*?) ?\((.*)\)$"
_EXACT_DIGITS = float(1 << 53)
_TENS = np.array([float(f"1e{n}") for n in range(23)])


@dataclass(frozen=True, slots=True)
class NumberStyle:
    """The thousands separator and the decimal point of a locale, as regular expressions."""

    thousands: str
    decimal_point: str

    @property
    def number_pattern(self) -> str:
        """Regular expression for a number with or without thousands separators."""
        return rf"-?(?:\d{{1,3}}(?:{self.thousands}\d{{3}})+|\d+)(?:{self.decimal_point}\d+)?"

    @property
    def distinctive_number_pattern(self) -> str:
        """Regular expression for numbers that show which decimal point their style has.

        For example, ``1,234`` does not match, because it is 1234 in some styles and 1.234 in others.
        """
        both = (
            rf"\d{{1,3}}(?:{self.thousands}\d{{3}})+{self.decimal_point}\d+|\d{{1,3}}(?:{self.thousands}\d{{3}}){{2,}}"
        )
        return (
            rf"^-?(?:{both}|\d+{self.decimal_point}(?:\d{{1,2}}|\d{{4,}})|(?:0|\d{{4,}}){self.decimal_point}\d{{3}})$"
        )

    @property
    def grouped_number_pattern(self) -> str:
        """Regular expression for a number with at least one thousands separator."""
        return rf"^-?\d{{1,3}}(?:{self.thousands}\d{{3}})+(?:{self.decimal_point}\d+)?$"


ENGLISH = NumberStyle(",", r"\.")
GERMAN = NumberStyle(r"\.", ",")
FRENCH = NumberStyle(r"[ \u00A0\u202F]", ",")
SWISS = NumberStyle(r"['\u2019]", r"\.")


def detect_number_style(cells: pl.Series) -> NumberStyle | None:
    """Return the style in which numbers are printed, or None if no number shows which decimal point the style has."""

    def count_matching_cells(pattern: str) -> int:
        return int(cells.str.contains(pattern).sum())

    blanks, quotes = (
        count_matching_cells(FRENCH.grouped_number_pattern),
        count_matching_cells(SWISS.grouped_number_pattern),
    )
    comma, dot = (
        count_matching_cells(GERMAN.distinctive_number_pattern) + blanks,
        count_matching_cells(ENGLISH.distinctive_number_pattern) + quotes,
    )
    if not (comma or dot):
        return None
    if comma > dot:
        return FRENCH if blanks else GERMAN
    return SWISS if quotes else ENGLISH


def parse_numbers(cells: pl.Series, exponents: np.ndarray, style: NumberStyle) -> pl.DataFrame:
    """Parse cells of printed numbers, and return one row per cell.

    Args:
        cells: The cells as printed.
        exponents: For each cell, the exponent of the power of ten by which its number is multiplied to get base units.
        style: The style in which numbers are printed.

    Returns:
        A frame with these columns:

        - ``value``: The number in base units, null if the cell has no number.
        - ``text``: The cell, null if the cell contains only a number or a placeholder for a missing value.
        - ``resolution``: The value of one unit of the last printed digit, in base units.
        - ``instances``: The number of instance values in parentheses, null without parentheses.
    """
    split = _split_numbers_and_instances(cells, style)
    digits = _normalize_separators(split["number"], style)
    value = digits.cast(pl.Float64, strict=False)
    decimal_point = digits.str.find(".", literal=True).cast(pl.Int64)
    decimals = (digits.str.len_bytes().cast(pl.Int64) - decimal_point - 1).fill_null(0).to_numpy()
    has_exponent = digits.str.contains("[eE]").fill_null(value=False)
    parsed = pl.DataFrame(
        {
            "cell": cells,
            "value": _multiply_by_powers_of_ten(digits, value, exponents, np.where(has_exponent, len(_TENS), decimals)),
            "resolution": _compute_powers_of_ten(exponents - decimals),
            "instances": split["instances"],
            "exact": value.is_finite() & ~has_exponent,
        }
    )
    keep_text = pl.col("value").is_null() | pl.col("instances").is_not_null()
    return parsed.select(
        "value",
        pl.when(keep_text & ~pl.col("cell").is_in(_MISSING)).then("cell").alias("text"),
        pl.when("exact").then("resolution").alias("resolution"),
        "instances",
    )


def _split_numbers_and_instances(cells: pl.Series, style: NumberStyle) -> pl.DataFrame:
    """Split cells such as ``12 (3; 4; 5)`` into the columns ``number`` (12) and ``instances`` (their count, 3)."""
    number = pl.col("cell")
    count = pl.lit(None, pl.Int32)
    if cells.str.contains("(", literal=True).any():
        parts = number.str.extract_groups(_INSTANCES).struct
        has_instances = number.str.contains(rf"(?s)^(?:(?:{style.number_pattern}|no data|n/a) ?)?\(.*\)$")
        count = pl.when(has_instances).then(parts[1].str.count_matches(";").cast(pl.Int32) + 1)
        number = pl.when(has_instances).then(parts[0]).otherwise(number)
    return cells.to_frame("cell").select(number.alias("number"), count.alias("instances"))


def _normalize_separators(numbers: pl.Series, style: NumberStyle) -> pl.Series:
    """Replace decimal commas, and remove thousands separators. Numbers with a misplaced separator become null."""
    rows = numbers.str.contains(f"{style.thousands}|," if style.decimal_point == "," else style.thousands).arg_true()
    if not len(rows):
        return numbers
    number = pl.col("number")
    plain = number.str.replace_all(style.thousands, "")
    plain = plain.str.replace(",", ".", literal=True) if style.decimal_point == "," else plain
    selected = numbers.gather(rows).to_frame("number")
    normalized = pl.when(number.str.contains(f"^{style.number_pattern}$")).then(plain)
    return numbers.scatter(rows, selected.select(normalized).to_series())


def _multiply_by_powers_of_ten(
    digit_strings: pl.Series, numbers: pl.Series, exponents: np.ndarray, decimals: np.ndarray
) -> pl.Series:
    """Multiply numbers by powers of ten.

    If a double represents the printed digits exactly, the result is rounded only once.

    Args:
        digit_strings: The numbers as strings.
        numbers: The numbers as doubles.
        exponents: Exponent of the power of ten for each number.
        decimals: Number of digits after the decimal point of each number.
    """
    rows = np.flatnonzero(exponents)
    if not len(rows):
        return numbers
    selected, power, number = digit_strings.gather(rows), exponents[rows], numbers.gather(rows)
    last_digit = power - decimals[rows]
    mantissa = selected.str.replace(".", "", literal=True).cast(pl.Float64, strict=False).to_numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        exact_product = np.where(
            last_digit < 0,
            mantissa / _compute_powers_of_ten(-last_digit),
            mantissa * _compute_powers_of_ten(last_digit),
        )
        product = number.to_numpy() * _compute_powers_of_ten(power)
        is_exact = (
            (np.abs(mantissa) < _EXACT_DIGITS) & (np.abs(last_digit) < len(_TENS)) & (decimals[rows] < len(_TENS))
        )
    scaled = pl.Series(np.where(is_exact, exact_product, product))
    return numbers.scatter(rows, scaled.set(number.is_null(), None))


def _compute_powers_of_ten(exponents: np.ndarray) -> np.ndarray:
    """Return 10 to the power of each exponent. Exponents are clipped to the range from -22 to 22."""
    tens = _TENS[np.minimum(np.abs(exponents), len(_TENS) - 1)]
    power: np.ndarray = np.where(exponents < 0, 1 / tens, tens)
    return power
