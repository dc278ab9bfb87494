"""Print times in human units on a terminal. Files and pipes contain exact times in ns."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

    import polars as pl

AUTO = "auto"
UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
SYMBOLS = {"us": "µs"}
_TIME = re.compile(r"^(.*)\(ns\)$|^(.*_)ns$|^(ns)$")
_KINDS = {
    "instant": re.compile(
        r"(^|[ _])(start|end|time since|timestamp|first|last|freed|allocated)\b|(^|_)(start|end)_ns", re.IGNORECASE
    ),
    "total": re.compile(r"(^|[ _])(total|sum)([ _]|$)", re.IGNORECASE),
}
"""Kinds of columns that have a unit of their own."""
MAX_DURATION, MAX_INSTANT = 100_000, 10_000_000
"""Largest numbers of durations and of points in time, before a larger unit is chosen."""
_DECIMALS = 3


class Times(NamedTuple):
    """How times are printed.

    Attributes:
        unit: Unit of all times, or ``AUTO`` to choose a unit for each column.
        others: Names of columns with times in ns whose names do not contain the unit.
    """

    unit: str = AUTO
    others: Collection[str] = ()

    def choose_units(self, frame: pl.DataFrame) -> dict[str, str]:
        """Return the unit of each column with times in ns, by column name.

        All durations of a table have the same unit, and so have all totals and all points in time: the smallest unit in
        which the numbers have few digits.
        """
        names = [c.name for c in frame.iter_columns() if c.dtype.is_numeric() and self._is_time(c.name)]
        if self.unit != AUTO:
            return dict.fromkeys(names, self.unit)
        kinds = {name: next((kind for kind, pattern in _KINDS.items() if pattern.search(name)), "") for name in names}
        largest: dict[str, int] = {}
        for name, kind in kinds.items():
            size = max((abs(round(v)) for v in frame[name].to_list() if v is not None and math.isfinite(v)), default=0)
            largest[kind] = max(size, largest.get(kind, 0))
        return {
            name: _choose_unit(largest[kind], MAX_INSTANT if kind == "instant" else MAX_DURATION)
            for name, kind in kinds.items()
        }

    def _is_time(self, name: str) -> bool:
        return name in self.others or _TIME.match(name) is not None


def format_time_column(column: pl.Series, unit: str) -> tuple[str, list[str]]:
    """Return the title and the values of a column with times in ns as strings in another unit."""
    match = _TIME.match(column.name)
    symbol = SYMBOLS.get(unit, unit)
    if match is None:
        title = f"{column.name} ({symbol})"
    else:
        title = f"{match[1]}({symbol})" if match[1] is not None else f"{match[2] or ''}{unit}"
    values = column.to_list()
    return title, ["" if v is None or not math.isfinite(v) else format_time(round(v), unit) for v in values]


def _choose_unit(largest_ns: int, limit: int) -> str:
    """Return the smallest unit in which a number is less than a limit."""
    return next((unit for unit, factor in UNITS.items() if largest_ns < limit * factor), "s")


def format_time(time_ns: int, unit: str) -> str:
    """Format a time in ns in another unit, with three decimals, from integers."""
    factor = UNITS[unit]
    thousandths = (abs(time_ns) * 10**_DECIMALS + factor // 2) // factor
    sign = "-" if time_ns < 0 and thousandths else ""
    return f"{sign}{thousandths // 10**_DECIMALS:,}.{thousandths % 10**_DECIMALS:0{_DECIMALS}d}"
