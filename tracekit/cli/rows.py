"""``tracekit rows``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - click needs it
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import (
    completes,
    correlated_option,
    from_option,
    input_argument,
    limit_option,
    load,
    printing_options,
    quiet_option,
    rollup_options,
    selection_options,
    split_names,
    table_names,
)
from tracekit.cli.output import say

if TYPE_CHECKING:
    from tracekit.cli.options import Printing, RollUp, Select

ROWS_ON_A_TERMINAL = 20


@click.command("rows")
@input_argument
@click.argument("table", metavar="TABLE", shell_complete=completes(table_names))
@from_option
@limit_option(f"Number of rows to print; 0 prints all. On a terminal {ROWS_ON_A_TERMINAL} if left out, else all.")
@click.option("--columns", metavar="A,B,…", type=split_names, help="Only these columns.")
@click.option(
    "--where",
    metavar="CONDITION",
    help="Only rows that meet this condition in SQL: \"duration_ns > 1000 and short_name like '%gemm%'\".",
)
@click.option("--sort", metavar="A,-B,…", type=split_names, help="Order of the rows; - before a column: descending.")
@click.option("--wide", is_flag=True, help="Metrics side by side: TABLE ncu_metrics with one row per launch.")
@correlated_option
@selection_options
@rollup_options
@printing_options
@quiet_option
def command(
    *,
    path: Path,
    table: str,
    from_: str | None,
    limit: int | None,
    columns: list[str] | None,
    where: str | None,
    sort: list[str] | None,
    wide: bool,
    correlated: bool,
    select: Select,
    roll_up: RollUp,
    printing: Printing,
    quiet: bool,
) -> None:
    """Print rows of TABLE of IN, in the order of the file or by --sort.

    Tables of ops, iterations and group nodes are rolled up first. Wherever a table has start_ns and end_ns, --columns,
    --where and --sort also know duration_ns.
    """
    from tracekit.cli.query import query

    if wide and table != "ncu_metrics":
        raise click.UsageError("--wide is for the table ncu_metrics")
    with load(path, from_) as trace:
        chosen = roll_up(select(trace.correlate() if correlated else trace), table)
        frame = query(chosen, table, columns=columns, where=where, sort=sort, wide=wide)
        shown = frame.head(_limit(limit, printing) or frame.height)
        with printing.page(of=chosen, limit=limit) as page:
            printing.show(page, shown)
    if shown.height < frame.height:
        say(f"{shown.height:,} of {frame.height:,} rows; -n 0 prints all", quiet=quiet)


def _limit(limit: int | None, printing: Printing) -> int:
    return limit if limit is not None else ROWS_ON_A_TERMINAL if printing.is_for_people else 0
