"""``tracekit stats``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import (
    completes,
    from_option,
    input_argument,
    load,
    printing_options,
    quiet_option,
    rollup_options,
    selection_options,
    split_names,
)
from tracekit.cli.output import progress, say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.cli.options import Printing, RollUp, Select
    from tracekit.cli.output import Page
    from tracekit.core.dlprof.reports import DlprofReport
    from tracekit.core.reports import ReportTable
    from tracekit.trace import Trace

    Made = list[tuple[str, ReportTable | DlprofReport]]

DEFAULT = "nvtx_sum,osrt_sum,cuda_api_sum,cuda_gpu_kern_sum,cuda_gpu_mem_time_sum,cuda_gpu_mem_size_sum"


def report_names() -> Iterable[str]:
    """Names of the reports."""
    from tracekit.core import reports
    from tracekit.core.dlprof.reports import REPORTS

    return [*reports.REPORTS, *reports.OWN, *REPORTS]


@click.command("stats")
@input_argument
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
@from_option
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
    select: Select,
    roll_up: RollUp,
    graph: Path | None,
    printing: Printing,
    quiet: bool,
) -> None:
    """Print reports of nsys stats and of DLProf: their names, columns, order and numbers.

    Reports of DLProf: summary, detailed, iteration, kernel, tensor-core, op-type, group-op, expert-systems. With
    --format csv the output is byte for byte what `nsys stats -f csv -r NAME` prints, or what DLProf wrote. Old names
    (gpukernsum, …) work. Of several reports, csv and table print one after the other, json an object of arrays, jsonl
    rows that name their report.
    """
    from tracekit.trace import load as load_trace

    with contextlib.ExitStack() as opened:
        trace = opened.enter_context(load(path, from_))
        chosen = roll_up(select(trace))
        if graph is not None:
            chosen = chosen.join_graph(opened.enter_context(load_trace(graph)))
            say(_found(chosen), quiet=quiet)
        with progress("computing", quiet=quiet) as tell:
            made = []
            for i, name in enumerate(names):
                tell(i, len(names))
                made.append((name, chosen.report(name)))
        with printing.page(of=chosen) as page:
            _PRINTERS[printing.style](page, made, printing)
    for name, report in made:
        if not report.rows:
            say(f"{name}: no data, the capture recorded nothing for it", quiet=quiet)


def _found(joined: Trace) -> str:
    """Say how many ops are in the graph, and which way they were found."""
    ways = {row["match"]: row for row in joined.graph_matches.iter_rows(named=True)}
    lost = ways.pop(None, {"ops": 0})["ops"]
    found, share = (sum(row[c] for row in ways.values()) for c in ("ops", "share"))
    how = "".join(f", {row['ops']:,} by {way}" for way, row in ways.items())
    return f"graph: {found:,} of {found + lost:,} ops are in it ({100 * share:.1f} % of GPU time){how}"


def _csv(page: Page, made: Made, printing: Printing) -> None:
    for i, (_, report) in enumerate((n, r) for n, r in made if r.rows):
        if i:
            page.data.write(b"\n")
        if printing.spreadsheet:
            page.show(report.frame(), "csv", spreadsheet=True)
        else:
            report.csv(page.data)


def _table(page: Page, made: Made, _: Printing) -> None:
    for i, (name, report) in enumerate((n, r) for n, r in made if r.rows):
        if i:
            page.line()
        if len(made) > 1:
            page.line(f"# {name}")
        page.show(report.frame(), "table")


def _json(page: Page, made: Made, _: Printing) -> None:
    if len(made) == 1:
        page.show(made[0][1].frame(), "json")
    else:
        page.json({name: report.frame().to_dicts() for name, report in made})


def _jsonl(page: Page, made: Made, _: Printing) -> None:
    import polars as pl

    for name, report in made:
        frame = report.frame()
        page.show(frame if len(made) == 1 else frame.select(pl.lit(name).alias("report"), pl.all()), "jsonl")


_PRINTERS = {"csv": _csv, "table": _table, "json": _json, "jsonl": _jsonl}
