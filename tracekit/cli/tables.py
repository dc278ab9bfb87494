"""``tracekit tables``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - click needs it

import click

from tracekit.cli.options import from_option, input_argument, load, style_option
from tracekit.cli.output import show


@click.command("tables")
@input_argument
@from_option
@style_option
def command(path: Path, from_: str | None, style: str) -> None:
    """List the tables of IN with their row counts."""
    import polars as pl

    with load(path, from_) as trace:
        rows = [(name, trace.count(name), len(trace.schema(name).columns), trace.schema(name).doc) for name in trace.tables]
    show(pl.DataFrame(rows, schema=["table", "rows", "columns", "doc"], orient="row"), style)
