"""Define computed reports, and print them as nsys does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, BinaryIO

import polars as pl

from tracekit.core.reports import numbers
from tracekit.core.reports.numbers import quotient_expr, round_to_tenths_expr
from tracekit.core.series import map_categories_expr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.registry.analyses import ResultColumn

_BATCH_ROWS, _BATCH_BYTES = 1 << 17, 1 << 28  # limits on memory, because a report can have many rows
_SPECIAL_CHARACTERS = [",", '"', "\n", "\r"]


@dataclass(frozen=True, slots=True)
class ReportTable:
    """The result of a report or rule, available as a frame or as CSV.

    The CSV of a report of nsys or DLProf equals the output of this tool.

    Attributes:
        name: Name of the report or rule.
        columns: The printed columns, in order.
        data: The rows before rounding. They contain the values of all printed columns under their names among the
            computed rows, and may contain further columns.
        origin: Tool as which the result is printed.
        legacy_rounding: Whether averages are rounded as in nsys before 2024.5.
    """

    name: str
    columns: Sequence[ResultColumn]
    data: pl.DataFrame
    origin: str = "nsys"
    legacy_rounding: bool = False

    @property
    def rows(self) -> int:
        """Number of rows of the report."""
        return self.data.height

    @property
    def key_titles(self) -> list[str]:
        """Titles of the columns that are the point of the report. On a terminal, they are omitted last."""
        return [c.name for c in self.columns if c.is_key]

    @property
    def machine_titles(self) -> list[str]:
        """Titles of the columns that only programs read."""
        return [c.name for c in self.columns if c.is_machine_readable]

    def frame(self, max_rows: int | None = None) -> pl.DataFrame:
        """Return the printed columns under their titles, with rounded numbers.

        Times and counts are Int64, Boolean values are Boolean, and all other numbers are Float64. Numbers of DLProf's
        reports are not rounded.

        Args:
            max_rows: Maximum number of rows to return, or None for all rows.
        """
        data = self.data.head(self.rows if max_rows is None else max_rows)
        if self.origin == "dlprof":
            return data.select(pl.col(c.row_name).alias(c.name) for c in self.columns)
        return data.select(_value_expr(c, legacy_rounding=self.legacy_rounding) for c in self.columns)

    def csv(self, sink: BinaryIO) -> None:
        """Write the report as CSV, byte for byte as the tool that defines the report.

        Nothing is written for a report without rows, not even a header, as in nsys. A report of DLProf always has a
        header.
        """
        if self.origin == "dlprof":
            from tracekit.core.reports.dlprof import write_csv

            write_csv(self, sink)
        elif self.rows:
            self._write_csv(sink)

    def _write_csv(self, sink: BinaryIO) -> None:
        sink.write((",".join(c.name for c in self.columns) + "\n").encode())
        standard_quotes = self.origin != "nsys"
        cells = [
            _csv_expr(
                c,
                self.data.schema[c.row_name],
                legacy_rounding=self.legacy_rounding,
                standard_quotes=standard_quotes,
            )
            for c in self.columns
        ]
        for batch in self.data.iter_slices(self._compute_batch_rows()):
            batch.select(cells).write_csv(sink, include_header=False, quote_style="never", float_precision=3)

    def _compute_batch_rows(self) -> int:
        """Return the number of rows that are written at a time, which is smaller if the report has long strings."""
        sources = [c.row_name for c in self.columns if self.data.schema[c.row_name] in (pl.String, pl.Categorical)]
        sizes = [self.data[s].cat if self.data.schema[s] == pl.Categorical else self.data[s].str for s in sources]
        row_bytes = sum(size for s in sizes if isinstance(size := s.len_bytes().max(), int))
        return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(row_bytes, 1)))


class _Style(Enum):
    """The printed form of the values of a column.

    The styles are text, Boolean values, integers, numbers with one decimal, numbers with three decimals, and numbers
    that are divided by 10**6 and have three decimals.
    """

    TEXT = auto()
    BOOLEAN = auto()
    INTEGER = auto()
    TENTHS = auto()
    THOUSANDTHS = auto()
    MEGA = auto()


def _get_style(column: ResultColumn) -> _Style:
    if column.type in ("string", "dictionary"):
        return _Style.TEXT
    if column.type == "bool":
        return _Style.BOOLEAN
    if column.type != "float64":
        return _Style.INTEGER
    if column.unit in ("MB", "MB/s"):
        return _Style.MEGA
    return _Style.THOUSANDTHS if column.style == "thousandths" else _Style.TENTHS


def _value_expr(column: ResultColumn, *, legacy_rounding: bool) -> pl.Expr:
    """Return an expression for the values of a column, rounded as they are printed."""
    x = pl.col(column.row_name)
    match _get_style(column):
        case _Style.TEXT | _Style.BOOLEAN:
            value = x
        case _Style.INTEGER:
            value = x.cast(pl.Int64)
        case _Style.TENTHS:
            value = quotient_expr(
                round_to_tenths_expr(x.cast(pl.Float64), legacy_rounding=legacy_rounding).cast(pl.Float64), 10.0
            )
        case _Style.THOUSANDTHS:
            value = _round_to_three_decimals_expr(x)
        case _:  # MEGA
            value = _round_to_three_decimals_expr(_convert_to_millions_expr(x))
    return value.alias(column.name)


def _csv_expr(column: ResultColumn, dtype: pl.DataType, *, legacy_rounding: bool, standard_quotes: bool) -> pl.Expr:
    """Return an expression for the CSV cells of a column, which polars writes with ``float_precision=3``."""
    x = pl.col(column.row_name)
    match _get_style(column):
        case _Style.TEXT:
            quote = _quote_special_values_expr if standard_quotes else _quote_like_nsys_expr
            value = map_categories_expr(x, quote) if dtype == pl.Categorical else quote(x)
        case _Style.BOOLEAN | _Style.INTEGER:
            value = x
        case _Style.TENTHS:
            value = _format_tenths_expr(round_to_tenths_expr(x.cast(pl.Float64), legacy_rounding=legacy_rounding))
        case _Style.THOUSANDTHS:
            value = x
        case _:  # MEGA
            value = _convert_to_millions_expr(x)
    return value.alias(column.name)


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
