"""Define computed reports, and how each of their columns is printed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import polars as pl

from tracekit.core.categorical import map_categories_expr
from tracekit.core.reports import numbers
from tracekit.core.reports.numbers import quotient_expr, round_to_tenths_expr

if TYPE_CHECKING:
    from collections.abc import Sequence

_BATCH_ROWS, _BATCH_BYTES = 1 << 17, 1 << 28  # limits on memory, because a report can have many rows
_SPECIAL_CHARACTERS = [",", '"', "\n", "\r"]


KEY_TITLES = frozenset(
    {
        *("Name", "Operation", "Range", "NVTX Range", "Kernel Name", "Event", "Cause", "Kind", "Limiter", "Problem"),
        *("Time (%)", "Idle (%)", "In-Use (%)", "FLOP/Byte"),
        *("Total Time (ns)", "Total Proj Time (ns)", "Projected Duration (ns)", "Duration (ns)", "TAvg (ns)"),
        *("Total (MB)", "Total Message Volume", "Peak (MB)", "Size (MB)", "Used (bytes)"),
    }
)
"""Titles of the columns that are the point of the reports that have them."""


class ColumnStyle(Enum):
    """The printed form of the values of a report column.

    The styles are text, integers, numbers with one decimal, numbers with three decimals, and numbers that are divided
    by 10**6 and have three decimals.
    """

    TEXT = auto()
    INTEGER = auto()
    TENTHS = auto()
    THOUSANDTHS = auto()
    MEGA = auto()


class ReportColumn(NamedTuple):
    """One printed column of a report.

    Attributes:
        title: Title in the header.
        style: Printed form of the values.
        source: Name of the column in ``ReportTable.data``.
        is_machine_readable: Whether only programs read the column, which is then not printed on a terminal.
    """

    title: str
    style: ColumnStyle
    source: str
    is_machine_readable: bool = False

    def value_expr(self, *, legacy_rounding: bool) -> pl.Expr:
        """Return an expression for the values of the column, rounded as they are printed."""
        x = pl.col(self.source)
        match self.style:
            case ColumnStyle.TEXT:
                value = x
            case ColumnStyle.INTEGER:
                value = x.cast(pl.Int64)
            case ColumnStyle.TENTHS:
                value = quotient_expr(
                    round_to_tenths_expr(x.cast(pl.Float64), legacy_rounding=legacy_rounding).cast(pl.Float64), 10.0
                )
            case ColumnStyle.THOUSANDTHS:
                value = _round_to_three_decimals_expr(x)
            case _:  # MEGA
                value = _round_to_three_decimals_expr(_convert_to_millions_expr(x))
        return value.alias(self.title)

    def csv_expr(self, dtype: pl.DataType, *, legacy_rounding: bool, standard_quotes: bool) -> pl.Expr:
        """Return an expression for the CSV cells of the column, which polars writes with ``float_precision=3``."""
        x = pl.col(self.source)
        match self.style:
            case ColumnStyle.TEXT:
                quote = _quote_special_values_expr if standard_quotes else _quote_like_nsys_expr
                value = map_categories_expr(x, quote) if dtype == pl.Categorical else quote(x)
            case ColumnStyle.INTEGER:
                value = x
            case ColumnStyle.TENTHS:
                value = _format_tenths_expr(round_to_tenths_expr(x.cast(pl.Float64), legacy_rounding=legacy_rounding))
            case ColumnStyle.THOUSANDTHS:
                value = x
            case _:  # MEGA
                value = _convert_to_millions_expr(x)
        return value.alias(self.title)


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A computed report, available as a frame or as CSV.

    The CSV of a report of nsys equals the output of ``nsys stats --format csv``.

    Attributes:
        name: Name of the report.
        columns: The printed columns, in order.
        data: The rows before rounding. They contain the source columns of all printed columns, and may contain further
            columns.
        legacy_rounding: Whether averages are rounded as in nsys before 2024.5.
        standard_quotes: Whether strings are quoted as in standard CSV, instead of as in nsys.
    """

    name: str
    columns: Sequence[ReportColumn]
    data: pl.DataFrame
    legacy_rounding: bool = False
    standard_quotes: bool = False

    @property
    def rows(self) -> int:
        """Number of rows of the report."""
        return self.data.height

    @property
    def key_titles(self) -> list[str]:
        """Titles of the columns that are the point of the report. On a terminal, they are omitted last."""
        return [c.title for c in self.columns if c.title in KEY_TITLES]

    @property
    def machine_titles(self) -> list[str]:
        """Titles of the columns that only programs read."""
        return [c.title for c in self.columns if c.is_machine_readable]

    def frame(self) -> pl.DataFrame:
        """Return the printed columns under their titles, with rounded numbers.

        Times and counts are Int64, and all other numbers are Float64.
        """
        return self.data.select(c.value_expr(legacy_rounding=self.legacy_rounding) for c in self.columns)

    def csv(self, sink: BinaryIO) -> None:
        """Write the report as CSV. Unless ``standard_quotes`` is set, the CSV of nsys is reproduced byte for byte.

        Nothing is written for a report without rows, not even a header, as in nsys.
        """
        if not self.rows:
            return
        sink.write((",".join(c.title for c in self.columns) + "\n").encode())
        style = {"legacy_rounding": self.legacy_rounding, "standard_quotes": self.standard_quotes}
        cells = [c.csv_expr(self.data.schema[c.source], **style) for c in self.columns]
        for batch in self.data.iter_slices(self._compute_batch_rows()):
            batch.select(cells).write_csv(sink, include_header=False, quote_style="never", float_precision=3)

    def _compute_batch_rows(self) -> int:
        """Return the number of rows that are written at a time, which is smaller if the report has long strings."""
        sources = [c.source for c in self.columns if self.data.schema[c.source] in (pl.String, pl.Categorical)]
        sizes = [self.data[s].cat if self.data.schema[s] == pl.Categorical else self.data[s].str for s in sources]
        row_bytes = sum(size for s in sizes if isinstance(size := s.len_bytes().max(), int))
        return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(row_bytes, 1)))


