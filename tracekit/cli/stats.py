"""The command ``tracekit stats``, which prints reports."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from tracekit.cli.answers import print_report_answer, read_scope
from tracekit.cli.options import (
    ANSWER,
    CAPTURE,
    answer_printing_options,
    create_name_completer,
    input_options,
    inputs_argument,
    jobs_option,
    limit_option,
    load_inputs,
    parse_names,
    quiet_option,
    rank_option,
    rollup_options,
    selection_options,
)
from tracekit.cli.output import print_message, print_recorded_warnings, print_steps, show_progress_bar
from tracekit.cli.reports import (
    format_limit_help,
    list_option,
    print_reports,
)
from tracekit.errors import collect_warnings
from tracekit.registry import analyses

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.cli.options import CapturePath, Printing, RollUpOptions, Select, TraceOrSet
    from tracekit.cli.reports import PrintableReport, Reports
    from tracekit.text.names import ReportName
    from tracekit.trace import Trace

DEFAULT = "nvtx_sum,osrt_sum,cuda_api_sum,cuda_gpu_kern_sum,cuda_gpu_mem_time_sum,cuda_gpu_mem_size_sum"


def _describe_reports() -> Iterator[tuple[str, str]]:
    """Yield the name and the description of each report."""
    for name, report in analyses.list_analyses(analyses.REPORT).items():
        yield name, report.doc


@click.command("stats")
@inputs_argument
@click.option(
    "-r",
    "--report",
    "report_names",
    default=DEFAULT,
    type=parse_names,
    metavar="NAME[,NAME]",
    shell_complete=create_name_completer(lambda: analyses.list_names(analyses.REPORT)),
    help="Reports to print. The default is the reports that nsys prints by default.",
)
@list_option(("report", "shows"), _describe_reports, "List all reports with a description, and exit.")
@input_options
@rank_option
@jobs_option
@limit_option(format_limit_help("report"))
@selection_options
@rollup_options
@click.option(
    "--graph",
    "graph",
    metavar="FILE",
    type=CAPTURE,
    help="TensorFlow graph or event file of the same program. The report graph_summary joins its nodes with the ops.",
)
@answer_printing_options
@quiet_option
def stats_command(
    *,
    paths: tuple[CapturePath, ...],
    report_names: list[ReportName],
    from_: str | None,
    limit: int | None,
    select: Select,
    roll_up: RollUpOptions,
    graph: CapturePath | None,
    printing: Printing,
    quiet: bool,
) -> None:
    """Print reports, such as those of nsys stats and DLProf.

    The reports of nsys stats and DLProf have the same names, columns, row order and numbers as in these tools. With
    --format csv, they are identical to the output of `nsys stats -f csv -r NAME` or DLProf, byte for byte.

    --list shows all reports. Old names such as gpukernsum are accepted. Several reports are printed one after the other
    in csv and tables, as an object of arrays in json, and as rows with a column for the report in jsonl. On a terminal,
    each row takes one line, and long names are shortened.

    Several inputs are treated as the ranks of one job. The reports then have the rows of all ranks and a column for the
    rank.
    """
    from tracekit.trace import Trace
    from tracekit.trace import load as load_trace

    with contextlib.ExitStack() as stack:
        warnings = stack.enter_context(collect_warnings())
        trace = load_inputs(paths, from_)
        stack.callback(trace.close)
        selected = roll_up(select(trace))
        if graph is not None:
            if not isinstance(selected, Trace):
                raise click.UsageError(
                    "--graph needs one capture, but IN is a set of ranks: pass one file without --rank, or omit --graph"
                )
            selected = selected.join_graph(stack.enter_context(load_trace(graph)))
            print_message(_describe_graph_matches(selected), quiet=quiet)
        if printing.style == ANSWER:
            from tracekit.answers.build import Asked

            texts = [*warnings, *_list_ignored_options(roll_up.used_options, report_names)]
            asked = Asked("stats", tuple(report_names), trace, read_scope(), limit or None, texts)
            print_report_answer(asked, selected, printing, source=trace)
            return
        print_recorded_warnings(trace, quiet=quiet)
        with show_progress_bar("computing", quiet=quiet) as progress:
            reports = []
            for i, name in enumerate(report_names):
                progress(i, len(report_names))
                reports.append((name, selected.report(name)))
        print_reports(reports, printing, selected, limit=limit)
        if "advise" in report_names:
            print_steps(selected, quiet=quiet)
        for message in _list_ignored_options(roll_up.used_options, report_names):
            print_message(message, quiet=quiet)
        _print_what_is_missing(selected, reports, quiet=quiet)


def _print_what_is_missing(trace: TraceOrSet, reports: Reports, *, quiet: bool) -> None:
    """Print why reports have no rows, or no values in the columns that need more than their tables."""
    from tracekit.sets.notices import explain_missing_rows

    for name, report in reports:
        if not report.rows:
            reason = "; ".join(absence.sentence for absence in explain_missing_rows(trace, name))
            print_message(f"{name}: no rows, because {reason}", quiet=quiet)
        elif (column := analyses.parse_name(name)[0].recorded_column) and _is_empty(report, column):
            print_message(f"{name}: {analyses.parse_name(name)[0].recording}", quiet=quiet)


def _is_empty(report: PrintableReport, column: str) -> bool:
    """Return whether a column of a report has no values."""
    values = report.frame()[column]
    return values.null_count() == values.len()


def _list_ignored_options(options: Sequence[str], report_names: Sequence[str]) -> list[str]:
    """Return a message if roll-up options are used, but have no effect on some of the reports."""
    ignoring = [name for name in report_names if analyses.parse_name(name)[0].origin == "nsys"]
    if not options or not ignoring:
        return []
    verb = "has" if len(options) == 1 else "have"
    effect = f"{', '.join(options)} {verb} no effect on {', '.join(ignoring)}"
    return [f"{effect}: these reports count all events, or those that --time or --nvtx selects"]


def _describe_graph_matches(joined_trace: Trace) -> str:
    """Return a message with the number of ops that the graph contains, by kind of match."""
    matches = {row["match"]: row for row in joined_trace.graph_matches().iter_rows(named=True)}
    unmatched = matches.pop(None, {"ops": 0})["ops"]
    ops, share = (sum(row[c] for row in matches.values()) for c in ("ops", "share"))
    by_kind = "".join(f", {row['ops']:,} by {kind}" for kind, row in matches.items())
    return f"the graph contains {ops:,} of {ops + unmatched:,} ops ({100 * share:.1f}% of GPU time){by_kind}"
