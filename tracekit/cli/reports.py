"""Print reports as CSV, tables or JSON, or write one report as Parquet or Arrow."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from click.decorators import FC

    from tracekit.cli.options import Printing, TraceOrSet
    from tracekit.cli.output import CommandOutput
    from tracekit.core.reports import ReportTable
    from tracekit.sets.reports import RankedReport

    PrintableReport = ReportTable | RankedReport
    Reports = Sequence[tuple[str, PrintableReport]]

PROSE = ("advise", "expert-systems")
"""Reports whose cells contain sentences, which are wrapped and not shortened."""
ROWS_OF_ONE, ROWS_OF_SEVERAL = 30, 10
"""Default number of rows per report on a terminal, if one report is printed and if several are printed."""


def format_limit_help(noun: str) -> str:
    """Return the help text of ``-n`` for a command that prints rows of one or several items, such as reports.

    Args:
        noun: What the command prints, in the singular, such as ``report``.
    """
    return (
        f"Number of rows to print of each {noun}; 0 prints all. The default is {ROWS_OF_ONE} on a terminal "
        f"({ROWS_OF_SEVERAL} for several {noun}s), and all otherwise."
    )


def list_option(
    columns: Sequence[str], list_rows: Callable[[], Iterable[Sequence[str]]], help_text: str
) -> Callable[[FC], FC]:
    """Return a decorator that adds the option ``--list`` to a command. The option prints a table and exits.

    Args:
        columns: Names of the columns. The second column contains sentences.
        list_rows: Function that returns the rows. It is called only if the option is given.
        help_text: Help text of the option.
    """

    def print_list(context: click.Context, _: click.Parameter, enabled: bool) -> None:  # noqa: FBT001 - click's signature
        if not enabled or context.resilient_parsing:
            return
        import polars as pl

        from tracekit.cli.output import open_output_page

        frame = pl.DataFrame(list(list_rows()), schema=list(columns), orient="row")
        with open_output_page() as page:
            page.print_frame(frame, "table", prose_columns=[columns[1]])
        context.exit()

    return click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=print_list, help=help_text)


def print_reports(reports: Reports, printing: Printing, trace: TraceOrSet, *, limit: int | None) -> None:
    """Print one or several reports in the order of ``reports``.

    Args:
        reports: The name and the rows of each report.
        printing: How and where to print.
        trace: The trace of the reports. The output must not replace its files.
        limit: Value of ``--limit``.
    """
    rows = compute_max_rows_per_report(limit, printing, len(reports))
    with printing.open_output_page(trace, limit=limit) as page:
        _PRINTERS[printing.style](page, [(n, _limit_rows(r, rows)) for n, r in reports], printing)
        if printing.is_terminal_table:
            _print_row_counts(page, [(n, r) for n, r in reports if r.rows > rows > 0], rows)


def compute_max_rows_per_report(limit: int | None, printing: Printing, report_count: int) -> int:
    """Return the maximum number of rows to print per report. 0 means all rows."""
    if limit is not None:
        return limit
    return 0 if not printing.is_terminal_table else ROWS_OF_ONE if report_count == 1 else ROWS_OF_SEVERAL


def _limit_rows(report: PrintableReport, max_rows: int) -> PrintableReport:
    """Return a report with at most its first ``max_rows`` rows per rank. If ``max_rows`` is 0, return all rows."""
    if not max_rows:
        return report
    from tracekit.sets.reports import RankedReport

    return (
        report.limit_rows_per_rank(max_rows)
        if isinstance(report, RankedReport)
        else dataclasses.replace(report, data=report.data.head(max_rows))
    )


def _print_csv(page: CommandOutput, reports: Reports, printing: Printing) -> None:
    """Print the reports that have rows as CSV, separated by an empty line."""
    for i, (_, report) in enumerate((n, r) for n, r in reports if r.rows):
        if i:
            page.data.write(b"\n")
        if printing.spreadsheet:
            page.print_frame(report.frame(), "csv", spreadsheet=True)
        else:
            report.csv(page.data)


def _print_tables(page: CommandOutput, reports: Reports, printing: Printing) -> None:
    """Print the reports that have rows as tables, with headings if there are several reports."""
    for i, (name, report) in enumerate((n, r) for n, r in reports if r.rows):
        if i:
            page.print_line()
        if len(reports) > 1:
            page.print_line(f"# {name}")
        frame = report.frame()
        if page.width is not None:
            frame = frame.drop(report.machine_titles)
        if name in PROSE or page.width is None:
            printing.print_frame(page, frame, prose_columns=frame.columns if name in PROSE else ())
        else:
            page.print_rows(frame, key_columns=report.key_titles, times=printing.get_times(is_terminal=True))


def _print_row_counts(page: CommandOutput, shortened_reports: Reports, max_rows: int) -> None:
    """Print the total number of rows of each report that was not printed completely."""
    listed = ", ".join(f"{name} has {report.rows:,}" for name, report in shortened_reports)
    if listed:
        page.print_line()
        page.print_line(f"(first {max_rows:,} rows of each report; {listed}; -n 0 prints all)")


def _print_json(page: CommandOutput, reports: Reports, _: Printing) -> None:
    """Print a single report as a JSON array of rows, and several reports as an object with one array per report."""
    if len(reports) == 1:
        page.print_frame(reports[0][1].frame(), "json")
    else:
        page.print_json({name: report.frame().to_dicts() for name, report in reports})


def _print_jsonl(page: CommandOutput, reports: Reports, _: Printing) -> None:
    """Print the rows of reports as JSON lines. If there are several reports, rows begin with the key ``report``."""
    import polars as pl

    for name, report in reports:
        frame = report.frame()
        page.print_frame(frame if len(reports) == 1 else frame.select(pl.lit(name).alias("report"), pl.all()), "jsonl")


def _print_binary(page: CommandOutput, reports: Reports, printing: Printing) -> None:
    """Write a single report as Parquet or Arrow.

    Raises:
        click.UsageError: There are several reports.
    """
    if len(reports) > 1:
        message = (
            f"{printing.style} output can contain only one report, but {len(reports)} are selected: choose one with -r"
        )
        raise click.UsageError(message)
    page.print_frame(reports[0][1].frame(), printing.style)


_PRINTERS = {
    "csv": _print_csv,
    "table": _print_tables,
    "json": _print_json,
    "jsonl": _print_jsonl,
    "parquet": _print_binary,
    "arrow": _print_binary,
}