def text_column(title: str, source: str) -> ReportColumn:
    """Declare a column of strings."""
    return ReportColumn(title, ColumnStyle.TEXT, source)


def json_column(title: str, source: str) -> ReportColumn:
    """Declare a column of JSON for programs, which is not printed on a terminal."""
    return ReportColumn(title, ColumnStyle.TEXT, source, is_machine_readable=True)


def integer_column(title: str, source: str) -> ReportColumn:
    """Declare a column of integers, such as counts and ids."""
    return ReportColumn(title, ColumnStyle.INTEGER, source)


def nanoseconds_column(title: str, source: str) -> ReportColumn:
    """Declare a column of times in integer ns."""
    return ReportColumn(f"{title} (ns)", ColumnStyle.INTEGER, source)


def mean_nanoseconds_column(title: str, source: str) -> ReportColumn:
    """Declare a column of average times, in ns with one decimal."""
    return ReportColumn(f"{title} (ns)", ColumnStyle.TENTHS, source)


def mean_column(title: str, source: str) -> ReportColumn:
    """Declare a column of averages with one decimal."""
    return ReportColumn(title, ColumnStyle.TENTHS, source)


def thousandths_column(title: str, source: str) -> ReportColumn:
    """Declare a column of numbers with three decimals."""
    return ReportColumn(title, ColumnStyle.THOUSANDTHS, source)


def percent_column(title: str, source: str) -> ReportColumn:
    """Declare a column of percentages with one decimal."""
    return ReportColumn(f"{title} (%)", ColumnStyle.TENTHS, source)


def megabytes_column(title: str, source: str) -> ReportColumn:
    """Declare a column of sizes in bytes, which are printed in units of 10**6 bytes."""
    return ReportColumn(f"{title} (MB)", ColumnStyle.MEGA, source)


def megabytes_per_second_column(title: str, source: str) -> ReportColumn:
    """Declare a column of rates in bytes per second, which are printed in units of 10**6 bytes per second."""
    return ReportColumn(f"{title} (MB/s)", ColumnStyle.MEGA, source)


def _round_to_three_decimals_expr(values: pl.Expr) -> pl.Expr:
    return quotient_expr(numbers.round_to_thousandths_expr(values).cast(pl.Float64), 1000.0)


def _convert_to_millions_expr(values: pl.Expr) -> pl.Expr:
    return quotient_expr(values.cast(pl.Float64), 1e6)


def _format_tenths_expr(tenths: pl.Expr) -> pl.Expr:
    sign = pl.when(tenths < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    return pl.concat_str(sign, (tenths.abs() // 10).cast(pl.String), pl.lit("."), (tenths.abs() % 10).cast(pl.String))


def _quote_special_values_expr(values: pl.Expr) -> pl.Expr:
    """Return an expression that quotes strings for standard CSV.

    Strings are quoted if they contain a comma, quote or line break. Quotes are doubled.
    """
    plain = values.cast(pl.String)
    doubled = plain.str.replace_all('"', '""', literal=True)
    return _add_quotes_expr(doubled, plain.str.contains_any(_SPECIAL_CHARACTERS))


def _quote_like_nsys_expr(values: pl.Expr) -> pl.Expr:
    """Return an expression that quotes strings like nsys: only strings with a comma, and without doubling quotes."""
    plain = values.cast(pl.String)
    return _add_quotes_expr(plain, plain.str.contains(",", literal=True))


def _add_quotes_expr(values: pl.Expr, condition: pl.Expr) -> pl.Expr:
    return pl.when(condition).then(pl.concat_str(pl.lit('"'), values, pl.lit('"'))).otherwise(values)
