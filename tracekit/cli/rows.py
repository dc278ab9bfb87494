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
    load,
    printing_options,
    quiet_option,
    rollup_options,
    selection_options,
    split_names,
    table_names,
)
from tracekit.cli.output import say
from tracekit.errors import SchemaError

if TYPE_CHECKING:
    import polars as pl

    from tracekit.cli.options import Printing, RollUp, Select
    from tracekit.trace import Trace


@click.command("rows")
@input_argument
@click.argument("table", metavar="TABLE", shell_complete=completes(table_names))
@from_option
@click.option(
    "-n",
    "--limit",
    metavar="N",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="So many rows; 0 is all.",
)
@click.option("--columns", metavar="A,B,…", type=split_names, help="Only these columns.")
@click.option("--wide", is_flag=True, help="Metrics side by side: TABLE ncu_metrics with a row a launch.")
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
    limit: int,
    columns: list[str] | None,
    wide: bool,
    correlated: bool,
    select: Select,
    roll_up: RollUp,
    printing: Printing,
    quiet: bool,
) -> None:
    """Print rows of TABLE of IN, in the order of the file.

    Tables of ops, iterations and group nodes are rolled up first.
    """
    import polars as pl

    if wide and table != "ncu_metrics":
        raise click.UsageError("--wide is for the table ncu_metrics")
    with load(path, from_) as trace:
        chosen = roll_up(select(trace.correlate() if correlated else trace), table)
        data = _wide(chosen, columns).to_arrow() if wide else chosen.table(table, columns)
        frame = pl.DataFrame(data.slice(0, limit) if limit else data)
        with printing.page(of=chosen) as page:
            printing.show(page, frame)
    if len(frame) < data.num_rows:
        say(f"{len(frame):,} of {data.num_rows:,} rows; -n 0 prints all", quiet=quiet)


def _wide(trace: Trace, columns: list[str] | None) -> pl.DataFrame:
    """Put metrics side by side; only some columns of it."""
    data = trace.wide()
    if missing := [c for c in columns or () if c not in data.columns]:
        hint = "leave out --columns to see them"
        raise SchemaError(f"no such columns: {', '.join(missing)}", path=trace.path, hint=hint)
    return data if columns is None else data.select(columns)
