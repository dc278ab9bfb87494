"""Combine the reports of all ranks of a set into one report with the column ``rank``."""

from __future__ import annotations

import dataclasses
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import polars as pl

from tracekit.registry.analyses import ResultColumn
from tracekit.sets.frames import RANK, add_rank_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.reports import ReportTable
    from tracekit.sets.member import Member

_SOURCE = "rank of the capture"
"""Name of the column with the rank among the source columns of a report, which may have a column ``rank``."""


@dataclass(frozen=True, slots=True)
class RankedReport:
    """A report that combines the reports of several ranks, in rank order.

    Attributes:
        name: Name of the report.
        parts: Pairs of a rank and the report of its capture.
    """

    name: str
    parts: tuple[tuple[int, ReportTable], ...]

    @classmethod
    def from_results(cls, name: str, results: Sequence[tuple[Member, ReportTable]]) -> RankedReport:
        """Combine the reports of several members into one report."""
        return cls(name, tuple((member.rank, report) for member, report in results))

    @property
    def rows(self) -> int:
        """The total number of rows of all ranks."""
        return sum(report.rows for _, report in self.parts)

    @property
    def key_titles(self) -> list[str]:
        """Titles of the columns that are the point of the report. On a terminal, they are omitted last."""
        return self.parts[0][1].key_titles if self.parts else []

    @property
    def machine_titles(self) -> list[str]:
        """Titles of the columns that only programs read."""
        return self.parts[0][1].machine_titles if self.parts else []

    def limit_rows_per_rank(self, rows_per_rank: int) -> RankedReport:
        """Return a report with only the first rows of each rank."""
        parts = (
            (rank, dataclasses.replace(report, data=report.data.head(rows_per_rank))) for rank, report in self.parts
        )
        return RankedReport(self.name, tuple(parts))

    def frame(self) -> pl.DataFrame:
        """Return the rows of all ranks as a DataFrame, with ``rank`` before the columns of the report."""
        frames = [add_rank_column(report.frame(), rank) for rank, report in self.parts]
        return pl.concat(frames, how="diagonal_relaxed")

    def csv(self, sink: BinaryIO) -> None:
        """Write the rows of all ranks as CSV, with the rank before the cells of each row.

        The summary of DLProf, whose CSV consists of sections, is written as a table.
        """
        from tracekit.core.reports.dlprof import SUMMARY

        if self.name == SUMMARY:
            self.frame().write_csv(sink)
            return
        header = b""
        for rank, report in self.parts:
            content = io.BytesIO()
            _add_rank_column(report, rank).csv(content)
            titles, rest = _split_header_and_rows(content.getvalue(), report)
            sink.write((b"" if titles == header else titles) + rest)
            header = titles or header


def _add_rank_column(report: ReportTable, rank: int) -> ReportTable:
    """Return the report of one capture with the additional column ``rank``."""
    data = report.data.with_columns(pl.lit(rank, pl.Int64).alias(_SOURCE))
    column = ResultColumn(RANK, "int64", "Rank of the capture.", field=_SOURCE)
    return dataclasses.replace(report, data=data, columns=(column, *report.columns))


def _split_header_and_rows(csv_text: bytes, report: ReportTable) -> tuple[bytes, bytes]:
    """Split the CSV of a report into its header and its rows. DLProf reports have a title before the header."""
    lines = 2 if report.origin == "dlprof" else 1
    end = 0
    for _ in range(lines):
        end = csv_text.find(b"\n", end) + 1
    return csv_text[:end], csv_text[end:]
