"""Numbers as Nsight Compute prints them: with separators of the locale, scaled by their unit.

A value is made of the digits printed and a power of ten, so that ``5.184000`` us is 5184 ns and not a neighbour of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

_ABSENT = ("", "n/a", "N/A", "no data", "-")
_INSTANCES = r"(?s)^([^()]*?) ?\((.*)\)$"
_EXACT_DIGITS = float(1 << 53)
_TENS = np.array([float(f"1e{n}") for n in range(23)])


@dataclass(frozen=True, slots=True)
class Style:
    """How a locale writes numbers: patterns of what groups thousands and of what stands before decimals."""

    thousands: str
    point: str

    @property
    def number(self) -> str:
        """Pattern of a number, grouped rightly or not at all."""
        return rf"-?(?:\d{{1,3}}(?:{self.thousands}\d{{3}})+|\d+)(?:{self.point}\d+)?"

    @property
    def evidence(self) -> str:
        """Pattern of the numbers that only this style and its like write so; ``1,234`` is not among them."""
        both = rf"\d{{1,3}}(?:{self.thousands}\d{{3}})+{self.point}\d+|\d{{1,3}}(?:{self.thousands}\d{{3}}){{2,}}"
        return rf"^-?(?:{both}|\d+{self.point}(?:\d{{1,2}}|\d{{4,}})|(?:0|\d{{4,}}){self.point}\d{{3}})$"

    @property
    def grouped(self) -> str:
        """Pattern of a number with its thousands grouped."""
        return rf"^-?\d{{1,3}}(?:{self.thousands}\d{{3}})+(?:{self.point}\d+)?$"


ENGLISH = Style(",", r"\.")
GERMAN = Style(r"\.", ",")
FRENCH = Style(r"[ \u00A0\u202F]", ",")
SWISS = Style(r"['\u2019]", r"\.")


def style_of(cells: pl.Series) -> Style | None:
    """Return how numbers are printed; None if no number tells (``1,234`` could be either)."""

    def found(pattern: str) -> int:
        return int(cells.str.contains(pattern).sum())

    blanks, quotes = found(FRENCH.grouped), found(SWISS.grouped)
    comma, dot = found(GERMAN.evidence) + blanks, found(ENGLISH.evidence) + quotes
    if not (comma or dot):
        return None
    if comma > dot:
        return FRENCH if blanks else GERMAN
    return SWISS if quotes else ENGLISH


def parse(cells: pl.Series, powers: np.ndarray, style: Style) -> pl.DataFrame:
    """Read cells: n in, n rows out.

    Args:
        cells: As printed.
        powers: Power of ten of each, that makes it a number of base units.
        style: How numbers are printed.

    Returns:
        ``value`` in base units; ``text`` where it is no number; ``resolution``, the worth of the last digit;
        ``instances``, how many instance values follow it in brackets.
    """
    read = _with_instances(cells, style)
    digits = _plain(read["number"], style)
    value = digits.cast(pl.Float64, strict=False)
    point = digits.str.find(".", literal=True).cast(pl.Int64)
    decimals = (digits.str.len_bytes().cast(pl.Int64) - point - 1).fill_null(0).to_numpy()
    exponent = digits.str.contains("[eE]").fill_null(value=False)
    made = pl.DataFrame(
        {
            "cell": cells,
            "value": _scaled(digits, value, powers, np.where(exponent, len(_TENS), decimals)),
            "resolution": _power(powers - decimals),
            "instances": read["instances"],
            "exact": value.is_finite() & ~exponent,
        }
    )
    shown = pl.col("value").is_null() | pl.col("instances").is_not_null()
    return made.select(
        "value",
        pl.when(shown & ~pl.col("cell").is_in(_ABSENT)).then("cell").alias("text"),
        pl.when("exact").then("resolution").alias("resolution"),
        "instances",
    )


def _with_instances(cells: pl.Series, style: Style) -> pl.DataFrame:
    """Part ``12 (3; 4; 5)`` into its ``number`` and the count of its ``instances``."""
    number = pl.col("cell")
    count = pl.lit(None, pl.Int32)
    if cells.str.contains("(", literal=True).any():
        parts = number.str.extract_groups(_INSTANCES).struct
        has = number.str.contains(rf"(?s)^(?:(?:{style.number}|no data|n/a) ?)?\(.*\)$")
        count = pl.when(has).then(parts[1].str.count_matches(";").cast(pl.Int32) + 1)
        number = pl.when(has).then(parts[0]).otherwise(number)
    return cells.to_frame("cell").select(number.alias("number"), count.alias("instances"))


def _plain(numbers: pl.Series, style: Style) -> pl.Series:
    """Write numbers with a point and no groups; null where what has separators is no number."""
    separated = numbers.str.contains(f"{style.thousands}|," if style.point == "," else style.thousands).arg_true()
    if not len(separated):
        return numbers
    number = pl.col("number")
    plain = number.str.replace_all(style.thousands, "")
    plain = plain.str.replace(",", ".", literal=True) if style.point == "," else plain
    some = numbers.gather(separated).to_frame("number")
    right = pl.when(number.str.contains(f"^{style.number}$")).then(plain)
    return numbers.scatter(separated, some.select(right).to_series())


def _scaled(digits: pl.Series, value: pl.Series, powers: np.ndarray, decimals: np.ndarray) -> pl.Series:
    """Multiply numbers by powers of ten; rounds once where the digits fit."""
    rows = np.flatnonzero(powers)
    if not len(rows):
        return value
    some, power, number = digits.gather(rows), powers[rows], value.gather(rows)
    last = power - decimals[rows]
    mantissa = some.str.replace(".", "", literal=True).cast(pl.Float64, strict=False).to_numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        once = np.where(last < 0, mantissa / _power(-last), mantissa * _power(last))
        twice = number.to_numpy() * _power(power)
        exact = (np.abs(mantissa) < _EXACT_DIGITS) & (np.abs(last) < len(_TENS)) & (decimals[rows] < len(_TENS))
    made = pl.Series(np.where(exact, once, twice))
    return value.scatter(rows, made.set(number.is_null(), None))


def _power(exponents: np.ndarray) -> np.ndarray:
    """Return 10**n, of exponents as far as units and decimals go."""
    tens = _TENS[np.minimum(np.abs(exponents), len(_TENS) - 1)]
    power: np.ndarray = np.where(exponents < 0, 1 / tens, tens)
    return power
