"""``tracekit stats``."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import (
    completes,
    from_option,
    limit_option,
    load,
    printing_options,
    quiet_option,
    rollup_options,
    selection_options,
    split_names,
)
from tracekit.cli.output import progress, say

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
"""Reports whose texts are sentences."""
ROWS_OF_ONE, ROWS_OF_SEVERAL = 30, 10
"""Rows that are printed of a report on a terminal, by default."""


def report_names() -> Iterable[str]:
    """Names of the reports."""
    return descriptions()


def descriptions() -> dict[str, str]:
    """Return what each report shows, by name."""
    from tracekit.core import reports
    from tracekit.core.dlprof.reports import DOCS, REPORTS

    own = {name: report.doc for name, report in {**reports.REPORTS, **reports.EXTRA_REPORTS}.items()}
    return own | {name: DOCS[name] for name in REPORTS}


def _list_reports(context: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click's signature
    """Print the reports and end."""
    if not wanted or context.resilient_parsing:
        return
    import polars as pl

    from tracekit.cli.output import page

    frame = pl.DataFrame(list(descriptions().items()), schema=["report", "shows"], orient="row")
    with page() as out:
        out.show(frame, "table", prose=["shows"])
    context.exit()


@click.command("stats")
@click.argument("path", metavar="IN", type=click.Path(path_type=Path))
@click.option(
    "-r",
    "--report",
    "names",
    default=DEFAULT,
    type=split_names,
    metavar="NAME[,NAME]",
    shell_complete=completes(report_names),
    help="Reports; what nsys prints by default if left out.",
)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_reports,
    help="List every report and what it shows, and exit.",
)
@from_option
@limit_option("Number of rows to print of each report; 0 prints all. Some on a terminal if left out, else all.")
@selection_options
@rollup_options
@click.option(
    "--graph",
    "graph",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="GraphDef or event file of the same program, whose nodes the report graph_summary looks for.",
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
    """Print reports of nsys stats and of DLProf: their names, columns, order and numbers.

    --list names them all. With --format csv the output is byte for byte what `nsys stats -f csv -r NAME` prints, or
    what DLProf wrote. Old names (gpukernsum, …) work. Of several reports, csv and table print one after the other, json
    an object of arrays, jsonl rows that name their report. A terminal gets one line per row, with long names shortened.
    """
    from tracekit.trace import load as load_trace

    with contextlib.ExitStack() as opened:
        trace = opened.enter_context(load(path, from_))
        chosen = roll_up(select(trace))
        if graph is not None:
            chosen = chosen.join_graph(opened.enter_context(load_trace(graph)))
            say(_matched(chosen), quiet=quiet)
        with progress("computing", quiet=quiet) as tell:
            reports = []
            for i, name in enumerate(names):
                tell(i, len(names))
                reports.append((name, chosen.report(name)))
        rows = _limit(limit, printing, len(names))
        with printing.page(of=chosen, limit=limit) as page:
            _PRINTERS[printing.style](page, [(n, _head(r, rows)) for n, r in reports], printing)
            if printing.is_for_people:
                _remark(page, [(n, r) for n, r in reports if r.rows > rows > 0], rows)
    for name, report in reports:
        if not report.rows:
            say(f"{name}: no data, {_absence(trace, chosen)}", quiet=quiet)


def _absence(trace: Trace, chosen: Trace) -> str:
    """Say why a report may have no rows."""
    if chosen is trace:
        return "the capture recorded nothing for it"
    return "nothing that it shows is in the selection, or was recorded"


def _matched(joined: Trace) -> str:
    """Say how many ops are in the graph, and which way they were found."""
    ways = {row["match"]: row for row in joined.graph_matches().iter_rows(named=True)}
    lost = ways.pop(None, {"ops": 0})["ops"]
    ops, share = (sum(row[c] for row in ways.values()) for c in ("ops", "share"))
    how = "".join(f", {row['ops']:,} by {way}" for way, row in ways.items())
    return f"graph: {ops:,} of {ops + lost:,} ops are in it ({100 * share:.1f} % of GPU time){how}"


def _limit(limit: int | None, printing: Printing, reports: int) -> int:
    """Return how many rows of each report to print; 0 for all."""
    if limit is not None:
        return limit
    return 0 if not printing.is_for_people else ROWS_OF_ONE if reports == 1 else ROWS_OF_SEVERAL


def _head(report: Report, rows: int) -> Report:
    return dataclasses.replace(report, data=report.data.head(rows)) if rows else report


def _csv(page: Page, reports: Reports, printing: Printing) -> None:
    for i, (_, report) in enumerate((n, r) for n, r in reports if r.rows):
        if i:
            page.data.write(b"\n")
        if printing.spreadsheet:
            page.show(report.frame(), "csv", spreadsheet=True)
        else:
            report.csv(page.data)


def _table(page: Page, reports: Reports, _: Printing) -> None:
    for i, (name, report) in enumerate((n, r) for n, r in reports if r.rows):
        if i:
            page.line()
        if len(reports) > 1:
            page.line(f"# {name}")
        frame = report.frame()
        if name in PROSE or page.width is None:
            page.show(frame, "table", prose=frame.columns if name in PROSE else ())
        elif omitted := page.rows(frame):
            page.line(f"(left out: {', '.join(omitted)}; a wider terminal shows them, and --format csv)")


def _remark(page: Page, cut: Reports, rows: int) -> None:
    """Say which reports have more rows than were printed."""
    listed = ", ".join(f"{name} has {report.rows:,}" for name, report in cut)
    if listed:
        page.line()
        page.line(f"({rows:,} rows of each report; {listed}. -n 0 prints all)")


def _json(page: Page, reports: Reports, _: Printing) -> None:
    if len(reports) == 1:
        page.show(reports[0][1].frame(), "json")
    else:
        page.json({name: report.frame().to_dicts() for name, report in reports})


def _jsonl(page: Page, reports: Reports, _: Printing) -> None:
    import polars as pl

    for name, report in reports:
        frame = report.frame()
        page.show(frame if len(reports) == 1 else frame.select(pl.lit(name).alias("report"), pl.all()), "jsonl")


def _binary(page: Page, reports: Reports, printing: Printing) -> None:
    if len(reports) > 1:
        raise click.UsageError(f"{printing.style} holds one report: choose it with -r")
    page.show(reports[0][1].frame(), printing.style)


_PRINTERS = {"csv": _csv, "table": _table, "json": _json, "jsonl": _jsonl, "parquet": _binary, "arrow": _binary}
