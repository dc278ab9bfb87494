"""The command ``tracekit rows``, which prints the rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from tracekit.cli.answers import print_envelope, read_scope
from tracekit.cli.options import (
    ANSWER,
    CAPTURE,
    answer_printing_options,
    correlated_option,
    create_name_completer,
    input_options,
    limit_option,
    list_table_names,
    load_inputs,
    parse_names,
    quiet_option,
    rank_option,
    rollup_options,
    selection_options,
)
from tracekit.cli.output import print_message, print_steps
from tracekit.errors import collect_warnings
from tracekit.registry.absence import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.cli.options import CapturePath, Printing, RollUpOptions, Select, TraceOrSet
    from tracekit.text.names import TableName

ROWS_ON_A_TERMINAL = 20
AGGREGATED_TABLES = ("ops", "group_nodes")
"""Tables whose rows are totals over the chosen iterations."""


def complete_input_or_table(context: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return the shell completions of an argument: table names after the first input, and otherwise paths."""
    names = list_table_names() if context.params.get("table") else ()
    tables = [CompletionItem(name) for name in names if name.startswith(typed)]
    return tables or [CompletionItem(typed, type="file")]


@click.command("rows")
@click.argument(
    "paths",
    metavar="IN...",
    nargs=-1,
    required=True,
    type=CAPTURE,
    shell_complete=complete_input_or_table,
)
@click.argument("table", metavar="TABLE", shell_complete=create_name_completer(list_table_names))
@input_options
@rank_option
@limit_option(
    f"Number of rows to print; 0 prints all. The default is {ROWS_ON_A_TERMINAL} on a terminal, and all otherwise."
)
@click.option("--columns", metavar="A,B,…", type=parse_names, help="Print only these columns.")
@click.option(
    "--where",
    metavar="CONDITION",
    help="Print only rows that meet this SQL condition, such as \"duration_ns > 1000 and short_name like '%gemm%'\".",
)
@click.option(
    "--sort",
    metavar="A,-B,…",
    type=parse_names,
    help="Sort by these columns, with - before a column for descending order.",
)
@click.option(
    "--wide", is_flag=True, help="Print the table ncu_metrics with one row per launch and one column per metric."
)
@correlated_option
@selection_options
@rollup_options
@answer_printing_options
@quiet_option
def rows_command(
    *,
    paths: tuple[CapturePath, ...],
    table: TableName,
    from_: str | None,
    limit: int | None,
    columns: list[str] | None,
    where: str | None,
    sort: list[str] | None,
    wide: bool,
    correlated: bool,
    select: Select,
    roll_up: RollUpOptions,
    printing: Printing,
    quiet: bool,
) -> None:
    """Print the rows of a table of IN. Without --sort, the rows are in the order of the capture.

    For tables of ops, iterations and group nodes, the trace is rolled up first. If a table has the columns start_ns and
    end_ns, you can also use duration_ns in --columns, --where and --sort.

    --iterations selects the iterations over which ops and group_nodes are aggregated. It removes no rows from other
    tables. In tables of GPU activities, the column iteration is null in rows of iterations that are not selected.

    Several inputs are treated as the ranks of one job. The first column then contains the rank of each row.
    """
    from tracekit.cli.query import select_rows

    if wide and table != "ncu_metrics":
        raise click.UsageError(f"--wide works only with the table ncu_metrics, not with {table!r}")
    with collect_warnings() as warnings, load_inputs(paths, from_) as trace:
        selected = roll_up(select(trace.correlate() if correlated else trace), table)
        frame = select_rows(selected, table, columns=columns, where=where, sort=sort, wide=wide)
        if printing.style == ANSWER:
            from tracekit.answers.build import Asked, wrap_rows

            asked = Asked("rows", (table,), trace, read_scope(), limit or None, warnings)
            print_envelope(wrap_rows(asked, selected, frame, is_filtered=where is not None), printing, trace)
            return
        printed = frame.head(_compute_max_rows(limit, printing) or frame.height)
        with printing.open_output_page(selected, limit=limit) as page:
            printing.print_frame(page, printed)
        columns_of_table = selected.schema(table).names
        if frame.is_empty():
            _print_reason_for_missing_rows(selected, table, is_filtered=where is not None, quiet=quiet)
        elif selected is not trace and (table in AGGREGATED_TABLES or table == "iterations"):
            print_steps(roll_up.include_warm_up_in(selected), quiet=quiet)
    if printed.height < frame.height:
        print_message(f"{printed.height:,} of {frame.height:,} rows; -n 0 prints all", quiet=quiet)
    for message in _describe_unaffected_rows(roll_up.used_options, table, columns_of_table, where or ""):
        print_message(message, quiet=quiet)


def _print_reason_for_missing_rows(trace: TraceOrSet, table: str, *, is_filtered: bool, quiet: bool) -> None:
    """Print why a table has no rows. Undecoded events are omitted, because reading the table causes a warning."""
    from tracekit.sets.notices import explain_missing_rows

    for absence in explain_missing_rows(trace, table):
        if is_filtered and absence.state is State.NOTHING_FOUND:
            print_message(f"{table}: no row meets the condition of --where", quiet=quiet)
        elif absence.state is not State.NOT_DECODED:
            print_message(f"{table}: no rows, because {absence.sentence}", quiet=quiet)


def _describe_unaffected_rows(options: Sequence[str], table: str, columns: Sequence[str], where: str) -> Iterator[str]:
    """Yield a message if roll-up options, such as ``--iterations``, do not change which rows are printed."""
    if not options or table in AGGREGATED_TABLES:
        return
    column = next((c for c in ("is_aggregated", "iteration") if c in columns), None)
    if column is None:
        verb = "has" if len(options) == 1 else "have"
        yield f"{', '.join(options)} {verb} no effect on {table}, whose rows do not depend on ops and iterations"
    elif "--iterations" in options and column not in where:
        condition = column if column == "is_aggregated" else f"{column} is not null"
        yield f'--iterations keeps all rows of {table}; --where "{condition}" prints only those of these iterations'


def _compute_max_rows(limit: int | None, printing: Printing) -> int:
    """Return the maximum number of rows to print. 0 means all rows."""
    return limit if limit is not None else ROWS_ON_A_TERMINAL if printing.is_terminal_table else 0
