"""The command ``tracekit analyze``, which applies rules that find performance problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from tracekit.cli.answers import print_report_answer, read_scope
from tracekit.cli.options import (
    ANSWER,
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
    selection_options,
)
from tracekit.cli.output import print_message, print_recorded_warnings, show_progress_bar
from tracekit.cli.reports import format_limit_help, list_option, print_reports
from tracekit.errors import collect_warnings
from tracekit.registry import analyses
from tracekit.registry.absence import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.cli.options import CapturePath, Printing, Select, TraceOrSet
    from tracekit.text.names import RuleName


def _describe_rules() -> Iterator[tuple[str, str, str]]:
    """Yield the name, description and options of each rule."""
    for name, rule in analyses.list_analyses(analyses.RULE).items():
        yield name, rule.doc, ", ".join(option.name for option in rule.options)


@click.command("analyze")
@inputs_argument
@click.option(
    "-r",
    "--rule",
    "rule_names",
    type=parse_names,
    metavar="NAME[,NAME]",
    shell_complete=create_name_completer(lambda: analyses.list_names(analyses.RULE)),
    help="Rules to apply. The default is the rules of nsys analyze.",
)
@list_option(
    ("rule", "finds", "options"), _describe_rules, "List all rules with a description and their options, and exit."
)
@input_options
@rank_option
@jobs_option
@limit_option(format_limit_help("rule"))
@selection_options
@answer_printing_options
@quiet_option
def analyze_command(
    *,
    paths: tuple[CapturePath, ...],
    rule_names: list[RuleName] | None,
    from_: str | None,
    limit: int | None,
    select: Select,
    printing: Printing,
    quiet: bool,
) -> None:
    """Apply rules that find performance problems, such as the rules of nsys analyze.

    The rules of nsys analyze have the same names, columns, row order and numbers as in nsys. With --format csv,
    their output is identical to that of `nsys analyze -f csv -r NAME`, byte for byte.

    --list shows all rules. The options of a rule follow its name, as in gpu_gaps:gap=100:rows=10. A rule returns at
    most 50 rows unless its option rows is set. The results of several rules are printed one after the other in csv and
    tables, as an object of arrays in json, and as rows with the column report in jsonl.

    Several inputs are treated as the ranks of one job. A column then contains the rank of each row.
    """
    if rule_names is None:
        rules = analyses.list_analyses(analyses.RULE).values()
        rule_names = cast("list[RuleName]", [rule.name for rule in rules if rule.origin == "nsys"])
    for name in rule_names:
        analyses.parse_name(name, kinds=[analyses.RULE])
    with collect_warnings() as warnings, load_inputs(paths, from_) as trace:
        selected = select(trace)
        if printing.style == ANSWER:
            from tracekit.answers.build import Asked

            asked = Asked("analyze", tuple(rule_names), trace, read_scope(), limit or None, warnings)
            print_report_answer(asked, selected, printing, source=trace)
            return
        print_recorded_warnings(trace, quiet=quiet)
        with show_progress_bar("computing", quiet=quiet) as progress:
            results = []
            for i, name in enumerate(rule_names):
                progress(i, len(rule_names))
                results.append((name, selected.report(name)))
        print_reports(results, printing, selected, limit=limit)
        for name, table in results:
            if not table.rows:
                print_message(f"{name}: {_describe_empty_result(selected, name)}", quiet=quiet)


def _describe_empty_result(trace: TraceOrSet, rule: str) -> str:
    """Return a sentence that states whether a rule found nothing, or why it was not applied."""
    from tracekit.sets.notices import explain_missing_rows

    absences = explain_missing_rows(trace, rule)
    if any(absence.state is State.NOTHING_FOUND for absence in absences):
        return "the rule found nothing"
    return f"not analyzed, because {'; '.join(absence.sentence for absence in absences)}"
