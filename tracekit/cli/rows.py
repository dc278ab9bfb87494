"""``tracekit rows``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - click needs it

import click

from tracekit.cli.options import from_option, input_argument, load, selected, selection_options, style_option
from tracekit.cli.output import show


@click.command("rows")
@input_argument
@click.argument("table", metavar="TABLE")
@from_option
@click.option("-n", "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Rows; 0 is all of them.")
@click.option("--columns", metavar="A,B,…", help="Only these columns.")
@click.option("--correlated", is_flag=True, help="With the columns that correlation adds.")
@selection_options
@style_option
def command(
    path: Path,
    table: str,
    from_: str | None,
    limit: int,
    columns: str | None,
    correlated: bool,  # noqa: FBT001
    time: tuple[int | None, int | None] | None,
    devices: tuple[int, ...],
    domains: tuple[str, ...],
    min_duration_ns: int | None,
    style: str,
) -> None:
    """Print rows of TABLE of IN, in the order of the file."""
    import polars as pl

    with load(path, from_) as trace:
        whole = trace.correlate() if correlated else trace
        chosen = selected(whole, time, devices, domains, min_duration_ns)
        names = [c.strip() for c in columns.split(",")] if columns else None
        data = chosen.table(table, names)
        frame = pl.DataFrame(data.slice(0, limit) if limit else data)
        show(frame, style)
    if limit and data.num_rows > limit and style == "table":
        click.echo(f"{limit:,} of {data.num_rows:,} rows; -n 0 prints all", err=True)
