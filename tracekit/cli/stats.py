"""The command ``tracekit stats``."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import (
    complete_names,
    from_option,
    limit_option,
    load_input,
    parse_names,
    printing_options,
    quiet_option,
    rollup_options,
    selection_options,
)
from tracekit.cli.output import print_message, progress_bar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.cli.options import Printing, RollUp, Select
    from tracekit.cli.output import Page
    from tracekit.core.dlprof.reports import DlprofReport
    from tracekit.core.reports import ReportTable
    from tracekit.trace import Trace

    Report = ReportTable | DlprofReport
    Reports = Sequence[tuple[str, Report]]

DEFAULT = "nvtx_sum,osrt_sum,cuda_api_sum,cuda_gpu_kern_sum,cuda_gpu_mem_time_sum,cuda_gpu_mem_size_sum"
PROSE = ("advise", "expert-systems")
"""Reports whose cells contain sentences, which are wrapped and not shortened."""
ROWS_OF_ONE, ROWS_OF_SEVERAL = 30, 10
"""Default number of rows per report on a terminal, if one report is printed and if several are printed."""


def report_names() -> Iterable[str]:
    """Return the names of all reports."""
    return report_descriptions()


def report_descriptions() -> dict[str, str]:
    """Return a one-line description of each report, by report name."""
    from tracekit.core import reports
    from tracekit.core.dlprof.reports import DOCS, REPORTS

    docs = {name: report.doc for name, report in {**reports.REPORTS, **reports.EXTRA_REPORTS}.items()}
    return docs | {name: DOCS[name] for name in REPORTS}


def _list_reports(context: click.Context, _: click.Parameter, enabled: bool) -> None:  # noqa: FBT001 - click's signature
    """Print the list of reports and exit if ``--list`` is set."""
    if not enabled or context.resilient_parsing:
        return
    import polars as pl

    from tracekit.cli.output import open_page

    frame = pl.DataFrame(list(report_descriptions().items()), schema=["report", "shows"], orient="row")
    with open_page() as page:
        page.print_frame(frame, "table", prose=["shows"])
    context.exit()


@click.command("stats")
@click.argument("path", metavar="IN", type=click.Path(path_type=Path))
@click.option(
    "-r",
    "--report",
    "names",
    default=DEFAULT,
    type=parse_names,
    metavar="NAME[,NAME]",
    shell_complete=complete_names(report_names),
    help="Reports to print. The default is the reports that nsys prints by default.",
)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_reports,
    help="List all reports with a description, and exit.",
)
@from_option
@limit_option(
    f"Number of rows to print of each report; 0 prints all. The default is {ROWS_OF_ONE} on a terminal "
    f"({ROWS_OF_SEVERAL} for several reports), and all otherwise."
)
@selection_options
@rollup_options
@click.option(
    "--graph",
    "graph",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TensorFlow graph or event file of the same program, whose nodes graph_summary joins with ops.",
)
@printing_options
@quiet_option
def command(
    *,
    path: Path,
    names: list[str],
    from_: str | None,
    limit: int | None,
    select: Select,
    roll_up: RollUp,
    graph: Path | None,
    printing: Printing,
    quiet: bool,
) -> None:
    """Print reports with the same names, columns, order and numbers as in nsys stats and DLProf.

    --list shows all reports. Old names such as gpukernsum are accepted. With --format csv, the output is identical to
    that of `nsys stats -f csv -r NAME` or DLProf, byte for byte. Several reports are printed one after the other in csv
    and tables, as an object of arrays in json, and as rows with a column for the report in jsonl. On a terminal, each
    row takes one line, and long names are shortened.
    """
    from tracekit.trace import load as load_trace

    with contextlib.ExitStack() as stack:
        trace = stack.enter_context(load_input(path, from_))
        selected = roll_up(select(trace))
        if graph is not None:
            selected = selected.join_graph(stack.enter_context(load_trace(graph)))
            print_message(_graph_match_summary(selected), quiet=quiet)
        with progress_bar("computing", quiet=quiet) as progress:
            reports = []
            for i, name in enumerate(names):
                progress(i, len(names))
                reports.append((name, selected.report(name)))
        rows = _rows_per_report(limit, printing, len(names))
        with printing.open_page(selected, limit=limit) as page:
            _PRINTERS[printing.style](page, [(n, _limit_rows(r, rows)) for n, r in reports], printing)
            if printing.is_terminal_table:
                _print_row_counts(page, [(n, r) for n, r in reports if r.rows > rows > 0], rows)
    for name, report in reports:
        if not report.rows:
            print_message(f"{name}: no data, {_missing_data_reason(trace, selected)}", quiet=quiet)


def _missing_data_reason(trace: Trace, selected: Trace) -> str:
    """Return a clause for a message that states why a report has no rows."""
    if selected is trace:
        return "the capture recorded nothing for it"
    return "the selection excludes it or the capture recorded nothing for it"


def _graph_match_summary(joined: Trace) -> str:
    """Return a message with the number of ops that the graph contains, by kind of match."""
    matches = {row["match"]: row for row in joined.graph_matches().iter_rows(named=True)}
    unmatched = matches.pop(None, {"ops": 0})["ops"]
    ops, share = (sum(row[c] for row in matches.values()) for c in ("ops", "share"))
    by_kind = "".join(f", {row['ops']:,} by {kind}" for kind, row in matches.items())
    return f"graph: contains {ops:,} of {ops + unmatched:,} ops ({100 * share:.1f}% of GPU time){by_kind}"


def _rows_per_report(limit: int | None, printing: Printing, reports: int) -> int:
    """Return the maximum number of rows to print for each report. 0 prints all rows."""
    if limit is not None:
        return limit
    return 0 if not printing.is_terminal_table else ROWS_OF_ONE if reports == 1 else ROWS_OF_SEVERAL


def _limit_rows(report: Report, rows: int) -> Report:
    """Return a report with only its first rows. If ``rows`` is 0, the report has all its rows."""
    return dataclasses.replace(report, data=report.data.head(rows)) if rows else report


def _print_csv(page: Page, reports: Reports, printing: Printing) -> None:
    for i, (_, report) in enumerate((n, r) for n, r in reports if r.rows):
        if i:
            page.data.write(b"\n")
        if printing.spreadsheet:
            page.print_frame(report.frame(), "csv", spreadsheet=True)
        else:
            report.csv(page.data)


def _print_tables(page: Page, reports: Reports, _: Printing) -> None:
    for i, (name, report) in enumerate((n, r) for n, r in reports if r.rows):
        if i:
            page.print_line()
        if len(reports) > 1:
            page.print_line(f"# {name}")
        frame = report.frame()
        if name in PROSE or page.width is None:
            page.print_frame(frame, "table", prose=frame.columns if name in PROSE else ())
        elif omitted := page.print_rows(frame):
            page.print_line(f"(columns left out: {', '.join(omitted)}; widen the terminal or use --format csv)")


def _print_row_counts(page: Page, limited: Reports, rows: int) -> None:
    """Print the total number of rows of each report of which only the first rows were printed."""
    listed = ", ".join(f"{name} has {report.rows:,}" for name, report in limited)
    if listed:
        page.print_line()
        page.print_line(f"(first {rows:,} rows of each report; {listed}; -n 0 prints all)")


def _print_json(page: Page, reports: Reports, _: Printing) -> None:
    if len(reports) == 1:
        page.print_frame(reports[0][1].frame(), "json")
    else:
        page.print_json({name: report.frame().to_dicts() for name, report in reports})


def _print_jsonl(page: Page, reports: Reports, _: Printing) -> None:
    import polars as pl

    for name, report in reports:
        frame = report.frame()
        page.print_frame(frame if len(reports) == 1 else frame.select(pl.lit(name).alias("report"), pl.all()), "jsonl")


def _print_binary(page: Page, reports: Reports, printing: Printing) -> None:
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
