"""A finished report: rows, and how each of its columns is printed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, BinaryIO

import polars as pl

from tracekit.core.reports import numbers
from tracekit.core.reports.names import relabelled
from tracekit.core.reports.numbers import quotient, tenths

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROWS_AT_ONCE = 1 << 17  # as text, so that a long report never is in memory whole
_NEEDS_QUOTES = [",", '"', "\n", "\r"]


class Style(Enum):
    """How the values of a column are printed."""

    TEXT = auto()
    INTEGER = auto()
    TENTHS = auto()
    THOUSANDTHS = auto()
    MEGA = auto()


@dataclass(frozen=True, slots=True)
class Column:
    """One printed column: its title, its style, and the column of the rows that it shows."""

    title: str
    style: Style
    source: str

    def value(self, *, legacy: bool) -> pl.Expr:
        """Give the values as printed, as numbers where they are numbers."""
        x = pl.col(self.source)
        match self.style:
            case Style.TEXT:
                shown = x
            case Style.INTEGER:
                shown = x.cast(pl.Int64)
            case Style.TENTHS:
                shown = quotient(tenths(x.cast(pl.Float64), legacy=legacy).cast(pl.Float64), 10.0)
            case Style.THOUSANDTHS:
                shown = _three_decimals(x)
            case _:  # MEGA
                shown = _three_decimals(_mega(x))
        return shown.alias(self.title)

    def cell(self, dtype: pl.DataType, *, legacy: bool) -> pl.Expr:
        """Give what polars is to write into a CSV file with ``float_precision=3``."""
        x = pl.col(self.source)
        match self.style:
            case Style.TEXT:
                shown = relabelled(x, _quoted) if dtype == pl.Categorical else _quoted(x)
            case Style.INTEGER:
                shown = x
            case Style.TENTHS:
                shown = _one_decimal(tenths(x.cast(pl.Float64), legacy=legacy))
            case Style.THOUSANDTHS:
                shown = x
            case _:  # MEGA
                shown = _mega(x)
        return shown.alias(self.title)


@dataclass(frozen=True, slots=True)
class ReportTable:
    """The rows of a report, as numbers (``frame``) or as the bytes that ``nsys stats --format csv`` prints (``csv``).

    Attributes:
        name: Name of the report.
        columns: What is printed, in order.
        data: The rows before rounding, one column for each ``source`` or more.
        legacy_rounding: Whether averages are rounded as by nsys before 2024.5.
    """

    name: str
    columns: Sequence[Column]
    data: pl.DataFrame
    legacy_rounding: bool = False

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.data.height

    def frame(self) -> pl.DataFrame:
        """Return the rows under nsys's titles, numbers rounded as printed: times and counts Int64, others Float64."""
        return self.data.select(c.value(legacy=self.legacy_rounding) for c in self.columns)

    def csv(self, sink: BinaryIO) -> None:
        """Write the rows in nsys's dialect: nothing at all if there are none; quotes inside quotes are not doubled."""
        if not self.rows:
            return
        sink.write((",".join(c.title for c in self.columns) + "\n").encode())
        cells = [c.cell(self.data.schema[c.source], legacy=self.legacy_rounding) for c in self.columns]
        for part in self.data.iter_slices(_ROWS_AT_ONCE):
            part.select(cells).write_csv(sink, include_header=False, quote_style="never", float_precision=3)


def text(title: str, source: str) -> Column:
    """Declare a column of text."""
    return Column(title, Style.TEXT, source)


def integer(title: str, source: str) -> Column:
    """Declare a column of whole numbers: counts, ids, sizes in threads."""
    return Column(title, Style.INTEGER, source)


def nanoseconds(title: str, source: str) -> Column:
    """Declare a column of times in whole ns."""
    return Column(f"{title} (ns)", Style.INTEGER, source)


def mean_nanoseconds(title: str, source: str) -> Column:
    """Declare a column of averaged times, ns with one decimal."""
    return Column(f"{title} (ns)", Style.TENTHS, source)


def mean(title: str, source: str) -> Column:
    """Declare a column of averages with one decimal."""
    return Column(title, Style.TENTHS, source)


def thousandths(title: str, source: str) -> Column:
    """Declare a column of numbers with three decimals."""
    return Column(title, Style.THOUSANDTHS, source)


def share(title: str, source: str) -> Column:
    """Declare a column of percentages with one decimal."""
    return Column(f"{title} (%)", Style.TENTHS, source)


def megabytes(title: str, source: str) -> Column:
    """Declare a column of bytes, printed as 10**6 bytes."""
    return Column(f"{title} (MB)", Style.MEGA, source)


def megabytes_per_second(title: str, source: str) -> Column:
    """Declare a column of bytes/s, printed as 10**6 bytes/s."""
    return Column(f"{title} (MB/s)", Style.MEGA, source)


def _three_decimals(x: pl.Expr) -> pl.Expr:
    return quotient(numbers.thousandths(x).cast(pl.Float64), 1000.0)


def _mega(x: pl.Expr) -> pl.Expr:
    return quotient(x.cast(pl.Float64), 1e6)


def _one_decimal(x: pl.Expr) -> pl.Expr:
    sign = pl.when(x < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    return pl.concat_str(sign, (x.abs() // 10).cast(pl.String), pl.lit("."), (x.abs() % 10).cast(pl.String))


def _quoted(x: pl.Expr) -> pl.Expr:
    bare = x.cast(pl.String)
    needs = bare.str.contains_any(_NEEDS_QUOTES)
    return pl.when(needs).then(pl.concat_str(pl.lit('"'), bare, pl.lit('"'))).otherwise(bare)
